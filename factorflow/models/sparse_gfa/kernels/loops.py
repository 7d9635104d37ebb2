"""Compiled loops over a block's entries and over packed second moments.

Imported lazily by `products` (importing this module imports numba). All loops release the
interpreter lock and keep sums in float64, of data in float32 or float64. A symmetric (K, K) matrix is packed
by rows of its lower triangle: entry (k, j), j <= k, is at k (k + 1) / 2 + j.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.models.sparse_gfa.kernels.vectors import (
    GIVEN_1,
    GIVEN_2,
    WRITTEN_1,
    WRITTEN_2,
    WRITTEN_SINGLE_2,
    compiled,
    compiled_for,
)

__all__ = [
    "STRETCH_BYTES",
    "add_listed",
    "centre",
    "column_moments",
    "count_missing",
    "expected_pairs",
    "list_minority",
    "quadratic",
    "transpose_lists",
]

Array = Any

STRETCH_BYTES = 1 << 20
"""Of a table of second moments, what is gone through at a time: half of the cache of a core."""


@compiled
def column_moments(values: Array, lowest: Array, count: Array, total: Array, squares: Array) -> None:
    """Add the number, sum and sum of squares of the observed entries of each column."""
    for n in range(values.shape[0]):
        row = values[n]
        for d in range(row.size):
            observed = row[d] >= lowest
            y = np.float64(row[d]) if observed else 0.0
            count[d] += 1.0 if observed else 0.0
            total[d] += y
            squares[d] += y * y


@compiled
def centre(values: Array, lowest: Array, reference: Array, inverse_scale: Array, filled: Array) -> None:
    """Write (values - reference) * inverse_scale, 0 where missing."""
    for n in range(values.shape[0]):
        row, out = values[n], filled[n]
        for d in range(row.size):
            out[d] = (row[d] - reference[d]) * inverse_scale[d] if row[d] >= lowest else out.dtype.type(0)


@compiled
def count_missing(values: Array, lowest: Array, missing: Array) -> None:
    """Count the missing entries of each row."""
    for n in range(values.shape[0]):
        row = values[n]
        absent = 0
        for d in range(row.size):
            absent += 0 if row[d] >= lowest else 1
        missing[n] = absent


@compiled
def list_minority(values: Array, lowest: Array, missing: Array, start: Array, column: Array) -> None:
    """List, row by row, the missing entries, or the observed ones where those are fewer.

    ``start`` (B + 1,) delimits the rows in ``column``, which needs one place more than it has entries.
    """
    flag = np.empty(values.shape[1], np.uint8)
    p = np.uint64(0)
    for n in range(values.shape[0]):
        start[n] = p
        row = values[n]
        listed = 2 * missing[n] > row.size
        for d in range(row.size):
            flag[d] = (row[d] >= lowest) == listed
        for d in range(row.size):
            column[p] = d
            p += np.uint64(flag[d])
    start[values.shape[0]] = p


@compiled
def transpose_lists(start: Array, column: Array, by_column: Array, row: Array) -> None:
    """Turn lists of columns by row into lists of rows by column (``by_column`` (D + 1,) delimits them)."""
    n_columns = by_column.size - 1
    by_column[:] = 0
    for j in range(start[-1]):
        by_column[column[j] + 1] += 1
    for d in range(n_columns):
        by_column[d + 1] += by_column[d]
    for n in range(start.size - 1):
        for j in range(start[n], start[n + 1]):
            d = column[j]
            row[by_column[d]] = n
            by_column[d] += 1
    for d in range(n_columns, 0, -1):
        by_column[d] = by_column[d - 1]
    by_column[0] = 0


@compiled
def add_listed(
    table: Array, start: Array, index: Array, keep: Array, sign: Array, base: Array, out: Array
) -> None:
    """out_i = keep_i base + sign_i sum of the rows of ``table`` that the i-th list names, in rising order.

    The table is gone through in stretches that stay in a core's cache while all lists are.
    """
    accumulated = np.zeros(table.shape[1], table.dtype)
    position = start[:-1].copy()
    stretch = max(1, STRETCH_BYTES // (table.shape[1] * table.itemsize))
    for first in range(0, max(1, table.shape[0]), stretch):
        last = first + stretch
        for i in range(out.shape[0]):
            row, k, s = out[i], keep[i], sign[i]
            if first == 0:
                for q in range(base.size):
                    row[q] = k * base[q]
            accumulated[:] = 0
            at, end = position[i], start[i + 1]
            while at + 8 <= end and index[at + 7] < last:
                n = index[at : at + 8]
                a, b, c, d = table[n[0]], table[n[1]], table[n[2]], table[n[3]]
                e, f, g, h = table[n[4]], table[n[5]], table[n[6]], table[n[7]]
                for q in range(accumulated.size):
                    accumulated[q] += ((a[q] + b[q]) + (c[q] + d[q])) + ((e[q] + f[q]) + (g[q] + h[q]))
                at += 8
            while at < end and index[at] < last:
                a = table[index[at]]
                for q in range(accumulated.size):
                    accumulated[q] += a[q]
                at += 1
            position[i] = at
            for q in range(base.size):
                row[q] += s * accumulated[q]


@compiled_for(
    (GIVEN_2, GIVEN_2, GIVEN_1, GIVEN_1, GIVEN_1, WRITTEN_2),
    (GIVEN_2, GIVEN_2, GIVEN_1, GIVEN_1, GIVEN_1, WRITTEN_SINGLE_2),
)
def expected_pairs(
    mean: Array, spread: Array, constant: Array, constant_variance: Array, weight: Array, out: Array
) -> None:
    """Write weight_i E[x x'] packed, x = (x_1 ... x_K, constant), Var x = ``spread`` (diagonal or packed).

    ``spread`` has K columns (diagonal) or K (K + 1) / 2; one row of it may serve all.
    """
    n_factors = mean.shape[1]
    diagonal = spread.shape[1] == n_factors
    for i in range(mean.shape[0]):
        m, row, f = mean[i], out[i], weight[i]
        s = spread[i] if spread.shape[0] > 1 else spread[0]
        q = 0
        for k in range(n_factors):
            a = f * m[k]
            triangle = row[q : q + k + 1]
            for j in range(k + 1):
                triangle[j] = a * m[j]
            if diagonal:
                triangle[k] += f * s[k]
            else:
                part = s[q : q + k + 1]
                for j in range(k + 1):
                    triangle[j] += f * part[j]
            q += k + 1
        a = f * constant[i]
        last = row[q:]
        for j in range(n_factors):
            last[j] = a * m[j]
        last[n_factors] = a * constant[i] + f * constant_variance[i]


@compiled_for((GIVEN_2, GIVEN_2, GIVEN_2, GIVEN_2, GIVEN_1, GIVEN_1, WRITTEN_1))
def quadratic(
    cross: Array,
    pairs: Array,
    mean: Array,
    spread: Array,
    constant: Array,
    constant_variance: Array,
    out: Array,
) -> None:
    """out_i = E[x' P_i x] - 2 E[x]' c_i: a residual sum of squares without its sum of squares."""
    n_factors = mean.shape[1]
    diagonal = spread.shape[1] == n_factors
    for i in range(mean.shape[0]):
        m, c = mean[i], cross[i]
        s = spread[i] if spread.shape[0] > 1 else spread[0]
        p = pairs[i] if pairs.shape[0] > 1 else pairs[0]
        total, q = 0.0, 0
        for k in range(n_factors):
            triangle = p[q : q + k + 1]
            inner = 0.0
            for j in range(k):
                inner += triangle[j] * m[j]
            total += m[k] * (2.0 * inner + triangle[k] * m[k] - 2.0 * c[k])
            if diagonal:
                total += triangle[k] * s[k]
            else:
                part = s[q : q + k + 1]
                trace = 0.0
                for j in range(k):
                    trace += triangle[j] * part[j]
                total += 2.0 * trace + triangle[k] * part[k]
            q += k + 1
        last = p[q:]
        inner = 0.0
        for j in range(n_factors):
            inner += last[j] * m[j]
        b = constant[i]
        out[i] = (
            total + b * (2.0 * inner - 2.0 * c[n_factors]) + last[n_factors] * (b * b + constant_variance[i])
        )
