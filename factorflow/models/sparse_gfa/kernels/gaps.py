"""Which entries of a block are missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["Gaps", "ListedGaps", "list_gaps", "lowest"]

Array = Any


@dataclass(frozen=True)
class Gaps:
    """Which entries of a block are missing: of each row the missing ones or, if fewer, the observed ones.

    Parameters
    ----------
    complement : (B,) bool array
        Whether it is the missing entries (else the observed ones).
    missing : (B,) int array
        Missing entries of each row.
    n_features : int
        Features (D).
    """

    complement: Array
    missing: Array
    n_features: int

    @cached_property
    def complete(self) -> bool:
        """Whether no entry is missing."""
        return not self.missing.any()

    @property
    def present(self) -> Array:
        """Rows with any observed entry, (B,) bool."""
        return self.missing < self.n_features


@dataclass(frozen=True)
class ListedGaps(Gaps):
    """The gaps of a block as lists.

    Parameters
    ----------
    start, column : (B + 1,), (J,) int array
        Listed features of each row.
    start_by_column, row : (D + 1,), (J,) int array, or None
        The same lists by feature, where they are needed.
    """

    start: Array
    column: Array
    start_by_column: Array | None
    row: Array | None


def lowest(values: Array) -> Any:
    """Return the value at and above which an entry is observed: missing is NaN, or -1 in integers."""
    return values.dtype.type(0 if values.dtype.kind == "i" else -np.inf)


def list_gaps(values: Array, by_column: bool) -> ListedGaps:
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
