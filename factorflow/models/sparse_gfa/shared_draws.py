"""Draws of what features and samples share: changes of scale, alpha, theta, m, lambda, beta, their priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float64, Integer
from scipy import special

from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.drawn import Drawn, DrawnView
from factorflow.models.sparse_gfa.pooled import (
    NoiseSums,
    draw_noise_prior,
    draw_share_prior,
    noise_log_density,
)
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.sums import Stats
from factorflow.trees import replace

__all__ = ["DrawnSums", "SharedDraws", "draw_shared"]

SCALE_SITE, FACTOR_SITE, VIEW_SITE, PRIOR_SITE, SHIFT_SITE, SHARE_SITE = (MODELS[i] for i in range(6, 12))
"""Noise: scale by factor; alpha, theta by view and factor; m, lambda, prior of tau by view; beta; place by
factor; prior of theta."""

SCALE_TRIES = 4
"""Metropolis steps of the scale of each factor in a sweep: each costs next to nothing."""

EDGE, SMALLEST = 1e-12, 1e-100
"""theta is kept that far from 0 and 1; gamma variates of tiny shapes, which underflow, above the second."""


@dataclass(frozen=True)
class DrawnSums:
    """Sums over the features of a view, after their draw.

    Parameters
    ----------
    included, squares : array
        Loadings that are not 0, and the sum of their squares, of each factor.
    features, intercepts, intercept_squares : float
        Number of features, sum of b and of b^2.
    likelihood : float
        Log-likelihood of Gaussian entries.
    gram, reading, total : array
        Of the loadings w: sum w w', sum b w, sum w.
    noise : NoiseSums or None
        Of the noise precisions of a Gaussian view.
    """

    included: Float64[np.ndarray, " K"]
    squares: Float64[np.ndarray, " K"]
    features: float
    intercepts: float
    intercept_squares: float
    likelihood: float
    gram: Float64[np.ndarray, "K K"]
    reading: Float64[np.ndarray, " K"]
    total: Float64[np.ndarray, " K"]
    noise: NoiseSums | None

    def shifted(self, shift: Float64[Array, " K"]) -> DrawnSums:
        """Return the sums after b -> b - w'shift."""
        squares = self.intercept_squares - 2.0 * shift @ self.reading + shift @ self.gram @ shift
        reading = self.reading - self.gram @ shift
        intercepts = self.intercepts - float(shift @ self.total)
        return replace(self, intercepts=intercepts, intercept_squares=float(squares), reading=reading)


@dataclass(frozen=True)
class DrawnStats(Stats):
    """Statistics of a block, or of all; ``first``: sum of z by group."""

    first: Float64[np.ndarray, "G K"] | None = None

    @classmethod
    def of(
        cls, stats: Stats, values: Float64[Array, "B K"], codes: Integer[Array, " B"], n_groups: int
    ) -> DrawnStats:
        """Return statistics with the sums of scores beside them."""
        first = np.stack([values[codes == g].sum(axis=0) for g in range(n_groups)])
        return cls(**{f.name: getattr(stats, f.name) for f in fields(Stats)}, first=first)


@dataclass(frozen=True)
class SharedDraws:
    """What `draw_shared` returns.

    Parameters
    ----------
    shift, scale : array
        c, r: scores become r (z + c), loadings w / r, intercepts b - w'c.
    views, beta
        As in `Drawn`.
    density : float
        Log joint density up to a constant, without the likelihood of binary entries.
    moved : float
        Share of the factors whose last try of a scale was taken.
    """

    shift: Float64[np.ndarray, " K"]
    scale: Float64[np.ndarray, " K"]
    views: Mapping[str, DrawnView]
    beta: Float64[np.ndarray, "G K"]
    density: float
    moved: float


