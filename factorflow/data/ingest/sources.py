"""Sources of views: anything with rows and columns, read as blocks of numbers or labels.

A source hands out rows by their position; a row of a dataset that the source lacks is a row of NaN. Values
come as float32 or, where that cannot hold their type, as float64, covariates as float64, and categorical
variables as the labels they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import Kind
from factorflow.data.ingest.checks import DAMAGED
from factorflow.data.ingest.levels import text_of
from factorflow.errors import InputError
from factorflow.kernels.sparse_rows import SparseRows, column_type, join_rows

COMPLEX = "Give the real and the imaginary part, or modulus and phase, as features or views of their own."

if TYPE_CHECKING:
    import pandas as pd

KindOf = Callable[[str], Kind | None]
"""What a view of some name is said to be."""

StrArray = NDArray[np.str_]
AnyBlock = NDArray[Any]


@dataclass
class Source:
    """One view, wherever it lies.

    Parameters
    ----------
    array : object
        With ``shape`` (N, D) or (N,) and rows by slicing: NumPy, memory maps, HDF5, Zarr, SciPy CSR.
    samples, features : str array or None
        Names; None: it has none.
    dtype : str
        What its rows are read as: "float64" ("float32" where that holds them), or "object" for labels.
    levels : array or None
        The labels of a categorical variable in an order of its own.
    marked : (D,) bool array or None
        The features that are to be taken; None: all.
    read_as : str
        What was decided when its file was read, in words.
    barcodes : bool
        Whether the names of its samples tell apart those of its file alone.
    about : DataFrame or None
        Metadata of the features, a row for each in order; None: there are none.
    """

    array: Any
    samples: StrArray | None = None
    features: StrArray | None = None
    likelihood: str | None = None
    dtype: str = "float64"
    levels: NDArray[Any] | None = None
    marked: NDArray[np.bool_] | None = None
    read_as: str = ""
    barcodes: bool = False
    about: pd.DataFrame | None = None
    remedy: ClassVar[str] = DAMAGED
    """What to do where its values cannot be read."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        shape = self.array.shape
        return int(shape[0]), int(shape[1]) if len(shape) > 1 else 1

    def read(self, start: int, stop: int) -> AnyBlock:
        """Return rows ``start`` to ``stop``, (stop - start, D)."""
        return as_block(self.array[start:stop], self.dtype)

    def read_entries(self, start: int, stop: int) -> SparseRows | None:
        """Return rows by their entries that are not zero; None: they are not kept so, or some are NaN."""
        if not getattr(self.array, "by_entries", False) or self.dtype == "object":
            return None
        if hasattr(self.array, "read_entries"):
            joined: SparseRows | None = self.array.read_entries(start, stop)
            return joined
        block = self.array[start:stop]
        if block.dtype.kind == "c":
            return None
        entries = block.data.astype(np.float32 if np.can_cast(block.dtype, np.float32) else np.float64)
        rows = SparseRows(
            np.diff(block.indptr).astype(np.uint32),
            block.indices.astype(column_type(block.shape[1])),
            entries,
            block.shape[1],
        )
        return None if np.isnan(entries).any() else rows.without_zeros()

    def select(self) -> Source:
        """Return the source of the marked features alone."""
        if self.marked is None:
            return self
        columns = np.flatnonzero(self.marked)
        lazy = isinstance(self, DaskSource)
        array = self.array[:, columns] if lazy else Columns(self.array, columns)
        features = None if self.features is None else self.features[columns]
        about = None if self.about is None else self.about.iloc[columns]
        return replace(self, array=array, features=features, about=about, marked=None)

    def transposed(self) -> Source:
        """Return the source with rows and columns exchanged."""
        if self.marked is not None:
            expected = "views of which all features are taken"
            raise InputError("transpose", True, expected, "Leave highly_variable out, or transpose the data.")
        description = f"{self.read_as}; features in rows" if self.read_as else "features in rows"
        array = self.array
        turned = None if isinstance(array, np.memmap) else getattr(array, "T", None)
        if turned is None:
            array = _TransposedRows(array)
        else:
            array = turned.tocsr() if hasattr(turned, "tocsr") else turned
        return replace(self, array=array, samples=self.features, features=self.samples, read_as=description)

    def take(self, rows: NDArray[np.int64]) -> AnyBlock:
        """Return rows by position, (len(rows), D); those at -1 are NaN (labels: None)."""
        out = np.full((rows.size, self.shape[1]), None if self.dtype == "object" else np.nan, self.dtype)
        here = np.flatnonzero(rows >= 0)
        sources = rows[here]
        if not here.size:
            return out
        if sources[-1] - sources[0] == here.size - 1 and np.all(np.diff(sources) == 1):
            values = self.read(int(sources[0]), int(sources[-1]) + 1)
            if here.size == rows.size:
                return values
            out[here] = values
            return out
        for run in _runs(sources):
            out[here[run]] = self.read(int(sources[run[0]]), int(sources[run[-1]]) + 1)
        return out

    def take_entries(self, rows: NDArray[np.int64]) -> SparseRows | None:
        """Return rows by position and by their entries, absent at -1; None: see `read_entries`."""
        here, absent = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
        places, parts = [absent], [SparseRows.blank(absent.size, self.shape[1])]
        for run in _runs(rows[here]):
            place = here[run]
            part = self.read_entries(int(rows[place[0]]), int(rows[place[-1]]) + 1)
            if part is None:
                return None
            places.append(place)
            parts.append(part)
        return join_rows(parts)[np.argsort(np.concatenate(places))] if here.size else None


