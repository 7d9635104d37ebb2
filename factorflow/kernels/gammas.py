"""Gamma distributions: digamma, log Gamma, expected logarithms and entropies, in loops that vectorise.

Logarithms of Gamma and their derivatives are those of x + 10 by Stirling's series, less what the product
x (x + 1) ... (x + 9) adds. With t = x (x + 9) that is t (t + 8) (t + 14) (t + 18) (t + 20), so that neither
branches nor calls keep a loop from becoming vector instructions. Errors are a few units in the last place of
the larger of the two parts. Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

from factorflow.kernels.vectors import compile_inline, compile_loop, inner, log

Array = Any
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


def compile_ordered(function: Array) -> Array:
    """Compile a loop; sums keep their order, so that bits do not depend on where small arrays lie."""
    return compile_loop(function, fastmath={"contract", "nsz"})


@compile_inline
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


@inner
def write_logs_and_entropies(shape: Array, rate: Array, logs: Array, entropies: Array) -> None:
    """Write E log x and the entropy of each x ~ Gamma(shape, rate), (N,) each."""
    for i in range(shape.size):
        log_rate = log(rate[i])
        psi, gammaln = digamma_and_gammaln(shape[i])
        logs[i] = psi - log_rate
        entropies[i] = shape[i] - log_rate + gammaln + (1.0 - shape[i]) * psi


@compile_ordered
def logs_and_entropies(shape: Array, rate: Array, logs: Array, entropies: Array) -> None:
    """Write E log x and the entropy of each x ~ Gamma(shape, rate), (N,) each."""
    write_logs_and_entropies(shape, rate, logs, entropies)
