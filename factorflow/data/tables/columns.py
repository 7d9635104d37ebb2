"""Columns of a table on disk, read a slice at a time.

They are not mapped into memory: pages of a mapping count as memory of the process for as long as nobody else
needs them, and a table may be larger than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FileColumn:
    """A column in a file.

    Parameters
    ----------
    size : int
        Entries (N).
    first : int
        Byte of the file at which they begin.
    """

    path: Path
    dtype: np.dtype[Any]
    size: int
    first: int = 0

    @classmethod
    def whole(cls, path: Path, dtype: np.dtype[Any]) -> FileColumn:
        """Return the column that a file is."""
        return cls(path, dtype, path.stat().st_size // dtype.itemsize)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.size)
        offset = self.first + start * self.dtype.itemsize
        return np.fromfile(self.path, self.dtype, max(0, stop - start), offset=offset)


def append(out: BinaryIO, array: NDArray[Any]) -> None:
    """Write an array at the end of a file; `numpy.ndarray.tofile` does not say when a disk is full."""
    out.write(np.ascontiguousarray(array).view(np.uint8).data)  # longdouble in records has no buffer


def write_columns(columns: Mapping[str, NDArray[Any]], path: Path) -> dict[str, FileColumn]:
    """Write columns of one length into one file, and return them there."""
    files, first = {}, 0
    with path.open("wb") as out:
        for name, array in columns.items():
            append(out, array)
            files[name] = FileColumn(path, array.dtype, array.size, first)
            first += array.nbytes
    return files