@dataclass(frozen=True)
class Columns:
    """Some columns of a matrix whose rows are read by slicing."""

    matrix: Any
    kept: NDArray[np.intp]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return int(self.matrix.shape[0]), self.kept.size

    @property
    def by_entries(self) -> bool:
        """Whether rows are sparse matrices."""
        return getattr(self.matrix, "by_entries", False)

    def __getitem__(self, rows: slice) -> Any:
        return self.matrix[rows][:, self.kept]


@dataclass(frozen=True)
class _TransposedRows:
    """Columns of an array on disk as rows."""

    array: Any

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.array.shape[1]), int(self.array.shape[0])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.ascontiguousarray(np.asarray(self.array[:, rows]).T)


@dataclass
class DaskSource(Source):
    """A Dask array: whole chunks of rows are computed, and the last one is kept."""

    remedy: ClassVar[str] = (
        "It is an error of a task of the Dask array: compute that by itself, and correct what it does."
    )

    _bounds: NDArray[np.int64] = field(init=False, repr=False)
    _kept: tuple[int, AnyBlock] | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        chunks = self.array.chunks[0]
        if any(np.isnan(size) for size in chunks):
            raise InputError(
                "view",
                "a Dask array of unknown length",
                "known chunk sizes",
                "Call compute_chunk_sizes() on it first.",
            )
        self._bounds = np.concatenate([[0], np.cumsum(chunks)])

    def read(self, start: int, stop: int) -> AnyBlock:
        """Return rows ``start`` to ``stop``, (stop - start, D)."""
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        parts = []
        while start < stop:
            low, high = int(self._bounds[first]), int(self._bounds[first + 1])
            if low < high:
                parts.append(self._chunk(first)[start - low : min(stop, high) - low])
            start, first = max(start, min(stop, high)), first + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chunk(self, number: int) -> AnyBlock:
        if self._kept is None or self._kept[0] != number:
            self._kept = None  # two chunks are never held at once
            low, high = int(self._bounds[number]), int(self._bounds[number + 1])
            block = as_block(_compute(self.array[low:high]), self.dtype)
            if block.shape != (high - low, self.shape[1]):
                size = " x ".join(map(str, block.shape))
                raise ValueError(f"rows {low} to {high - 1} are computed as an array of {size}")
            self._kept = number, block
        return self._kept[1]


def _runs(rows: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Return which rows are neighbours in the source, in its order: every kind of array can be sliced."""
    order = np.argsort(rows)
    return np.split(order, np.flatnonzero(np.diff(rows[order]) != 1) + 1) if rows.size else []


def _compute(array: Any) -> Any:
    """Return the values of a Dask array: computed here, unless a cluster holds parts of it."""
    if "distributed" in sys.modules and (futures := sys.modules["distributed"].futures_of(array)):
        return futures[0].client.compute(array, sync=True)
    return array.compute(scheduler="synchronous")


@dataclass
class FrameSource(Source):
    """A pandas DataFrame: rows are samples, columns features."""

    def read(self, start: int, stop: int) -> AnyBlock:
        """Return rows ``start`` to ``stop``, (stop - start, D)."""
        missing = None if self.dtype == "object" else np.nan
        own = set(self.array.dtypes)
        single = all(isinstance(dtype, np.dtype) and np.can_cast(dtype, np.float32) for dtype in own)
        dtype = "float32" if single and self.dtype == "float64" else self.dtype
        return as_block(self.array.iloc[start:stop].to_numpy(dtype=dtype, na_value=missing), self.dtype)


def as_block(values: Any, dtype: str) -> AnyBlock:
    """Return rows as an array (B, D) of a type, missing entries NaN (labels: None)."""
    if hasattr(values, "toarray"):
        values = values.toarray()
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":  # NumPy would drop the imaginary part
        raise InputError("values of a view", "complex numbers", "real numbers", COMPLEX)
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(dtype), None if dtype == "object" else np.nan)
    own = np.asarray(values).dtype if dtype == "float64" else np.dtype(object)
    if np.can_cast(own, np.float32):  # half the memory
        dtype = "float32"
    block = np.asarray(values, dtype=dtype)
    return block if block.ndim > 1 else block.reshape(-1, 1)


def read_type(kind: Kind | None) -> str:
    """Return the dtype in which a source of a kind is read; object for labels."""
    return "float64" if kind is None else "object" if kind.coded else kind.raw


def labels(index: Any) -> StrArray:
    """Return labels, such as the entries of a pandas index, as names; "" where there is none (None, NaN)."""
    return np.asarray([_name(label) for label in index], dtype=str)


def _name(label: Any) -> str:
    """Return a label as a name: as it prints, but dates as a text table has them."""
    if label is None or type(label).__name__ == "NAType" or label != label:
        return ""
    return text_of(label) if hasattr(label, "isoformat") or isinstance(label, bytes) else str(label)


def counts_rows(index: Any) -> bool:
    """Whether the index of a frame only counts its rows: those from 0 on, all of them."""
    import pandas as pd

    return isinstance(index, pd.RangeIndex) and index.name is None and (index.start, index.step) == (0, 1)
