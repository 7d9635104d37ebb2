"""Loops over the entries of a block that are not zero, and over those that are missing.

Rows of tables are vectors of single precision (`factorflow.kernels.vector_rows`). Importing this module
imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from factorflow.kernels.compile import jit
from factorflow.kernels.vector_rows import add_to, dot, for_entries, load, pointers, repeat
from factorflow.kernels.vectors import compile_loop, exp, inner, log

LOWEST = -40.0
"""Logarithms that lie further than this below the largest of their row are raised to it: products of two such
numbers are still numbers of single precision."""


def _visit(
    typing: Any,
    lanes: Any,
    columns: Any,
    entries: Any,
    first: Any,
    last: Any,
    scores: Any,
    n: Any,
    loadings: Any,
    sums: Any,
    own: Any,
    rates: Any,
) -> Any:
    """Write R = scores[n] . loadings[d] of the entries y of a row, one after the other, to ``rates``.

    Set own[n] to sum_d y / R loadings[d], which stays in registers, and add y / R scores[n] to sums[d].
    """
    width = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, columns_, entries_, first_, last_, scores_, n_, loadings_, sums_, own_, rates_ = args

        def places(kind: Any, table: Any, row: Any) -> list[Any]:
            return pointers(context, builder, kind, table, row, width)

        row = [load(builder, place) for place in places(scores, scores_, n_)]
        totals = [cgutils.alloca_once(builder, row[0].type) for _ in row]
        for total in totals:
            builder.store(ir.Constant(row[0].type, None), total)
        written = context.make_array(rates)(context, builder, rates_).data
        with for_entries(context, builder, (columns, columns_), (entries, entries_), (first_, last_)) as one:
            column = [load(builder, place) for place in places(loadings, loadings_, one.column)]
            rate = dot(builder, row, column)
            builder.store(rate, builder.gep(written, [builder.sub(one.at, first_)]))
            y = context.cast(builder, one.number, entries.dtype, types.float32)
            each = repeat(builder, builder.fdiv(y, rate))
            for total, values in zip(totals, column, strict=True):
                add_to(builder, total, each, values)
            for place, values in zip(places(sums, sums_, one.column), row, strict=True):
                add_to(builder, place, each, values)
        for total, place in zip(totals, places(own, own_, n_), strict=True):
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    kinds = lanes, columns, entries, types.int64, types.int64, scores, types.int64, loadings, sums, own, rates
    return types.void(*kinds), generate


visit: Any = intrinsic(_visit)


@inner
def _log_sum(entries, rates):
    """Return sum y log R."""
    total = 0.0
    for i in range(entries.size):
        total += entries[i] * log(np.float64(rates[i]))
    return total


def _visit_entries(lanes, row_counts, columns, entries, scores, loadings, own, sums):
    """Return sum y log R over the entries of a block; set own and add to sums as `_visit` says."""
    rates, total, at = np.empty(loadings.shape[0], np.float32), 0.0, 0
    for n in range(row_counts.size):
        end = at + row_counts[n]
        visit(lanes, columns, entries, at, end, scores, n, loadings, sums, own, rates)
        total += _log_sum(entries[at:end], rates[: end - at])
        at = end
    return total


visit_entries: Any = jit(_visit_entries, cache=True, nogil=True, error_model="numpy", fastmath={"contract"})


@compile_loop
def write_table(logs, lowest, table, top):
    """Write exp of logarithms (N, K), less the largest of each row, into a table (N, W); and the largest."""
    for n in range(logs.shape[0]):
        largest = logs[n, 0]
        for k in range(1, logs.shape[1]):
            largest = max(largest, logs[n, k])
        top[n] = largest
        for k in range(logs.shape[1]):
            table[n, k] = exp(max(logs[n, k] - largest, lowest))


def _subtract_missing(rows, columns, codes, sizes, batches, loadings, rates):
    """Take s gamma_d beta_d of missing entries (H,) from the rates of their rows, (B, K)."""
    for i in range(rows.size):
        n, d = rows[i], columns[i]
        each = sizes[n] * batches[codes[n], d]
        for k in range(rates.shape[1]):
            rates[n, k] -= each * loadings[d, k]


def _add_missing(rows, columns, codes, sizes, scores, out):
    """Add s theta_n of missing entries (H,) to those of their batch and feature, (batches, D, K)."""
    for i in range(rows.size):
        n, d = rows[i], columns[i]
        for k in range(scores.shape[1]):
            out[codes[n], d, k] += sizes[n] * scores[n, k]


subtract_missing, add_missing = compile_loop(_subtract_missing), compile_loop(_add_missing)
