"""Which entries of a block are missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer, Shaped

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
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    n_rows, n_features = values.shape
    missing = np.empty(n_rows, np.int64)
    gfa_loops.count_missing(values, lowest(values), missing)
    complement = 2 * missing <= n_features
    start = np.zeros(n_rows + 1, np.int64)
    listed = int(np.minimum(missing, n_features - missing).sum())
    column = np.empty(listed + 1, np.int32)
    if listed:
        gfa_loops.list_minority(values, lowest(values), missing, start, column)
    column = column[:listed]
    starts = row = None
    if by_column:
        starts, row = np.empty(n_features + 1, np.int64), np.empty(listed, np.int32)
        gfa_loops.transpose_lists(start, column, starts, row)
    return ListedGaps(complement, missing, n_features, start, column, starts, row)
