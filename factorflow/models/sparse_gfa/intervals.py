"""Standard deviations of loadings that leave scores and the loadings of other factors open.

q(w, s) takes scores for known, and loadings of other factors too, so its intervals are too narrow. These have
formulas, given the fit; q itself stays as it is, and so do inclusion, predictions and the scores of new
samples. With I = sum_n u E[z z'] of all else known, of the factors whose inclusion is above one half:

- The entry itself tells of z_n: with z_n integrated out the precision about x is u (1 - u v), v = w' Cov z w,
  and it sees E z alone (Louis 1982: the information that is missing). So I becomes
  (1 - u- v-) R I R, u- and v- averages over the samples, R = diag((sum (E z_k)^2 / sum E z_k^2)^1/2).
- Its inverse over the factors of the feature at once, the intercept and the covariates.
- All features share what q(z) leaves open: z_j -> z_j + e z_k, w_k -> w_k - e w_j leaves x as it is but for
  features that have j and not k. The precision of e is N (1 + q_jk), q_jk = sum_d u- w_dj^2 of those, plus
  alpha w_dj^2 of the others; that of e_jk and e_kj together [[1 + q_jk, 1], [1, 1 + q_kj]] N (a rotation
  costs the prior of z nothing); of the scale of a factor 2 N. w_dk gains sum_j w_dj^2 Var e_jk.

References
----------
Louis (1982), JRSS B 44, 226-233.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.kernels.linalg import diagonal, unpack
from factorflow.models.contract import Array, Variable
from factorflow.models.sparse_gfa.hyperparameters import column_precision, message_precision
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.summaries import Corrected
from factorflow.models.sparse_gfa.variables import variable
from factorflow.models.sparse_gfa.weights import Weights, expected_weights

LEAST = 0.1
"""Share of the information of a feature that is left at least, whatever q(z) leaves open."""

RUN = 512
"""Features whose matrices are in memory at once."""


@dataclass(frozen=True)
class Spread:
    """Moments of q(z) over all samples.

    Parameters
    ----------
    moments, covariance : array
        Sums of E[(z, a)(z, a)'] and of Cov z over the samples, packed.
    n_rows, n_factors, n_given : float, int, int
        Samples, factors (K) and given columns (C).
    """

    moments: Float64[np.ndarray, " Q"]
    covariance: Float64[np.ndarray, " P"]
    n_rows: float
    n_factors: int
    n_given: int = 1

    @property
    def second(self) -> Float64[Array, " K"]:
        """Average of E z^2."""
        return np.maximum(
            diagonal(self.moments, self.n_factors + self.n_given)[: self.n_factors] / self.n_rows, 1e-300
        )


def _active(settings: Settings, view: ViewSettings, weights: Weights) -> Bool[Array, "D L"]:
    """Return which factors a feature has, and whether an intercept; it has all covariates."""
    on = np.ones(weights.mean.shape, bool) if weights.inclusion is None else weights.inclusion > 0.5
    always = np.ones((len(on), settings.n_given), bool)
    always[:, 0] = settings.has_intercepts(view)
    return np.concatenate([on, always], axis=1)


def _inverse(matrix: Float64[Array, "D L L"], active: Bool[Array, "D L"]) -> Float64[Array, "D L L"]:
    """Return the inverses of the active rows and columns, 0 elsewhere."""
    both = active[:, :, None] & active[:, None, :]
    inactive = np.eye(active.shape[1]) * ~active[:, :, None]
    return np.where(both, np.linalg.inv(np.where(both, matrix, inactive)), 0.0)


def _variance(
    information: Float64[Array, "D L L"],
    precision: Float64[Array, " L"],
    active: Bool[Array, "D L"],
    loadings: Float64[Array, "D K"],
    count: Float64[Array, " D"],
    spread: Spread,
) -> Float64[Array, "D K"]:
    """Return the variance of loadings, each entry's scores integrated out; without what features share."""
    k = loadings.shape[1]
    uncertain = unpack(spread.covariance, k) / spread.n_rows
    certain = np.sqrt(np.clip(1.0 - np.diag(uncertain) / spread.second, LEAST, 1.0))
    certain = np.append(certain, np.ones(spread.n_given))
    average = information[:, k, k] / np.maximum(count, 1.0)
    left = 1.0 - average * np.einsum("dj,jk,dk->d", loadings, uncertain, loadings)
    matrix = np.clip(left, LEAST, 1.0)[:, None, None] * information * np.outer(certain, certain)
    return np.einsum("dkk->dk", _inverse(matrix + np.diag(precision), active))[:, :k]


def corrected_moments(settings: Settings, globals_: Globals, spread: Spread) -> dict[str, Corrected]:
    """Return mean and variance of the loadings of every view: see the top of this file."""
    k = spread.n_factors
    on, mean, own, average = {}, {}, {}, {}
    for view in settings.views:
        name, weights, shared = view.name, globals_.weights[view.name], globals_.views[view.name]
        active, count = _active(settings, view, weights), globals_.fixed[view.name].count.sum(axis=1)
        on[name] = active[:, :k]
        own_prior = view.prior.precision(shared)
        prior = np.append(own_prior, column_precision(settings, shared))
        size, average[name] = _second_moments(settings, name, globals_, count)
        mean[name] = np.where(on[name], weights.mean, 0.0)
        correlation = _correlation(spread)
        parts = [np.zeros((0, k))]
        for first in range(0, len(count), RUN):
            run = slice(first, first + RUN)
            information = size[run, :, None] * size[run, None, :] * correlation
            parts.append(_variance(information, prior, active[run], mean[name][run], count[run], spread))
        own[name] = np.concatenate(parts)
    common = _common(globals_, on, mean, average, spread)
    out = {}
    for name, active in on.items():
        out[name] = _with_inclusion(globals_.weights[name], active, mean[name], own[name] + common[name])
    return out


def _second_moments(
    settings: Settings, name: str, globals_: Globals, count: Float64[Array, " D"]
) -> tuple[Float64[Array, "D L"], Float64[Array, " D"]]:
    """Return the roots of sum_n u E[z_k^2] and sum_n u a_c^2 of each feature as q has them; sum_n u / N."""
    of_view, weights, view = settings.view(name), globals_.weights[name], globals_.views[name]
    k = weights.mean.shape[1]
    precision = 1.0 / diagonal(weights.variance, k)
    if weights.variance.shape[1] != k:
        precision = np.einsum("dkk->dk", np.linalg.inv(unpack(weights.variance, k)))
    coefficients = np.zeros(weights.coefficients.shape)
    coefficients[:, settings.learned_columns(of_view)] = message_precision(settings, of_view, weights, view)
    if not settings.has_intercepts(of_view):
        coefficients[:, 0] = settings.information(name, weights) * count
    own = of_view.prior.precision(view)
    size = np.concatenate([np.maximum(precision - own, 0.0), coefficients], axis=1)
    return np.sqrt(size), coefficients[:, 0] / settings.n_rows


def _correlation(spread: Spread) -> Float64[Array, "L L"]:
    """Return the products of (z, a), averaged, on the scale where squares are 1."""
    second = unpack(spread.moments, spread.n_factors + spread.n_given)
    size = np.sqrt(np.maximum(np.diag(second), 1e-300))
    return np.asarray(second / np.outer(size, size))


def _common(
    globals_: Globals,
    on: Mapping[str, Bool[Array, "D K"]],
    mean: Mapping[str, Float64[Array, "D K"]],
    average: Mapping[str, Float64[Array, " D"]],
    spread: Spread,
) -> dict[str, Float64[Array, "D K"]]:
    """Return the variance of loadings by what q(z) leaves open to all: mixtures of factors, and scale."""
    n, k = spread.n_rows, spread.n_factors
    cost = np.zeros((k, k))
    for name, active in on.items():
        squares = mean[name] ** 2 * spread.second
        alpha = globals_.views[name].alpha / spread.second
        cost += (average[name][:, None] * squares).T @ ~active + (squares.T @ active) * alpha / n
    both = (1.0 + cost) * (1.0 + cost.T) - 1.0
    open_ = (1.0 + cost.T) / np.maximum(both, 1e-6) / n
    np.fill_diagonal(open_, 0.5 / n)
    return {
        name: active * ((mean[name] ** 2 * spread.second) @ open_) / spread.second
        for name, active in on.items()
    }


def _with_inclusion(
    weights: Weights,
    active: Bool[Array, "D K"],
    mean: Float64[Array, "D K"],
    variance: Float64[Array, "D K"],
) -> Corrected:
    """Return mean and variance of loadings that may be 0; of those that likely are, as the fit has them."""
    gamma = np.ones(mean.shape) if weights.inclusion is None else weights.inclusion
    usual, spread = expected_weights(weights)
    if spread.shape[1] != usual.shape[1]:
        spread = diagonal(spread, usual.shape[1])
    mixed = gamma * variance + gamma * (1.0 - gamma) * mean**2
    return Corrected(np.where(active, gamma * mean, usual), np.where(active, mixed, spread))


def corrected_table(name: str) -> Iterator[Variable]:
    """Yield the variables of the loadings of a view with their intervals."""

    def corrected_values(g: Globals, values: Callable[[Corrected], Array]) -> Float64[Array, "D K"]:
        if g.closing is None:
            return np.full(g.weights[name].mean.shape, np.nan)
        return values(g.closing.corrected[name]) * g.fixed[name].scale[:, None]

    def of_view(own: str, values: Callable[[Corrected], Array]) -> Variable:
        return variable(own, lambda g: corrected_values(g, values), view=name)

    yield of_view("corrected_loadings", lambda one: one.mean)
    yield of_view("corrected_loadings_sd", lambda one: np.sqrt(one.variance))
