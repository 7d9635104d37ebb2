"""Gamma factors of all levels at once: their expected logarithms, entropies, and sums over levels.

Logarithms of Gamma and their derivatives are those of x + 10 by Stirling's series, less what the product
x (x + 1) ... (x + 9) adds. With t = x (x + 9) that is t (t + 8) (t + 14) (t + 18) (t + 20), so that neither
branches nor calls keep a loop from becoming vector instructions. Errors are a few units in the last place of
the larger of the two parts. Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

from factorflow.kernels.vectors import compiled, inlined, log

__all__ = ["add_levels", "below_largest", "logs_and_entropies"]

Array = Any
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


@inlined
def digamma_and_gammaln(x: Array) -> Array:
    """Return psi(x) and log Gamma(x) of 1e-300 < x < 1e29."""
    t, z = x * (x + 9.0), x + 10.0
    sums, product = 1.0, t
    sums, product = sums * (t + 8.0) + product, product * (t + 8.0)
    sums, product = sums * (t + 14.0) + product, product * (t + 14.0)
    sums, product = sums * (t + 18.0) + product, product * (t + 18.0)
    sums, product = sums * (t + 20.0) + product, product * (t + 20.0)
    one, log_z = 1.0 / z, log(z)
    two = one * one
    psi = (
        (((two / 12.0 - 691.0 / 32760.0) * two + 1.0 / 132.0) * two - 1.0 / 240.0) * two + 1.0 / 252.0
    ) * two
    psi = log_z - 0.5 * one - ((psi - 1.0 / 120.0) * two + 1.0 / 12.0) * two
    psi = psi - (2.0 * x + 9.0) * (sums / product)
    rest = (
        (((two / 156.0 - 691.0 / 360360.0) * two + 1.0 / 1188.0) * two - 1.0 / 1680.0) * two + 1.0 / 1260.0
    ) * two
    rest = ((rest - 1.0 / 360.0) * two + 1.0 / 12.0) * one
    return psi, (z - 0.5) * log_z - z + _HALF_LOG_2_PI + rest - log(product)


@compiled
def logs_and_entropies(shape: Array, rate: Array, logs: Array, entropies: Array) -> None:
    """Write E log x and the entropy of each x ~ Gamma(shape, rate), (N,) each."""
    for i in range(shape.size):
        log_rate = log(rate[i])
        psi, gammaln = digamma_and_gammaln(shape[i])
        logs[i] = psi - log_rate
        entropies[i] = shape[i] - log_rate + gammaln + (1.0 - shape[i]) * psi


@compiled
def add_levels(
    one: Array, two: Array, logs: Array, entropies: Array, seen: Array, learned: Array, sums: Array
) -> None:
    """Add E x, E x of levels with rows, E log x and entropies of the learned ones, (D, C), to sums (4, C)."""
    for d in range(one.shape[0]):
        there = 1.0 if seen[d] > 0.0 else 0.0
        for c in range(one.shape[1]):
            mean = learned[d, c] * (one[d, c] / two[d, c])
            sums[0, c] += mean
            sums[1, c] += there * mean
            sums[2, c] += logs[d, c]
            sums[3, c] += learned[d, c] * entropies[d, c]


@compiled
def below_largest(logs: Array, lowest: float, below: Array, largest: Array) -> None:
    """Write the largest of each row of (N, K) logarithms, and by how much others are below it, at most so."""
    for n in range(logs.shape[0]):
        top = logs[n, 0]
        for k in range(1, logs.shape[1]):
            top = max(top, logs[n, k])
        largest[n] = top
        for k in range(logs.shape[1]):
            below[n, k] = max(logs[n, k] - top, lowest)
