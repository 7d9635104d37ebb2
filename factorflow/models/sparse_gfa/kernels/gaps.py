"""Which entries of a block are missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer, Shaped

from factorflow.models.sparse_gfa.kernels.arrays import runs
from factorflow.shape import Array

__all__ = ["Gaps", "ListedGaps", "list_gaps", "lowest"]


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
    """

    complement: Bool[Array, " B"]
    missing: Integer[Array, " B"]
    n_features: int

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
        turned = sparse.csr_array((marks, column, start), (n_rows, n_features)).tocsc()
        starts, row = turned.indptr.astype(np.int64), turned.indices.astype(np.int32, copy=False)
    return ListedGaps(complement, missing, n_features, start, column, starts, row)
