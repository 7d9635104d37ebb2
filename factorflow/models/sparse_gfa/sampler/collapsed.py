"""Draws of what the features of a view share with what each of them has of its own integrated out.

m and lambda given the intercepts hardly move where these lie close together, nor these given m and lambda; so
it is with tau and their prior where tau are alike. Here m and lambda are drawn with all b integrated out,
then b; a, gamma and s with all tau integrated out, then tau. Given scores, loadings and tau a feature says of
its intercept N(b + slope / count, 1 / (tau count)), of its tau then tau^(count / 2) exp(-tau squares / 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from jaxtyping import Float64
from scipy import special

from factorflow.core.trees import replace
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.sampler.drawn_sums import DrawnSums
from factorflow.models.sparse_gfa.sampler.feature_prior import feature_prior
from factorflow.models.sparse_gfa.sampler.gibbs_state import (
    ChainGlobals,
    DrawnView,
    DrawnWeights,
    ResidualSums,
    Shared,
)
from factorflow.models.sparse_gfa.sampler.pooled import (
    N_TRIES,
    NoiseSums,
    metropolis_walk,
    redrawn_noise_prior,
)
from factorflow.models.sparse_gfa.settings import Priors, Settings

VIEW_SITE, FEATURE_SITE, NOISE_SITE, COMPONENT_SITE = (MODELS[i] for i in (20, 21, 23, 41))
"""Noise: m and lambda, then a, gamma and s, by view; each b; each tau; the component of each loading."""
WORDS = 1 + 2 * N_TRIES
"""Uniforms that either of these two draws takes."""


def draw_collapsed(
    settings: Settings,
    globals_: ChainGlobals,
    weights: Mapping[str, DrawnWeights],
    now: Shared,
    step: Step,
) -> tuple[dict[str, DrawnWeights], dict[str, DrawnSums], Shared]:
    """Draw m, lambda and b, then the prior of tau and tau; return all with them in place."""
    offsets, summed, views = {}, {}, {}
    of_views = draws.uniform(step, VIEW_SITE, np.arange(len(settings.views)), 2 * WORDS)
    of_features = draws.uniform(step, FEATURE_SITE, np.arange(sum(v.n_features for v in settings.views)))
    for view, of_view in zip(settings.views, of_views, strict=True):
        name, mine = view.name, weights[view.name]
        fixed, shared, message = globals_.fixed[name], now.views[name], mine.residual_sums
        numbers = settings.first_column(name) + np.arange(len(mine.loadings))
        of_loadings = feature_prior(settings, name, replace(globals_, shared=now), slice(None))
        uniform = partial(draws.uniform, step, COMPONENT_SITE, numbers, globals_.n_factors)
        loading_sums = of_loadings.sums(mine.loadings, uniform)
        if message is None:  # of a view with Metropolis steps: its intercepts cannot be integrated out
            offsets[name], views[name] = mine, shared
            levels = mine.levels(settings, view, fixed)
            summed[name] = DrawnSums.of(loading_sums, mine.loadings, levels, 0.0, None)
            continue
        coefficients, precision = mine.on_scale(fixed), mine.precision
        b = coefficients[:, 0]
        tau = np.ones(len(b)) if precision is None else precision[:, 0]
        if settings.has_intercepts(view):
            shared = draw_level(message, b, tau, shared, settings.priors, of_view[:WORDS])
            moved = _shift_intercepts(message, b, tau, shared, special.ndtri(of_features[numbers, 0]))
            message = message.shifted(moved)
            coefficients[:, 0] += moved
        of_noise = None
        if shared.noise is not None:
            halves, rates, variances = (
                0.5 * fixed.count[:, 0],
                0.5 * message.squares,
                globals_.variances[name],
            )
            prior = redrawn_noise_prior(halves, rates, variances, shared.noise, of_view[WORDS:])
            tau = draws.draw_gammas(step, NOISE_SITE, numbers, prior.shape + halves)
            tau = tau / (prior.rates(variances) + rates)
            of_noise = NoiseSums.of(tau, variances, prior)
            shared, precision = replace(shared, noise=prior), tau[:, None]
        offsets[name] = DrawnWeights(mine.loadings, coefficients, precision).off_scale(fixed)
        summed[name] = DrawnSums.of(loading_sums, mine.loadings, coefficients, 0.0, of_noise)
        views[name] = shared
    return offsets, summed, replace(now, views=views)


def draw_level(
    message: ResidualSums,
    b: Float64[Array, " D"],
    tau: Float64[Array, " D"],
    before: DrawnView,
    priors: Priors,
    uniform: Float64[Array, " W"],
) -> DrawnView:
    """Draw m and lambda of a view with all b integrated out: lambda by Metropolis steps on its log, then m.

    The intercepts ``b`` are those that ``message`` goes with.
    """
    precision, centre = tau * message.count, before.intercept_mean
    apart = b - centre + message.slope / np.maximum(message.count, 1e-300)
    shape, rate = priors.intercept

    def of_mean(lam: float) -> tuple[float, float, Float64[Array, " D"]]:
        weight = precision * (lam / (lam + precision))
        return priors.intercept_mean + weight.sum(), weight @ apart - priors.intercept_mean * centre, weight

    def log_density(log_lam: float) -> float:
        lam = np.exp(log_lam)
        told_of_mean, linear, weight = of_mean(lam)
        out = shape * log_lam - rate * lam - 0.5 * np.log1p(precision / lam).sum()
        return float(
            out - 0.5 * np.log(told_of_mean) + 0.5 * linear**2 / told_of_mean - 0.5 * weight @ apart**2
        )

    lam = float(np.exp(metropolis_walk(np.log(before.intercept_precision), log_density, uniform[1:])))
    told_of_mean, linear, _ = of_mean(lam)
    mean = centre + (linear / told_of_mean + special.ndtri(uniform[0]) / np.sqrt(told_of_mean))
    return replace(before, intercept_mean=float(mean), intercept_precision=lam)


def _shift_intercepts(
    message: ResidualSums,
    b: Float64[Array, " D"],
    tau: Float64[Array, " D"],
    view: DrawnView,
    normal: Float64[Array, " D"],
) -> Float64[Array, " D"]:
    """Return by how much intercepts move that are drawn anew, given m and lambda."""
    lam, of_data = view.intercept_precision, tau * message.count
    linear = lam * (view.intercept_mean - b) + tau * message.slope
    return linear / (lam + of_data) + normal / np.sqrt(lam + of_data)
