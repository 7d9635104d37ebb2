"""Compressed sparse matrices, in memory or in a file, read by rows and checked while they are read.

Libraries take the pointers and column numbers of such a matrix as they are: damaged ones give other numbers,
or read beyond the end of an array.

Where the entries of a row lie far apart, in the columns of an array on disk or the lines of a text, they are
read once, a part at a time, and each goes to the file of the run of rows that it belongs to. Such a file is
small enough to be sorted in memory when its rows are asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import warn
from factorflow.data.tables.columns import append
from factorflow.errors import InputError
from factorflow.storage.local import check_space

PART = 2**17
"""Entries of a part, and of a run of rows, at least: about 10 MB to sort (measured)."""

MOST_FILES = 512
"""Files at most: parts and runs of large matrices are larger instead."""

Part = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Rows, columns and values of some entries."""


@dataclass
class SparseRows:
    """Rows of a matrix in CSR form, read by slicing.

    Parameters
    ----------
    data, indices : array
        Values and their columns: NumPy, HDF5 or Zarr.
    indptr : (N + 1,) int array
        Where rows begin.
    shape : tuple of int
        (N, D).
    where : str
        What errors call it: the array and its file.
    first_row : int
        Number of the first row, for warnings.
    spool : Path or None
        Folder for what has to be sorted anew; None: that is done in memory.
    """

    data: Any
    indices: Any
    indptr: NDArray[Any]
    shape: tuple[int, int]
    where: str
    first_row: int = 0
    spool: Path | None = None
    warned: bool = field(default=False, init=False, repr=False)

    ndim = 2
    by_entries = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        dtype: np.dtype[Any] = np.dtype(self.data.dtype)
        return dtype

    @property
    def T(self) -> Any:
        """The transposed matrix."""
        if self.spool is None:
            return self[:].T
        shape = self.shape[1], self.shape[0]
        return SparseColumns(self.data, self.indices, self.indptr, shape, self.where, self.spool)

    def __getitem__(self, rows: slice) -> Any:
        from scipy.sparse import csr_array

        start, stop, _ = rows.indices(self.shape[0])
        pointers = self.indptr[start : max(start, stop) + 1]
        first, last = int(pointers[0]), int(pointers[-1])
        indices = np.asarray(self.indices[first:last])
        _check_indices(self.where, indices, self.shape[1], first)
        values = np.asarray(self.data[first:last])
        if values.dtype == np.float16:  # SciPy has no operations on it
            values = values.astype(np.float32)
        block = csr_array((values, indices, pointers - first), shape=(pointers.size - 1, self.shape[1]))
        if block.has_canonical_format:
            return block
        summed = _with_room(block)
        summed.sum_duplicates()
        lost = np.diff(block.indptr) - np.diff(summed.indptr)
        if lost.any() and not self.warned:
            self.warned = True
            row = self.first_row + start + int(np.argmax(lost))
            warn(
                f"{self.where}: a column occurs several times in row {row} (counted from 0): "
                "the values of one place are added up"
            )
        return summed


@dataclass
class SparseColumns:
    """Rows of a matrix in CSC form, read by slicing: its entries are sorted by rows when the first are.

    Parameters
    ----------
    data, indices : array
        Values and their rows: HDF5 or Zarr.
    indptr : (D + 1,) int array
        Where columns begin.
    shape : tuple of int
        (N, D).
    where : str
        What errors call it: the array and its file.
    """

    data: Any
    indices: Any
    indptr: NDArray[Any]
    shape: tuple[int, int]
    where: str
    spool: Path

    ndim = 2
    by_entries = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        dtype: np.dtype[Any] = np.dtype(self.data.dtype)
        return dtype

    @property
    def T(self) -> SparseRows:
        """The transposed matrix."""
        shape = self.shape[1], self.shape[0]
        return SparseRows(self.data, self.indices, self.indptr, shape, self.where, spool=self.spool)

    def __getitem__(self, rows: slice) -> Any:
        return self._rows[rows]

    @cached_property
    def _rows(self) -> BucketedRows:
        n_entries = int(self.indices.shape[0])
        return sort_rows(self._parts(), n_entries, self.shape, self.dtype, self.where, self.spool)

    def _parts(self) -> Iterator[Part]:
        """Yield rows, columns and values of the entries, so many at a time."""
        n_entries = int(self.indices.shape[0])
        size = part_size(n_entries)
        for first in range(0, n_entries, size):
            rows = np.asarray(self.indices[first : first + size])
            _check_indices(self.where, rows, self.shape[0], first)
            columns = np.searchsorted(self.indptr, np.arange(first, first + rows.size), side="right") - 1
            yield rows, columns, np.asarray(self.data[first : first + size])


