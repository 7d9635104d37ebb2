"""Log-likelihoods of counts for one entry at one predictor: what the loops of the CPU and of CUDA share.

A count of rate r = log(1 + e^x) and dispersion delta has variance V = r + delta r^2: negative binomial, a
gamma multiplier of the rate of variance delta integrated out; Poisson at delta = 0. Up to log y!::

    log p = y (log r - log(1 + delta r)) - log(1 + delta r) / delta + sum_(j < y) log(1 + delta j)

The last term (`rising`) does not depend on x. Expectations over x ~ N(m, v) are sums over `NODES`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from math import log

import numpy as np

from factorflow.models.sparse_gfa.kernels.entry_bounds import softplus_parts

__all__ = ["LEAST", "NODES", "WEIGHTS", "count_terms", "dispersion_terms", "rising"]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
NODES = tuple(float(node) for node in _NODES)
WEIGHTS = tuple(float(weight) for weight in _WEIGHTS / _WEIGHTS.sum())
"""Gauss-Hermite nodes of a standard normal variable, and their weights: exact for polynomials up to x^17."""

LEAST = 0.25
"""Curvature of an entry in units of what is expected of it, at least: the log-likelihood of a negative
binomial is not concave, and a step against a curvature near 0 would go anywhere."""

LOWEST = -30.0
"""Predictors are kept above this, where the rate is 1e-13."""


def count_terms(y, x, dispersion):
    """Return log p less what is free of x, -d log p / dx, -d^2 log p / dx^2, and the mean of the latter."""
    x = x if x > LOWEST else LOWEST
    rate, s = softplus_parts(x)
    growth = 1.0 + dispersion * rate
    shrunk = log(growth)
    spread = shrunk / dispersion if dispersion > 0.0 else rate
    variance = rate * growth
    excess = rate - y
    value = y * (log(rate) - shrunk) - spread
    slope = s * excess / variance
    expected = s * s / variance
    curvature = expected * (1.0 - excess * (1.0 + 2.0 * dispersion * rate) / variance)
    curvature += s * (1.0 - s) * excess / variance
    return value, slope, curvature, expected


def dispersion_terms(y, x, dispersion):
    """Return the first and second derivative of `count_terms`' log p by the dispersion, > 0."""
    x = x if x > LOWEST else LOWEST
    rate = softplus_parts(x)[0]
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
        second -= sign * (
            -0.5 * t * t / (b * b) + t / (6.0 * b**3) + d * (1.0 - d * t) / (60.0 * b**5)
        )
    return value, first, second
