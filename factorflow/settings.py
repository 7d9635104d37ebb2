"""How a run is made, apart from its model: the settings that Python, command line and flows share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from factorflow.shape import HoldoutUnit

__all__ = ["SELECTION", "ResumeOptions", "RunOptions", "TableOptions", "TrialOptions", "parse_config"]

B = TypeVar("B", bound=BaseModel)


class ResumeOptions(BaseModel):
    """What may change when a run goes on: where it works, and its budgets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    executor: str = Field(
        default="local",
        description="local, threads, dask (a cluster of its own), or an address such as tcp://host:8786.",
    )
    workers: int | None = Field(
        default=None, ge=1, description="Threads or worker processes to start; all cores when left out."
    )
    memory_limit: str | None = Field(default=None, description="Memory of each worker, such as 4GB.")
    max_iter: int | None = Field(default=None, ge=1, description="Iterations at most.")
    max_minutes: float | None = Field(default=None, gt=0, description="Wall-clock minutes at most.")
    checkpoint_every: int = Field(default=50, ge=1, description="Iterations between two checkpoints.")

    @field_validator("memory_limit", mode="before")
    @classmethod
    def _as_text(cls, limit: Any) -> Any:
        """Return bytes given as a number as text."""
        return str(limit) if isinstance(limit, int) else limit


class TrialOptions(ResumeOptions):
    """What the runs of a selection share."""

    device: Literal["cpu", "cuda"] = Field(default="cpu", description="Where blocks are worked on.")
    holdout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the observed entries to hide and score."
    )
    holdout_unit: HoldoutUnit = Field(
        default="entry", description="What is hidden together: single entries, whole rows or whole sequences."
    )


class RunOptions(TrialOptions):
    """All settings of one run."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="Key of all random numbers.")


class TableOptions(BaseModel):
    """How a long table becomes a dataset (`factorflow.write_table`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    formula: str = Field(description="Of the table: 'count ~ site + year + offset(log(effort))'.")
    likelihood: Literal["poisson", "normal", "gaussian"] | None = Field(
        default=None, description="Of the response; left out: counts are poisson, all else is normal."
    )
    missing_response: Literal["drop", "refuse"] = Field(
        default="drop", description="Rows without a response or another number."
    )
    missing_levels: Literal["level", "drop", "refuse"] = Field(
        default="level", description="Rows without a label; level: one of their own."
    )
    merge: bool = Field(default=True, description="Make one of the rows that agree in all variables.")
    grid: bool = Field(default=False, description="Combinations that are not in the table count 0.")
    holdout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the rows that is held out before any are merged."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Which rows are held out.")


SELECTION = TrialOptions(holdout=0.1)
"""Options of the runs of a selection where nothing else is said."""


def parse_config(kind: type[B], settings: Mapping[str, Any]) -> B:
    """Return a configuration made from settings.

    Raises
    ------
    InputError
        For unknown keys and values out of range, naming the first of them.
    """
    from difflib import get_close_matches

    from pydantic import ValidationError

    from factorflow.errors import InputError

    try:
        return kind(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "model"
        remedy = f"Settings of {kind.__name__}: {', '.join(kind.model_fields)}."
        if first["type"] == "extra_forbidden":
            near = get_close_matches(key, kind.model_fields, n=1)
            remedy = f"Did you mean {near[0]}? {remedy}" if near else remedy
            raise InputError(key, first.get("input"), "a known setting", remedy) from error
        expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        raise InputError(key, first.get("input"), expected, remedy) from error
