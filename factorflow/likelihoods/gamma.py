"""Gamma likelihood: positive numbers of mean e^x and shape k = e^phi; their variance is mean^2 / k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorflow.core.block import Array
from factorflow.kernels.device import namespace
from factorflow.kernels.special import gammaln
from factorflow.likelihoods.base import LARGEST, Likelihood, Message
from factorflow.likelihoods.poisson import rate_of


@dataclass(frozen=True)
class Gamma(Likelihood):
    """Positive numbers whose standard deviation grows as their mean: concentrations, durations."""

    name, kinds, smallest, limited, n_phi, phi_mean = "gamma", ("gaussian",), 0.0, True, 1, 1.0
    phi_variables = {"shape": "Shape of the gamma distribution, k: the variance is mean^2 / k."}

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return -namespace(phi).exp(phi[0, ...]) * (x + y * rate_of(-x))

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        k = namespace(phi).exp(phi[0, ...])
        return k * phi[0, ...] - gammaln(k) + (k - 1.0) * namespace(y).log(y)

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        k, ratio = namespace(phi).exp(phi[0, ...]), y * rate_of(0.5 * v - m)
        return Message(-k * (m + ratio), k * (ratio - 1.0), k * ratio)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return rate_of(x), rate_of(2.0 * x - phi[0, ...])

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        from scipy.special import gammainc, gammaincc

        k = np.exp(phi[0])
        return gammainc(k, k * y * rate_of(-x)), gammaincc(k, k * y * rate_of(-x))

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        from scipy.special import gammaincinv

        return gammaincinv(np.exp(phi[0]), uniform) * rate_of(x - phi[0])

    def start(self, y: Array, aux: Array | None = None) -> Array:
        return namespace(y).log(y)

    def start_moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return moments of y: Var log y is about 1 / k + 1 / (2 k^2), E log y is x - 1 / (2 k) or so."""
        v = np.maximum(variance, 1e-12)
        k = (1.0 + np.sqrt(1.0 + 2.0 * v)) / (2.0 * v)
        y = np.exp(np.minimum(mean + 0.5 / k + 1.0 / (12.0 * k**2), LARGEST))
        return y, y**2 / k

    def intercept(self, n: Array, total: Array) -> Array:
        return np.log(total / n)

    def phi_start(self, n: Array, total: Array, squares: Array) -> Array:
        mean = total / n
        return np.log(mean**2 / np.maximum(squares / n - mean**2, 1e-9 * mean**2))[None]
