"""Negative binomial likelihood: counts of mean mu = e^x and variance mu + mu^2 / r, phi = log r."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

import numpy as np

from factorflow.core.block import Array
from factorflow.kernels.device import namespace, on_device
from factorflow.kernels.special import digamma, gammaln, softplus, trigamma
from factorflow.likelihoods.base import Message, expected_softplus
from factorflow.likelihoods.poisson import LARGEST_VARIANCE, MANY, Poisson, rate_of

FIRST_DISPERSIONS = 1e-4, 1.0
"""Smallest and largest dispersion 1 / r that a fit begins with."""


@dataclass(frozen=True)
class NegativeBinomial(Poisson):
    """Counts with gamma-distributed multipliers of their rates."""

    name, n_phi, phi_mean = "negative_binomial", 1, log(2.0)
    phi_variables = {"dispersion": "Dispersion of counts, delta: their variance is mu + delta mu^2."}

    def report_phi(self, phi: Array, scale: Array) -> dict[str, Array]:
        return {"dispersion": np.exp(-phi[0])}

    def phi_from_report(self, report: Mapping[str, Array]) -> Array:
        return -np.log(np.asarray(report["dispersion"]))[None]

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        r, x = namespace(phi).exp(phi[0, ...]), x - phi[0, ...]
        return y * x - (y + r) * softplus(x)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        if not on_device(y):
            from factorflow.kernels.rising import log_rising

            return log_rising(np.asarray(y), phi[0, ...])
        y, phi = _to_float64(y, phi)
        r = namespace(phi).exp(phi[0, ...])
        return gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        return _message(y, m, phi, expected_softplus(m - phi[0, ...], v))

    def bound(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        """Jaakkola and Jordan's of y + r trials at x - log r: loose where r is far above mu."""
        xp, r, m = namespace(m), namespace(phi).exp(phi[0, ...]), m - phi[0, ...]
        xi = xp.sqrt(m**2 + v + 1e-12)
        u = (y + r) * xp.tanh(0.5 * xi) / (2.0 * xi)
        value = 0.5 * (y - r) * m - (y + r) * (softplus(xi) - 0.5 * xi)
        return Message(value, 0.5 * (y - r) - u * m, u)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return rate_of(x), rate_of(x) + rate_of(2.0 * x - phi[0, ...])

    def predict(self, m: Array, v: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        mean = rate_of(m + 0.5 * v)
        square = mean**2 * np.exp(np.minimum(v, LARGEST_VARIANCE))
        return mean, mean + (1.0 + np.exp(-phi[0])) * square - mean**2

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        from scipy.stats import nbinom

        r, p = np.exp(phi[0]), 1.0 / (1.0 + rate_of(x - phi[0]))
        return nbinom.cdf(y - 1.0, r, p), nbinom.sf(y, r, p)

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        from scipy.special import gammaincinv
        from scipy.stats import nbinom

        mean, r = rate_of(x), np.exp(phi[0])
        high = np.maximum(mean, MANY)
        shape = 1.0 / (1.0 / high + 1.0 / r)  # of a gamma distribution of this mean and variance
        smooth = np.floor(gammaincinv(shape, uniform) * high / shape)
        counted = nbinom.ppf(uniform, r, 1.0 / (1.0 + np.minimum(mean, MANY) / r))
        return np.where(mean < MANY, counted, smooth)

    def phi_start(self, n: Array, total: Array, squares: Array) -> Array:
        mean = np.maximum(total / n, 0.05)
        excess = (squares / n - mean**2 - mean) / mean**2
        return -np.log(np.clip(excess, *FIRST_DISPERSIONS))[None]

    def phi_derivatives(
        self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None, *, bounded: bool = False
    ) -> Array:
        if bounded:
            return super().phi_derivatives(y, m, v, phi, aux, bounded=True)
        if not on_device(m):
            return self.terms_and_phi(y, m, v, phi)[2]
        y, m, v, phi = _to_float64(y, m, v, phi)
        value, slope, curvature = expected_softplus(m - phi[0, ...], v)
        r = namespace(phi).exp(phi[0, ...])
        of_gammas = r * (digamma(y + r) - digamma(r)) - r * value
        second = of_gammas + r**2 * (trigamma(y + r) - trigamma(r)) + 2.0 * r * slope - (y + r) * curvature
        return namespace(m).stack([of_gammas - y + (y + r) * slope, second])

    def terms_and_phi(
        self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None, *, bounded: bool = False
    ) -> tuple[Message, Array, Array]:
        if bounded or on_device(m):
            return super().terms_and_phi(y, m, v, phi, aux, bounded=bounded)
        from factorflow.kernels.rising import derivatives

        looked_up = expected_softplus(m - phi[0, ...], v)
        out = derivatives(y, phi[0, ...], looked_up)
        return _message(y, m, phi, looked_up), out[0], out[1:]


def _to_float64(*arrays: Array | float) -> tuple[Array, ...]:
    """Return arrays of a device in double precision: with large r, differences are below single."""
    return tuple(a.astype("float64") if hasattr(a, "astype") else a for a in arrays)


def _message(y: Array, m: Array, phi: Array, softplus: tuple[Array, Array, Array]) -> Message:
    """Return the message of counts, given E softplus of x - log r and its derivatives."""
    r, (value, slope, curvature) = namespace(phi).exp(phi[0, ...]), softplus
    return Message(y * (m - phi[0, ...]) - (y + r) * value, y - (y + r) * slope, (y + r) * curvature)
