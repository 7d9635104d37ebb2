"""The sampler of sparse GFA: Geweke's joint test, exact small cases, refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from joint import D, N, moved_scores, observe, prior, ranks, settings_of, summaries, sweep_once
from scipy import special

import factorflow
from factorflow.core.block import Block, Meta, ViewMeta
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.kernels.draws import draw_loadings, uniform
from factorflow.models.sparse_gfa.loadings.horseshoe import Horseshoe
from factorflow.models.sparse_gfa.loadings.mixture import Component
from factorflow.models.sparse_gfa.sampler import pooled
from factorflow.models.sparse_gfa.sampler.gibbs import GibbsSweep
from factorflow.models.sparse_gfa.sampler.gibbs_state import (
    ChainGlobals,
    DrawnView,
    DrawnWeights,
    Names,
    Record,
    Shared,
)
from factorflow.models.sparse_gfa.state import Fixed

TIMES = "survival(times=1.0, hazards=0.5:0.8)"
SHORT = tuple(Component("normal", 2.0**j) for j in range(-4, 2))
"""Of a horseshoe: from loadings of hundreds, which the entries drawn after them hold, chains never return."""
LENGTHS = [pytest.param(1, id="short"), pytest.param(12, id="long", marks=pytest.mark.slow)]


@pytest.mark.thorough
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("kinds", "groups", "dense", "slab", "options"),
    [
        pytest.param(("gaussian", "bernoulli"), False, False, True, {"covariates": True}, id="mixed"),
        pytest.param(
            ("poisson", "gaussian"),
            True,
            "last",
            False,
            {"covariates": True},
            id="counts-covariates",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("gaussian", "bernoulli"), False, "last", True, {}, id="outcome", marks=pytest.mark.slow
        ),
        pytest.param(("gaussian",), False, False, False, {"courses": "levels"}, id="levels"),
        pytest.param(("gaussian", TIMES), False, False, False, {"covariates": True}, id="survival"),
        pytest.param(
            ("gaussian", "bernoulli"),
            False,
            False,
            False,
            {"covariates": True, "intercepts": False},
            id="no-intercepts",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ("poisson", "gaussian"),
            False,
            True,
            False,
            {"courses": "time", "covariates": True},
            id="time",
            marks=pytest.mark.thorough,
        ),
        pytest.param(("gaussian",), True, False, False, {}, id="groups", marks=pytest.mark.slow),
        pytest.param(("gaussian",), False, True, False, {}, id="dense", marks=pytest.mark.slow),
        pytest.param(("gaussian", "bernoulli"), False, False, True, {"scores": "nonnegative"}, id="parts"),
        pytest.param(
            ("gaussian",), True, False, False, {"scores": "spike"}, id="spikes", marks=pytest.mark.thorough
        ),
        pytest.param(
            ("poisson", "gaussian"),
            False,
            "last",
            False,
            {"scores": "nonnegative", "sizes": "learned"},
            id="count-parts",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("poisson", "gaussian"),
            True,
            False,
            False,
            {"scores": "nonnegative", "score_slab": "half_normal", "covariates": True},
            id="half-normal-parts",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("gaussian", "bernoulli"), False, "last", True, {"loadings": "nonnegative"}, id="positive"
        ),
        pytest.param(
            ("gaussian",),
            False,
            False,
            False,
            {"loadings": "nonnegative(slab=half_normal)"},
            id="half-normal",
        ),
        pytest.param(
            ("poisson", "gaussian"),
            False,
            False,
            False,
            {"loadings": "nonnegative(slab=half_normal)", "covariates": True},
            id="half-normal-counts",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("gaussian",),
            False,
            False,
            False,
            {"loadings": "horseshoe"},
            id="horseshoe",
            marks=pytest.mark.thorough,
        ),
        pytest.param(("gaussian",), False, False, True, {"loadings": "adaptive_shrinkage"}, id="adaptive"),
        pytest.param(("gaussian",), False, False, True, {"loadings": "informed"}, id="informed"),
        pytest.param(
            ("poisson",),
            False,
            False,
            False,
            {"loadings": "adaptive_shrinkage"},
            id="adaptive-counts",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("gaussian",), False, False, True, {"loadings": "guided"}, id="guided", marks=pytest.mark.thorough
        ),
        pytest.param(("poisson",), False, False, True, {"sizes": "learned"}, id="counts"),
        pytest.param(
            ("poisson", "gaussian"),
            False,
            "first",
            True,
            {"sizes": "learned"},
            id="dense-counts",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("negative_binomial", "gaussian"), True, False, False, {}, id="phi", marks=pytest.mark.thorough
        ),
        pytest.param(
            ("student_t", "binomial(trials=4)"), False, True, False, {}, id="t", marks=pytest.mark.thorough
        ),
    ],
)
def test_joint_distribution(
    kinds: tuple[str, ...],
    groups: bool,
    dense: bool | str,
    slab: bool,
    options: dict[str, Any],
    length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Geweke (2004): with entries drawn anew after every sweep, everything keeps its prior."""
    monkeypatch.setattr(Horseshoe, "components", SHORT)
    monkeypatch.setattr(Horseshoe, "scales", np.array([one.scale for one in SHORT]))
    shares = Horseshoe.scales / (1.0 + Horseshoe.scales**2)
    monkeypatch.setattr(Horseshoe, "shares", np.log(shares / shares.sum()))
    settings = settings_of(kinds, groups=groups, dense=dense, slab=slab, **options)
    rng = np.random.default_rng(3)
    missing = rng.random((N, D)) < 0.2
    sweep, (z, g), local = GibbsSweep(settings, keep=False), prior(rng, settings), None
    found = []
    for i in range(1200 * length):
        data, g = observe(rng, settings, z, g, missing)
        local, g = sweep_once(sweep, data, local, g, Step(5, 0, i))
        z = moved_scores(settings, local.values, g)
        found.append(summaries(local.values, g.record) + summaries(z, g))
    # Fewer of these, which are independent, leave the error to the chain as before.
    expected = np.array([2 * summaries(*prior(rng, settings)) for _ in range(1200 * min(length, 10))])
    batches = np.array(found).reshape(20, -1, len(found[0])).mean(axis=1)
    error = np.sqrt(batches.var(axis=0, ddof=1) / 20 + expected.var(axis=0) / len(expected))
    score = (batches.mean(axis=0) - expected.mean(axis=0)) / np.maximum(error, 1e-12)
    score = score[batches.var(axis=0) > 1e-20]  # without spikes s and theta never move
    assert np.abs(score).max() < 6, score
    assert np.sqrt((score**2).mean()) < 2, score


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("gaussian", "bernoulli")], ids=["mixed"])
def test_ranks_are_uniform(kinds: tuple[str, ...]) -> None:
    """Simulation-based calibration (Talts et al. 2018): ranks of the truth among draws.

    False alarms: a mean rank 4.5 standard errors off, 30 of them, 2e-4; the sum of squares, 1e-3.
    """
    sweep, sets, n = (
        GibbsSweep(settings_of(kinds, groups=False, slab=True), keep=False),
        60,
        31,
    )
    found = np.array([np.concatenate([*ranks(sweep, seed, 60, n, 6).values()]) for seed in range(sets)])
    scores = (found.mean(axis=0) / n - 0.5) * np.sqrt(12.0 * sets * n / (n + 2.0))
    assert np.abs(scores).max() < 4.5, scores
    spread = ((found / n - 0.5) ** 2).mean(axis=0) * 12.0 * n / (n + 2.0)  # 1 if uniform, less if too wide
    assert (np.abs(spread - 1.0) < 4.5 * np.sqrt(0.8 / sets)).all(), spread


