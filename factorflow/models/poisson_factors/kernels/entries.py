"""Loops over the entries of a block that are not zero, and over those that are missing.

Rows of tables are vectors of single precision (`factorflow.kernels.vector_rows`). Importing this module
imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from factorflow.kernels.compile import jit
from factorflow.kernels.vector_rows import add_to, dot, load, pointers, repeat
from factorflow.kernels.vectors import compile_loop, exp

Array = Any

LOWEST = -40.0
"""Logarithms that lie further than this below the largest of their row are raised to it: products of two such
numbers are still numbers of single precision."""

_SMALL, _LARGE = 1e-200, 1e200


def _visit(
    typing: Any, lanes: Any, scores: Any, n: Any, loadings: Any, d: Any, sums: Any, own: Any, y: Any
) -> Any:
    """Return R = scores[n] . loadings[d]; add y / R loadings[d] to own[n], y / R scores[n] to sums[d]."""
    width = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, scores_, n_, loadings_, d_, sums_, own_, y_ = args

        def places(which: int, table: Any, row: Any) -> list[Any]:
            return pointers(context, builder, signature.args[which], table, row, width)

        row = [load(builder, place) for place in places(1, scores_, n_)]
        column = [load(builder, place) for place in places(3, loadings_, d_)]
        rate = dot(builder, row, column)
        each = repeat(builder, builder.fdiv(y_, rate))
        for place, values in zip(places(6, own_, n_), column, strict=True):
            add_to(builder, place, each, values)
        for place, values in zip(places(5, sums_, d_), row, strict=True):
            add_to(builder, place, each, values)
        return rate

    return types.float32(
        lanes, scores, types.int64, loadings, types.int64, sums, own, types.float32
    ), generate


visit: Any = intrinsic(_visit)


def _visit_entries(lanes, row_counts, columns, entries, scores, loadings, own, sums):  # type: ignore[no-untyped-def]
    """Return sum y log R over the entries of a block; add to own and sums as `_visit` says.

    The logarithm is taken of products where y = 1, which most entries have.
    """
    total, product, at = 0.0, 1.0, 0
    for n in range(row_counts.size):
        for _ in range(row_counts[n]):
            y = np.float32(entries[at])
            rate: Any = visit(lanes, scores, n, loadings, np.int64(columns[at]), sums, own, y)
            if y == np.float32(1.0):
                product *= rate
                if product < _SMALL or product > _LARGE:
                    total += np.log(product)
                    product = 1.0
            else:
                total += y * np.log(np.float64(rate))
            at += 1
    return total + np.log(product)


visit_entries: Any = jit(_visit_entries, cache=True, nogil=True, error_model="numpy", fastmath={"contract"})


@compile_loop
def write_table(logs: Array, lowest: float, table: Array, top: Array) -> None:
    """Write exp of logarithms (N, K), less the largest of each row, into a table (N, W); and the largest."""
    for n in range(logs.shape[0]):
        largest = logs[n, 0]
        for k in range(1, logs.shape[1]):
            largest = max(largest, logs[n, k])
        top[n] = largest
        for k in range(logs.shape[1]):
            table[n, k] = exp(max(logs[n, k] - largest, lowest))


def _subtract_missing(rows, columns, codes, sizes, batches, loadings, rates):  # type: ignore[no-untyped-def]
    """Take s gamma_d beta_d of missing entries (H,) from the rates of their rows, (B, K)."""
    for i in range(rows.size):
        n, d = rows[i], columns[i]
        each = sizes[n] * batches[codes[n], d]
        for k in range(rates.shape[1]):
            rates[n, k] -= each * loadings[d, k]


def _add_missing(rows, columns, codes, sizes, scores, out):  # type: ignore[no-untyped-def]
    """Add s theta_n of missing entries (H,) to those of their batch and feature, (batches, D, K)."""
    for i in range(rows.size):
        n, d = rows[i], columns[i]
        for k in range(scores.shape[1]):
            out[codes[n], d, k] += sizes[n] * scores[n, k]


subtract_missing, add_missing = compile_loop(_subtract_missing), compile_loop(_add_missing)
