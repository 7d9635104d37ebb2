"""Held-out scores: against plain formulas on all entries at once, merged in any order."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, mannwhitneyu, norm, poisson

from factorflow.core.trees import add
from factorflow.likelihoods import get_likelihood
from factorflow.posterior.score_sums import Sums, entry_scores, training_sums
from factorflow.posterior.scoring import finish_scores


def _add(left: Sums, right: Sums) -> Sums:
    values = {}
    for field in fields(Sums):
        a, b = getattr(left, field.name), getattr(right, field.name)
        values[field.name] = None if a is None else add(a, b)
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
    return finish_scores({"v": total}, {"v": get_likelihood(likelihood)}, {"v": moments})["v"], (
        y,
        mean,
        sd,
        hidden,
    )


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
    scores = finish_scores({"v": sums}, {"v": get_likelihood("bernoulli")}, {"v": moments})["v"]
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
    scores = finish_scores({"v": sums}, {"v": get_likelihood("gaussian")}, {"v": moments})["v"]
    assert scores["baseline_rmse"] == pytest.approx(np.sqrt((6**2 + 4**2 + 2**2) / 3))


def test_a_view_without_held_out_entries_has_no_scores() -> None:
    sums = entry_scores("gaussian", 2, np.array([], int), np.array([]), np.array([]), np.array([]))
    moments = {"n_observed": np.array([2, 2]), "mean": np.zeros(2), "variance": np.ones(2)}
    assert finish_scores({"v": sums}, {"v": get_likelihood("gaussian")}, {"v": moments}) == {}


# Beside the formulas above: baselines, ties, and what has no answer


def _score(likelihood: Any, truth: Any, hidden: Any, mean: Any, sd: Any) -> dict[str, float]:
    """Return the scores of a small view, all entries of which are observed."""
    r, f = np.nonzero(hidden)
    sums = entry_scores(likelihood, truth.shape[1], f, truth[r, f], mean[r, f], sd[r, f])
    moments = {
        "n_observed": np.full(truth.shape[1], len(truth)),
        "mean": truth.mean(0),
        "variance": truth.var(0),
    }
    return finish_scores({"v": sums}, {"v": get_likelihood(likelihood)}, {"v": moments})["v"]


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "poisson"])
def test_baselines_are_the_shown_means(likelihood: str) -> None:
    """Of every score that has one; the fourth feature is hidden altogether, and gets the view's mean."""
    y, mean, sd, hidden = _data(likelihood)
    hidden[:, 3] = True
    scores = _score(likelihood, y, hidden, mean, sd)
    shown = np.where(hidden, np.nan, y)
    base = np.array([np.nan if hidden[:, d].all() else np.nanmean(shown[:, d]) for d in range(7)])
    base[3] = np.nanmean(shown)
    at = np.nonzero(hidden)
    guess, truth, fit = base[at[1]], y[at], mean[at]
    assert scores["baseline_rmse"] == pytest.approx(np.sqrt(((truth - guess) ** 2).mean()), rel=1e-9)
    error = ((truth - fit) ** 2).sum() / ((truth - guess) ** 2).sum()
    assert scores["r2"] == pytest.approx(1 - error, rel=1e-9)
    if likelihood == "gaussian":
        variance = np.array([0.0 if d == 3 else np.nanvar(shown[:, d]) for d in range(7)])
        variance[3] = np.delete(variance, 3).mean()
        expected = norm.logpdf(truth, guess, np.sqrt(variance[at[1]]))
    elif likelihood == "bernoulli":
        p = np.clip(guess, 1e-4, 1 - 1e-4)
        expected = np.where(truth == 1, np.log(p), np.log1p(-p))
        assert scores["baseline_log_loss"] == pytest.approx(-expected.mean(), rel=1e-9)
    else:
        expected = poisson.logpmf(truth, np.maximum(guess, 1e-4))
        saturated = poisson.logpmf(truth, np.maximum(truth, 1e-300))
        assert scores["baseline_deviance"] == pytest.approx(2 * (saturated - expected).mean(), rel=1e-9)
        assert scores["deviance"] == pytest.approx(
            2 * (saturated - poisson.logpmf(truth, np.maximum(fit, 1e-4))).mean(), rel=1e-9
        )
    assert scores["baseline_log_likelihood"] == pytest.approx(expected.mean(), rel=1e-9)


def test_equal_predictions_count_one_half_each() -> None:
    """AUC of predictions of three values, against all pairs."""
    rng = np.random.default_rng(2)
    y = (rng.random((40, 2)) < 0.4).astype(float)
    p = rng.choice([0.2, 0.5, 0.8], y.shape)
    scores = _score("bernoulli", y, np.ones(y.shape, bool), p, p)
    one, zero = p[y == 1][:, None], p[y == 0][None, :]
    assert scores["auc"] == pytest.approx(((one > zero) + 0.5 * (one == zero)).mean(), rel=1e-12)
    assert scores["auc_error"] == pytest.approx(0.5 * (one == zero).mean(), rel=1e-12)


