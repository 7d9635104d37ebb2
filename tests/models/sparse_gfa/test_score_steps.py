"""Scores of counts with rates of many magnitudes: how far a pass moves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.core.trees import replace, restrict
from factorflow.kernels.linalg import unpack
from factorflow.models.sparse_gfa.change_of_basis import shift_scores
from factorflow.models.sparse_gfa.m_step import update_features
from factorflow.models.sparse_gfa.score_steps import MAX_RISE, interpolate_scores, step_fraction
from factorflow.models.sparse_gfa.squarem import REACH
from factorflow.models.sparse_gfa.stored_scores import apply_transform
from factorflow.models.sparse_gfa.weights import expected_weights, sum_pairs


@pytest.mark.thorough
@pytest.mark.parametrize(("spread", "seed"), [(3.0, 15_002), (4.0, 15_000)])
def test_rates_of_few_features_stay_near_the_counts(spread: float, seed: int, tmp_path: Path) -> None:
    """Rows of zeros take the prior's covariance, entries of no rate are moved by others: both had no end."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 5))
    y = rng.poisson(np.exp(np.minimum(spread * x / x.std(), 20.0))).astype(float)
    data = factorflow.write_dataset(tmp_path / "d", {"v": y}, likelihoods={"v": "poisson"})
    model = factorflow.models.SparseGFA(n_factors=3)
    posterior = factorflow.fit(data, model, progress=False)
    assert -1e4 < posterior.summary()["objective"] < 0.0  # of log probabilities of counts
    assert posterior.summary()["variance_explained"]["v"] > 0.5


def test_no_rate_rises_by_more_than_is_allowed(tools: Any) -> None:
    """By mean and variance; what is within it is not touched, and other likelihoods have no such limit."""
    problem = tools.Problem(("poisson",), bound=False)
    for _ in range(3):
        problem.iterate()
    settings, globals_, before = problem.settings, problem.globals_, problem.local
    name, k = settings.views[0].name, globals_.n_factors
    loadings = globals_.weights[name].mean
    far = replace(before, mean=before.mean.copy(), variance=np.array(before.variance))
    direction = loadings[np.abs(loadings).sum(axis=1).argmax()]
    far.mean[0] += 40.0 * direction / (direction**2).sum()
    far.variance[1] += 90.0 * np.eye(k)[np.tril_indices(k)] / (direction**2).sum()
    share = step_fraction(settings, globals_, before, far)
    assert np.shape(share) == (len(before.mean), 1)
    assert (share[2:] == 1.0).all()
    assert share[:2].max() < 0.2
    after, _ = interpolate_scores(settings, before, far, 0.0, share)
    rise = (after.mean - before.mean) @ loadings.T
    grown = (after.variance - before.variance)[:, np.cumsum(np.arange(1, k + 1)) - 1]
    rise += 0.5 * grown @ (loadings**2).T
    np.testing.assert_allclose(rise.max(axis=1)[:2], MAX_RISE, rtol=1e-6)
    assert step_fraction(settings, globals_, before, before) == globals_.progress.step_length
    binary = tools.Problem(("bernoulli",), bound=False)
    binary.iterate()
    moved = replace(binary.local, mean=binary.local.mean + 100.0)
    assert step_fraction(binary.settings, binary.globals_, binary.local, moved) == 1.0


def test_scores_that_begin_a_stage_move_no_further(tools: Any) -> None:
    """What factors that were left out explained, the others would explain at once: rates overflowed."""
    problem = tools.Problem(("poisson",), bound=False)
    for _ in range(3):
        problem.iterate()
    problem.initialize_sparse()
    name = problem.settings.views[0].name
    weights = problem.globals_.weights[name]
    lower = replace(weights, mean=3.0 * weights.mean, coefficients=weights.coefficients - 6.0)
    problem.globals_ = replace(problem.globals_, weights={name: lower})
    before, after, _ = problem.map()
    assert problem.phase == "restart"
    share = step_fraction(problem.settings, problem.globals_, before, after)
    np.testing.assert_allclose(share, 1.0, rtol=1e-9)


