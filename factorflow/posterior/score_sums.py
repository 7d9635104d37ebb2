"""Sums over held-out entries, which merge by addition, so that no entry ever leaves its block.

Everything a score needs is a sum over entries, kept per feature; `factorflow.posterior.scoring` makes scores
of them. AUC needs ranks; it is computed from a histogram of the predicted log-odds.

| symbol | field |
|---|---|
| number of entries, sum of y, sum of y^2 | ``Sums.n``, ``Sums.y``, ``Sums.yy`` (D,) |
| sum of (y - yhat)^2, of log p(y) | ``Sums.squared_error``, ``Sums.log_likelihood`` (D,) |
| counts of y = 0 and y = 1 per bin | ``Sums.histogram`` (2, `AUC_BINS`) |

Rows of a table may stand for several observations, or have been watched for longer (`Model.row_roles`).
A merged measurement, w observations with mean y and squares ``within`` about it, counts as all of them, less
its offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float64, Integer, Shaped

from factorflow.core.design import EXPOSURE, OFFSET, WEIGHT, WITHIN
from factorflow.core.trees import Gather
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.likelihoods import Likelihood, get_likelihood

if TYPE_CHECKING:
    from factorflow.core.block import Likelihood as KindName
    from factorflow.likelihoods.predictive import Predictive

AUC_BINS = 2**14
"""Bins of equal width in log-odds. Pairs that fall into one bin count one half each, so AUC is off by at most
half the share of such pairs; that bound is reported as ``auc_error`` (about 1e-4 or less in practice)."""

LOG_ODDS_LIMIT = 16.0
"""Log-odds are clipped here (probabilities within 1.1e-7 of 0 or 1 share the outermost bins)."""

PROBABILITY_FLOOR = 1e-4
"""Predicted probabilities are clipped to [floor, 1 - floor] before their logarithm is taken."""

RATE_FLOOR = 1e-4
"""Smallest rate that a count is scored with."""


@dataclass(frozen=True)
class TrainingSums:
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
    log_factor, saturated : float
        Of counts, sum of `Likelihood.log_factor` (of dispersed ones Poisson's), and the log-likelihood of
        expected values equal to the counts.
    of_rates : float or None
        Of dispersed counts whose baseline is a Poisson rate: their log-likelihood as Poisson counts, by which
        deviances go.
    histogram : array or None
        Entries with y = 0 and y = 1 by predicted log-odds (Bernoulli).
    alone : array or None
        Sum of log p(y) by the likelihood fitted to each feature alone (`Model.alone`); None: by moments.
    shown : TrainingSums or None
        Of tables and split counts; None: the moments of the dataset tell.
    ranked : Gather or None
        The entries themselves, of a view of one feature: ``y``, ``event`` and ``predicted``.
    """

    n: Float64[np.ndarray, " D"]
    y: Float64[np.ndarray, " D"]
    yy: Float64[np.ndarray, " D"]
    squared_error: Float64[np.ndarray, " D"]
    log_likelihood: Float64[np.ndarray, " D"]
    log_factor: float = 0.0
    saturated: float = 0.0
    of_rates: float | None = None
    histogram: Float64[np.ndarray, "2 bins"] | None = None
    levels: LevelSums | None = None
    alone: Float64[np.ndarray, " D"] | None = None
    exposed: ExposureSums | None = None
    shown: TrainingSums | None = None
    ranked: Gather | None = None


def ranked_entries(
    likelihood: Likelihood,
    number: int,
    y: Shaped[np.ndarray, " H"],
    mean: Shaped[np.ndarray, " H"],
    predictive: Predictive | None,
) -> Gather:
    """Return the held-out entries of the only feature of a view, for scores by their order.

    Parameters
    ----------
    y, mean : arrays
        Values and predicted means of the held-out entries (H of them).
    """
    event, predicted = np.ones(len(y)), np.asarray(mean, float)
    if likelihood.is_time and predictive is not None:
        predicted = np.asarray(predictive.mean, float)  # x: the risk
        event = event if predictive.aux is None else (np.asarray(predictive.aux) == 0).astype(float)
    values = {"y": np.asarray(y, float), "event": event, "predicted": predicted}
    return Gather(np.full(len(y), number), values)


def training_sums(
    likelihood: KindName,
    y: Shaped[np.ndarray, "B D"] | SparseRows,
    inputs: Mapping[str, Float64[np.ndarray, " B"]],
) -> TrainingSums:
    """Return the sums over the shown rows of a block of a table, or over the shown parts of counts.

    Parameters
    ----------
    y : array or SparseRows
        Its values; NaN where they are missing or hidden. Of rows by entries no inputs are taken.
    inputs : mapping of str to array
        What the rows stand for, see `Model.row_roles`; rows of unknown or no exposure or weight are left out.
    """
    if isinstance(y, SparseRows):
        counts = y.entries.astype(np.float64)
        total, squares = (np.bincount(y.columns, part, y.n_features) for part in (counts, counts**2))
        return TrainingSums(y.n_observed(), total, squares)
    poisson, ones = likelihood == "poisson", np.ones(len(y))
    n = np.asarray(inputs.get(EXPOSURE if poisson else WEIGHT, ones))[:, None]
    values = np.asarray(y, float) - np.asarray(inputs.get(OFFSET, 0.0 * ones))[:, None]
    observed = ~np.isnan(values) & (n > 0)
    n, values = np.where(observed, n, 0.0), np.where(observed, values, 0.0)
    within = np.where(observed, np.asarray(inputs.get(WITHIN, 0.0 * ones))[:, None], 0.0)
    times = np.where(observed, 1.0, 0.0) if poisson else n
    return TrainingSums(n.sum(axis=0), (times * values).sum(axis=0), (times * values**2 + within).sum(axis=0))