def from_scipy(value: Any, where: str) -> SparseRows:
    """Return a SciPy sparse matrix of any format by its rows.

    Raises
    ------
    InputError
        If its pointers or column numbers are damaged.
    """
    if value.format in ("csr", "csc"):
        n_stored = int(value.indptr[-1]) if value.indptr.size else 0  # arrays may be longer than is used
        is_whole = n_stored <= min(value.indices.size, value.data.size)
        data, indices = ((part[:n_stored] if is_whole else part) for part in (value.data, value.indices))
        sparse_rows: SparseRows = from_parts(data, indices, value.indptr, value.shape, value.format, where)
        return sparse_rows
    if value.format == "bsr":
        try:
            value.check_format(full_check=True)
        except ValueError as error:
            raise _damage_error(where, str(error), "a block matrix without gaps") from error
    rows = value.tocsr()
    if value.format == "coo" and rows.nnz < value.nnz:
        rows = _with_room(value).tocsr()
        warn(f"{where}: {value.nnz - rows.nnz} entries of places that occur before are added up")
    return SparseRows(rows.data, rows.indices, rows.indptr, rows.shape, where)


def _with_room(matrix: Any) -> Any:
    """Return a copy in which sums of small integers do not overflow."""
    is_integer = matrix.dtype.kind in "iu" and np.can_cast(matrix.dtype, np.int64)
    return matrix.astype(np.int64 if is_integer else matrix.dtype, copy=True)


def from_parts(
    data: Any, indices: Any, indptr: Any, shape: Any, form: str, where: str, spool: Path | None = None
) -> Any:
    """Return a matrix of the three arrays of its CSR or CSC form.

    Those of CSR stay where they are, and are checked when their rows are read; the entries of CSC are sorted
    by rows into files, or in memory where there is no folder for these.

    Parameters
    ----------
    data, indices, indptr : array
        As SciPy calls them: NumPy, HDF5 or Zarr.
    shape : sequence of int
        (N, D).
    form : str
        "csr" or "csc".
    where : str
        What errors call it: the array and its file.

    Raises
    ------
    InputError
        If they do not fit each other.
    """
    size = int(shape[0]), int(shape[1])
    pointers = np.asarray(indptr[:])
    _check_pointers(where, pointers, size[0] if form == "csr" else size[1], indices, data)
    if form == "csr":
        return SparseRows(data, indices, pointers, size, where, spool=spool)
    if spool is not None:
        return SparseColumns(data, indices, pointers, size, where, spool)
    from scipy.sparse import csc_array

    numbers = np.asarray(indices[:])
    _check_indices(where, numbers, size[0], 0)
    columns = csc_array((np.asarray(data[:]), numbers, pointers), shape=size)
    rows = columns.tocsr()  # entries of one place stay apart: they are met when rows are read
    return SparseRows(rows.data, rows.indices, rows.indptr, size, where)


