"""Turns of two factors in the sampler of sparse GFA: their ratio by enumeration, records, mixtures."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from joint import D, N, observe, prior, settings_of, sweep_once
from scipy import special

import factorflow
from factorflow.kernels.random import Step
from factorflow.models.sparse_gfa import SparseGFA, feature_draws, sampled, shared_draws
from factorflow.models.sparse_gfa.gibbs import GibbsSweep
from factorflow.models.sparse_gfa.kernels.draws import turn_equations
from factorflow.models.sparse_gfa.turns import Turn, tried_turn, turned_scores
from factorflow.shape import Block, Meta, ViewMeta


def _evidence(design: Any, y: Any, on: Any, tau: float, precision: Any, shift: float) -> float:
    """Return log p(y | z, s) of a feature up to a constant, (w, b) integrated out."""
    mean = np.zeros(len(precision))
    mean[-1] = shift
    covariance = np.eye(len(y)) / tau + design[:, on] / precision[on] @ design[:, on].T
    left = y - design[:, on] @ mean[on]
    return -0.5 * float(np.linalg.slogdet(covariance)[1] + left @ np.linalg.solve(covariance, left))


@pytest.mark.parametrize("shared", [True, False], ids=["complete", "missing"])
@pytest.mark.parametrize("spikes", [True, False], ids=["spikes", "dense"])
def test_gain_and_choice_match_enumeration(shared: bool, spikes: bool) -> None:
    """Four factors, the second and the last turned; s of the others are given."""
    rng, k, d, n = np.random.default_rng(1), 4, 5, 9
    z, tau, shift = rng.normal(size=(n, k)), rng.uniform(0.5, 2.0, d), rng.normal(size=d)
    precision, odds = rng.uniform(0.3, 2.0, k + 1), rng.normal(size=k)
    turn, plane = (np.cos(0.7), np.sin(0.7)), (1, 3)
    turned = z @ Turn(plane, *turn, 0.0).matrix(k)
    np.testing.assert_allclose(turned[:, 1], turn[0] * z[:, 1] + turn[1] * z[:, 3])
    seen = np.ones((n, d), bool) if shared else rng.random((n, d)) < 0.7
    y, s = rng.normal(size=(n, d)), rng.random((d, k)) < 0.5
    lower = np.tril_indices(k + 1)

    def equations(scores: Any) -> tuple[Any, Any]:
        design = np.concatenate([scores, np.ones((n, 1))], axis=1)
        grams = [(design[seen[:, i]].T @ design[seen[:, i]])[lower] for i in range(1 if shared else d)]
        return np.array(grams), np.array([design[seen[:, i]].T @ y[seen[:, i], i] for i in range(d)])

    gain, chances = 0.0, np.zeros((d, 4))
    for i in range(d):
        logs = {}
        for name, scores in (("before", z), ("after", turned)):
            design = np.concatenate([scores, np.ones((n, 1))], axis=1)[seen[:, i]]
            logs[name] = []
            for second, first in product([False, True], repeat=2):
                on = np.array([s[i, 0], first, s[i, 2], second, True]) | (not spikes)
                weight = odds[1] * on[1] + odds[3] * on[3] if spikes else 0.0
                found = _evidence(design, y[seen[:, i], i], on, tau[i], precision, shift[i])
                logs[name].append(found + weight)
        gain += special.logsumexp(logs["after"]) - special.logsumexp(logs["before"])
        chances[i] = special.softmax(logs["after"])
    (pairs, cross), start = equations(z), np.concatenate([s, np.ones((d, 1))], axis=1)
    counts, repeats = np.zeros((d, 4)), 200
    for u in (np.arange(repeats) + 0.5) / repeats:
        given = pairs, cross, tau, precision, shift, odds if spikes else None
        *found, chosen, gained = turn_equations(*given, plane, turn, np.full(d, u), start)
        counts[np.arange(d), (chosen[:, 1] + 2 * chosen[:, 3]).astype(int)] += 1.0 / repeats
    assert gained == pytest.approx(gain)
    for ours, theirs in zip(found, equations(turned), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    if spikes:
        assert np.abs(counts - chances).max() < 1.01 / repeats
    assert np.array_equal(chosen[:, [0, 2, 4]], start[:, [0, 2, 4]])


def test_every_turn_has_its_inverse() -> None:
    """Angles are as likely as their opposites, planes as each other; half of them are small."""
    settings = settings_of(("gaussian",), groups=False, spike="collapsed")
    found = [tried_turn(settings, 3, Step(2, 0, i)) for i in range(3000)]
    angles = np.array([np.arcsin(t.sine) for t in found if t is not None])
    assert len(angles) == 3000
    assert abs((angles > 0).mean() - 0.5) < 0.045
    assert abs((np.abs(angles) > np.pi / 8).mean() - 0.5 * (0.5 + np.log10(2.0) / 3.0)) < 0.045
    planes = np.array([t.plane for t in found if t is not None])
    assert sorted(map(tuple, np.unique(planes, axis=0))) == [(0, 1), (0, 2), (1, 2)]
    assert np.abs(np.unique(planes, axis=0, return_counts=True)[1] / 3000 - 1 / 3).max() < 0.045


def _kept(settings: Any, g: Any, weights: Any, sums: Any, now: Any, step: Any) -> Any:
    """Stand in for `draw_collapsed`: intercepts, noise and their priors stay."""
    return weights, sums, now


def test_what_is_recorded_goes_with_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves leave the predictors as they are; loadings of record belong to the scores before the moves."""
    monkeypatch.setattr(shared_draws, "draw_collapsed", _kept)
    settings = settings_of(("gaussian", "bernoulli"), groups=False, spike="collapsed")
    rng = np.random.default_rng(3)
    missing = rng.random((N, D)) < 0.2
    sweep, (z, g), local = GibbsSweep(settings, keep=False), prior(rng, settings), None
    data, g = observe(rng, z, g, missing)
    still, moved = 0, 0
    for i in range(80):
        local, g = sweep_once(sweep, data, local, g, Step(5, 0, i))
        z = local.values @ g.transform.T + g.shift
        apart = np.abs(g.transform - np.diag(np.diag(g.transform))).max()
        moved += apart > 1e-3
        if apart > 0.0:  # loadings after a turn are another draw
            continue
        still += 1
        for name, now in g.weights.items():
            then = g.record.weights[name]
            left = local.values @ then.loadings[:, :-1].T + then.loadings[:, -1]
            np.testing.assert_allclose(z @ now.loadings[:, :-1].T + now.loadings[:, -1], left, atol=1e-9)
            assert np.abs(then.loadings - now.loadings).max() > 1e-6
    assert still > 10
    assert moved > 5
    views = tuple(ViewMeta(view.name, view.likelihood, D, "scattered") for view in settings.views)
    recorded = SparseGFA(n_factors=2, n_draws=1, precision=64).build(Meta(N, 1, 32, views)).record(g)
    for name, then in g.record.weights.items():
        assert np.array_equal(recorded[f"loadings_{name}"], then.loadings[:, :-1])
        assert np.array_equal(recorded[f"intercept_{name}"], then.loadings[:, -1])
    assert np.array_equal(recorded["alpha"][0], g.record.shared.views["v0"].alpha)


