"""Exact draws of Polya-Gamma variables for one entry, and a loop over the entries of a block.

Given omega ~ PG(1, x) a binary entry is Gaussian in its predictor x, of precision omega and value
(y - 1/2) / omega [1]_. PG(1, x) is a fourth of Devroye's J*(1, |x| / 2), drawn by rejection from an inverse
Gaussian left of `CUT` and an exponential right of it; the density is an alternating series, summed until it
decides [2]_. Every try takes fresh words of the entry's own counter: how many an entry needs moves no other.

References
----------
.. [1] N. G. Polson, J. G. Scott, J. Windle, "Bayesian inference for logistic models using Polya-Gamma latent
   variables", Journal of the American Statistical Association 108 (2013) 1339-1349.
.. [2] L. Devroye, "On exact simulation algorithms for some distributions related to Jacobi theta functions",
   Statistics and Probability Letters 79 (2009) 2251-2259.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from math import erfc, exp, log, pi, sqrt

import numpy as np

from factorflow.kernels.scalar.normal import at_least_zero, fast_exp, ndtr, ndtri
from factorflow.kernels.scalar.philox import philox_pair

__all__ = ["CUT", "draw", "draw_rows"]

CUT = 0.64
"""Where the two series of the density take turns: each converges fast on its side."""
TAIL = 0.5 * erfc(sqrt(0.5 / CUT))
"""P(N < -1 / sqrt(CUT)) of a standard normal N: then 1 / N^2 is below CUT."""
SURE = 1.0 - 3.0 * exp(-4.0 / CUT) - 1e-9
"""The second term of either series is at most 3 e^(-4 / CUT) of the first: lower levels are let in."""


def coefficient(n, x):
    """Return the n-th term of the alternating series of the density of J*(1, 0) at x."""
    m = n + 0.5
    if x > CUT:
        return pi * m * exp(-0.5 * m * m * pi * pi * x)
    return (2.0 / (pi * x)) ** 1.5 * pi * m * exp(-2.0 * m * m / x)


def right_share(x):
    """Return the share of proposals right of CUT: of the exponential, beside the inverse Gaussian below CUT.

    Without a branch or a call, for loops of vector instructions. Beyond |x| = 60 it is 0 as far as double
    precision goes, and stays as it is there.
    """
    z = 0.5 * abs(x)
    z = z if z < 30.0 else 30.0
    root, rate, decay = 1.0 / sqrt(CUT), _rate(z), fast_exp(-z)
    left = decay * ndtr(root * (CUT * z - 1.0)) + ndtr(-root * (CUT * z + 1.0)) / decay
    right = 0.25 * pi / rate * fast_exp(-rate * CUT)
    return right / (right + left)


def _rate(z):
    return pi * pi / 8.0 + 0.5 * z * z


def inverse_gaussian(z, seed, row, word, iteration, place):
    """Return an inverse Gaussian of mean 1 / z and shape 1, given that it is below CUT; and the next word."""
    while True:
        first, second = philox_pair(seed, row, word, iteration, place)
        word += np.uint64(1)
        if z * CUT < 1.0:  # the mean lies beyond: by way of the reciprocal of a squared tail normal
            normal = ndtri(first * TAIL)
            x = 1.0 / (normal * normal)
            if second <= fast_exp(-0.5 * z * z * x):
                return x, word
        else:
            mean = 1.0 / z
            normal = ndtri(first)
            y = mean * normal * normal
            x = mean + 0.5 * mean * (y - sqrt(4.0 * y + y * y))
            if second > mean / (mean + x):
                x = mean * mean / x
            if x < CUT:
                return x, word


def draw(x, share, seed, row, iteration, place):
    """Return a draw of PG(1, x); share: `right_share`; row: the entry's number, as the others uint64."""
    z = 0.5 * abs(x)
    word = np.uint64(0)
    while True:
        side, level = philox_pair(seed, row, word, iteration, place)
        word += np.uint64(1)
        if side < share:
            found = CUT - log(side / share) / _rate(z)  # side / share is uniform, given this side
        else:
            found, word = inverse_gaussian(z, seed, row, word, iteration, place)
        if level < SURE:
            return 0.25 * found
        total = coefficient(0, found)
        level *= total
        n = 0
        while True:
            n += 1
            if n % 2:
                total -= coefficient(n, found)
                if level <= total:
                    return 0.25 * found
            else:
                total += coefficient(n, found)
                if level > total:
                    break


def draw_rows(values, x, rows, width, offset, seed, iteration, place, precision, weighted):
    """Draw omega of every entry into ``precision``, set ``weighted`` to y - 1/2; return sum log p(y | x).

    Both are 0 where the entry is missing. An entry's number is its row's times ``width`` plus ``offset`` plus
    its column.
    """
    total = 0.0
    share, free = np.empty(values.shape[1]), np.empty(values.shape[1])
    for i in range(values.shape[0]):
        first = rows[i] * width + offset
        for j in range(values.shape[1]):
            share[j] = right_share(x[i, j])
        for j in range(values.shape[1]):
            free[j] = at_least_zero(x[i, j]) + log(1.0 + fast_exp(-abs(x[i, j])))
        for j in range(values.shape[1]):
            y = np.float64(values[i, j])
            if y >= 0.0:
                precision[i, j] = draw(x[i, j], share[j], seed, first + np.uint64(j), iteration, place)
                weighted[i, j] = y - 0.5
                total += y * x[i, j] - free[j]
            else:
                precision[i, j] = 0.0
                weighted[i, j] = 0.0
    return total
