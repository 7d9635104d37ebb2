"""The updates and the bound, against dense arrays by definition and against the exact evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from poisson_factors_cases import kl, run_of, with_programs
from scipy.special import digamma, gammaln

from factorflow.models.poisson_factors import programs as updates
from factorflow.models.poisson_factors.state import Gamma

N, D, K = 60, 40, 3


def simulated(seed: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.5, 1.0, (N, 2)) @ rng.gamma(0.3, 2.0, (2, D))
    return rng.poisson(rates).astype(float)


def dense_bound(run: Any, y: np.ndarray, sizes: Any, batch: Any) -> float:
    """Return the bound of the present state by its definition, on all entries that are not missing."""
    p, theta = run.programs, run.scores()
    beta, eta = p.loadings["x"], p.feature_rates["x"]
    seen = ~np.isnan(y)
    filled = np.where(seen, y, 0.0)
    log_theta = digamma(theta.shape) - np.log(theta.rate)
    log_beta = digamma(beta.shape) - np.log(beta.rate)
    rate = np.exp(log_theta) @ np.exp(log_beta).T
    gamma = Gamma(np.ones((1, D)) * 1e9, np.ones((1, D)) * 1e9) if batch is None else p.batches["x"]
    code = np.zeros(N, int) if batch is None else batch
    log_gamma = digamma(gamma.shape) - np.log(gamma.rate)
    log_mean = np.log(rate) + np.log(sizes)[:, None] + log_gamma[code]
    mean = sizes[:, None] * gamma.mean[code] * (theta.mean @ beta.mean.T)
    value = (seen * (filled * log_mean - mean - gammaln(filled + 1.0))).sum()
    b = p.score_rates
    value -= kl(theta, p.score_shape, b.mean, digamma(b.shape) - np.log(b.rate))
    log_eta = (digamma(eta.shape) - np.log(eta.rate))[:, None]
    value -= kl(beta, p.loading_shape, eta.mean[:, None], log_eta)
    value -= kl(b, 1e-3, 1e-3) + kl(eta, 0.3, 0.3)
    value -= 0.0 if batch is None else kl(gamma, 10.0, 10.0)
    return float(value - p.score_shape.sum() - p.loading_shape)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("learn", [False, True])
def test_the_bound_is_that_of_its_definition(gaps: bool, batches: bool, learn: bool) -> None:
    """After some passes, of counts with missing entries and rows, sizes and batches."""
    rng, y = np.random.default_rng(1), simulated()
    if gaps:
        y[rng.random(y.shape) < 0.15] = np.nan
        y[7] = np.nan
    sizes, batch = rng.gamma(5.0, 0.2, N), rng.integers(0, 2, N) if batches else None
    run = run_of({"x": y}, K, 25, sizes=sizes, batch=batch).passes(7, learn)
    expected = dense_bound(run, y, sizes, batch)
    assert run.bound() == pytest.approx(expected, rel=1e-7)


def test_updates_are_those_of_dense_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing entries, zeros among them, and batches: five passes of a masked reference."""
    monkeypatch.setattr(updates, "_scale_step", lambda settings, p: p)
    rng, y = np.random.default_rng(2), simulated()
    y[rng.random(y.shape) < 0.15] = np.nan
    sizes, batch = rng.gamma(5.0, 0.2, N), rng.integers(0, 2, N)
    run = run_of({"x": y}, K, 25, sizes=sizes, batch=batch).passes(1)
    seen, filled = (~np.isnan(y)).astype(float), np.nan_to_num(y)
    p, theta = run.programs, run.scores()
    gamma, b, eta = p.batches["x"].mean, p.score_rates.mean, p.feature_rates["x"].mean
    beta, log_beta = p.loadings["x"].mean, p.logs["x"]
    shape, rate = theta.shape, theta.rate
    for _ in range(5):
        run.passes(1)
        first, second = np.exp(digamma(shape) - np.log(rate)), np.exp(log_beta)
        q = filled / (first @ second.T)
        level = seen * sizes[:, None] * gamma[batch]
        shape, rate = 1.0 + first * (q @ second), b + level @ beta
        mean = shape / rate
        beta_shape, beta_rate = 1.0 + second * (q.T @ first), eta[:, None] + level.T @ mean
        beta, log_beta = beta_shape / beta_rate, digamma(beta_shape) - np.log(beta_rate)
        fitted = seen * sizes[:, None] * (mean @ beta.T)
        gamma = np.stack(
            [
                (10.0 + filled[batch == i].sum(axis=0)) / (10.0 + fitted[batch == i].sum(axis=0))
                for i in range(2)
            ]
        )
        b = (1e-3 + N) / (1e-3 + mean.sum(axis=0))
        eta = (0.3 + K) / (0.3 + beta.sum(axis=1))
        np.testing.assert_allclose(run.programs.loadings["x"].mean, beta, rtol=2e-6)
        np.testing.assert_allclose(run.scores().mean, mean, rtol=2e-6)
        np.testing.assert_allclose(run.programs.batches["x"].mean, gamma, rtol=2e-6)


