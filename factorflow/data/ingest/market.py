"""Matrices in Matrix Market format, as 10x Genomics writes them: read line after line, never whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from factorflow.data.ingest.checks import readable
from factorflow.data.ingest.sparse import Part, part_size, sort_rows
from factorflow.data.ingest.text_files import open_text
from factorflow.errors import InputError

_COLUMNS = {"row": np.int64, "column": np.int64, "value": np.float64}


def transposed_market(path: Path, spool: Path) -> Any:
    """Return the columns of a matrix as rows that are read by slicing.

    Parameters
    ----------
    path : Path
        The file, possibly compressed (.gz): features x samples.

    Raises
    ------
    InputError
        When it is no sparse matrix of real numbers, or damaged.
    """
    expected = "a matrix in Matrix Market format"
    with readable(f"file {path}", "Copy it again.", expected), open_text(path, "latin-1") as stream:
        fields = _header(stream, path)
        n_rows, n_columns, n_entries = _sizes(stream)
        parts = _parts(stream, fields, (n_rows, n_columns), n_entries)
        where = f"matrix of {path}"
        return sort_rows(parts, n_entries, (n_columns, n_rows), np.float64, where, spool)


def _header(stream: IO[str], path: Path) -> str:
    """Return what the numbers are: integer, real or pattern."""
    words = stream.readline().lower().split()
    if len(words) != 5 or words[0] not in ("%%matrixmarket", "%matrixmarket"):
        raise ValueError("no header of Matrix Market")
    _, _, layout, fields, symmetry = words
    if layout == "array":
        raise InputError(f"file {path}", "a dense matrix", "a sparse one", "Write it as such a matrix.")
    if fields not in ("integer", "real", "double", "pattern") or symmetry != "general":
        expected = "integer, real or pattern, general"
        raise InputError(f"file {path}", f"{fields} {symmetry}", expected, "Write it as such a matrix.")
    return fields


def _sizes(stream: IO[str]) -> tuple[int, int, int]:
    line = stream.readline()
    while line.startswith("%") or (line and not line.strip()):
        line = stream.readline()
    sizes = [int(word) for word in line.split()]
    if len(sizes) != 3:
        raise ValueError(f"sizes {line.strip()!r} instead of rows, columns and entries")
    return sizes[0], sizes[1], sizes[2]


def _parts(stream: IO[str], fields: str, shape: tuple[int, int], n_entries: int) -> Iterator[Part]:
    """Yield the entries of the transposed matrix."""
    import pandas as pd

    names = list(_COLUMNS)[: 2 if fields == "pattern" else 3]
    if n_entries == 0:
        return
    n_read = 0
    with pd.read_csv(
        stream,
        sep=r"\s+",
        header=None,
        names=names,
        dtype={name: _COLUMNS[name] for name in names},
        comment="%",
        keep_default_na=False,  # a line without its value is damaged, not one of a missing entry
        na_values=["nan", "NaN", "NA"],
        chunksize=part_size(n_entries),
    ) as chunks:
        for chunk in chunks:
            if not isinstance(chunk.index, pd.RangeIndex):  # pandas takes what is too much for labels
                raise ValueError(f"more than {len(names)} numbers in a line, of {fields} entries")
            rows, columns = (chunk[name].to_numpy() - 1 for name in ("row", "column"))
            for numbers, size, what in ((rows, shape[0], "row"), (columns, shape[1], "column")):
                if numbers.min() < 0 or numbers.max() >= size:
                    at = int(np.argmax((numbers < 0) | (numbers >= size)))
                    raise ValueError(
                        f"{what} index out of bounds: {numbers[at] + 1} of entry {n_read + at + 1}, of {size}"
                    )
            n_read += len(chunk)
            yield columns, rows, np.ones(len(chunk)) if fields == "pattern" else chunk["value"].to_numpy()
    if n_read != n_entries:
        how = "truncated" if n_read < n_entries else "too long"
        raise ValueError(f"{how}: {n_read} entries instead of {n_entries}")
