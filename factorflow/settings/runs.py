"""Options of runs, apart from those of models."""

from __future__ import annotations

import re
from os import PathLike
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from factorflow.core.block import HoldoutUnit
from factorflow.errors import InputError
from factorflow.settings.base import Options
from factorflow.settings.clusters import Cluster, bytes_of

PASSING = ("cluster", "log_json", "metrics", "performance_report")
"""Options that no record keeps: where a run worked in full (arguments may be secrets), and who looked on."""


EXECUTOR = r"^(local|threads|dask|[a-z][a-z0-9+.-]*://\S+)$"
"""Expected forms of an executor that is text."""


def _check_executor(executor: str) -> str:
    """Check an executor when it is set, not when the run starts."""
    if re.search(EXECUTOR, executor) is None:
        expected = "'local', 'threads', 'dask', an address such as tcp://host:8786, a Client or a cluster"
        raise InputError("executor", executor, expected, "Choose one.")
    return executor


ExecutorName = Annotated[
    str, AfterValidator(_check_executor), WithJsonSchema({"type": "string", "pattern": EXECUTOR})
]
"""Executor of a run as text; schemas have the pattern, so that forms and servers check it."""


FUNCTION = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
"""The path of a function that can be imported."""


def _check_function(path: str) -> str:
    """Check the form of the path of a function; it is imported later."""
    if re.search(FUNCTION, path) is None:
        raise InputError("accept", path, "package.module:function", "Correct it.")
    return path


FunctionPath = Annotated[
    str, AfterValidator(_check_function), WithJsonSchema({"type": "string", "pattern": FUNCTION})
]


def _check_memory(limit: str) -> str:
    bytes_of("memory_limit", limit)
    return limit


MemoryLimit = Annotated[
    str,
    AfterValidator(_check_memory),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\s*[\d_.]*\d[\d_.]*([eE]\d+)?\s*([kKmMgGtTpP]i?)?[bB]?\s*$"}
    ),
]
Port = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^(\S*:)?\d{1,5}$"})]


