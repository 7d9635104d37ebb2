"""Parameters of the flows: pydantic models, so that Prefect checks them and draws a form for each."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from factorflow.models.base import registered

if TYPE_CHECKING:
    from factorflow.models.base import ModelConfig as ModelChoice
else:
    ModelChoice = Annotated[reduce(or_, registered().values()), Field(discriminator="model")]
    """Any configuration in `factorflow.models`; its ``model`` says which."""

__all__ = ["ModelChoice", "RunOptions", "SourceOptions", "default_model"]


class RunOptions(BaseModel):
    """How a run is made, apart from its model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(default=0, ge=0, description="Key of all random numbers.")
    executor: str = Field(
        default="dask", description="dask (a cluster of its own), local, threads, or a scheduler's address."
    )
    workers: int | None = Field(default=None, ge=1, description="Workers to start; all cores when left out.")
    memory_limit: str | None = Field(default=None, description="Memory of each worker, such as 4GB.")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="Where kernels run.")
    max_iter: int | None = Field(default=None, ge=1, description="Iterations at most.")
    max_minutes: float | None = Field(default=None, gt=0, description="Wall-clock minutes at most.")
    checkpoint_every: int = Field(default=50, ge=1, description="Iterations between two checkpoints.")
    holdout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of observed entries to hide and score."
    )


class SourceOptions(BaseModel):
    """How a source is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    likelihoods: dict[str, Literal["gaussian", "bernoulli", "poisson"]] = Field(
        default_factory=dict, description="By view; what is left out is taken from the file or guessed."
    )


def default_model() -> Any:
    """Return the configuration that a flow uses when it is given none."""
    return registered()["sparse_gfa"]()
