"""Loadings under the likelihood itself, given q(z), with intervals that leave the scores open.

q(w, s) has two faults as a statement about loadings. Where a bound stands for the likelihood, its curvature
is too high and loadings are too small. And it takes scores for known, and loadings of other factors too, so
its intervals are too narrow. Closing passes (`DebiasSweep`) and formulas put both right; q itself stays as it
is, and so do inclusion, predictions and the scores of new samples.

**Mean.** For each feature of a view with a bound (not Gaussian, not by the curvature at q(x)), of the factors
whose inclusion is above one half, Gaussian r(w) r(b) maximise ::

    E_r E_q(z) log p(y_d | x) + E_r log N(w; 0, 1 / alpha) N(b; m, 1 / lambda) + entropies

by Newton's steps: with x ~ N(E x, Var x), u = E f'' and u y^ = u E x - E f' of f = -log p(y | x) by up to
nine Gauss-Hermite nodes, the precision of r(w) is sum_n u E[z z'] + alpha, that of r(b) sum_n u + lambda, and
their means solve the normal equations of y^. A step moves x by 1 and its own spread at most.

**Variance.** With I = sum_n u E[z z'] of all else known:

- The entry itself tells of z_n: with z_n integrated out the precision about x is u (1 - u v), v = w' Cov z w,
  and it sees E z alone (Louis 1982: the information that is missing). So I becomes
  (1 - u- v-) R I R, u- and v- averages over the samples, R = diag((sum (E z_k)^2 / sum E z_k^2)^1/2).
- Its inverse over the factors of the feature at once, and the intercept.
- All features share what q(z) leaves open: z_j -> z_j + e z_k, w_k -> w_k - e w_j leaves x as it is but for
  features that have j and not k. The precision of e is N (1 + q_jk), q_jk = sum_d u- w_dj^2 of those, plus
  alpha w_dj^2 of the others; that of e_jk and e_kj together [[1 + q_jk, 1], [1, 1 + q_kj]] N (a rotation
  costs the prior of z nothing); of the scale of a factor 2 N. w_dk gains sum_j w_dj^2 Var e_jk.

References
----------
Louis (1982), JRSS B 44, 226-233. Opper and Archambeau (2009), Neural Computation 21, 786-792 (Gaussian r).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.kernels.linalg import diagonal, n_pairs, pack, triangle, unpack
from factorflow.models.contract import Array, Block, Info, Step, Sweep, Variable
from factorflow.models.sparse_gfa.features import rows_of
from factorflow.models.sparse_gfa.final import final_scores
from factorflow.models.sparse_gfa.pseudo import Given, pseudo_data, sent
from factorflow.models.sparse_gfa.recorded import Corrected
from factorflow.models.sparse_gfa.samples import Refreshed, statistics, stored
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Fixed, Globals, Local, View, Weights, expected_weights
from factorflow.models.sparse_gfa.sums import Stats
from factorflow.trees import replace

__all__ = ["PASSES", "DebiasSweep", "Spread", "corrected", "corrected_table", "is_biased"]

PASSES = 3
"""Newton's steps: after three, means differ from the end by a hundredth of their standard deviation."""

LEAST = 0.1
"""Share of the information of a feature that is left at least, whatever q(z) leaves open."""

RUN = 512
"""Features whose matrices are in memory at once."""


def is_biased(settings: Settings) -> bool:
    """Whether there are views whose bound makes loadings too small."""
    return bool(_own(settings).views)


def _own(settings: Settings) -> Settings:
    """Return the settings of the views with a bound, by the curvature at q(x) instead, without groups."""
    views = [v for v in settings.views if v.bound not in {"gaussian", "local"}]
    local = tuple(replace(view, bound="local", scattered=True) for view in views)
    return replace(settings, views=local, groups=(), grouped_noise=False)