class PlaceOptions(Options):
    """Where a run is executed."""

    of = "factorflow.project"

    executor: ExecutorName = Field(
        default="local",
        description="local, threads, dask (a cluster of its own), or an address such as tcp://host:8786.",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Threads or worker processes to start (threads, dask); all cores when left out.",
    )
    memory_limit: MemoryLimit | None = Field(
        default=None, description="Memory of each worker, such as 4GB; of this process for local and threads."
    )
    cluster: Cluster | None = Field(
        default=None,
        description="A cluster for the run, instead of executor, workers and memory_limit: JSON, or a YAML "
        "or JSON file, with a class, its kwargs and adapt, or with an address.",
    )

    @field_validator("memory_limit", mode="before")
    @classmethod
    def _as_text(cls, limit: Any) -> Any:
        """Return bytes given as a number as text."""
        return str(limit) if isinstance(limit, int) else limit

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        """Refuse an executor beside a cluster; the default executor does not count."""
        if self.cluster is None:
            return self
        if self.executor not in {"local", "dask"}:
            expected = "None with cluster, which determines where the run is executed"
            raise InputError("executor", self.executor, expected, "Leave one of the two out.")
        for name in ("workers", "memory_limit"):
            if (value := getattr(self, name)) is not None:
                remedy = "Put it into the cluster: its workers, adapt or kwargs."
                raise InputError(name, value, "None with cluster", remedy)
        return self

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments of functions of Python, where a cluster is the ``executor``.

        Returns
        -------
        dict of str to Any
            Value by argument.
        """
        arguments = self.model_dump(exclude={"cluster"})
        return arguments if self.cluster is None else {**arguments, "executor": self.cluster}


class ResumeOptions(PlaceOptions):
    """Options that may change when a run is resumed: where it is executed, and its budgets."""

    of = "factorflow.resume"

    log_json: str | None = Field(
        default=None,
        description="File to which a line of JSON is appended for each event of the run: run, model, stage, "
        "iteration, objective (nats), seconds.",
    )
    metrics: Port | None = Field(
        default=None,
        description="Port, or HOST:PORT, where Prometheus fetches the run's numbers; a port alone is open to "
        "this machine only.",
    )
    performance_report: str | None = Field(
        default=None, description="HTML file for Dask's report of the run: tasks, transfers, memory."
    )
    max_iter: int | None = Field(
        default=None, ge=1, description="Iterations at most, over the stages that count."
    )
    max_minutes: float | None = Field(default=None, gt=0, description="Wall-clock minutes at most.")
    checkpoint_every: int = Field(default=50, ge=1, description="Iterations between two checkpoints.")

    @field_validator("metrics", "log_json", "performance_report", mode="before")
    @classmethod
    def _port_or_path_as_text(cls, value: Any) -> Any:
        """Return a port given as a number, and a path, as text."""
        return str(value) if isinstance(value, int | PathLike) else value

    @field_validator("metrics")
    @classmethod
    def _a_port(cls, value: str | None) -> str | None:
        """Check a port, with or without a host."""
        port = (value or "0").rpartition(":")[2]
        if not (port.isascii() and port.isdigit() and int(port) < 2**16):
            raise InputError("metrics", value, "a port up to 65535, or HOST:PORT", "Choose a free one.")
        return value


class TrialOptions(ResumeOptions):
    """Options shared by the runs of a selection."""

    of = "factorflow.workflow.select.select"

    device: Literal["cpu", "cuda"] = Field(
        default="cpu", description="Where blocks are worked on; a GPU agrees with a CPU to a tolerance only."
    )
    holdout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the observed entries that are hidden from the model and scored at the end.",
    )
    holdout_unit: HoldoutUnit = Field(
        default="entry",
        description="What is hidden together: single entries, all values of a row, or of the rows of a "
        "sequence. Inputs (categorical variables, covariates) stay visible. count: a part of each count "
        "instead, drawn binomially; other views stay visible and have no score.",
    )


class RunOptions(TrialOptions):
    """All settings of one run."""

    of = "factorflow.fit"

    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Key of all random numbers, held-out entries included."
    )


class OutputOptions(Options):
    """Options of a result that is written to a path."""

    overwrite: bool = Field(
        default=False, description="Replace what is at the path; it stays until the new result is complete."
    )
    resume: bool | Literal["auto"] = Field(
        default=False,
        description="Go on with the interrupted run to the path, from its last checkpoint. In Python also "
        "'auto': if there is one, else begin anew; a complete result of this very run is returned.",
    )


class FitOptions(OutputOptions, RunOptions):
    """All that a fit takes beside dataset and model."""

    warm_start: str | None = Field(
        default=None,
        description="An earlier fit of the same model to other rows of the same features, which the run "
        "begins with: factors keep their order, their signs and, where some are dropped, their names. A "
        "factor that it dropped does not come back.",
    )


class ProjectOptions(OutputOptions, PlaceOptions):
    """All that a projection takes beside the fit and the new samples."""

    iterations: int = Field(
        default=20,
        ge=1,
        description="Passes over the data at most, for models whose local state is found by iterating; of a "
        "sampler, for each of at most 100 draws of the fit, as many of each chain.",
    )


class RefreshOptions(Options):
    """Options of recurring runs: when to refit, how to start, what to keep, and thresholds of drift."""

    of = "factorflow.workflow.refresh.refresh"

    refit_growth: float = Field(
        default=0.0,
        ge=0,
        description="Share by which the rows must have grown since the last fit for another one; rows that "
        "grew by less are projected on it. 0: every change of the data is fitted.",
    )
    refit_days: float | None = Field(
        default=None,
        gt=0,
        description="Days since the last fit after which any change of the data is fitted.",
    )
    warm: bool = Field(
        default=True,
        description="Begin with the factors of the last fit, which keep their order, signs and names, where "
        "the model can and the features are the same.",
    )
    keep: int = Field(
        default=5, ge=1, description="Posteriors that are kept; the last one and its fit always are."
    )
    min_rows: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Share of the rows of the latest posterior that the data must have; fewer are refused. "
        "0: any number is taken.",
    )
    drift_rows: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="The rows have drifted when more than this share of those of the latest posterior went.",
    )
    drift_missing: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="A view has drifted when the share of its missing entries rose by more than this.",
    )
    drift_loadings: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="A factor has drifted when 1 - |correlation| of its loadings with those of the last fit "
        "is above this.",
    )
    drift_means: float = Field(
        default=0.5,
        gt=0,
        description="A feature has drifted when its mean moved by more than so many standard deviations.",
    )
    drift_score: float = Field(
        default=0.1,
        ge=0,
        description="A view has drifted when its held-out log-likelihood fell by more than this, in nats an "
        "entry.",
    )
    accept: FunctionPath | None = Field(
        default=None,
        description="A function, package.module:function, that is given the comparison with the posterior "
        "before, and returns whether the new one becomes the latest.",
    )


class SelectOptions(TrialOptions):
    """All that a selection takes beside dataset, model and grid."""

    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(
        default=[0],
        min_length=1,
        description="Runs of each combination: a seed each, which also draws the held-out entries.",
    )
    refit: bool = Field(default=True, description="Fit the best model to everything, nothing held out.")
    parallel: int = Field(
        default=1,
        ge=1,
        description="Fits at the same time, on the Dask workers of one cluster, with the same results.",
    )


SELECTION = SelectOptions(holdout=0.1)
"""Default options of a selection."""
