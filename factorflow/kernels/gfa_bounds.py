"""Compiled bounds of non-Gaussian likelihoods: fused loops over the entries of a block.

Each writes what an entry's Gaussian pseudo-observation needs (its precision u, and u times its value) and
returns the sum of what does not depend on x. Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.kernels.gfa_scalar import compiled, exp, inlined, log, softplus_parts

__all__ = ["boehning", "jaakkola", "poisson", "residual_squares"]

Array = Any


@compiled
def jaakkola(values: Array, second: Array, precision: Array, weighted: Array) -> Array:
    """Bound of Jaakkola and Jordan at xi^2 = E[x^2]: u = tanh(xi / 2) / (2 xi), u y^ = y - 1/2.

    Returns the sum of log sigma(xi) - xi / 2 + u xi^2 / 2.
    """
    total = 0.0
    product = np.empty(values.shape[1])
    for n in range(values.shape[0]):
        y, x2, u, r = values[n], second[n], precision[n], weighted[n]
        linear = 0.0
        for d in range(y.size):
            yd = np.float64(y[d])
            o = 1.0 if yd >= 0.0 else 0.0
            square = max(np.float64(x2[d]), 1e-10)
            xi = math.sqrt(square)
            e = exp(-min(xi, 600.0))
            ud = (1.0 - e) / ((1.0 + e) * (xi + xi))
            product[d] = 1.0 + o * e
            linear += o * 0.5 * (ud * square - xi)
            u[d] = o * ud
            r[d] = o * (yd - 0.5)
        # log of a product of at most 512 factors in [1, 2]: one logarithm instead of 512
        for first in range(0, y.size, 512):
            block = product[first : first + 512]
            p = 1.0
            for d in range(block.size):
                p *= block[d]
            linear -= math.log(p)
        total += linear
    return total


@compiled
def poisson(values: Array, x: Array, precision: Array, weighted: Array) -> Array:
    """Bound of Seeger and Bouchard at zeta = x: u = 1/4 + 0.17 y, u y^ = u zeta - f'(zeta).

    Returns the sum of -f(zeta) + zeta f'(zeta) - u zeta^2 / 2, where
    f(x) = r(x) - y log r(x), r(x) = log(1 + e^x); log y! is left out. zeta is kept above -30.
    """
    total = 0.0
    for n in range(values.shape[0]):
        y, zeta, u, r = values[n], x[n], precision[n], weighted[n]
        for d in range(y.size):
            value = np.float64(y[d])
            o = 1.0 if value >= 0.0 else 0.0
            yd = value if value >= 0.0 else 0.0
            z = max(np.float64(zeta[d]), -30.0)
            rate, s = softplus_parts(z)
            slope = s * (1.0 - yd / rate)
            kappa = 0.25 + 0.17 * yd
            total += o * (yd * log(rate) - rate + z * slope - 0.5 * kappa * z * z)
            u[d] = o * kappa
            r[d] = o * (kappa * z - slope)
    return total


@compiled
def boehning(values: Array, x: Array, pseudo: Array) -> Array:
    """Bound of Boehning at zeta = x, u = 1/4: writes y^ = zeta + 4 (y - sigma(zeta)), 0 where missing."""
    total = 0.0
    for n in range(values.shape[0]):
        y, zeta, out = values[n], x[n], pseudo[n]
        for d in range(y.size):
            yd = np.float64(y[d])
            o = 1.0 if yd >= 0.0 else 0.0
            z = np.float64(zeta[d])
            rate, s = softplus_parts(z)
            slope = s - yd
            total += o * (yd * z - rate + z * slope - 0.125 * z * z)
            out[d] = o * (z - 4.0 * slope)
    return total


@inlined
def _squared_error(y: Array, x: Array, link: Array) -> Array:
    """Return (y - g(x))^2: g the identity (0), the logistic function (1), or log(1 + e^x) (2)."""
    if link == 0:
        return (y - x) * (y - x)
    rate, s = softplus_parts(x)
    r = y - (s if link == 1 else rate)
    return r * r


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
