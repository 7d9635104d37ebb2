"""What a model whose scores are functions of time, place or covariates has beside the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from factorflow.core.block import Array
from factorflow.errors import InputError


@runtime_checkable
class CourseModel(Protocol):
    """A model with courses: functions of places, (n, p), and numbers of groups, (n,), as in `Meta.places`.

    ``record`` has the stored variables, whole.
    """

    def interpolate(
        self, record: Mapping[str, Array], places: Array, codes: Array
    ) -> tuple[Array, Array, Array]:
        """Return mean and variance of the courses at any places, (n, K), and of scores about them.

        Of a sampler those given a draw, means of all draws: (chain, draw, n, K).
        """

    def warped(self, record: Mapping[str, Array], places: Array, codes: Array) -> Array:
        """Return own times of groups on the common clock, (n,); an InputError when clocks are the same."""

    def shortest_lengths(self) -> tuple[Array, int] | None:
        """Return the shortest length scales that functions resolve, and how many functions a column has."""


def course_model(model: Any) -> CourseModel:
    """Return a model as one with courses."""
    if isinstance(model, CourseModel):
        return model
    expected, remedy = "a variational fit whose scores are functions", "Fit with {n_draws}."
    raise InputError("model", type(model).__name__.removesuffix("Model"), expected, remedy, n_draws=0)
