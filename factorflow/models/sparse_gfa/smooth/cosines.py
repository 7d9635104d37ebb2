"""Cosines on a box that is wider than the data: cos(pi j (x - centre + half) / (2 half)).

A set for each group, products of them for several columns; T holds the spectral density of the kernel at
their frequencies. Cosines and not sines: these vanish at the walls, and cannot follow a trend.

References
----------
Solin and Sarkka (2020), Statistics and Computing 30, 419-446. Riutort-Mayol et al. (2023), Statistics and
Computing 33, 17 (width of the box, number of functions).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64, Int64

from factorflow.core.places import Places
from factorflow.core.trees import replace
from factorflow.errors import InputError
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
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.processes import group_correlation, log_spectral_density

MOST_FUNCTIONS = 400
"""Cosines at most, of all columns and groups together."""
MOST_ASKED = 1600
"""Cosines at most that may be asked for, of all columns and groups: the root takes their number cubed."""
PER_COLUMN = 40
"""Cosines of a column at most: they resolve a twentieth of its range."""
LEAST_DENSITY = 1e-12
"""Least variance of the coefficient of a cosine."""
BOX = {1: 1.5}
"""Half the width of the box in half ranges, by number of columns; 1.3 for several."""
RESOLVED = {"matern32": 3.4}
"""Half the width of the box over m times this is the shortest length scale that m cosines resolve; 2.65 for
smoother kernels."""


RUN = 256
"""Rows whose products of functions are made at a time: they stay in the processor's cache."""


@dataclass(frozen=True)
class ProductRows:
    """Centred products of cosines of some rows, which are never all in memory.

    Parameters
    ----------
    first, others : array
        Cosines of the first column; products of those of the others.
    centre : array
        Subtracted from the products.
    known : array
        1 for rows whose place is known, else 0, and so are the products then.
    """

    first: Float64[np.ndarray, "B m"]
    others: Float64[np.ndarray, "B o"]
    centre: Float64[np.ndarray, " M"]
    known: Float64[np.ndarray, " B"]
    ndim: ClassVar[int] = 2

    def times(self, values: Float64[Array, "M K"]) -> Float64[Array, "B K"]:
        """Return the products times a matrix, whose columns may be 0: of factors without a course."""
        used = np.flatnonzero(values.any(axis=0))
        m, o, k = self.first.shape[1], self.others.shape[1], len(used)
        table = values[:, used].reshape(m, o, k).swapaxes(0, 1).reshape(o, m * k)
        out = np.zeros((len(self.first), values.shape[1]))
        for rows in _runs(len(out)):
            part = self.others[rows]
            by_first = (part @ table).reshape(len(part), m, k)
            out[rows, used] = np.matmul(self.first[rows, None, :], by_first)[:, 0]
        out -= self.centre @ values
        out *= self.known[:, None]
        return out

    def whole(self) -> Float64[Array, "B M"]:
        """Return the products."""
        products = self.first[:, :, None] * self.others[:, None, :]
        return (products.reshape(len(self.first), -1) - self.centre) * self.known[:, None]

    def sums(self, values: Float64[Array, "B K"]) -> Float64[Array, "M K"]:
        """Return the transposed products times a matrix."""
        m, o, k = self.first.shape[1], self.others.shape[1], values.shape[1]
        values, total = values * self.known[:, None], np.zeros((o, m * k))
        for rows in _runs(len(values)):
            by_first = self.first[rows, :, None] * values[rows, None, :]
            total += self.others[rows].T @ by_first.reshape(-1, m * k)
        by_function = total.reshape(o, m, k).swapaxes(0, 1).reshape(m * o, k)
        return np.asarray(by_function - np.outer(self.centre, values.sum(axis=0)))


