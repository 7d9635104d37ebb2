"""Poisson likelihood: counts of rate e^x."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorflow.core.block import Array
from factorflow.kernels.device import namespace, on_device
from factorflow.kernels.special import gammaln
from factorflow.likelihoods.base import LARGEST, Likelihood, Message

LEAST_RATE = 0.05
"""Mean of counts that an intercept begins with at least."""

LARGEST_VARIANCE = LARGEST / 4.0
"""Largest variance of a logarithm of which there are moments: e^v times the square of a rate is finite."""

MANY = 1e9
"""Mean of counts from which quantiles are those of a distribution without steps: SciPy's end in NaN."""


def rate_of(x: Array) -> Array:
    """Return e^x, at most e^`LARGEST`."""
    xp = namespace(x)
    return xp.exp(xp.minimum(x, xp.asarray(LARGEST, dtype=x.dtype)))


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts whose variance is their mean; E e^x = e^(m + v/2) gives messages in closed form."""

    name, kinds, discrete, limited, smallest = "poisson", ("poisson",), True, True, 0.0
    log_link = True
    loading_size = 0.01  # of counts of a mean of 500 a few hundredths: a wider slab would hide them

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return y * x - rate_of(x)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        if on_device(y):
            return -gammaln(y + 1.0)
        out = np.array(0.0 * y)
        some = y > 1.0  # of zeros and ones, which most counts of cells are, it is 0
        out[some] = -gammaln(y[some] + 1.0)
        return out

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        rate = rate_of(m + 0.5 * v)
        return Message(y * m - rate, y - rate, rate)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        rate = rate_of(x)
        return rate, rate

    def predict(self, m: Array, v: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        mean = rate_of(m + 0.5 * v)
        return mean, mean + mean**2 * np.expm1(np.minimum(v, LARGEST_VARIANCE))

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        from scipy.stats import poisson

        return poisson.cdf(y - 1.0, rate_of(x)), poisson.sf(y, rate_of(x))

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        from scipy.special import ndtri
        from scipy.stats import poisson

        rate = rate_of(x)
        high = np.maximum(rate, MANY)
        normal = np.floor(high + np.sqrt(high) * ndtri(uniform))
        return np.where(rate < MANY, poisson.ppf(uniform, np.minimum(rate, MANY)), normal)

    def start(self, y: Array, aux: Array | None = None) -> Array:
        """Twice the root of y + 3/8 (Anscombe 1948)."""
        return np.float32(2.0) * namespace(y).sqrt(y + np.float32(0.375))

    def start_moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return moments of y; of negative binomial counts the roots have the variance 1 + mean / r."""
        y = np.maximum((mean**2 + variance) / 4.0 - 0.375, LEAST_RATE)
        return y, variance * y

    def intercept(self, n: Array, total: Array) -> Array:
        return np.log(np.maximum(total, 0.5) / n)
