"""Parameters of the flows: pydantic models, so that Prefect checks them and draws a form for each."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from factorflow import settings
from factorflow.models.registry import registered
from factorflow.shape import Likelihood

if TYPE_CHECKING:
    from factorflow.models.contract import ModelConfig as ModelChoice
else:
    ModelChoice = Annotated[reduce(or_, registered().values()), Field(discriminator="model")]
    """Any configuration in `factorflow.models`; its ``model`` says which."""

__all__ = ["ModelChoice", "RunOptions", "SourceOptions", "default_model"]


class RunOptions(settings.RunOptions):
    """How a run is made, apart from its model; a flow works on a Dask cluster of its own."""

    executor: str = Field(
        default="dask", description=settings.RunOptions.model_fields["executor"].description
    )


class SourceOptions(BaseModel):
    """How a source is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    likelihoods: dict[str, Likelihood] = Field(
        default_factory=dict,
        description="By view: gaussian, bernoulli or poisson values, a categorical variable, or covariates; "
        "what is left out is taken from the file or guessed.",
    )
    table: settings.TableOptions | None = Field(
        default=None, description="The source is a long table, with this formula."
    )


def default_model() -> Any:
    """Return the configuration that a flow uses when it is given none."""
    return registered()["sparse_gfa"]()
