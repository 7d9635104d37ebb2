"""Compiled loops over lists of missing entries and over packed second moments.

Imported lazily by `products` (importing this module imports numba). All loops release the
interpreter lock and keep sums in float64, of data in float32 or float64. A symmetric (K, K) matrix is packed
by rows of its lower triangle: entry (k, j), j <= k, is at k (k + 1) / 2 + j.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.vectors import compile_loop

Array = Any

STRETCH_BYTES = 1 << 20
"""Of a table of second moments, what is gone through at a time: half of the cache of a core."""


@compile_loop
def add_listed(
    table: Array,
    start: Array,
    index: Array,
    keep: Array,
    sign: Array,
    base: Array,
    accumulated: Array,
    position: Array,
    out: Array,
) -> None:
    """out_i = keep_i base + sign_i sum of the rows of ``table`` that the i-th list names, in rising order.

    The table is gone through in stretches that stay in a core's cache while all lists are. ``accumulated``
    is room for a row of it, ``position`` where each list begins; it is written over.
    """
    stretch = max(1, STRETCH_BYTES // (table.shape[1] * table.itemsize))
    for first in range(0, max(1, table.shape[0]), stretch):
        last = first + stretch
        for i in range(out.shape[0]):
            row, k, s = out[i], keep[i], sign[i]
            if first == 0:
                for q in range(base.size):
                    row[q] = k * base[q]
            for q in range(accumulated.size):
                accumulated[q] = 0
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


@compile_loop
def multiply_pairs(left: Array, right: Array, out: Array) -> None:
    """Write the products left_ik right_ij, j <= k, packed."""
    for i in range(left.shape[0]):
        first, second, row = left[i], right[i], out[i]
        q = 0
        for k in range(first.size):
            a = first[k]
            part = row[q : q + k + 1]
            for j in range(k + 1):
                part[j] = a * second[j]
            q += k + 1


@compile_loop
def quadratic_forms(pairs: Array, vectors: Array, out: Array) -> None:
    """out_i = x_i' P_i x_i."""
    for i in range(out.size):
        p, x = pairs[i], vectors[i]
        total, q = 0.0, 0
        for k in range(x.size):
            row, inner = p[q : q + k + 1], 0.0
            for j in range(k):
                inner += row[j] * x[j]
            total += x[k] * (2.0 * inner + row[k] * x[k])
            q += k + 1
        out[i] = total


@compile_loop
def tangents(
    y: Array, e: Array, g: Array, u: Array, m: Array, v: Array, limits: Array, u_out: Array, r_out: Array
) -> tuple[float, float]:
    """Write precisions u and linear terms u m + g of tangents, 0 where y is missing, and return two sums.

    The curvature is at least ``limits[0]`` times the slope's size, and ``limits[1]``. The sums are those of
    the values e, and of u v - m (u m + 2 g).
    """
    share, least = limits[0], limits[1]
    value, remainder = 0.0, 0.0
    for i in range(y.size):
        observed = y[i] == y[i]
        size = abs(g[i]) * share
        curvature = u[i] if u[i] > size else size
        curvature = curvature if curvature > least else least
        linear = curvature * m[i] + g[i]
        u_out[i] = curvature if observed else 0.0
        r_out[i] = linear if observed else 0.0
        value += np.float64(e[i]) if observed else 0.0
        remainder += np.float64(curvature * v[i] - m[i] * (linear + g[i])) if observed else 0.0
    return value, remainder
