"""The record of a run, from its start through its checkpoints to the attributes of its posterior."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from factorflow.core.block import HoldoutUnit
from factorflow.errors import InputError
from factorflow.settings import ResumeOptions, RunOptions
from factorflow.settings.runs import PASSING

Status = Literal["running", "partial", "complete", "projected"]

JSON_PARTS = ("config", "environment", "meta")
"""Attributes that hold JSON text: what has parts."""


class Identity(BaseModel):
    """The identity of a run: runs of equal identity have equal bits at the same iteration.

    Parameters
    ----------
    warm_start : str
        Digest of the globals that it began with; empty: it started anew.
    covariates : str
        Digest of the columns of the sample metadata that it was given; empty: none.
    feature_sets : str
        Digest of the feature sets that it was given; empty: none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fingerprint: str
    config: dict[str, Any]
    seed: int
    holdout: float
    holdout_unit: HoldoutUnit = "entry"
    device: str
    factorflow: str
    warm_start: str = ""
    covariates: str = ""
    feature_sets: str = ""

    def differences(self, other: Identity) -> dict[str, tuple[Any, Any]]:
        """Return what differs, by name: here and there; of the configuration, only what differs in it."""
        mine, theirs = self.model_dump(mode="json"), other.model_dump(mode="json")
        differences = {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}
        if "config" in differences:
            here, there = differences["config"]
            names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
            differences["config"] = ({n: here.get(n) for n in names}, {n: there.get(n) for n in names})
        return differences


class HowRun(ResumeOptions):
    """How a run was last executed; a cluster is named by its class or its address."""

    executor: str = "local"


class RunRecord(BaseModel):
    """The record of a run.

    Parameters
    ----------
    options : ResumeOptions
        How it was run, last: the executor, and the budgets.
    status : str
        "running" in a checkpoint; "partial", "complete" or "projected" (new samples) of a posterior.
    reason : str
        Why it ended: "converged", "max_iter", "interrupted", ...
    warm_from : str
        Path of the posterior of the earlier fit that it began with; empty: it started anew.
    """

    model_config = ConfigDict(frozen=True)

    identity: Identity
    options: HowRun = HowRun()
    dataset: str
    status: Status = "running"
    reason: str = ""
    n_iterations: int = 0
    environment: dict[str, str] = {}
    warm_from: str = ""

    @classmethod
    def begin(
        cls,
        dataset: str,
        fingerprint: str,
        config: Mapping[str, Any],
        options: RunOptions,
        environment: Mapping[str, str],
        warm: tuple[str, str] = ("", ""),
        covariates: str = "",
        feature_sets: str = "",
    ) -> RunRecord:
        """Return the record of a run that begins.

        Parameters
        ----------
        warm : (str, str)
            Path of the posterior that it begins with, and digest of its globals.
        covariates : str
            Digest of the columns of the sample metadata that it is given.
        feature_sets : str
            Digest of the feature sets that it is given.
        """
        chosen = options.model_dump()
        how = {name: chosen.pop(name) for name in ResumeOptions.model_fields}
        how = {name: value for name, value in how.items() if name not in PASSING}
        if options.cluster is not None:
            how["executor"] = options.cluster.address or options.cluster.class_name
        identity = {
            "fingerprint": fingerprint,
            "config": dict(config),
            "factorflow": environment["factorflow"],
        }
        identity |= {"warm_start": warm[1], "covariates": covariates, "feature_sets": feature_sets}
        return cls(
            identity=Identity(**identity, **chosen),
            options=HowRun(**how),
            dataset=dataset,
            environment=dict(environment),
            warm_from=warm[0],
        )

    def ended(self, status: Status, reason: str, n_iterations: int) -> RunRecord:
        """Return the record of the run when it has ended."""
        changes = {"status": status, "reason": reason, "n_iterations": n_iterations}
        return self.model_copy(update=changes)

    def run_options(self, options: ResumeOptions) -> RunOptions:
        """Return the options that resume the run: its own where they determine results."""
        same = self.identity.model_dump(include=set(RunOptions.model_fields))
        how = options.model_dump()
        if options.max_iter is None:
            how["max_iter"] = self.options.max_iter
        return RunOptions(**how, **same)

    def answers(self, other: RunRecord) -> bool:
        """Return whether this is the complete result of the run that ``other`` describes."""
        if self.status != "complete" or self.identity != other.identity:
            return False
        spent, limit = self.options.max_iter, other.options.max_iter
        if self.reason == "max_iter" and spent is not None and self.n_iterations >= spent:
            return limit == spent  # with another budget it would have ended elsewhere
        return limit is None or limit >= self.n_iterations

    def is_result_of(self, run: RunRecord) -> bool:
        """Return whether this is the complete result of a run; of a projection, with its iterations."""
        if run.status != "projected":
            return self.answers(run)
        ended = self.status == "projected" and self.reason not in {"interrupted", "max_minutes"}
        return ended and self.identity == run.identity and self.options.max_iter == run.options.max_iter

    def attributes(self) -> dict[str, Any]:
        """Return the record as attributes, one for each part that has a value: netCDF has no None."""
        parts = self.model_dump(mode="json", exclude={"options": set(PASSING)})
        attributes = {**parts.pop("identity"), **parts.pop("options"), **parts}
        return encode({name: value for name, value in attributes.items() if value is not None})

    @classmethod
    def of_attributes(cls, attributes: Mapping[str, Any]) -> RunRecord:
        """Return the record that `attributes` wrote; attributes of others are left alone.

        Raises
        ------
        InputError
            When a part is missing or is not what it should be.
        """
        decoded = decode(attributes)

        def parts(kind: type[BaseModel]) -> dict[str, Any]:
            return {name: decoded[name] for name in kind.model_fields if name in decoded}

        try:
            return cls(**{**parts(cls), "identity": parts(Identity), "options": parts(HowRun)})
        except ValidationError as error:
            first = error.errors()[0]
            option = first.get("ctx", {}).get("error")  # of the options: one of ours
            name, expected = str(first["loc"][-1]), str(first["msg"])
            if isinstance(option, InputError):
                name, expected = option.parameter, option.expected
            raise InputError(
                f"attribute {name}",
                decoded.get(name),
                f"a valid value in the record of a run ({expected})",
                "The posterior is damaged: copy it again, or fit again.",
            ) from error


def encode(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as attributes: JSON text for what has parts."""
    return {name: json.dumps(value) if name in JSON_PARTS else value for name, value in parts.items()}


def decode(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as the values that `encode` was given."""
    return {
        str(name): json.loads(value) if name in JSON_PARTS and isinstance(value, str) else value
        for name, value in attributes.items()
    }
