"""Draws of what features and samples share, and moves of the factors: turns, places, scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy import special

from factorflow.core.trees import replace
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.loadings import PriorConstants
from factorflow.models.sparse_gfa.loadings.drawn import EDGE, draw_gamma
from factorflow.models.sparse_gfa.sampler.collapsed import draw_collapsed
from factorflow.models.sparse_gfa.sampler.drawn_sums import DrawnStats, DrawnSums
from factorflow.models.sparse_gfa.sampler.gibbs_state import ChainGlobals, DrawnView, DrawnWeights, Shared
from factorflow.models.sparse_gfa.sampler.plane_moves import draw_plane_move, plane_of, transform_scores
from factorflow.models.sparse_gfa.sampler.pooled import (
    N_TRIES,
    SlabPrior,
    draw_noise_prior,
    draw_share_prior,
    draw_slab_prior,
    noise_log_density,
    redrawn_slab_prior,
    slab_log_density,
)
from factorflow.models.sparse_gfa.sampler.score_prior import draw_courses
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.smooth.courses import Courses
from factorflow.models.sparse_gfa.statistics import Stats

SCALE_SITE, SHIFT_SITE = MODELS[6], MODELS[10]
"""Noise: scale, and place, by factor."""


@dataclass(frozen=True)
class Sites:
    """Noise: alpha, theta by view and factor; m, lambda, prior of tau; beta; priors of theta, alpha; more."""

    factor: int
    view: int
    beta: int
    share: int
    slab: int
    terms: int
    sizes: int
    psi: int


OF_RECORD, ONWARDS = (
    Sites(*(MODELS[i] for i in found))
    for found in ((13, 14, 15, 16, 18, 31, 34, 37), (7, 8, 9, 11, 19, 32, 35, 38))
)
"""Shared parameters are drawn twice: as it goes with the scores of this sweep, and as the chain goes on."""

RIDGE = 1e-10
"""Added to the precision of a shift in all directions, as a share of its largest: rounding leaves 1e-15."""
SCALE_TRIES = 4
"""Metropolis steps of the scale of each factor in a sweep: each costs next to nothing."""


@dataclass(frozen=True)
class Moves:
    """How a chain goes on from the scores and loadings that a sweep drew.

    Parameters
    ----------
    weights : mapping of view to DrawnWeights
        Loadings, intercepts and noise precisions.
    transform, shift : array
        Scores become T z + t'a.
    shared : Shared
        What all share, given these.
    share : float
        Share of the factors whose last try of a scale was taken.
    courses : Courses or None
        Courses given these scores.
    """

    weights: Mapping[str, DrawnWeights]
    transform: Float64[np.ndarray, "L L"]
    shift: Float64[np.ndarray, "C L"]
    shared: Shared
    share: float
    courses: Courses | None


def draw_shared(
    settings: Settings,
    stats: DrawnStats,
    sums: Mapping[str, DrawnSums],
    before: Shared,
    step: Step,
    sites: Sites,
) -> tuple[Shared, float]:
    """Draw the prior of theta; alpha, theta, m, lambda, the prior of tau by view; the prior of alpha; beta.

    Return them with the log joint density up to a constant, without the likelihood of binary entries.
    """
    views, density, share = {}, sum(s.likelihood for s in sums.values()), (1.0, 1.0)
    priors = {view.name: view.prior for view in settings.views}
    common = [priors[name].common_shares(s.features, s.of_loadings) for name, s in sums.items()]
    spiked = [one for one in common if one is not None]
    if spiked:
        counts, sizes = zip(*spiked, strict=True)
        uniform = float(draws.uniform(step, sites.share, np.zeros(1, np.int64))[0, 0])
        share = draw_share_prior(counts, sizes, uniform)
    slab, noise = before.slab, draws.uniform(step, sites.slab, np.zeros(1, np.int64), 3 + 2 * N_TRIES)[0]
    if slab is not None:
        halves, rates = (
            np.concatenate([getattr(s.of_loadings, key) / priors[name].power for name, s in sums.items()])
            for key in ("included", "squares")
        )
        slab = redrawn_slab_prior(halves, rates, slab, noise[2:])
    k, n_views = before.beta.shape[1], len(settings.views)
    words = 2 + max(prior.n_shares for prior in priors.values())
    of_factors = draws.uniform(step, sites.factor, np.arange(n_views * k), words).reshape(n_views, k, words)
    of_views = draws.uniform(step, sites.view, np.arange(n_views), 4)
    of_terms = draws.uniform(step, sites.terms, np.arange(n_views), max(1, settings.n_terms))
    for i, view in enumerate(settings.views):
        view_sums = sums[view.name], before.views[view.name], slab
        noise_of_view = of_factors[i], of_views[i], of_terms[i, : settings.n_terms]
        views[view.name], terms = _draw_view(settings, view, *view_sums, share, *noise_of_view)
        density += terms
    alpha = np.stack([view.alpha for view in views.values()])
    if slab is not None:
        slab = draw_slab_prior(alpha.ravel(), noise[:2])
        density += slab_log_density(alpha.ravel(), slab)
    else:
        shape, rate = np.array([view.alpha_prior for view in settings.views]).T[:, :, None]
        density += float(((shape - 1.0) * np.log(alpha) - rate * alpha).sum())
    beta, psi, power = before.beta, before.psi, settings.score_power
    number, second = stats.number[:, :k], stats.second[:, :k]
    if settings.scores_prior != "normal":
        shape, rate = settings.priors.beta
        uniforms = draws.uniform(step, sites.beta, np.arange(beta.size))[:, 0].reshape(beta.shape)
        beta = draw_gamma(shape + number / power, rate + second / power, uniforms)
        density += float(((shape - 1.0) * np.log(beta) - rate * beta).sum())
    density += float((number * np.log(beta) - beta * second).sum()) / power
    if psi is not None:
        on, off = settings.priors.psi[0] + number, settings.priors.psi[1] + stats.rows[:, None] - number
        uniforms = draws.uniform(step, sites.psi, np.arange(psi.size))[:, 0].reshape(psi.shape)
        psi = np.clip(special.betaincinv(on, off, uniforms), EDGE, 1.0 - EDGE)
        density += float(((on - 1.0) * np.log(psi) + (off - 1.0) * np.log1p(-psi)).sum())
    shape, rate = settings.priors.sizes
    halves, rates = (
        shape + 0.5 * stats.number[:, k:].sum(axis=0),
        rate + 0.5 * stats.second[:, k:].sum(axis=0),
    )
    sizes = draw_gamma(halves, rates, draws.uniform(step, sites.sizes, np.arange(len(halves)))[:, 0])
    density += float(((halves - 1.0) * np.log(sizes) - rates * sizes).sum())
    return Shared(views, beta, slab, sizes, psi), density


def draw_moves(
    settings: Settings,
    stats: DrawnStats,
    globals_: ChainGlobals,
    weights: Mapping[str, DrawnWeights],
    step: Step,
) -> Moves:
    """Draw a turn, intercepts and noise, places and scales of the factors, and what all share given these."""
    k, now = globals_.n_factors, globals_.shared
    plane, turn = plane_of(settings, k, step), np.eye(k)
    if plane is not None:
        weights, turn, now = draw_plane_move(settings, stats, weights, now, globals_.names, plane, step)
        stats = transform_scores(stats, turn)
    weights, sums, now = draw_collapsed(settings, globals_, weights, now, step)
    sums = {name: mine.with_sizes(settings.size_column(name)) for name, mine in sums.items()}
    shift = _draw_shift(settings, stats, sums, now, step)
    sums = {name: mine.shifted(shift) for name, mine in sums.items()}
    stats = _shifted_scores(stats, shift)
    scale, share = _draw_scales(settings, stats, sums, now, globals_.courses, step)
    sums = {name: _scaled_sums(settings.view(name), mine, scale) for name, mine in sums.items()}
    of_all = np.append(scale, np.ones(shift.shape[1] - k))  # size factors are in units of their own
    stats, shift = replace(stats, second=stats.second * of_all**settings.score_power), of_all * shift
    shared, _ = draw_shared(settings, stats, sums, now, step, ONWARDS)
    weights = {
        view.name: _transform_weights(settings, view, weights[view.name], scale, shift)
        for view in settings.views
    }
    transform = np.eye(shift.shape[1])
    transform[:k, :k] = scale[:, None] * turn.T
    courses = globals_.courses
    if courses is not None:
        assert stats.functions is not None
        moved = scale * stats.functions[:, :k] + stats.functions[:, k:] @ shift[:, :k]
        courses = draw_courses(settings, courses, moved, step)
    return Moves(weights, transform, shift, shared, share, courses)


def _scaled_sums(view: ViewSettings, sums: DrawnSums, scale: Float64[Array, " K"]) -> DrawnSums:
    """Return the sums after w -> w / scale."""
    squares = sums.of_loadings.squares / scale**view.prior.power
    return replace(sums, of_loadings=replace(sums.of_loadings, squares=squares))


def _alpha_prior(view: ViewSettings, slab: SlabPrior | None) -> tuple[float, float]:
    """Return shape and rate of the prior of alpha of a view."""
    return view.alpha_prior if slab is None else slab.parameters


def _transform_weights(
    settings: Settings,
    view: ViewSettings,
    weights: DrawnWeights,
    scale: Float64[Array, " K"],
    shift: Float64[Array, "C L"],
) -> DrawnWeights:
    """Return loadings and coefficients for scores r z + t'a; phi, where the level of the entries is there."""
    new = replace(weights, loadings=weights.loadings / scale)
    moved = new.extended(settings.size_column(view.name)) @ shift.T
    if view.density.has_intercept:
        return replace(new, coefficients=weights.coefficients - moved)
    assert weights.phi is not None
    coefficients, phi = weights.coefficients.copy(), weights.phi - moved[:, :1]
    coefficients[:, 1:] -= moved[:, 1:]
    return replace(new, coefficients=coefficients, phi=phi)


