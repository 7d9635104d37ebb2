"""Files of tables, and folders of them: text, Parquet, Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from factorflow.data.ingest.checks import join_names, readable, warn
from factorflow.data.ingest.dialect import DEFAULT_FORMAT, TEXT, TableFormat
from factorflow.data.ingest.missing import MISSING_TEXTS
from factorflow.data.ingest.text import TextTable
from factorflow.data.ingest.text_files import table_ending
from factorflow.data.tables.pieces import PIECE_ROWS, Piece, TableSource, arrow_pieces, has_declared_order
from factorflow.errors import InputError
from factorflow.storage.location import source_not_found

_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")
_ENDINGS = ".csv, .tsv, .txt (also .gz, .bz2, .xz, .zip, .zst), .parquet, .arrow, .feather"


def listed_files(path: Path) -> list[Path]:
    """Return the tables at a path: itself, or those in the folder, sorted by path."""
    if not path.exists():
        raise source_not_found(path, "source")
    if not path.is_dir():
        return [path]
    endings = (*TEXT, *_PARQUET, *_ARROW)
    files = sorted(
        p for p in path.rglob("*") if table_ending(p) in endings and not p.name.startswith((".", "_"))
    )
    if not files:
        raise InputError("source", str(path), f"a folder with tables ({_ENDINGS})", "Check the path.")
    return files


def open_files(paths: list[Path], table_format: TableFormat = DEFAULT_FORMAT) -> TableSource:
    """Return files with the same columns as one source; headers and schemas are read."""
    sources = [_file(path, table_format) for path in paths]
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
            with readable(f"file {path}"):
                yield from source.read(labels, numbers)

    return TableSource(first.columns, read, lambda name: all(source.ordered(name) for source in sources))


def _file(path: Path, table_format: TableFormat) -> TableSource:
    ending = table_ending(path)
    with readable(f"file {path}"):
        if ending in _PARQUET:
            return _parquet(path)
        if ending in _ARROW:
            return _arrow_file(path)
        if ending in TEXT:
            return _text(path, table_format)
    raise InputError("source", str(path), f"a file of a known kind: {_ENDINGS}", "Convert it.")


def _text(path: Path, table_format: TableFormat) -> TableSource:
    table = TextTable(path, table_format, one_column=True)
    where = {name: place for place, name in enumerate(table.columns)}

    def read(labels: Sequence[str], numbers: Sequence[str]) -> Iterator[Piece]:
        batches = table.batches(
            [where[name] for name in labels], [where[name] for name in numbers], labels=True
        )
        odd = dict[str, set[str]]()
        renamed = (batch.rename_columns([*labels, *numbers]) for batch in batches)
        for piece in arrow_pieces(renamed, str(path)):
            yield replace(piece, labels=partial(_without_missing, piece, odd))
        if odd and not table.dialect.row_names:  # R writes NA where a label is missing
            words = sorted(set().union(*odd.values()))
            warn(
                f"{path}: {join_names(words)} in columns of labels ({join_names(list(odd), 3)}) is taken as "
                "missing; where it is a level, write another word"
            )

    return TableSource(tuple(table.columns), read, lambda _: False)


def _without_missing(piece: Piece, odd: dict[str, set[str]], name: str) -> tuple[NDArray[Any], list[Any]]:
    """Return the labels of a piece of text without blanks around them; None is a missing one."""
    codes, labels = piece.labels(name)
    stripped = [label.strip() for label in labels]
    if words := {label for label in stripped if label in MISSING_TEXTS and label}:
        odd.setdefault(name, set()).update(words)
    return codes, [None if label in MISSING_TEXTS else label for label in stripped]


def _parquet(path: Path) -> TableSource:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow

    def read(labels: Sequence[str], numbers: Sequence[str]) -> Iterator[Piece]:
        with pq.ParquetFile(path, read_dictionary=list(labels)) as opened:
            batches = opened.iter_batches(PIECE_ROWS, columns=[*labels, *numbers])
            yield from arrow_pieces(batches, str(path))

    return TableSource(tuple(schema.names), read, has_declared_order(schema))


def _arrow_file(path: Path) -> TableSource:
    import pyarrow as pa

    def open_arrow(stream: Any) -> Any:
        try:
            return pa.ipc.open_file(stream)
        except pa.ArrowInvalid:
            stream.seek(0)
            return pa.ipc.open_stream(stream)

    def batches() -> Iterator[Any]:
        with pa.memory_map(str(path)) as stream, open_arrow(stream) as reader:
            if hasattr(reader, "num_record_batches"):
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                yield from reader

    with pa.memory_map(str(path)) as stream, open_arrow(stream) as reader:
        schema = reader.schema
    return TableSource(
        tuple(schema.names),
        lambda labels, numbers: arrow_pieces(batches(), str(path)),
        has_declared_order(schema),
    )
