"""Hyperparameters of the loadings, intercepts and noise of a view, at their optimum for the next pass.

Given its message exp(l w - p w^2 / 2) from the entries, the posterior of a loading is known for any value of
the hyperparameters. So these are set to where the bound is highest with the loadings integrated out and the
messages fixed. One step of expectation maximisation a pass would creep where each loading is hardly known.

- alpha and theta of each factor, from l = mu / sigma^2, p = 1 / sigma^2 - <alpha>, by iterations from where
  they are, or where none of its loadings is there, if that is higher (`loadings.optimum`);
- m and lambda of the intercepts b, a root in log lambda; lambda of the coefficients of each term, m = 0::

      b_d = (lambda m + l_d) / (lambda + p_d),  m = sum_d [l / (lambda + p)] / sum_d [p / (lambda + p)]
      lambda (rate + 1/2 sum_d [(b_d - m)^2 + Var m + 1 / (lambda + p_d)]) = shape + D / 2

- the prior tau_d ~ Ga(a, a s u_d^gamma) of noise precisions, u_d the variance of the feature, gamma 0 or 1:
  of largest marginal likelihood given residual sums of squares R_d of n_d entries::

      prod_d Ga(a + n_d / 2) / Ga(a) (a s u_d)^a / (a s u_d + R_d / 2)^(a + n_d / 2)

  and q(tau) by it, so that the next pass learns loadings by the prior that its bound has.

The bound that a pass reports has the expectations that follow from its loadings (`elbo`).

References
----------
MacKay (1992), Neural Computation 4, 415-447 (evidence). Smyth (2004), Statistical Applications in Genetics
and Molecular Biology 3, article 3 (noise precisions of features with a prior in common).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import gammaln

from factorflow.core.trees import replace
from factorflow.kernels.linalg import unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.state import Fixed, Globals, View
from factorflow.models.sparse_gfa.weights import Weights, sum_pairs

SHAPES = np.geomspace(0.5, 1e5, 12)[:, None]
"""Shapes a of the prior of noise precisions that are compared: from one entry's worth to all alike."""
LOGS = -60.0, 60.0
"""Between which log lambda lies; at an end, if the optimum is beyond it."""
NEWTON = 20
"""Steps of Newton's method for the level of noise precisions, of length 2, from their median: at most."""
ALONE = 0.1
"""Least share of its variance that is noise of a feature alone in its view: a factor could take all of it."""


def optimize_hyperparameters(settings: Settings, before: Globals, new: Globals) -> Globals:
    """Return the globals with the shared parameters that the next pass updates loadings and noise by.

    Parameters
    ----------
    settings, before, new : Settings, Globals
        Of the run; before and after a pass, the changes of basis at its end among them.
    """
    views, parts = {}, {}
    for fixed_view in settings.views:
        name = fixed_view.name
        weights, fixed, view, old = new.weights[name], new.fixed[name], new.views[name], before.views[name]
        view = _coefficients(settings, fixed_view, weights, fixed, view, old)
        if not settings.dense:
            prior, constants = fixed_view.prior, settings.prior_constants(fixed_view)
            scale = np.ones(new.n_factors) if new.change.transform is None else np.diag(new.change.transform)
            view = prior.optimize(constants, weights, view, old.alpha * scale**prior.power)
        if weights.noise_rate is not None:
            view = _noise_prior(weights, fixed, view, old)
            weights = _noise_by(weights, fixed, view, old)
            view = replace(view, pairs=sum_pairs(weights, settings.precision(name, weights)))
        views[name], parts[name] = view, weights
    return replace(new, views=views, weights=parts)


def noise_prior_of(view: View, fixed: Fixed) -> tuple[float, Float64[Array, "#D #T"]]:
    """Return shape and rates of the prior of the noise precisions of some features of a view."""
    if not view.noise_by_variance:
        return view.noise_shape, np.full((1, 1), view.noise_rate)
    return view.noise_shape, view.noise_rate * _variance(fixed)


def column_precision(settings: Settings, view: View) -> Float64[Array, " C"]:
    """Return the prior precision of the coefficient of each given column, the intercept first."""
    of_terms = (view.coefficient_shape / view.coefficient_rate)[settings.term_of_column]
    return np.concatenate([[view.intercept_shape / view.intercept_rate], of_terms])


def _variance(fixed: Fixed) -> Float64[Array, "D 1"]:
    """Return the variance of the entries of each feature; 1 of one that does not vary."""
    count, squares = fixed.count.sum(axis=1, keepdims=True), fixed.squares.sum(axis=1, keepdims=True)
    return np.where(squares > 0.0, squares / np.maximum(count, 1.0), 1.0)


def _coefficients(
    settings: Settings, of_view: ViewSettings, weights: Weights, fixed: Fixed, view: View, old: View
) -> View:
    """Return the view with m and each lambda for the next pass; ``old``: those that this one went by."""
    used, p = column_precision(settings, old), np.zeros(weights.coefficients.shape)
    p[:, settings.learned_columns(of_view)] = message_precision(settings, of_view, weights, old)
    level = weights.coefficients.copy()
    level[:, 0] += fixed.reference / fixed.scale
    linear = level * (p + used)
    linear[:, 0] -= used[0] * old.intercept_mean
    if settings.has_intercepts(of_view):
        mean, precision = _optimal_precision(settings, linear[:, 0], p[:, 0], settings.priors.intercept_mean)
        view = replace(view, intercept_mean=mean, intercept_rate=view.intercept_shape / precision)
    rates = np.array(view.coefficient_rate)
    for term in range(settings.n_terms):
        mine = 1 + np.flatnonzero(settings.term_of_column == term)
        optimum = _optimal_precision(settings, linear[:, mine].ravel(), p[:, mine].ravel(), None)[1]
        rates[term] = view.coefficient_shape[term] / optimum
    return replace(view, coefficient_rate=rates)


