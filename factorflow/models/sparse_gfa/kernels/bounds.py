"""Bounds of non-Gaussian likelihoods on the CPU: fused loops over the entries of a block.

The formulas are those of `entry_bounds`, beside this file. Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.models.sparse_gfa.kernels import entry_bounds as bounds
from factorflow.models.sparse_gfa.kernels.vectors import compiled, vectorised

__all__ = ["boehning", "jaakkola", "poisson", "residual_squares", "tilted"]

Array = Any
_jaakkola, _poisson = vectorised(bounds.jaakkola_parts), vectorised(bounds.poisson)
_tilted = vectorised(bounds.tilted)
_boehning, _squared_error = vectorised(bounds.boehning), vectorised(bounds.squared_error)


@compiled
def jaakkola(values: Array, second: Array, precision: Array, weighted: Array) -> Array:
    """Write u and u y^ of every entry; return the sum of what is free of x."""
    total = 0.0
    factor = np.empty(values.shape[1])
    for n in range(values.shape[0]):
        y, x2, u, r = values[n], second[n], precision[n], weighted[n]
        row = 0.0
        for d in range(y.size):
            u[d], r[d], free, factor[d] = _jaakkola(y[d], x2[d])
            row += free
        # log of a product of at most 512 factors in [1, 2]: one logarithm instead of 512
        for first in range(0, y.size, 512):
            run = factor[first : first + 512]
            product = 1.0
            for d in range(run.size):
                product *= run[d]
            row -= math.log(product)
        total += row
    return total


@compiled
def poisson(values: Array, x: Array, precision: Array, weighted: Array) -> Array:
    """Write u and u y^ of every entry; return the sum of what is free of x."""
    total = 0.0
    for n in range(values.shape[0]):
        y, zeta, u, r = values[n], x[n], precision[n], weighted[n]
        for d in range(y.size):
            u[d], r[d], free = _poisson(y[d], zeta[d])
            total += free
    return total


@compiled
def boehning(values: Array, x: Array, pseudo: Array) -> Array:
    """Write y^ of every entry, 0 where missing; return the sum of what is free of x."""
    total = 0.0
    for n in range(values.shape[0]):
        y, zeta, out = values[n], x[n], pseudo[n]
        for d in range(y.size):
            _, out[d], free = _boehning(y[d], zeta[d])
            total += free
    return total


@compiled
def tilted(values: Array, x: Array, second: Array, precision: Array, weighted: Array) -> Array:
    """Write u and u y^, given E x and E x^2; return the sums of what is free of x, and of the bound."""
    total, reached = 0.0, 0.0
    for n in range(values.shape[0]):
        y, m, x2, u, r = values[n], x[n], second[n], precision[n], weighted[n]
        for d in range(y.size):
            variance = np.float64(x2[d]) - np.float64(m[d]) * np.float64(m[d])
            u[d], r[d], free, bound = _tilted(y[d], m[d], variance)
            total += free
            reached += bound
    return total, reached


@compiled
def residual_squares(
    values: Array,
    lowest: Array,
    fit: Array,
    scores: Array,
    loadings: Array,
    intercept: Array,
    weight: Array,
    link: Array,
    out: Array,
) -> None:
    """out_0 += sum of weighted squared errors of g(fit); out_k+1 += those of g(b_d + w_kd z_nk)."""
    for n in range(values.shape[0]):
        y, x = values[n], fit[n]
        total = 0.0
        for d in range(y.size):
            e = _squared_error(np.float64(y[d]), x[d], link)
            total += weight[d] * e if y[d] >= lowest else 0.0
        out[0] += total
        for k in range(loadings.shape[0]):
            w, z = loadings[k], scores[n, k]
            total = 0.0
            for d in range(y.size):
                e = _squared_error(np.float64(y[d]), intercept[d] + w[d] * z, link)
                total += weight[d] * e if y[d] >= lowest else 0.0
            out[k + 1] += total