def draw_shared(
    settings: Settings, stats: DrawnStats, sums: Mapping[str, DrawnSums], globals_: Drawn, step: Step
) -> SharedDraws:
    """Draw places and scales of the factors, then alpha, theta, m and lambda of each view, and beta."""
    assert stats.first is not None
    shift = _draw_shift(settings, stats, sums, globals_, step)
    sums = {name: mine.shifted(shift) for name, mine in sums.items()}
    second = stats.second + 2.0 * shift * stats.first + stats.number * shift**2
    stats = replace(stats, second=second)
    scale, moved = _draw_scales(settings, stats, sums, globals_, step)
    views, density, share = {}, sum(s.likelihood for s in sums.values()), (1.0, 1.0)
    if settings.spike != "none":
        counts, sizes = zip(*((s.included, s.features) for s in sums.values()), strict=True)
        share = draw_share_prior(counts, sizes, float(step.uniform(SHARE_SITE, np.zeros(1, np.int64))[0, 0]))
    for number, view in enumerate(settings.views):
        mine = sums[view.name]
        squares = mine.squares / scale**2
        before = globals_.views[view.name]
        views[view.name], terms = _draw_view(settings, number, mine, squares, share, before, step)
        density += terms
    beta, squares = globals_.beta, stats.second * scale**2
    if settings.scores_prior == "ard":
        shape, rate = settings.priors.beta
        n_groups, k = beta.shape
        uniform = step.uniform(PRIOR_SITE, np.arange(n_groups * k))[:, 0].reshape(n_groups, k)
        beta = _gamma(shape + 0.5 * stats.number, rate + 0.5 * squares, uniform)
        density += float(((shape - 1.0) * np.log(beta) - rate * beta).sum())
    density += 0.5 * float((stats.number * np.log(beta) - beta * squares).sum())
    return SharedDraws(shift, scale, views, beta, density, moved)


def _gamma(
    shape: Float64[Array, "*_"] | float, rate: Float64[Array, "*_"] | float, uniform: Float64[Array, "*_"]
) -> Float64[Array, "*_"]:
    """Return draws from Gamma(shape, rate) by inversion."""
    return np.maximum(special.gammaincinv(shape, uniform) / rate, SMALLEST)


def _draw_shift(
    settings: Settings, stats: DrawnStats, sums: Mapping[str, DrawnSums], globals_: Drawn, step: Step
) -> Float64[Array, " K"]:
    """Draw c of z -> z + c, b -> b - w'c, which leaves the likelihood as it is: exactly, it is normal."""
    assert stats.first is not None
    k, beta = globals_.n_factors, globals_.beta
    precision = np.diag((beta * stats.number).sum(axis=0))
    linear = -(beta * stats.first).sum(axis=0)
    for view in settings.views:
        mine, shared = sums[view.name], globals_.views[view.name]
        precision = precision + shared.intercept_precision * mine.gram
        linear = linear + shared.intercept_precision * (mine.reading - shared.intercept_mean * mine.total)
    if not k:
        return np.zeros(0)
    root = np.linalg.cholesky(precision)
    noise = step.normal(SHIFT_SITE, np.arange(k))[:, 0]
    return np.asarray(np.linalg.solve(root.T, np.linalg.solve(root, linear) + noise))


def _log_scale_density(
    settings: Settings, stats: Stats, sums: Mapping[str, DrawnSums], globals_: Drawn, u: Float64[Array, " K"]
) -> Float64[Array, " K"]:
    """Return the log density of u = log r by factor, alpha (and a learned beta) integrated out.

    With z -> r z, w -> w / r the likelihood stays; the volume element is r^(N - c) d log r, c the loadings
    that are not 0.
    """
    squares, out = stats.second * np.exp(2.0 * u), stats.number.sum(axis=0) * u
    if settings.scores_prior == "ard":
        shape, rate = settings.priors.beta
        out = out - ((shape + 0.5 * stats.number) * np.log(rate + 0.5 * squares)).sum(axis=0)
    else:
        out = out - 0.5 * (globals_.beta * squares).sum(axis=0)
    for view in settings.views:
        mine, (shape, rate) = sums[view.name], view.alpha_prior
        out = out - mine.included * u
        out = out - (shape + 0.5 * mine.included) * np.log(rate + 0.5 * mine.squares * np.exp(-2.0 * u))
    return np.asarray(out)


