"""Compressed sparse matrices, in memory or in a file, read by rows and checked while they are read.

Libraries take the pointers and column numbers of such a matrix as they are: damaged ones give other numbers,
or read beyond the end of an array.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import warn
from factorflow.errors import InputError


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
    """

    data: Any
    indices: Any
    indptr: NDArray[Any]
    shape: tuple[int, int]
    where: str
    _warned: bool = field(default=False, init=False, repr=False)

    ndim = 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        dtype: np.dtype[Any] = np.dtype(self.data.dtype)
        return dtype

    @property
    def T(self) -> Any:
        """The transposed matrix, in memory: columns of rows on disk cannot be read alone."""
        return self[:].T

    def __getitem__(self, rows: slice) -> Any:
        from scipy.sparse import csr_array

        start, stop, _ = rows.indices(self.shape[0])
        pointers = self.indptr[start : max(start, stop) + 1]
        first, last = int(pointers[0]), int(pointers[-1])
        indices = np.asarray(self.indices[first:last])
        _check_indices(self.where, indices, self.shape[1], first)
        values = np.asarray(self.data[first:last])
        block = csr_array((values, indices, pointers - first), shape=(pointers.size - 1, self.shape[1]))
        if not block.has_canonical_format:
            self._sum(block, start)
        return block

    def _sum(self, block: Any, start: int) -> None:
        """Add up entries of one place, and say so the first time."""
        before = block.indptr.copy()
        block.sum_duplicates()
        lost = np.diff(before) - np.diff(block.indptr)
        if lost.any() and not self._warned:
            self._warned = True
            row = start + int(np.argmax(lost))
            warn(
                f"{self.where}: a column occurs several times in row {row} (counted from 0): "
                "the values of one place are added up"
            )


def from_scipy(value: Any, where: str) -> SparseRows:
    """Return a SciPy sparse matrix of any format by its rows.

    Raises
    ------
    InputError
        If its pointers or column numbers are damaged.
    """
    if value.format in ("csr", "csc"):
        n_stored = int(value.indptr[-1]) if value.indptr.size else 0  # arrays may be longer than is used
        if n_stored <= min(value.indices.size, value.data.size):
            parts = value.data[:n_stored], value.indices[:n_stored], value.indptr
        else:
            parts = value.data, value.indices, value.indptr
        return from_parts(*parts, value.shape, value.format, where)
    if value.format == "bsr":
        try:
            value.check_format(full_check=True)
        except ValueError as error:
            raise _damage_error(where, str(error), "a block matrix without gaps") from error
    rows = value.tocsr()
    if value.format == "coo" and rows.nnz < value.nnz:
        warn(f"{where}: {value.nnz - rows.nnz} entries of places that occur before are added up")
    return SparseRows(rows.data, rows.indices, rows.indptr, rows.shape, where)


def from_parts(data: Any, indices: Any, indptr: Any, shape: Any, form: str, where: str) -> SparseRows:
    """Return a matrix of the three arrays of its CSR or CSC form.

    Those of CSR stay where they are, and are checked when their rows are read; CSC is read into memory.

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
        return SparseRows(data, indices, pointers, size, where)
    from scipy.sparse import csc_array

    numbers = np.asarray(indices[:])
    _check_indices(where, numbers, size[0], 0)
    columns = csc_array((np.asarray(data[:]), numbers, pointers), shape=size)
    rows = columns.tocsr()  # entries of one place stay apart: they are met when rows are read
    return SparseRows(rows.data, rows.indices, rows.indptr, size, where)


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