def part_size(n_entries: int) -> int:
    """Return how many entries of a matrix with so many are handled at once."""
    return max(PART, -(-n_entries // MOST_FILES))


def sort_rows(
    parts: Iterable[Part], n_entries: int, shape: tuple[int, int], dtype: Any, where: str, spool: Path
) -> BucketedRows:
    """Write the entries of a matrix into files by runs of rows, and return its rows.

    Parameters
    ----------
    parts : iterable of (rows, columns, values)
        Its entries, in any order; rows and columns that do not exist have been refused.
    shape : tuple of int
        (N, D).
    where : str
        What errors call it: the array and its file.
    """
    row, column = (np.int32 if size < 2**31 else np.int64 for size in shape)
    record = np.dtype([("row", row), ("column", column), ("value", dtype)])
    spool.mkdir(parents=True, exist_ok=True)
    check_space(spool, n_entries * record.itemsize)
    folder = Path(tempfile.mkdtemp(prefix="rows-", dir=spool))
    per_row = max(1.0, n_entries / max(1, shape[0]))
    bucketed = BucketedRows(folder, shape, max(1, int(part_size(n_entries) / per_row)), record, where)
    for rows, columns, values in parts:
        entries = np.empty(rows.size, record)
        entries["row"], entries["column"], entries["value"] = rows, columns, values
        bucketed.add(entries)
    return bucketed


@dataclass
class BucketedRows:
    """Rows of a matrix in files of runs of rows, read by slicing.

    Parameters
    ----------
    shape : tuple of int
        (N, D).
    record : dtype
        Of an entry: row, column, value.
    where : str
        What errors call it: the array and its file.
    """

    folder: Path
    shape: tuple[int, int]
    run: int
    record: np.dtype[Any]
    where: str
    _kept: tuple[int, SparseRows] | None = field(default=None, init=False, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)

    ndim = 2
    by_entries = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        dtype: np.dtype[Any] = self.record["value"]
        return dtype

    @property
    def T(self) -> Any:
        """The transposed matrix, in memory."""
        return self[:].T

    def add(self, entries: NDArray[Any]) -> None:
        """Append entries to the files of their rows."""
        numbers = entries["row"] // self.run
        order = np.argsort(numbers, kind="stable")
        entries, numbers = entries[order], numbers[order]
        edges = np.flatnonzero(np.diff(numbers)) + 1
        for part in np.split(entries, edges) if entries.size else ():
            with self._file(int(part["row"][0] // self.run)).open("ab") as file:
                append(file, part)

    def __getitem__(self, rows: slice) -> Any:
        from scipy.sparse import vstack

        start, stop, _ = rows.indices(self.shape[0])
        parts = []
        for number in range(start // self.run, -(-max(start + 1, stop) // self.run)):
            run, first = self._rows_of(number), number * self.run
            parts.append(run[max(start, first) - first : max(0, min(stop, first + self.run) - first)])
            self._warned |= run.warned
        return parts[0] if len(parts) == 1 else vstack(parts, format="csr")

    def _rows_of(self, number: int) -> SparseRows:
        """Return a run of rows, sorted."""
        if self._kept is None or self._kept[0] != number:
            self._kept = None  # two are never held at once
            self._kept = number, self._read(number)
        return self._kept[1]

    def _read(self, number: int) -> SparseRows:
        first, file = number * self.run, self._file(number)
        n_rows = min(self.run, self.shape[0] - first)
        entries = np.fromfile(file, self.record) if file.exists() else np.empty(0, self.record)
        entries = entries[np.lexsort((entries["column"], entries["row"]))]
        indptr = np.searchsorted(entries["row"], np.arange(first, first + n_rows + 1))
        values, columns = entries["value"].copy(), entries["column"].copy()
        rows = SparseRows(values, columns, indptr, (n_rows, self.shape[1]), self.where, first_row=first)
        rows.warned = self._warned
        return rows

    def _file(self, number: int) -> Path:
        return self.folder / str(number)


def _check_pointers(where: str, indptr: NDArray[Any], n: int, indices: Any, data: Any) -> None:
    n_stored = int(indices.shape[0])
    for name, array in (("indptr", indptr), ("indices", indices)):
        if np.dtype(array.dtype).kind not in "iu":
            raise _damage_error(where, f"{name} of type {array.dtype}", "integers")
    if int(data.shape[0]) != n_stored:
        raise _damage_error(where, f"{data.shape[0]} values and {n_stored} indices", "as many of both")
    if indptr.size != n + 1:
        raise _damage_error(where, f"indptr of length {indptr.size}", f"{n + 1}: one more than {n}")
    if indptr[0] != 0:
        raise _damage_error(where, f"indptr[0] = {indptr[0]}", "0")
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        at = int(np.argmax(falls))
        raise _damage_error(
            where, f"indptr[{at}] = {indptr[at]}, then {indptr[at + 1]}", "row pointers that never fall"
        )
    if int(indptr[-1]) != n_stored:
        raise _damage_error(where, f"indptr ends at {indptr[-1]}", f"{n_stored}, the number of indices")


def _check_indices(where: str, indices: NDArray[Any], n: int, first: int) -> None:
    """Refuse numbers of rows or columns that do not exist; ``first`` is the position of the first one."""
    if indices.size and (indices.max() >= n or indices.min() < 0):
        at = int(np.argmax((indices >= n) | (indices < 0)))
        raise _damage_error(where, f"indices[{first + at}] = {indices[at]}", f"0 to {n - 1}")


def _damage_error(where: str, value: str, expected: str) -> InputError:
    remedy = "The sparse matrix is damaged: write it again from where it came from."
    return InputError(where, value, expected, remedy)
