"""The process itself at distinct places: one coefficient for each place of each group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.smooth.basis import (
    At,
    Codes,
    Covariance,
    Lengths,
    PlacesBasis,
    Rows,
    Sharing,
)
from factorflow.models.sparse_gfa.smooth.processes import correlation, group_correlation

JITTER = 1e-9
"""Added to the variances of coefficients of places, which may be nearly equal."""


@dataclass(frozen=True)
class Points(PlacesBasis):
    """One coefficient for each distinct place of each group.

    Parameters
    ----------
    positions : tuple of float
        Where they lie instead, of one column; empty: where they are.
    """

    positions: tuple[float, ...] = ()

    def with_positions(self, positions: Float64[Array, " M"]) -> Points:
        """Return the same with its places moved."""
        return replace(self, positions=tuple(positions.tolist()))

    @cached_property
    def _places(self) -> Float64[Array, "M p"]:
        return np.asarray(self.positions)[:, None] if self.positions else self._cells[:, 1:]

    @cached_property
    def _cells(self) -> Float64[Array, "M columns"]:
        return np.asarray(self.places.cells, np.float64)

    @cached_property
    def _numbers(self) -> dict[tuple[float, ...], int]:
        return {cell: number for number, cell in enumerate(self.places.cells)}

    @property
    def size(self) -> int:
        """Number of functions (M)."""
        return len(self.places.cells)

    @property
    def shortest(self) -> Float64[Array, " R"]:
        """Shortest length scale of each covariate."""
        return np.asarray(self.places.nearest)

    def cell(self, places: Rows, codes: Codes) -> Int64[Array, " B"]:
        """Return the number of the place of each row; -1 where there is none."""
        rows = np.column_stack([codes, places]).tolist()
        return np.array([self._numbers.get(tuple(row), -1) for row in rows], np.int64)

    def covariance(self, lengths: Lengths, sharing: Sharing) -> Covariance:
        """Return T before it is scaled, and its slopes."""
        groups = self._cells[:, 0].astype(np.int64)
        value, by_length, between, by_sharing = self._between(self._places, groups, lengths, sharing)
        covariance = between * value + JITTER * np.eye(self.size)
        return covariance, [between * one for one in by_length] + [one * value for one in by_sharing]

    def at(
        self, places: Rows, codes: Codes, lengths: Lengths, sharing: Sharing, centre: Float64[Array, " M"]
    ) -> At:
        """Return functions at any places, and the variance of the course beside them."""
        value, _, between, _ = self._between(places, codes, lengths, sharing)
        cross = between * value
        functions = np.linalg.solve(self.covariance(lengths, sharing)[0], cross.T).T
        beside = np.maximum(1.0 - (functions * cross).sum(axis=1), 0.0)
        return functions - centre, beside, np.zeros(len(places))

    def functions(self, places: Rows, codes: Codes) -> Float64[Array, "B M"]:
        """Return which place each row has."""
        return (self.cell(places, codes)[:, None] == np.arange(self.size)).astype(np.float64)

    def inside(self, places: Rows) -> Any:
        """Return which places the functions reach: all that are known."""
        return np.isfinite(places).all(axis=1)

    def _between(
        self, places: Rows, codes: Codes, lengths: Lengths, sharing: Sharing
    ) -> tuple[Any, Any, Any, list[Any]]:
        """Return correlations of places with the cells, their slopes, and those of their groups."""
        squares = self._squares(places[:, None, :] - self._places[None])
        value, by_length = correlation(self.kernel, squares / lengths[:, None, None] ** 2)
        groups = self._cells[:, 0].astype(np.int64)
        shared, slopes = group_correlation(sharing)
        chosen = np.ix_(codes, groups)
        return value, by_length, shared[chosen], [one[chosen] for one in slopes]
