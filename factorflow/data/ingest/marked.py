"""Entries like ``<0.5`` and ``>40`` in frames and text tables: values beyond a limit of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.data.ingest.checks import usable_name
from factorflow.data.ingest.dialect import TableFormat
from factorflow.data.ingest.tables import is_arrow, is_table, table_stem

if TYPE_CHECKING:
    import pandas as pd

_MARKED = re.compile(r"\s*([<>])=?\s*([-+]?[0-9][-+0-9.eE]*|[-+]?\.[0-9]+)\s*")


def read_marked(
    views: Any, table_format: TableFormat, transposed: Callable[[str], bool]
) -> tuple[Any, dict[str, pd.DataFrame]]:
    """Return views with numbers in place of such entries, and -1, 0 or 1 for each entry of views with some.

    Parameters
    ----------
    views : object
        As for `write_dataset`.
    table_format : TableFormat
        How text tables are laid out, as far as it was said.
    transposed : callable
        Name of a view to whether its features are in rows.
    """
    if isinstance(views, str | os.PathLike) and _has_marks(views):
        path = Path(views)
        views = {usable_name(table_stem(path)): path}
    if type(views) is not dict:
        return views, {}
    plain, sides = dict(views), dict[str, Any]()
    for view, value in views.items():
        frame = _frame(value, table_format)
        parts = None if frame is None else _split(frame)
        if parts is not None:
            plain[view], side = parts
            sides[str(view)] = side.T if transposed(str(view)) else side
    return plain, sides


def _has_marks(path: Any) -> bool:
    """Whether a file is a text table with such a sign in it, outside of its first line."""
    place = Path(path)
    if not place.is_file() or not is_table(place) or is_arrow(place) or place.suffix not in TEXTS:
        return False
    with place.open("rb") as file:
        file.readline()
        return any(b"<" in line or b">" in line for line in file)


TEXTS = {".csv", ".tsv", ".txt", ".tab"}
"""Endings of tables that are looked into; compressed ones are not."""


def _frame(value: Any, table_format: TableFormat) -> pd.DataFrame | None:
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        return value
    if not isinstance(value, str | os.PathLike) or not _has_marks(value):
        return None
    options: dict[str, Any] = {"sep": table_format.sep, "engine": "python", "dtype": str}
    frame: pd.DataFrame = pd.read_csv(value, encoding=table_format.encoding, **options)
    first = frame.iloc[:, 0]
    if pd.to_numeric(first, errors="coerce").isna().all() and not first.map(_is_marked).any():
        frame = frame.set_index(frame.columns[0])
    if table_format.decimal == ",":
        frame = frame.map(lambda cell: cell.replace(",", ".") if isinstance(cell, str) else cell)
    return frame


def _is_marked(cell: Any) -> bool:
    return isinstance(cell, str) and _MARKED.fullmatch(cell) is not None


def _split(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return numbers and sides of a frame; None: no entry is marked."""
    import pandas as pd

    texts = [i for i, dtype in enumerate(frame.dtypes) if not pd.api.types.is_numeric_dtype(dtype)]
    side = pd.DataFrame(np.zeros(frame.shape, np.int8), index=frame.index, columns=frame.columns)
    columns = [frame.iloc[:, i] for i in range(frame.shape[1])]
    for i in texts:
        matches = [_MARKED.fullmatch(cell) if isinstance(cell, str) else None for cell in columns[i]]
        side.isetitem(i, [0 if m is None else -1 if m[1] == "<" else 1 for m in matches])
        cells = [cell if m is None else m[2] for cell, m in zip(columns[i], matches, strict=True)]
        numbers = pd.Series(cells, index=frame.index)
        try:
            columns[i] = pd.to_numeric(numbers)
        except (ValueError, TypeError):  # refused by name where the view is read
            columns[i] = numbers
    if not side.to_numpy().any():
        return None
    values = pd.concat(columns, axis=1)
    values.columns = frame.columns
    return values, side
