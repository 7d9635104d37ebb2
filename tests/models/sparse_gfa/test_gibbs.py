"""The sampler of sparse GFA: Geweke's joint test, exact small cases, Polya-Gamma draws, refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import special

import factorflow
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.drawn import Drawn, DrawnView, DrawnWeights
from factorflow.models.sparse_gfa.gibbs import GibbsSweep
from factorflow.models.sparse_gfa.kernels.draws import draw_loadings, draw_weights
from factorflow.models.sparse_gfa.settings import Priors, Settings
from factorflow.models.sparse_gfa.state import Fixed
from factorflow.shape import Block, Meta, ViewMeta

PAIR = (3.0, 2.0)
PRIORS = Priors(noise=PAIR, intercept=PAIR, intercept_mean=1.0, theta=(1.5, 2.0), beta=PAIR)
LENGTHS = [pytest.param(1, id="short"), pytest.param(12, id="long", marks=pytest.mark.slow)]
N, K, D = 6, 2, 4
CODES = np.array([0, 1, 0, 1, 1, 0], np.int32)


def settings_of(kinds: tuple[str, ...], *, groups: bool, spike: str) -> Settings:
    """Return the settings of the sampler with priors that can be drawn from."""
    views = tuple(ViewMeta(f"v{i}", kind, D, "scattered") for i, kind in enumerate(kinds))
    named = {"groups": ("one", "two"), "group_sizes": (3, 3)} if groups else {}
    config = SparseGFA(n_factors=K, n_draws=1, spike=spike, precision=64)
    found = config.build(Meta(N, 1, 32, views, **named)).settings
    return replace(found, priors=PRIORS, views=tuple(replace(v, alpha_prior=PAIR) for v in found.views))


def prior(rng: Any, settings: Settings) -> tuple[Any, Drawn]:
    """Return scores and globals drawn from the prior."""
    shape, rate = PAIR
    beta = np.ones((settings.n_groups, K))
    if settings.scores_prior == "ard":
        beta = rng.gamma(shape, 1 / rate, beta.shape)
    z = rng.normal(size=(N, K)) / np.sqrt(beta[CODES if settings.n_groups > 1 else np.zeros(N, int)])
    weights, views, fixed = {}, {}, {}
    for view in settings.views:
        alpha, theta = rng.gamma(shape, 1 / rate, K), rng.beta(*PRIORS.theta, K)
        m, lam = rng.normal(), rng.gamma(shape, 1 / rate)
        on = rng.random((D, K)) < theta if settings.spike != "none" else np.ones((D, K), bool)
        w, b = on * rng.normal(size=(D, K)) / np.sqrt(alpha), m + rng.normal(size=(D, 1)) / np.sqrt(lam)
        tau = rng.gamma(shape, 1 / rate, (D, 1)) if view.likelihood == "gaussian" else None
        weights[view.name] = DrawnWeights(np.concatenate([w, b], axis=1), tau)
        views[view.name] = DrawnView(alpha, theta, float(m), float(lam))
        zeros = np.zeros((D, 1))
        fixed[view.name] = Fixed(zeros[:, 0], np.ones(D), zeros[:, 0], zeros, zeros, zeros)
    return z, Drawn(fixed, weights, views, beta, np.eye(K), np.zeros(K))


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


def summaries(z: Any, g: Drawn) -> list[float]:
    out = [np.tanh(z).mean(), (np.tanh(z) ** 2).mean(), np.log(g.beta).mean()]
    for name, mine in g.weights.items():
        w, b, v = mine.loadings[:, :-1], mine.loadings[:, -1], g.views[name]
        out += [(w != 0).mean(), (np.tanh(w) ** 2).mean(), np.tanh(b).mean(), (np.tanh(b) ** 2).mean()]
        out += [np.log(v.alpha).mean(), v.theta.mean(), (v.theta**2).mean(), np.tanh(v.intercept_mean)]
        out += [np.tanh(v.intercept_mean) ** 2, np.log(v.intercept_precision), (v.theta * (w != 0)).mean()]
        out += [(np.tanh(np.abs(z).mean(axis=0) * np.abs(w).mean(axis=0))).mean()]
        if mine.precision is not None:
            out += [np.log(mine.precision).mean(), mine.precision.mean()]
    return [float(x) for x in out]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("kinds", "groups", "spike"),
    [
        pytest.param(("gaussian",), True, "collapsed", id="groups", marks=pytest.mark.thorough),
        pytest.param(("gaussian", "bernoulli"), False, "collapsed", id="mixed"),
        pytest.param(("gaussian",), False, "none", id="dense", marks=pytest.mark.thorough),
    ],
)
def test_joint_distribution(kinds: tuple[str, ...], groups: bool, spike: str, length: int) -> None:
    """Geweke (2004): with entries drawn anew after every sweep, everything keeps its prior."""
    settings, rng = settings_of(kinds, groups=groups, spike=spike), np.random.default_rng(3)
    missing = rng.random((N, D)) < 0.2
    sweep, (z, g), local = GibbsSweep(settings, keep=False), prior(rng, settings), None
    found = []
    for i in range(1200 * length):
        data, g = observe(rng, z, g, missing)
        local, g = sweep_once(sweep, data, local, g, Step(5, 0, i))
        z = local.values @ g.transform.T + g.shift
        found.append(summaries(z, g))
    expected = np.array([summaries(*prior(rng, settings)) for _ in range(3000 * min(length, 4))])
    batches = np.array(found).reshape(20, -1, len(found[0])).mean(axis=1)
    error = np.sqrt(batches.var(axis=0, ddof=1) / 20 + expected.var(axis=0) / len(expected))
    score = (batches.mean(axis=0) - expected.mean(axis=0)) / np.maximum(error, 1e-12)
    score = score[batches.var(axis=0) > 1e-20]  # without spikes s and theta never move
    assert np.abs(score).max() < 6, score
    assert np.sqrt((score**2).mean()) < 2, score


@pytest.mark.parametrize("x", [0.0, 0.7, 3.0, -12.0])
def test_polya_gamma_moments(x: float) -> None:
    n = 40_000
    drawn, half, density = draw_weights(
        np.ones((n, 1), np.int8), np.full((n, 1), x), np.arange(n), (1, 0), Step(1), 2
    )
    size = abs(x)
    mean = 0.25 if x == 0 else np.tanh(size / 2) / (2 * size)
    variance = 1 / 24 if x == 0 else (np.sinh(size) - size) / (4 * size**3 * np.cosh(size / 2) ** 2)
    assert abs(drawn.mean() - mean) < 4.5 * np.sqrt(variance / n)
    assert abs(drawn.var() / variance - 1) < 0.12
    for t in (0.5, 4.0):  # E exp(-omega t) = cosh(x / 2) / cosh((x^2 / 4 + t / 2)^1/2)
        known = np.cosh(x / 2) / np.cosh(np.sqrt(x**2 / 4 + t / 2))
        made = np.exp(-t * drawn)
        assert abs(made.mean() - known) < 4.5 * made.std() / np.sqrt(n)
    assert (half == 0.5).all()
    assert np.isclose(density, n * -np.log1p(np.exp(-x)))


def test_polya_gamma_is_keyed_by_the_entry() -> None:
    values, x = np.ones((6, 5), np.int8), np.linspace(-3, 3, 30).reshape(6, 5)
    whole = draw_weights(values, x, np.arange(6), (7, 2), Step(1), 2)[0]
    part = draw_weights(values[4:], x[4:], np.arange(4, 6), (7, 2), Step(1), 2)[0]
    assert np.array_equal(whole[4:], part)
    values[1, 2] = -1
    precision, half, _ = draw_weights(values, x, np.arange(6), (7, 2), Step(1), 2)
    assert precision[1, 2] == half[1, 2] == 0.0
    assert (np.delete(precision, 7) == np.delete(whole, 7)).all()


def test_spikes_match_enumeration() -> None:
    """One feature's s, w and b against the exact mixture over all s."""
    rng, k, n = np.random.default_rng(0), 3, 20_000
    design = np.concatenate([rng.normal(size=(9, k)), np.ones((9, 1))], axis=1)
    y, tau, shift = design @ [0.5, 0.0, -0.4, 0.8] + rng.normal(size=9), 1.3, 0.6
    precision, odds = np.array([0.8, 1.5, 0.5, 0.7]), np.array([-0.5, 0.2, 0.0])
    gram, cross = design.T @ design, design.T @ y
    pieces = []
    for s in product([False, True], repeat=k):
        on = np.array([*s, True])
        a = tau * gram[np.ix_(on, on)] + np.diag(precision[on])
        h = (tau * cross + np.array([0, 0, 0, precision[3] * shift]))[on]
        mean = np.zeros(k + 1)
        mean[on] = np.linalg.solve(a, h)
        size = np.log(precision[on]).sum() - np.linalg.slogdet(a)[1]
        log = odds @ s + 0.5 * (size + h @ mean[on])
        second = np.outer(mean, mean)
        second[np.ix_(on, on)] += np.linalg.inv(a)
        pieces.append((log, on, mean, second))
    weight = special.softmax([p[0] for p in pieces])
    inclusion, mean, second = (np.tensordot(weight, np.array([p[i] for p in pieces]), 1) for i in (1, 2, 3))
    packed = gram[np.tril_indices(k + 1)]
    drawn = np.zeros((n, k + 1))
    for _ in range(8):
        noise = rng.random((n, k)), rng.normal(size=(n, k + 1))
        given = packed[None], np.tile(cross, (n, 1)), np.full(n, tau), precision, np.full(n, shift), odds
        drawn = draw_loadings(*given, noise, drawn)
    error = 4.5 / np.sqrt(n)
    assert np.abs((drawn != 0).mean(axis=0) - inclusion).max() < error * 0.5
    assert (np.abs(drawn.mean(axis=0) - mean) < error * np.sqrt(np.diag(second))).all()
    assert np.abs(drawn.T @ drawn / n - second).max() < 2 * error


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("poisson", {}),
        ("gaussian", {"inference": "incremental"}),
        ("gaussian", {"cut": "features"}),
        ("gaussian", {"scores_prior": "spike"}),
        ("gaussian", {"noise": "both"}),
        ("gaussian", {"intercepts": False}),
    ],
)
def test_what_is_not_sampled_is_refused(kind: str, options: dict[str, Any]) -> None:
    meta = Meta(20, 1, 32, (ViewMeta("a", kind, 6, "none"),))
    with pytest.raises(InputError, match="n_draws"):
        SparseGFA(n_factors=2, n_draws=5, **options).build(meta)
    SparseGFA(n_factors=2, **options).build(meta)


def test_no_factors_is_an_answer(tmp_path: Any) -> None:
    """Noise: the fit drops all factors, and the sampler goes on with intercepts and noise alone."""
    y = np.random.default_rng(0).normal(3.0, 2.0, (60, 12))
    dataset = factorflow.write_dataset(tmp_path / "noise.zarr", {"a": y})
    config = SparseGFA(n_factors=2, n_draws=30, n_burn_in=10, chains=2)
    posterior = factorflow.fit(dataset, config, seed=1, out=tmp_path / "p.zarr", progress=False)
    assert posterior.scores().shape == (60, 0)
    np.testing.assert_allclose(posterior.intercept("a"), y.mean(axis=0), atol=0.5)
    mean = posterior.predict("a")["mean"].load()
    np.testing.assert_allclose(mean, np.broadcast_to(y.mean(axis=0), y.shape), atol=0.5)
