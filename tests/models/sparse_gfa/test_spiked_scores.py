"""Draws of scores that may be 0, or not negative: one score against sums over a grid, and a fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.kernels.random import Step
from factorflow.likelihoods import get_likelihood
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.sampler import metropolis
from factorflow.models.sparse_gfa.sampler.metropolis import Entries
from factorflow.models.sparse_gfa.sampler.spiked_scores import SpikedPrior, draw_spiked

BETA, PSI, ROWS = 1.3, 0.4, 20_000
LOADINGS, INTERCEPTS = np.array([0.8, -1.2, 0.5, 1.5]), np.array([0.3, 0.5, 0.1, 0.6])


def log_slab(slab: str, z: Any) -> Any:
    """Return the log density of a score that is not 0."""
    if slab == "exponential":
        return np.where(z > 0, np.log(BETA) - BETA * z, -np.inf)
    log = 0.5 * np.log(BETA / (2 * np.pi)) - 0.5 * BETA * z**2
    return log if slab == "normal" else np.where(z > 0, log + np.log(2.0), -np.inf)


def expected(slab: str, log_likelihood: Any) -> list[float]:
    """Return P(z not 0), E z, E z^2 of one score."""
    z = np.linspace(-12.0, 12.0, 240_001) + 5e-5
    weight = PSI * np.exp(log_slab(slab, z) + log_likelihood(z)) * (z[1] - z[0])
    at_zero = (1.0 - PSI) * float(np.exp(log_likelihood(np.zeros(1)))[0])
    total = weight.sum() + at_zero
    return [weight.sum() / total, weight @ z / total, weight @ z**2 / total]


def check(z: Any, moments: list[float]) -> None:
    found = np.stack([z != 0.0, z, z**2], axis=1)
    off = (found.mean(axis=0) - moments) / np.maximum(found.std(axis=0) / np.sqrt(len(z)), 1e-9)
    assert np.abs(off).max() < 4.5, off


@pytest.mark.parametrize("message", [(0.0, 0.0), (1.5, 2.0), (-3.0, 4.0), (-60.0, 9.0)])
@pytest.mark.parametrize("slab", ["normal", "half", "exponential"])
def test_a_score_has_its_conditional(slab: Any, message: tuple[float, float]) -> None:
    """Given its message, at which a score may be far below 0."""
    linear, p = message
    prior = SpikedPrior(slab, np.full((1, 1), BETA), np.full((1, 1), PSI))
    uniform = np.random.default_rng(1).random((ROWS, 2))
    z = prior.draw(0, np.full(1, p), np.full(ROWS, linear), uniform)
    assert slab == "normal" or z.min() >= 0.0
    check(z, expected(slab, lambda x: linear * x - 0.5 * p * x**2))


@pytest.mark.parametrize("slab", ["normal", "half", "exponential"])
def test_scores_of_counts_have_their_posterior(slab: Any) -> None:
    """One factor, loadings given: rows with the same counts, one of them missing, are independent chains."""
    density, rows = get_likelihood("poisson"), ROWS // 4
    y = np.tile([0.0, 3.0, np.nan, 9.0], (rows, 1))
    weights, phi = np.column_stack([LOADINGS, INTERCEPTS]), np.zeros((4, 0))
    settings: Any = SimpleNamespace(dtype=np.float64)
    u, r = metropolis.stand_ins(settings, density, y, np.tile(INTERCEPTS, (rows, 1)), phi)
    pairs = (u * LOADINGS**2).sum(axis=1)[:, None, None]
    linear = ((r - u * INTERCEPTS) * LOADINGS).sum(axis=1)[:, None]
    entries = [Entries(density, y, u, r, weights, phi)]
    prior = SpikedPrior(slab, np.full((1, 1), BETA), np.full((1, 1), PSI))
    z, tried = np.full((rows, 1), 1.0), 0.0
    for i in range(12):
        own = np.arange(rows), Step(3, 0, i), (entries, np.ones((rows, 1))), 1
        z, tried = draw_spiked(prior, (pairs, linear), z, *own)
    assert rows <= tried < 6 * rows

    def log_likelihood(x: Any) -> Any:
        predictors = x[:, None] * LOADINGS + INTERCEPTS
        kernel = density.log_kernel(y[0], predictors, phi.T, None)
        return np.where(y[0] == y[0], kernel, 0.0).sum(axis=1)

    check(z[:, 0], expected(slab, log_likelihood))


@pytest.mark.thorough
def test_parts_are_drawn_and_their_intervals_hold(tmp_path: Any) -> None:
    """Scores that are 0 in half of the samples: intervals, probabilities of zeros, new samples."""
    rng = np.random.default_rng(5)
    z = rng.exponential(size=(160, 3)) * (rng.random((160, 3)) < 0.5)
    w = rng.normal(size=(30, 3)) * (rng.random((30, 3)) < 0.5)
    values = z @ w.T + 1.0 + 0.5 * rng.normal(size=(160, 30))
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"y": values[:140]})
    config = SparseGFA(n_factors=5, scores="nonnegative", n_draws=100, n_burn_in=60, chains=1)
    posterior = factorflow.fit(data, config, progress=False)
    drawn = posterior.draws("scores_draws").values[0]
    assert drawn.shape[2] == 3
    assert drawn.min() == 0.0
    order = np.corrcoef(drawn.mean(axis=0).T, z[:140].T)[:3, 3:].argmax(axis=0)
    # a factor is known up to its scale
    drawn = drawn[:, :, order]
    ratio = (drawn.mean(axis=0) * z[:140]).sum(axis=0) / (z[:140] ** 2).sum(axis=0)
    lower, upper = np.quantile(drawn / ratio, [0.05, 0.95], axis=0)
    assert 0.86 < ((lower <= z[:140]) & (z[:140] <= upper)).mean() < 0.97
    inclusion = posterior.variable("scores_inclusion").values[:, order]
    np.testing.assert_allclose(inclusion, (drawn != 0.0).mean(axis=0), atol=1e-6)
    assert inclusion[z[:140] > 1.0].min() > 0.9
    assert np.mean(inclusion[z[:140] == 0.0] < 0.5) > 0.85
    np.testing.assert_allclose(posterior.variable("score_theta").values, 0.5, atol=0.15)
    new = factorflow.write_dataset(tmp_path / "new.zarr", {"y": values[140:]})
    scores = posterior.project(new, progress=False, iterations=2).scores().values[:, order]
    assert scores.min() >= 0.0
    assert min(np.corrcoef(scores[:, k], z[140:, k])[0, 1] for k in range(3)) > 0.9
