"""Sources of views that are objects in memory: arrays, sparse matrices, frames, lists."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS, Kind
from factorflow.data.ingest.conversions import convert, is_of
from factorflow.data.ingest.dialect import NAME_HEADERS, is_feature_header
from factorflow.data.ingest.sources import (
    COMPLEX,
    AnyBlock,
    DaskSource,
    FrameSource,
    Source,
    counts_rows,
    labels,
    read_type,
)
from factorflow.data.ingest.sparse import from_scipy
from factorflow.data.ingest.xarray_zarr import find_variable
from factorflow.errors import InputError

_CONVERT = "Convert the values; NaN where an entry is missing. Labels need inputs={view: 'categorical'}."


def from_object(view: str, value: Any, kind: Kind | None = None, *, transpose: bool = False) -> Source:
    """Return the source of an array-like in memory.

    Parameters
    ----------
    value : array-like
        Its values; inputs may have one dimension.

    Raises
    ------
    InputError
        When its shape or its type does not fit the kind, or it is no array.
    """
    if not is_of("xarray", value) and not is_of("pandas", value):
        value = convert(view, value)
    if is_of("pandas", value):
        return _from_pandas(view, value, kind, transpose=transpose)
    if is_of("zarr", value) and hasattr(value, "metadata"):
        variable = find_variable(value)
        value = value if variable is None else variable
    if is_of("xarray", value):
        return from_dataarray(view, value, kind)
    if isinstance(value, list | tuple):
        value = _from_list(view, value, kind)
    if isinstance(value, np.ndarray) and value.dtype == object and not (kind is not None and kind.coded):
        value = _from_objects(view, value)
    check_array(view, value, kind)
    if hasattr(value, "tocsr"):
        value = from_scipy(value, f"view {view!r}")
    make = DaskSource if is_of("dask", value) else Source
    return make(value, dtype=read_type(kind), about=getattr(value, "feature_metadata", None))


def _from_list(view: str, rows: Any, kind: Kind | None) -> AnyBlock:
    """Return a list of rows as an array."""
    try:
        return np.asarray(rows, dtype=object if kind is not None and kind.coded else None)
    except ValueError as error:
        raise InputError(
            f"view {view!r}",
            "a list of rows of unequal length",
            "samples x features",
            "Pad short rows with NaN.",
        ) from error


def _from_objects(view: str, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return an array of objects that are numbers, truth values or missing (None, NaN) as numbers."""
    import pandas as pd

    objects: Any = np.asarray(values).copy()
    objects[np.ma.getmaskarray(values)] = None
    numbers = np.full(objects.shape, np.nan)
    for place in zip(*np.nonzero(~pd.isna(objects)), strict=True):
        entry = objects[place]
        with suppress(OverflowError, ValueError):
            if isinstance(entry, Real | Decimal | np.bool_):
                numbers[place] = float(entry)
                continue
        where = "row {} of column {}".format(*place) if len(place) > 1 else f"row {place[0]}"
        expected = "numbers, or None and NaN where an entry is missing"
        raise InputError(f"values of view {view!r}", f"{short(entry)} in {where}", expected, _CONVERT)
    return numbers


