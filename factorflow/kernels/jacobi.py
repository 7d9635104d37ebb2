"""The distribution J*(1, z) of Jacobi theta functions, and tables of its quantiles.

A draw of PG(1, x) is a fourth of one of J*(1, |x| / 2). J*(1, z) has the density

    f(t) = cosh(z) sum_n (-1)^n pi (n + 1/2) exp(-((n + 1/2)^2 pi^2 + z^2) t / 2)

and a second series whose first term, below `CUT` all that doubles hold of it, is that of an inverse Gaussian
of mean 1 / z and shape 1 [1]_.

A table gives quantiles at z = 0, `STEP`, 2 `STEP` ... below `FAR`: polynomials in the smaller of the
probabilities below and above, four to each of its octaves. What it gives has that probability to 1e-10 of it.

References
----------
.. [1] N. G. Polson, J. G. Scott, J. Windle, "Bayesian inference for logistic models using Polya-Gamma latent
   variables", Journal of the American Statistical Association 108 (2013) 1339-1349, section 4.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from functools import cache
from math import exp, ldexp, log, pi, sqrt

import numpy as np
from jaxtyping import Float64

from factorflow.kernels.compile import compile_scalar, options
from factorflow.kernels.scalar.normal import ndtr, scaled_tail

CUT = 0.1
"""Below, the second term of the second series is 3 e^-40 of the first; above, the first series is short."""
TERMS = 10
"""Of the first series: at `CUT` the next would be 6e-23 of the first."""
STEP = 0.25
"""From one z of the table to the next."""
FAR = 16.0
"""End of the table. Beyond, J*(1, z) differs by e^-32 from the inverse Gaussian."""
OCTAVES, PARTS, COEFFICIENTS = 52, 4, 8
"""Smaller probabilities are 2^-53 at least; 8 coefficients fill a line of the processor's cache."""

_FRACTION, _ONE, _SHIFT = np.int64((1 << 50) - 1), np.int64(1023 << 52), np.int64(50)
_FIRST, _UPPER = np.int64((1023 - 53) << 2), np.int64(OCTAVES * PARTS)


def distribution(t, z):
    """Return P(J <= t), P(J > t) and the density at t, of J ~ J*(1, z), 0 <= z <= FAR."""
    scale = 0.5 + 0.5 * exp(-2.0 * z)  # e^-z cosh(z)
    if t < CUT:
        root, common = sqrt(t), exp(z - 0.5 * (z * z * t + 1.0 / t))
        near = (1.0 - z * t) / root
        passed = scaled_tail(near) * common if near > 0.0 else ndtr(-near)
        below = 2.0 * scale * (passed + scaled_tail((1.0 + z * t) / root) * common)
        return below, 1.0 - below, scale * sqrt(2.0 / (pi * t)) / t * common
    above, density, sign = 0.0, 0.0, 1.0
    for n in range(TERMS):
        m = (n + 0.5) * pi
        rate = 0.5 * (m * m + z * z)
        term = m * exp(z - rate * t)
        density += sign * term
        above += sign * term / rate
        sign = -sign
        if term < 1e-18 * density:
            break
    return 1.0 - scale * above, scale * above, scale * density


def solve(p, upper, z, t):
    """Return t with P(J <= t) = p, or P(J > t) = p where ``upper``: Newton's method on logarithms, from t."""
    while True:
        below, above, density = distribution(t, z)
        share = above if upper else below
        step = log(share / p) * share / (density * t)
        step = step if upper else -step
        step = min(max(step, -0.5), 0.5)
        t *= exp(step)
        if abs(step) < 1e-6:  # the next step would be its square
            return t


@options(forceinline=True)
def quantile(u, place, coefficients):
    """Return the quantile of u at z = STEP * place, 2^-54 < u < 1 - 2^-54."""
    upper = u > 0.5
    p = 1.0 - u if upper else u
    bits = np.float64(p).view(np.int64)
    part = (bits >> _SHIFT) - _FIRST + (_UPPER if upper else np.int64(0))
    at = 8.0 * (np.int64((bits & _FRACTION) | _ONE).view(np.float64) - 1.125)  # -1 to 1 in its part
    t = coefficients[place, part, COEFFICIENTS - 1]
    for k in range(COEFFICIENTS - 2, -1, -1):
        t = t * at + coefficients[place, part, k]
    return t


def _loop_quantiles(nodes, out):
    """Set out [Z, 2 * OCTAVES * PARTS, k] to the quantiles at the nodes of each part, both sides of all z."""
    for i in range(out.shape[0]):
        for side in range(2):
            t = 1.0
            for part in range(OCTAVES * PARTS - 1, -1, -1):
                octave, quarter = part // PARTS, part % PARTS
                for k in range(nodes.shape[0]):
                    p = ldexp(1.0 + (quarter + 0.5 + 0.5 * nodes[k]) / PARTS, octave - OCTAVES - 1)
                    t = solve(p, side == 1, i * STEP, t)
                    out[i, side * OCTAVES * PARTS + part, k] = t


@cache
def table() -> Float64[np.ndarray, "Z P 8"]:
    """Return the coefficients for `quantile`: interpolation at Chebyshev nodes. Made once in a process."""
    nodes = np.cos((np.arange(COEFFICIENTS) + 0.5) * np.pi / COEFFICIENTS)
    found = np.empty((int(FAR / STEP), 2 * OCTAVES * PARTS, COEFFICIENTS))
    compile_scalar(_loop_quantiles)(nodes, found)
    coefficients = np.ascontiguousarray(found @ np.linalg.inv(np.vander(nodes, increasing=True)).T)
    coefficients.flags.writeable = False
    return coefficients
