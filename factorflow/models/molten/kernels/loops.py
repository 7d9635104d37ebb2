"""The passes over rows of molten component analysis: what is looked up, multiplied and added by level.

The tables of all variables lie below each other, (D, W), components padded with zeros, of counts in single
precision where that is asked for; ``codes`` (B, G) are
rows of that one table, G >= 2 (beside a variable that is alone stands a constant one). Sums by level are
double precision, in the order of the rows, which are sorted by variable ``lead``: what is looked up and added
for one of its levels stays in registers until the next begins. ``lanes`` is (0,) * W and ``variables`` (0,) *
G: their lengths are known when a loop is compiled. Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.vectors import compiled as vectorised
from factorflow.kernels.vectors import log
from factorflow.models.molten.kernels.lanes import (
    add_to,
    added,
    compiled,
    load,
    multiply,
    scaled,
    store,
    total,
)

__all__ = ["add_moments", "add_products", "add_shares", "weighted_logs", "write_totals"]

Array = Any


@compiled
def add_shares(
    codes: Array, y: Array, logs: Array, lanes: Array, variables: Array, lead: Array, counts: Array,
    sums: Array,
) -> None:  # fmt: skip
    """counts_dl += y_n p_nl of the rows of level d, for all variables; sums_n = sum_l rho_nl.

    ``logs`` (D, W) holds exp(E log lambda); ``y`` and ``sums`` are (B,).
    """
    at = np.int64(codes[0, lead])
    own = load(logs, at, lanes)
    kept = scaled(own, 0.0)
    for n in range(y.shape[0]):
        if codes[n, lead] != at:
            add_to(counts, at, kept)
            at = np.int64(codes[n, lead])
            own = load(logs, at, lanes)
            kept = scaled(own, 0.0)
        rho = own
        for g in range(len(variables)):
            if g != lead:
                rho = multiply(rho, load(logs, codes[n, g], lanes))
        sums[n] = total(rho)
        if y[n] > 0.0:
            share = scaled(rho, y[n] / sums[n])
            kept = added(kept, share)
            for g in range(len(variables)):
                if g != lead:
                    add_to(counts, codes[n, g], share)
    add_to(counts, at, kept)


@vectorised
def weighted_logs(y: Array, sums: Array) -> Array:
    """Return sum_n y_n log sums_n of numbers above 0."""
    out = 0.0
    for n in range(y.size):
        out += y[n] * log(sums[n])
    return out


@compiled
def add_products(
    codes: Array, weight: Array, means: Array, lanes: Array, variables: Array, lead: Array, own: Array,
    start: Array, sums: Array,
) -> None:  # fmt: skip
    """sums_dl += weight_n F_nl of the rows of level d of variable ``own``, whose levels begin at ``start``.

    F is the product of ``means`` (D, W) over the other variables.
    """
    at = np.int64(codes[0, lead])
    if own == lead:
        first = 1 if own == 0 else 0
        kept = scaled(load(means, at, lanes), 0.0)
        for n in range(weight.shape[0]):
            if codes[n, lead] != at:
                add_to(sums, at - start, kept)
                at = np.int64(codes[n, lead])
                kept = scaled(kept, 0.0)
            product = load(means, codes[n, first], lanes)
            for g in range(1, len(variables)):
                if g != own and g != first:
                    product = multiply(product, load(means, codes[n, g], lanes))
            kept = added(kept, scaled(product, weight[n]))
        add_to(sums, at - start, kept)
    else:
        row = load(means, at, lanes)
        for n in range(weight.shape[0]):
            if codes[n, lead] != at:
                at = np.int64(codes[n, lead])
                row = load(means, at, lanes)
            product = row
            for g in range(len(variables)):
                if g != own and g != lead:
                    product = multiply(product, load(means, codes[n, g], lanes))
            add_to(sums, codes[n, own] - start, scaled(product, weight[n]))


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