@pytest.mark.parametrize("words", [1, 2, 5])
def test_uniforms_are_those_of_the_step(words: int) -> None:
    index = np.array([0, 3, 2**40 + 1])
    for step in (Step(2**63 + 5, 7, 2**31), replace(Step(1, 2, 3), projecting=True)):
        assert np.array_equal(uniform(step, 19, index, words), step.uniform(19, index, words))
    assert uniform(Step(1), 19, np.arange(0), words).shape == (0, words)


def test_complete_rows_are_drawn_as_rows_with_gaps_are() -> None:
    """One root for all rows, or one for each: the same draws, but of the row that lacks an entry."""
    settings = settings_of(("gaussian",), groups=False, slab=True)
    sweep, found = GibbsSweep(settings, keep=False), []
    for gaps in (0, 1):
        rng = np.random.default_rng(3)
        z, g = prior(rng, settings)
        missing = np.zeros((N, D), bool)
        missing[0, :gaps] = True
        data, g = observe(rng, settings, z, g, missing)
        found.append(sweep.map(Block(0, 0, N, 1, data), None, sweep.prepare(g), Step(5))[0].values)
    np.testing.assert_allclose(found[0][1:], found[1][1:])
    assert np.abs(found[0][0] - found[1][0]).max() > 1e-3


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
        given = packed[None], np.tile(cross, (n, 1)), np.full(n, tau), precision, np.full(n, shift)
        drawn = draw_loadings(*given, np.exp(odds), noise, drawn)
    error = 4.5 / np.sqrt(n)
    assert np.abs((drawn != 0).mean(axis=0) - inclusion).max() < error * 0.5
    assert (np.abs(drawn.mean(axis=0) - mean) < error * np.sqrt(np.diag(second))).all()
    assert np.abs(drawn.T @ drawn / n - second).max() < 2 * error


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        ("gaussian", {"noise": "both"}, "no noise of samples"),
        ("gaussian", {"grouped_noise": True}, "one noise precision a feature"),
    ],
)
def test_what_is_not_sampled_is_refused(kind: str, options: dict[str, Any], why: str) -> None:
    named = {"groups": ("g", "h"), "group_sizes": (10, 10)} if "grouped_noise" in options else {}
    meta = Meta(20, 1, 32, (ViewMeta("a", kind, 6, "none"),), **named)
    with pytest.raises(InputError, match=f"n_draws.*{why}"):
        SparseGFA(n_factors=2, n_draws=5, **options).build(meta)
    SparseGFA(n_factors=2, **options).build(meta)


