"""At the root of sparse group factor analysis: shared parameters, the bound, rotation, scale, pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.kernels.linalg import congruence, n_pairs, unpack
from factorflow.kernels.special import beta_term, digamma, expected_log_beta, gamma_term
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.features import whole
from factorflow.models.sparse_gfa.kernels.rotation import best_rotation, best_scale
from factorflow.models.sparse_gfa.progress import reported, with_pace
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.state import (
    FeatureSums,
    Globals,
    Stats,
    View,
    Weights,
    expected_weights,
    transformed_weights,
)

__all__ = ["change_basis", "finish_iteration", "select_factors", "shares", "with_constant"]

_SETTLED = 10
"""Sparse passes before a factor may be dropped: at first one can be weak for a while and come back."""


@dataclass(frozen=True)
class Moves:
    """Sums over features and samples that a change of basis z -> T z, w -> T'^-1 w changes.

    Parameters
    ----------
    squares, included : mapping of view to array
        sum_d E[w^2] over weights that are not 0, and their number.
    second : array
        sum_n E[z^2].
    entropy : float
        Entropy of q(z) and of all q(w).
    """

    squares: Mapping[str, Float64[np.ndarray, " K"]]
    included: Mapping[str, Float64[np.ndarray, " K"]]
    second: Float64[np.ndarray, "G K"]
    entropy: float


def finish_iteration(
    settings: Settings,
    globals_: Globals,
    stats: Stats,
    parts: Mapping[str, Weights],
    sums: Mapping[str, FeatureSums],
    step: Step,
    *,
    sparse: bool,
    strength: Float64[Array, "M K"] | None = None,
) -> tuple[Globals, dict[str, float]]:
    """Update what all features share, given updated features; return the new globals and the bound.

    ``strength`` (see `Globals`) is computed here unless the weights are elsewhere.
    """
    stats = whole(settings, stats)
    k = globals_.n_factors
    new = replace(
        globals_,
        weights=dict(parts),
        views={name: replace(view, pairs=sums[name].pairs) for name, view in globals_.views.items()},
        second=unpack(stats.moments[: n_pairs(k)], k) / settings.n_rows,
        basis={},
        transform=None,
    )
    moves = Moves(
        squares={name: s.squares for name, s in sums.items()},
        included={name: s.included for name, s in sums.items()},
        second=stats.second,
        entropy=stats.entropy + sum(s.entropy for s in sums.values()),
    )
    if settings.changes_basis(step.count, sparse=sparse):
        if not sparse and settings.full_scores:
            new, moves = _rotate(settings, new, moves, sums)
        elif settings.spike != "hat":
            new, moves = _rescale(settings, new, moves)
    new = _update_shared(settings, new, moves, sums, stats, sparse=sparse)
    bound = _bound(settings, new, moves, sums, stats, sparse=sparse)
    objective, rest = reported(settings, globals_, new, bound, sums, stats)
    new = replace(new, strength=shares(settings, new) if strength is None else strength)
    info = {"objective": objective, "observed": _observed(new)}
    if sparse and step.count >= _SETTLED:
        new = select_factors(new, np.flatnonzero(new.strength.max(axis=0) >= settings.drop))
    new = with_pace(settings, globals_, new, objective, rest)
    info["n_factors"] = float(new.n_factors)
    return new, info


def _observed(globals_: Globals) -> float:
    if globals_.held is not None:
        return globals_.held.observed
    return sum(float(f.count.sum()) for f in globals_.fixed.values())


def _rotate(
    settings: Settings, globals_: Globals, moves: Moves, sums: Mapping[str, FeatureSums]
) -> tuple[Globals, Moves]:
    """Rotate scores and weights to where the bound is highest; nothing else changes (section 8)."""
    k, n_rows = globals_.n_factors, settings.n_rows
    grams = {name: unpack(s.gram[: n_pairs(k)], k) for name, s in sums.items() if s.gram is not None}
    sizes = {view.name: float(view.n_features) for view in settings.views}
    rotation = best_rotation(
        globals_.second * n_rows,
        [grams[view.name] for view in settings.views],
        n_rows,
        [sizes[view.name] for view in settings.views],
        [view.alpha_prior for view in settings.views],
    )
    inverse = np.linalg.inv(rotation).T
    logdet = float(np.linalg.slogdet(rotation)[1])
    second = rotation @ globals_.second @ rotation.T
    moved = Moves(
        squares={name: np.diag(inverse @ gram @ inverse.T).copy() for name, gram in grams.items()},
        included=moves.included,
        second=(np.diag(second) * n_rows)[None].copy(),
        entropy=moves.entropy + (n_rows - sum(sizes.values())) * logdet,
    )
    return replace(change_basis(settings, globals_, rotation, inverse), second=second), moved


def _rescale(settings: Settings, globals_: Globals, moves: Moves) -> tuple[Globals, Moves]:
    """Rescale each factor to where the bound is highest (section 8)."""
    r = best_scale(
        moves.second.sum(axis=0),
        [moves.squares[v.name] for v in settings.views],
        settings.n_rows,
        [moves.included[v.name] for v in settings.views],
        [v.alpha_prior for v in settings.views],
    )
    lost = np.sum(list(moves.included.values()), axis=0) @ np.log(r)
    moved = Moves(
        squares={name: s / r**2 for name, s in moves.squares.items()},
        included=moves.included,
        second=moves.second * r**2,
        entropy=moves.entropy + settings.n_rows * float(np.log(r).sum()) - float(lost),
    )
    changed = change_basis(settings, globals_, np.diag(r), np.diag(1.0 / r))
    return replace(changed, second=globals_.second * np.outer(r, r)), moved


def change_basis(
    settings: Settings,
    globals_: Globals,
    transform: Float64[Array, "K before"],
    inverse: Float64[Array, "K before"],
) -> Globals:
    """Apply z -> T z, w -> T'^-1 w, given T and T'^-1."""
    turned, extended = _turned(globals_, inverse), with_constant(inverse)
    views = {name: replace(v, pairs=congruence(v.pairs, extended)) for name, v in globals_.views.items()}
    before = globals_.transform
    return replace(turned, views=views, transform=transform if before is None else transform @ before)


def _turned(globals_: Globals, inverse: Float64[Array, "K before"]) -> Globals:
    """Return the globals with w -> T'^-1 w, here or where the weights are."""
    held = globals_.held
    if held is None:
        weights = {name: transformed_weights(w, inverse) for name, w in globals_.weights.items()}
        return replace(globals_, weights=weights)
    return replace(globals_, held=replace(held, turn=inverse if held.turn is None else inverse @ held.turn))