def _draw_shift(
    settings: Settings,
    stats: DrawnStats,
    sums: Mapping[str, DrawnSums],
    now: Shared,
    step: Step,
) -> Float64[Array, "C L"]:
    """Draw c of z -> z + c'a, b -> b - c w, which leaves the likelihood as it is: exactly, it is normal.

    0 of scores that have spikes, which stay where they are.
    """
    assert stats.first is not None
    assert stats.design is not None
    n_given, beta = (
        settings.n_given,
        np.concatenate([now.beta, np.tile(now.sizes, (len(now.beta), 1))], axis=1),
    )
    k = beta.shape[1]
    if not k:
        return np.zeros((n_given, 0))
    precision = np.einsum("gk,gce,kj->ckej", beta, stats.design, np.eye(k))
    linear = -(beta[:, None] * stats.first).sum(axis=0)
    for view in settings.views:
        mine, shared = sums[view.name], now.views[view.name]
        weight = shared.column_precision(settings)
        precision = precision + np.einsum("c,ce,kj->ckej", weight, np.eye(n_given), mine.gram)
        linear = linear + weight[:, None] * mine.reading
        linear[0] -= shared.intercept_precision * shared.intercept_mean * mine.total
    columns = slice(0 if settings.intercepts else 1, None)  # without intercepts their place is given
    free = slice(now.beta.shape[1] if settings.scores_spike else 0, None)
    size = (n_given - columns.start) * (k - free.start)
    precision = precision[columns, free, columns, free].reshape(size, size)
    # What all levels of a category add up to moves nothing of a factor without loadings: any place will do.
    precision[np.diag_indices(size)] += RIDGE * np.diagonal(precision).max(initial=0.0)
    root = np.linalg.cholesky(precision)
    noise = special.ndtri(draws.uniform(step, SHIFT_SITE, np.arange(size)))[:, 0]
    shift = np.zeros((n_given, k))
    along = np.linalg.solve(root.T, np.linalg.solve(root, linear[columns, free].ravel()) + noise)
    shift[columns, free] = along.reshape(n_given - columns.start, k - free.start)
    return shift


