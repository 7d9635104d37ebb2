"""Rows that wait on the disk between two passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowFile"]

TYPE = np.dtype(np.float32)


class RowFile:
    """Rows of float32 in a file, written in any order and read a slice at a time.

    Not mapped into memory: pages of a mapping count as memory of the process.

    Parameters
    ----------
    path : Path
        The file; made anew.
    n_rows, width : int
        Shape (N, P).
    """

    def __init__(self, path: Path, n_rows: int, width: int) -> None:
        self.n_rows, self.width = n_rows, width
        self._file = path.open("w+b")
        self._file.truncate(n_rows * width * TYPE.itemsize)

    def __setitem__(self, rows: slice | Sequence[int], values: NDArray[np.float32]) -> None:
        """Write consecutive rows, or one row at each of some places."""
        values = np.ascontiguousarray(values, TYPE)
        if isinstance(rows, slice):
            self._put(rows.indices(self.n_rows)[0], values)
            return
        for row, value in zip(rows, values, strict=True):
            self._put(row, value)

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        """Return consecutive rows, (n, P)."""
        start, stop, _ = rows.indices(self.n_rows)
        self._file.flush()
        self._file.seek(start * self.width * TYPE.itemsize)
        values = np.fromfile(self._file, TYPE, max(0, stop - start) * self.width)
        return values.reshape(-1, self.width)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start`` to ``stop``, (stop - start, P)."""
        return self[start:stop]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put(self, row: int, values: NDArray[np.float32]) -> None:
        self._file.seek(row * self.width * TYPE.itemsize)
        self._file.write(values.data)
