"""Functions that a smooth course is made of: f(n) = phi_n' c, c ~ N(0, s T), phi free of what is learned.

`Points`, where samples share few places: one coefficient for each distinct place (and group), the process
itself. `Cosines`, elsewhere: cos(pi j (x - centre + half) / (2 half)) on a box that is wider than the data,
products of them for several columns, a set for each group; T holds the spectral density of the kernel at
their frequencies. Cosines and not sines: these vanish at the walls, and cannot follow a trend. Covariates of
the scores, and sums of all these, stand in `composite`.

Functions are centred, phi - mean phi: levels belong to the intercepts. T is scaled so that the average prior
variance of f over the samples is 1: a length scale without end then is a straight trend, not a constant.

References
----------
Solin and Sarkka (2020), Statistics and Computing 30, 419-446. Riutort-Mayol et al. (2023), Statistics and
Computing 33, 17 (width of the box, number of functions).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from factorflow.errors import InputError
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.smooth.processes import (
    LEVELS,
    correlation,
    group_correlation,
    log_spectral_density,
)
from factorflow.places import Places
from factorflow.trees import replace

__all__ = ["Basis", "Cosines", "PlacesBasis", "Points", "choose_basis"]

MOST_FUNCTIONS = 400
"""Cosines at most, of all columns and groups together."""
MOST_ASKED = 1600
"""Cosines at most that may be asked for, of all columns and groups: the root takes their number cubed."""
PER_COLUMN = 40
"""Cosines of a column at most: they resolve a twentieth of its range."""
JITTER = 1e-9
"""Added to the variances of coefficients of places, which may be nearly equal."""
LEAST_DENSITY = 1e-12
"""Least variance of the coefficient of a cosine."""
NEIGHBOURS = 1.01
"""Distances of neighbouring places up to which a length scale is at the shortest there may be."""
BOX = {1: 1.5}
"""Half the width of the box in half ranges, by number of columns; 1.3 for several."""
RESOLVED = {"matern32": 3.4}
"""Half the width of the box over m times this is the shortest length scale that m cosines resolve; 2.65 for
smoother kernels."""


Rows = Float64[Array, "B p"]
"""Numbers that functions are read from."""
Codes = Int64[Array, " B"]
"""Groups of the rows."""
Lengths = Float64[Array, " R"]
"""Length scales of a course."""
Sharing = Float64[Array, " G"]
"""a, how groups share it."""
Second = Float64[Array, "M M"]
"""S, the average product of the centred functions."""
At = tuple[Float64[Array, "B M"], Float64[Array, " B"], Float64[Array, " B"]]
Covariance = tuple[Float64[Array, "M ..."], list[Float64[Array, "M ..."]]]


class Basis:
    """The functions of a run."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that may have courses of their own; empty: all have one."""
        return ()

    @property
    def n_groups(self) -> int:
        """Number of groups that may have courses of their own (G), at least 1."""
        return max(1, len(self.groups))

    @property
    def labels(self) -> list[str]:
        """Names of the length scales."""
        raise NotImplementedError

    @property
    def part_names(self) -> list[str]:
        """Names of the parts that a course is a sum of."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Numbers that functions are read from, of each row (p)."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Number of functions (M)."""
        raise NotImplementedError

    @property
    def shortest(self) -> Float64[Array, " R"]:
        """Shortest length scale of each covariate: below it, noise does what the course would."""
        raise NotImplementedError

    @property
    def longest(self) -> Float64[Array, " R"]:
        """Longest length scale of each covariate."""
        return self.shortest

    @property
    def n_parameters(self) -> int:
        """Parameters of a course: its share, length scales, how groups share it."""
        lengths = int((self.longest > self.shortest).sum())
        return 1 + lengths + (self.n_groups if self.n_groups > 1 else 0)

    def covariance(self, lengths: Lengths, sharing: Sharing) -> Covariance:
        """Return T before it is scaled, and its slopes: by the logarithm of each length scale, by each a.

        Their diagonals alone, where T is diagonal.
        """
        raise NotImplementedError

    def functions(self, places: Rows, codes: Codes) -> Float64[Array, "B M"]:
        """Return functions of rows of the fit, not centred."""
        raise NotImplementedError

    def at(
        self, places: Rows, codes: Codes, lengths: Lengths, sharing: Sharing, centre: Float64[Array, " M"]
    ) -> At:
        """Return functions at any places, centred, and the variance of the course beside them, T not scaled.

        And, apart from these, the variance of parts of which a row does not tell.
        """
        raise NotImplementedError

    def inside(self, places: Rows) -> Any:
        """Return which places, (B,), the functions reach."""
        raise NotImplementedError

    def variance(self, lengths: Lengths) -> float:
        """Return the variance of a course at a row of which nothing is known, T not scaled."""
        return 1.0

    def is_noise(self, lengths: Float64[Array, "K R"]) -> Bool[Array, " K"]:
        """Return which courses differ between neighbours as between any rows."""
        return np.zeros(len(lengths), bool)

    def shares(self, lengths: Lengths, sharing: Sharing, second: Second) -> Float64[Array, " parts"]:
        """Return the share of each part in the variance of a course."""
        return np.ones(1)

    def scaled_covariance(self, lengths: Lengths, sharing: Sharing, second: Second) -> Covariance:
        """Return T such that tr(S T) = 1, S the average product of the centred functions; and its slopes."""
        covariance, slopes = self.covariance(lengths, sharing)
        second = second if covariance.ndim == 2 else np.diag(second)
        unit = float((second * covariance).sum())
        scaled = covariance / unit
        return scaled, [one / unit - scaled * (float((second * one).sum()) / unit) for one in slopes]

    def unit(self, lengths: Lengths, sharing: Sharing, second: Second) -> float:
        """Return tr(S T) before T is scaled."""
        covariance = self.covariance(lengths, sharing)[0]
        return float(((second if covariance.ndim == 2 else np.diag(second)) * covariance).sum())