def test_a_turn_that_is_taken_turns_scores_as_loadings(monkeypatch: pytest.MonkeyPatch) -> None:
    """With loadings turned like the scores in place of new draws, the predictors stay as they are."""
    monkeypatch.setattr(shared_draws, "draw_collapsed", _kept)
    settings, rng = settings_of(("gaussian",), groups=False, spike="none"), np.random.default_rng(4)
    sweep, (z, g) = GibbsSweep(settings, keep=False), prior(rng, settings)
    data, g = observe(rng, z, g, np.zeros((N, D), bool))
    step = Step(8, 0, 2)
    turn = tried_turn(settings, 2, step)
    assert turn is not None
    r = turn.matrix(2)
    assert abs(turn.sine) > 0.1
    local, stats = sweep.map(Block(0, 0, N, 1, data), None, sweep.prepare(g), step)
    part, sums = sweep.features("v0", range(D), g, stats, step)
    w, b = part.loadings[:, :-1] @ r, part.loadings[:, -1:]
    turned = replace(part, loadings=np.concatenate([w, b], axis=1), turned=None)
    gram = r.T @ sums.gram @ r
    other = replace(sums, gram=gram, squares=np.diag(gram), reading=sums.reading @ r, total=sums.total @ r)
    sums = replace(sums, turned=replace(other, turned=None), gain=1e9)
    new, info = sweep.assemble(g, stats, {"v0": replace(part, turned=turned)}, {"v0": sums}, step)
    assert info["turned"] == 1.0
    now, then = new.weights["v0"].loadings, new.record.weights["v0"].loadings
    moved = local.values @ new.transform.T + new.shift
    left = local.values @ then[:, :-1].T + then[:, -1]
    np.testing.assert_allclose(moved @ now[:, :-1].T + now[:, -1], left, atol=1e-9)
    found = turned_scores(stats, turn)
    np.testing.assert_allclose(found.second[0], ((local.values @ r) ** 2).sum(axis=0))
    np.testing.assert_allclose(found.first[0], (local.values @ r).sum(axis=0))


def _mixed(rng: Any) -> tuple[Any, Any, Any]:
    """Return scores, loadings and entries of two factors that share no feature."""
    z, w = rng.normal(size=(200, 2)), np.zeros((16, 2))
    w[:8, 0], w[8:, 1] = 1.0, 1.0
    return z, w, z @ w.T + 0.5 * rng.normal(size=(200, 16))


@pytest.mark.parametrize("turns", [True, False])
def test_a_chain_leaves_a_mixture(turns: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Begun from factors turned by 45 degrees: without turns it stays there, which is why they are made."""
    z, w, y = _mixed(np.random.default_rng(6))
    if not turns:
        for module in (feature_draws, shared_draws):
            monkeypatch.setattr(module, "tried_turn", lambda *_: None)
    half = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2.0)
    kept = sampled.first_draw

    def turned(settings: Any, found: Any) -> Any:
        g = kept(settings, found)
        loadings = np.concatenate([w @ half, g.weights["v"].loadings[:, -1:]], axis=1)
        weights = {"v": replace(g.weights["v"], loadings=loadings)}
        return replace(g, weights=weights)

    monkeypatch.setattr(sampled, "first_draw", turned)
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": y})
    config = SparseGFA(n_factors=2, n_draws=60, n_burn_in=60, chains=1, scale_views=False)
    posterior = factorflow.fit(data, config, seed=3, progress=False)
    scores = posterior.draws("scores_draws").values[0].mean(axis=0)
    alike = np.abs(np.corrcoef(z.T, scores.T)[:2, 2:]).max(axis=0)
    assert (alike > 0.9).all() == turns, alike
