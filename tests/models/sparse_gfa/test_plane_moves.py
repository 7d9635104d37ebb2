"""Turns of two factors in the sampler of sparse GFA: their ratio by enumeration, records, mixtures."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from joint import D, N, moved_scores, observe, predictors, prior, settings_of, statistics_of
from scipy import linalg, special
from scipy import stats as sp_stats

import factorflow
from factorflow.core.block import Meta, ViewMeta
from factorflow.kernels.random import Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.sampler import feature_draws, sampled, shared_draws
from factorflow.models.sparse_gfa.sampler.drawn_sums import DrawnSums
from factorflow.models.sparse_gfa.sampler.gibbs import GibbsSweep
from factorflow.models.sparse_gfa.sampler.gibbs_state import LEADING, DrawnWeights, Names, Plane
from factorflow.models.sparse_gfa.sampler.plane_moves import (
    OTHER,
    ROUND,
    TURN,
    Line,
    _line_transforms,
    _lines,
    _prior_gains,
    draw_plane_move,
    plane_of,
    transform_scores,
)
from factorflow.models.sparse_gfa.sampler.pooled import NoiseSums, SlabPrior


def _evidence(design: Any, y: Any, on: Any, tau: float, precision: Any, shift: float) -> float:
    """Return log p(y | z, s) of a feature up to a constant, (w, b) integrated out."""
    mean = np.zeros(len(precision))
    mean[-1] = shift
    covariance = np.eye(len(y)) / tau + design[:, on] / precision[on] @ design[:, on].T
    left = y - design[:, on] @ mean[on]
    return -0.5 * float(np.linalg.slogdet(covariance)[1] + left @ np.linalg.solve(covariance, left))


@pytest.mark.thorough
@pytest.mark.parametrize("shared", [True, False], ids=["complete", "missing"])
@pytest.mark.parametrize("spikes", [True, False], ids=["spikes", "dense"])
def test_gains_and_choices_match_enumeration(shared: bool, spikes: bool) -> None:
    """Four factors, the second and the last turned and strained; s of the others are given."""
    rng, k, d, n = np.random.default_rng(1), 4, 5, 9
    z, tau, shift = rng.normal(size=(n, k)), rng.uniform(0.5, 2.0, d), rng.normal(size=d)
    precision, odds = rng.uniform(0.3, 2.0, k + 1), rng.normal(size=k)
    plane, a = (1, 3), _line_transforms(Line(1.0, 1.5, 16), np.array([0.4, 0.3]), 0.0)[12]
    a = a @ _line_transforms(Line(1.0, 1.5, 16), np.array([0.4, 0.3]), 1.1)[1]
    assert abs(np.linalg.det(a) - 1.0) < 1e-12
    assert abs(a - a.T).max() > 0.1
    turned = z.copy()
    turned[:, plane] = z[:, plane] @ a
    seen = np.ones((n, d), bool) if shared else rng.random((n, d)) < 0.7
    y, s = rng.normal(size=(n, d)), (rng.random((d, k)) < 0.5) | (not spikes)
    lower = np.tril_indices(k + 1)
    design = np.concatenate([z, np.ones((n, 1))], axis=1)
    pairs = np.array([(design[seen[:, i]].T @ design[seen[:, i]])[lower] for i in range(1 if shared else d)])
    cross = np.array([design[seen[:, i]].T @ y[seen[:, i], i] for i in range(d)])
    gain, chances = 0.0, np.zeros((d, 4))
    for i in range(d):
        logs = {}
        for name, scores in (("before", z), ("after", turned)):
            known = np.concatenate([scores, np.ones((n, 1))], axis=1)[seen[:, i]]
            logs[name] = []
            for second, first in product([False, True], repeat=2):
                on = np.array([s[i, 0], first, s[i, 2], second, True]) | (not spikes)
                weight = odds[1] * on[1] + odds[3] * on[3] if spikes else 0.0
                logs[name].append(
                    _evidence(known, y[seen[:, i], i], on, tau[i], precision, shift[i]) + weight
                )
        gain += special.logsumexp(logs["after"]) - special.logsumexp(logs["before"])
        chances[i] = special.softmax(logs["after"])
    loadings = np.concatenate([s * rng.normal(size=(d, k)), np.ones((d, 1))], axis=1)
    given = pairs, cross, tau, precision, shift, k, spikes, plane, loadings
    square, linear, _, _ = draws.plane_equations(*given)
    of_two = precision[list(plane)], np.exp(odds[list(plane)]), spikes
    found = draws.plane_gains(square, linear, of_two, np.stack([np.eye(2), a]).reshape(2, 4))
    assert found[1] - found[0] == pytest.approx(gain)
    counts, repeats = np.zeros((d, 4)), 200
    for u in (np.arange(repeats) + 0.5) / repeats:
        pair = draws.plane_pairs(square, linear, of_two, a.ravel(), (np.full(d, u), np.zeros((d, 2))))
        counts[np.arange(d), ((pair != 0.0) @ [1, 2]).astype(int)] += 1.0 / repeats
    if spikes:
        assert np.abs(counts - chances).max() < 1.01 / repeats


def test_two_loadings_are_normal_given_that_they_are_not_0() -> None:
    """Mean and covariance of the two, and of those of which one is 0, after a strain."""
    rng, n, line = np.random.default_rng(2), 40_000, Line(1.0, 1.5, 16)
    a = _line_transforms(line, np.array([0.4, 0.3]), 0.5 * np.pi)[12]
    c, h, alpha = np.array([[3.0, 1.2], [1.2, 2.0]]), np.array([1.5, -2.0]), np.array([0.6, 1.4])
    square, linear = np.tile([3.0, 1.2, 2.0], (n, 1)), np.tile(h, (n, 1))
    noise = rng.random(n), rng.normal(size=(n, 2))
    drawn = draws.plane_pairs(square, linear, (alpha, np.ones(2), True), a.ravel(), noise)
    for on in ([True, True], [True, False], [False, True]):
        mine = drawn[((drawn != 0.0) == on).all(axis=1)][:, on]
        covariance = np.linalg.inv((a.T @ c @ a + np.diag(alpha))[np.ix_(on, on)])
        mean, error = covariance @ (a.T @ h)[on], 4.5 / np.sqrt(len(mine))
        assert len(mine) > 2000
        assert (np.abs(mine.mean(axis=0) - mean) < error * np.sqrt(np.diag(covariance))).all()
        assert np.abs(np.cov(mine.T) - covariance).max() < 2.0 * error * np.diag(covariance).max()


@pytest.mark.thorough
@pytest.mark.parametrize("phi", [0.0, 0.3, 0.25 * np.pi, 0.5 * np.pi, 2.6])
def test_no_move_is_anywhere_among_those_tried(phi: float) -> None:
    """Each of them, had it been the state, would have led to the same ones as likely."""
    places = []
    for i in range(2000):
        u = Step(2, 0, i).uniform(12, np.array([1]), 4)[0]
        tried = _line_transforms(Line(0.03, 1.5, 16), u, phi)
        steps = np.linalg.inv(tried[:-1]) @ tried[1:]
        np.testing.assert_allclose(steps, np.broadcast_to(steps[0], steps.shape), atol=1e-12)
        (place,) = np.flatnonzero((tried == np.eye(2)).all(axis=(1, 2)))
        places.append(place)
    counts = np.bincount(places, minlength=len(tried)) / 2000
    assert np.abs(counts - 1 / len(tried)).max() < 0.025


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.25 * np.pi, 0.5 * np.pi, 2.6])
def test_lines_are_turns_strains_and_what_is_between(phi: float) -> None:
    turn, strain = np.array([[0.0, -1.0], [1.0, 0.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    direction = np.cos(phi) * turn + np.sin(phi) * strain
    tried = _line_transforms(Line(1.0, 1.0, 16), np.array([0.5, 0.99]), phi)
    np.testing.assert_allclose(tried, [linalg.expm((i - 15) / 16 * direction) for i in range(16)], atol=1e-12)


def test_of_few_features_a_sweep_looks_all_round() -> None:
    """Half a turn leads to the same factors with other signs: no way is far from a place."""
    assert _lines(40) == (ROUND, TURN, *15 * (OTHER,))
    assert _lines(500) == (ROUND, TURN, *3 * (OTHER,))
    assert _lines(1499) == (TURN, *3 * (OTHER,))
    assert _lines(1500) == _lines(20_000) == (TURN._replace(places=8), OTHER._replace(places=8))
    for u in ([0.0, 0.0], [0.5, 0.3], [1.0, 0.99]):
        tried = _line_transforms(ROUND, np.array(u), 0.0)
        angles = np.sort(np.arctan2(tried[:, 1, 0], tried[:, 0, 0]) % np.pi)
        apart = np.diff(angles, append=angles[0] + np.pi)
        assert apart.max() < 0.4
        assert np.sort(apart)[-2] < 0.05


@pytest.mark.slow
def test_a_chain_goes_from_one_way_to_another(tmp_path: Any) -> None:
    """Two groups of features 45 degrees apart: either can have loadings of 0. Else 10 moves."""
    rng, n, m = np.random.default_rng(5), 200, 12
    z, angle = rng.normal(size=(n, 2)), np.array(m * [0.0] + m * [0.25 * np.pi])
    w = np.stack([np.cos(angle), np.sin(angle)], axis=1) * rng.uniform(0.5, 1.5, (2 * m, 1))
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": z @ w.T + 0.3 * rng.normal(size=(n, 2 * m))})
    config = SparseGFA(n_factors=2, n_draws=300, chains=2, scale_views=False)
    scores = factorflow.fit(data, config, seed=3, progress=False).draws("scores_draws").values
    of_truth = np.linalg.lstsq(z, scores.transpose(2, 0, 1, 3).reshape(n, -1), rcond=None)[0]
    x, y = of_truth.reshape(2, *scores.shape[:2], 2)[..., 0]
    other = np.abs(np.degrees(np.arctan2(y, x)) % 90.0 - 45.0) < 25.0
    assert (other.mean(axis=1) > 0.15).all()
    assert (other.mean(axis=1) < 0.85).all()
    assert (np.abs(np.diff(other.astype(int), axis=1)).sum(axis=1) > 30).all()


@pytest.mark.parametrize("degrees", [10, 80, 100, 170, 190, 260, 280, 350])
def test_factors_keep_their_names(degrees: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of entries that tell the loadings of two factors: they stay as they are named, with what is theirs."""
    sweep, g, _, _, stats, parts, _, step = _swept(("gaussian",), 0)
    w, x, nothing = np.random.default_rng(3).normal(size=(D, 2)), np.radians(degrees), np.zeros((D, 7))
    plane = Plane(np.tile([1e8, 0.0, 1e8], (D, 1)), 1e8 * w, np.zeros((D, 3, 2)), nothing)
    weights = {"v0": replace(parts["v0"], residual_sums=replace(parts["v0"].residual_sums, plane=plane))}
    a = np.array([[[np.cos(x), -np.sin(x)], [np.sin(x), np.cos(x)]]])
    monkeypatch.setattr("factorflow.models.sparse_gfa.sampler.plane_moves._line_transforms", lambda *_: a)
    monkeypatch.setattr("factorflow.models.sparse_gfa.sampler.plane_moves._lines", lambda _: (TURN,))
    names = Names(np.arange(1, D), w[1:])
    found, turn, shared = draw_plane_move(sweep.settings, stats, weights, g.shared, names, (0, 1), step)
    assert (turn.diagonal() > 0.9).all()
    np.testing.assert_allclose(found["v0"].loadings[:, :2], w @ turn, atol=1e-3)
    swaps = 45 < degrees % 180 < 135
    for key in ("alpha", "theta"):
        before, after = (getattr(shared.views["v0"], key) for shared in (g.shared, shared))
        assert np.array_equal(after, before[::-1] if swaps else before)


