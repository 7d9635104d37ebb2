"""The passes over rows of molten component analysis: what is looked up, multiplied and added by level.

The tables of all variables lie below each other, (D, W), components padded with zeros, of counts in single
precision where that is asked for; codes are rows of that one table. Sums by level are double precision, in
the order of the rows. ``lanes`` is (0,) * W: its length is known when a loop is compiled.

The rows come in runs (`molten.rows.Runs`), ``start[r]`` to ``start[r + 1]``. Codes of ``outer`` variables are
given by run, those of ``inner`` ones by row: an array each, at least one of both. What the outer ones give to
a product, and what is added up for them, is done once a run. Where each row is looked at, ``codes`` is
(B, G), G >= 2 (beside a variable that is alone stands a constant one), and ``variables`` is (0,) * G.
Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.vectors import inner, log
from factorflow.models.molten.kernels.lanes import (
    add_to,
    added,
    at,
    compiled,
    divided,
    lane,
    load,
    load_numbers,
    multiply,
    scaled,
    store,
    store_numbers,
    total,
    totals,
)

SOME = 1024
"""Rows whose logarithms are taken together, while they are in the cache."""

__all__ = [
    "add_moments",
    "add_products_of_rows",
    "add_products_of_runs",
    "add_shares",
    "write_sums_of_runs",
    "write_totals",
]

Array = Any


@inner
def weighted_logs(y: Array, sums: Array) -> float:
    """Return sum_n y_n log sums_n of sums above 0, which may be more than y."""
    out = 0.0
    for n in range(y.size):
        out += y[n] * log(sums[n])
    return out


@compiled
def add_shares(
    start: Array, outer: Array, inner: Array, y: Array, logs: Array, lanes: Array, counts: Array
) -> float:
    """counts_dl += y_n p_nl of the rows of level d, for all variables; return sum y_n log sum_l rho_nl.

    ``logs`` (D, W) holds exp(E log lambda); ``y`` (B,) is above 0, in single precision.
    """
    fit, sums, first = 0.0, np.empty(SOME), start[0]  # sums of the rows from `first` on
    for r in range(start.size - 1):
        common = load(logs, at(outer[0], r), lanes)
        for g in range(1, len(outer)):
            common = multiply(common, load(logs, at(outer[g], r), lanes))
        of_run, n, end = scaled(common, 0.0), at(start, r), at(start, r + 1)
        while n + 4 <= end:
            if n + 4 > first + SOME:
                fit, first = fit + weighted_logs(y[first:n], sums), n
            a = b = c = d = common
            for g in range(len(inner)):
                a = multiply(a, load(logs, at(inner[g], n), lanes))
                b = multiply(b, load(logs, at(inner[g], n + 1), lanes))
                c = multiply(c, load(logs, at(inner[g], n + 2), lanes))
                d = multiply(d, load(logs, at(inner[g], n + 3), lanes))
            four = totals(a, b, c, d)
            store_numbers(sums, n - first, four)
            ratios = divided(load_numbers(y, n), four)
            a, b = scaled(a, lane(ratios, 0)), scaled(b, lane(ratios, 1))
            c, d = scaled(c, lane(ratios, 2)), scaled(d, lane(ratios, 3))
            of_run = added(added(added(added(of_run, a), b), c), d)
            for g in range(len(inner)):  # one after the other: rows may have a level in common
                add_to(counts, at(inner[g], n), a)
                add_to(counts, at(inner[g], n + 1), b)
                add_to(counts, at(inner[g], n + 2), c)
                add_to(counts, at(inner[g], n + 3), d)
            n += 4
        while n < end:
            if n + 1 > first + SOME:
                fit, first = fit + weighted_logs(y[first:n], sums), n
            a = common
            for g in range(len(inner)):
                a = multiply(a, load(logs, at(inner[g], n), lanes))
            sums[n - first] = total(a)
            a = scaled(a, at(y, n) / sums[n - first])
            of_run = added(of_run, a)
            for g in range(len(inner)):
                add_to(counts, at(inner[g], n), a)
            n += 1
        for g in range(len(outer)):
            add_to(counts, at(outer[g], r), of_run)
    return float(fit + weighted_logs(y[first:], sums))


@compiled
def write_sums_of_runs(
    start: Array, inner: Array, weight: Array, means: Array, lanes: Array, sums: Array
) -> None:
    """sums_rl = sum of weight_n f_nl over the rows of run r, f the product of ``means`` over ``inner``."""
    one = 1 if weight.size > 1 else 0  # a single weight is that of all rows
    for r in range(start.size - 1):
        even = odd = scaled(load(means, 0, lanes), 0.0)  # two, since each sum waits for the one before
        n, end = at(start, r), at(start, r + 1)
        while n + 2 <= end:
            a, b = load(means, at(inner[0], n), lanes), load(means, at(inner[0], n + 1), lanes)
            for g in range(1, len(inner)):
                a = multiply(a, load(means, at(inner[g], n), lanes))
                b = multiply(b, load(means, at(inner[g], n + 1), lanes))
            even = added(even, scaled(a, at(weight, n * one)))
            odd = added(odd, scaled(b, at(weight, (n + 1) * one)))
            n += 2
        if n < end:
            a = load(means, at(inner[0], n), lanes)
            for g in range(1, len(inner)):
                a = multiply(a, load(means, at(inner[g], n), lanes))
            even = added(even, scaled(a, at(weight, n * one)))
        store(sums, r, added(even, odd))


@compiled
def add_products_of_runs(
    outer: Array, sums: Array, means: Array, lanes: Array, begin: Array, added_up: Array
) -> None:
    """added_up_dl += sums_rl F_rl of the runs of level d of the first of ``outer``.

    F is the product of ``means`` (D, W) over the other outer variables; the levels begin at row ``begin``.
    """
    for r in range(sums.shape[0]):
        product = load(sums, r, lanes)
        for g in range(1, len(outer)):
            product = multiply(product, load(means, at(outer[g], r), lanes))
        add_to(added_up, at(outer[0], r) - begin, product)


@compiled
def add_products_of_rows(
    start: Array, outer: Array, inner: Array, weight: Array, means: Array, lanes: Array, begin: Array,
    sums: Array,
) -> None:  # fmt: skip
    """sums_dl += weight_n F_nl of the rows of level d of the first of ``inner``."""
    one = 1 if weight.size > 1 else 0
    for r in range(start.size - 1):
        common = load(means, at(outer[0], r), lanes)
        for g in range(1, len(outer)):
            common = multiply(common, load(means, at(outer[g], r), lanes))
        for n in range(at(start, r), at(start, r + 1)):
            product = common
            for g in range(1, len(inner)):
                product = multiply(product, load(means, at(inner[g], n), lanes))
            add_to(sums, at(inner[0], n) - begin, scaled(product, at(weight, n * one)))


@compiled
def write_totals(codes: Array, means: Array, lanes: Array, variables: Array, out: Array) -> None:
    """out_n = M_n = sum_l prod_g of ``means`` (D, W)."""
    for n in range(out.shape[0]):
        product = load(means, codes[n, 0], lanes)
        for g in range(1, len(variables)):
            product = multiply(product, load(means, codes[n, g], lanes))
        out[n] = total(product)


@compiled
def add_moments(
    codes: Array, weight: Array, e: Array, means: Array, seconds: Array, lanes: Array, variables: Array,
    own: Array, start: Array, linear: Array, plain: Array, square: Array, cross: Array,
) -> None:  # fmt: skip
    """Of the rows of each level d of variable ``own`` add w e F, w F, w S (D', W) and w F F' (D' W, W).

    F and S are the products of ``means`` and ``seconds`` (D, W) over the other variables.
    """
    first, scratch = 1 if own == 0 else 0, means[:1].copy()
    for n in range(weight.shape[0]):
        if weight[n] > 0.0:
            f, s = load(means, codes[n, first], lanes), load(seconds, codes[n, first], lanes)
            for g in range(1, len(variables)):
                if g != own and g != first:
                    f = multiply(f, load(means, codes[n, g], lanes))
                    s = multiply(s, load(seconds, codes[n, g], lanes))
            d = codes[n, own] - start
            store(scratch, 0, f)
            add_to(square, d, scaled(s, weight[n]))
            f = scaled(f, weight[n])
            add_to(plain, d, f)
            add_to(linear, d, scaled(f, e[n]))
            for k in range(len(lanes)):
                add_to(cross, d * len(lanes) + k, scaled(f, scratch[0, k]))
