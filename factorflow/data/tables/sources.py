"""Sources of long tables, read in pieces: text, Parquet and Arrow files, folders of them, frames, streams.

Only the columns that are asked for are read. A piece hands out a column as labels (codes among those that
occur in it) or as numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.dialect import DEFAULT_FORMAT, TableFormat
from factorflow.data.tables.files import listed_files, open_files
from factorflow.data.tables.pieces import (
    PIECE_ROWS,
    Piece,
    TableSource,
    arrow_pieces,
    has_declared_order,
    not_numeric_error,
    without_codes,
)
from factorflow.errors import InputError


def open_table(source: Any, table_format: TableFormat = DEFAULT_FORMAT) -> TableSource:
    """Return a source of any kind; no rows are read.

    Parameters
    ----------
    source : path, DataFrame, Arrow table or stream
        A file or a folder of files; or a list of files; a pandas DataFrame; a pyarrow Table, RecordBatch or
        RecordBatchReader, or what offers an Arrow stream (polars).
    table_format : TableFormat
        How text is laid out, as far as it is said, and what stands for missing entries.

    Raises
    ------
    InputError
        When it is something else, or cannot be read.
    """
    opened = _open_source(source, table_format)
    if not table_format.na_values:
        return opened

    def read(labels: Sequence[str], numbers: Sequence[str]) -> Iterator[Piece]:
        return (without_codes(piece, table_format.na_values) for piece in opened.read(labels, numbers))

    return replace(opened, read=read)


def _open_source(source: Any, table_format: TableFormat) -> TableSource:
    module = type(source).__module__.partition(".")[0]
    if isinstance(source, str | os.PathLike):
        return open_files(listed_files(Path(source)), table_format)
    if isinstance(source, list | tuple) and source and all(isinstance(x, str | os.PathLike) for x in source):
        return open_files([Path(path) for path in source], table_format)
    if module == "pandas" and hasattr(source, "columns"):
        return _frame(source)
    if hasattr(source, "__arrow_c_stream__"):
        return _stream(source)
    raise InputError(
        "source",
        f"an object of type {type(source).__name__}",
        "a path or a list of paths, a pandas DataFrame, or a pyarrow Table or RecordBatchReader",
        "Convert it to one of them.",
    )


def _stream(source: Any) -> TableSource:
    import pyarrow as pa

    reader = source if isinstance(source, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(source)
    schema = reader.schema

    def read(labels: Sequence[str], numbers: Sequence[str]) -> Iterator[Piece]:
        with closing(reader):
            yield from arrow_pieces(reader, "the table")

    return TableSource(tuple(schema.names), read, has_declared_order(schema))


def _frame(frame: Any) -> TableSource:
    import pandas as pd

    names = tuple(str(name) for name in frame.columns)
    where = {name: position for position, name in enumerate(names)}

    def read(labels: Sequence[str], numbers: Sequence[str]) -> Iterator[Piece]:
        for start in range(0, len(frame), PIECE_ROWS):
            part = frame.iloc[start : start + PIECE_ROWS]
            yield _frame_piece(part, where, start)

    return TableSource(
        names, read, lambda name: isinstance(frame.dtypes.iloc[where[name]], pd.CategoricalDtype)
    )


def _frame_piece(part: Any, where: dict[str, int], start: int) -> Piece:
    import pandas as pd

    def labels(name: str) -> tuple[NDArray[Any], list[Any]]:
        column = part.iloc[:, where[name]]
        if isinstance(column.dtype, pd.CategoricalDtype):
            return column.cat.codes.to_numpy(), list(column.cat.categories)
        codes, uniques = pd.factorize(column)
        return codes, list(uniques)

    def numbers(name: str) -> NDArray[np.float64]:
        column = part.iloc[:, where[name]]
        try:
            if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind in "mMc":
                raise ValueError(f"it holds {column.dtype}")
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError) as error:
            raise not_numeric_error(name, "the table", error) from error

    return Piece("the table", start, len(part), labels, numbers)
