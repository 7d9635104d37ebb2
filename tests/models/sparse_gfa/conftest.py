"""Tiny datasets, a direct (slow) evaluation of the bound, single steps of sparse group factor analysis."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from scipy.special import betaln, digamma, expit, gammaln
from scipy.stats import binom, nbinom, poisson
from scipy.stats import t as student_t

from factorflow.core.block import Block, Meta, ViewMeta
from factorflow.core.trees import add, freeze, restrict
from factorflow.kernels.linalg import unpack
from factorflow.models.contract import Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.e_step import update_samples
from factorflow.models.sparse_gfa.global_step import finish_iteration
from factorflow.models.sparse_gfa.groups import add_groups, by_noise_group, scatter_rows
from factorflow.models.sparse_gfa.m_step import update_features
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, expected_scores
from factorflow.models.sparse_gfa.squarem import discard_unverified_step
from factorflow.models.sparse_gfa.stored_scores import apply_transform
from factorflow.models.sparse_gfa.stored_scores import starting_scores_of as start_scores
from factorflow.models.sparse_gfa.weights import expected_weights

SIZES = {"gaussian": 7, "bernoulli": 6, "poisson": 5}


def make_views(likelihoods, missing="none", n_rows=24, seed=0, dtype=np.float32):
    """Return {name: values} of views with the given likelihoods; three factors."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, 3))
    views = {}
    for number, likelihood in enumerate(likelihoods):
        n_features = SIZES[likelihood] + number
        loadings = rng.standard_normal((n_features, 3)) * (rng.random((n_features, 3)) < 0.6)
        x = scores @ loadings.T + rng.standard_normal(n_features)
        if likelihood == "gaussian":
            values = 5.0 + 2.0 * (x + 0.5 * rng.standard_normal(x.shape))
        elif likelihood == "bernoulli":
            values = (rng.random(x.shape) < expit(x)).astype(float)
        else:
            values = rng.poisson(np.exp(0.5 * x + 0.5)).astype(float)
        hidden = np.zeros(x.shape, bool)
        if missing == "scattered":
            hidden = rng.random(x.shape) < 0.3
            hidden[3] = rng.random(n_features) < 0.8  # a row whose observed entries are the fewer
            hidden[5] = True
        elif missing == "samples":
            hidden[rng.random(n_rows) < 0.3] = True
        if likelihood == "bernoulli":
            views[f"v{number}"] = np.where(hidden, -1, values).astype(np.int8)
        else:
            views[f"v{number}"] = np.where(hidden, np.nan, values).astype(dtype)
    return views