def test_factors_are_known_by_those_that_load_most() -> None:
    """On either of them, among the features of all views."""
    views = [np.random.default_rng(i).normal(size=(30, 3)) for i in range(2)]
    names = Names.of([DrawnWeights(w[:, :2], w[:, 2:], None) for w in views])
    loadings = np.concatenate(views)[:, :2]
    leading = np.sort(np.abs(loadings), axis=0)[-LEADING]
    assert np.array_equal(names.features, np.flatnonzero((np.abs(loadings) >= leading).any(axis=1)))
    assert np.array_equal(names.loadings, loadings[names.features])


@pytest.mark.slow
def test_a_chain_has_means_of_one_factor_each(tmp_path: Any) -> None:
    """Means over a chain, summed up as it goes, are those of draws that are aligned one by one."""
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": _mixed(np.random.default_rng(6))[2]})
    config = SparseGFA(n_factors=2, n_draws=100, n_burn_in=50, chains=2, scale_views=False)
    posterior = factorflow.fit(data, config, seed=3, progress=False)
    expected = posterior.draws("scores_draws").values.mean(axis=(0, 1))
    np.testing.assert_allclose(posterior.variable("scores").values, expected, atol=1e-5)


def test_planes_are_equally_likely() -> None:
    settings = settings_of(("gaussian",), groups=False)
    found = np.array([plane_of(settings, 3, Step(2, 0, i)) for i in range(3000)])
    planes, counts = np.unique(found, axis=0, return_counts=True)
    assert sorted(map(tuple, planes)) == [(0, 1), (0, 2), (1, 2)]
    assert np.abs(counts / 3000 - 1 / 3).max() < 0.045


