"""A view on its way into a store: `ViewSource`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS, Kind

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.kernels.sparse_rows import SparseRows

StrArray = NDArray[np.str_]
ReadBlock = Callable[[int, int], NDArray[Any]]


@dataclass(frozen=True)
class EntryReader:
    """Reads rows of a view, also by their entries that are not zero.

    Parameters
    ----------
    entries : callable
        (start, stop) -> rows by their entries; None where they cannot be had so.
    """

    dense: ReadBlock
    entries: Callable[[int, int], SparseRows | None]

    def __call__(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows ``start`` to ``stop``, (stop - start, D)."""
        return self.dense(start, stop)


@dataclass(frozen=True)
class ViewSource:
    """A view on its way into the store.

    Parameters
    ----------
    features : (D,) str array
        RowNames of its features, or of the levels of a categorical variable.
    read : callable
        (start, stop) -> rows (stop - start, D), or codes (stop - start,), raw: see `Kind.raw`.
    kind : Kind or None
        None: to be guessed from the values.
    likelihood_from : str
        "given", "file" or "guessed".
    read_as : str
        What was decided of the file it comes from, in words.
    default_likelihood : str
        As in `ViewMeta`.
    split : Limits, Trials or Events, optional
        Makes rows as they are stored, and what lies beside them, of raw rows.
    layout : {"auto", "dense", "sparse"}
        Whether all entries are stored, or those that are not zero.
    about : DataFrame, optional
        Metadata of the features, a row for each in order.
    """

    name: str
    features: StrArray
    read: ReadBlock
    kind: Kind | None = None
    likelihood_from: str = "given"
    read_as: str = ""
    default_likelihood: str = ""
    split: Any = None
    layout: str = "auto"
    about: pd.DataFrame | None = None

    def read_valid_entries(self, start: int, stop: int) -> SparseRows | None:
        """Return rows by their entries; None where they cannot be had so, or do not fit the kind."""
        rows = self.read.entries(start, stop) if isinstance(self.read, EntryReader) else None
        kind = self.kind or KINDS["gaussian"]
        return None if rows is None or kind.invalid(rows.entries) is not None else rows

    @property
    def work_bytes(self) -> int:
        """Bytes per row that determine the size of blocks; the same for all kinds of values."""
        return (self.kind or KINDS["gaussian"]).work_bytes(self.features.size)


def is_long_table(views: Sequence[ViewSource]) -> bool:
    """Whether views are those of a long table: one response a row, beside categorical variables."""
    values = [view.features.size for view in views if view.kind is None or view.kind.is_values]
    return sum(values) == 1 and any(view.kind is not None and view.kind.coded for view in views)
