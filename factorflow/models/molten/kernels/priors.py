"""Parameters shared by all levels: the prior of the factors, its bound, and the best scales; (S, K).

Starts s, columns k. Of all variables together there are ``size`` (K,), how many levels are learned, and
``sums`` (4, S, K), both as in `state.Totals`. Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.kernels.gammas import compile_ordered, digamma_and_gammaln
from factorflow.kernels.vectors import inner

Array = Any
_STEPS = 64


@compile_ordered
def expected_logs(shape: Array, rate: Array, out: Array) -> None:
    """Write E x and E log x of x ~ Gamma(shape, rate), (S, K) each, into (2, S, K)."""
    for s in range(shape.shape[0]):
        for k in range(shape.shape[1]):
            out[0, s, k] = shape[s, k] / rate[s, k]
            out[1, s, k] = digamma_and_gammaln(shape[s, k])[0] - math.log(rate[s, k])


@compile_ordered
def write_scale(
    size: Array, sums: Array, each: Array, times: float, prior_shape: float, prior_rate: float, out: Array
) -> None:
    """Write q of the rates of the prior, (2, S, K): shape e + each_s n, rate f + times sum of means."""
    for s in range(out.shape[1]):
        for k in range(out.shape[2]):
            out[0, s, k] = prior_shape + each[s] * size[k]
            out[1, s, k] = prior_rate + times * sums[0, s, k]


@compile_ordered
def add_prior_terms(
    size: Array, sums: Array, shape: Array, rate: Array, scale: Array, with_scale: Array, prior_shape: float,
    prior_rate: float, out: Array,
) -> None:  # fmt: skip
    """Add E[log p - log q] of Gamma factors, and of their rates in the columns ``with_scale``, to out (S,).

    ``shape`` (S, K) is that of their prior, ``rate`` (2, S, K) E b and E log b, ``scale`` (2, S, K) q(b).
    """
    log_prior_rate, constant = math.log(prior_rate), digamma_and_gammaln(prior_shape)[1]
    for s in range(shape.shape[0]):
        for k in range(shape.shape[1]):
            a = shape[s, k]
            term = sums[3, s, k] + size[k] * (a * rate[1, s, k] - digamma_and_gammaln(a)[1])
            term += (a - 1.0) * sums[2, s, k] - rate[0, s, k] * sums[0, s, k]
            if with_scale[k]:
                own, by = scale[0, s, k], scale[1, s, k]
                psi, gammaln = digamma_and_gammaln(own)
                log_by = math.log(by)
                term += prior_shape * log_prior_rate - constant + (prior_shape - own) * (psi - log_by)
                term += -(prior_rate - by) * (own / by) - own * log_by + gammaln
            out[s] += term


@compile_ordered
def best_scales(counts: Array, sums: Array, out: Array) -> None:
    """See `factorflow.models.molten.scales.best_scales`."""
    size = counts.shape[0]
    for s in range(counts.shape[1]):
        for k in range(counts.shape[2]):
            least, target = counts[0, s, k], 0.0
            for g in range(size):
                least = min(least, counts[g, s, k])
                target += math.log(sums[g, s, k])
            x = target / size
            for _ in range(_STEPS):
                gap, value, slope = math.exp(x), 0.0, 0.0
                for g in range(size):
                    part = counts[g, s, k] - least + gap
                    value += math.log(part)
                    slope += gap / part
                move = (value - target) / slope
                x -= move
                if abs(move) < 1e-14 * (1.0 + abs(x)):
                    break
            mean = 0.0
            for g in range(size):
                out[g, s, k] = math.log((counts[g, s, k] - least + math.exp(x)) / sums[g, s, k])
                mean += out[g, s, k] / size
            for g in range(size):
                out[g, s, k] = math.exp(out[g, s, k] - mean)


@inner
def trigamma(x: float) -> float:
    """Return the derivative of psi: of x + 10 by its series, plus what lies between."""
    out = 0.0
    for i in range(10):
        out += 1.0 / ((x + i) * (x + i))
    one = 1.0 / (x + 10.0)
    two = one * one
    series = (((5.0 / 66.0 * two - 1.0 / 30.0) * two + 1.0 / 42.0) * two - 1.0 / 30.0) * two + 1.0 / 6.0
    return out + one * (1.0 + 0.5 * one + series * two)


@compile_ordered
def inverse_digamma(x: Array, out: Array) -> None:
    """Write a with psi(a) = x, (S,): Newton's method from the start of Minka (2000), appendix C."""
    for s in range(x.size):
        a = math.exp(x[s]) + 0.5 if x[s] >= -2.22 else -1.0 / (x[s] + np.euler_gamma)
        for _ in range(6):
            a -= (digamma_and_gammaln(a)[0] - x[s]) / trigamma(a)
        out[s] = a