def _swept(kinds: tuple[str, ...], seed: int, **options: Any) -> tuple[Any, ...]:
    """Return sweep, globals, entries, scores' state, statistics, weights and sums, step."""
    settings, rng = settings_of(kinds, groups=False, **options), np.random.default_rng(seed)
    sweep, (z, g), missing = GibbsSweep(settings, keep=False), prior(rng, settings), rng.random((N, D)) < 0.2
    data, g = observe(rng, settings, z, g, missing)
    step = Step(8, 0, seed)
    local, stats, parts, sums = statistics_of(sweep, data, None, g, step)
    return sweep, g, data, local.values, stats, parts, sums, step


@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_follows_a_turn(seed: int) -> None:
    """Residuals of the turned scores and the new loadings, and the scores' own sums."""
    sweep, g, data, z, stats, parts, _, step = _swept(("gaussian", "bernoulli"), seed)
    plane = plane_of(sweep.settings, 2, step)
    weights, a, _ = draw_plane_move(sweep.settings, stats, parts, g.shared, g.names, plane, step)
    assert abs(a - np.eye(2)).max() > 1e-3
    turned, found = z @ a, transform_scores(stats, a)
    np.testing.assert_allclose(found.second[0], (turned**2).sum(axis=0))
    np.testing.assert_allclose(found.first[0, 0], turned.sum(axis=0))
    mine = weights["v0"]
    assert np.abs(mine.loadings - parts["v0"].loadings).max() > 1e-3
    left = data["v0"] - turned @ mine.loadings.T - mine.coefficients[:, 0]
    np.testing.assert_allclose(mine.residual_sums.slope, np.nansum(left, axis=0), atol=1e-9)
    np.testing.assert_allclose(mine.residual_sums.squares, np.nansum(left**2, axis=0), atol=1e-9)


