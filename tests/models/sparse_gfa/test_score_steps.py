"""Scores of counts with rates of many magnitudes: how far a pass moves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.core.trees import replace
from factorflow.models.sparse_gfa.score_steps import MAX_RISE, interpolate_scores, step_fraction


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
