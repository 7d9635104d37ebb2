"""Loadings that are 0 with a probability that says whether the feature is in the set of the factor.

A factor that has a set has two shares of loadings that are not 0 in place of one, inside and outside; both
are learned. Which set a factor has is found by `naming`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int8

from factorflow.core.trees import replace
from factorflow.kernels.special import beta_term, expected_log_beta, gamma_term
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.base import LoadingSums, PriorConstants, log_alpha
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters, draw_share
from factorflow.models.sparse_gfa.loadings.optimum import Shares, optimal_slab
from factorflow.models.sparse_gfa.loadings.spike_slab import SpikeSlab
from factorflow.models.sparse_gfa.state import View
from factorflow.models.sparse_gfa.weights import Weights

INSIDE, OUTSIDE = (4.0, 1.0), (1.0, 20.0)
"""Counts (on, off) of the priors of the shares inside and outside of a set: most members, few others."""


class Informed(SpikeSlab):
    """w = s u, u ~ N(0, 1 / alpha), s ~ Bernoulli(theta of its class)."""

    name, help, takes_sets = "informed", "some are 0, fewer of those in a feature set", True
    allows_plane_moves, n_shares = False, 1
    options = {"feature_sets": {"odd": ["feature1", "feature3"], "low": ["feature0", "feature1", "feature2"]}}

    def log_odds(self, weights: Weights, view: View) -> Float64[Array, "#D K"]:
        """Return E log theta - E log (1 - theta) of each loading."""
        outside = super().log_odds(weights, view)
        if weights.classes is None or view.counts is None:
            return outside
        on, off = expected_log_beta(*view.counts)
        return np.where(weights.classes == 1, on - off, outside)

    def sums(self, weights: Weights) -> LoadingSums:
        """Return what the loadings add up; as counts the members of the set, and those that are not 0."""
        sums, k = super().sums(weights), weights.mean.shape[1]
        if weights.classes is None or weights.inclusion is None:
            return replace(sums, counts=np.zeros((2, k)))
        inside = weights.classes == 1
        counts = inside.sum(axis=0).astype(np.float64), np.where(inside, weights.inclusion, 0.0).sum(axis=0)
        return replace(sums, counts=np.stack(counts))

    def learn(self, constants: PriorConstants, view: View, sums: LoadingSums) -> View:
        """Return the view with the parameters that follow from its loadings."""
        view, (size, on), (prior, _) = (
            super().learn(constants, view, sums),
            _counts(sums),
            _priors(constants, sums),
        )
        off = constants.n_features - size - (sums.included - on)
        inside = np.stack([INSIDE[0] + on, INSIDE[1] + size - on])
        return replace(view, theta_on=prior[0] + sums.included - on, theta_off=prior[1] + off, counts=inside)

    def terms(self, constants: PriorConstants, view: View, sums: LoadingSums) -> Float64[Array, " K"]:
        """Return E log p(w, s) and the terms of alpha and both shares, by factor."""
        (size, on), (outside, inside) = _counts(sums), _priors(constants, sums)
        total = 0.5 * (sums.included * log_alpha(view) - sums.squares * view.alpha)
        total += gamma_term(view.alpha_shape, view.alpha_rate, *constants.alpha)
        counts = inside if view.counts is None else view.counts
        not_members = sums.included - on, constants.n_features - size - (sums.included - on)
        for (a, b), prior, (n_on, n_off) in (
            ((view.theta_on, view.theta_off), outside, not_members),
            (counts, inside, (on, size - on)),
        ):
            log_on, log_off = expected_log_beta(a, b)
            total += n_on * log_on + n_off * log_off + beta_term(a, b, *prior)
        return np.asarray(total)

    def optimize(
        self, constants: PriorConstants, weights: Weights, view: View, used: Float64[Array, " K"]
    ) -> View:
        """Return the view with alpha and both shares at their optimum, given the messages of the entries."""
        if weights.classes is None or view.counts is None:
            return super().optimize(constants, weights, view, used)
        outside, inside = _priors(constants, self.sums(weights))
        on = np.stack([view.theta_on, view.counts[0]]), np.stack([outside[0], inside[0]])
        off = np.stack([view.theta_off, view.counts[1]]), np.stack([outside[1], inside[1]])
        shares = Shares(on[0], off[0], on[1], off[1], weights.classes == 1)
        a, b, t, u = optimal_slab(constants.alpha, weights, view.alpha, used, shares)
        return replace(
            view, alpha_shape=a, alpha_rate=b, theta_on=t[0], theta_off=u[0], counts=np.stack([t[1], u[1]])
        )

    def odds(
        self, parameters: LoadingParameters, classes: Int8[Array, "D K"] | None
    ) -> Float64[Array, "#D K"]:
        """Return theta / (1 - theta) of the class of each loading."""
        outside = super().odds(parameters, classes)
        if classes is None or parameters.shares is None:
            return outside
        inside = parameters.shares / (1.0 - parameters.shares)
        return np.where(classes == 1, inside, outside)

    def sums_of_draw(
        self,
        loadings: Float64[Array, "D K"],
        parameters: LoadingParameters,
        classes: Int8[Array, "D K"] | None,
        uniform: Callable[[], Float64[Array, "D K"]],
    ) -> LoadingSums:
        """Return what drawn loadings add up; as counts the members of the set, and those that are not 0."""
        sums = super().sums_of_draw(loadings, parameters, classes, uniform)
        inside = np.zeros(loadings.shape, bool) if classes is None else classes == 1
        counts = inside.sum(axis=0), (inside & (loadings != 0.0)).sum(axis=0)
        return replace(sums, counts=np.stack(counts).astype(np.float64))

    def common_shares(self, n_features: float, sums: LoadingSums) -> tuple[Float64[Array, " F"], float]:
        """Return the loadings that are not 0 of factors that have no set."""
        return sums.included[_counts(sums)[0] == 0.0], n_features

    def first_parameters(self, view: View) -> LoadingParameters:
        """Return the expectations of a fit, which chains begin with."""
        counts = np.repeat(np.array(INSIDE)[:, None], len(view.alpha), axis=1)
        counts = counts if view.counts is None else view.counts
        return replace(super().first_parameters(view), shares=counts[:1] / counts.sum(axis=0))

    def draw_parameters(
        self,
        constants: PriorConstants,
        sums: LoadingSums,
        before: LoadingParameters,
        uniform: Float64[Array, "K words"],
    ) -> tuple[LoadingParameters, float]:
        """Draw alpha and both shares; see `LoadingsPrior.draw_parameters`."""
        (size, on), (outside, inside) = _counts(sums), _priors(constants, sums)
        others = sums.included - on
        alpha, density = self.draw_alpha(constants, sums, uniform[:, 0])
        theta, of_theta = draw_share(
            (outside[0], outside[1]), others, constants.n_features - size - others, uniform[:, 1]
        )
        shares, of_shares = draw_share((inside[0], inside[1]), on, size - on, uniform[:, 2])
        return LoadingParameters(alpha, theta, shares[None]), density + of_theta + of_shares


def _counts(sums: LoadingSums) -> Float64[Array, "2 K"]:
    return np.zeros((2, len(sums.included))) if sums.counts is None else sums.counts


def _priors(
    constants: PriorConstants, sums: LoadingSums
) -> tuple[Float64[Array, "2 K"], Float64[Array, "2 K"]]:
    """Return the counts (on, off) of the priors outside and inside; all is outside without a set."""
    has_set = _counts(sums)[0] > 0.0
    outside = np.where(has_set, np.array(OUTSIDE)[:, None], np.array(constants.theta)[:, None])
    return outside, np.repeat(np.array(INSIDE)[:, None], len(has_set), axis=1)
