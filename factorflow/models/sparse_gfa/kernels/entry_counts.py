"""Log-likelihoods of counts for one entry at one predictor: what the loops go over the entries with.

Poisson, of rate r = log(1 + e^x); or negative binomial, of rate r = e^x and variance r + delta r^2: a gamma
multiplier of the rate of variance delta, integrated out. The latter's link is another one since the noise
grows with the rate: with log(1 + e^x) the log-likelihood is far from quadratic, with e^x it is concave.
Up to log y!::

    Poisson             log p = y log r - r
    negative binomial   log p = y (x - log(1 + delta r)) - log(1 + delta r) / delta
                                + sum_(j < y) log(1 + delta j)

The last term (`rising`) does not depend on x. Expectations over x ~ N(m, v) are sums over `NODES`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np

from factorflow.models.sparse_gfa.kernels.entry_bounds import softplus_parts

__all__ = [
    "NODES",
    "WEIGHTS",
    "dispersion_terms",
    "negative_binomial_terms",
    "poisson_terms",
    "rising",
    "steepness",
]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
NODES = tuple(float(node) for node in _NODES)
WEIGHTS = tuple(float(weight) for weight in _WEIGHTS / _WEIGHTS.sum())
"""Gauss-Hermite nodes of a standard normal variable, and their weights: exact for polynomials up to x^17."""

BEYOND, FARTHEST = 4.0, (16.0, 6.0)
"""How far y^ may lie beyond the mode: in standard deviations of the noise at x; and in those at the mode,
for the two links."""

LOWEST, HIGHEST = -30.0, 40.0
"""Predictors are kept above the first, where the rate is 1e-13; below the second, in exponents."""


def poisson_terms(y, x):
    """Return log p less log y!, -d log p / dx, -d^2 log p / dx^2, and the mean of the latter over y."""
    x = x if x > LOWEST else LOWEST
    rate, s = softplus_parts(x)
    excess = (rate - y) / rate
    expected = s * s / rate
    return y * log(rate) - rate, s * excess, expected * (1.0 - excess) + s * (1.0 - s) * excess, expected


def negative_binomial_terms(y, x, dispersion):
    """Return log p less what is free of x, and the rest as `poisson_terms`; dispersion > 0."""
    x = x if x > LOWEST else LOWEST
    x = x if x < HIGHEST else HIGHEST
    rate = exp(x)
    growth = 1.0 + dispersion * rate
    shrunk = log(growth)
    expected = rate / growth
    value = y * (x - shrunk) - shrunk / dispersion
    return value, (rate - y) / growth, expected * (1.0 + dispersion * y) / growth, expected


def steepness(y, mean, slope, curvature, expected, dispersion):
    """Return the precision u of an entry's pseudo-data, given expectations of its terms at this mean of x.

    The curvature, but never so little that y^ would lie far beyond the mode, r = y: where the rate is far
    below a high count there is nearly no curvature, and a step would go far too long. A dispersion of 0
    stands for Poisson's.
    """
    given = y if y > 0.05 else 0.05
    if dispersion > 0.0:
        mode, most = log(given), FARTHEST[1] * sqrt(1.0 / given + dispersion)
    else:
        mode = given + log(1.0 - exp(-given if given < 40.0 else -40.0))
        most = FARTHEST[0] * sqrt(1.0 + y)
    usual = BEYOND / sqrt(expected if expected > 1e-300 else 1e-300)
    distance = mode - mean
    size = distance if distance > 0.0 else -distance
    steepest = (slope if slope > 0.0 else -slope) / (size + (usual if usual < most else most))
    u = steepest if slope * distance < 0.0 and steepest > curvature else curvature
    least = 0.25 / -mean if mean < LOWEST else 0.0
    return u if u > least else least


def dispersion_terms(y, x, dispersion):
    """Return the first and second derivative of `negative_binomial_terms`' log p by the dispersion."""
    x = x if x > LOWEST else LOWEST
    rate = exp(x if x < HIGHEST else HIGHEST)
    a = dispersion * rate
    b = 1.0 + a
    q = rate / b
    if a > 1e-2:  # h = log(1 + a) / delta by delta: first and second derivative
        first = (a / b - log(b)) / (dispersion * dispersion)
        second = (-q * q - 2.0 * first) / dispersion
    else:
        first = -rate * rate * (0.5 - a * (2.0 / 3.0 - a * (0.75 - 0.8 * a)))
        second = rate * rate * rate * (2.0 / 3.0 - a * (1.5 - a * (2.4 - a * (10.0 / 3.0))))
    return -y * q - first, y * q * q - second


def rising(y, dispersion):
    """Return sum_(j < y) log(1 + delta j), and its first and second derivative by delta > 0.

    Eight terms one by one, the others by Euler and Maclaurin's formula (relative error below 1e-8).
    """
    value, first, second = 0.0, 0.0, 0.0
    j = 0.0
    while j < y and j < 8.0:
        b = 1.0 + dispersion * j
        value += log(b)
        first += j / b
        second -= (j / b) * (j / b)
        j += 1.0
    if y <= 8.0:
        return value, first, second
    d = dispersion
    for end in range(2):
        t = y if end else 8.0
        sign = 1.0 if end else -1.0
        b = 1.0 + d * t
        g = log(b)
        # antiderivative of log(1 + d t), of t / (1 + d t), of -(t / (1 + d t))^2
        value += sign * ((b * g - d * t) / d)
        if d * t > 1e-2:
            first += sign * (t / d - g / (d * d))
            second -= sign * (t / (d * d) - 2.0 * g / (d * d * d) + t / (d * d * b))
        else:
            a = d * t
            first += sign * t * t * (0.5 - a * (1.0 / 3.0 - a * (0.25 - 0.2 * a)))
            second -= sign * t * t * t * (1.0 / 3.0 - a * (0.5 - a * (0.6 - a * (2.0 / 3.0))))
        # - h / 2 + h' / 12 - h''' / 720 + h^(5) / 30240 of each
        value += sign * (-0.5 * g + d / (12.0 * b) - d**3 / (360.0 * b**3) + d**5 / (1260.0 * b**5))
        first += sign * (-0.5 * t / b + 1.0 / (12.0 * b * b) - d * d / (120.0 * b**4) + d**4 / (252.0 * b**6))
        second -= sign * (-0.5 * t * t / (b * b) + t / (6.0 * b**3) + d * (1.0 - d * t) / (60.0 * b**5))
    return value, first, second