def _shifted_scores(stats: DrawnStats, shift: Float64[Array, "C L"]) -> DrawnStats:
    """Return the sums over samples of squares of z + shift'a."""
    assert stats.first is not None
    assert stats.design is not None
    moved = 2.0 * (shift * stats.first).sum(axis=1)
    moved += np.einsum("ck,gce,ek->gk", shift, stats.design, shift)
    return replace(stats, second=stats.second + moved)


def _log_scale_density(
    settings: Settings,
    stats: Stats,
    sums: Mapping[str, DrawnSums],
    shared: Shared,
    courses: Courses | None,
    u: Float64[Array, " K"],
) -> Float64[Array, " K"]:
    """Return the log density of u = log r by factor, alpha (and a learned beta) integrated out.

    With z -> r z, w -> w / r (and c -> r c) the likelihood stays; the volume element is r^(N - c) d log r, c
    the loadings that are not 0, N the scores that are not, with the coefficients of the course.
    """
    number, power = stats.number[:, : len(u)], settings.score_power
    squares, out = stats.second[:, : len(u)] * np.exp(power * u), number.sum(axis=0) * u
    if settings.scores_prior != "normal":
        shape, rate = settings.priors.beta
        out = out - ((shape + number / power) * np.log(rate + squares / power)).sum(axis=0)
    else:
        out = out - 0.5 * (shared.beta * squares).sum(axis=0)
    if courses is not None:
        own = courses.mean.shape[1] * u - 0.5 * courses.energy * np.exp(2.0 * u)
        out = out + np.where(courses.is_smooth, own, 0.0)
    for view in settings.views:
        mine, (shape, rate) = sums[view.name].of_loadings, _alpha_prior(view, shared.slab)
        power = view.prior.power
        out, squares = out - mine.included * u, mine.squares * np.exp(-power * u)
        out = out - (shape + mine.included / power) * np.log(rate + squares / power)
    return np.asarray(out)