def _runs(n_rows: int) -> list[slice]:
    return [slice(start, start + RUN) for start in range(0, n_rows, RUN)]


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
        products = self._products(places, range(len(self.per_column)))
        if self.n_groups == 1:
            return products
        member = codes[:, None] == np.arange(self.n_groups)
        return np.asarray((member[:, :, None] * products[:, None, :]).reshape(len(places), -1))

    def by_column(self, places: Rows) -> tuple[Float64[Array, "B m"], Float64[Array, "B o"]]:
        """Return the functions of rows in the first column, and products of those in the others."""
        return self._products(places, range(1)), self._products(places, range(1, len(self.per_column)))

    def _products(self, places: Rows, columns: range) -> Float64[Array, "B m"]:
        """Return products of the functions of some columns."""
        products = np.ones((len(places), 1))
        for column in columns:
            half, centre = self._half[column], self._centre[column]
            scaled = np.pi * (places[:, column] - centre + half) / (2.0 * half)
            values = np.cos(scaled[:, None] * np.arange(self.per_column[column])) / np.sqrt(half)
            values[:, 0] /= np.sqrt(2.0)
            products = (products[:, :, None] * values[:, None, :]).reshape(len(places), -1)
        return products

    @cached_property
    def products(self) -> Cosines:
        """The functions that products of two of these are sums of: cosines of up to twice the frequencies."""
        return replace(self, per_column=tuple(2 * m - 1 for m in self.per_column))

    def product_sums(self, places: Rows, codes: Codes) -> Float64[Array, " P"]:
        """Return sums over rows of the functions of `products`, by group: some 4 M of them, not M^2 / 2."""
        first, others = self.products.by_column(places)
        if self.n_groups == 1:
            return (first.T @ others).ravel()
        members = [codes == g for g in range(self.n_groups)]
        return np.concatenate([(first[rows].T @ others[rows]).ravel() for rows in members])

    def products_from(self, sums: Float64[Array, " P"]) -> Float64[Array, "M M"]:
        """Return sum_n phi_n phi_n' from the sums of the rows (`product_sums`)."""
        own, columns = len(self._orders), len(self.per_column)
        out = np.zeros((self.n_groups, own, self.n_groups, own))
        for g, values in enumerate(sums.reshape(self.n_groups, *self.products.per_column)):
            for table in self._addition:  # the first axis becomes two, the last ones
                values = np.tensordot(values, table, ([0], [0]))
            values = values.transpose(*range(0, 2 * columns, 2), *range(1, 2 * columns, 2))
            out[g, :, g] = values.reshape(own, own)
        return out.reshape(self.size, self.size)

    def quadratic(self, matrix: Float64[Array, "M M"], centre: Float64[Array, " M"]) -> Float64[Array, " P"]:
        """Return (phi - centre)' C (phi - centre), C symmetric, as a sum over the functions of `products`.

        They are some 4 M, products of functions M^2: 2 cos a cos b = cos(a - b) + cos(a + b).
        """
        n_groups, m, wide = self.n_groups, self.per_column, self.products.per_column
        linear = matrix @ centre
        total = np.zeros((n_groups, *wide))
        for g, whole in enumerate(total):
            own = slice(g * len(self._orders), (g + 1) * len(self._orders))
            values = matrix[own, own].reshape(*m, *m)
            for column, table in enumerate(self._addition):  # the column's two axes become one, the last
                values = np.tensordot(values, table, ([0, len(m) - column], [1, 2]))
            whole += values
            whole[tuple(slice(each) for each in m)] -= 2.0 * linear[own].reshape(m)
            whole[(0,) * len(m)] += centre @ linear * np.sqrt(np.prod(2.0 * self._half))  # of a constant
        return total.ravel()

    @property
    def _addition(self) -> list[Float64[Array, "m2 m m"]]:
        """Products of two cosines of each column as sums of cosines."""
        tables = []
        for m, half in zip(self.per_column, self._half, strict=True):
            i, j = np.indices((m, m))
            scale = np.sqrt(half * np.where(np.arange(2 * m - 1) == 0, 2.0, 1.0))
            table = np.zeros((2 * m - 1, m, m))
            for order in abs(i - j), i + j:
                table[order, i, j] += 0.5 * scale[order] / scale[i] / scale[j]
            tables.append(table)
        return tables


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
