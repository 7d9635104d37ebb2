"""Drawing from the joint distribution of the sampled model, one sweep at a time: for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import special

from factorflow.kernels.random import Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.sampler import pooled
from factorflow.models.sparse_gfa.sampler.drawn import Drawn, DrawnView, DrawnWeights, Names, Record, Shared
from factorflow.models.sparse_gfa.sampler.gibbs import GibbsSweep
from factorflow.models.sparse_gfa.sampler.shared_draws import EDGE
from factorflow.models.sparse_gfa.settings import Priors, Settings
from factorflow.models.sparse_gfa.state import Fixed
from factorflow.shape import Block, Meta, ViewMeta

PAIR = (3.0, 2.0)
PRIORS = Priors(intercept=PAIR, intercept_mean=1.0, beta=PAIR)
VARIANCES, LEVEL = np.array([0.5, 1.0, 1.5, 3.0]), 1.5
"""Of the entries, as the prior of their noise sees them: constants here."""
N, K, D = 6, 2, 4
CODES = np.array([0, 1, 0, 1, 1, 0], np.int32)


def settings_of(kinds: tuple[str, ...], *, groups: bool, spike: str, slab: bool = False) -> Settings:
    """Return the settings of the sampler with priors that can be drawn from."""
    views = tuple(ViewMeta(f"v{i}", kind, D, "scattered") for i, kind in enumerate(kinds))
    named = {"groups": ("one", "two"), "group_sizes": (3, 3)} if groups else {}
    config = SparseGFA(n_factors=K, n_draws=1, spike=spike, precision=64)
    found = config.build(Meta(N, 1, 32, views, **named)).settings
    priors = replace(PRIORS, learned_slab=slab)
    return replace(found, priors=priors, views=tuple(replace(v, alpha_prior=PAIR) for v in found.views))


def prior(rng: Any, settings: Settings) -> tuple[Any, Drawn]:
    """Return scores and globals drawn from the prior."""
    shape, rate = PAIR
    beta = np.ones((settings.n_groups, K))
    if settings.scores_prior == "ard":
        beta = rng.gamma(shape, 1 / rate, beta.shape)
    z = rng.normal(size=(N, K)) / np.sqrt(beta[CODES if settings.n_groups > 1 else np.zeros(N, int)])
    weights, views, fixed, variances = {}, {}, {}, {}
    slab = None
    if settings.priors.learned_slab:
        slab = pooled.SlabPrior(float(rng.choice(pooled.ALIKE)), rng.exponential())
    mean, concentration = rng.choice(pooled.MEANS), rng.choice(pooled.CONCENTRATIONS)
    for view in settings.views:
        alpha = rng.gamma(slab.shape, size=K) / slab.parameters[1] if slab else rng.gamma(shape, 1 / rate, K)
        theta = rng.beta(mean * concentration, (1.0 - mean) * concentration, K).clip(EDGE, 1.0 - EDGE)
        m, lam = rng.normal(), rng.gamma(shape, 1 / rate)
        on = rng.random((D, K)) < theta if settings.spike != "none" else np.ones((D, K), bool)
        w, b = on * rng.normal(size=(D, K)) / np.sqrt(alpha), m + rng.normal(size=(D, 1)) / np.sqrt(lam)
        tau = noise = None
        if view.is_gaussian:
            a, power = rng.choice(pooled.ALIKE), rng.choice(pooled.POWERS)
            noise = pooled.NoisePrior(float(a), rng.exponential(), float(power), LEVEL)
            tau = rng.gamma(a, size=(D, 1)) / noise.rates(VARIANCES)[:, None]
            variances[view.name] = VARIANCES
        weights[view.name] = DrawnWeights(np.concatenate([w, b], axis=1), tau)
        views[view.name] = DrawnView(alpha, theta, float(m), float(lam), noise)
        zeros = np.zeros((D, 1))
        fixed[view.name] = Fixed(zeros[:, 0], np.ones(D), zeros[:, 0], zeros, zeros, zeros)
    shared = Shared(views, beta, slab)
    rest = np.eye(K), np.zeros(K), Record(weights, shared), Names.of(weights.values())
    return z, Drawn(fixed, weights, shared, variances, *rest)


def observe(rng: Any, z: Any, g: Drawn, missing: Any) -> tuple[dict[str, Any], Drawn]:
    """Return new entries given everything, and the globals that know their sums of squares."""
    data, fixed = {}, {}
    for name, mine in g.weights.items():
        x = z @ mine.loadings[:, :-1].T + mine.loadings[:, -1]
        if mine.precision is None:
            data[name] = np.where(missing, -1, rng.random(x.shape) < special.expit(x)).astype(np.int8)
        else:
            y = x + rng.normal(size=x.shape) / np.sqrt(mine.precision[:, 0])
            data[name] = np.where(missing, np.nan, y)
        count, squares = (~missing).sum(axis=0)[:, None], np.nansum(data[name] ** 2, axis=0)[:, None]
        fixed[name] = replace(g.fixed[name], count=count.astype(float), squares=squares)
    return data, replace(g, fixed=fixed)


def sweep_once(sweep: GibbsSweep, data: Any, local: Any, g: Drawn, step: Step) -> tuple[Any, Drawn]:
    columns = {"group": CODES} if sweep.settings.groups else {}
    block = Block(0, 0, N, 1, data, columns=columns)
    local, stats = sweep.map(block, local, sweep.prepare(g), step)
    found = {name: sweep.features(name, range(D), g, stats, step) for name in data}
    parts, sums = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
    new, _ = sweep.assemble(g, stats, parts, sums, step)
    return local, new


def summaries(z: Any, g: Drawn | Record) -> list[float]:
    out = [np.tanh(z).mean(), (np.tanh(z) ** 2).mean(), np.log(g.shared.beta).mean()]
    if g.shared.slab is not None:
        out += [np.log(g.shared.slab.shape), np.log(g.shared.slab.mean)]
    for name, mine in g.weights.items():
        w, b, v = mine.loadings[:, :-1], mine.loadings[:, -1], g.shared.views[name]
        out += [(w != 0).mean(), (np.tanh(w) ** 2).mean(), np.tanh(b).mean(), (np.tanh(b) ** 2).mean()]
        out += [np.log(v.alpha).mean(), v.theta.mean(), (v.theta**2).mean(), np.tanh(v.intercept_mean)]
        out += [np.tanh(v.intercept_mean) ** 2, np.log(v.intercept_precision), (v.theta * (w != 0)).mean()]
        out += [(np.tanh(np.abs(z).mean(axis=0) * np.abs(w).mean(axis=0))).mean()]
        if mine.precision is not None:
            logs = np.log(mine.precision).ravel()
            out += [logs.mean(), np.tanh(logs).std(), np.log(v.noise.shape), np.log(v.noise.mean)]
            out += [v.noise.power, v.noise.power * (logs @ np.log(VARIANCES))]
    return [float(x) for x in out]


def invariants(z: Any, g: Drawn) -> list[float]:
    """Return summaries that do not change with signs and order of the factors, and a few predictors."""
    x = [(z @ mine.loadings[:, :-1].T + mine.loadings[:, -1])[:2, :2].ravel() for mine in g.weights.values()]
    return [*summaries(z, g)[1:], *(float(value) for part in x for value in part)]


def ranks(sweep: GibbsSweep, seed: int, n_burn_in: int, n_draws: int, thin: int) -> Any:
    """Return the rank of each invariant of parameters from the prior among draws given their data.

    The chain starts from other parameters, drawn from the prior too. Ties, of what is discrete, are broken at
    random.
    """
    rng = np.random.default_rng([11, seed])
    missing = rng.random((N, D)) < 0.2
    z, g = prior(rng, sweep.settings)
    data, known = observe(rng, z, g, missing)
    truth, (_, start) = np.array(invariants(z, g)), prior(rng, sweep.settings)
    g, local = replace(start, fixed=known.fixed), None
    below, equal = np.zeros(len(truth)), np.zeros(len(truth))
    for i in range(n_burn_in + n_draws * thin):
        local, g = sweep_once(sweep, data, local, g, Step(seed, 0, i))
        if i >= n_burn_in and (i - n_burn_in) % thin == thin - 1:
            drawn = np.array(invariants(local.values @ g.transform.T + g.shift, g))
            same = np.isclose(drawn, truth, rtol=1e-12, atol=0.0)
            equal += same
            below += (drawn < truth) & ~same
    return below + np.floor(rng.random(len(truth)) * (equal + 1.0))
