"""The passes over rows of molten component analysis: table lookups, products and sums by level.

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

from factorflow.kernels.vectors import inner as inner_function
from factorflow.models.molten.kernels.lanes import (
    ROWS,
    add,
    add_to,
    compile_ordered,
    fold,
    load,
    load_number,
    load_products,
    multiply,
    multiply_by_row,
    multiply_by_shared,
    scale,
    store,
    sum_lanes,
    sum_rows,
)
from factorflow.models.molten.kernels.row_scalars import (
    add_weighted_logs,
    divide,
    load_first,
    store_scalars,
    sum_scalars,
    zeros,
)

CHUNK_ROWS = 512
"""Rows of a run whose ratios are held at once, in the cache."""

Array = Any


@inner_function
def terms_of_row(inner: Array, n: int, common: Array, logs: Array, lanes: Array) -> Array:
    """Return what the terms of rho of a row are added up to, `PART` numbers."""
    if len(inner) == 1:
        return load_products(common, logs, load_number(inner[0], n))
    product = common
    for g in range(len(inner)):
        product = multiply(product, load(logs, load_number(inner[g], n), lanes))
    return fold(product)


@compile_ordered
def add_shares(
    start: Array, outer: Array, inner: Array, y: Array, logs: Array, lanes: Array, first: int, stop: int,
    counts: Array,
) -> float:  # fmt: skip
    """counts_dl += y_n p_nl of the rows of level d, for all variables; return sum y_n log sum_l rho_nl.

    ``logs`` (D, W) holds exp(E log lambda); ``y`` is above 0, in single precision, and `ROWS` longer than
    there are rows. A run is gone through twice: for y / sum_l rho of each row, then for what that adds to.
    Of one inner variable, which has the rows ``first`` to ``stop`` of the table, it is added up without the
    variable's own factor, which comes last.
    """
    fit, each = zeros(), np.empty(CHUNK_ROWS)
    for r in range(start.size - 1):
        common = load(logs, load_number(outer[0], r), lanes)
        for g in range(1, len(outer)):
            common = multiply(common, load(logs, load_number(outer[g], r), lanes))
        a = b = c = d = scale(common, 0.0)  # four, since each sum waits for the one before
        begin, end = load_number(start, r), load_number(start, r + 1)
        while begin < end:
            last = min(begin + CHUNK_ROWS, end) - 1
            for n in range(begin, last + 1, ROWS):
                rho = sum_rows(
                    terms_of_row(inner, n, common, logs, lanes),
                    terms_of_row(inner, min(n + 1, last), common, logs, lanes),
                    terms_of_row(inner, min(n + 2, last), common, logs, lanes),
                    terms_of_row(inner, min(n + 3, last), common, logs, lanes),
                    terms_of_row(inner, min(n + 4, last), common, logs, lanes),
                    terms_of_row(inner, min(n + 5, last), common, logs, lanes),
                    terms_of_row(inner, min(n + 6, last), common, logs, lanes),
                    terms_of_row(inner, min(n + 7, last), common, logs, lanes),
                )  # fmt: skip
                weights = load_first(y, n, last + 1 - n)
                fit = add_weighted_logs(fit, weights, rho)
                store_scalars(each, n - begin, divide(weights, rho))
            n = begin
            if len(inner) == 1:
                while n + 3 <= last:
                    i, j = load_number(inner[0], n), load_number(inner[0], n + 1)
                    k, m = load_number(inner[0], n + 2), load_number(inner[0], n + 3)
                    u, v = load_number(each, n - begin), load_number(each, n + 1 - begin)
                    w, x = load_number(each, n + 2 - begin), load_number(each, n + 3 - begin)
                    a = add(a, scale(load(logs, i, lanes), u))
                    b = add(b, scale(load(logs, j, lanes), v))
                    c = add(c, scale(load(logs, k, lanes), w))
                    d = add(d, scale(load(logs, m, lanes), x))
                    add_to(counts, i, scale(common, u))  # in turn: rows may have a level in common
                    add_to(counts, j, scale(common, v))
                    add_to(counts, k, scale(common, w))
                    add_to(counts, m, scale(common, x))
                    n += 4
                while n <= last:
                    i, u = load_number(inner[0], n), load_number(each, n - begin)
                    a = add(a, scale(load(logs, i, lanes), u))
                    add_to(counts, i, scale(common, u))
                    n += 1
            else:
                while n <= last:
                    product = scale(load(logs, load_number(inner[0], n), lanes), load_number(each, n - begin))
                    for g in range(1, len(inner)):
                        product = multiply(product, load(logs, load_number(inner[g], n), lanes))
                    a, product = add(a, product), multiply(common, product)
                    for g in range(len(inner)):
                        add_to(counts, load_number(inner[g], n), product)
                    n += 1
            begin = last + 1
        of_run = multiply(common, add(add(a, b), add(c, d)))
        for g in range(len(outer)):
            add_to(counts, load_number(outer[g], r), of_run)
    if len(inner) == 1:
        for n in range(first, stop):
            store(counts, n, multiply(load(counts, n, lanes), load(logs, n, lanes)))
    return float(sum_scalars(fit))


@inner_function
def inner_product(inner: Array, n: int, means: Array, lanes: Array) -> Array:
    """Return the product of a table over the inner variables of a row."""
    product = load(means, load_number(inner[0], n), lanes)
    for g in range(1, len(inner)):
        product = multiply(product, load(means, load_number(inner[g], n), lanes))
    return product


@compile_ordered
def write_sums_of_runs(
    start: Array, inner: Array, weight: Array, means: Array, lanes: Array, sums: Array
) -> None:
    """sums_rl = sum of weight_n f_nl over the rows of run r, f the product of ``means`` over ``inner``.

    ``weight`` (B,), or the one number that all rows have.
    """
    for r in range(start.size - 1):
        a = b = c = d = scale(load(means, 0, lanes), 0.0)  # four, since each sum waits for the one before
        n, last = load_number(start, r), load_number(start, r + 1) - 1
        while n + 3 <= last:
            a = add(a, multiply_by_row(inner_product(inner, n, means, lanes), weight, n))
            b = add(b, multiply_by_row(inner_product(inner, n + 1, means, lanes), weight, n + 1))
            c = add(c, multiply_by_row(inner_product(inner, n + 2, means, lanes), weight, n + 2))
            d = add(d, multiply_by_row(inner_product(inner, n + 3, means, lanes), weight, n + 3))
            n += 4
        while n <= last:
            a = add(a, multiply_by_row(inner_product(inner, n, means, lanes), weight, n))
            n += 1
        store(sums, r, multiply_by_shared(add(add(a, b), add(c, d)), weight))


@compile_ordered
def add_products_of_runs(
    outer: Array, sums: Array, means: Array, lanes: Array, begin: Array, added_up: Array
) -> None:
    """added_up_dl += sums_rl F_rl of the runs of level d of the first of ``outer``.

    F is the product of ``means`` (D, W) over the other outer variables; the levels begin at row ``begin``.
    """
    for r in range(sums.shape[0]):
        product = load(sums, r, lanes)
        for g in range(1, len(outer)):
            product = multiply(product, load(means, load_number(outer[g], r), lanes))
        add_to(added_up, load_number(outer[0], r) - begin, product)


@compile_ordered
def add_products_of_rows(
    start: Array, outer: Array, inner: Array, weight: Array, means: Array, lanes: Array, begin: Array,
    sums: Array,
) -> None:  # fmt: skip
    """sums_dl += weight_n F_nl of the rows of level d of the first of ``inner``; ``weight`` as above."""
    for r in range(start.size - 1):
        common = load(means, load_number(outer[0], r), lanes)
        for g in range(1, len(outer)):
            common = multiply(common, load(means, load_number(outer[g], r), lanes))
        common = multiply_by_shared(common, weight)
        for n in range(load_number(start, r), load_number(start, r + 1)):
            product = common
            for g in range(1, len(inner)):
                product = multiply(product, load(means, load_number(inner[g], n), lanes))
            add_to(sums, load_number(inner[0], n) - begin, multiply_by_row(product, weight, n))


@compile_ordered
def write_totals(codes: Array, means: Array, lanes: Array, variables: Array, out: Array) -> None:
    """out_n = M_n = sum_l prod_g of ``means`` (D, W)."""
    for n in range(out.shape[0]):
        product = load(means, codes[n, 0], lanes)
        for g in range(1, len(variables)):
            product = multiply(product, load(means, codes[n, g], lanes))
        out[n] = sum_lanes(product)


@compile_ordered
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
            add_to(square, d, scale(s, weight[n]))
            f = scale(f, weight[n])
            add_to(plain, d, f)
            add_to(linear, d, scale(f, e[n]))
            for k in range(len(lanes)):
                add_to(cross, d * len(lanes) + k, scale(f, scratch[0, k]))
