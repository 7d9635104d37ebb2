"""The evidence lower bound, and updates of parameters that features share, from sums over features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels.special import beta_term, digamma, expected_log_beta, gamma_term
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.learned_sizes import learn_size_prior, size_terms
from factorflow.models.sparse_gfa.loadings import LoadingSums
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.smooth.courses import courses_terms
from factorflow.models.sparse_gfa.state import Globals, View
from factorflow.models.sparse_gfa.statistics import FeatureSums, Stats


@dataclass(frozen=True)
class Moves:
    """Sums over features and samples that a change of basis z -> T z, w -> T'^-1 w changes.

    Parameters
    ----------
    loadings : mapping of view to LoadingSums
        Sums over the loadings.
    second : array
        sum_n E[z^2], of exponential scores sum_n E[z].
    entropy : float
        Entropy of q(z) and of all q(w).
    """

    loadings: Mapping[str, LoadingSums]
    second: Float64[np.ndarray, "G K"]
    entropy: float


def update_shared(
    settings: Settings,
    globals_: Globals,
    moves: Moves,
    sums: Mapping[str, FeatureSums],
    stats: Stats,
) -> Globals:
    """Update beta and psi, then m, lambda, alpha and theta of each view."""
    views = shared_by_features(settings, globals_, moves, sums)
    if stats.size_sums is not None:
        for view, row in zip(settings.views, stats.size_sums, strict=True):
            if view.learned_sizes:
                views[view.name] = learn_size_prior(settings.priors.sizes, views[view.name], row)
    new = replace(globals_, views=views)
    if settings.scores_prior == "normal":
        return new
    (shape, rate), (on, off) = settings.priors.beta, settings.priors.psi
    power = settings.score_power
    scores = replace(
        new.scores, beta_shape=shape + stats.number / power, beta_rate=rate + moves.second / power
    )
    if settings.scores_spike:
        number = stats.number
        scores = replace(scores, psi_on=on + number, psi_off=off + stats.rows[:, None] - number)
    return replace(new, scores=scores)


def shared_by_features(
    settings: Settings, globals_: Globals, moves: Moves, sums: Mapping[str, FeatureSums]
) -> dict[str, View]:
    """Return m, lambda, alpha and theta of each view, updated."""
    return {
        view.name: _update_view(settings, globals_.views[view.name], view, moves, sums[view.name])
        for view in settings.views
    }


def _update_view(
    settings: Settings, view: View, fixed: ViewSettings, moves: Moves, sums: FeatureSums
) -> View:
    n_features = fixed.n_features
    if settings.has_intercepts(fixed):
        view = _update_intercept_prior(settings, view, n_features, sums)
    own, sizes = settings.priors.intercept, n_features * np.bincount(settings.term_of_column)
    view = replace(
        view,
        coefficient_shape=own[0] + 0.5 * sizes,
        coefficient_rate=own[1] + 0.5 * sums.coefficient_squares,
    )
    constants = settings.prior_constants(fixed)
    return fixed.prior.learn(constants, view, moves.loadings[fixed.name])


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


def bound_of(
    settings: Settings,
    globals_: Globals,
    moves: Moves,
    sums: Mapping[str, FeatureSums],
    stats: Stats,
) -> float:
    """Return the bound on the log density of the data."""
    total = moves.entropy + stats.free + sum(s.likelihood + s.noise for s in sums.values())
    for view in settings.views:
        mine = globals_.views[view.name]
        total += float(weights_terms(settings, mine, view, moves).sum())
        total += _coefficients_term(settings, mine, view, sums[view.name])
        if view.learned_sizes and stats.size_sums is not None:
            total += size_terms(settings.priors.sizes, mine, stats.size_sums[settings.views.index(view)])
    return total + float(scores_terms(settings, globals_, moves, stats).sum())


def weights_terms(settings: Settings, view: View, fixed: ViewSettings, moves: Moves) -> Float64[Array, " K"]:
    """Return E log p(w, s) and the terms of the parameters that loadings share, by factor."""
    constants = settings.prior_constants(fixed)
    return fixed.prior.terms(constants, view, moves.loadings[fixed.name])


def _coefficients_term(settings: Settings, view: View, fixed: ViewSettings, sums: FeatureSums) -> float:
    """Return the terms of b, m and lambda."""
    n_features = fixed.n_features
    total = _intercepts_term(settings, view, n_features, sums) if settings.has_intercepts(fixed) else 0.0
    shape, rate = view.coefficient_shape, view.coefficient_rate
    sizes, log_precision = n_features * np.bincount(settings.term_of_column), digamma(shape) - np.log(rate)
    of_terms = 0.5 * (sizes * (log_precision + 1.0) - shape / rate * sums.coefficient_squares)
    of_terms = of_terms + gamma_term(shape, rate, *settings.priors.intercept)
    return total + sums.coefficient_entropy + float(of_terms.sum())


def _intercepts_term(settings: Settings, view: View, n_features: int, sums: FeatureSums) -> float:
    """Return the terms of the intercepts, m and lambda, but for the entropy."""
    mean, variance = view.intercept_mean, view.intercept_mean_variance
    shape, rate = np.asarray([view.intercept_shape]), np.asarray([view.intercept_rate])
    spread = sums.intercept_squares - 2.0 * mean * sums.intercepts + n_features * (mean**2 + variance)
    log_precision = float((digamma(shape) - np.log(rate))[0])
    prior = settings.priors.intercept_mean
    total = 0.5 * (n_features * (log_precision + 1.0) - float((shape / rate)[0]) * spread)
    total += 0.5 * (np.log(prior) - prior * (mean**2 + variance) + 1.0 + np.log(variance))
    return float(total + gamma_term(shape, rate, *settings.priors.intercept)[0])


def scores_terms(settings: Settings, globals_: Globals, moves: Moves, stats: Stats) -> Float64[Array, " K"]:
    """Return the prior terms of the scores and of beta and psi, by factor."""
    if globals_.courses is not None:
        assert stats.courses is not None
        return courses_terms(globals_.courses, stats.courses)
    if settings.scores_prior == "normal":
        return np.asarray(-0.5 * moves.second.sum(axis=0))
    shape, rate = globals_.scores.beta_shape, globals_.scores.beta_rate
    log_beta = digamma(shape) - np.log(rate)
    total = (stats.number * log_beta - shape / rate * moves.second).sum(axis=0) / settings.score_power
    total += gamma_term(shape, rate, *settings.priors.beta).sum(axis=0)
    if settings.scores_spike:
        log_on, log_off = expected_log_beta(globals_.scores.psi_on, globals_.scores.psi_off)
        total += (stats.number * log_on + (stats.rows[:, None] - stats.number) * log_off).sum(axis=0)
        total += beta_term(globals_.scores.psi_on, globals_.scores.psi_off, *settings.priors.psi).sum(axis=0)
    return np.asarray(total)


def check_finite(globals_: Globals, bound: float) -> None:
    """Refuse to go on with a bound that is not finite.

    Raises
    ------
    FloatingPointError
        Naming the views whose parameters are not finite.
    """
    if not np.isfinite(bound):
        raise FloatingPointError(
            f"the bound is {bound}, and {_not_finite(globals_)}. Look for values far from all others, scale "
            "the features (scale_features), or start from fewer factors"
        )


def _not_finite(globals_: Globals) -> str:
    """Return in words which views have parameters that are not finite."""
    names = {
        name: [f.name for f in fields(w) if not _finite(getattr(w, f.name))]
        for name, w in globals_.weights.items()
    }
    bad = [f"{name} ({', '.join(parts)})" for name, parts in names.items() if parts]
    return f"parameters of {'; '.join(bad)} are not finite" if bad else "all loadings are finite"


def _finite(values: Float64[Array, "*shape"] | None) -> bool:
    return values is None or bool(np.isfinite(values).all())