@dataclass(frozen=True)
class Spread:
    """What q(z) says of the scores of all samples.

    Parameters
    ----------
    moments, covariance : array
        Sums of E[(z, 1)(z, 1)'] and of Cov z over the samples, packed.
    n_rows, n_factors : float, int
        Samples, and factors (K).
    """

    moments: Float64[np.ndarray, " Q"]
    covariance: Float64[np.ndarray, " P"]
    n_rows: float
    n_factors: int

    @property
    def second(self) -> Float64[Array, " K"]:
        """Average of E z^2."""
        return np.maximum(diagonal(self.moments, self.n_factors + 1)[:-1] / self.n_rows, 1e-300)


@dataclass(frozen=True)
class DebiasSweep(Sweep[Globals, Local, Stats]):
    """One Newton step of the loadings of views with a bound, under their likelihood; q stays as it is."""

    settings: Settings
    name: ClassVar[str] = "debiasing"

    def send(self, globals_: Globals) -> Globals:
        """Return the globals with the moments of the weights, and the loadings so far."""
        begun = {view.name: _begun(globals_, view.name) for view in _own(self.settings).views}
        return replace(sent(self.settings, globals_), corrected=begun)

    def prepare(self, globals_: Globals) -> tuple[Given, Given]:
        """Return the globals of the fit and those with the loadings so far, with tables that blocks read."""
        own = _own(self.settings)
        weights = {view.name: _weights(_begun(globals_, view.name)) for view in own.views}
        return Given(self.settings, globals_), Given(own, replace(globals_, weights=weights))

    def map(
        self, block: Block, local: Local | None, givens: tuple[Given, Given], step: Step
    ) -> tuple[Local | None, Stats]:
        """Add up the pseudo-data of a block."""
        fit, now = givens
        scores = stored(local, fit.globals_)
        if scores is None:  # of another start, or of none
            scores = final_scores(self.settings, block, None, fit)
        own, tables = now.settings, now.tables(0, next(iter(block.data.values())))
        pseudo = {
            view.name: pseudo_data(own, view.name, block, scores, now.globals_, tables[view.name])
            for view in own.views
        }
        codes = np.zeros(block.n_rows, np.int64)
        return local, statistics(
            own, codes, Refreshed(scores, pseudo, 0.0, 0.0, np.zeros(scores.mean.shape[1])), now.globals_
        )

    def axes(self) -> Mapping[str, int]:
        """Return the views with a bound and their numbers of features."""
        return {view.name: view.n_features for view in _own(self.settings).views}

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Corrected, None]:
        """Take the step of a run of features."""
        rows, view = slice(index.start, index.stop), globals_.views[axis]
        weights, fixed = rows_of(globals_.weights[axis], rows), rows_of(globals_.fixed[axis], rows)
        before = rows_of(_begun(globals_, axis), rows)
        found = stats.features[axis]
        assert found.pairs is not None
        spread = Spread(stats.moments, stats.covariance, float(stats.rows.sum()), globals_.n_factors)
        active = _active(self.settings, weights)
        system = found.pairs[:, 0], found.cross[:, 0]
        parts = []
        for first in range(0, len(weights.mean), RUN):
            run = slice(first, first + RUN)
            mine = rows_of(before, run), system[0][run], system[1][run]
            parts.append(_step(*mine, active[run], view, rows_of(fixed, run), spread))
        return _joined(parts), None

    def assemble(
        self,
        globals_: Globals,
        stats: Stats,
        parts: Mapping[str, Corrected],
        sums: Mapping[str, None],
        step: Step,
    ) -> tuple[Globals, Info]:
        """Keep the loadings found beside those of the fit."""
        return replace(globals_, corrected=dict(parts)), {}


def _active(settings: Settings, weights: Weights) -> Bool[Array, "D K1"]:
    """Return which factors a feature has, and whether an intercept."""
    on = np.ones(weights.mean.shape, bool) if weights.inclusion is None else weights.inclusion > 0.5
    return np.concatenate([on, np.full((len(on), 1), settings.intercepts)], axis=1)


