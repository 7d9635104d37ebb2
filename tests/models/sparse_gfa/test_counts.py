"""Counts: factors at any mean, dispersion, predictions, and what varies more than Poisson's."""

from __future__ import annotations

import numpy as np
import pytest

from factorflow import fit, write_dataset
from factorflow.models import SparseGFA


def simulate(seed, mean, dispersion=0.0, n_rows=200, n_features=40):
    """Return scores (N, 3) and counts (N, D): three factors with a quarter of the variance."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, 3))
    signal = scores @ (rng.standard_normal((n_features, 3)) * (rng.random((n_features, 3)) < 0.5)).T
    spread = np.sqrt((1.0 / mean + dispersion) / 3.0)
    rate = mean * np.exp(spread * signal / signal.std() - 0.5 * spread**2)
    if dispersion:
        rate = rate * rng.gamma(1.0 / dispersion, dispersion, rate.shape)
    return scores, rng.poisson(rate).astype(np.float32)


def fitted(folder, values, kind="poisson", **options):
    data = write_dataset(folder / f"{kind}.zarr", {"v": values}, {"v": kind}, overwrite=True)
    return fit(data, SparseGFA(n_factors=6, **options))


def matched(posterior, scores):
    """Return the mean over true factors of the highest correlation with one that was found."""
    found = posterior.scores().to_numpy()
    together = np.corrcoef(found.T, scores.T)[: found.shape[1], found.shape[1] :]
    return float(np.abs(together).max(axis=0).mean())


@pytest.mark.parametrize("mean", [0.5, 8.0, 500.0])
def test_factors_of_counts_of_any_size(tmp_path, mean):
    """Found as well as by a Gaussian fit of the variance-stabilised counts."""
    scores, counts = simulate(0, mean)
    found = matched(fitted(tmp_path, counts), scores)
    root = matched(fitted(tmp_path, 2.0 * np.sqrt(counts + np.float32(0.375)), "gaussian"), scores)
    assert found > root - 0.005
    assert found > 0.75


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*hundreds of times as far off as all others")
@pytest.mark.parametrize("count", [2000.0, 1e6])
def test_a_count_far_above_all_others_hides_no_factor(tmp_path, count):
    """It is nearly all of the variance of x, and has a factor of its own, of a loading of its size."""
    scores, counts = simulate(0, 5.0)
    without = matched(fitted(tmp_path, counts), scores)
    counts[17, 5] = count
    posterior = fitted(tmp_path, counts)
    assert matched(posterior, scores) > without - 0.015
    assert {"one sample", "one feature"} & {finding.kind for finding in posterior.findings}


@pytest.mark.parametrize("mean", [pytest.param(100.0, marks=pytest.mark.slow), 500.0])
def test_counts_without_dispersion_lose_no_factor_to_it(tmp_path, mean):
    """Intercepts taken for uncertain at first fell, and a factor that was constant stood in for them."""
    scores, counts = simulate(1, mean)
    posterior = fitted(tmp_path, counts, likelihoods="negative_binomial")
    assert len(posterior.factors) == 3
    assert matched(posterior, scores) > matched(fitted(tmp_path, counts), scores) - 0.03


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mean", "dispersion"), [pytest.param(500.0, 0.1, marks=pytest.mark.slow), (20.0, 0.5)]
)
def test_negative_binomial_counts(tmp_path, mean, dispersion):
    """Dispersion is learned, factors are found, hidden counts lie within 90 % intervals, Poisson's warns."""
    scores, counts = simulate(1, mean, dispersion)
    hidden = np.random.default_rng(2).random(counts.shape) < 0.1
    shown = np.where(hidden, np.nan, counts).astype(np.float32)
    posterior = fitted(tmp_path, shown, likelihoods="negative_binomial")
    assert matched(posterior, scores) > 0.8
    learned = posterior.variable("dispersion_v").values
    assert np.median(learned) == pytest.approx(dispersion, rel=0.25)
    predicted = posterior.predict("v", interval=0.9)
    low, high = (predicted[end].to_numpy()[hidden] for end in ("lower", "upper"))
    inside = np.mean((counts[hidden] >= low) & (counts[hidden] <= high))
    assert inside == pytest.approx(0.9, abs=0.04)
    of_poisson = fitted(tmp_path, shown, max_iter=5, warmup_iter=5)
    assert any("negative_binomial" in finding.remedy for finding in of_poisson.findings)
    assert not any(finding.kind == "overdispersion" for finding in posterior.findings)


@pytest.mark.parametrize(
    ("ratio", "said"), [(1.4, None), (2.34, "vary 2.3 times"), (3.4e80, "vary 3e+80 times")]
)
def test_how_much_counts_vary_is_said_in_few_digits(tmp_path, monkeypatch, ratio, said):
    monkeypatch.setattr("factorflow.posterior.data_findings._mean", lambda *_: ratio)
    monkeypatch.setattr("factorflow.posterior.data_findings._overdispersed_features", lambda *_: [])
    posterior = fitted(tmp_path, simulate(3, 5.0)[1], max_iter=2, warmup_iter=2)
    found = [finding.message for finding in posterior.findings if finding.kind == "overdispersion"]
    assert found == [] if said is None else said in found[0]


def test_poisson_counts_are_not_warned_of(tmp_path):
    posterior = fitted(tmp_path, simulate(3, 5.0)[1], max_iter=5, warmup_iter=5)
    assert not any(finding.kind == "overdispersion" for finding in posterior.findings)


def test_scores_and_intercepts_of_large_counts_do_not_drift(tmp_path):
    """Entries say far more of both than their priors do: means of scores were -.7 after 100 passes."""
    rng = np.random.default_rng(3)
    rate = rng.normal(size=(100, 3)) @ rng.normal(size=(3, 40)) + rng.uniform(0.0, 8.0, 40)
    values = rng.poisson(np.exp(np.minimum(rate, 15.0)) * rng.gamma(3.0, 1.0 / 3.0, (100, 40)))
    data = write_dataset(tmp_path / "d", {"v": values.astype(float)}, {"v": "poisson"})
    posterior = fit(data, SparseGFA(n_factors=6), max_iter=60, progress=False)
    assert np.abs(posterior.scores().mean("obs")).max() < 0.2
