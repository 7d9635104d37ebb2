"""Sources of long tables, read in pieces: text, Parquet and Arrow files, folders of them, frames, streams.

Only the columns that are asked for are read. A piece hands out a column as labels (codes among those that
occur in it) or as numbers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.tables import TextTable
from factorflow.errors import InputError

__all__ = ["Piece", "TableSource", "open_table"]

PIECE_ROWS = 2**18
"""Rows of a piece at most, where they can be counted beforehand."""

TEXT_BYTES = 2**24
"""Text parsed at a time."""

MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL"]
"""What stands for a missing entry in a text file."""

_TEXT = (".csv", ".tsv", ".txt", ".tab")
_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")
_ENDINGS = ".csv, .tsv, .txt (also .gz, .bz2), .parquet, .arrow, .feather"


@dataclass(frozen=True)
class Piece:
    """Some rows that follow each other.

    Parameters
    ----------
    where : str
        The file they are in, or "the table".
    first : int
        Number of the first of them in it, from 0.
    n_rows : int
        How many there are (B).
    labels : callable
        Column -> the code of each row (B,), -1 where it is missing, and the labels that codes stand for.
    numbers : callable
        Column -> (B,) float64, NaN where missing.
    """

    where: str
    first: int
    n_rows: int
    labels: Callable[[str], tuple[NDArray[Any], list[Any]]]
    numbers: Callable[[str], NDArray[np.float64]]


@dataclass(frozen=True)
class TableSource:
    """A table wherever it lies.

    Parameters
    ----------
    columns : tuple of str
        Names of its columns.
    read : callable
        (columns of labels, columns of numbers) -> pieces, in order.
    ordered : callable
        Column -> whether its labels bring an order of their own.
    """

    columns: tuple[str, ...]
    read: Callable[[Sequence[str], Sequence[str]], Iterator[Piece]]
    ordered: Callable[[str], bool]

    def check(self, wanted: Sequence[str]) -> None:
        """Refuse columns that are not there, or there twice."""
        absent = [name for name in wanted if name not in self.columns]
        if absent:
            raise InputError(
                "formula",
                ", ".join(absent),
                f"columns among {', '.join(self.columns[:20])}{', ...' if len(self.columns) > 20 else ''}",
                "Check the spelling; names with spaces or signs stand in backticks.",
            )
        twice = [name for name in wanted if self.columns.count(name) > 1]
        if twice:
            raise InputError("columns", ", ".join(twice), "every name once", "Rename one of them.")


def open_table(source: Any) -> TableSource:
    """Return a source of any kind; no rows are read.

    Parameters
    ----------
    source : path, DataFrame, Arrow table or stream
        A file or a folder of files; or a list of files; a pandas DataFrame; a pyarrow Table, RecordBatch or
        RecordBatchReader, or what offers an Arrow stream (polars).

    Raises
    ------
    InputError
        When it is something else, or cannot be read.
    """
    module = type(source).__module__.partition(".")[0]
    if isinstance(source, str | os.PathLike):
        return _files(_listed(Path(source)))
    if isinstance(source, list | tuple) and source:
        return _files([Path(path) for path in source])
    if module == "pandas" and hasattr(source, "columns"):
        return _frame(source)
    if hasattr(source, "__arrow_c_stream__"):
        return _stream(source)
    raise InputError(
        "source",
        f"an object of type {type(source).__name__}",
        "a path, a pandas DataFrame, or a pyarrow Table or RecordBatchReader",
        "Convert it to one of them.",
    )


# Files


def _listed(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError("source", str(path), "a file or folder that exists", "Check the path.")
    if not path.is_dir():
        return [path]
    known = (*_TEXT, *_PARQUET, *_ARROW)
    files = sorted(p for p in path.rglob("*") if _ending(p) in known and not p.name.startswith((".", "_")))
    if not files:
        raise InputError("source", str(path), f"a folder with tables ({_ENDINGS})", "Check the path.")
    return files


def _ending(path: Path) -> str:
    zipped = path.suffix.lower() in (".gz", ".bz2")
    return (path.with_suffix("") if zipped else path).suffix.lower()


def _files(paths: list[Path]) -> TableSource:
    sources = [_file(path) for path in paths]
    first = sources[0]

    def read(labels: Sequence[str], numbers: Sequence[str]) -> Iterator[Piece]:
        for path, source in zip(paths, sources, strict=True):
            absent = [name for name in (*labels, *numbers) if name not in source.columns]
            if absent:
                raise InputError(
                    f"columns of {path}",
                    f"no {', '.join(absent)}",
                    f"the columns of {paths[0]}",
                    "Tables of one dataset have the same columns.",
                )
            yield from source.read(labels, numbers)

    return TableSource(first.columns, read, lambda name: all(source.ordered(name) for source in sources))


def _file(path: Path) -> TableSource:
    import pyarrow as pa

    ending = _ending(path)
    try:
        if ending in _PARQUET:
            return _parquet(path)
        if ending in _ARROW:
            return _arrow_file(path)
        if ending in _TEXT:
            return _text(path)
    except (pa.ArrowInvalid, UnicodeDecodeError, EOFError) as error:
        raise InputError(f"file {path}", str(error), "a file that can be read", "Write it again.") from error
    raise InputError("source", str(path), f"a file of a known kind: {_ENDINGS}", "Convert it.")


def _text(path: Path) -> TableSource:
    table = TextTable(path, one_column=True)

    def read(labels: Sequence[str], numbers: Sequence[str]) -> Iterator[Piece]:
        import pyarrow as pa
        from pyarrow import csv

        kinds = {name: pa.dictionary(pa.int32(), pa.string()) for name in labels}
        options = {
            "read_options": csv.ReadOptions(column_names=table.columns, skip_rows=1, block_size=TEXT_BYTES),
            "parse_options": csv.ParseOptions(delimiter=table.separator, newlines_in_values=True),
            "convert_options": csv.ConvertOptions(
                include_columns=[*labels, *numbers],
                column_types=kinds | {name: pa.float64() for name in numbers},
                null_values=MISSING,
                strings_can_be_null=True,
            ),
        }
        try:
            with csv.open_csv(path, **options) as reader:
                yield from _pieces(reader, str(path))
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            if "Empty CSV" in str(error):
                return
            raise _unreadable(path, table.columns, error) from error

    return TableSource(tuple(table.columns), read, lambda _: False)


def _unreadable(path: Path, columns: Sequence[str], error: Exception) -> InputError:
    """Return an error that names the column which is no number, where that is what is wrong."""
    found = re.search(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", str(error).splitlines()[0])
    if found is None:
        return InputError(f"file {path}", str(error), "a text table", "Correct the line.")
    return InputError(
        f"column {columns[int(found.group(1))]!r} of {path}",
        found.group(2),
        "a number, or nothing where it is missing",
        "Correct it.",
    )


def _parquet(path: Path) -> TableSource:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow

    def read(labels: Sequence[str], numbers: Sequence[str]) -> Iterator[Piece]:
        with pq.ParquetFile(path, read_dictionary=list(labels)) as opened:
            batches = opened.iter_batches(PIECE_ROWS, columns=[*labels, *numbers])
            yield from _pieces(batches, str(path))

    return TableSource(tuple(schema.names), read, _declared(schema))


def _arrow_file(path: Path) -> TableSource:
    import pyarrow as pa

    def opened(stream: Any) -> Any:
        try:
            return pa.ipc.open_file(stream)
        except pa.ArrowInvalid:
            stream.seek(0)
            return pa.ipc.open_stream(stream)

    def batches() -> Iterator[Any]:
        with pa.memory_map(str(path)) as stream, opened(stream) as reader:
            if hasattr(reader, "num_record_batches"):
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                yield from reader

    with pa.memory_map(str(path)) as stream, opened(stream) as reader:
        schema = reader.schema
    return TableSource(
        tuple(schema.names), lambda labels, numbers: _pieces(batches(), str(path)), _declared(schema)
    )


# In memory


def _stream(source: Any) -> TableSource:
    import pyarrow as pa

    reader = source if isinstance(source, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(source)
    schema = reader.schema

    def read(labels: Sequence[str], numbers: Sequence[str]) -> Iterator[Piece]:
        with closing(reader):
            yield from _pieces(reader, "the table")

    return TableSource(tuple(schema.names), read, _declared(schema))


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
        codes, found = pd.factorize(column)
        return codes, list(found)

    def numbers(name: str) -> NDArray[np.float64]:
        column = part.iloc[:, where[name]]
        try:
            if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind in "mM":
                raise ValueError(f"it holds {column.dtype}")
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError) as error:
            raise _no_numbers(name, "the table", error) from error

    return Piece("the table", start, len(part), labels, numbers)


# Arrow


def _declared(schema: Any) -> Callable[[str], bool]:
    import pyarrow as pa

    return lambda name: pa.types.is_dictionary(schema.field(name).type)


def _pieces(batches: Any, where: str) -> Iterator[Piece]:
    first = 0
    for batch in batches:
        parts = (batch.slice(start, PIECE_ROWS) for start in range(0, batch.num_rows, PIECE_ROWS))
        for part in parts if batch.num_rows > PIECE_ROWS else chain([batch]):
            if part.num_rows:
                yield _arrow_piece(part, where, first)
            first += part.num_rows


def _arrow_piece(batch: Any, where: str, first: int) -> Piece:
    import pyarrow as pa
    import pyarrow.compute as pc

    def labels(name: str) -> tuple[NDArray[Any], list[Any]]:
        column = batch.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        codes = pc.fill_null(column.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        return codes, column.dictionary.to_pylist()

    def numbers(name: str) -> NDArray[np.float64]:
        column = batch.column(name)
        kind = column.type
        try:
            if pa.types.is_boolean(kind):
                column = column.cast(pa.uint8())
            if not (pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or _is_number(kind)):
                raise ValueError(f"it holds {kind}")
            column = column.cast(pa.float64(), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise _no_numbers(name, where, error) from error
        return np.asarray(pc.fill_null(column, np.nan).to_numpy(zero_copy_only=False), np.float64)

    return Piece(where, first, batch.num_rows, labels, numbers)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _no_numbers(name: str, where: str, error: Exception) -> InputError:
    return InputError(
        f"column {name!r} of {where}", str(error), "numbers, missing ones left out", "Convert the column."
    )