def _begun(globals_: Globals, name: str) -> Corrected:
    """Return the loadings of a view so far: those of the fit at first, without those that are likely 0."""
    if name in globals_.corrected:
        return globals_.corrected[name]
    weights = globals_.weights[name]
    mean, k = weights.mean, weights.mean.shape[1]
    variance = diagonal(weights.variance, k)
    if weights.inclusion is not None:
        on = weights.inclusion > 0.5
        mean, variance = np.where(on, mean, 0.0), np.where(on, variance, 0.0)
    covariance = np.zeros((len(mean), n_pairs(k)))
    covariance[:, np.flatnonzero(np.equal(*triangle(k)))] = variance
    return Corrected(mean, variance, covariance, weights.intercept, weights.intercept_variance)


def _weights(found: Corrected) -> Weights:
    """Return loadings so far as `pseudo_data` reads them."""
    assert found.covariance is not None
    assert found.intercept is not None
    assert found.intercept_variance is not None
    return Weights(found.mean, found.covariance, None, found.intercept, found.intercept_variance, None, None)


def _joined(parts: list[Corrected]) -> Corrected:
    columns = zip(
        *((p.mean, p.variance, p.covariance, p.intercept, p.intercept_variance) for p in parts), strict=True
    )
    return Corrected(*(np.concatenate(column) for column in columns))


def _step(
    before: Corrected,
    pairs: Float64[Array, "D Q"],
    cross: Float64[Array, "D K1"],
    active: Bool[Array, "D K1"],
    view: View,
    fixed: Fixed,
    spread: Spread,
) -> Corrected:
    """Solve the normal equations of features, and move there unless that is too far."""
    k = before.mean.shape[1]
    assert before.intercept is not None
    precision = np.append(view.alpha, view.intercept_shape / view.intercept_rate)
    linear = cross.copy()
    linear[:, k] += precision[k] * (view.intercept_mean - fixed.reference / fixed.scale)
    information = unpack(pairs, k + 1)
    covariance = _inverse(information + np.diag(precision), active)
    old = np.concatenate([before.mean, before.intercept[:, None]], axis=1)
    move = np.einsum("djk,dk->dj", covariance, linear) - np.where(active, old, 0.0)
    second = unpack(spread.moments, k + 1) / spread.n_rows
    length = np.sqrt(np.maximum(np.einsum("dj,jk,dk->d", move, second, move), 1e-300))
    own = np.sqrt(np.maximum(np.einsum("dj,jk,dk->d", old[:, :k], second[:k, :k], old[:, :k]), 0.0))
    new = old + np.minimum(1.0, (1.0 + own) / length)[:, None] * move
    variance = _variance(information, precision, active, new[:, :k], fixed.count.sum(axis=1), spread)
    of_loadings = _inverse(information[:, :k, :k] + np.diag(precision[:k]), active[:, :k])
    of_intercept = active[:, k] / (information[:, k, k] + precision[k])
    return Corrected(new[:, :k], variance, pack(of_loadings), new[:, k], of_intercept)


def _inverse(matrix: Float64[Array, "D K1 K1"], active: Bool[Array, "D K1"]) -> Float64[Array, "D K1 K1"]:
    """Return the inverses of the active rows and columns, 0 elsewhere."""
    both = active[:, :, None] & active[:, None, :]
    rest = np.eye(active.shape[1]) * ~active[:, :, None]
    return np.where(both, np.linalg.inv(np.where(both, matrix, rest)), 0.0)


def _variance(
    information: Float64[Array, "D K1 K1"],
    precision: Float64[Array, " K1"],
    active: Bool[Array, "D K1"],
    loadings: Float64[Array, "D K"],
    count: Float64[Array, " D"],
    spread: Spread,
) -> Float64[Array, "D K"]:
    """Return the variance of loadings, each entry's scores integrated out; without what features share."""
    k = loadings.shape[1]
    uncertain = unpack(spread.covariance, k) / spread.n_rows
    known = np.sqrt(np.clip(1.0 - np.diag(uncertain) / spread.second, LEAST, 1.0))
    known = np.append(known, 1.0)
    average = information[:, k, k] / np.maximum(count, 1.0)
    left = 1.0 - average * np.einsum("dj,jk,dk->d", loadings, uncertain, loadings)
    matrix = np.clip(left, LEAST, 1.0)[:, None, None] * information * np.outer(known, known)
    return np.einsum("dkk->dk", _inverse(matrix + np.diag(precision), active))[:, :k]


