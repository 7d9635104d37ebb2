"""Sources in memory (or that behave so): anything with rows and columns, as float32 blocks.

A source hands out rows by their position; a row of a dataset that the source lacks is a row of NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.errors import InputError

__all__ = ["Source", "from_object"]

StrArray = NDArray[np.str_]
FloatBlock = NDArray[np.float32]


@dataclass
class Source:
    """One view, wherever it lies.

    Parameters
    ----------
    array : object
        With ``shape`` (N, D) and rows by slicing: NumPy, memory maps, HDF5, Zarr, SciPy CSR.
    samples, features : str array or None
        Names; None: it has none.
    likelihood : str or None
        What its file suggests.
    close : callable
        Called when it is no longer needed.
    """

    array: Any
    samples: StrArray | None = None
    features: StrArray | None = None
    likelihood: str | None = None
    close: Callable[[], Any] = field(default=lambda: None, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return int(self.array.shape[0]), int(self.array.shape[1])

    def read(self, start: int, stop: int) -> FloatBlock:
        """Return rows ``start`` to ``stop``, (stop - start, D)."""
        return as_float32(self.array[start:stop])

    def take(self, rows: NDArray[np.int64]) -> FloatBlock:
        """Return rows by position, (len(rows), D); those at -1 are NaN."""
        out = np.full((rows.size, self.shape[1]), np.nan, np.float32)
        here = np.flatnonzero(rows >= 0)
        wanted = rows[here]
        if not here.size:
            return out
        if wanted[-1] - wanted[0] == here.size - 1 and np.all(np.diff(wanted) == 1):
            values = self.read(int(wanted[0]), int(wanted[-1]) + 1)
            if here.size == rows.size:
                return values
            out[here] = values
            return out
        # Runs of neighbouring rows in the order of the source: every kind of array can be sliced.
        order = np.argsort(wanted)
        runs = np.split(order, np.flatnonzero(np.diff(wanted[order]) != 1) + 1)
        for run in runs:
            out[here[run]] = self.read(int(wanted[run[0]]), int(wanted[run[-1]]) + 1)
        return out


@dataclass
class DaskSource(Source):
    """A Dask array: whole chunks of rows are computed, and the last one is kept."""

    _bounds: NDArray[np.int64] = field(init=False, repr=False)
    _kept: tuple[int, FloatBlock] | None = field(init=False, default=None, repr=False)

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

    def read(self, start: int, stop: int) -> FloatBlock:
        """Return rows ``start`` to ``stop``, (stop - start, D)."""
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        parts = []
        while start < stop:
            low, high = int(self._bounds[first]), int(self._bounds[first + 1])
            if low < high:
                parts.append(self._chunk(first)[start - low : min(stop, high) - low])
            start, first = max(start, min(stop, high)), first + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chunk(self, number: int) -> FloatBlock:
        if self._kept is None or self._kept[0] != number:
            self._kept = None  # two chunks are never held at once
            low, high = self._bounds[number], self._bounds[number + 1]
            self._kept = number, as_float32(self.array[low:high].compute(scheduler="synchronous"))
        return self._kept[1]


@dataclass
class FrameSource(Source):
    """A pandas DataFrame: rows are samples, columns features."""

    def read(self, start: int, stop: int) -> FloatBlock:
        """Return rows ``start`` to ``stop``, (stop - start, D)."""
        return np.asarray(self.array.iloc[start:stop].to_numpy(dtype=np.float32, na_value=np.nan))


def as_float32(values: Any) -> FloatBlock:
    """Return a block as float32, missing entries NaN."""
    if hasattr(values, "toarray"):
        values = values.toarray()
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float32), np.nan)
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused by name
        return np.asarray(values, dtype=np.float32)


def labels(index: Any) -> StrArray:
    """Return the entries of a pandas index as names."""
    return np.asarray([str(label) for label in index], dtype=str)


def from_object(view: str, value: Any) -> Source:
    """Return the source of an array-like in memory.

    Raises
    ------
    InputError
        When it is not two-dimensional, not numeric, or of an unknown type.
    """
    kind = type(value).__module__.partition(".")[0]
    if kind == "pandas":
        return _from_frame(view, value)
    if kind == "xarray":
        return from_dataarray(view, value)
    if kind == "scipy":
        value = value.tocsr()
    elif isinstance(value, list | tuple):
        value = np.asarray(value)
    _check_array(view, value)
    return DaskSource(value) if kind == "dask" else Source(value)


def _check_array(view: str, value: Any) -> None:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        raise InputError(
            f"view {view!r}",
            f"an object of type {type(value).__name__}",
            "an array, a sparse matrix, a DataFrame, a DataArray or the path of a file",
            "Convert it to a NumPy array of samples x features.",
        )
    if len(shape) != 2 or 0 in shape:
        raise InputError(
            f"shape of view {view!r}",
            tuple(shape),
            "samples x features, at least one of each",
            "Reshape or remove it.",
        )
    if np.dtype(dtype).kind not in "biuf":
        raise InputError(
            f"type of view {view!r}",
            str(dtype),
            "real numbers",
            "Convert the values; NaN where an entry is missing.",
        )


def _from_frame(view: str, frame: Any) -> Source:
    import pandas as pd

    if isinstance(frame, pd.Series):
        frame = frame.to_frame()
    text = [str(name) for name, dtype in frame.dtypes.items() if not pd.api.types.is_numeric_dtype(dtype)]
    if text or frame.shape[1] == 0:
        raise InputError(
            f"columns of view {view!r}",
            ", ".join(text[:5]) or "none",
            "numeric columns",
            "Drop them, make them the index (sample names), or give them as obs= (sample metadata).",
        )
    positional = isinstance(frame.index, pd.RangeIndex) and frame.index.name is None
    samples = None if positional else labels(frame.index)
    return FrameSource(frame, samples, labels(frame.columns))


def from_dataarray(view: str, array: Any) -> Source:
    """Return the source of an xarray DataArray: the first dimension holds the samples."""
    if array.ndim != 2:
        raise InputError(
            f"dimensions of view {view!r}", tuple(array.dims), "two: samples and features", "Stack or select."
        )
    rows, columns = (labels(array.indexes[dim]) if dim in array.indexes else None for dim in array.dims)
    _check_array(view, array)
    likelihood = array.attrs.get("likelihood")
    if type(array.data).__module__.startswith("dask"):
        return DaskSource(array.data, rows, columns, likelihood)
    # A lazily opened variable stays on disk until its rows are asked for.
    data = _LazyVariable(array.variable) if not array.variable._in_memory else array.data
    return Source(data, rows, columns, likelihood)


@dataclass(frozen=True)
class _LazyVariable:
    """Rows of a variable of an opened file, read when they are sliced."""

    variable: Any

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.variable.shape)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self.variable[rows].to_numpy())