def level_sums(
    n_levels: int,
    values: Shaped[np.ndarray, "B D"],
    features: Integer[np.ndarray, " H"],
    y: Shaped[np.ndarray, " H"],
    predictive: Predictive,
) -> LevelSums:
    """Return the sums over entries that are levels of a block.

    Parameters
    ----------
    n_levels : int
        Levels (L).
    values : array
        The block; NaN where entries are missing or hidden.
    features, y : arrays
        Features and values of the held-out entries (H of them).
    """
    n_features = values.shape[1]
    counts = [np.bincount(features, y == level, minlength=n_features) for level in range(n_levels)]
    likely = np.stack([predictive.log_density(np.full(len(y), float(level))) for level in range(n_levels)])
    hits = float((likely.argmax(axis=0) == y).sum())
    of_shown = [(values == level).sum(axis=0) for level in range(n_levels)]
    return LevelSums(np.array(counts, float), np.array(of_shown, float), hits)


def entry_scores(
    likelihood: Likelihood | str,
    n_features: int,
    features: Integer[np.ndarray, " H"],
    y: Shaped[np.ndarray, " H"],
    mean: Shaped[np.ndarray, " H"],
    sd: Shaped[np.ndarray, " H"],
    inputs: Mapping[str, Float64[np.ndarray, " H"]] | None = None,
    predictive: Predictive | None = None,
    alone: tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, "P D"]] | None = None,
) -> Sums:
    """Return the sums of some held-out entries (H of them) of one view.

    Parameters
    ----------
    n_features : int
        Features of the view (D).
    mean, sd : arrays
        Predicted mean on the data scale and standard deviation of a new observation.
    inputs : mapping of str to array, optional
        Of a table, what the row of each entry stands for, see `Model.row_roles`.
    predictive : Predictive, optional
        Distribution of the entries; None: that of the likelihood with this mean and standard deviation.
    alone : (D,) and (P, D) array, optional
        Predictor and nuisance parameters of the likelihood fitted to each feature alone.
    """
    y, mean = np.asarray(y, float), np.asarray(mean, float)
    inputs = inputs or {}
    density = get_likelihood(likelihood) if isinstance(likelihood, str) else likelihood

    def total(values: Float64[np.ndarray, " H"]) -> Float64[np.ndarray, " D"]:
        return np.bincount(features, values, minlength=n_features).astype(float)

    if not density.discrete and inputs:
        return _merged_scores(total, y, mean, np.asarray(sd, float), inputs)
    if predictive is None or density.is_binary:
        log_likelihood = _log_likelihood(density, y, mean, np.asarray(sd, float), inputs.get(EXPOSURE, 1.0))
    else:
        log_likelihood = predictive.log_density(y)
    log_factor, saturated, of_rates, aux = 0.0, 0.0, None, None if predictive is None else predictive.aux
    if density.discrete and not density.is_binary and not density.levels and aux is None:
        plain = density if np.isfinite(density.largest) else get_likelihood("poisson")
        log_factor = float(plain.log_factor(y, np.empty((0, 1))).sum())
        best = y * np.log(np.maximum(y, 1.0)) - y
        if np.isfinite(density.largest):
            left = density.largest - y
            best = best + y + left * np.log(np.maximum(left, 1.0)) - density.largest * np.log(density.largest)
        saturated = float(best.sum()) + log_factor
        if predictive is None and alone is None and plain is not density:
            exposure = inputs.get(EXPOSURE, 1.0)
            of_rates = float(_log_likelihood(plain, y, mean, np.asarray(sd, float), exposure).sum())
    of_alone = None
    if alone is not None:
        x, phi = alone
        of_alone = total(np.asarray(density.log_density(y, x[features], phi[:, features], aux)))
    return Sums(
        n=np.bincount(features, minlength=n_features).astype(float),
        y=total(y),
        yy=total(y * y),
        squared_error=total((y - mean) ** 2 * ~_beyond(density, aux, y, mean)),
        log_likelihood=total(log_likelihood),
        log_factor=log_factor,
        saturated=saturated,
        of_rates=of_rates,
        alone=of_alone,
        histogram=_histogram(y, mean) if density.is_binary else None,
        exposed=_exposure_sums(total, y, inputs[EXPOSURE]) if EXPOSURE in inputs else None,
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


Total = Callable[[Float64[np.ndarray, " H"]], Float64[np.ndarray, " D"]]


def _merged_scores(
    total: Total,
    y: Float64[np.ndarray, " H"],
    mean: Float64[np.ndarray, " H"],
    sd: Float64[np.ndarray, " H"],
    inputs: Mapping[str, Float64[np.ndarray, " H"]],
) -> Sums:
    """Return the sums over all observations that Gaussian entries stand for."""
    nothing = np.zeros(len(y))
    w, within, offset = (
        np.nan_to_num(inputs.get(role, nothing + unknown), nan=unknown)
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


def _log_likelihood(
    likelihood: Likelihood,
    y: Float64[np.ndarray, " H"],
    mean: Float64[np.ndarray, " H"],
    sd: Float64[np.ndarray, " H"],
    exposure: Float64[np.ndarray, " H"] | float,
) -> Float64[np.ndarray, " H"]:
    """Return log p(y) of each entry in nats, given mean and standard deviation."""
    from factorflow.posterior.predictive import log_density

    if not likelihood.discrete:
        sd = np.sqrt(np.maximum(sd**2, 1e-12))
    elif likelihood.is_binary:
        mean = np.clip(mean, PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    else:
        mean = np.maximum(mean, RATE_FLOOR * np.nan_to_num(exposure, nan=1.0))
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