@dataclass(frozen=True)
class PlacesBasis(Basis):
    """Functions of places.

    Parameters
    ----------
    places : Places
        Where the samples lie.
    kernel : str
        One of `processes.KERNELS`.
    """

    places: Places
    kernel: str

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that may have courses of their own; empty: all have one."""
        return self.places.groups

    @property
    def labels(self) -> list[str]:
        """Names of the length scales."""
        return self.places.labels

    @property
    def part_names(self) -> list[str]:
        """Names of the parts that a course is a sum of."""
        return list(self.places.columns) if self.places.levels else ["smooth"]

    @property
    def width(self) -> int:
        """Numbers that functions are read from, of each row (p)."""
        return len(self.places)

    @property
    def longest(self) -> Float64[Array, " R"]:
        """Longest length scale of each covariate."""
        return self.shortest if self.kernel == LEVELS else 2.0 * self.places.spans

    def is_noise(self, lengths: Float64[Array, "K R"]) -> Bool[Array, " K"]:
        """Return which courses differ between neighbours as between any rows."""
        near = lengths <= NEIGHBOURS * np.asarray(self.places.nearest)
        return np.asarray(near.all(axis=1) & (self.kernel != LEVELS))

    @cached_property
    def owner(self) -> Int64[Array, " p"]:
        """The covariate that each column belongs to."""
        return np.asarray(self.places.covariate, np.int64)

    def _squares(self, differences: Float64[Array, "... p"]) -> Float64[Array, "R ..."]:
        """Return squared lengths in each covariate."""
        return np.stack(
            [(differences[..., self.owner == r] ** 2).sum(axis=-1) for r in range(self.places.n_covariates)]
        )


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


@dataclass(frozen=True)
class Cosines(PlacesBasis):
    """Products of cosines on a box about the data, a set for each group.

    Parameters
    ----------
    per_column : tuple of int
        Cosines of each column, the constant one among them (m).
    box : float
        Half the width of the box in half ranges.
    """

    per_column: tuple[int, ...] = ()
    box: float = 1.5

    @cached_property
    def _centre(self) -> Float64[Array, " p"]:
        return 0.5 * np.add(self.places.low, self.places.high)

    @cached_property
    def _half(self) -> Float64[Array, " p"]:
        return 0.5 * self.box * np.subtract(self.places.high, self.places.low)

    @cached_property
    def _orders(self) -> Int64[Array, "m p"]:
        each = [np.arange(m) for m in self.per_column]
        return np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, len(self.places))

    @property
    def size(self) -> int:
        """Number of functions (M)."""
        return self.n_groups * len(self._orders)

    @property
    def shortest(self) -> Float64[Array, " R"]:
        """Shortest length scale of each covariate."""
        resolved = RESOLVED.get(self.kernel, 2.65) * self._half / np.array(self.per_column)
        of_covariate = [resolved[self.owner == r].max() for r in range(self.places.n_covariates)]
        return np.maximum(of_covariate, self.places.nearest)

    def covariance(self, lengths: Lengths, sharing: Sharing) -> Covariance:
        """Return T before it is scaled, and its slopes; of one group diagonals."""
        frequencies = np.pi * self._orders / (2.0 * self._half)
        dimensions = np.bincount(self.owner).astype(np.float64)
        logs, slopes = log_spectral_density(self.kernel, self._squares(frequencies), lengths, dimensions)
        density = np.maximum(np.exp(logs), LEAST_DENSITY)
        if self.n_groups == 1:
            return density, [density * slope for slope in slopes] + [0.0 * density]
        shared, by_sharing = group_correlation(sharing)
        blocks = [np.kron(shared, np.diag(density * slope)) for slope in slopes]
        blocks += [np.kron(one, np.diag(density)) for one in by_sharing]
        return np.kron(shared, np.diag(density)), blocks

    def at(
        self, places: Rows, codes: Codes, lengths: Lengths, sharing: Sharing, centre: Float64[Array, " M"]
    ) -> At:
        """Return functions at any places; they are the whole course."""
        return self.functions(places, codes) - centre, np.zeros(len(places)), np.zeros(len(places))

    def inside(self, places: Rows) -> Any:
        """Return which places the functions reach: those in the box."""
        return (np.abs(places - self._centre) <= self._half).all(axis=1)

    def functions(self, places: Rows, codes: Codes) -> Float64[Array, "B M"]:
        """Return functions of rows, not centred."""
        scaled = np.pi * (places - self._centre + self._half) / (2.0 * self._half)
        products = np.ones((len(places), 1))
        for column in range(scaled.shape[1]):
            orders = np.arange(self.per_column[column])
            values = np.cos(scaled[:, column, None] * orders) / np.sqrt(self._half[column])
            values[:, 0] /= np.sqrt(2.0)
            products = (products[:, :, None] * values[:, None, :]).reshape(len(places), -1)
        if self.n_groups == 1:
            return products
        member = codes[:, None] == np.arange(self.n_groups)
        return np.asarray((member[:, :, None] * products[:, None, :]).reshape(len(places), -1))


def choose_basis(places: Places, kernel: str, n_functions: int | None) -> PlacesBasis:
    """Return the functions for places: of each one where they are few, else cosines.

    Parameters
    ----------
    places : Places
        Where the samples lie.
    kernel : str
        One of `processes.KERNELS`.
    n_functions : int or None
        Cosines of a column; None: as many as are not too many in all.

    Raises
    ------
    InputError
        For more than the root can take.
    """
    if places.cells and n_functions is None:
        return Points(places, kernel)
    n_groups, columns = max(1, len(places.groups)), len(places)
    most = int((MOST_FUNCTIONS / n_groups) ** (1.0 / columns) + 1e-9)
    if n_functions is not None and n_groups * n_functions**columns > MOST_ASKED:
        possible = int((MOST_ASKED / n_groups) ** (1.0 / columns) + 1e-9)
        expected = (
            f"at most {possible} for {columns} columns and {n_groups} groups: {MOST_ASKED} functions in all"
        )
        raise InputError("n_functions", n_functions, expected, "Use fewer, or {smooth_groups}.",
                         smooth_groups=False)  # fmt: skip
    chosen = n_functions or max(4, min(PER_COLUMN, most))
    return Cosines(places, kernel, (chosen,) * columns, BOX.get(columns, 1.3))
