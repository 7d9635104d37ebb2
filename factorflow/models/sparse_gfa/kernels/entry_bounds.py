"""Bounds of non-Gaussian likelihoods for one entry: what the loops of the CPU and of CUDA share.

Each gives what an entry's Gaussian pseudo-observation needs, its precision u and u times its value y^, and
the part of the bound that does not depend on x (see `pseudo`); all 0 where the entry is missing
(NaN, or below 0). Comparisons stand for min and max, which not every CUDA compiler of Numba's resolves.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np

__all__ = [
    "LINKS",
    "boehning",
    "jaakkola",
    "jaakkola_parts",
    "log1p_small",
    "poisson",
    "squared_error",
    "tilted",
]


LINKS = ("gaussian", "bernoulli", "poisson", "negative_binomial")
"""What entries are, by the number of the link from x to their mean (`squared_error`)."""


def log1p_small(e):
    """Return log(1 + e) for 0 <= e <= 1 with small relative error."""
    return e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - 0.25 * e))) if e < 1e-4 else log(1.0 + e)


def softplus_parts(x):
    """Return log(1 + e^x) and sigma(x)."""
    size = abs(x)
    e = exp(-size if size < 600.0 else -600.0)
    return (x if x > 0.0 else 0.0) + log1p_small(e), (1.0 if x > 0.0 else e) / (1.0 + e)


def jaakkola_parts(value, second):
    """Return u, u y^, (u xi^2 - xi) / 2, and 1 + e^-xi (1 where missing); see `jaakkola`."""
    y = np.float64(value)
    o = 1.0 if y >= 0.0 else 0.0
    square = np.float64(second) if second > 1e-10 else 1e-10
    xi = sqrt(square)
    e = exp(-xi if xi < 600.0 else -600.0)
    u = (1.0 - e) / ((1.0 + e) * (xi + xi))
    return o * u, o * (y - 0.5), o * 0.5 * (u * square - xi), 1.0 + o * e


def jaakkola(value, second):
    """Bound of Jaakkola and Jordan at xi^2 = E[x^2]: u = tanh(xi / 2) / (2 xi), u y^ = y - 1/2.

    Free of x: log sigma(xi) - xi / 2 + u xi^2 / 2.
    """
    u, weighted, free, factor = jaakkola_parts(value, second)
    return u, weighted, free - log(factor)


def poisson(value, x):
    """Bound of Seeger and Bouchard at zeta = x: u = 1/4 + 0.17 y, u y^ = u zeta - f'(zeta).

    Free of x: -f(zeta) + zeta f'(zeta) - u zeta^2 / 2, where f(x) = r(x) - y log r(x), r(x) = log(1 + e^x);
    log y! is left out. zeta is kept above -30.
    """
    given = np.float64(value)
    o = 1.0 if given >= 0.0 else 0.0
    y = given if given >= 0.0 else 0.0
    zeta = np.float64(x) if x > -30.0 else -30.0
    rate, s = softplus_parts(zeta)
    slope = s * (1.0 - y / rate)
    u = 0.25 + 0.17 * y
    free = o * (y * log(rate) - rate + zeta * slope - 0.5 * u * zeta * zeta)
    return o * u, o * (u * zeta - slope), free


def boehning(value, x):
    """Bound of Boehning at zeta = x, u = 1/4 of every observed entry: y^ = zeta + 4 (y - sigma(zeta)).

    Returns what the statistics use: weight 1, y^, and the part free of x.
    """
    y = np.float64(value)
    o = 1.0 if y >= 0.0 else 0.0
    zeta = np.float64(x)
    rate, s = softplus_parts(zeta)
    slope = s - y
    free = o * (y * zeta - rate + zeta * slope - 0.125 * zeta * zeta)
    return o, o * (zeta - 4.0 * slope), free


def tilted(value, x, variance):
    """Tilted bound of Saul and Jordan at mean x and variance v: y x - a^2 v / 2 - log(1 + e^t).

    t = x + (1/2 - a) v; any a gives a bound, a = sigma(t) the best, found by Newton's steps from below. The
    pseudo-observation is the tangent in v, with the same curvature u = a (1 - a) in x: near the point it
    touches, no bound everywhere. u is kept above 1e-4. Returns u, u y^, the part free of x, and the bound.
    """
    y = np.float64(value)
    o = 1.0 if y >= 0.0 else 0.0
    m = np.float64(x)
    v = np.float64(variance) if variance > 1e-8 else 1e-8
    size = abs(m)
    t = size / (1.0 + 0.25 * v)
    for _ in range(4):
        e = exp(-t if t < 600.0 else -600.0)
        s = 1.0 / (1.0 + e)
        t -= (t + v * (s - 0.5) - size) / (1.0 + v * e * s * s)
    e = exp(-t if t < 600.0 else -600.0)
    a = (1.0 if m > 0.0 else e) / (1.0 + e)
    rate, s = softplus_parts(m + (0.5 - a) * v)
    u = a * a + (1.0 - 2.0 * a) * s
    u = u if u > 1e-4 else 1e-4
    slope = y - s
    bound = y * m - 0.5 * a * a * v - rate
    free = bound - slope * m + 0.5 * u * (v - m * m)
    return o * u, o * (u * m + slope), o * free, o * bound


def squared_error(y, x, link):
    """Return (y - g(x))^2: g the identity (0), the logistic function (1), log(1 + e^x) (2), or e^x (3)."""
    if link == 0:
        return (y - x) * (y - x)
    if link == 3:
        r = y - exp(x if x < 300.0 else 300.0)
        return r * r
    rate, s = softplus_parts(x)
    r = y - (s if link == 1 else rate)
    return r * r