def _drawn(fixed: Any, weights: Any, views: Any, variances: Any) -> ChainGlobals:
    """Return globals of one factor, of scores with a precision of 1."""
    shared = Shared(views, np.ones((1, 1)), None)
    rest = np.eye(1), np.zeros((1, 1)), Record(weights, shared), Names.of(weights.values())
    return ChainGlobals(fixed, weights, shared, variances, *rest)


def test_noise_prior_is_in_units_of_the_variance() -> None:
    """Without information tau is drawn from its prior: its rate goes with the variance of the feature."""
    model = SparseGFA(n_factors=1, n_draws=1, precision=64).build(
        Meta(20, 1, 32, (ViewMeta("a", "gaussian", 2, "none"),))
    )
    settings, n = model.settings, 4000
    column = np.zeros((n, 1))
    fixed = Fixed(column[:, 0], np.ones(n), column[:, 0], column + 1e-9, column + 4e-9, column)
    weights = DrawnWeights(np.zeros((n, 1)), np.zeros((n, 1)), np.ones((n, 1)))
    noise = pooled.NoisePrior(3.0, 0.4, 0.5, 2.0)
    views, variances = {"a": DrawnView(np.ones(1), np.full(1, 0.5), 0.0, 1.0, noise)}, {"a": np.full(n, 8.0)}
    g = _drawn({"a": fixed}, {"a": weights}, views, variances)
    stats: Any = SimpleNamespace(
        features={"a": SimpleNamespace(cross=np.zeros((n, 1, 2)), pairs=None, squares=None)},
        shared={"a": np.zeros((1, 3))},
    )
    found, sums = GibbsSweep(settings, keep=False).features("a", range(n), g, stats, Step(3))
    assert found.precision.mean() == pytest.approx(1.0 / (0.4 * (8.0 * 2.0) ** 0.5), rel=0.1)
    relative = found.precision.ravel()[:, None] * 2.0 * 4.0 ** np.array([0.0, 0.5, 1.0])
    np.testing.assert_allclose(sums.noise.precisions, relative.sum(axis=0))