def test_the_bound_lies_below_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cells, two features, one program: the figure of an independent implementation.

    The evidence by 4 million draws from the prior is -8.857, with a standard error of 0.001.
    """
    monkeypatch.setattr(updates, "RATE_PRIOR", 1.0)
    monkeypatch.setattr(updates, "FEATURE_PRIOR", 2.0)
    y, sizes = np.array([[2.0, 0.0], [1.0, 3.0]]), np.array([1.2, 0.8])
    run = run_of({"x": y}, 1, sizes=sizes)
    with_programs(run, score_shape=np.array([1.5]), loading_shape=1.2)
    run.passes(300)
    assert run.objectives[-1] + 1.5 + 1.2 == pytest.approx(-9.752, abs=1e-3)
    assert (np.diff(run.objectives[1:]) > -1e-6).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("gaps", [False, True])
def test_no_pass_lowers_the_bound(seed: int, gaps: bool) -> None:
    """Whether shapes are learned or not, of two views with batches of which a cell may lack one."""
    rng = np.random.default_rng(seed)
    views = {"x": simulated(seed), "z": simulated(seed + 10)[:, :11]}
    if gaps:
        views["z"][rng.random(N) < 0.2] = np.nan
        views["x"][rng.random((N, D)) < 0.1] = np.nan
    run = run_of(views, 4, 25, batch=rng.integers(0, 2, N), size_factors="total")
    for learn in (False, True):
        run.passes(60, learn)
    steps = np.diff(run.objectives)
    assert (steps > -2e-7 * abs(run.objectives[-1])).all()
    assert run.objectives[-1] > run.objectives[0] + 10.0


def test_small_shapes_do_not_underflow() -> None:
    """exp E log theta and exp E log beta of shapes of .02 are 1e-22: their product is no float32."""
    y = simulated()
    run = run_of({"x": y}, K, 25).passes(30)
    p = run.programs
    tiny = {"x": Gamma(np.full((D, K), 0.02), np.full((D, K), 0.02))}
    with_programs(
        run, loadings=tiny, logs={"x": tiny["x"].logs_and_entropies()[0]}, score_shape=0.02 * p.score_shape
    )
    assert tiny["x"].logs_and_entropies()[0].max() < -40
    for local in run.local:
        shape = np.full(local["0"].shape.shape, 0.02, np.float32)
        local["0"] = Gamma(shape, shape)
    expected = dense_bound(run, y, np.ones(N), None)
    assert run.bound() == pytest.approx(expected, rel=1e-6)
    run.passes(10)
    assert np.isfinite(run.programs.loadings["x"].mean).all()
    assert np.isfinite(run.objectives).all()


def test_programs_far_apart_do_not_divide_by_zero() -> None:
    """Where no program has both the cell and the feature, R is the smallest that a table may have."""
    y = np.eye(6, D) * 3.0
    run = run_of({"x": y}, 2, 25)
    beta = np.full((D, 2), 1e-90)
    beta[:3, 0] = beta[3:, 1] = 1.0
    sharp = Gamma(np.full((D, 2), 1e4), 1e4 / beta)
    with_programs(run, loadings={"x": sharp}, logs={"x": np.log(beta)})
    run.passes(1)
    for local in run.local:
        shape = np.where(np.arange(2) == (np.arange(6) < 3)[:, None], 1e4, 0.003)
        local["0"] = Gamma(shape.astype(np.float32), np.full((6, 2), 1e4, np.float32))
    with_programs(run, loadings={"x": sharp}, logs={"x": np.log(beta)})
    run.passes(1)
    assert np.isfinite(run.programs.loadings["x"].mean).all()