def message_precision(
    settings: Settings, of_view: ViewSettings, weights: Weights, view: View
) -> Float64[Array, "D learned"]:
    """Return the precision of each learned coefficient that is told by the entries, the others known.

    ``view`` has the prior precisions that it was learned with.
    """
    learned = settings.learned_columns(of_view)
    own = column_precision(settings, view)[learned]
    if settings.n_given == 1:
        return np.maximum(1.0 / weights.coefficients_spread[:, learned] - own, 0.0)
    covariance = unpack(weights.coefficients_spread, settings.n_given)[:, learned, learned]
    return np.maximum(np.einsum("dcc->dc", np.linalg.inv(covariance)) - own, 0.0)


def _optimal_precision(
    settings: Settings, linear: Float64[Array, " n"], p: Float64[Array, " n"], of_mean: float | None
) -> tuple[float, float]:
    """Return mean m and precision lambda of coefficients, given their messages.

    ``of_mean`` is the prior precision of m; None: m = 0.
    """
    from scipy.optimize import brentq

    shape, rate = settings.priors.intercept
    shape = shape + 0.5 * len(p)

    def excess(log_precision: float) -> tuple[float, float]:
        """Return log lambda less what follows from the coefficients that it gives, and m."""
        precision, mean = float(np.exp(log_precision)), 0.0
        total = precision + p
        if of_mean is not None:
            mean = float((linear * precision / total).sum() / (of_mean + (p * precision / total).sum()))
        spread = (((precision * mean + linear) / total - mean) ** 2 + 1.0 / total).sum()
        if of_mean is not None:
            spread += len(p) / (of_mean + len(p) * precision)  # the variance of m
        return log_precision - float(np.log(shape / (rate + 0.5 * spread))), mean

    low, high = (excess(end)[0] for end in LOGS)  # it grows with log lambda
    if low > 0.0 or high < 0.0:
        log_precision = LOGS[0] if low > 0.0 else LOGS[1]
    else:
        log_precision = float(brentq(lambda x: excess(x)[0], *LOGS, xtol=1e-6))
    return excess(log_precision)[1], float(np.exp(log_precision))


def _noise_by(weights: Weights, fixed: Fixed, view: View, old: View) -> Weights:
    """Return q(tau) by the prior of the noise of ``view``, where it was by that of ``old``."""
    assert weights.noise_shape is not None
    assert weights.noise_rate is not None
    (before, rates), (shape, new_rates) = noise_prior_of(old, fixed), noise_prior_of(view, fixed)
    noise_shape = weights.noise_shape + (shape - before)
    return replace(weights, noise_shape=noise_shape, noise_rate=weights.noise_rate + (new_rates - rates))


def _noise_prior(weights: Weights, fixed: Fixed, view: View, old: View) -> View:
    """Return the view with the prior of noise precisions for the next pass; ``old``: of this one."""
    n_features = len(weights.mean)
    if n_features == 1 or weights.noise_shape is None or weights.noise_rate is None:
        return view
    shape, rates = noise_prior_of(old, fixed)
    half = np.broadcast_to(weights.noise_shape - shape, weights.noise_rate.shape).ravel()
    squares = np.maximum(weights.noise_rate - rates, 1e-12).ravel()  # R / 2
    unit = np.broadcast_to(_variance(fixed), weights.noise_rate.shape).ravel()
    informative = (half > 0.0) & np.broadcast_to(fixed.squares > 0.0, weights.noise_rate.shape).ravel()
    half, squares, unit = half[informative], squares[informative], unit[informative]
    if len(half) < 2:
        return view
    best, optimum, distinct = -np.inf, view, np.unique(half, return_counts=True)
    for by_variance in (False, True):
        x = squares / unit if by_variance else squares
        value, shape, rate = _of_most_evidence(half, x, distinct)
        value -= float((half * np.log(unit)).sum()) if by_variance else 0.0
        if value > best:
            best = value
            optimum = replace(view, noise_shape=shape, noise_rate=rate, noise_by_variance=by_variance)
    return optimum


def _of_most_evidence(
    half: Float64[Array, " D"],
    x: Float64[Array, " D"],
    counts: tuple[Float64[Array, " U"], Int64[Array, " U"]],
) -> tuple[float, float, float]:
    """Return the largest log marginal likelihood of halved squares, and the prior's shape and rate.

    ``counts``: the distinct values of ``half``, and how often there is each.
    """
    level, (distinct, times) = np.full((len(SHAPES), 1), np.log(np.median(x / half))), counts  # log s
    sums = np.stack([np.ones(len(x)), half], axis=1)
    weights = np.concatenate([SHAPES, np.ones_like(SHAPES)], axis=1)
    for _ in range(NEWTON):
        t = x * (np.exp(-level) / SHAPES)
        t += 1.0
        np.reciprocal(t, out=t)
        first, second = (((part @ sums) * weights).sum(axis=1, keepdims=True) for part in (t, t * t))
        step = np.clip((len(x) * SHAPES - first) / np.maximum(first - second, 1e-300), -2.0, 2.0)
        level += step
        if np.abs(step).max() < 1e-6:  # the error is the square of it
            break
    rate = SHAPES * np.exp(level)
    total = gammaln(SHAPES + distinct) - gammaln(SHAPES) + SHAPES * np.log(rate)
    value = total @ times - ((SHAPES + half) * np.log(rate + x)).sum(axis=1)
    i = int(value.argmax())
    return float(value[i]), float(SHAPES[i, 0]), float(rate[i, 0])