def _log_gamma(x: Any, shape: Any, rate: Any) -> Any:
    return shape * np.log(rate) + (shape - 1.0) * np.log(x) - rate * x - special.gammaln(shape)


def test_prior_of_noise_matches_quadrature() -> None:
    """a, gamma and s given tau: against sums over the grid and quadrature over s; its density, too."""
    rng, level = np.random.default_rng(4), 2.0
    variances, shown = np.array([0.3, 5.0, 2.0]), pooled.NoisePrior(4.0, 0.5, 1.0, level)
    tau = rng.gamma(4.0, size=3) / shown.rates(variances)
    s = np.linspace(1e-5, 12.0, 20_001)
    log = np.empty((len(pooled.ALIKE), len(pooled.POWERS), len(s)))
    for i, a in enumerate(pooled.ALIKE):
        for j, power in enumerate(pooled.POWERS):
            rates = a * s * level * (variances[:, None] / level) ** power
            log[i, j] = _log_gamma(tau[:, None], a, rates).sum(axis=0) - s
    density = special.softmax(log)
    expected = [density.sum(axis=(1, 2)) @ np.log(pooled.ALIKE), density.sum(axis=(0, 2)) @ pooled.POWERS]
    expected += [density.sum(axis=(0, 1)) @ s, density.sum(axis=(0, 1)) @ s**2]
    sums = pooled.NoiseSums.of(tau, variances, shown)
    n = 4000
    drawn = [pooled.draw_noise_prior(sums, 3.0, shown, rng.random(2)) for _ in range(n)]
    found = np.array([[np.log(p.shape), p.power, p.mean, p.mean**2] for p in drawn])
    assert (np.abs(found.mean(axis=0) - expected) < 4.5 * found.std(axis=0) / np.sqrt(n)).all()
    first, second = (
        pooled.noise_log_density(pooled.NoiseSums.of(t, variances, p), 3.0, p)
        - _log_gamma(t, p.shape, p.rates(variances)).sum()
        + p.mean
        for t, p in ((tau, drawn[0]), (tau**2, replace(drawn[1], shape=7.0, power=0.5)))
    )
    assert first == pytest.approx(second)


def test_prior_of_slabs_matches_quadrature() -> None:
    """c and t given alpha of all views and factors; its density, too."""
    rng = np.random.default_rng(7)
    alpha, t = rng.gamma(3.0, size=4) / 1.5, np.linspace(1e-5, 12.0, 20_001)
    log = np.array([_log_gamma(alpha[:, None], c, c * t).sum(axis=0) - t for c in pooled.ALIKE])
    density = special.softmax(log)
    expected = [density.sum(axis=1) @ np.log(pooled.ALIKE), density.sum(axis=0) @ t]
    n = 4000
    drawn = [pooled.draw_slab_prior(alpha, rng.random(2)) for _ in range(n)]
    found = np.array([[np.log(p.shape), p.mean] for p in drawn])
    assert (np.abs(found.mean(axis=0) - expected) < 4.5 * found.std(axis=0) / np.sqrt(n)).all()
    for p, a in ((drawn[0], alpha), (pooled.SlabPrior(6.0, 0.4), alpha**2)):
        given = _log_gamma(a, *p.parameters).sum() - p.mean
        assert pooled.slab_log_density(a, p) == pytest.approx(given)


