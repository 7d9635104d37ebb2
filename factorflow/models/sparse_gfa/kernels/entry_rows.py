"""Rows of a Gaussian view by their entries: products at the cost of those that are not zero.

Centring makes an entry of 0 one of -mean / scale, and all of these together are a matrix of rank one. So a
centred view is a sparse matrix less a product of thin ones, and the updates only multiply it with loadings
and, transposed, with scores.

References
----------
Implicit centring: Halko, Martinsson, Shkolnisky and Tygert (2011), SIAM J. Scientific Computing 33, 2580.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float64, Int64, Integer, UInt
from numpy.typing import DTypeLike

from factorflow.kernels.device import HostRows
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.sparse_gfa.kernels.gaps import Gaps, Masks

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class EntryRows(HostRows):
    """S diag(s) - L R': S of the entries that are not zero, row by row.

    Units of the features go into what the rows are multiplied with, not into the entries.

    Parameters
    ----------
    start, column, entries : array
        S as compressed sparse rows.
    scale : array
        s.
    left, right : array
        L and R.
    masks : Masks
        Which entries are observed.
    """

    start: Int64[np.ndarray, " B1"]
    column: UInt[np.ndarray, " M"]
    entries: Float[np.ndarray, " M"]
    scale: Float64[np.ndarray, " D"]
    left: Float64[np.ndarray, "B R"]
    right: Float64[np.ndarray, "D R"]
    masks: Masks

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return len(self.left), len(self.right)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""
        return self.entries.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = self.start, self.column, self.entries, self.scale, self.left, self.right
        return sum(array.nbytes for array in (*arrays, self.masks.rows, self.masks.columns))

    @property
    def T(self) -> TransposedRows:  # noqa: N802 (as of an array)
        """The transpose, to be multiplied with a matrix."""
        return TransposedRows(self)

    @property
    def sparse(self) -> csr_array:
        """S diag(s)."""
        from scipy.sparse import csr_array

        return csr_array((self.scaled, self.column.astype(np.int32), self.start), self.shape)

    @property
    def scaled(self) -> Float[np.ndarray, " M"]:
        """The entries of S diag(s)."""
        return np.asarray(self.entries * self.scale.astype(self.dtype)[self.column])

    def __len__(self) -> int:
        return len(self.left)

    def __matmul__(self, matrix: Float[np.ndarray, "D C"]) -> Float64[np.ndarray, "B C"]:
        """Return the product with a matrix; sums over entries are of its precision."""
        from factorflow.kernels.entry_products import multiply

        own = matrix * self.scale.astype(matrix.dtype)[:, None]
        product = multiply(self.start, self.column, self.entries, own).astype(np.float64)
        return np.asarray(product - self.left @ (self.right.T @ matrix.astype(np.float64)))

    def subtract(self, left: Float[np.ndarray, "B C"], right: Float[np.ndarray, "D C"]) -> EntryRows:
        """Return the rows less another product of thin matrices."""
        beside = np.concatenate([self.left, left], axis=1), np.concatenate([self.right, right], axis=1)
        return replace(self, left=beside[0], right=beside[1])

    def subtract_observed(self, left: Float[np.ndarray, "B C"], right: Float[np.ndarray, "D C"]) -> EntryRows:
        """Return the rows less another product of thin matrices where entries are observed."""
        return self.subtract(*self.masks.both(left, right))

    def squares(self) -> float:
        """Return the sum of squares of all entries, in double precision."""
        entries, turn = self.scaled.astype(np.float64), self.left.T @ self.left
        cross = np.vdot(self.right, self.sparse.T @ self.left)
        return float(entries @ entries - 2.0 * cross + np.vdot(turn, self.right.T @ self.right))

    def with_some_zeros(
        self, rows: Int64[np.ndarray, " B"], words: tuple[int, int, int, int], group: int
    ) -> EntryRows:
        """Return the entries that are listed and some others, larger: see `sign_flips`."""
        from factorflow.models.sparse_gfa.kernels.sign_flips import list_some_zeros

        sparse = self.start, self.column, self.scaled
        listed = list_some_zeros(sparse, self.left, self.right, rows, words, group)
        none = self.left[:, :0], self.right[:, :0]
        return EntryRows(*listed, np.ones(len(self.right)), *none, self.masks)

    def with_signs(self, rows: Int64[np.ndarray, " B"], words: tuple[int, int, int, int]) -> EntryRows:
        """Return S with its signs drawn at random."""
        from factorflow.models.sparse_gfa.kernels.sign_flips import draw_signs

        return replace(self, entries=draw_signs(self.start, self.entries, rows, words))

    def columns(self, features: Integer[np.ndarray, " J"]) -> Float64[np.ndarray, "B J"]:
        """Return some columns, dense."""
        of_entries = self.sparse.tocsc()[:, features].toarray().astype(np.float64)
        return np.asarray(of_entries - self.left @ self.right[features].T)

    def dense(self) -> Float[np.ndarray, "B D"]:
        """Return the rows as an array."""
        own = self.sparse.toarray()
        own -= self.left.astype(own.dtype) @ self.right.T.astype(own.dtype)
        return np.asarray(own)


@dataclass(frozen=True)
class TransposedRows(HostRows):
    """The transpose of `EntryRows`."""

    rows: EntryRows

    @property
    def shape(self) -> tuple[int, int]:
        """Features and rows."""
        return self.rows.shape[::-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""
        return self.rows.dtype

    def __matmul__(self, matrix: Float[np.ndarray, "B C"]) -> Float64[np.ndarray, "D C"]:
        """Return the product with a matrix; sums over entries are of its precision."""
        from factorflow.kernels.entry_products import multiply_transposed

        rows = self.rows
        product = multiply_transposed(rows.start, rows.column, rows.entries, matrix, len(rows.right))
        out = product.astype(np.float64)
        out *= rows.scale[:, None]
        out -= rows.right @ (rows.left.T @ matrix.astype(np.float64))
        return out


def centred(
    values: SparseRows,
    reference: Float64[np.ndarray, " D"],
    inverse_scale: Float64[np.ndarray, " D"],
    dtype: DTypeLike,
) -> EntryRows:
    """Return (values - reference) * inverse_scale, 0 where entries are missing."""
    entries, start = values.entries.astype(dtype, copy=False), np.concatenate([[0], np.cumsum(values.counts)])
    masks = Masks.of(values)
    level = masks.columns * (reference * inverse_scale)[:, None]
    return EntryRows(start, values.columns, entries, inverse_scale, masks.rows, level, masks)


def observed(values: SparseRows) -> EntryRows:
    """Return 1 where entries are observed, 0 where they are missing."""
    start, masks = np.zeros(len(values) + 1, np.int64), Masks.of(values)
    none, ones = np.zeros(0), np.ones(values.n_features)
    return EntryRows(start, values.columns[:0], none, ones, masks.rows, -masks.columns, masks)


def column_moments(
    values: SparseRows,
) -> tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, " D"], Float64[np.ndarray, " D"]]:
    """Return number, sum and sum of squares of the observed entries of each feature."""
    entries, size = values.entries.astype(np.float64), values.n_features
    total, squares = (
        np.bincount(values.columns, part, minlength=size).astype(np.float64) for part in (entries, entries**2)
    )
    return values.n_observed(), total, squares


def gaps(values: SparseRows, by_column: bool = False) -> Gaps:
    """Return which entries are missing, by masks."""
    masks = Masks.of(values)
    missing = masks.missing
    return Gaps(2 * missing <= values.n_features, missing, values.n_features, masks=masks)
