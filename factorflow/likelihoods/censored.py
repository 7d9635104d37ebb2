"""Censored likelihood: normal measurements, some of which are known to lie below or above a limit alone.

aux is 0 where y was measured, -1 where the entry lies below y, 1 where it lies above. phi is the logarithm of
the standard deviation of the noise. Moments, tails and draws are those of what would have been measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from factorflow.core.block import Array
from factorflow.kernels.device import namespace
from factorflow.kernels.special import log_ndtr
from factorflow.likelihoods.base import Likelihood, Message, quadrature
from factorflow.likelihoods.gaussian import Gaussian


@dataclass(frozen=True)
class Censored(Gaussian):
    """Measurements with limits of detection."""

    name, aux = "censored", "censored"
    phi_variables = {"noise_scale": "Standard deviation of the noise, in data units."}

    def report_phi(self, phi: Array, scale: Array) -> dict[str, Array]:
        return {"noise_scale": np.exp(phi[0]) * scale}

    def phi_from_report(self, report: Mapping[str, Array]) -> Array:
        return np.log(np.asarray(report["noise_scale"]))[None]

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        measured = Gaussian.terms(self, y, x, 0.0, phi).value
        if aux is None:
            return measured
        xp = namespace(x)
        beyond = log_ndtr(xp.where(aux < 0, y - x, x - y) * xp.exp(-phi[0, ...]))
        return xp.where(aux == 0, measured, beyond)

    def terms(self, y: Array, m: Array, v: Array | float, phi: Array, aux: Array | None = None) -> Message:
        measured = Gaussian.terms(self, y, m, v, phi)
        if aux is None:
            return measured
        beyond, xp = quadrature(self, y, m, v, phi, aux), namespace(m)
        return Message(*(xp.where(aux == 0, a, b) for a, b in zip(measured, beyond, strict=True)))

    def residual(self, difference: Array, aux: Array | None = None) -> Array:
        """Return differences; 0 of entries that lie beyond their limits as they are predicted to."""
        return (
            difference if aux is None else namespace(difference).where(difference * aux < 0, 0.0, difference)
        )

    def bound(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        """Jensen's has no form of its own here."""
        return Likelihood.bound(self, y, m, v, phi, aux)

    @property
    def has_bound(self) -> bool:
        return False
