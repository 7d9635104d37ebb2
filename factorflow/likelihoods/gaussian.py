"""Gaussian likelihood: y ~ N(x, e^(2 phi)), phi the logarithm of the standard deviation."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

import numpy as np

from factorflow.core.block import Array
from factorflow.kernels.device import namespace
from factorflow.likelihoods.base import Likelihood, Message


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Real numbers with normal noise."""

    name, kinds, n_phi = "gaussian", ("gaussian",), 1
    is_location = True

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return self.terms(y, x, 0.0, phi).value

    def terms(self, y: Array, m: Array, v: Array | float, phi: Array, aux: Array | None = None) -> Message:
        residual = y - m
        u = namespace(residual).exp(-2.0 * phi[0, ...]) + 0.0 * residual
        return Message(-0.5 * (log(2 * pi) + u * (residual**2 + v)) - phi[0, ...], u * residual, u)

    def bound(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        return self.terms(y, m, v, phi)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return x, namespace(x).exp(2.0 * phi[0, ...]) + 0.0 * x

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        from scipy.special import ndtr

        z = (y - x) * np.exp(-phi[0])
        return ndtr(z), ndtr(-z)

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        from scipy.special import ndtri

        return x + ndtri(uniform) * np.exp(phi[0])

    def phi_start(self, n: Array, total: Array, squares: Array) -> Array:
        variance = np.maximum(squares / n - (total / n) ** 2, 1e-12)
        return 0.5 * np.log(variance)[None]
