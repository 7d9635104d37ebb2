"""Where the samples lie, in time, space or dose: what smooth scores are functions of (`Places`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.covariates import Column

PLACES = "places"
"""Name under which they travel with a block, in ``Block.columns``."""

MOST_CELLS = 600
"""Distinct places up to which each is a coefficient of smooth scores: the root takes their number cubed."""


@dataclass(frozen=True)
class Places:
    """Columns of the sample metadata with the places of samples, and their ranges and distances.

    Parameters
    ----------
    covariate : tuple of int
        Of which covariate each column is a dimension: x and y of one place share a length scale.
    nearest : tuple of float
        Median distance of a distinct value to its nearest neighbour, of each covariate.
    groups : tuple of str
        Groups of samples that may have courses of their own; empty: all have one.
    cells : tuple of tuple of float
        Distinct places in order, the number of the group first; empty where there are too many.
    levels : tuple of str
        Of a category, which has no distances: a place for each; empty: of numbers.
    """

    columns: tuple[str, ...]
    covariate: tuple[int, ...]
    digests: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    nearest: tuple[float, ...] = ()
    groups: tuple[str, ...] = ()
    cells: tuple[tuple[float, ...], ...] = ()
    n_known: int = 0
    levels: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return how many columns there are."""
        return len(self.columns)

    @property
    def sources(self) -> tuple[Column, ...]:
        """The columns, as they are read."""
        return tuple(Column(name, levels=self.levels) for name in self.columns)

    @property
    def n_covariates(self) -> int:
        """Number of covariates, each with a length scale (R)."""
        return max(self.covariate) + 1

    @property
    def labels(self) -> list[str]:
        """Name of each covariate: its columns, joined."""
        pairs = list(zip(self.columns, self.covariate, strict=True))
        return ["_".join(name for name, own in pairs if own == r) for r in range(self.n_covariates)]

    @property
    def spans(self) -> NDArray[np.float64]:
        """Longest range among the columns of each covariate."""
        ranges = np.subtract(self.high, self.low)
        owner = np.asarray(self.covariate)
        return np.array([ranges[owner == r].max() for r in range(self.n_covariates)])

    def encode(self, table: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Return the places of some samples, (B, p); NaN where a column is missing. Of levels their numbers.

        Parameters
        ----------
        table : mapping of str to (B,) array
            The columns: numbers, NaN where missing, or text, "" where missing.
        """
        values = [table[name] for name in self.columns]
        if self.levels:
            number = {level: float(i) for i, level in enumerate(self.levels)}
            values = [np.array([number.get(label, np.nan) for label in column.tolist()]) for column in values]
        places = np.column_stack(values)
        return np.where(np.isfinite(places).all(axis=1, keepdims=True), places, np.nan)

    def sample(self, generator: np.random.Generator, n_rows: int) -> NDArray[np.float64]:
        """Return places as there may be, of the first group, (n_rows, p).

        Returns
        -------
        (n_rows, p) array
        """
        own = [cell[1:] for cell in self.cells if cell[0] == 0.0]
        if own:
            return np.asarray(own)[generator.integers(0, len(own), n_rows)]
        return generator.uniform(self.low, self.high, (n_rows, len(self)))
