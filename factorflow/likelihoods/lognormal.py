"""Lognormal and logit-normal likelihood: log y, or log(y / (1 - y)), is normal about x; phi is the log sd."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorflow.core.block import Array
from factorflow.kernels.device import namespace
from factorflow.kernels.special import logistic
from factorflow.likelihoods.base import Message
from factorflow.likelihoods.beta import Beta
from factorflow.likelihoods.gaussian import Gaussian
from factorflow.likelihoods.poisson import LARGEST_VARIANCE, rate_of

STEPS = np.arange(-27, 28) * 0.3
"""Nodes of a trapezoidal rule for means of a logistic function of a normal variable."""


@dataclass(frozen=True)
class Lognormal(Gaussian):
    """Positive numbers whose logarithms have normal noise."""

    name, is_location, smallest = "lognormal", False, 0.0
    phi_variables = {"noise_scale": "Standard deviation of the noise of what is normal."}

    def start(self, y: Array, aux: Array | None = None) -> Array:
        return namespace(y).log(y)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        return -self.start(y)

    def terms(self, y: Array, m: Array, v: Array | float, phi: Array, aux: Array | None = None) -> Message:
        return super().terms(self.start(y), m, v, phi)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return self.predict(x, 0.0 * x, phi)

    def information(self, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return namespace(x).exp(-2.0 * phi[0, ...]) + 0.0 * x  # E y says nothing of x where noise is large

    def predict(self, m: Array, v: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        v = v + namespace(m).exp(2.0 * phi[0, ...])
        mean = rate_of(m + 0.5 * v)
        return mean, mean**2 * np.expm1(np.minimum(v, LARGEST_VARIANCE))

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return super().tails(self.start(y), x, phi)

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return rate_of(super().draw(uniform, x, phi))


@dataclass(frozen=True)
class LogitNormal(Lognormal):
    """Numbers between 0 and 1 whose log odds have normal noise."""

    name, largest, remedy = "logit_normal", 1.0, Beta.remedy

    def start(self, y: Array, aux: Array | None = None) -> Array:
        return namespace(y).log(y) - namespace(y).log1p(-y)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        return -namespace(y).log(y) - namespace(y).log1p(-y)

    def predict(self, m: Array, v: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        xp, total, mean, square = namespace(m), 0.0, 0.0 * m, 0.0 * m
        sd = xp.sqrt(v + xp.exp(2.0 * phi[0, ...]))
        for t, weight in zip(STEPS.tolist(), np.exp(-0.5 * STEPS**2).tolist(), strict=True):
            y, total = logistic(m + t * sd), total + weight
            mean, square = mean + weight * y, square + weight * y**2
        return mean / total, xp.maximum(square / total - (mean / total) ** 2, 0.0)  # below it by rounding

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return logistic(Gaussian.draw(self, uniform, x, phi))