def test_after_the_turns_lines_have_random_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """ChainGlobals anew at every sweep, evenly over half a circle; each goes on from the line before."""
    sweep, g, _, _, stats, parts, _, _ = _swept(("gaussian",), 0)
    found: list[float] = []

    def spied(line: Line, u: Any, phi: float) -> Any:
        found.append(phi)
        assert line is OTHER or phi == 0.0
        return _line_transforms(line, u, phi)

    monkeypatch.setattr("factorflow.models.sparse_gfa.sampler.plane_moves._line_transforms", spied)
    turns = [
        draw_plane_move(sweep.settings, stats, parts, g.shared, g.names, (0, 1), Step(i))[1]
        for i in range(200)
    ]
    phi = np.array(found).reshape(200, -1)
    assert (phi[:, :2] == 0.0).all()
    assert phi.shape[1] > 4
    for line in phi.T[2:]:
        assert sp_stats.kstest(line / np.pi, "uniform").pvalue > 1e-4
    assert np.abs(np.corrcoef(phi.T[2:])[np.triu_indices(phi.shape[1] - 2, 1)]).max() < 0.3
    np.testing.assert_allclose(np.abs(np.linalg.det(np.array(turns)[:, :2, :2])), 1.0)
    sheared = [abs(a @ a.T - np.eye(2)).max() > 1e-3 for a in turns]
    assert np.mean(sheared) > 0.5  # turns alone would leave none


@pytest.mark.thorough
def test_scores_keep_their_prior_where_entries_say_nothing() -> None:
    """Strains alone would let them grow without end."""
    sweep, g, _, _, stats, parts, _, _ = _swept(("gaussian",), 0)
    told, nothing = parts["v0"].residual_sums, np.zeros((D, 2))
    plane = Plane(np.zeros((D, 3)), nothing, np.zeros((D, 3, 2)), np.zeros((D, 7)))
    weights, rng = (
        {"v0": replace(parts["v0"], residual_sums=replace(told, plane=plane))},
        np.random.default_rng(5),
    )
    found = []
    for i in range(600):
        z = rng.normal(size=(N, 2))
        for j in range(3):
            gram = np.zeros((3, 3))
            gram[:2, :2] = z.T @ z
            given = replace(stats, moments=gram[np.tril_indices(3)])
            z = (
                z
                @ draw_plane_move(sweep.settings, given, weights, g.shared, g.names, (0, 1), Step(i, 0, j))[1]
            )
        found.append([(z**2).mean(), (z**2).mean() ** 2, z[:, 0] @ z[:, 1] / N, (z[:, 0] @ z[:, 1] / N) ** 2])
    expected = [1.0, 1.0 + 1.0 / N, 0.0, 1.0 / N]
    score = (np.mean(found, axis=0) - expected) / (np.std(found, axis=0) / np.sqrt(len(found)))
    assert np.abs(score).max() < 4.5, score