def with_constant(transform: Float64[Array, "K before"]) -> Float64[Array, "K1 before1"]:
    """Return a transform of w as one of (w, b)."""
    extended = np.zeros((len(transform) + 1, transform.shape[1] + 1))
    extended[:-1, :-1], extended[-1, -1] = transform, 1.0
    return extended


def select_factors(globals_: Globals, kept: Integer[Array, " kept"]) -> Globals:
    """Return globals with some factors only, in the order given (if none, the strongest)."""
    k = globals_.n_factors
    if not len(kept):
        kept = np.array([int(globals_.strength.max(axis=0).argmax())])
    if np.array_equal(kept, np.arange(k)):
        return globals_
    pick = np.eye(k)[kept]
    extended = with_constant(pick)
    views = {
        name: replace(
            v,
            **{
                f: getattr(v, f)[kept]
                for f in ("alpha_shape", "alpha_rate", "theta_on", "theta_off", "off_variance")
            },
            pairs=congruence(v.pairs, extended),
        )
        for name, v in globals_.views.items()
    }
    scores = {
        f: getattr(globals_, f)[:, kept] for f in ("beta_shape", "beta_rate", "psi_on", "psi_off", "strength")
    }
    before = globals_.transform
    return replace(
        _turned(globals_, pick),
        views=views,
        second=globals_.second[np.ix_(kept, kept)],
        transform=pick if before is None else pick @ before,
        numbers=None if globals_.numbers is None else globals_.numbers[kept],
        **scores,
    )


def shares(settings: Settings, globals_: Globals) -> Float64[Array, "M K"]:
    """Return the share of each view's sum of squares that each factor carries alone."""
    scale = np.diag(globals_.second)
    rows = []
    for view in settings.views:
        fixed = globals_.fixed[view.name]
        count = fixed.count.sum(axis=1)
        signal = (count @ expected_weights(globals_.weights[view.name])[0] ** 2) * scale
        if view.likelihood == "gaussian":
            total = float(fixed.squares.sum())
        else:
            # On the scale of x, where an entry of a binary view is as good as one of variance 4.
            total = float(signal.sum()) + 4.0 * float(count.sum())
        if view.bound == "local":  # as many times the variance as an observation tells of
            known = settings.information(view.name, globals_.weights[view.name])
            signal = ((known * count) @ expected_weights(globals_.weights[view.name])[0] ** 2) * scale
            total = float(signal.sum()) + float(count.sum())
        rows.append(signal / max(total, 1e-300))
    return np.stack(rows)


def _update_shared(
    settings: Settings,
    globals_: Globals,
    moves: Moves,
    sums: Mapping[str, FeatureSums],
    stats: Stats,
    *,
    sparse: bool,
) -> Globals:
    """Update beta and psi, then m, lambda, alpha and theta of each view."""
    views = {
        view.name: _update_view(
            settings, globals_.views[view.name], view, moves, sums[view.name], sparse=sparse
        )
        for view in settings.views
    }
    new = replace(globals_, views=views)
    if settings.scores_prior == "normal":
        return new
    (shape, rate), (on, off) = settings.priors.beta, settings.priors.psi
    new = replace(new, beta_shape=shape + 0.5 * stats.number, beta_rate=rate + 0.5 * moves.second)
    if not settings.scores_spike:
        return new
    return replace(new, psi_on=on + stats.number, psi_off=off + stats.rows[:, None] - stats.number)


