"""Zero-inflated counts: 0 with a probability that no factor changes, else as another likelihood of counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import ClassVar

import numpy as np

from factorflow.core.block import Array
from factorflow.kernels.device import namespace
from factorflow.kernels.special import logistic, softplus
from factorflow.likelihoods.base import Likelihood, Message, quadrature
from factorflow.likelihoods.negative_binomial import NegativeBinomial
from factorflow.likelihoods.poisson import Poisson


@dataclass(frozen=True)
class ZeroInflatedPoisson(Poisson):
    """Poisson counts and zeros besides, pi of all entries; the last row of phi has the log odds of pi."""

    name, n_phi = "zero_inflated_poisson", 1
    phi_mean: ClassVar[tuple[float, ...]] = (-2.0,)
    counts: ClassVar[Likelihood] = Poisson()
    phi_variables = {"zero_inflation": "Probability of a zero that no factor changes, pi."}

    def report_phi(self, phi: Array, scale: Array) -> dict[str, Array]:
        return {**self.counts.report_phi(phi[:-1], scale), "zero_inflation": logistic(phi[-1])}

    def phi_from_report(self, report: Mapping[str, Array]) -> Array:
        share = np.asarray(report["zero_inflation"])[None]
        odds = np.log(share) - np.log1p(-share)
        return np.concatenate([self.counts.phi_from_report(report), odds]) if self.counts.n_phi else odds

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        of_counts, odds = phi[:-1, ...], phi[-1, ...]
        none = softplus(self.counts.log_kernel(0.0 * y, x, of_counts) - odds) - softplus(-odds)
        return namespace(x).where(y > 0, self.counts.log_kernel(y, x, of_counts), none)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        some = self.counts.log_factor(y, phi[:-1, ...]) - softplus(phi[-1, ...])
        return namespace(y).where(y > 0, some, 0.0 * y)

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        return quadrature(self, y, m, v, phi)

    def phi_derivatives(
        self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None, *, bounded: bool = False
    ) -> Array:
        return Likelihood.phi_derivatives(self, y, m, v, phi)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return self._with_zeros(*self.counts.moments(x, phi[:-1, ...]), phi)

    def predict(self, m: Array, v: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return self._with_zeros(*self.counts.predict(m, v, phi[:-1, ...]), phi)

    def _with_zeros(self, mean: Array, variance: Array, phi: Array) -> tuple[Array, Array]:
        share = logistic(-phi[-1, ...])
        return share * mean, share * (variance + (1.0 - share) * mean**2)

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        below, above = self.counts.tails(y, x, phi[:-1])
        share = logistic(-phi[-1])
        return np.where(y > 0, 1.0 - share + share * below, 0.0), share * above

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        none = logistic(phi[-1])
        left = np.clip((uniform - none) / (1.0 - none), 0.0, 1.0)
        return np.where(uniform <= none, 0.0, self.counts.draw(left, x, phi[:-1]))

    def intercept(self, n: Array, total: Array) -> Array:
        return super().intercept(n, total) + softplus(self.phi_mean[-1] + 0.0 * total)

    def phi_start(self, n: Array, total: Array, squares: Array) -> Array:
        return np.concatenate(
            [self.counts.phi_start(n, total, squares), np.full((1, len(n)), self.phi_mean[-1])]
        )


@dataclass(frozen=True)
class ZeroInflatedNegativeBinomial(ZeroInflatedPoisson):
    """The same of negative binomial counts."""

    name, n_phi, phi_mean = "zero_inflated_negative_binomial", 2, (log(2.0), -2.0)
    counts = NegativeBinomial()
    phi_variables = {**NegativeBinomial.phi_variables, **ZeroInflatedPoisson.phi_variables}
