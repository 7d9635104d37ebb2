"""Which entries of a block are missing."""

from __future__ import annotations

import weakref
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
    """

    start: Array
    column: Array

    @cached_property
    def by_column(self) -> tuple[Array, Array]:
        """The same lists by feature: (D + 1,) starts, (J,) rows."""
        from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

        start = np.empty(self.n_features + 1, np.int64)
        row = np.empty(self.column.size, np.int32)
        gfa_loops.transpose_lists(self.start, self.column, start, row)
        return start, row


def lowest(values: Array) -> Any:
    """Return the value at and above which an entry is observed: missing is NaN, or -1 in integers."""
    return values.dtype.type(0 if values.dtype.kind == "i" else -np.inf)


_known: dict[int, tuple[weakref.ref[Any], ListedGaps]] = {}


def list_gaps(values: Array) -> ListedGaps:
    """Return the gaps of a block.

    They are remembered as long as the array lives and is read-only, as blocks that the engine keeps in
    memory are: listing them is a tenth of the work of a pass.
    """
    key = id(values)
    known = _known.get(key)
    if known is not None and known[0]() is values:
        return known[1]
    found = _list(values)
    if not values.flags.writeable:
        _known[key] = (weakref.ref(values, lambda _: _known.pop(key, None)), found)
    return found


def _list(values: Array) -> ListedGaps:
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
    return ListedGaps(complement, missing, n_features, start, column[:listed])