def check_array(view: str, value: Any, kind: Kind | None = None) -> None:
    """Refuse arrays that are not samples x features, or of a type that does not fit the kind."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        raise InputError(
            f"view {view!r}",
            f"an object of type {type(value).__name__}",
            "an array, a sparse matrix, a DataFrame, a DataArray or the path of a file",
            "Convert it to a NumPy array of samples x features.",
        )
    has_levels = kind is not None and not kind.is_values
    if not (len(shape) == 2 or (has_levels and len(shape) == 1)) or 0 in shape:
        raise InputError(
            f"shape of view {view!r}",
            tuple(shape),
            "samples x features, at least one of each",
            "Reshape or remove it.",
        )
    check_columns(view, shape[1] if len(shape) == 2 else 1, kind)
    if not (kind is not None and kind.coded) and np.dtype(dtype).kind not in "biuf":
        raise InputError(
            f"type of view {view!r}",
            str(dtype),
            "real numbers",
            COMPLEX if np.dtype(dtype).kind == "c" else _CONVERT,
        )
    _check_decoded(view, value)


def _check_decoded(view: str, value: Any) -> None:
    """Refuse an array with a scale, or a number for missing entries, that has not been applied."""
    attrs = getattr(value, "attrs", None)
    if attrs is None:
        return
    encoded_by = [name for name in ("scale_factor", "add_offset") if name in attrs]
    encoded_by += [
        name for name in ("_FillValue", "missing_value") if name in attrs and _is_number(attrs[name])
    ]
    if encoded_by:
        raise InputError(
            f"view {view!r}",
            f"values that are packed, with {' and '.join(encoded_by)}",
            "values as they were measured",
            "Open it with xarray (xr.open_zarr, xr.open_dataset, or xr.decode_cf), which unpacks them.",
        )


def _is_number(fill: Any) -> bool:
    """Whether the fill value is a number other than NaN."""
    if isinstance(fill, str):  # as xarray writes numbers into attributes of Zarr
        try:
            fill = np.frombuffer(base64.b64decode(fill, validate=True), "<f8")
        except ValueError:
            return True
    return not np.all(np.asarray(fill) != np.asarray(fill))


def check_columns(view: str, n_columns: int, kind: Kind | None) -> None:
    """Refuse a categorical variable of several columns."""
    if kind is not None and kind.coded and n_columns != 1:
        raise InputError(
            f"columns of view {view!r}",
            n_columns,
            "one: a categorical view is one variable",
            "Give every variable as a view of its own.",
        )


def _from_pandas(view: str, frame: Any, kind: Kind | None, *, transpose: bool) -> Source:
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        column = frame if isinstance(frame, pd.Series) else pd.Series(frame)
        frame = column.to_frame(view if column.name is None else column.name)
    coded = kind is not None and kind.coded
    names = column_of_names(frame, transpose=transpose)
    if names is not None:
        frame = frame.set_index(names)
    if not coded:
        frame = _with_numbers(frame)

    def numeric(dtype: Any) -> bool:
        if pd.api.types.is_bool_dtype(dtype):  # of Arrow is no number to pandas
            return not isinstance(dtype, pd.CategoricalDtype)
        return pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype)

    text = [] if coded else [str(name) for name, dtype in frame.dtypes.items() if not numeric(dtype)]
    if text or frame.shape[1] == 0:
        raise InputError(
            f"columns of view {view!r}",
            ", ".join(text[:5]) or "none",
            "numeric columns",
            "Drop them, make them the index (sample names), give them as {obs} (sample metadata), or say "
            "that the view is 'categorical'.",
            obs=...,
        )
    check_columns(view, frame.shape[1], kind)
    samples = None if counts_rows(frame.index) else labels(frame.index)
    source = FrameSource(frame, samples, labels(frame.columns), dtype=read_type(kind))
    source.read_as = "" if names is None else f"names: column {names!r}"
    if coded and isinstance(frame.dtypes.iloc[0], pd.CategoricalDtype):
        source.levels = frame.dtypes.iloc[0].categories.to_numpy(dtype=object)
    return source


def _with_numbers(frame: Any) -> Any:
    """Return a frame whose columns of objects that are numbers or truth values, or missing, are numbers."""
    import pandas as pd

    out = frame
    for place, dtype in enumerate(frame.dtypes):
        column = frame.iloc[:, place]
        if dtype == np.dtype(object) and pd.api.types.infer_dtype(column, skipna=True) in _NUMBERS:
            out = frame.copy(deep=False) if out is frame else out
            out.isetitem(place, column.where(column.notna(), np.nan).astype(np.float64))
    return out


_NUMBERS = {"boolean", "decimal", "empty", "floating", "integer", "mixed-integer-float"}
"""What pandas calls columns of objects that are numbers."""


def column_of_names(frame: Any, *, transpose: bool) -> Any:
    """Return the first column if it names the rows of a frame without an index, as it would in a file."""
    import pandas as pd

    if frame.shape[1] < 2 or not counts_rows(frame.index):
        return None
    header, cells = frame.columns[0], frame.iloc[:, 0].dropna()
    is_text = not pd.api.types.is_numeric_dtype(cells) and all(isinstance(cell, str) for cell in cells)
    if str(header).strip().lower() in NAME_HEADERS or (transpose and is_feature_header(str(header))):
        return header
    return header if is_text else None


def from_dataarray(view: str, array: Any, kind: Kind | None = None) -> Source:
    """Return the source of an xarray DataArray: the first dimension holds the samples."""
    kind = kind or KINDS.get(str(array.attrs.get("likelihood")))
    has_levels = kind is not None and not kind.is_values
    if array.ndim != 2 and not (has_levels and array.ndim == 1):
        raise InputError(
            f"dimensions of view {view!r}", tuple(array.dims), "two: samples and features", "Stack or select."
        )
    names = [labels(array.indexes[dim]) if dim in array.indexes else None for dim in array.dims]
    if array.dtype == object and array.variable._in_memory and not (kind is not None and kind.coded):
        array = array.copy(data=_from_objects(view, array.to_numpy()))
    check_array(view, array, kind)
    rows, columns = names[0], names[1] if len(names) > 1 else None
    likelihood, dtype = array.attrs.get("likelihood"), read_type(kind)
    if type(array.data).__module__.startswith("dask"):
        return DaskSource(array.data, rows, columns, likelihood, dtype=dtype)
    # A lazily opened variable stays on disk until its rows are asked for.
    data = _LazyVariable(array.variable) if not array.variable._in_memory else array.data
    return Source(data, rows, columns, likelihood, dtype=dtype)


@dataclass(frozen=True)
class _LazyVariable:
    """Rows of a variable of an opened file, read when they are sliced."""

    variable: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.variable.shape)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self.variable[rows].to_numpy())
