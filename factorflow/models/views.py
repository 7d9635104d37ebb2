"""Which views a model takes."""

from __future__ import annotations

from factorflow.core.block import Meta
from factorflow.errors import InputError


def refuse_inputs(meta: Meta, model: str) -> None:
    """Refuse categorical variables and covariates, for a model without inputs."""
    if meta.input_views:
        values = [view.name for view in meta.value_views]
        raise InputError(
            "views",
            ", ".join(f"{view.name} ({view.likelihood})" for view in meta.input_views),
            f"views of values: {model} takes no categorical variables or covariates",
            "Select the others: {views}, or fit a family of long tables." if values else "Fit another model.",
            views=values,
        )
