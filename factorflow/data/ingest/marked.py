"""Entries like ``<0.5`` and ``>40`` in frames and text tables: values beyond a limit of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.data.ingest.checks import usable_name
from factorflow.data.ingest.dialect import TEXT
from factorflow.data.ingest.long import is_long_table
from factorflow.data.ingest.metadata import read_texts
from factorflow.data.ingest.missing import MISSING_NUMBERS
from factorflow.data.ingest.objects import column_of_names
from factorflow.data.ingest.reading import Reading
from factorflow.data.ingest.tables import find_names, is_arrow, is_table, table_stem
from factorflow.data.ingest.text import TextTable

if TYPE_CHECKING:
    import pandas as pd

_MARKED = re.compile(r"\s*([<>])=?\s*([-+]?[0-9][-+0-9.eE]*|[-+]?\.[0-9]+)\s*")


def read_marked(
    views: Any, reading: Reading, is_transposed: Callable[[str], bool]
) -> tuple[Any, dict[str, pd.DataFrame]]:
    """Return views with numbers in place of such entries, and -1, 0 or 1 for each entry of views with some.

    Parameters
    ----------
    views : object
        As for `write_dataset`.
    reading : Reading
        How text tables are read, and what views are said to be: labels stay as they are.
    is_transposed : callable
        Name of a view to whether its features are in rows.
    """
    by_name = views
    if isinstance(views, str | os.PathLike) and _has_marks(views):
        by_name = {usable_name(table_stem(_path(views))): views}
    if type(by_name) is not dict:
        return views, {}
    plain, sides = dict(by_name), dict[str, Any]()
    for view, value in by_name.items():
        kind = reading.kinds(str(view))
        if kind is not None and kind.coded:
            continue
        transpose = is_transposed(str(view))
        frame = _frame(str(view), value, reading, transpose=transpose)
        parts = None if frame is None else _split(frame)
        if parts is not None:
            plain[view], side = parts
            sides[str(view)] = side.T if transpose else side
            if not hasattr(value, "columns"):
                reading.tables.append(str(view))
    return (plain, sides) if sides else (views, {})


def _path(path: Any) -> Path:
    return Path(os.path.expanduser(path))


def _has_marks(path: Any) -> bool:
    """Whether a file is a text table, not compressed, with such a sign in it, outside of its first line."""
    place = _path(path)
    if not place.is_file() or not is_table(place) or is_arrow(place) or place.suffix.lower() not in TEXT:
        return False
    with place.open("rb") as file:
        file.readline()
        return any(b"<" in line or b">" in line for line in file)


def _frame(view: str, value: Any, reading: Reading, *, transpose: bool) -> pd.DataFrame | None:
    """Return a view that may have such entries as a frame with its names as index."""
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        names = column_of_names(value, transpose=transpose)
        return value if names is None else value.set_index(names)
    if not isinstance(value, str | os.PathLike) or not _has_marks(value):
        return None
    table_format = replace(reading.format, na_values=reading.codes.texts(view))
    table = TextTable(_path(value), table_format, one_column=table_format.index_col in (False, "false"))
    if is_long_table(table):
        return None
    place, _ = find_names(table, table_format.index_col, transpose=transpose)
    texts = read_texts(table)
    texts.columns = pd.Index(table.columns, dtype=object)
    missing = {*MISSING_NUMBERS, *table.na_values}
    has_comma = table.dialect.decimal == ","
    columns = [
        _numbers(texts.iloc[:, i].str.strip(), missing, has_comma=has_comma)
        for i in range(len(table.columns))
        if i != place
    ]
    frame = pd.concat(columns, axis=1)
    return frame if place is None else frame.set_axis(pd.Index(texts.iloc[:, place].to_numpy(dtype=object)))


def _numbers(cells: pd.Series[Any], missing: set[str], *, has_comma: bool) -> pd.Series[Any]:
    """Return a column with NaN where it is missing and decimal points; as numbers where all are some."""
    import pandas as pd

    cells = cells.mask(cells.isin(missing))
    if has_comma:  # a point is none of its decimal marks
        cells = cells.map(lambda cell: cell.replace(".", "'").replace(",", "."), na_action="ignore")
    try:
        return pd.to_numeric(cells)
    except ValueError:
        return cells


def _split(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return numbers and sides of a frame; None: no entry is marked."""
    import pandas as pd

    side = pd.DataFrame(np.zeros(frame.shape, np.int8), index=frame.index, columns=frame.columns)
    columns = [frame.iloc[:, i] for i in range(frame.shape[1])]
    for i, dtype in enumerate(frame.dtypes):
        if pd.api.types.is_numeric_dtype(dtype):
            continue
        matches = [_MARKED.fullmatch(cell) if isinstance(cell, str) else None for cell in columns[i]]
        if not any(matches):
            continue
        side.isetitem(i, [0 if m is None else -1 if m[1] == "<" else 1 for m in matches])
        cells = [cell if m is None else m[2] for cell, m in zip(columns[i], matches, strict=True)]
        columns[i] = pd.Series(cells, index=frame.index, name=frame.columns[i])
        with suppress(ValueError, TypeError):  # refused by name where the view is read
            columns[i] = pd.to_numeric(columns[i])
    if not side.to_numpy().any():
        return None
    values = pd.concat(columns, axis=1)
    values.columns = frame.columns
    return values, side
