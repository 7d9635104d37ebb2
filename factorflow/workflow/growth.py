"""Text tables that grew at their end: their new rows are appended to the dataset that they became.

A file has grown if it begins with all that it held before, byte for byte, and that ended with a line.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorflow.errors import InputError
from factorflow.files import scratch_folder

if TYPE_CHECKING:
    from factorflow.data import Dataset

__all__ = ["append_growth", "contents", "text_tables"]

TEXT = frozenset({".csv", ".tsv", ".txt", ".tab"})
PIECE = 1 << 20

Contents = Mapping[str, Any]
"""By name of a file: its size and the sha256 (hex) of what is in it."""


def text_tables(source: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a source that is a text table or a folder of nothing but those; else none."""
    path = Path(source)
    if path.is_file():
        files = [path]
    else:
        files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    return files if all(file.is_file() and file.suffix.lower() in TEXT for file in files) else []


def contents(files: list[Path]) -> Contents:
    """Return what is in the files of a source."""
    return {file.name: [size := file.stat().st_size, _digest(file, size)] for file in files}


def append_growth(
    source: str | os.PathLike[str], before: Contents, dataset: Path, sample_column: str | None = None
) -> Dataset | None:
    """Append to a dataset what its source has grown by; do nothing and return None where it did more.

    Parameters
    ----------
    source : path
        A text table, or a folder with one for each view.
    before : mapping
        What `contents` returned of its files when the dataset was written.
    dataset : Path
        The dataset.
    sample_column : str, optional
        As for `factorflow.write_dataset`.
    """
    from factorflow.data.ingest.append import append_rows

    files = text_tables(source)
    if not files or {file.name for file in files} != set(before):
        return None
    if not all(_has_grown(file, *before[file.name]) for file in files):
        return None
    with scratch_folder(dataset, "grown") as folder:
        for file in files:
            _write_tail(file, before[file.name][0], folder / file.name)
        views = folder if Path(source).is_dir() else folder / files[0].name
        try:
            return append_rows(dataset, views, sample_column)
        except InputError:  # whatever it is, it is said of the whole source when that is ingested
            return None


def _has_grown(file: Path, size: int, digest: str) -> bool:
    if file.stat().st_size <= size or not size:
        return False
    with file.open("rb") as content:
        content.seek(size - 1)
        ended = content.read(1) == b"\n"
    return ended and _digest(file, size) == digest


def _digest(file: Path, size: int) -> str:
    """Return the sha256 (hex) of the first bytes of a file."""
    found = hashlib.sha256()
    with file.open("rb") as content:
        while size and (piece := content.read(min(PIECE, size))):
            found.update(piece)
            size -= len(piece)
    return found.hexdigest()


def _write_tail(file: Path, size: int, target: Path) -> None:
    """Write the first line of a file, and all behind some of its bytes."""
    with file.open("rb") as content, target.open("wb") as out:
        out.write(content.readline())
        content.seek(size)
        while piece := content.read(PIECE):
            out.write(piece)
