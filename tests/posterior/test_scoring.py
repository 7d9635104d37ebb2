"""Held-out scores: against plain formulas on all entries at once, merged in any order."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm, poisson

from factorflow.posterior.scoring import Sums, entry_scores, finish_scores
from factorflow.shape import ViewMeta


def _add(left: Sums, right: Sums) -> Sums:
    values = {}
    for field in fields(Sums):
        a, b = getattr(left, field.name), getattr(right, field.name)
        values[field.name] = None if a is None else a + b
    return Sums(**values)


def _data(likelihood: str, n: int = 300, d: int = 7) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d)) + np.linspace(-3, 1, d)
    if likelihood == "gaussian":
        y, mean = x + rng.normal(size=(n, d)), x
    elif likelihood == "bernoulli":
        mean = 1 / (1 + np.exp(-x))
        y = (rng.random((n, d)) < mean).astype(float)
    else:
        mean = np.log1p(np.exp(x))
        y = rng.poisson(mean).astype(float)
    hidden = rng.random((n, d)) < 0.2
    return y, mean, np.full((n, d), 1.1), hidden


def _scores(likelihood: Any, cuts: tuple[int, ...] = (100, 150)) -> tuple[dict[str, float], tuple[Any, ...]]:
    y, mean, sd, hidden = _data(likelihood)
    parts = []
    for rows in np.split(np.arange(len(y)), cuts):
        r, f = np.nonzero(hidden[rows])
        r = rows[r]
        parts.append(entry_scores(likelihood, y.shape[1], f, y[r, f], mean[r, f], sd[r, f]))
    total = parts[0]
    for part in parts[1:]:
        total = _add(total, part)
    moments = {"n_observed": np.full(y.shape[1], len(y)), "mean": y.mean(0), "variance": y.var(0)}
    view = ViewMeta("v", likelihood, y.shape[1], "scattered")
    return finish_scores({"v": total}, [view], {"v": moments})["v"], (y, mean, sd, hidden)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "poisson"])
def test_r2_against_the_shown_mean(likelihood: str) -> None:
    scores, (y, mean, _, hidden) = _scores(likelihood)
    shown = np.nanmean(np.where(hidden, np.nan, y), axis=0)
    at = np.nonzero(hidden)
    expected = 1 - ((y - mean)[at] ** 2).sum() / ((y - shown)[at] ** 2).sum()
    assert scores["r2"] == pytest.approx(expected, rel=1e-10)
    assert scores["rmse"] == pytest.approx(np.sqrt(((y - mean)[at] ** 2).mean()))
    assert scores["n_entries"] == hidden.sum()


def test_gaussian_log_likelihood() -> None:
    scores, (y, mean, sd, hidden) = _scores("gaussian")
    at = np.nonzero(hidden)
    assert scores["log_likelihood"] == pytest.approx(norm.logpdf(y[at], mean[at], sd[at]).mean())
    shown = np.where(hidden, np.nan, y)
    base = norm.logpdf(y, np.nanmean(shown, 0), np.nanstd(shown, 0))
    assert scores["baseline_log_likelihood"] == pytest.approx(base[at].mean())


def test_bernoulli_auc_and_log_loss() -> None:
    scores, (y, mean, _, hidden) = _scores("bernoulli")
    at = np.nonzero(hidden)
    ones, zeros = mean[at][y[at] == 1], mean[at][y[at] == 0]
    exact = mannwhitneyu(ones, zeros).statistic / (len(ones) * len(zeros))
    assert abs(scores["auc"] - exact) <= scores["auc_error"] < 1e-3
    p = np.clip(mean[at], 1e-4, 1 - 1e-4)
    loss = -np.where(y[at] == 1, np.log(p), np.log(1 - p)).mean()
    assert scores["log_loss"] == pytest.approx(loss)
    assert scores["mnlp"] == pytest.approx(loss / np.log(2))
    frequency = np.nanmean(np.where(hidden, np.nan, y), axis=0) + np.zeros_like(y)
    base = mannwhitneyu(frequency[at][y[at] == 1], frequency[at][y[at] == 0]).statistic
    assert scores["baseline_auc"] == pytest.approx(base / (len(ones) * len(zeros)))


def test_rare_features_are_pooled() -> None:
    rng = np.random.default_rng(1)
    y = (rng.random((2000, 3)) < [0.02, 0.04, 0.5]).astype(float)
    mean = np.broadcast_to([0.03, 0.03, 0.5], y.shape)
    r, f = np.nonzero(rng.random(y.shape) < 0.5)
    sums = entry_scores("bernoulli", 3, f, y[r, f], mean[r, f], mean[r, f])
    moments = {"n_observed": np.full(3, 2000), "mean": y.mean(0), "variance": y.var(0)}
    scores = finish_scores({"v": sums}, [ViewMeta("v", "bernoulli", 3, "none")], {"v": moments})["v"]
    pooled = f < 2
    expected = -np.where(y[r, f][pooled] == 1, np.log(0.03), np.log(0.97)).mean()
    assert scores["rare_n_entries"] == pooled.sum()
    assert scores["rare_log_loss"] == pytest.approx(expected)


def test_poisson_log_likelihood_and_deviance() -> None:
    scores, (y, mean, _, hidden) = _scores("poisson")
    at = np.nonzero(hidden)
    log_p = poisson.logpmf(y[at], np.maximum(mean[at], 1e-4))
    assert scores["log_likelihood"] == pytest.approx(log_p.mean())
    saturated = np.where(y[at] > 0, poisson.logpmf(y[at], np.maximum(y[at], 1e-9)), 0.0)
    assert scores["deviance"] == pytest.approx(2 * (saturated - log_p).mean())
    assert scores["baseline_deviance"] > scores["deviance"]


def test_the_cut_into_blocks_does_not_matter() -> None:
    one, many = _scores("bernoulli", ())[0], _scores("bernoulli", (1, 50, 299))[0]
    assert one == pytest.approx(many, rel=1e-12, nan_ok=True)


def test_a_feature_without_shown_entries_gets_the_mean_of_the_view() -> None:
    y = np.array([[1.0, 5.0], [3.0, 7.0]])
    features = np.array([0, 0, 1])
    sums = entry_scores("gaussian", 2, features, np.array([1.0, 3.0, 5.0]), np.zeros(3), np.ones(3))
    moments = {"n_observed": np.array([2, 2]), "mean": y.mean(0), "variance": y.var(0)}
    scores = finish_scores({"v": sums}, [ViewMeta("v", "gaussian", 2, "none")], {"v": moments})["v"]
    assert scores["baseline_rmse"] == pytest.approx(np.sqrt((6**2 + 4**2 + 2**2) / 3))


def test_a_view_without_held_out_entries_has_no_scores() -> None:
    sums = entry_scores("gaussian", 2, np.array([], int), np.array([]), np.array([]), np.array([]))
    moments = {"n_observed": np.array([2, 2]), "mean": np.zeros(2), "variance": np.ones(2)}
    assert finish_scores({"v": sums}, [ViewMeta("v", "gaussian", 2, "none")], {"v": moments}) == {}
