"""Types of columns of sample metadata: what a store keeps beside numbers, truth values and text.

A column is stored as numbers or text (`encode`), and a record, plain values of JSON, says what it was: dates,
durations, periods, intervals, categories with their levels, truth values or integers with gaps, a type of its
own for text (`decode`).
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.levels import text_of
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

LARGEST_EXACT = 1 << 53
"""Whole numbers up to here are float64 numbers, all of them."""

Record = dict[str, Any]


def encode(column: pd.Series[Any]) -> tuple[NDArray[Any], Record | None]:
    """Return a column as numbers, truth values or text ("" where missing), and what `decode` makes of it.

    Whole numbers with gaps are float64 where that holds them all, else text: identifiers of 18 digits. No
    record: the values are the column.
    """
    import pandas as pd

    if isinstance(column.dtype, pd.ArrowDtype):
        values, record = encode(without_arrow(column))
        return values, (record or {"type": "plain"}) | {"as": str(column.dtype)}
    column = _infer_dtype(column)
    dtype, missing = column.dtype, column.isna().to_numpy()
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        values = column.to_numpy()
        return values if dtype.itemsize <= 8 else values.astype(np.float64), None  # Zarr has no longdouble
    if isinstance(dtype, pd.CategoricalDtype):
        return _encode_levels(column, dtype.categories, ordered=bool(dtype.ordered))
    if isinstance(dtype, pd.IntervalDtype):
        levels = pd.Index(column.dropna().unique())
        values, record = _encode_levels(column.astype(pd.CategoricalDtype(levels)), levels, ordered=False)
        return values, record | {"type": "interval"} if record else None
    kind = getattr(dtype, "kind", "O")
    if kind == "b":
        if missing.any():
            return _texts(column, missing), {"type": "boolean"}
        return column.to_numpy(dtype=bool), {"type": "boolean"}
    if kind in "iuf":
        nullable = {"type": str(dtype)} if hasattr(dtype, "numpy_dtype") else None  # others are sparse
        if not missing.any():
            return column.to_numpy(dtype=getattr(dtype, "numpy_dtype", np.float64)), nullable
        present = column.dropna()
        if kind == "f" or present.empty or max(-int(present.min()), int(present.max())) <= LARGEST_EXACT:
            return column.to_numpy(dtype=np.float64, na_value=np.nan), nullable
        return _texts(column, missing), nullable
    if kind == "M":
        zone = getattr(dtype, "tz", None)
        about = {"type": "datetime", "unit": column.dt.unit, "zone": None if zone is None else str(zone)}
        return _texts(column, missing), about
    if kind == "m":
        return _texts(column, missing), {"type": "duration", "unit": column.dt.unit}
    if isinstance(dtype, pd.PeriodDtype):
        return _texts(column, missing), {"type": "period", "freq": str(dtype)[len("period[") : -1]}
    inferred = pd.api.types.infer_dtype(column, skipna=True)
    if inferred in ("date", "time", "decimal"):
        return _texts(column, missing), {"type": inferred}
    values = column.astype(object).where(~missing, "").astype(str).to_numpy(dtype=object)
    gaps = bool(missing.any()) and "" not in values[~missing]
    if isinstance(dtype, pd.StringDtype):
        return values, {"type": "text", "gaps": gaps, "as": str(dtype)}
    return values, {"type": "text", "gaps": True} if gaps else None


def decode(values: NDArray[Any], record: Mapping[str, Any] | None) -> Any:
    """Return a column, or rows of it, as it was given; of a record that cannot be followed the values."""
    import pandas as pd

    if record is None:
        return values
    texts = values.astype(object) if values.dtype.kind in "UTO" else values
    failures = (ValueError, TypeError, KeyError, OverflowError, NotImplementedError)
    try:
        decoded = _DECODERS.get(str(record["type"]), _nullable)(texts, record)
    except failures:
        return values
    try:
        return pd.Series(decoded).astype(_dtype_of(record["as"])).array if "as" in record else decoded
    except failures:  # pandas knows no name of some types of Arrow: decimals, lists
        return decoded


def text_columns(table: pd.DataFrame) -> dict[str, NDArray[np.str_]]:
    """Return the columns of text, such as symbols of genes, "" where they are missing."""
    import pandas as pd

    is_text = [
        isinstance(kind, pd.CategoricalDtype) or pd.api.types.is_string_dtype(kind) for kind in table.dtypes
    ]
    return {
        str(name): table[name].astype(object).where(table[name].notna(), "").to_numpy(dtype=str)
        for name in table.columns[is_text]
    }


def marked_rows(column: pd.Series[Any], where: str) -> NDArray[np.bool_]:
    """Return which rows a column of truth values marks: numbers and text of files too; missing ones are not.

    Raises
    ------
    InputError
        When it holds something else; ``where`` is what the error calls it.
    """
    marks = {"True": True, "False": False, "1": True, "0": False, "1.0": True, "0.0": False}
    values = [
        False if missing else marks.get(str(value))
        for value, missing in zip(column, column.isna(), strict=True)
    ]
    if None in values:
        first = str(column.iloc[values.index(None)])
        raise InputError(where, first, "True or False for every feature", "Correct the column.")
    return np.asarray(values, dtype=bool)


def _dtype_of(name: str) -> Any:
    """Return the type of this name; ``"str"`` is that of pandas 3, not Python's, which has no gaps."""
    import pandas as pd

    return pd.StringDtype(na_value=np.nan) if name == "str" else name