def make_meta(views, likelihoods, missing="none", block_rows=32, groups=()):
    """Return the shape of a dataset."""
    n_rows = len(next(iter(views.values())))
    shapes = tuple(
        ViewMeta(name, likelihood, values.shape[1], missing)
        for (name, values), likelihood in zip(views.items(), likelihoods, strict=True)
    )
    return Meta(n_rows, -(-n_rows // block_rows), block_rows, shapes, groups)


def make_blocks(views, codes=None, block_rows=32):
    """Return the blocks of a dataset."""
    n_rows = len(next(iter(views.values())))
    n_blocks = -(-n_rows // block_rows)
    blocks = []
    for number in range(n_blocks):
        cut = slice(number * block_rows, min(n_rows, (number + 1) * block_rows))
        data = freeze({name: values[cut] for name, values in views.items()})
        columns = {} if codes is None else {"group": codes[cut]}
        blocks.append(Block(number, cut.start, cut.stop - cut.start, n_blocks, data, {}, columns))
    return blocks


class Problem:
    """A model on tiny data in one block, stepped by hand."""

    def __init__(self, kinds, missing="none", groups=0, dtype=np.float64, seed=0, **options):
        self.views = make_views(kinds, missing, seed=seed, dtype=dtype)
        n_rows = len(next(iter(self.views.values())))
        self.codes = np.arange(n_rows) % groups if groups else None
        names = tuple(f"g{g}" for g in range(groups))
        bits = 64 if dtype == np.float64 else 32
        bound = "poisson" not in kinds or "binomial" in options.get("likelihoods", "")
        options = {"n_factors": 3, "bound": bound, "precision": bits, "drop": 0.0, **options}
        self.model = SparseGFA(**options).build(make_meta(self.views, kinds, missing, groups=names))
        self.settings = self.model.settings
        (self.block,) = make_blocks(self.views, self.codes)
        stages = {stage.name: stage for stage in self.model.stages()}
        self.stages = stages
        globals_ = self.model.init(Step(seed))
        for tick, name in enumerate(("moments", "components")):
            for count in range(stages[name].max_iter):
                sweep = stages[name].sweeps[0]
                if name == "components":  # all factors, whatever is counted in tiny data
                    sweep = replace(sweep, counts=False)
                step = Step(seed, 0, tick, name, count)
                globals_, _ = sweep.update(globals_, sweep.map(self.block, None, globals_, step)[1], step)
                if globals_.basis:
                    break
        self.globals_, self.local, self.sparse, self.count = freeze(globals_), None, False, 0
        self.hasty = False
        self.at_optimum = False  # hyperparameters follow from the loadings, one step a pass

    @property
    def group_codes(self):
        return self.settings.group_codes(self.block)

    @property
    def phase(self):
        """How the next map finds q(z)."""
        return "update" if self.count else "restart" if self.sparse else "start"

    @property
    def step(self):
        return Step(0, 0, 0, "sparse" if self.sparse else "warm-up", self.count)

    def initialize_sparse(self):
        """Begin the sparse stage."""
        self.globals_, self.sparse, self.count = freeze(self.stages["sparse"].enter(self.globals_)), True, 0

    def map(self):
        """Return the local state before and after the update of the samples, and the statistics."""
        before = apply_transform(self.local, self.globals_)
        given = PreparedGlobals(self.settings, self.globals_)
        if self.phase == "start":
            before = start_scores(self.settings, self.block, self.globals_, Step(0))
        parts = by_noise_group(self.settings, self.block, self.group_codes, before)
        done = [
            (r, *update_samples(self.settings, d, c, old, given, g, self.phase)) for g, r, d, c, old in parts
        ]
        if self.settings.n_noise_groups == 1:
            return before, done[0][1], done[0][2]
        stats = add_groups(
            [(p[0], d[2]) for p, d in zip(parts, done, strict=True)], len(self.settings.groups)
        )
        return before, scatter_rows([(d[0], d[1]) for d in done], self.block.n_rows), stats

    def update(self, stats, cut=512):
        """Return new globals, not taken further unless the problem is `hasty`, and the reported numbers."""
        parts, sums = {}, {}
        settings = self.settings if self.sparse else self.settings.warm_up
        for view in settings.views:
            pieces = []
            for start in range(0, view.n_features, cut):
                index = range(start, min(start + cut, view.n_features))
                mine = restrict(stats, view.name, slice(index.start, index.stop))
                pieces.append(update_features(settings, view.name, index, self.globals_, mine, self.step))
            assert len(pieces) == 1
            parts[view.name], sums[view.name] = pieces[0]
        given = settings, self.globals_, stats, parts, sums, self.step
        if self.at_optimum:
            new, info = finish_iteration(*given)
        else:
            with patch(
                "factorflow.models.sparse_gfa.global_step.optimize_hyperparameters",
                lambda *a, **_: a[2],
            ):
                new, info = finish_iteration(*given)
        return (new if self.hasty else discard_unverified_step(new)), info

    def iterate(self):
        """One iteration; returns the bound."""
        _, local, stats = self.map()
        self.globals_, info = self.update(stats)
        self.local, self.count = freeze(local), self.count + 1
        return info["objective"]

    def bound(self, local, globals_, pseudo=None):
        """Return the bound; ``pseudo_data``: (local, globals) that xi and zeta come from (default: best)."""
        return direct_bound(self.settings, self.block.data, self.group_codes, local, globals_, pseudo)


def _full(mean, spread):
    n, k = mean.shape
    if spread.shape[1] == k and k > 1:
        return np.stack([np.diag(s) for s in np.broadcast_to(spread, (n, k))])
    return unpack(np.broadcast_to(spread, (n, spread.shape[1])), k)


def predictor(settings, name, local, globals_):
    """Return E[x] and Var x of every entry on the model's scale, (B, D) each."""
    weights = globals_.weights[name]
    w, spread_w = expected_weights(weights)
    z, spread_z = expected_scores(local)
    c, s = _full(w, spread_w), _full(z, spread_z)
    p = s + z[:, :, None] * z[:, None, :]
    variance = (
        weights.intercept_variance + np.einsum("dij,nij->nd", c, p) + np.einsum("di,nij,dj->nd", w, s, w)
    )
    return weights.intercept + z @ w.T, variance


def gamma_term(a, b, a0, b0):
    log_mean = digamma(a) - np.log(b)
    return np.sum(
        a0 * np.log(b0) - gammaln(a0) + (a0 - a) * log_mean - (b0 - b) * a / b - a * np.log(b) + gammaln(a)
    )


def beta_terms(on, off, prior):
    total = digamma(on + off)
    log_on, log_off = digamma(on) - total, digamma(off) - total
    term = (prior[0] - on) * log_on + (prior[1] - off) * log_off - betaln(*prior) + betaln(on, off)
    return log_on, log_off, np.sum(term)


def _spike_terms(mean, variance, gamma, log_precision, precision, log_on, log_off):
    safe = np.clip(gamma, 1e-300, 1)
    rest = np.clip(1 - gamma, 1e-300, 1)
    slab = 0.5 * (log_precision - precision * (mean**2 + variance) + 1 + np.log(variance))
    return np.sum(
        gamma * slab
        + gamma * log_on
        + (1 - gamma) * log_off
        - gamma * np.log(safe)
        - (1 - gamma) * np.log(rest)
    )


def direct_bound(settings, data, codes, local, globals_, pseudo=None):
    """Evaluate the bound entry by entry, from sections 2, 3 and 5 of the model's description."""
    total = 0.0
    priors = settings.priors
    for m, view in enumerate(settings.views):
        total += _likelihood(settings, m, view, data[view.name], codes, local, globals_, pseudo)
        total += _weights(settings, view, globals_)
    return total + _scores(settings, codes, local, globals_, priors)


def _likelihood(settings, m, view, values, codes, local, globals_, pseudo):
    fixed, weights = globals_.fixed[view.name], globals_.weights[view.name]
    values = values.astype(float)
    observed = ~np.isnan(values) if view.kind != "bernoulli" else values >= 0
    mean, variance = predictor(settings, view.name, local, globals_)
    at_mean, at_variance = mean, variance
    if pseudo is not None:
        at_mean, at_variance = predictor(settings, view.name, *pseudo)
    if view.is_gaussian:
        y = (values - fixed.reference) / fixed.scale
        precision, log_precision = np.ones((len(y), 1)), np.zeros((len(y), 1))
        if settings.sample_noise:
            a, b = local.noise_shape[:, m, None], local.noise_rate[:, m, None]
            precision, log_precision = a / b, digamma(a) - np.log(b)
        extra = 0.0
        if settings.feature_noise:
            a, b = weights.noise_shape.T, weights.noise_rate.T
            group = codes if a.shape[0] > 1 else np.zeros(len(y), int)
            precision = precision * (a / b)[group]
            log_precision = log_precision + (digamma(a) - np.log(b))[group]
            extra += gamma_term(a, b, *settings.priors.noise)
        if settings.sample_noise:
            extra += gamma_term(
                local.noise_shape[:, m], local.noise_rate[:, m], *settings.priors.sample_noise
            )
        entry = 0.5 * (log_precision - np.log(2 * np.pi) - precision * ((y - mean) ** 2 + variance)) - np.log(
            fixed.scale
        )
        return np.where(observed, entry, 0.0).sum() + extra
    if view.is_scaled:
        values = (values - fixed.reference) / fixed.scale
    y, phi = np.where(observed, values, 0.0), weights.phi.T
    prior = (
        -np.where(observed, np.log(fixed.scale), 0.0).sum()
        - 0.5 * ((phi - view.density.phi_mean) ** 2).sum() / view.density.phi_sd**2
    )
    if not view.bounded and pseudo is None:
        entry = expected_log_density(view.likelihood, y, mean, variance, phi)
        return np.where(observed, entry, 0.0).sum() + prior
    # Of a quadratic bound, or tangent, that touches at (at_mean, at_variance), the value at (mean, variance).
    e, g, u = view.density.message(y, at_mean, at_variance, phi, bounded=view.bounded)
    moved = mean - at_mean
    entry = e + g * moved - 0.5 * u * (moved**2 + variance - at_variance) + view.density.log_factor(y, phi)
    return np.where(observed, entry, 0.0).sum() + prior


def log_density(likelihood, y, x, phi):
    """Return log p(y | x) of entries of views that are not Gaussian."""
    if likelihood == "bernoulli":
        return y * x - np.logaddexp(0.0, x)
    if likelihood == "poisson":
        return poisson.logpmf(y, np.exp(x))
    if likelihood == "student_t":
        return student_t.logpdf(y, 4.0, x, np.exp(phi[0]))
    if likelihood == "binomial(trials=60)":
        return binom.logpmf(y, 60, expit(x))
    return nbinom.logpmf(y, np.exp(phi[0]), 1.0 / (1.0 + np.exp(x - phi[0])))


def expected_log_density(likelihood, y, mean, variance, phi):
    """Return E log p(y | x), x ~ N(mean, variance), by 60 nodes."""
    nodes, share = np.polynomial.hermite_e.hermegauss(60)
    sd, total = np.sqrt(variance), 0.0
    for node, weight in zip(nodes, share / share.sum(), strict=True):
        total = total + weight * log_density(likelihood, y, mean + node * sd, phi)
    return total


def _weights(settings, view, globals_):
    weights, shared, priors = globals_.weights[view.name], globals_.views[view.name], settings.priors
    a, b = shared.alpha_shape, shared.alpha_rate
    alpha, log_alpha = a / b, digamma(a) - np.log(b)
    total = gamma_term(a, b, *view.alpha_prior)
    if weights.entropies is not None:
        total += weights.entropies.sum() + 0.5 * np.sum(log_alpha - alpha * weights.scaled_square)
    elif weights.inclusion is None:
        mean, covariance = weights.mean, _full(weights.mean, weights.variance)
        second = mean**2 + np.einsum("dkk->dk", covariance)
        total += 0.5 * np.sum(mean.shape[1] + np.linalg.slogdet(covariance)[1])
        total += 0.5 * np.sum(log_alpha - alpha * second)
    else:
        log_on, log_off, term = beta_terms(shared.theta_on, shared.theta_off, priors.theta)
        gamma = weights.inclusion
        total += term + _spike_terms(weights.mean, weights.variance, gamma, log_alpha, alpha, log_on, log_off)
    if not settings.intercepts:
        return total
    fixed = globals_.fixed[view.name]
    level, v_b = weights.intercept + fixed.reference / fixed.scale, weights.intercept_variance
    m, v_m = shared.intercept_mean, shared.intercept_mean_variance
    a, b, k0 = shared.intercept_shape, shared.intercept_rate, priors.intercept_mean
    total += 0.5 * np.sum(digamma(a) - np.log(b) - a / b * ((level - m) ** 2 + v_b + v_m) + 1 + np.log(v_b))
    total += 0.5 * (np.log(k0) - k0 * (m**2 + v_m) + 1 + np.log(v_m))
    return total + gamma_term(a, b, *priors.intercept)


def _scores(settings, codes, local, globals_, priors):
    total, k = 0.0, local.mean.shape[1]
    precision, log_precision = np.ones((1, k)), np.zeros((1, k))
    if settings.scores_prior != "normal":
        a, b = globals_.scores.beta_shape, globals_.scores.beta_rate
        precision, log_precision = a / b, digamma(a) - np.log(b)
        total += gamma_term(a, b, *priors.beta)
    group = codes if precision.shape[0] > 1 else np.zeros(len(local.mean), int)
    if settings.scores_spike:
        log_on, log_off, term = beta_terms(globals_.scores.psi_on, globals_.scores.psi_off, priors.psi)
        return (
            total
            + term
            + _spike_terms(
                local.mean,
                local.variance,
                local.inclusion,
                log_precision[group],
                precision[group],
                log_on[group],
                log_off[group],
            )
        )
    covariance = _full(local.mean, local.variance)
    second = local.mean**2 + np.einsum("nkk->nk", covariance)
    total += 0.5 * np.sum(k + np.linalg.slogdet(covariance)[1])
    return total + 0.5 * np.sum(log_precision[group] - precision[group] * second)


@pytest.fixture(scope="session")
def tools():
    """The functions of this file."""
    return SimpleNamespace(
        Problem=Problem,
        make_views=make_views,
        make_meta=make_meta,
        make_blocks=make_blocks,
        predictor=predictor,
        direct_bound=direct_bound,
        log_density=log_density,
        full=_full,
        add=add,
    )


@pytest.fixture
def surplus_factors(monkeypatch):
    """Begin fits with six factors more than are counted."""
    monkeypatch.setattr("factorflow.models.sparse_gfa.start.count.SPARE", 6)