def corrected(settings: Settings, globals_: Globals, spread: Spread) -> dict[str, Corrected]:
    """Return mean and variance of the loadings of every view: see the top of this file."""
    k = spread.n_factors
    on, mean, own, average = {}, {}, {}, {}
    for view in settings.views:
        name, weights, shared = view.name, globals_.weights[view.name], globals_.views[view.name]
        active, count = _active(settings, weights), globals_.fixed[view.name].count.sum(axis=1)
        on[name] = active[:, :k]
        prior = np.append(shared.alpha, shared.intercept_shape / shared.intercept_rate)
        size, average[name] = _known(settings, name, globals_, count)
        found = globals_.corrected.get(name)
        if found is not None:
            mean[name], own[name] = found.mean, found.variance
            continue
        mean[name] = np.where(on[name], weights.mean, 0.0)
        correlation = _correlation(spread)
        parts = [np.zeros((0, k))]
        for first in range(0, len(count), RUN):
            run = slice(first, first + RUN)
            information = size[run, :, None] * size[run, None, :] * correlation
            parts.append(_variance(information, prior, active[run], mean[name][run], count[run], spread))
        own[name] = np.concatenate(parts)
    common = _common(settings, globals_, on, mean, average, spread)
    out = {}
    for name, active in on.items():
        out[name] = _with_inclusion(globals_.weights[name], active, mean[name], own[name] + common[name])
    return out


def _known(
    settings: Settings, name: str, globals_: Globals, count: Float64[Array, " D"]
) -> tuple[Float64[Array, "D K1"], Float64[Array, " D"]]:
    """Return the roots of sum_n u E[z_k^2] and sum_n u of each feature as q has them, and the latter / N."""
    weights, view = globals_.weights[name], globals_.views[name]
    k = weights.mean.shape[1]
    precision = 1.0 / diagonal(weights.variance, k)
    if weights.variance.shape[1] != k:
        precision = np.einsum("dkk->dk", np.linalg.inv(unpack(weights.variance, k)))
    total = settings.information(name, weights) * count
    if settings.intercepts:
        total = np.maximum(1.0 / weights.intercept_variance - view.intercept_shape / view.intercept_rate, 0.0)
    size = np.concatenate([np.maximum(precision - view.alpha, 0.0), total[:, None]], axis=1)
    return np.sqrt(size), total / settings.n_rows


def _correlation(spread: Spread) -> Float64[Array, "K1 K1"]:
    """Return the products of (z, 1), averaged, on the scale where squares are 1."""
    second = unpack(spread.moments, spread.n_factors + 1)
    size = np.sqrt(np.maximum(np.diag(second), 1e-300))
    return np.asarray(second / np.outer(size, size))


def _common(
    settings: Settings,
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


def corrected_table(name: str, dims: tuple[str, ...]) -> list[Variable]:
    """Return the variables of the loadings of a view under the likelihood itself."""

    def found(g: Globals, values: Callable[[Corrected], Array]) -> Float64[Array, "D K"]:
        if name not in g.corrected:  # no closing pass
            return np.full(g.weights[name].mean.shape, np.nan)
        return values(g.corrected[name]) * g.fixed[name].scale[:, None]

    mean = "Loading under the likelihood itself, given the scores' distribution, in data units."
    sd = "Its standard deviation, with what scores and loadings of other factors leave open."
    return [
        Variable(f"corrected_loadings_{name}", dims, mean, lambda g: found(g, lambda one: one.mean)),
        Variable(
            f"corrected_loadings_sd_{name}", dims, sd, lambda g: found(g, lambda one: np.sqrt(one.variance))
        ),
    ]
