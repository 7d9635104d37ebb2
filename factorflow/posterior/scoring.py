"""Scores of held-out entries that merge by addition, so that no entry ever leaves its block.

Everything a score needs is a sum over entries, kept per feature: the baseline (what a feature's shown mean or
frequency would have scored) and the pooling over rare features follow from those sums at the end, when the
shown means are known. AUC needs ranks; it is computed from a histogram of the predicted log-odds.

| symbol | field |
|---|---|
| number of entries, sum of y, sum of y^2 | ``Sums.n``, ``Sums.y``, ``Sums.yy`` (D,) |
| sum of (y - yhat)^2, of log p(y) | ``Sums.squared_error``, ``Sums.log_likelihood`` (D,) |
| counts of y = 0 and y = 1 per bin | ``Sums.histogram`` (2, `AUC_BINS`) |

Rows of a table may stand for several observations, or have been watched for longer (`Model.row_roles`).
A merged measurement, w observations with mean y and squares ``within`` about it, counts as all of them, less
its offset. The baseline of a count with exposure t is t times the shown counts by exposure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float64, Integer, Real, Shaped
from numpy.typing import ArrayLike

from factorflow.design import EXPOSURE, OFFSET, WEIGHT, WITHIN
from factorflow.likelihoods import Likelihood, get_likelihood

if TYPE_CHECKING:
    from factorflow.likelihoods.predictive import Predictive
    from factorflow.shape import Likelihood as KindName

AUC_BINS = 2**14
"""Bins of equal width in log-odds. Pairs that fall into one bin count one half each, so AUC is off by at most
half the share of such pairs; that bound is reported as ``auc_error`` (about 1e-4 or less in practice)."""

LOG_ODDS_LIMIT = 16.0
"""Log-odds are clipped here (probabilities within 1.1e-7 of 0 or 1 share the outermost bins)."""

PROBABILITY_FLOOR = 1e-4
"""Predicted probabilities are clipped to [floor, 1 - floor] before their logarithm is taken."""

RATE_FLOOR = 1e-4
"""Smallest rate that a count is scored with."""

RARE = 0.05
"""Binary features whose shown frequency is below this are pooled as rare."""


@dataclass(frozen=True)
class Shown:
    """Sums over the shown rows of a table, by which a baseline goes that its moments do not tell.

    Parameters
    ----------
    n, y, yy : arrays
        Observations (of counts, the exposure), sum of the response (less the offset), and of its squares.
    """

    n: Float64[np.ndarray, " D"]
    y: Float64[np.ndarray, " D"]
    yy: Float64[np.ndarray, " D"]


@dataclass(frozen=True)
class LevelSums:
    """Held-out and shown entries of each level, and the held-out ones that were predicted right."""

    held_out: Float64[np.ndarray, "L D"]
    shown: Float64[np.ndarray, "L D"]
    hits: float


@dataclass(frozen=True)
class ExposureSums:
    """Sums over held-out counts with exposures t: of t, t y, t^2, and y log t."""

    t: Float64[np.ndarray, " D"]
    ty: Float64[np.ndarray, " D"]
    tt: Float64[np.ndarray, " D"]
    y_log_t: Float64[np.ndarray, " D"]


@dataclass(frozen=True)
class Sums:
    """Sums over held-out entries of one view (D features); they merge by addition.

    Parameters
    ----------
    n, y, yy : arrays
        Entries, sum of their values and of the squares.
    squared_error, log_likelihood : arrays
        Of the model's predictions.
    log_factor, saturated : float
        Of counts, sum of `Likelihood.log_factor` (of dispersed ones Poisson's), and the log-likelihood of
        expected values equal to the counts.
    histogram : array or None
        Entries with y = 0 and y = 1 by predicted log-odds (Bernoulli).
    levels : LevelSums or None
        Of entries that are levels.
    alone : array or None
        Sum of log p(y) by the likelihood fitted to each feature alone (`Model.alone`); None: by moments.
    exposed : Exposed or None
        Of counts with exposures.
    shown : Shown or None
        Of tables; None: the moments of the dataset tell.
    """

    n: Float64[np.ndarray, " D"]
    y: Float64[np.ndarray, " D"]
    yy: Float64[np.ndarray, " D"]
    squared_error: Float64[np.ndarray, " D"]
    log_likelihood: Float64[np.ndarray, " D"]
    log_factor: float = 0.0
    saturated: float = 0.0
    histogram: Float64[np.ndarray, "2 bins"] | None = None
    levels: LevelSums | None = None
    alone: Float64[np.ndarray, " D"] | None = None
    exposed: ExposureSums | None = None
    shown: Shown | None = None


def training_sums(
    likelihood: KindName, y: Shaped[np.ndarray, "B D"], given: Mapping[str, Float64[np.ndarray, " B"]]
) -> Shown:
    """Return the sums over the shown rows of a block of a table.

    Parameters
    ----------
    likelihood : {"gaussian", "poisson"}
        Of the view.
    y : array
        Its values; NaN where they are missing or hidden.
    given : mapping of str to array
        What the rows stand for, see `Model.row_roles`; rows of unknown or no exposure or weight are left out.
    """
    poisson, ones = likelihood == "poisson", np.ones(len(y))
    n = np.asarray(given.get(EXPOSURE if poisson else WEIGHT, ones))[:, None]
    y = np.asarray(y, float) - np.asarray(given.get(OFFSET, 0.0 * ones))[:, None]
    seen = ~np.isnan(y) & (n > 0)
    n, y = np.where(seen, n, 0.0), np.where(seen, y, 0.0)
    within = np.where(seen, np.asarray(given.get(WITHIN, 0.0 * ones))[:, None], 0.0)
    times = np.where(seen, 1.0, 0.0) if poisson else n
    return Shown(n.sum(axis=0), (times * y).sum(axis=0), (times * y**2 + within).sum(axis=0))


def level_sums(
    n_levels: int,
    shown: Shaped[np.ndarray, "B D"],
    features: Integer[np.ndarray, " H"],
    y: Shaped[np.ndarray, " H"],
    predictive: Predictive,
) -> LevelSums:
    """Return the sums over entries that are levels of a block.

    Parameters
    ----------
    n_levels : int
        Levels (L).
    shown : array
        The block; NaN where entries are missing or hidden.
    features, y : arrays
        Features and values of the held-out entries (H of them).
    predictive : Predictive
        Their distribution.
    """
    n_features = shown.shape[1]
    counts = [np.bincount(features, y == level, minlength=n_features) for level in range(n_levels)]
    likely = np.stack([predictive.log_density(np.full(len(y), float(level))) for level in range(n_levels)])
    hits = float((likely.argmax(axis=0) == y).sum())
    of_shown = [(shown == level).sum(axis=0) for level in range(n_levels)]
    return LevelSums(np.array(counts, float), np.array(of_shown, float), hits)


def entry_scores(
    likelihood: Likelihood | str,
    n_features: int,
    features: Integer[np.ndarray, " H"],
    y: Shaped[np.ndarray, " H"],
    mean: Shaped[np.ndarray, " H"],
    sd: Shaped[np.ndarray, " H"],
    given: Mapping[str, Float64[np.ndarray, " H"]] | None = None,
    predictive: Predictive | None = None,
    alone: tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, "P D"]] | None = None,
) -> Sums:
    """Return the sums of some held-out entries (H of them) of one view.

    Parameters
    ----------
    likelihood : Likelihood or str
        Of the view.
    n_features : int
        Features of the view (D).
    features : array
        Feature of each entry.
    y : array
        True values.
    mean, sd : arrays
        Predicted mean on the data scale and standard deviation of a new observation.
    given : mapping of str to array, optional
        Of a table, what the row of each entry stands for, see `Model.row_roles`.
    predictive : Predictive, optional
        Distribution of the entries; None: that of the likelihood with this mean and standard deviation.
    alone : (D,) and (P, D) array, optional
        Predictor and nuisance parameters of the likelihood fitted to each feature alone.
    """
    y, mean = np.asarray(y, float), np.asarray(mean, float)
    given = given or {}
    density = get_likelihood(likelihood) if isinstance(likelihood, str) else likelihood

    def total(values: Float64[np.ndarray, " H"]) -> Float64[np.ndarray, " D"]:
        return np.bincount(features, values, minlength=n_features).astype(float)

    if not density.discrete and given:
        return _merged_scores(total, y, mean, np.asarray(sd, float), given)
    if predictive is None or density.is_binary:
        log_likelihood = _log_likelihood(density, y, mean, np.asarray(sd, float))
    else:
        log_likelihood = predictive.log_density(y)
    log_factor, saturated, aux = 0.0, 0.0, None if predictive is None else predictive.aux
    if density.discrete and not density.is_binary and not density.levels and aux is None:
        plain = density if np.isfinite(density.largest) else get_likelihood("poisson")
        log_factor = float(plain.log_factor(y, np.empty((0, 1))).sum())
        best = y * np.log(np.maximum(y, 1.0)) - y
        if np.isfinite(density.largest):
            left = density.largest - y
            best = best + y + left * np.log(np.maximum(left, 1.0)) - density.largest * np.log(density.largest)
        saturated = float(best.sum()) + log_factor
    return Sums(
        n=np.bincount(features, minlength=n_features).astype(float),
        y=total(y),
        yy=total(y * y),
        squared_error=total((y - mean) ** 2 * ~_beyond(density, aux, y, mean)),
        log_likelihood=total(log_likelihood),
        log_factor=log_factor,
        saturated=saturated,
        alone=None if alone is None else total(_log_alone(density, y, features, aux, *alone)),
        histogram=_histogram(y, mean) if density.is_binary else None,
        exposed=_exposure_sums(total, y, given[EXPOSURE]) if EXPOSURE in given else None,
    )


def _beyond(
    density: Likelihood,
    aux: Float64[np.ndarray, " H"] | None,
    y: Float64[np.ndarray, " H"],
    mean: Float64[np.ndarray, " H"],
) -> Bool[np.ndarray, " H"]:
    """Return which entries are known to lie beyond a limit, as they are predicted to."""
    if aux is None or density.aux != "censored":
        return np.zeros(len(y), bool)
    return np.asarray(((aux < 0) & (mean < y)) | ((aux > 0) & (mean > y)))


def _log_alone(
    density: Likelihood,
    y: Float64[np.ndarray, " H"],
    features: Integer[np.ndarray, " H"],
    aux: Float64[np.ndarray, " H"] | None,
    x: Float64[np.ndarray, " D"],
    phi: Float64[np.ndarray, "P D"],
) -> Float64[np.ndarray, " H"]:
    """Return log p(y) by the likelihood fitted to each feature alone."""
    return np.asarray(density.log_density(y, x[features], phi[:, features], aux))


Total = Callable[[Float64[np.ndarray, " H"]], Float64[np.ndarray, " D"]]


def _merged_scores(
    total: Total,
    y: Float64[np.ndarray, " H"],
    mean: Float64[np.ndarray, " H"],
    sd: Float64[np.ndarray, " H"],
    given: Mapping[str, Float64[np.ndarray, " H"]],
) -> Sums:
    """Return the sums over all observations that Gaussian entries stand for."""
    nothing = np.zeros(len(y))
    w, within, offset = (
        np.nan_to_num(given.get(role, nothing + unknown), nan=unknown)
        for role, unknown in ((WEIGHT, 1.0), (WITHIN, 0.0), (OFFSET, 0.0))
    )
    var, error = np.maximum(sd**2, 1e-12), w * (y - mean) ** 2 + within
    return Sums(
        n=total(w),
        y=total(w * (y - offset)),
        yy=total(w * (y - offset) ** 2 + within),
        squared_error=total(error),
        log_likelihood=total(-0.5 * (w * np.log(2 * np.pi * var) + error / var)),
    )


def _exposure_sums(total: Total, y: Float64[np.ndarray, " H"], t: Float64[np.ndarray, " H"]) -> ExposureSums:
    """Return the sums over counts with exposures; one that is not known is taken for 1, as in predictions."""
    t = np.where(np.isnan(t), 1.0, t)
    log_t = np.log(np.maximum(t, np.finfo(float).tiny))
    return ExposureSums(total(t), total(t * y), total(t * t), total(np.where(y > 0, y * log_t, 0.0)))


def finish_scores(
    sums: Mapping[str, Sums],
    likelihoods: Mapping[str, Likelihood],
    moments: Mapping[str, Mapping[str, ArrayLike]],
) -> dict[str, dict[str, float]]:
    """Return the scores of every view, with those of the feature's shown mean (``baseline_...``) beside them.

    Parameters
    ----------
    sums : mapping of str to Sums
        Over all held-out entries, per view.
    likelihoods : mapping of str to Likelihood
        Of the views.
    moments : mapping of str to mapping
        Per view, ``n_observed``, ``mean`` and ``variance`` of all observed entries of each feature, hidden
        ones included; those of the shown entries follow by subtraction.

    Returns
    -------
    dict of str to dict of str to float
        Per view: ``n_entries``, ``r2`` = 1 - sum (y - yhat)^2 / sum (y - shown mean)^2, ``rmse``,
        ``log_likelihood`` (nats per entry). Bernoulli: ``auc``, ``log_loss`` (nats), ``mnlp`` (bits) and the
        log-loss over the features that fewer than 5 % carry (``rare_log_loss``). Counts: ``deviance``, and
        its share that the model explains (``deviance_explained``).
    """
    return {
        view: _finish(density, sums[view], *_training_moments(sums[view], moments[view]))
        for view, density in likelihoods.items()
        if sums[view].n.sum() > 0
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
    if likelihood.is_binary:
        scores |= _finish_binary(sums, mean, baseline)
    elif sums.levels is not None:
        most = sums.levels.shown.argmax(axis=0)
        scores["accuracy"] = sums.levels.hits / n
        scores["baseline_accuracy"] = float(sums.levels.held_out[most, np.arange(len(most))].sum() / n)
    elif likelihood.discrete and sums.saturated:
        scores["deviance"] = 2 * (sums.saturated - float(sums.log_likelihood.sum())) / n
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
    shown = n - sums.n
    some = shown > 0.5
    mean = total / np.where(some, shown, 1.0)
    variance = np.maximum(squares / np.where(some, shown, 1.0) - mean**2, 0.0)
    if not some.any():
        return np.zeros_like(mean), np.ones_like(mean)
    pooled = total[some].sum() / shown[some].sum()
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
        found = sums.y * np.log(p) + (trials * sums.n - sums.y) * np.log1p(-p)
        return np.asarray(found + sums.log_factor * sums.n / sums.n.sum())
    if likelihood.discrete:
        rate = np.maximum(mean, RATE_FLOOR)
        t = sums.n if sums.exposed is None else sums.exposed.t
        found = sums.y * np.log(rate) - t * rate + sums.log_factor * sums.n / sums.n.sum()
        return np.asarray(found if sums.exposed is None else found + sums.exposed.y_log_t)
    spread = sums.yy - 2 * mean * sums.y + sums.n * mean**2
    var = np.maximum(variance, 1e-12)
    return np.asarray(-0.5 * (sums.n * np.log(2 * np.pi * var) + spread / var))


def _log_likelihood(
    likelihood: Likelihood,
    y: Float64[np.ndarray, " H"],
    mean: Float64[np.ndarray, " H"],
    sd: Float64[np.ndarray, " H"],
) -> Float64[np.ndarray, " H"]:
    """Return log p(y) of each entry in nats, given mean and standard deviation."""
    from factorflow.posterior.predictive import log_density

    if not likelihood.discrete:
        sd = np.sqrt(np.maximum(sd**2, 1e-12))
    elif likelihood.is_binary:
        mean = np.clip(mean, PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    else:
        mean = np.maximum(mean, RATE_FLOOR)
        sd = np.sqrt(mean) if likelihood.name == "poisson" else sd
    return log_density(likelihood, y, mean, sd, {})


def _histogram(y: Float64[np.ndarray, " H"], p: Float64[np.ndarray, " H"]) -> Float64[np.ndarray, "2 bins"]:
    """Return the counts of y = 0 and y = 1 by log-odds of p."""
    tiny = np.finfo(float).tiny
    odds = np.log(np.maximum(p, tiny)) - np.log(np.maximum(1.0 - p, tiny))
    scaled = (np.clip(odds, -LOG_ODDS_LIMIT, LOG_ODDS_LIMIT) / LOG_ODDS_LIMIT + 1.0) * (AUC_BINS / 2)
    bins = np.minimum(scaled.astype(np.int64), AUC_BINS - 1)
    code = bins + AUC_BINS * (y > 0.5)
    return np.bincount(code, minlength=2 * AUC_BINS).astype(float).reshape(2, AUC_BINS)


def _auc(counts: Real[np.ndarray, "2 bins"]) -> tuple[float, float]:
    """Return the share of (0, 1) pairs in the right order, and half the share that one bin holds."""
    zeros, ones = counts
    pairs = zeros.sum() * ones.sum()
    tied = 0.5 * float((zeros * ones).sum())
    below = np.concatenate([[0.0], np.cumsum(zeros)[:-1]])
    return _ratio((ones * below).sum() + tied, pairs), _ratio(tied, pairs)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else float("nan")