def _draw_scales(
    settings: Settings, stats: Stats, sums: Mapping[str, DrawnSums], globals_: Drawn, step: Step
) -> tuple[Float64[Array, " K"], float]:
    """Move the scale of each factor by Metropolis steps; return it, and the share moved in the last one."""
    k = globals_.n_factors
    u = np.zeros(k)
    if not k:
        return np.ones(0), 0.0
    normal = step.normal(SCALE_SITE, np.arange(k), SCALE_TRIES)
    uniform = step.uniform(SCALE_SITE, k + np.arange(k), SCALE_TRIES)
    width = 0.5 if settings.scores_prior == "ard" else 2.4 / np.sqrt(2.0 * max(2.0, float(stats.rows.sum())))
    now = _log_scale_density(settings, stats, sums, globals_, u)
    taken = np.zeros(k, dtype=bool)
    for i in range(SCALE_TRIES):
        # The width goes from large to small: the scale that is left open depends on views and priors.
        tried = u + width * 0.5**i * 2.0 * normal[:, i]
        then = _log_scale_density(settings, stats, sums, globals_, tried)
        taken = np.log(uniform[:, i]) < then - now
        u, now = np.where(taken, tried, u), np.where(taken, then, now)
    return np.exp(u), float(taken.mean())


def _draw_view(
    settings: Settings,
    number: int,
    sums: DrawnSums,
    squares: Float64[Array, " K"],
    share: tuple[float, float],
    before: DrawnView,
    step: Step,
) -> tuple[DrawnView, float]:
    """Draw alpha, theta, m, lambda and the prior of tau of a view.

    Return them with their part of the log joint density; ``share``: the prior of theta, Beta(on, off).
    """
    view, k, priors = settings.views[number], len(squares), settings.priors
    uniform = step.uniform(FACTOR_SITE, number * max(1, k) + np.arange(k), 2)
    shape, rate = view.alpha_prior
    alpha = _gamma(shape + 0.5 * sums.included, rate + 0.5 * squares, uniform[:, 0])
    density = 0.5 * float((sums.included * np.log(alpha / (2.0 * np.pi)) - alpha * squares).sum())
    density += float(((shape - 1.0) * np.log(alpha) - rate * alpha).sum())
    theta = before.theta
    if settings.spike != "none":
        (on, off), left = share, sums.features - sums.included
        theta = np.clip(special.betaincinv(on + sums.included, off + left, uniform[:, 1]), EDGE, 1.0 - EDGE)
        density += float(((on + sums.included - 1.0) * np.log(theta)).sum())
        density += float(((off + left - 1.0) * np.log1p(-theta) - special.betaln(on, off)).sum())
    noise = step.uniform(VIEW_SITE, np.array([number]), 4)[0]
    n, lam = sums.features, before.intercept_precision
    precision = priors.intercept_mean + n * lam
    mean = lam * sums.intercepts / precision + special.ndtri(noise[0]) / np.sqrt(precision)
    apart = max(0.0, sums.intercept_squares - 2.0 * mean * sums.intercepts + n * mean**2)
    shape, rate = priors.intercept
    lam = float(_gamma(shape + 0.5 * n, rate + 0.5 * apart, noise[1]))
    density += (shape + 0.5 * n - 1.0) * np.log(lam) - lam * (rate + 0.5 * apart)
    density -= 0.5 * priors.intercept_mean * mean**2
    prior = before.noise
    if prior is not None and sums.noise is not None:
        prior = draw_noise_prior(sums.noise, n, prior, noise[2:])
        density += noise_log_density(sums.noise, n, prior)
    return DrawnView(alpha, theta, float(mean), lam, prior), density
