"""Beta likelihood: numbers between 0 and 1 of mean 1 / (1 + e^-x) and precision e^phi."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from factorflow.core.block import Array
from factorflow.kernels.device import namespace
from factorflow.kernels.special import gammaln, logistic
from factorflow.likelihoods.base import LARGEST, Likelihood, nodes


@dataclass(frozen=True)
class Beta(Likelihood):
    """Fractions: y ~ Beta(s mu, s (1 - mu)), s the precision; their variance is mu (1 - mu) / (1 + s)."""

    name, kinds, smallest, largest = "beta", ("gaussian",), 0.0, 1.0
    limited, n_phi, phi_mean = True, 1, log(10.0)
    remedy = "Move 0 and 1 inwards, (y (N - 1) + 0.5) / N of N samples, or choose another likelihood."
    phi_variables = {"precision": "Precision of the beta distribution, s: Var y is mu (1 - mu) / (1 + s)."}

    def shapes(self, x: Array, phi: Array) -> tuple[Array, Array]:
        """Return both parameters of the distribution."""
        xp, s = namespace(x), namespace(phi).exp(phi[0, ...])
        x = xp.where(x > LARGEST, LARGEST, xp.where(x < -LARGEST, -LARGEST, x))
        return s * logistic(x), s * logistic(-x)

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        a, b = self.shapes(x, phi)
        return a * self.start(y) - gammaln(a) - gammaln(b)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        xp, s = namespace(y), namespace(phi).exp(phi[0, ...])
        return gammaln(s) + (s - 1.0) * xp.log1p(-y) - xp.log(y)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return logistic(x), logistic(x) * logistic(-x) / (1.0 + namespace(phi).exp(phi[0, ...]))

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        from scipy.special import betainc

        a, b = self.shapes(x, phi)
        return betainc(a, b, y), betainc(b, a, 1.0 - y)

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        from scipy.special import betaincinv

        quantiles = betaincinv(*self.shapes(x, phi), uniform)
        return np.clip(quantiles, np.finfo(float).tiny, 1.0 - np.finfo(float).epsneg)

    def start(self, y: Array, aux: Array | None = None) -> Array:
        return namespace(y).log(y) - namespace(y).log1p(-y)

    def start_moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        at = [(w, logistic(mean + t * np.sqrt(variance))) for t, w in zip(*nodes(9), strict=True)]
        centre = sum(w * y for w, y in at)
        return centre, sum(w * (y - centre) ** 2 for w, y in at)

    def intercept(self, n: Array, total: Array) -> Array:
        return np.log(total) - np.log(n - total)

    def phi_start(self, n: Array, total: Array, squares: Array) -> Array:
        mean = total / n
        variance = np.maximum(squares / n - mean**2, 1e-9)
        return np.log(np.maximum(mean * (1.0 - mean) / variance - 1.0, 0.1))[None]
