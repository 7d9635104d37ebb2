"""Loadings that are 0 with a probability of their own."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int8

from factorflow.core.trees import replace
from factorflow.kernels.special import expected_log_beta
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.loadings.base import (
    Linear,
    LoadingsPrior,
    Pairs,
    PriorConstants,
    Scale,
    Share,
    log_alpha,
    slab_variances,
)
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters
from factorflow.models.sparse_gfa.loadings.optimum import Shares, optimal_slab
from factorflow.models.sparse_gfa.state import View
from factorflow.models.sparse_gfa.weights import Weights


class SpikeSlab(LoadingsPrior):
    """w = s u, u ~ N(0, 1 / alpha), s ~ Bernoulli(theta); theta of each factor is learned."""

    name, help, spikes, allows_plane_moves = "spike_slab", "some are 0", True, True

    def update(
        self, weights: Weights, view: View, pairs: Pairs, linear: Linear, scale: Scale, step: Share
    ) -> tuple[Weights, float]:
        """Return q(w) and its entropy; see `LoadingsPrior.update`."""
        inclusion = np.ones(weights.mean.shape) if weights.inclusion is None else weights.inclusion
        mean, variance, inclusion, entropy = gfa.coordinate_updates(
            pairs,
            linear,
            scale,
            view.alpha[None],
            (weights.mean, slab_variances(weights), inclusion),
            (self.log_odds(weights, view), log_alpha(view)[None]),
            step,
        )
        return replace(weights, mean=mean, variance=variance, inclusion=inclusion), float(entropy.sum())

    def log_odds(self, weights: Weights, view: View) -> Float64[Array, "#D K"]:
        """Return E log theta - E log (1 - theta) of each loading."""
        on, off = expected_log_beta(view.theta_on, view.theta_off)
        return np.asarray((on - off)[None])

    def odds(
        self, parameters: LoadingParameters, classes: Int8[Array, "D K"] | None
    ) -> Float64[Array, "#D K"]:
        """Return theta / (1 - theta) of each loading."""
        return np.asarray((parameters.theta / (1.0 - parameters.theta))[None])

    def density(self, w: Float64[Array, " n"], view: View) -> tuple[float, Float64[Array, " n"]]:
        """Return the probability of 0, and the density of other values."""
        theta, alpha = view.theta_on[0] / (view.theta_on[0] + view.theta_off[0]), view.alpha[0]
        return 1.0 - theta, theta * np.sqrt(alpha / (2.0 * np.pi)) * np.exp(-0.5 * alpha * w**2)

    def optimize(
        self, constants: PriorConstants, weights: Weights, view: View, used: Float64[Array, " K"]
    ) -> View:
        """Return the view with alpha and theta at their optimum, given the messages of the entries."""
        shares = Shares(view.theta_on[None], view.theta_off[None], *constants.theta)
        a, b, on, off = optimal_slab(constants.alpha, weights, view.alpha, used, shares)
        return replace(view, alpha_shape=a, alpha_rate=b, theta_on=on[0], theta_off=off[0])
