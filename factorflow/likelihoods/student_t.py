"""Student's t likelihood: y = x + e^phi t, t of nu degrees of freedom; phi is the logarithm of the scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lgamma, log, pi

import numpy as np

from factorflow.core.block import Array
from factorflow.errors import InputError
from factorflow.kernels.device import namespace
from factorflow.likelihoods.base import Likelihood, Message


@dataclass(frozen=True)
class StudentT(Likelihood):
    """Real numbers with outliers. The log density is not concave, so messages are those of the bound."""

    nu: float = 4.0

    name, kinds, n_phi = "student_t", ("gaussian",), 1
    is_location, concave, clip_start = True, False, 3.0
    phi_variables = {"noise_scale": "Scale of Student's t of the noise, in data units."}

    def __post_init__(self) -> None:
        if not self.nu > 0.0:
            raise InputError("nu", self.nu, "degrees of freedom above 0", "Leave it out for 4.")

    def report_phi(self, phi: Array, scale: Array) -> dict[str, Array]:
        return {"noise_scale": np.exp(phi[0]) * scale}

    def phi_from_report(self, report: Mapping[str, Array]) -> Array:
        return np.log(np.asarray(report["noise_scale"]))[None]

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return self._of_square((y - x) ** 2, phi)

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        return self.bound(y, m, v, phi)

    def bound(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        """Jensen's: log p is convex in (y - x)^2. u is the precision of its tangent."""
        square = (y - m) ** 2 + v
        u = (self.nu + 1.0) / (self.nu * namespace(m).exp(2.0 * phi[0, ...]) + square)
        return Message(self._of_square(square, phi), u * (y - m), u)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        inflation = self.nu / max(self.nu - 2.0, 0.1)  # infinite variances are given a finite stand-in
        return x, inflation * namespace(x).exp(2.0 * phi[0, ...]) + 0.0 * x

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        from scipy.special import stdtr

        z = (y - x) * np.exp(-phi[0])
        return stdtr(self.nu, z), stdtr(self.nu, -z)

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        from scipy.special import stdtrit

        return x + stdtrit(self.nu, uniform) * np.exp(phi[0])

    def phi_start(self, n: Array, total: Array, squares: Array) -> Array:
        variance = np.maximum(squares / n - (total / n) ** 2, 1e-12)
        return 0.5 * np.log(variance / self.moments(0.0 * n, np.zeros((1, 1)))[1])[None]

    def _of_square(self, square: Array, phi: Array) -> Array:
        nu = self.nu
        constant = lgamma(0.5 * (nu + 1)) - lgamma(0.5 * nu) - 0.5 * log(nu * pi)
        growth = square * namespace(square).exp(-2.0 * phi[0, ...]) / nu
        return constant - phi[0, ...] - 0.5 * (nu + 1.0) * namespace(square).log1p(growth)
