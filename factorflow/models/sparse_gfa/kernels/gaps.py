"""Which entries of a block are missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, Integer, Shaped

from factorflow.core.block import Array
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.sparse_gfa.kernels.arrays import runs


@dataclass(frozen=True)
class Masks:
    """Observed entries as a sum of products: rows that the same features are observed in, and these.

    Parameters
    ----------
    rows : array
        Of which mask (M) a row is: 1 in one column, or 0 in all of a row of which nothing is observed.
    columns : array
        1 where a mask has a feature, else 0.
    """

    rows: Float64[np.ndarray, "B M"]
    columns: Float64[np.ndarray, "D M"]

    @classmethod
    def of(cls, values: SparseRows) -> Masks:
        """Return the masks of rows without entries that are missing one by one."""
        lacking = values.lacking()
        rows, columns = (
            np.zeros((len(values), 1 + len(lacking))),
            np.ones((values.n_features, 1 + len(lacking))),
        )
        rows[~values.absent, 0] = 1.0
        for mask, (some, features) in enumerate(lacking, 1):
            rows[some, 0], rows[some, mask], columns[features, mask] = 0.0, 1.0, 0.0
        return cls(rows, columns)

    @property
    def missing(self) -> Int64[np.ndarray, " B"]:
        """Missing entries of each row."""
        return np.asarray(len(self.columns) - self.rows @ self.columns.sum(axis=0), np.int64)

    def both(
        self, left: Float64[np.ndarray, "B R"], right: Float64[np.ndarray, "D R"]
    ) -> tuple[Float64[np.ndarray, "B MR"], Float64[np.ndarray, "D MR"]]:
        """Return L and R such that L R' is ``left right'`` where entries are observed, else 0."""
        masks = range(self.rows.shape[1])
        return (
            np.concatenate([left * self.rows[:, m, None] for m in masks], axis=1),
            np.concatenate([right * self.columns[:, m, None] for m in masks], axis=1),
        )


@dataclass(frozen=True)
class Gaps:
    """Which entries of a block are missing: of each row the missing ones or, if fewer, the observed ones.

    Parameters
    ----------
    complement : array
        Whether it is the missing entries (else the observed ones).
    missing : array
        Missing entries of each row.
    n_features : int
        Features (D).
    masks : Masks or None
        Of rows by their entries: what is observed.
    """

    complement: Bool[Array, " B"]
    missing: Integer[Array, " B"]
    n_features: int
    masks: Masks | None = field(default=None, kw_only=True)

    @cached_property
    def complete(self) -> bool:
        """Whether no entry is missing."""
        return not self.missing.any()

    @property
    def present(self) -> Bool[Array, " B"]:
        """Rows with any observed entry."""
        return self.missing < self.n_features


@dataclass(frozen=True)
class ListedGaps(Gaps):
    """The gaps of a block as lists.

    Parameters
    ----------
    start, column : array
        Listed features of each row.
    start_by_column, row : array or None
        The same lists by feature, where they are needed.
    """

    start: Int64[np.ndarray, " B+1"]
    column: Int32[np.ndarray, " J"]
    start_by_column: Int64[np.ndarray, " D1"] | None
    row: Int32[np.ndarray, " J"] | None


def lowest(values: Shaped[Array, "B D"]) -> Any:
    """Return the value at and above which an entry is observed: missing is NaN, or -1 in integers."""
    return values.dtype.type(0 if values.dtype.kind == "i" else -np.inf)


def list_gaps(values: Shaped[np.ndarray, "B D"], by_column: bool) -> ListedGaps:
    """Return the gaps of a block; with ``by_column`` also as lists by feature."""
    n_rows, n_features = values.shape
    missing = np.empty(n_rows, np.int64)
    columns = [np.empty(0, np.int32)]
    for run in runs(values):
        absent = ~(values[run] >= lowest(values))
        count = np.count_nonzero(absent, axis=1)
        missing[run] = count
        if count.any():
            absent ^= (2 * count > n_features)[:, None]
            columns.append((np.flatnonzero(absent) % n_features).astype(np.int32))
    column = np.concatenate(columns)
    complement = 2 * missing <= n_features
    start = np.concatenate([[0], np.cumsum(np.minimum(missing, n_features - missing))])
    starts = row = None
    if by_column:
        from scipy import sparse

        marks = np.ones(len(column), np.int8)
        columnwise = sparse.csr_array((marks, column, start), (n_rows, n_features)).tocsc()
        starts, row = columnwise.indptr.astype(np.int64), columnwise.indices.astype(np.int32, copy=False)
    return ListedGaps(complement, missing, n_features, start, column, starts, row)
