"""Scores of held-out entries, from their sums over blocks (`factorflow.posterior.score_sums`).

The baseline (what a feature's shown mean or frequency would have scored) and the pooling over rare features
follow from those sums at the end, when the shown means are known. The baseline of a count with exposure t is
t times the shown counts by exposure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64, Real
from numpy.typing import ArrayLike

from factorflow.posterior.ranks import concordance, rank_correlation
from factorflow.posterior.score_sums import PROBABILITY_FLOOR, RATE_FLOOR, Sums

if TYPE_CHECKING:
    from factorflow.likelihoods import Likelihood

OF_SQUARES = ("r2", "rmse", "baseline_rmse")
"""Scores by squares of differences, which censored times have none of."""

RARE = 0.05
"""Binary features whose shown frequency is below this are pooled as rare."""


def finish_scores(
    sums: Mapping[str, Sums],
    likelihoods: Mapping[str, Likelihood],
    moments: Mapping[str, Mapping[str, ArrayLike]],
) -> dict[str, dict[str, float]]:
    """Return the scores of every view, with those of the feature's shown mean (``baseline_...``) beside them.

    Parameters
    ----------
    sums : mapping of str to Sums
        Over all held-out entries, per view that has some.
    moments : mapping of str to mapping
        Per view, ``n_observed``, ``mean`` and ``variance`` of all observed entries of each feature, hidden
        ones included; those of the shown entries follow by subtraction.

    Returns
    -------
    dict of str to dict of str to float
        Per view: ``n_entries``, ``r2`` = 1 - sum (y - yhat)^2 / sum (y - shown mean)^2, ``rmse``,
        ``log_likelihood`` (nats per entry). Bernoulli: ``auc``, ``log_loss`` (nats), ``mnlp`` (bits) and the
        log-loss over the features that fewer than 5 % carry (``rare_log_loss``). Counts: ``deviance``, and
        its share that the model explains (``deviance_explained``). A view of one feature that is not binary:
        ``spearman``, the rank correlation of values and predictions; of times to an event ``concordance`` of
        times and risks (Harrell), without r2 and rmse.
    """
    return {
        view: _finish(density, sums[view], *_training_moments(sums[view], moments[view]))
        for view, density in likelihoods.items()
        if view in sums and sums[view].n.sum() > 0
    }


def _finish(
    likelihood: Likelihood, sums: Sums, mean: Float64[np.ndarray, " D"], variance: Float64[np.ndarray, " D"]
) -> dict[str, float]:
    n = sums.n.sum()
    ty, tt = (sums.y, sums.n) if sums.exposed is None else (sums.exposed.ty, sums.exposed.tt)
    spread = np.maximum(sums.yy - 2 * mean * ty + tt * mean**2, 0.0)
    baseline = _baseline(likelihood, sums, mean, variance)
    scores = {
        "n_entries": float(n),
        "r2": _ratio(spread.sum() - sums.squared_error.sum(), spread.sum()),
        "rmse": float(np.sqrt(sums.squared_error.sum() / n)),
        "baseline_rmse": float(np.sqrt(spread.sum() / n)),
        "log_likelihood": float(sums.log_likelihood.sum() / n),
        "baseline_log_likelihood": float(baseline.sum() / n),
    }
    if sums.ranked is not None:
        y, event, predicted = (sums.ranked.values[name] for name in ("y", "event", "predicted"))
        if likelihood.is_time:
            scores = {name: value for name, value in scores.items() if name not in OF_SQUARES}
            scores["concordance"] = concordance(y, event > 0, predicted)
        else:
            scores["spearman"] = rank_correlation(y, predicted)
    if likelihood.is_binary:
        scores |= _finish_binary(sums, mean, baseline)
    elif sums.levels is not None:
        most = sums.levels.shown.argmax(axis=0)
        scores["accuracy"] = sums.levels.hits / n
        scores["baseline_accuracy"] = float(sums.levels.held_out[most, np.arange(len(most))].sum() / n)
    elif likelihood.discrete and sums.saturated:
        own = sums.log_likelihood.sum() if sums.of_rates is None else sums.of_rates
        scores["deviance"] = 2 * (sums.saturated - float(own)) / n
        scores["baseline_deviance"] = 2 * (sums.saturated - float(baseline.sum())) / n
        scores["deviance_explained"] = _ratio(
            scores["baseline_deviance"] - scores["deviance"], scores["baseline_deviance"]
        )
    return scores


def _finish_binary(
    sums: Sums, mean: Float64[np.ndarray, " D"], baseline: Float64[np.ndarray, " D"]
) -> dict[str, float]:
    n = sums.n.sum()
    assert sums.histogram is not None
    auc, error = _auc(sums.histogram)
    order = np.argsort(mean, kind="stable")
    by_frequency = np.stack([(sums.n - sums.y)[order], sums.y[order]])
    _, where = np.unique(mean[order], return_inverse=True)
    ties = np.stack([np.bincount(where, row) for row in by_frequency])
    rare = (mean < RARE) & (sums.n > 0)
    n_rare = sums.n[rare].sum()
    return {
        "auc": auc,
        "auc_error": error,
        "baseline_auc": _auc(ties)[0],
        "log_loss": float(-sums.log_likelihood.sum() / n),
        "baseline_log_loss": float(-baseline.sum() / n),
        "mnlp": float(-sums.log_likelihood.sum() / n / np.log(2)),
        "rare_n_entries": float(n_rare),
        "rare_log_loss": _ratio(-sums.log_likelihood[rare].sum(), n_rare),
        "rare_baseline_log_loss": _ratio(-baseline[rare].sum(), n_rare),
    }


def _training_moments(
    sums: Sums, moments: Mapping[str, ArrayLike]
) -> tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, " D"]]:
    """Return mean and variance of the shown entries of each feature.

    A feature whose entries are all hidden gets the mean and the variance of the view.
    """
    if sums.shown is not None:
        n = np.maximum(sums.shown.n, np.finfo(float).tiny)
        mean = sums.shown.y / n
        return mean, np.maximum(sums.shown.yy / n - mean**2, 0.0)
    n = np.asarray(moments["n_observed"], float)
    of_all = np.where(n > 0, moments["mean"], 0.0)
    total = n * of_all - sums.y
    squares = n * (np.where(n > 0, moments["variance"], 0.0) + of_all**2) - sums.yy
    n_training = n - sums.n
    some = n_training > 0.5
    mean = total / np.where(some, n_training, 1.0)
    variance = np.maximum(squares / np.where(some, n_training, 1.0) - mean**2, 0.0)
    if not some.any():
        return np.zeros_like(mean), np.ones_like(mean)
    pooled = total[some].sum() / n_training[some].sum()
    return np.where(some, mean, pooled), np.where(some, variance, variance[some].mean())


def _baseline(
    likelihood: Likelihood, sums: Sums, mean: Float64[np.ndarray, " D"], variance: Float64[np.ndarray, " D"]
) -> Float64[np.ndarray, " D"]:
    """Return the log-likelihood by the likelihood fitted to each feature alone, or of its shown mean."""
    if sums.levels is not None:
        counts = sums.levels.shown + 0.5
        return np.asarray((sums.levels.held_out * np.log(counts / counts.sum(axis=0))).sum(axis=0))
    if sums.alone is not None:
        return sums.alone
    if np.isfinite(likelihood.largest):
        trials = likelihood.largest
        p = np.clip(mean / trials, PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
        log_likelihood = sums.y * np.log(p) + (trials * sums.n - sums.y) * np.log1p(-p)
        return np.asarray(log_likelihood + sums.log_factor * sums.n / sums.n.sum())
    if likelihood.discrete:
        rate = np.maximum(mean, RATE_FLOOR)
        t = sums.n if sums.exposed is None else sums.exposed.t
        log_likelihood = sums.y * np.log(rate) - t * rate + sums.log_factor * sums.n / sums.n.sum()
        return np.asarray(log_likelihood if sums.exposed is None else log_likelihood + sums.exposed.y_log_t)
    spread = sums.yy - 2 * mean * sums.y + sums.n * mean**2
    var = np.maximum(variance, 1e-12)
    return np.asarray(-0.5 * (sums.n * np.log(2 * np.pi * var) + spread / var))


def _auc(counts: Real[np.ndarray, "2 bins"]) -> tuple[float, float]:
    """Return the share of (0, 1) pairs in the right order, and half the share that one bin holds."""
    zeros, ones = counts
    pairs = zeros.sum() * ones.sum()
    tied = 0.5 * float((zeros * ones).sum())
    below = np.concatenate([[0.0], np.cumsum(zeros)[:-1]])
    return _ratio((ones * below).sum() + tied, pairs), _ratio(tied, pairs)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else float("nan")
