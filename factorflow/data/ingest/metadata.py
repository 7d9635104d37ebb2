"""Tables of sample metadata: read as strictly as those of values, then the columns typed one by one.

A column is numbers if every entry is one, likewise truth values and dates; identifiers such as 001 stay text.
Among numbers the words of `MISSING_NUMBERS` are missing, in text those of `MISSING_TEXTS`, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import join_names, warn
from factorflow.data.ingest.dialect import DEFAULT_FORMAT, NAME_HEADERS, TableFormat
from factorflow.data.ingest.levels import DATE, DURATION, text_of
from factorflow.data.ingest.missing import MISSING_NUMBERS, MISSING_TEXTS
from factorflow.data.ingest.sources import labels
from factorflow.data.ingest.tables import ArrowTable, find_names, is_arrow
from factorflow.data.ingest.text import FALSE, TRUE, TextTable
from factorflow.data.store.column_types import LARGEST_EXACT
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_IDENTIFIER = re.compile(r"[-+]?0\d+")
_WHOLE = re.compile(r"[-+]?\d{1,15}")
_OTHER_MARK = re.compile(r"[-+]?\d+([.,]\d+)+")
"""Numbers with another decimal mark than the table, or with marks between thousands."""
_DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|Inf|INF)")


def read_metadata(
    path: Path,
    parameter: str = "obs",
    table_format: TableFormat = DEFAULT_FORMAT,
    samples: NDArray[np.str_] | None = None,
    *,
    alone: bool = False,
) -> pd.DataFrame:
    """Return a table of sample metadata.

    Parameters
    ----------
    samples : (N,) str array, optional
        Names of the samples; empty: they have none.
    alone : bool
        Whether it is said of this table alone; else a name ``index_col`` that it does not have is for others.

    Returns
    -------
    DataFrame
        Indexed by sample name; by position where no column names the samples.
    """
    import pandas as pd

    try:
        if not path.exists():
            raise InputError(parameter, str(path), "a file that exists", "Check the path.")
        table = ArrowTable(path) if is_arrow(path) else TextTable(path, table_format, one_column=True)
    except OSError as error:
        expected = f"a readable table with sample names first ({error})"
        raise InputError(parameter, str(path), expected, "Check path and contents.") from error
    names = _find_names(table, table_format.index_col, samples, alone=alone)
    if isinstance(table, ArrowTable):
        content = table.file.read()
        frame = with_exact_integers(content.to_pandas(ignore_metadata=True), content)
    else:
        frame = _infer_types(table, names)
    if names is None:
        numbers = (
            table.row_numbers if isinstance(table, ArrowTable) and table_format.index_col is None else None
        )
        return (
            frame
            if numbers is None or numbers.size != len(frame)
            else frame.set_axis(pd.Index(numbers.astype(object), name="obs"))
        )
    index = pd.Index(labels(frame.iloc[:, names]).astype(object), name="obs")
    columns: pd.DataFrame = frame.iloc[:, [i for i in range(frame.shape[1]) if i != names]]
    return columns.set_axis(index)


def with_exact_integers(frame: pd.DataFrame, table: Any) -> pd.DataFrame:
    """Return the frame of an Arrow table, in which integers with gaps are nullable, not float64."""
    import pyarrow as pa

    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_integer(column.type) and column.null_count and name in frame:
            dtype = str(column.type).replace("int", "Int").replace("u", "U")
            frame[name] = column.to_pandas(integer_object_nulls=True).astype(dtype).array
    return frame


def keep_integers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame to which rows without values may be added: large integers are nullable."""
    import pandas as pd

    out = frame.copy(deep=False)
    for place, dtype in enumerate(frame.dtypes):
        column = frame.iloc[:, place]
        if isinstance(dtype, np.dtype) and dtype.kind in "iu" and column.abs().max() > LARGEST_EXACT:
            out.isetitem(
                place, column.astype(pd.Int64Dtype() if dtype.kind == "i" else pd.UInt64Dtype()).array
            )
    return out


def _find_names(
    table: TextTable | ArrowTable,
    chosen: str | int | bool | None,
    samples: NDArray[np.str_] | None,
    *,
    alone: bool,
) -> int | None:
    """Return the column with the sample names: as of a matrix, else the first if samples are in it."""
    if isinstance(chosen, str) and chosen not in table.columns and not alone:
        chosen = None
    if chosen is not None or table.stored_index is not None or len(table.columns) == 1:
        return find_names(table, chosen)[0] if len(table.columns) > 1 or chosen is not None else None
    if isinstance(table, ArrowTable) and table.row_numbers is not None:
        return None
    header = table.columns[0]
    if samples is None or table.is_text(0) or not header.strip():
        return 0
    if samples.size:
        sample_names = {text.removesuffix(".0") for text in samples.tolist()}
        return (
            0 if sample_names & {cell.strip().removesuffix(".0") for cell in table.first_cells(0)} else None
        )
    return 0 if header.strip().lower() in NAME_HEADERS else None


def read_texts(table: TextTable) -> pd.DataFrame:
    """Return all cells of a text table as they are written, columns numbered."""
    import pandas as pd
    import pyarrow as pa

    places = range(len(table.columns))
    batches = list(table.batches(places, []))
    if not batches:
        return pd.DataFrame({str(place): pd.Series([], dtype=object) for place in places})
    texts: pd.DataFrame = pa.Table.from_batches(batches).to_pandas()
    return texts


