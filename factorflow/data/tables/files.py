"""Files of tables, and folders of them: text, Parquet, Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from factorflow.data.ingest.tables import TextTable
from factorflow.data.tables.pieces import PIECE_ROWS, Piece, TableSource, arrow_pieces, declared
from factorflow.disk import no_source
from factorflow.errors import InputError

__all__ = ["listed_files", "open_files"]

TEXT_BYTES = 2**24
"""Text parsed at a time."""

MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL"]
"""What stands for a missing entry in a text file."""

_TEXT = (".csv", ".tsv", ".txt", ".tab")
_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")
_ENDINGS = ".csv, .tsv, .txt (also .gz, .bz2), .parquet, .arrow, .feather"


def listed_files(path: Path) -> list[Path]:
    """Return the tables at a path: itself, or those in the folder, sorted by path."""
    if not path.exists():
        raise no_source(path, "source")
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


def open_files(paths: list[Path]) -> TableSource:
    """Return files with the same columns as one source; headers and schemas are read."""
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
                yield from arrow_pieces(reader, str(path))
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
        value[1] if (value := re.search(r"invalid value '(.*)'", found[2])) else found[2],
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
            yield from arrow_pieces(batches, str(path))

    return TableSource(tuple(schema.names), read, declared(schema))


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
        tuple(schema.names), lambda labels, numbers: arrow_pieces(batches(), str(path)), declared(schema)
    )
