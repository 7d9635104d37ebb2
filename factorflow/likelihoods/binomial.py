"""Binomial likelihood: y of n trials (``aux``) succeed, with log odds x; Bernoulli where n = 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorflow.kernels.device import namespace
from factorflow.kernels.random import Step
from factorflow.kernels.special import gammaln, logistic, softplus
from factorflow.likelihoods.base import LARGEST, Likelihood, Message, expected_softplus
from factorflow.shape import Array

__all__ = ["Bernoulli", "Binomial"]


@dataclass(frozen=True)
class Binomial(Likelihood):
    """Successes of ``aux`` trials each."""

    name, kinds, discrete, limited = "binomial", ("poisson",), True, True

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return y * x - (1.0 if aux is None else aux) * softplus(x)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        return 0.0 * y if aux is None else gammaln(aux + 1.0) - gammaln(y + 1.0) - gammaln(aux - y + 1.0)

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        n = 1.0 if aux is None else aux
        value, slope, curvature = expected_softplus(m, v)
        return Message(y * m - n * value, y - n * slope, n * curvature)

    def bound(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        """Jaakkola and Jordan's: log p = (y - n/2) x - n log 2cosh(x/2) is convex in x^2."""
        xp, n = namespace(m), 1.0 if aux is None else aux
        xi = xp.sqrt(m**2 + v + 1e-12)
        u = n * xp.tanh(0.5 * xi) / (2.0 * xi)
        value = (y - 0.5 * n) * m - n * (softplus(xi) - 0.5 * xi)
        return Message(value, y - 0.5 * n - u * m, u)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        mean = (1.0 if aux is None else aux) * logistic(x)
        return mean, mean * logistic(-x)

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        from scipy.stats import binom

        n = 1.0 if aux is None else aux
        return binom.cdf(y - 1.0, n, logistic(x)), binom.cdf(n - y - 1.0, n, logistic(-x))

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        from scipy.stats import binom

        return binom.ppf(uniform, 1.0 if aux is None else aux, logistic(x))

    def start(self, y: Array, aux: Array | None = None) -> Array:
        return namespace(y).log((y + 0.5) / ((1.0 if aux is None else aux) - y + 0.5))

    def intercept(self, n: Array, total: Array) -> Array:
        return np.clip(np.log((total + 0.5) / (n - total + 0.5)), -LARGEST, LARGEST)


class Bernoulli(Binomial):
    """0 or 1."""

    name, kinds = "bernoulli", ("bernoulli",)

    def predict(self, m: Array, v: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        p = expected_softplus(m, v)[1]
        return p, p * (1.0 - p)

    def augment(
        self, y: Array, x: Array, rows: Array, columns: tuple[int, int], step: Step, site: int
    ) -> tuple[Array, Array, float]:
        """Polya-Gamma weights (Polson, Scott and Windle 2013)."""
        from factorflow.kernels.polya_gamma import draw_weights

        return draw_weights(y, x, rows, columns, step, site)