def _infer_types(table: TextTable, names: int | None) -> pd.DataFrame:
    """Return a text table with typed columns; that of the names stays as it is written."""
    import pandas as pd

    text = read_texts(table)
    columns, odd = [], dict[str, set[str]]()
    for place, name in enumerate(table.columns):
        cells = text.iloc[:, place].to_numpy(dtype=object)
        if place == names:
            columns.append(pd.Series(cells, dtype=object))
            continue
        name = name or f"Unnamed: {place}"
        columns.append(_column(name, cells, table, odd))
    typed = pd.concat(columns, axis=1) if columns else pd.DataFrame()
    typed.columns = pd.Index([name or f"Unnamed: {i}" for i, name in enumerate(table.columns)], dtype=object)
    if odd and not table.dialect.row_names:  # R writes NA where something is missing
        words = sorted(set().union(*odd.values()))
        warn(
            f"{table.path}: {join_names(words)} in {join_names(list(odd), 3)} is taken as missing; "
            "where it is a level, write another word"
        )
    return typed


def _column(name: str, cells: NDArray[Any], table: TextTable, odd: dict[str, set[str]]) -> pd.Series[Any]:
    """Return a column with the type that all its entries have."""
    import pandas as pd

    cells = np.array([cell.strip() for cell in cells], dtype=object)
    distinct = pd.unique(cells)
    plausible = [cell for cell in distinct if cell not in {*MISSING_NUMBERS, *table.na_values}]
    if not plausible:  # None alone
        plausible = [cell for cell in distinct if cell not in {*MISSING_TEXTS, *table.na_values}]
    if table.dialect.decimal == ",":
        commas = {cell: cell.replace(",", ".") if "." not in cell else cell + "," for cell in plausible}
    else:
        commas = {cell: cell for cell in plausible}
    if plausible and all(cell in (*TRUE, *FALSE) for cell in plausible):
        truth = {cell: cell in TRUE for cell in plausible}
        if len(plausible) == distinct.size:
            return pd.Series([truth[cell] for cell in cells], dtype=bool)
        return pd.Series([truth.get(cell) for cell in cells], dtype="boolean")
    numbers = [cell for cell in plausible if _DECIMAL.fullmatch(commas[cell])]
    identifiers = any(_IDENTIFIER.fullmatch(cell) for cell in plausible)
    if len(numbers) == len(plausible) and not identifiers:
        whole = bool(plausible) and all(_WHOLE.fullmatch(cell) for cell in plausible)
        long = not whole and any(cell.isdigit() for cell in plausible if len(cell) > 15)
        if not long:
            if words := {str(cell) for cell in distinct if cell in ("None", "none")}:
                odd[name] = words  # no dose, or not known
            values = {cell: float(commas[cell]) for cell in plausible}
            column = np.array([values.get(cell, np.nan) for cell in cells], np.float64)
            return pd.Series(column.astype(np.int64) if whole and len(plausible) == distinct.size else column)
    missing = {*MISSING_TEXTS, *table.na_values}
    if words := {str(cell) for cell in distinct if cell in MISSING_TEXTS and cell}:
        odd[name] = words
    _warn_of_numbers(name, cells, numbers, plausible, table, identifiers)
    texts = [cell for cell in distinct if cell not in missing]
    typed: dict[str, Any] = dict(zip(texts, _times(texts), strict=True))
    return pd.Series([typed.get(cell) for cell in cells], dtype=None if texts else object)


def _times(texts: list[str]) -> Sequence[Any]:
    """Return dates and durations, if all texts are some as programs write them; else the texts."""
    import pandas as pd

    try:
        if texts and all(DATE.fullmatch(text) for text in texts):
            return list(pd.to_datetime(texts, format="ISO8601"))
        if texts and all(DURATION.fullmatch(text) for text in texts):
            return list(pd.to_timedelta(texts))
    except ValueError:  # 2020-13-01, or several time zones
        pass
    return texts


def _warn_of_numbers(
    name: str, cells: NDArray[Any], numbers: list[str], values: list[str], table: TextTable, identifiers: bool
) -> None:
    """Warn of a column that is text since a few of its entries are not numbers."""
    if identifiers or len(numbers) == len(values):
        return
    odd = [cell for cell in values if cell not in set(numbers)]
    if all(_OTHER_MARK.fullmatch(cell) for cell in odd):
        other = "," if table.dialect.decimal == "." else "."
        warn(
            f"{table.path}: column {name!r} is text, since {join_names(odd, 3)} has {other!r} in it: "
            "if that is the decimal mark, say {decimal}, and write nothing between thousands",
            decimal=other,
        )
        return
    n_numbers, n_known = int(np.isin(cells, numbers).sum()), int(np.isin(cells, values).sum())
    if 2 * n_numbers > n_known:
        warn(
            f"{table.path}: column {name!r} is text, since {join_names(odd, 3)} is no number "
            f"({n_known - n_numbers} of {n_known} entries): correct it, or say that it stands for a missing "
            "entry ({na_values})",
            na_values=...,
        )


def without_codes(frame: pd.DataFrame, texts: Sequence[str]) -> pd.DataFrame:
    """Return sample metadata without codes of missing entries, given as a text table may write them."""
    out = frame.copy(deep=False)
    for place in range(frame.shape[1] if texts else 0):
        column = frame.iloc[:, place]
        codes = [label for label in column.dropna().unique() if text_of(label) in texts]
        if codes:
            out.isetitem(place, column.mask(column.isin(codes)).array)
    return out