def test_loadings_that_are_never_0_follow_a_turn() -> None:
    """Beside those that are drawn anew: predictors of counts stay, learned size factors and all."""
    options: dict[str, Any] = {"dense": "first", "sizes": "learned"}
    sweep, g, _, z, stats, parts, _, step = _swept(("poisson", "gaussian"), 1, **options)
    parts = {**parts, "v0": g.weights["v0"]}  # what its features take is decided in the second pass
    weights, a, _ = draw_plane_move(sweep.settings, stats, parts, g.shared, g.names, (0, 1), step)
    assert abs(a - np.eye(2)).max() > 1e-3
    turned, found = z.copy(), transform_scores(stats, a)
    turned[:, :2] = z[:, :2] @ a
    np.testing.assert_allclose(found.second[0], (turned**2).sum(axis=0))
    np.testing.assert_allclose(found.first[0, 0], turned.sum(axis=0))
    before = predictors(sweep.settings, z, parts["v0"], "v0")
    np.testing.assert_allclose(predictors(sweep.settings, turned, weights["v0"], "v0"), before)


def test_prior_of_loadings_that_follow_turns_is_a_t_distribution() -> None:
    """Their precisions are integrated out."""
    rng, shape, rate = np.random.default_rng(3), 2.5, 0.7
    w, after = rng.normal(size=(5, 2)), np.stack([np.eye(2), [[1.2, 0.4], [-0.3, 0.7]]])
    moved = [w @ np.linalg.inv(a).T for a in after]
    prior = sp_stats.multivariate_t(np.zeros(5), rate / shape * np.eye(5), 2.0 * shape)
    expected = [prior.logpdf(each.T).sum() for each in moved]
    found = _prior_gains(w, (shape, rate), after)
    assert found[1] - found[0] == pytest.approx(expected[1] - expected[0])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "slab",
    [
        pytest.param(None, marks=pytest.mark.slow, id="given"),
        pytest.param(SlabPrior(5.0, 20.0), id="learned"),
    ],
)
def test_loadings_that_follow_turns_keep_their_prior(slab: SlabPrior | None) -> None:
    """Their precisions integrated out: scores and loadings drawn from the prior have it after moves, too."""
    sweep, g, _, _, stats, parts, _, _ = _swept(("poisson",), 0, dense=True, slab=slab is not None)
    shape, rate = sweep.settings.views[0].alpha_prior if slab is None else slab.parameters
    g, rng, names, found = (
        replace(g, shared=replace(g.shared, slab=slab)), np.random.default_rng(5), g.names, []
    )  # fmt: skip
    for i in range(250):
        alpha = rng.gamma(shape, size=2) / rate
        z, w = rng.normal(size=(N, 2)), rng.normal(size=(D, 2)) / np.sqrt(alpha)
        for j in range(3):
            given = replace(stats, moments=np.append((z.T @ z)[np.tril_indices(2)], np.zeros(3)))
            weights = {"v0": replace(g.weights["v0"], loadings=w)}
            drawn, a, _ = draw_plane_move(
                sweep.settings, given, weights, g.shared, names, (0, 1), Step(i, 0, j)
            )
            z, w = z @ a, drawn["v0"].loadings
        logs = np.log((w**2).sum(axis=0))
        found.append(
            [(z**2).mean(), (z[:, 0] @ z[:, 1]) ** 2 / N, logs.mean(), logs[0] * logs[1], logs.var()]
        )
    alpha = rng.gamma(shape, size=(20_000, 2)) / rate
    logs = np.log(rng.chisquare(D, alpha.shape) / alpha)
    expected = [1.0, 1.0, logs.mean(), logs.prod(axis=1).mean(), logs.var(axis=1).mean()]
    score = (np.mean(found, axis=0) - expected) / (np.std(found, axis=0) / np.sqrt(len(found)))
    assert np.abs(score).max() < 4.5, score


