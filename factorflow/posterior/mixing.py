"""R-hat and effective sample sizes of many variables at once.

`factorflow.posterior.diagnostics` gives those of every entry, by arviz-stats. These are the same quantities
(Vehtari et al. 2021, Bayesian Analysis 16, 667-718: rank-normalised, split; R-hat the larger one of bulk and
tail), for all entries in a few array operations, quick enough for every posterior that is shown.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float64

Array = np.ndarray


def normal_scores(draws: Float[Array, "C M E"]) -> Float64[Array, "C2 half E"]:
    """Return normal scores of the ranks over all chains, of halves of chains: what the others go by.

    Parameters
    ----------
    draws : array
        M draws of C chains, at least four.
    """
    return _normal_scores(_split(draws))


def rank_rhat(
    draws: Float[Array, "C M E"], scores: Float64[Array, "C2 half E"] | None = None
) -> Float64[Array, " E"]:
    """Return rank-normalised split R-hat of E variables; NaN of those that never change.

    Parameters
    ----------
    draws : array
        M draws of C chains, at least four.
    """
    scores = normal_scores(draws) if scores is None else scores
    folded = np.abs(draws - np.median(draws, axis=(0, 1)))
    return np.asarray(np.fmax(_rhat(scores), _rhat(normal_scores(folded))))


def effective_sizes(
    draws: Float[Array, "C M E"],
    scores: Float64[Array, "C2 half E"] | None = None,
    *,
    within_chains: bool = False,
) -> Float64[Array, " E"]:
    """Return bulk effective sample sizes of E variables; NaN of those that never change.

    Parameters
    ----------
    draws : array
        M draws of C chains, at least four.
    within_chains : bool
        By the autocorrelation within half chains alone, whatever lies between them: as if they had mixed.
    """
    x = normal_scores(draws) if scores is None else scores
    n_chains, n, _ = x.shape
    within, above = _spreads(x)
    above = within if within_chains else above
    centred = x - x.mean(axis=1, keepdims=True)
    power = np.abs(np.fft.rfft(centred, 2 * n, axis=1)) ** 2
    lagged = np.fft.irfft(power, 2 * n, axis=1)[:, :n].mean(axis=0) / (n - 1)
    rho = 1.0 - (within - lagged) / above
    rho[0] = 1.0
    pairs = rho[: n - n % 2].reshape(n // 2, 2, -1).sum(axis=1)
    positive = np.logical_and.accumulate(pairs > 0.0, axis=0)
    monotone = np.where(positive, np.minimum.accumulate(pairs, axis=0), 0.0)  # Geyer's monotone sequence
    time = np.maximum(2.0 * monotone.sum(axis=0) - 1.0, 1.0 / np.log10(n_chains * n))
    return np.asarray(n_chains * n / np.where(within > 0.0, time, np.nan))


def _split(draws: Float[Array, "C M E"]) -> Float[Array, "C2 half E"]:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _normal_scores(x: Float[Array, "C M E"]) -> Float64[Array, "C M E"]:
    """Return normal scores of the ranks over all chains, those of equal values their mean rank.

    As `scipy.stats.rankdata`, whose module takes most of a second to be imported.
    """
    from scipy.special import ndtri

    values = np.ascontiguousarray(x.reshape(x.shape[0] * x.shape[1], x.shape[2]).T)
    order = values.argsort(axis=1)
    values = np.take_along_axis(values, order, axis=1)
    n = values.shape[1]
    first, last = np.zeros(values.shape, np.int32), np.full(values.shape, n - 1, np.int32)
    begins, places = values[:, 1:] != values[:, :-1], np.arange(1, n, dtype=np.int32)
    np.maximum.accumulate(begins * places, axis=1, out=first[:, 1:])
    ends = np.where(begins, places - 1, n - 1)[:, ::-1]
    last[:, -2::-1] = np.minimum.accumulate(ends, axis=1)
    scores = ndtri((np.arange(2 * n - 1) / 2 + 0.625) / (n + 0.25))  # of twice a rank from 0
    out = np.empty(values.shape)  # of float64, whatever the draws are
    np.put_along_axis(out, order, scores[first + last], axis=1)
    return np.asarray(out.T.reshape(x.shape))


def _spreads(x: Float64[Array, "C M E"]) -> tuple[Float64[Array, " E"], Float64[Array, " E"]]:
    """Return the variance within chains, and the pooled one that is above it."""
    n = x.shape[1]
    within = x.var(axis=1, ddof=1).mean(axis=0)
    return within, (n - 1) / n * within + x.mean(axis=1).var(axis=0, ddof=1)


def _rhat(x: Float64[Array, "C M E"]) -> Float64[Array, " E"]:
    within, above = _spreads(x)
    return np.sqrt(above / np.where(within > 0.0, within, np.nan))
