"""Rows of a compressed sparse matrix written into a dense one."""

from __future__ import annotations

from functools import cache
from typing import Any

from factorflow.kernels.compile import jit

Array = Any


def scatter_rows(row_nnz: Array, columns: Array, entries: Array, out: Array) -> None:
    """Write the entries of each row into a matrix, at their columns; the others are left as they are.

    Nothing is checked: every column must be one of the matrix, and the numbers of entries add up to theirs.

    Parameters
    ----------
    row_nnz : (B,) int array
        Entries of each row.
    columns, entries : (M,) arrays
        Where they are and what they are, row after row.
    out : (B, D) array
        Is changed.
    """
    _compiled()(row_nnz, columns, entries, out)


@cache
def _compiled() -> Any:
    return jit(_scatter_rows, cache=True, nogil=True)


def _scatter_rows(row_nnz, columns, entries, out):  # type: ignore[no-untyped-def]
    at = 0
    for row in range(row_nnz.size):
        for _ in range(row_nnz[row]):
            out[row, columns[at]] = entries[at]
            at += 1