@pytest.mark.parametrize(("dense", "found"), [(True, (0, 1)), ("last", None)])
def test_loadings_that_may_be_0_hold_factors_of_counts(dense: Any, found: Any) -> None:
    settings = settings_of(("poisson", "gaussian"), groups=False, dense=dense)
    assert plane_of(settings, 2, Step(2)) == found


def _kept(settings: Any, g: Any, weights: Any, now: Any, step: Any) -> Any:
    """Stand in for `draw_collapsed`: intercepts, noise and their priors stay."""
    sums = {}
    for name, mine in weights.items():
        noise = now.views[name].noise
        if noise is not None:
            noise = NoiseSums.of(mine.precision[:, 0], g.variances[name], noise)
        prior = settings.view(name).prior
        of_loadings = prior.sums_of_draw(mine.loadings, now.views[name].of_loadings, None, lambda: None)
        sums[name] = DrawnSums.of(of_loadings, mine.loadings, mine.coefficients, 0.0, noise)
    return weights, sums, now


@pytest.mark.parametrize("covariates", [False, True])
def test_what_is_recorded_goes_with_its_scores(covariates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves leave the predictors as they are; loadings of record belong to the scores before the moves."""
    monkeypatch.setattr(shared_draws, "draw_collapsed", _kept)
    for module in (feature_draws, shared_draws):
        monkeypatch.setattr(module, "plane_of", lambda *_: None)
    swept = _swept(("gaussian", "bernoulli"), 3, covariates=covariates)
    sweep, g, _, z, stats, parts, sums, step = swept
    new, _ = sweep.assemble(g, stats, parts, sums, step)
    moved = moved_scores(sweep.settings, z, new)
    for name, now in new.weights.items():
        then = new.record.weights[name]
        left = predictors(sweep.settings, z, then, name)
        np.testing.assert_allclose(predictors(sweep.settings, moved, now, name), left, atol=1e-9)
        assert np.abs(then.loadings - now.loadings).max() > 1e-6
        assert np.array_equal(then.loadings, parts[name].loadings)
    views = tuple(ViewMeta(view.name, view.likelihood, D, "scattered") for view in sweep.settings.views)
    meta = Meta(N, 1, 32, views, covariates=sweep.settings.covariates)
    recorded = SparseGFA(n_factors=2, n_draws=1, precision=64).build(meta).record(new)
    for name, then in new.record.weights.items():
        assert np.array_equal(recorded[f"loadings_{name}"], then.loadings)
        assert np.array_equal(recorded[f"intercept_{name}"], then.coefficients[:, 0])
        if covariates:
            assert np.array_equal(recorded[f"coefficients_{name}"], then.coefficients[:, 1:])
    assert np.array_equal(recorded["alpha"][0], new.record.shared.views["v0"].alpha)


def _mixed(rng: Any) -> tuple[Any, Any, Any]:
    """Return scores, loadings and entries of two factors that share no feature."""
    z, w = rng.normal(size=(200, 2)), np.zeros((16, 2))
    w[:8, 0], w[8:, 1] = 1.0, 1.0
    return z, w, z @ w.T + 0.5 * rng.normal(size=(200, 16))


@pytest.mark.thorough
@pytest.mark.parametrize("turns", [True, False])
def test_a_chain_leaves_a_mixture(turns: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Begun from factors turned by 45 degrees: without turns it stays there, which is why they are made."""
    z, w, y = _mixed(np.random.default_rng(6))
    if not turns:
        for module in (feature_draws, shared_draws):
            monkeypatch.setattr(module, "plane_of", lambda *_: None)
    half = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2.0)
    kept = sampled.first_draw

    def turned(settings: Any, found: Any) -> Any:
        g = kept(settings, found)
        weights = {"v": replace(g.weights["v"], loadings=w @ half)}
        return replace(g, weights=weights)

    monkeypatch.setattr(sampled, "first_draw", turned)
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": y})
    config = SparseGFA(n_factors=2, n_draws=60, n_burn_in=60, chains=1, scale_views=False)
    posterior = factorflow.fit(data, config, seed=3, progress=False)
    scores = posterior.draws("scores_draws").values[0].mean(axis=0)
    alike = np.abs(np.corrcoef(z.T, scores.T)[:2, 2:]).max(axis=0)
    assert (alike > 0.9).all() == turns, alike
