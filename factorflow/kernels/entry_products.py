"""Products of a compressed sparse matrix, and of its transpose, with thin matrices.

A row of the thin matrix is a few vectors of the processor (`factorflow.kernels.vector_rows`): an entry takes
one load of its number and column and, for each vector, a load and a fused multiplication; transposed also a
store. Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from factorflow.kernels.compile import jit, read_only_view
from factorflow.kernels.vector_rows import (
    COMPILED,
    CONTRACT,
    PART,
    add_to,
    for_entries,
    load,
    pointers,
    repeat,
)

__all__ = ["multiply", "multiply_transposed"]

Array = Any
WIDEST = 32
"""Columns that are multiplied at once: as many numbers as stay in registers."""


def _sum_row(
    typing: Any, lanes: Any, columns: Any, entries: Any, first: Any, last: Any, table: Any, out: Any, n: Any
) -> Any:
    """Set row n of ``out`` to the sum of rows of ``table`` times entries."""
    width = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, columns_, entries_, first_, last_, table_, out_, n_ = args
        vector = ir.VectorType(context.get_value_type(entries.dtype), PART)
        sums = [cgutils.alloca_once(builder, vector) for _ in range(width // PART)]
        for sum_ in sums:
            builder.store(ir.Constant(vector, None), sum_)
        with for_entries(context, builder, (columns, columns_), (entries, entries_), (first_, last_)) as one:
            factor = repeat(builder, one.number)
            for sum_, place in zip(
                sums, pointers(context, builder, table, table_, one.column, width), strict=True
            ):
                product = builder.fmul(factor, load(builder, place), flags=CONTRACT)
                builder.store(builder.fadd(builder.load(sum_), product, flags=CONTRACT), sum_)
        for sum_, place in zip(sums, pointers(context, builder, out, out_, n_, width), strict=True):
            builder.store(builder.load(sum_), place, align=4)
        return context.get_dummy_value()

    return types.void(lanes, columns, entries, types.int64, types.int64, table, out, types.int64), generate


def _scatter_row(
    typing: Any, lanes: Any, columns: Any, entries: Any, first: Any, last: Any, table: Any, n: Any, out: Any
) -> Any:
    """Add row n of ``table`` times entries to rows of ``out``."""
    width = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, columns_, entries_, first_, last_, table_, n_, out_ = args
        row = [load(builder, place) for place in pointers(context, builder, table, table_, n_, width)]
        with for_entries(context, builder, (columns, columns_), (entries, entries_), (first_, last_)) as one:
            factor = repeat(builder, one.number)
            for values, place in zip(
                row, pointers(context, builder, out, out_, one.column, width), strict=True
            ):
                add_to(builder, place, factor, values)
        return context.get_dummy_value()

    return types.void(lanes, columns, entries, types.int64, types.int64, table, types.int64, out), generate


_sum: Any = intrinsic(_sum_row)
_scatter: Any = intrinsic(_scatter_row)


def _multiply(lanes, start, columns, entries, table, out):  # type: ignore[no-untyped-def]
    """Set ``out`` to S table."""
    for n in range(start.size - 1):
        _sum(lanes, columns, entries, np.int64(start[n]), np.int64(start[n + 1]), table, out, n)


def _multiply_transposed(lanes, start, columns, entries, table, out):  # type: ignore[no-untyped-def]
    """Add S' table to ``out``."""
    for n in range(start.size - 1):
        _scatter(lanes, columns, entries, np.int64(start[n]), np.int64(start[n + 1]), table, n, out)


_rows: Any = jit(_multiply, cache=True, nogil=True)
_columns: Any = jit(_multiply_transposed, cache=True, nogil=True)


def multiply(
    start: Integer[np.ndarray, " B1"],
    columns: Integer[np.ndarray, " M"],
    entries: Float[np.ndarray, " M"],
    matrix: Float[np.ndarray, "D C"],
) -> Float[np.ndarray, "B C"]:
    """Return S M of a matrix S of compressed sparse rows, in the higher precision of the two."""
    return _by_parts(_rows, (start, columns, entries), matrix, start.size - 1)


def multiply_transposed(
    start: Integer[np.ndarray, " B1"],
    columns: Integer[np.ndarray, " M"],
    entries: Float[np.ndarray, " M"],
    matrix: Float[np.ndarray, "B C"],
    n_columns: int,
) -> Float[np.ndarray, "D C"]:
    """Return S' M, as `multiply` does."""
    return _by_parts(_columns, (start, columns, entries), matrix, n_columns)


def _by_parts(loop: Any, sparse: tuple[Array, ...], matrix: Array, n_rows: int) -> Float[np.ndarray, "_ C"]:
    """Return a product, `WIDEST` columns of it at once."""
    start, columns, entries = sparse
    n_columns, dtype = matrix.shape[1], np.result_type(entries, matrix)
    out, arrays = np.empty((n_rows, n_columns), dtype), (start, columns, entries.astype(dtype, copy=False))
    for first in range(0, n_columns, WIDEST):
        part = matrix[:, first : first + WIDEST]
        width = -(-part.shape[1] // COMPILED) * COMPILED
        table, sums = np.zeros((len(matrix), width), dtype), np.zeros((n_rows, width), dtype)
        table[:, : part.shape[1]] = part
        loop((0,) * width, *map(read_only_view, (*arrays, table)), sums)
        if n_columns <= WIDEST:
            return sums[:, :n_columns]
        out[:, first : first + WIDEST] = sums[:, : part.shape[1]]
    return out