def _draw_scales(
    settings: Settings,
    stats: Stats,
    sums: Mapping[str, DrawnSums],
    shared: Shared,
    courses: Courses | None,
    step: Step,
) -> tuple[Float64[Array, " K"], float]:
    """Move the scale of each factor by Metropolis steps; return it, and the share moved in the last one."""
    k = shared.beta.shape[1]
    u = np.zeros(k)
    if not k:
        return np.ones(0), 0.0
    normal = special.ndtri(draws.uniform(step, SCALE_SITE, np.arange(k), SCALE_TRIES))
    uniform = draws.uniform(step, SCALE_SITE, k + np.arange(k), SCALE_TRIES)
    width = (
        0.5 if settings.scores_prior != "normal" else 2.4 / np.sqrt(2.0 * max(2.0, float(stats.rows.sum())))
    )
    now = _log_scale_density(settings, stats, sums, shared, courses, u)
    accepted = np.zeros(k, dtype=bool)
    for i in range(SCALE_TRIES):
        # The width goes from large to small: the scale that is left open depends on views and priors.
        tried = u + width * 0.5**i * 2.0 * normal[:, i]
        then = _log_scale_density(settings, stats, sums, shared, courses, tried)
        accepted = np.log(uniform[:, i]) < then - now
        u, now = np.where(accepted, tried, u), np.where(accepted, then, now)
    return np.exp(u), float(accepted.mean())


def _draw_view(
    settings: Settings,
    view: ViewSettings,
    sums: DrawnSums,
    before: DrawnView,
    slab: SlabPrior | None,
    share: tuple[float, float],
    uniform: Float64[Array, "K words"],
    noise: Float64[Array, " four"],
    of_terms: Float64[Array, " H"],
) -> tuple[DrawnView, float]:
    """Draw alpha, theta, m, each lambda and the prior of tau of a view.

    Return them with their part of the log joint density, but for the prior of alpha; ``share``: the prior of
    theta, Beta(on, off).
    """
    priors = settings.priors
    constants = PriorConstants(int(sums.features), _alpha_prior(view, slab), share)
    own = constants, sums.of_loadings, before.of_loadings, uniform
    loadings, density = view.prior.draw_parameters(*own)
    n, mean, lam = sums.features, before.intercept_mean, before.intercept_precision
    shape, rate = priors.intercept
    if settings.has_intercepts(view):
        precision = priors.intercept_mean + n * lam
        total, squares = float(sums.coefficients[0]), float(sums.coefficient_squares[0])
        mean = lam * total / precision + float(special.ndtri(noise[0]) / np.sqrt(precision))
        apart = max(0.0, squares - 2.0 * mean * total + n * mean**2)
        lam = float(draw_gamma(shape + 0.5 * n, rate + 0.5 * apart, noise[1]))
        density += (shape + 0.5 * n - 1.0) * np.log(lam) - lam * (rate + 0.5 * apart)
        density -= 0.5 * priors.intercept_mean * mean**2
    halves = 0.5 * n * np.bincount(settings.term_of_column, minlength=settings.n_terms)
    of_columns = np.bincount(settings.term_of_column, sums.coefficient_squares[1:], settings.n_terms)
    rates = rate + 0.5 * of_columns
    terms = draw_gamma(shape + halves, rates, of_terms)
    density += float(((shape + halves - 1.0) * np.log(terms) - terms * rates).sum())
    prior = before.noise
    if prior is not None and sums.noise is not None:
        prior = draw_noise_prior(sums.noise, n, prior, noise[2:])
        density += noise_log_density(sums.noise, n, prior)
    own_terms = loadings.alpha, loadings.theta, float(mean), lam, prior, terms, loadings.shares
    return DrawnView(*own_terms), density