def without_arrow(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column that Arrow holds as one of pandas' own types."""
    import pandas as pd

    if not isinstance(column.dtype, pd.ArrowDtype):
        return column
    dtype = _own_dtype(column.dtype)
    if dtype == "category":  # `astype` fails where there are gaps
        column = column.array.__arrow_array__().to_pandas().set_axis(column.index)
    own: pd.Series[Any] = column.astype(dtype)
    return own


def _own_dtype(dtype: pd.ArrowDtype) -> Any:
    import pandas as pd
    import pyarrow as pa

    arrow_dtype: Any = dtype.pyarrow_dtype
    if pa.types.is_integer(arrow_dtype):
        return str(arrow_dtype).replace("int", "Int").replace("u", "U")
    if pa.types.is_boolean(arrow_dtype):
        return "boolean"
    if pa.types.is_floating(arrow_dtype):
        return "Float64"
    if pa.types.is_timestamp(arrow_dtype):
        return (
            pd.DatetimeTZDtype(arrow_dtype.unit, arrow_dtype.tz)
            if arrow_dtype.tz
            else f"datetime64[{arrow_dtype.unit}]"
        )
    if pa.types.is_duration(arrow_dtype):
        return f"timedelta64[{arrow_dtype.unit}]"
    return "category" if pa.types.is_dictionary(arrow_dtype) else object


def _infer_dtype(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of objects as the type that all of them have, where pandas has one for it."""
    import pandas as pd

    if column.dtype != object:
        return column
    inferred = pd.api.types.infer_dtype(column, skipna=True)
    types = {
        "boolean": ("boolean",),
        "integer": ("Int64", "UInt64"),
        "floating": ("float64",),
        "mixed-integer-float": ("float64",),
        "datetime64": ("datetime64[ns]",),
        "datetime": ("datetime64[ns]",),
        "timedelta64": ("timedelta64[ns]",),
        "timedelta": ("timedelta64[ns]",),
        "period": ("period",),
        "interval": ("interval",),
    }.get(inferred, ())
    for dtype in types:
        try:
            as_objects: Any = column.where(column.notna(), None)
            if dtype in ("period", "interval"):
                return pd.Series(pd.array(as_objects, dtype=None), index=column.index)
            return pd.Series(as_objects.astype(dtype))
        except (ValueError, TypeError, OverflowError):
            continue
    return column


def _texts(column: pd.Series[Any], missing: NDArray[np.bool_]) -> NDArray[Any]:
    texts = ["" if gap else text_of(value) for gap, value in zip(missing, column, strict=True)]
    return np.array(texts, dtype=object)


def _encode_levels(
    column: pd.Series[Any], levels: pd.Index[Any], *, ordered: bool
) -> tuple[NDArray[Any], Record | None]:
    """Return the levels of a column as text, and the record of all levels.

    Text in the order of the alphabet is not listed: the values tell it.
    """
    codes = column.cat.codes.to_numpy()
    listed = [str(level) for level in levels.astype(object)]
    values = np.array([*listed, ""], dtype=object)[codes]
    if len(set(listed)) < len(listed):  # 1 and "1"
        return values, None
    plain = levels.dtype == object and all(isinstance(level, str) for level in levels)
    if plain and not ordered and listed == sorted({*values.tolist()} - {""}):
        return values, {"type": "category", "ordered": False, "levels": None}
    return values, {"type": "category", "ordered": ordered, "levels": listed, "of": _encode_index(levels)}


def _encode_index(levels: pd.Index[Any]) -> Record:
    """Return levels as plain values."""
    import pandas as pd

    if isinstance(levels, pd.IntervalIndex):
        return {
            "closed": str(levels.closed),
            "left": _encode_index(levels.left),
            "right": _encode_index(levels.right),
        }
    values, record = encode(pd.Series(levels.array))
    return {"values": values.tolist(), "dtype": values.dtype.str, "record": record}


def _decode_index(about: Mapping[str, Any]) -> Any:
    import pandas as pd

    if "closed" in about:
        left, right = (_decode_index(about[side]) for side in ("left", "right"))
        return pd.IntervalIndex.from_arrays(left, right, closed=about["closed"])
    return pd.Index(decode(np.array(about["values"], dtype=about["dtype"]), about["record"]))


def _categories(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    import pandas as pd

    if record["levels"] is None:
        return pd.Categorical(_or_none(texts))
    where = {text: code for code, text in enumerate(record["levels"])}
    codes = [where.get(text, -1) for text in texts.tolist()]
    return pd.Categorical.from_codes(codes, _decode_index(record["of"]), ordered=record["ordered"])


def _intervals(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    import pandas as pd

    if record["levels"] is None or "closed" not in record["of"]:
        raise ValueError("levels that are no intervals")
    categories = _categories(texts, record)
    return pd.array(categories.categories).take(categories.codes, allow_fill=True)


def _datetimes(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    import pandas as pd

    if record["zone"] is None:
        naive = np.where(texts == "", "NaT", texts).astype(str)
        return pd.array(naive.astype(f"datetime64[{record['unit']}]"))
    timed = [f"{text[:10]}T00:00{text[10:]}" if text[10:11] in {*"+-"} else text for text in texts.tolist()]
    texts_or_none = pd.Series([text or None for text in timed], dtype=object)
    times = pd.to_datetime(texts_or_none, format="ISO8601", utc=True)
    return times.dt.tz_convert(record["zone"]).dt.as_unit(record["unit"]).array


def _durations(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    import pandas as pd

    durations = pd.to_timedelta(pd.Series(_or_none(texts), dtype=object))
    return durations.dt.as_unit(record["unit"]).array


def _periods(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    import pandas as pd

    return pd.PeriodIndex(np.where(texts == "", "NaT", texts), freq=record["freq"]).array


def _objects(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    read: Callable[[str], Any] = {
        "date": datetime.date.fromisoformat,
        "time": datetime.time.fromisoformat,
        "decimal": decimal.Decimal,
    }[record["type"]]
    return np.array([read(text) if text else None for text in texts.tolist()], dtype=object)


def _truths(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    import pandas as pd

    if texts.dtype.kind == "b":
        return pd.array(texts, dtype="boolean")
    codes = {"True": True, "False": False, "": None}
    return pd.array([codes[text] for text in texts.tolist()], dtype="boolean")


def _text(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    return np.array(_or_none(texts), dtype=object) if record["gaps"] else texts


def _plain(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    return texts


def _nullable(texts: NDArray[Any], record: Mapping[str, Any]) -> Any:
    import pandas as pd

    if texts.dtype.kind == "O":
        return pd.array([int(text) if text else None for text in texts.tolist()], dtype=record["type"])
    missing = np.isnan(texts) if texts.dtype.kind == "f" else np.zeros(texts.shape, bool)
    array = pd.array(np.where(missing, 0, texts), dtype=record["type"])
    array[missing] = pd.NA
    return array


_DECODERS: dict[str, Callable[[NDArray[Any], Mapping[str, Any]], Any]] = {
    "category": _categories,
    "interval": _intervals,
    "datetime": _datetimes,
    "duration": _durations,
    "period": _periods,
    "date": _objects,
    "time": _objects,
    "decimal": _objects,
    "boolean": _truths,
    "text": _text,
    "plain": _plain,
}


def _or_none(texts: NDArray[Any]) -> list[Any]:
    return [text or None for text in texts.tolist()]