def _update_view(
    settings: Settings, view: View, fixed: ViewSettings, moves: Moves, sums: FeatureSums, *, sparse: bool
) -> View:
    n_features, (shape, rate) = fixed.n_features, fixed.alpha_prior
    if settings.intercepts:
        view = _update_intercept_prior(settings, view, n_features, sums)
    included, squares = moves.included[fixed.name], moves.squares[fixed.name]
    if not sparse:
        return replace(view, alpha_shape=shape + 0.5 * included, alpha_rate=rate + 0.5 * squares)
    on, off = settings.priors.theta
    view = replace(view, theta_on=on + included, theta_off=off + n_features - included)
    if settings.spike == "collapsed":
        return replace(view, alpha_shape=shape + 0.5 * included, alpha_rate=rate + 0.5 * squares)
    off_variance = 1.0 / view.alpha
    total = squares + (n_features - included) * off_variance
    return replace(
        view,
        alpha_shape=shape + 0.5 * n_features * np.ones_like(included),
        alpha_rate=rate + 0.5 * total,
        off_variance=off_variance,
    )


def _update_intercept_prior(settings: Settings, view: View, n_features: int, sums: FeatureSums) -> View:
    prior, (shape, rate) = settings.priors.intercept_mean, settings.priors.intercept
    precision = view.intercept_shape / view.intercept_rate
    mean_precision = prior + n_features * precision
    mean = precision * sums.intercepts / mean_precision
    spread = (
        sums.intercept_squares - 2.0 * mean * sums.intercepts + n_features * (mean**2 + 1.0 / mean_precision)
    )
    return replace(
        view,
        intercept_mean=mean,
        intercept_mean_variance=1.0 / mean_precision,
        intercept_shape=shape + 0.5 * n_features,
        intercept_rate=rate + 0.5 * spread,
    )


def _bound(
    settings: Settings,
    globals_: Globals,
    moves: Moves,
    sums: Mapping[str, FeatureSums],
    stats: Stats,
    *,
    sparse: bool,
) -> float:
    """Return the bound on the log density of the data (section 5)."""
    total = moves.entropy + stats.free + sum(s.likelihood + s.noise for s in sums.values())
    for view in settings.views:
        mine = globals_.views[view.name]
        total += _weights_term(settings, mine, view, moves, sparse=sparse)
        if settings.intercepts:
            total += _intercepts_term(settings, mine, view.n_features, sums[view.name])
    return total + _scores_term(settings, globals_, moves, stats)


def _weights_term(
    settings: Settings, view: View, fixed: ViewSettings, moves: Moves, *, sparse: bool
) -> float:
    included, squares = moves.included[fixed.name], moves.squares[fixed.name]
    n_features, (shape, rate) = fixed.n_features, fixed.alpha_prior
    log_alpha = digamma(view.alpha_shape) - np.log(view.alpha_rate)
    total = 0.5 * (included @ log_alpha - squares @ view.alpha)
    total += gamma_term(view.alpha_shape, view.alpha_rate, shape, rate).sum()
    if sparse:
        log_on, log_off = expected_log_beta(view.theta_on, view.theta_off)
        total += included @ log_on + (n_features - included) @ log_off
        total += beta_term(view.theta_on, view.theta_off, *settings.priors.theta).sum()
        if settings.spike == "hat":
            v = view.off_variance
            total += 0.5 * (n_features - included) @ (log_alpha - view.alpha * v + 1.0 + np.log(v))
    return float(total)


def _intercepts_term(settings: Settings, view: View, n_features: int, sums: FeatureSums) -> float:
    """Return the terms of b, m and lambda."""
    mean, variance = view.intercept_mean, view.intercept_mean_variance
    shape, rate = np.asarray([view.intercept_shape]), np.asarray([view.intercept_rate])
    spread = sums.intercept_squares - 2.0 * mean * sums.intercepts + n_features * (mean**2 + variance)
    log_precision = float((digamma(shape) - np.log(rate))[0])
    prior = settings.priors.intercept_mean
    total = (
        0.5 * (n_features * (log_precision + 1.0) - float((shape / rate)[0]) * spread)
        + sums.intercept_entropy
    )
    total += 0.5 * (np.log(prior) - prior * (mean**2 + variance) + 1.0 + np.log(variance))
    return float(total + gamma_term(shape, rate, *settings.priors.intercept)[0])


def _scores_term(settings: Settings, globals_: Globals, moves: Moves, stats: Stats) -> float:
    """Return the prior terms of the scores and of beta and psi."""
    if settings.scores_prior == "normal":
        return -0.5 * float(moves.second.sum())
    shape, rate = globals_.beta_shape, globals_.beta_rate
    log_beta = digamma(shape) - np.log(rate)
    total = 0.5 * float((stats.number * log_beta - shape / rate * moves.second).sum())
    total += float(gamma_term(shape, rate, *settings.priors.beta).sum())
    if settings.scores_spike:
        log_on, log_off = expected_log_beta(globals_.psi_on, globals_.psi_off)
        total += float((stats.number * log_on + (stats.rows[:, None] - stats.number) * log_off).sum())
        total += float(beta_term(globals_.psi_on, globals_.psi_off, *settings.priors.psi).sum())
    return total