def test_probabilities_of_zero_and_one() -> None:
    """They are ranked at the ends, and scored as the floor."""
    y = np.array([[1.0], [0.0], [1.0], [0.0]])
    p = np.array([[1.0], [0.0], [0.0], [0.5]])
    scores = _score("bernoulli", y, np.ones(y.shape, bool), p, p)
    losses = [-np.log1p(-1e-4), -np.log1p(-1e-4), -np.log(1e-4), np.log(2.0)]
    assert scores["log_loss"] == pytest.approx(np.mean(losses), rel=1e-9)
    assert scores["auc"] == pytest.approx((2 + 0.5 + 0) / 4)
    assert scores["log_likelihood"] == -scores["log_loss"]


def test_ranks_are_kept_within_a_millionth() -> None:
    """Probabilities that differ by 1 in 1000 of their odds are told apart, over the whole range."""
    odds = np.linspace(-15, 15, 4001)
    p = (1 / (1 + np.exp(-odds)))[:, None]
    y = (np.arange(4001) % 2 == 0).astype(float)[:, None]
    scores = _score("bernoulli", y, np.ones(y.shape, bool), p, p)
    one, zero = odds[y[:, 0] == 1][:, None], odds[y[:, 0] == 0][None, :]
    assert scores["auc"] == pytest.approx((one > zero).mean(), abs=1e-9)
    assert scores["auc_error"] == 0.0


def test_one_class_has_no_auc_and_no_spread_no_r2() -> None:
    """Not a number, where there is nothing to rank or to explain."""
    ones = np.ones((5, 2))
    scores = _score("bernoulli", ones, np.ones(ones.shape, bool), 0.9 * ones, ones)
    assert np.isnan([scores[name] for name in ("auc", "auc_error", "baseline_auc")]).all()
    flat = np.full((6, 2), 3.0)
    hidden = np.zeros(flat.shape, bool)
    hidden[::2] = True
    assert np.isnan(_score("gaussian", flat, hidden, flat + 0.5, np.ones(flat.shape))["r2"])


def test_features_are_rare_below_a_twentieth_of_those_shown() -> None:
    """The frequency among the entries that the model saw decides: 0 of 20, 1 of 20 and 2 of 39."""
    y = np.zeros((40, 3))
    hidden = np.zeros(y.shape, bool)
    hidden[:20, :2] = True
    hidden[0, 2] = True
    y[:4, 0] = 1  # hidden, so of no say
    y[30, 1] = 1
    y[[30, 31], 2] = 1
    p = np.full(y.shape, 0.3)
    scores = _score("bernoulli", y, hidden, p, p)
    assert scores["rare_n_entries"] == 20  # the first alone: a twentieth is not below a twentieth
    loss = -(4 * np.log(0.3) + 16 * np.log(0.7)) / 20
    assert scores["rare_log_loss"] == pytest.approx(loss, rel=1e-9)
    base = -(4 * np.log(1e-4) + 16 * np.log1p(-1e-4)) / 20
    assert scores["rare_baseline_log_loss"] == pytest.approx(base, rel=1e-9)
    common = _score("bernoulli", y[:, 1:], hidden[:, 1:], p[:, 1:], p[:, 1:])
    assert common["rare_n_entries"] == 0
    assert np.isnan(common["rare_log_loss"])


def test_nothing_shown_at_all() -> None:
    """The guess is then 0 with a variance of 1."""
    y = np.array([[1.0, -2.0], [3.0, 0.5]])
    scores = _score("gaussian", y, np.ones(y.shape, bool), y, np.ones(y.shape))
    assert scores["baseline_rmse"] == pytest.approx(np.sqrt((y**2).mean()))
    assert scores["baseline_log_likelihood"] == pytest.approx(norm.logpdf(y).mean())


def test_extremes_of_spread_and_rate_are_floored() -> None:
    y = np.array([[2.0], [0.0], [1.0], [4.0]])
    exact = _score("gaussian", y, np.ones(y.shape, bool), y, np.zeros(y.shape))
    assert exact["log_likelihood"] == pytest.approx(norm.logpdf(0, 0, 1e-6))
    none = _score("poisson", y, np.ones(y.shape, bool), np.zeros(y.shape), np.ones(y.shape))
    assert none["log_likelihood"] == pytest.approx(poisson.logpmf(y, 1e-4).mean())
    rare = of_table(
        "poisson",
        np.array([1.0, 2.0, 3.0]),
        np.array([True, False, False]),
        np.zeros(3),
        np.zeros(3),
        exposure=np.full(3, 0.1),
    )
    assert rare["log_likelihood"] == pytest.approx(poisson.logpmf(1.0, 1e-5))  # of the rate, not of the count