def test_scores_of_counts_have_their_means_where_their_prior_has_them(tools: Any) -> None:
    """Where entries say far more than priors, scores and intercepts drifted there for hundreds of passes."""
    problem = tools.Problem(("poisson",), bound=False)
    for _ in range(2):  # the third ends with such a move
        problem.iterate()
    old, name, local = problem.globals_, problem.settings.views[0].name, problem.local
    view, weights = old.views[name], old.weights[name]
    moved = shift_scores(problem.settings, old)
    after, scores = moved.weights[name], apply_transform(local, moved)
    assert scores is not None

    def predictors(w: Any, mean: Any) -> Any:
        return w.intercept + mean @ expected_weights(w)[0].T

    np.testing.assert_allclose(predictors(after, scores.mean), predictors(weights, local.mean), rtol=1e-9)
    precision = view.intercept_shape / view.intercept_rate

    def log_prior(shift: Any) -> float:
        b = after.intercept - expected_weights(after)[0] @ shift - view.intercept_mean
        return float(-0.5 * ((scores.mean + shift) ** 2).sum() - 0.5 * precision * (b**2).sum())

    at_optimum = log_prior(np.zeros(len(after.mean.T)))
    for direction in 1e-2 * np.vstack([np.eye(len(after.mean.T)), -np.eye(len(after.mean.T))]):
        assert log_prior(direction) < at_optimum
    n = len(scores.mean)
    spread = np.broadcast_to(local.variance, (n, local.variance.shape[1])).sum(axis=0)
    second = (scores.mean.T @ scores.mean + unpack(spread, len(after.mean.T))) / n
    np.testing.assert_allclose(moved.scores.second, second, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(moved.scores.mean, scores.mean.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(
        moved.views[name].pairs, sum_pairs(after, problem.settings.precision(name, after)), rtol=1e-9
    )


def test_the_closing_pass_leaves_no_more_than_order_and_signs(tools: Any) -> None:
    """Scores that it has moved would be moved once more where they are recorded."""
    problem = tools.Problem(("poisson",), bound=False)
    for _ in range(2):
        problem.iterate()
    globals_ = shift_scores(problem.settings, problem.globals_)
    moved = apply_transform(problem.local, globals_)
    assert moved is not None
    assert np.abs(moved.mean - problem.local.mean).max() > 1e-3
    sweep = problem.stages["closing"].sweeps[0]
    step = replace(problem.step, stage="closing")
    local, stats = sweep.map(problem.block, problem.local, sweep.prepare(globals_), step)
    after = sweep.update(globals_, stats, step)[0]
    recorded = apply_transform(local, after)
    assert recorded is not None
    np.testing.assert_allclose(np.sort(abs(recorded.mean), axis=1), np.sort(abs(local.mean), axis=1))


@pytest.mark.parametrize("sparse", [False, True])
def test_no_feature_moves_further_than_its_tangents_reach(tools: Any, sparse: bool) -> None:
    """Entries of no rate say nothing of what is far above, and others moved them without limit."""
    problem = tools.Problem(("poisson",), bound=False)
    for _ in range(3):
        problem.iterate()
    if sparse:
        problem.initialize_sparse()
        problem.iterate()
    name = problem.settings.views[0].name
    weights = problem.globals_.weights[name]
    low = replace(weights, coefficients=weights.coefficients - np.where(np.arange(5) == 2, 9.0, 0.0)[:, None])
    problem.globals_ = replace(problem.globals_, weights={name: low})
    _, _, stats = problem.map()
    settings = problem.settings if sparse else problem.settings.warm_up
    mine = restrict(stats, name, slice(0, 5))
    new, _ = update_features(settings, name, range(5), problem.globals_, mine, problem.step)
    moved = expected_weights(new)[0] - expected_weights(low)[0]
    second = unpack(stats.moments[:6], 3) / problem.settings.n_rows
    length = np.sqrt(np.einsum("dj,jk,dk->d", moved, second, moved))
    assert 0.3 < length[2] < (1.5 if sparse else 1.0 + 1e-6) * REACH  # natural parameters are on a line