@pytest.mark.thorough
def test_prior_of_shares_matches_quadrature() -> None:
    """mu and kappa given how many loadings of each view and factor are not 0, all theta integrated out."""
    included, sizes = [np.array([2.0, 7.0]), np.array([30.0, 0.0])], [8.0, 40.0]
    t = np.linspace(-400.0, 400.0, 20_001)  # theta = expit t: its prior may rise without bound at 0 and 1
    yes, no = special.log_expit(t), special.log_expit(-t)
    grid = [(m * c, (1.0 - m) * c) for m in pooled.MEANS for c in pooled.CONCENTRATIONS]
    log = np.zeros(len(grid))
    for i, (on, off) in enumerate(grid):
        for counts, size in zip(included, sizes, strict=True):
            for c in counts:
                inside = (on + c) * yes + (off + size - c) * no - special.betaln(on, off)
                log[i] += special.logsumexp(inside)
    expected = special.softmax(log) @ np.log(grid)
    n = 4000
    uniform = (np.arange(n) + 0.5) / n
    found = np.log([pooled.draw_share_prior(included, sizes, u) for u in uniform]).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=0.005)


@pytest.mark.thorough
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


@pytest.mark.slow
def test_a_small_binary_posterior_is_exact() -> None:
    """One factor, three samples, two features, what they share given: against quadrature over everything."""
    y = np.array([[1, 0], [1, -1], [0, 1]], np.int8)
    theta, alpha, m, lam = 0.6, 0.7, 0.3, 1.5
    node, weight = np.polynomial.hermite_e.hermegauss(24)
    weight = weight / weight.sum()
    z = np.stack(np.meshgrid(node, node, node, indexing="ij"), axis=-1).reshape(-1, 3)
    total = np.einsum("i,j,k->ijk", weight, weight, weight).ravel()
    slab, level = np.meshgrid(node / np.sqrt(alpha), m + node / np.sqrt(lam), indexing="ij")
    loading = np.concatenate([slab.ravel(), np.zeros(node.size)])
    intercept = np.concatenate([level.ravel(), level[0]])
    prior = np.concatenate([theta * np.outer(weight, weight).ravel(), (1.0 - theta) * weight])
    features = []
    for d in range(2):
        likelihood = np.tile(prior, (len(z), 1))
        for n in np.flatnonzero(y[:, d] >= 0):
            x = z[:, n, None] * loading + intercept
            likelihood *= special.expit(x if y[n, d] else -x)
        features.append(likelihood)
    sums = [f.sum(axis=1) for f in features]
    joint = total * sums[0] * sums[1]
    joint /= joint.sum()
    expected = [*(joint @ z**2), *(joint @ np.abs(z))]
    for d in range(2):
        of_feature = (joint / sums[d]) @ features[d]
        expected += [of_feature @ (loading != 0), of_feature @ loading**2, of_feature @ intercept]

    views = (ViewMeta("v0", "bernoulli", 2, "scattered"),)
    sweep = GibbsSweep(
        SparseGFA(n_factors=1, n_draws=1, precision=64).build(Meta(3, 1, 32, views)).settings, keep=False
    )
    zeros = np.zeros(2)
    fixed = Fixed(zeros, np.ones(2), zeros, *(np.zeros((2, 1)) for _ in range(3)))
    weights = DrawnWeights(np.zeros((2, 1)), np.zeros((2, 1)), None)
    shared = DrawnView(np.array([alpha]), np.array([theta]), m, lam, None)
    g = _drawn({"v0": fixed}, {"v0": weights}, {"v0": shared}, {})
    block, local, found = Block(0, 0, 3, 1, {"v0": y}), None, []
    for i in range(8000):
        step = Step(7, 0, i)
        local, stats = sweep.map(block, local, sweep.prepare(g), step)
        new, _ = sweep.features("v0", range(2), g, stats, step)
        g = replace(g, weights={"v0": new})
        w, b, scores = new.loadings[:, 0], new.coefficients[:, 0], local.values[:, 0]
        row = [*scores**2, *np.abs(scores)]
        for d in range(2):
            row += [w[d] != 0, w[d] ** 2, b[d]]
        found.append(row)
    batches = np.array(found[200:], float).reshape(30, -1, len(expected)).mean(axis=1)
    score = (batches.mean(axis=0) - expected) / (batches.std(axis=0, ddof=1) / np.sqrt(30))
    assert np.abs(score).max() < 4.5, score