def of_table(likelihood: Any, y: Any, hidden: Any, mean: Any, sd: Any, **given: Any) -> dict[str, float]:
    """Return the scores of a table of one response, of two blocks."""
    total, cut = None, len(y) // 3
    for rows in (slice(None, cut), slice(cut, None)):
        at = np.flatnonzero(hidden[rows])
        part = {role: values[rows] for role, values in given.items()}
        sums = entry_scores(
            likelihood, 1, np.zeros(len(at), int), y[rows][at], mean[rows][at], sd[rows][at],
            {role: values[at] for role, values in part.items()},
        )  # fmt: skip
        shown = training_sums(likelihood, np.where(hidden, np.nan, y)[rows, None], part)
        sums = replace(sums, shown=shown)
        total = add(total, sums)
    moments = {"n_observed": np.array([1]), "mean": np.array([1e9]), "variance": np.array([0.0])}
    return finish_scores({"v": total}, {"v": get_likelihood(likelihood)}, {"v": moments})["v"]


def test_baseline_of_counts_with_exposures() -> None:
    """It is the exposure times the shown counts by exposure, in every score."""
    rng, n = np.random.default_rng(2), 400
    t, hidden = rng.gamma(1.0, 3.0, n), rng.random(n) < 0.3
    y, mean = rng.poisson(2.0 * t).astype(float), 2.2 * t
    scores = of_table("poisson", y, hidden, mean, np.sqrt(mean), exposure=t)
    rate = t * y[~hidden].sum() / t[~hidden].sum()
    log_p = poisson.logpmf(y, rate)[hidden]
    saturated = poisson.logpmf(y, np.maximum(y, 1e-300))[hidden]
    assert scores["baseline_log_likelihood"] == pytest.approx(log_p.mean())
    assert scores["baseline_deviance"] == pytest.approx(2 * (saturated - log_p).mean())
    assert scores["baseline_rmse"] == pytest.approx(np.sqrt(((y - rate)[hidden] ** 2).mean()))
    assert scores["r2"] == pytest.approx(
        1 - ((y - mean)[hidden] ** 2).sum() / ((y - rate)[hidden] ** 2).sum()
    )


def test_scores_of_merged_measurements_are_those_of_the_rows() -> None:
    """Each cell as its mean, number and squares about the mean: all scores are those of the single rows."""
    rng, n = np.random.default_rng(3), 60
    size = rng.integers(1, 6, n)
    cell = np.repeat(np.arange(n), size)
    offset, mean, hidden = rng.normal(size=n), rng.normal(size=n), rng.random(n) < 0.3
    y = (mean + offset)[cell] + 5.0 + rng.normal(size=len(cell))
    sd = rng.uniform(0.5, 2.0, n)
    cells = np.bincount(cell, y) / size
    within = np.bincount(cell, (y - cells[cell]) ** 2)
    predicted = mean + offset + 4.9
    whole = of_table("gaussian", y, hidden[cell], predicted[cell], sd[cell], offset=offset[cell])
    found = of_table(
        "gaussian", cells, hidden, predicted, sd, offset=offset, weight=1.0 * size, within=within
    )
    assert found == pytest.approx(whole, rel=1e-10)
    out, shown = hidden[cell], (y - offset[cell])[~hidden[cell]]
    base = norm.logpdf(y, shown.mean() + offset[cell], shown.std())[out]
    assert found["baseline_log_likelihood"] == pytest.approx(base.mean())
    assert found["log_likelihood"] == pytest.approx(norm.logpdf(y, predicted[cell], sd[cell])[out].mean())
    assert found["n_entries"] == out.sum()


def test_baseline_of_trials() -> None:
    """Of successes of seven trials: the shown share, floored, in the binomial distribution."""
    rng = np.random.default_rng(3)
    y = rng.binomial(7, 0.3, (30, 4)).astype(float)
    hidden = rng.random(y.shape) < 0.4
    scores = _score("binomial(trials=7)", y, hidden, np.full(y.shape, 2.1), np.ones(y.shape))
    shown = np.nanmean(np.where(hidden, np.nan, y), axis=0) / 7
    expected = binom.logpmf(y, 7, shown)[hidden].mean()
    assert scores["baseline_log_likelihood"] == pytest.approx(expected, rel=1e-9)
    assert scores["log_likelihood"] == pytest.approx(binom.logpmf(y, 7, 0.3)[hidden].mean(), rel=1e-9)
    best = binom.logpmf(y, 7, y / 7)[hidden].mean()
    assert scores["deviance"] == pytest.approx(2 * (best - scores["log_likelihood"]), rel=1e-9)
