"""Growing tables: new rows at their end are appended to their dataset.

A text file has grown if it begins with all that it held before, byte for byte, and that ended with a line; a
Parquet file if its first row groups are those that it had, byte for byte. Of other kinds old rows could only
be compared value by value, which costs what reading them anew does.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorflow.errors import InputError
from factorflow.storage.location import Location
from factorflow.storage.publish import temporary_directory

if TYPE_CHECKING:
    from factorflow.data import Dataset

TEXT, PARQUET = frozenset({".csv", ".tsv", ".txt", ".tab"}), ".parquet"
PIECE = 1 << 20

Contents = Mapping[str, Any]
"""By name of a file: its size and the sha256 (hex) of what is in it; of Parquet a third item: for each row
group its rows and the sha256 of its bytes."""


def growing_tables(source: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a source that is a text or Parquet table, or a folder of nothing but those."""
    path = Path(source)
    if path.is_file():
        files = [path]
    else:
        files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    return files if all(file.is_file() and file.suffix.lower() in {*TEXT, PARQUET} for file in files) else []


def contents(files: list[Path]) -> Contents:
    """Return the contents of the files of a source: sizes and digests."""
    rows_by_file: dict[str, list[Any]] = {}
    for file in files:
        size = file.stat().st_size
        rows_by_file[file.name] = [size, _digest(file, 0, size)]
        if _is_parquet(file):
            rows_by_file[file.name].append(_groups(file))
    return rows_by_file


def append_growth(
    source: str | os.PathLike[str],
    before: Contents,
    dataset: Location,
    index_col: str | int | bool | None = None,
    out: str | os.PathLike[str] | None = None,
) -> tuple[Dataset | None, str]:
    """Append the new rows of a source to its dataset; if anything else changed, return the reason.

    Parameters
    ----------
    source : path
        A table, or a folder with one for each view.
    before : mapping
        What `contents` returned of its files when the dataset was written.
    index_col : str, int or False, optional
        As for `factorflow.write_dataset`.
    out : path, optional
        Where the new version goes; left out: in place of the dataset.

    Returns
    -------
    Dataset or None
    str
        Why nothing was appended.
    """
    from factorflow.data.ingest.append import append_rows

    files = growing_tables(source)
    if not files:
        return None, "only text and Parquet tables can be read from where they ended"
    if {file.name for file in files} != set(before):
        return None, f"the files are others: {', '.join(sorted({file.name for file in files} ^ set(before)))}"
    if changed := [file.name for file in files if not _is_appended(file, *before[file.name])]:
        return None, f"{', '.join(changed)} did more than grow at the end"
    with temporary_directory(dataset, "grown") as folder:
        for file in files:
            _write_tail(file, before[file.name], folder / file.name)
        views = folder if Path(source).is_dir() else folder / files[0].name
        try:
            return append_rows(str(dataset), views, index_col, out), ""
        except InputError as error:  # what is wrong, it is said of the whole source when that is ingested
            return None, f"the new rows do not fit: {error.parameter} = {error.value}"


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == PARQUET


def _is_appended(file: Path, size: int, digest: str, groups: list[Any] | None = None) -> bool:
    if groups is not None:
        now = _groups(file)
        return len(now) > len(groups) > 0 and now[: len(groups)] == groups
    if file.stat().st_size <= size or not size:
        return False
    with file.open("rb") as content:
        content.seek(size - 1)
        ended = content.read(1) == b"\n"
    return ended and _digest(file, 0, size) == digest


def _groups(file: Path) -> list[Any]:
    """Return rows and sha256 of each row group of a Parquet file; none of what cannot be read as one."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        parquet = pq.read_metadata(file)
    except (ArrowException, OSError):  # said when it is ingested
        return []
    groups = []
    for number in range(parquet.num_row_groups):
        group = parquet.row_group(number)
        columns = [group.column(i) for i in range(group.num_columns)]
        starts = [min(c.data_page_offset, c.dictionary_page_offset or c.data_page_offset) for c in columns]
        ends = [start + c.total_compressed_size for start, c in zip(starts, columns, strict=True)]
        start = min(starts, default=0)
        groups.append([group.num_rows, _digest(file, start, max(ends, default=0) - start)])
    return groups


def _digest(file: Path, start: int, size: int) -> str:
    """Return the sha256 (hex) of some bytes of a file."""
    hasher = hashlib.sha256()
    with file.open("rb") as content:
        content.seek(start)
        while size and (piece := content.read(min(PIECE, size))):
            hasher.update(piece)
            size -= len(piece)
    return hasher.hexdigest()


def _write_tail(file: Path, before: list[Any], target: Path) -> None:
    """Write the new rows of a file: text lines, or row groups."""
    if _is_parquet(file):
        import pyarrow.parquet as pq

        with pq.ParquetFile(file) as whole, pq.ParquetWriter(target, whole.schema_arrow) as out:
            for number in range(len(before[2]), whole.num_row_groups):
                out.write_table(whole.read_row_group(number))
        return
    with file.open("rb") as content, target.open("wb") as out:
        out.write(content.readline())
        content.seek(before[0])
        while piece := content.read(PIECE):
            out.write(piece)
