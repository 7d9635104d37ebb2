"""Loadings whose distribution about 0 is learned: a mixture of zero and normals on a grid of scales.

References
----------
Stephens (2017), Biostatistics 18, 275-294; Wang and Stephens (2021), Journal of Machine Learning Research 22,
paper 133.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels.special import digamma, gamma_term, gammaln
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.base import LoadingSums, PriorConstants, log_alpha
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters, draw_gamma
from factorflow.models.sparse_gfa.loadings.mixture import Component, Mixture
from factorflow.models.sparse_gfa.state import View
from factorflow.models.sparse_gfa.weights import Weights


class AdaptiveShrinkage(Mixture):
    """w = 0, or N(0, c^2 / alpha), c = 2^-5 ... 2^3; shares pi ~ Dirichlet(1, ..., 1) of each factor."""

    name, help = "adaptive_shrinkage", "some are 0, others of a distribution that is learned"
    spikes, learns_shares, keeps_shares = True, True, True
    components = (Component("zero"), *(Component("normal", float(2.0**j)) for j in range(-5, 4)))
    n_shares = len(components)

    def log_shares(self, view: View, factor: int) -> Float64[Array, " J"]:
        """Return E log pi of a factor; all are alike to begin with."""
        if view.counts is None:
            return np.full(len(self.components), -np.log(len(self.components)))
        return _log_shares(view.counts[:, factor : factor + 1])[:, 0]

    def sums(self, weights: Weights) -> LoadingSums:
        """Return what the loadings add up; as counts the expected number of loadings of each component."""
        sums = super().sums(weights)
        return sums if weights.shares is None else replace(sums, counts=weights.shares.sum(axis=0))

    def learn(self, constants: PriorConstants, view: View, sums: LoadingSums) -> View:
        """Return the view with the parameters that follow from its loadings."""
        view = super().learn(constants, view, sums)
        return view if sums.counts is None else replace(view, counts=1.0 + sums.counts)

    def terms(self, constants: PriorConstants, view: View, sums: LoadingSums) -> Float64[Array, " K"]:
        """Return E log p(w, j) and the terms of alpha and pi, by factor."""
        total = 0.5 * (sums.included * log_alpha(view) - sums.squares * view.alpha)
        total += gamma_term(view.alpha_shape, view.alpha_rate, *constants.alpha)
        if view.counts is None or sums.counts is None:
            return np.asarray(total - constants.n_features * np.log(len(self.components)))
        log_norm = gammaln(view.counts).sum(axis=0) - gammaln(view.counts.sum(axis=0))
        log_norm += gammaln(np.array([float(len(view.counts))]))[0]
        terms = (1.0 + sums.counts - view.counts) * _log_shares(view.counts)
        return np.asarray(total + terms.sum(axis=0) + log_norm)

    def drawn_log_shares(self, parameters: LoadingParameters) -> Float64[Array, "J K"]:
        """Return log pi."""
        assert parameters.shares is not None
        return np.asarray(np.log(parameters.shares))

    def common_shares(self, n_features: float, sums: LoadingSums) -> None:
        """Return None: shares are Dirichlet(1, ..., 1)."""

    def first_parameters(self, view: View) -> LoadingParameters:
        """Return the expectations of a fit, which chains begin with."""
        n, k = len(self.components), len(view.alpha)
        counts = np.ones((n, k)) if view.counts is None else view.counts
        shares = counts / counts.sum(axis=0)
        return LoadingParameters(view.alpha, 1.0 - shares[0], shares)

    def draw_parameters(
        self,
        constants: PriorConstants,
        sums: LoadingSums,
        before: LoadingParameters,
        uniform: Float64[Array, "K words"],
    ) -> tuple[LoadingParameters, float]:
        """Draw alpha and pi given the component of each loading; see `LoadingsPrior.draw_parameters`."""
        assert sums.counts is not None
        alpha, density = self.draw_alpha(constants, sums, uniform[:, 0])
        gammas = draw_gamma(1.0 + sums.counts, 1.0, uniform[:, 2 : 2 + self.n_shares].T)
        shares = gammas / gammas.sum(axis=0)
        density += self.log_density_of_components(sums, np.log(shares))
        return LoadingParameters(alpha, shares[1:].sum(axis=0), shares), density


def _log_shares(counts: Float64[Array, "J K"]) -> Float64[Array, "J K"]:
    return np.asarray(digamma(counts) - digamma(counts.sum(axis=0)))
