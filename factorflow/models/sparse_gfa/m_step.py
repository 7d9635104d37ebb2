"""The feature side of sparse group factor analysis: q(w, s), q(b), q(tau) of a run of features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace, take
from factorflow.kernels.linalg import block_places, diagonal, n_pairs, row_place, unpack
from factorflow.kernels.special import digamma, gamma_term
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.hyperparameters import ALONE, column_precision, noise_prior_of
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.n_factors import worth_of_loadings
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.squarem import REACH
from factorflow.models.sparse_gfa.state import Fixed, Globals, View
from factorflow.models.sparse_gfa.statistics import FeatureStats, FeatureSums, Stats
from factorflow.models.sparse_gfa.weights import Weights, expected_weights, sum_pairs

ROUNDING = 1e-6
"""Bound of the rounding errors of a sum of squares of entries, and products of it, in single precision."""


@dataclass(frozen=True)
class System:
    """Normal equations of a run of features: precision scale_d P_d, linear term scale_d c_d."""

    pairs: Float64[np.ndarray, "#D Q"]
    cross: Float64[np.ndarray, "D L"]
    scale: Float64[np.ndarray, " D"]


def update_features(
    settings: Settings, name: str, index: range, globals_: Globals, stats: Stats, step: Step
) -> tuple[Weights, FeatureSums]:
    """Maximise the bound over w, then b, then tau, of a run of features; the body of `Sweep.features`."""
    rate = globals_.progress.step_length if settings.view(name).tangent else 1.0
    rows = slice(index.start, index.stop)
    before, fixed = take(globals_.weights[name], rows), take(globals_.fixed[name], rows)
    view = globals_.views[name]
    rotates = settings.dense and settings.changes_basis(step.count)
    return _update(settings, name, before, fixed, view, stats, rate, rotates=rotates)


def _update(
    settings: Settings,
    name: str,
    weights: Weights,
    fixed: Fixed,
    view: View,
    stats: Stats,
    rate: float,
    *,
    rotates: bool,
) -> tuple[Weights, FeatureSums]:
    """Maximise the bound over w, then b, then tau, and add up what the features have then."""
    mine = stats.features[name]
    pairs = stats.shared[name][None] if mine.pairs is None else mine.pairs
    system = normal_equations(settings.precision(name, weights), pairs, mine)
    weights, entropy, way = _update_loadings(settings, name, weights, view, system, stats, rate)
    expected = expected_weights(weights)
    weights, coefficient_terms = _update_coefficients(
        settings, name, weights, expected[0], fixed, view, system, way
    )
    weights, likelihood, noise = _update_noise(settings, name, weights, expected, fixed, view, (mine, pairs))
    terms = entropy, likelihood, noise, coefficient_terms
    sums = _sums(settings, name, weights, expected, fixed, terms, rotates=rotates)
    if settings.deletes:
        sums = replace(sums, worth=worth_of_loadings(settings, name, weights, expected, mine.cross, pairs))
    return weights, sums


def _update_loadings(
    settings: Settings,
    name: str,
    weights: Weights,
    view: View,
    system: System,
    stats: Stats,
    rate: float | Float64[Array, "D 1"],
) -> tuple[Weights, float, float | Float64[Array, "D 1"]]:
    """Return q(w), its entropy, and how far each feature went: logarithms of rates by `REACH` at most.

    Entries of next to no rate say nothing of what is far above: others would move them without limit.
    """
    linear = _linear(weights, system)
    if not settings.dense:
        prior = settings.view(name).prior
        new, entropy = prior.update(weights, view, system.pairs, linear, system.scale, rate)
    else:
        new, entropy = _update_full(weights, view, system, rate)
    if not (settings.view(name).density.log_link and isinstance(rate, float)):
        return new, entropy, rate
    k = weights.mean.shape[1]
    second = unpack(stats.moments[: n_pairs(k)], k) / settings.n_rows
    moved = expected_weights(new)[0] - expected_weights(weights)[0]
    length = np.sqrt(np.einsum("dj,jk,dk->d", moved, second, moved))[:, None]
    if not (length > REACH).any():
        return new, entropy, rate
    shorter = rate * np.minimum(1.0, REACH / np.maximum(length, 1e-300))
    return _update_loadings(settings, name, weights, view, system, stats, shorter)


def normal_equations(
    precision: Float64[Array, "D T"], pairs: Float64[Array, "#D T Q"], mine: FeatureStats
) -> System:
    """Return the normal equations of a run of features, the noise of all groups in them."""
    if precision.shape[1] == 1:
        return System(pairs[:, 0], mine.cross[:, 0], precision[:, 0])
    return System(
        np.einsum("dt,dtq->dq", precision, np.broadcast_to(pairs, (len(precision), *pairs.shape[1:]))),
        np.einsum("dt,dtk->dk", precision, mine.cross),
        np.ones(len(precision)),
    )


def _linear(weights: Weights, system: System) -> Float64[Array, "D K"]:
    """Return scale_d (c_d - P_da b_d)."""
    n_factors = weights.mean.shape[1]
    linear = system.cross[:, :n_factors]
    for c, coefficient in enumerate(weights.coefficients.T):
        linear = linear - coefficient[:, None] * system.pairs[:, row_place(n_factors + c, n_factors)]
    return system.scale[:, None] * linear


def _update_full(
    weights: Weights, view: View, system: System, step: float | Float64[Array, "D 1"] = 1.0
) -> tuple[Weights, float]:
    """Update Gaussian weights with their full covariance (no spike), a part of the way on a straight line."""
    mean, covariance, logdet = gfa.solve_normals(
        system.pairs, _linear(weights, system), system.scale, view.alpha[None]
    )
    if np.min(step) < 1.0:
        mean = weights.mean + step * (mean - weights.mean)
        covariance = weights.variance + step * (covariance - weights.variance)
        logdet = np.linalg.slogdet(unpack(covariance, mean.shape[1]))[1]
    entropy = 0.5 * float(mean.size + logdet.sum())
    return replace(weights, mean=mean, variance=covariance, inclusion=None), entropy


def _update_coefficients(
    settings: Settings,
    name: str,
    weights: Weights,
    mean: Float64[Array, "D K"],
    fixed: Fixed,
    view: View,
    system: System,
    step: float | Float64[Array, "D 1"],
) -> tuple[Weights, float]:
    """Update q(b), b = (intercept, coefficients of the covariates), jointly; return its log determinants."""
    learned, k = settings.learned_columns(settings.view(name)), weights.mean.shape[1]
    columns = range(settings.n_given)[learned]
    if not len(columns):
        return weights, 0.0
    prior = column_precision(settings, view)
    linear = system.cross[:, k + columns.start :] - np.stack(
        [
            np.einsum("dk,dk->d", mean, np.broadcast_to(system.pairs[:, row_place(k + c, k)], mean.shape))
            for c in columns
        ],
        axis=1,
    )
    linear = system.scale[:, None] * linear
    if columns.start == 0:
        linear[:, 0] += prior[0] * (view.intercept_mean - fixed.reference / fixed.scale)
    pairs = system.pairs[:, block_places(k + columns.start, len(columns))]
    solution, spread, logdet = gfa.solve_normals(pairs, linear, system.scale, prior[None, learned])
    coefficients, covariance = weights.coefficients.copy(), np.zeros_like(weights.coefficients_spread)
    coefficients[:, learned] += step * (solution - coefficients[:, learned])
    covariance[:, block_places(columns.start, len(columns))] = spread
    new = replace(weights, coefficients=coefficients, coefficients_spread=covariance)
    return new, 0.5 * float(logdet.sum())


def _update_noise(
    settings: Settings,
    name: str,
    weights: Weights,
    expected: tuple[Float64[Array, "D K"], Float64[Array, "D V"]],
    fixed: Fixed,
    view: View,
    stats: tuple[FeatureStats, Float64[Array, "#D T Q"]],
) -> tuple[Weights, float, float]:
    """Update tau from residual sums of squares; return the expected log-likelihood and the terms of tau."""
    (mean, spread), (mine, pairs) = expected, stats
    fit = np.stack(
        [
            gfa.quadratic(
                mine.cross[:, t], pairs[:, t], mean, spread, weights.coefficients, weights.coefficients_spread
            )
            for t in range(mine.cross.shape[1])
        ],
        axis=1,
    )
    constant = float(fixed.constant.sum())
    if not settings.view(name).is_gaussian:
        density = settings.view(name).density
        terms = density.log_prior(weights.phi)  # of those that entries were seen with
        if mine.phi is not None:
            weights = replace(weights, phi=density.update_phi(weights.phi, mine.phi.sum(axis=1)))
        return weights, constant - 0.5 * float(fit.sum()), terms
    residual = residual_squares(settings, fit, fixed.squares, mine.squares)
    if not settings.feature_noise:
        return weights, constant - 0.5 * float(residual.sum()), 0.0
    shape, rate = noise_prior_of(view, fixed)
    new_shape, new_rate = shape + 0.5 * fixed.count, rate + 0.5 * residual
    if settings.view(name).n_features == 1:
        new_rate = np.maximum(new_rate, ALONE * new_shape * fixed.squares / np.maximum(fixed.count, 1.0))
    log_precision = digamma(new_shape) - np.log(new_rate)
    likelihood = constant + 0.5 * float((fixed.count * log_precision - residual * new_shape / new_rate).sum())
    terms = float(gamma_term(new_shape, new_rate, shape, rate).sum())
    return replace(weights, noise_shape=new_shape, noise_rate=new_rate), likelihood, terms


def residual_squares(
    settings: Settings,
    fit: Float64[Array, "D T"],
    fixed: Float64[Array, "D T"],
    mine: Float64[Array, "D T"] | None,
) -> Float64[Array, "D T"]:
    """Return residual sums of squares, given `gfa.quadratic`, `Fixed.squares` and those of the statistics.

    Those that are a difference of `Fixed.squares` and products in single precision are not below the rounding
    errors of these, else features without noise had one below 0.
    """
    if mine is not None and settings.sample_noise:
        return fit + mine
    exact = np.zeros(fixed.shape) if mine is None else mine
    squares = fit + np.where(exact > 0.0, exact, fixed)
    if settings.dtype == np.float64:
        return squares
    return np.where(exact > 0.0, squares, np.maximum(squares, ROUNDING * fixed))


def loading_sums(settings: Settings, name: str, weights: Weights, fixed: Fixed) -> FeatureSums:
    """Return what the loadings and intercepts of a view add up, for the parameters that they share."""
    terms = 0.0, 0.0, 0.0, 0.0
    expected = expected_weights(weights)
    return _sums(settings, name, weights, expected, fixed, terms, rotates=False)


def _sums(
    settings: Settings,
    name: str,
    weights: Weights,
    expected: tuple[Float64[Array, "D K"], Float64[Array, "D V"]],
    fixed: Fixed,
    terms: tuple[float, float, float, float],
    *,
    rotates: bool,
) -> FeatureSums:
    mean, spread = expected
    b = weights.intercept + fixed.reference / fixed.scale
    v = weights.intercept_variance
    ones = np.ones(len(mean))
    entropy, likelihood, noise, coefficient_terms = terms
    others = weights.coefficients[:, 1:] ** 2 + diagonal(weights.coefficients_spread, settings.n_given)[:, 1:]
    coefficients = weights.coefficients, weights.coefficients_spread
    return FeatureSums(
        loadings=settings.view(name).prior.sums(weights),
        entropy=entropy,
        likelihood=likelihood,
        noise=noise,
        intercepts=float(b.sum()),
        intercept_squares=float((b**2 + v).sum()),
        coefficient_squares=np.bincount(
            settings.term_of_column, others.sum(axis=0), minlength=settings.n_terms
        ).astype(np.float64),
        coefficient_entropy=coefficient_terms,
        pairs=sum_pairs(weights, settings.precision(name, weights), expected),
        gram=gfa.sum_pairs(mean, spread, *coefficients, ones) if rotates else None,
    )
