"""Predictive distributions made of mean and standard deviation: probabilities and quantiles of new values.

A measurement is taken for normal, or for Student's t where its degrees of freedom are known. A count is
negative binomial with this mean and variance (the rate is close to a Gamma variable), Poisson where the
variance is no larger than the mean; a binary value has its probability.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from factorflow.design import WEIGHT, WITHIN
from factorflow.shape import Distribution, Likelihood

__all__ = ["below", "interval", "log_count", "log_density", "surprise"]

Array = np.ndarray


def below(
    likelihood: Likelihood, y: Float[Array, ...], mean: Float[Array, ...], sd: Float[Array, ...]
) -> tuple[Float[Array, ...], Float[Array, ...]]:
    """Return P(Y < y) and P(Y = y) of new values, the latter 0 for measurements; NaN where y is.

    Parameters
    ----------
    likelihood : {"gaussian", "bernoulli", "poisson"}
        Of the view.
    y : array
        Values.
    mean, sd : array
        Of a new observation, as `Posterior.predict` gives them.
    """
    from scipy import stats

    y, mean, sd = (np.asarray(x, dtype=float) for x in (y, mean, sd))
    if likelihood == "gaussian":
        return np.asarray(stats.norm.cdf(y, mean, sd)), np.where(np.isnan(y), np.nan, 0.0)
    if likelihood == "bernoulli":
        at = np.where(y > 0.5, mean, 1.0 - mean)
        return np.where(np.isnan(y), np.nan, np.where(y > 0.5, 1.0 - mean, 0.0)), np.where(
            np.isnan(y), np.nan, at
        )
    mean, mixed, size, p = _mixture(mean, sd)
    first = np.where(mixed, stats.nbinom.cdf(y - 1, size, p), stats.poisson.cdf(y - 1, mean))
    at = np.where(mixed, stats.nbinom.pmf(y, size, p), stats.poisson.pmf(y, mean))
    return np.where(np.isnan(y), np.nan, first), np.where(np.isnan(y), np.nan, at)


def _mixture(
    mean: Float[Array, ...], sd: Float[Array, ...]
) -> tuple[Float[Array, ...], Bool[Array, ...], Float[Array, ...], Float[Array, ...]]:
    """Return the mean of counts above 0, where they are negative binomial, and size and probability there."""
    mean = np.maximum(mean, 1e-300)
    extra = sd**2 - mean
    mixed = extra > 1e-9 * mean
    size = mean**2 / np.where(mixed, extra, 1.0)
    return mean, mixed, size, size / (size + mean)


def log_density(
    likelihood: Likelihood,
    y: Float[Array, " E"],
    mean: Float[Array, " E"],
    sd: Float[Array, " E"],
    given: Mapping[str, Float[Array, " E"]],
) -> Float[Array, " E"]:
    """Return log p(Y = y), nats, of new values; a merged measurement counts as all that it stands for.

    Parameters
    ----------
    likelihood : {"gaussian", "bernoulli", "poisson"}
        Of the view.
    y : array
        Values (E of them).
    mean, sd : array
        Of a new observation, as `Posterior.predict` gives them.
    given : mapping of str to array
        What the rows stand for (`Model.given`): ``weight`` and ``within`` of merged measurements.
    """
    from scipy.special import xlog1py, xlogy

    y, mean, sd = (np.asarray(x, dtype=float) for x in (y, mean, sd))
    if likelihood == "bernoulli":
        mean = np.clip(mean, np.finfo(float).tiny, 1.0 - np.finfo(float).epsneg)
        return np.asarray(xlogy(y, mean) + xlog1py(1.0 - y, -mean))
    if likelihood == "gaussian":
        w, within = given.get(WEIGHT, 1.0), given.get(WITHIN, 0.0)
        return np.asarray(-0.5 * (w * np.log(2 * np.pi * sd**2) + (w * (y - mean) ** 2 + within) / sd**2))
    return log_count(y, mean, sd)


def log_count(y: Float[Array, ...], mean: Float[Array, ...], sd: Float[Array, ...]) -> Float[Array, ...]:
    """Return log P(Y = y) of counts of this mean > 0 and standard deviation."""
    from scipy import stats

    mean, mixed, size, p = _mixture(mean, sd)
    return np.where(mixed, stats.nbinom.logpmf(y, size, p), stats.poisson.logpmf(y, mean))


def interval(
    distribution: Distribution,
    share: float,
    mean: Float[Array, ...],
    sd: Float[Array, ...],
    degrees: Float[Array, ...] | None = None,
) -> tuple[Float[Array, ...], Float[Array, ...]]:
    """Return the central interval that holds this share of new values: lower and upper ends, inclusive.

    Parameters
    ----------
    distribution : {"gaussian", "bernoulli", "poisson", "negative_binomial"}
        Of the view.
    share : float
        Between 0 and 1.
    mean, sd : array
        Of a new observation.
    degrees : array, optional
        Of freedom of Student's t with this standard deviation (above 2); none: normal.
    """
    from scipy import stats

    tail = 0.5 * (1.0 - share)
    if distribution == "bernoulli":
        return (mean >= 1.0 - tail).astype(float), (mean > tail).astype(float)
    if distribution in {"poisson", "negative_binomial"}:
        mean, mixed, size, p = _mixture(mean, sd)
        low, high = (
            np.where(mixed, stats.nbinom.ppf(q, size, p), stats.poisson.ppf(q, mean))
            for q in (tail, 1.0 - tail)
        )
        return low, high
    reach = stats.norm.ppf(1.0 - tail)
    if degrees is not None:
        degrees = np.maximum(degrees, 2.01)
        reach = stats.t.ppf(1.0 - tail, degrees) * np.sqrt((degrees - 2.0) / degrees)
    return mean - reach * sd, mean + reach * sd


def surprise(
    likelihood: Likelihood, y: Float[Array, ...], mean: Float[Array, ...], sd: Float[Array, ...]
) -> Float[Array, ...]:
    """Return two-sided predictive p-values: twice the smaller tail, half of P(Y = y) counted to each side."""
    first, at = below(likelihood, y, mean, sd)
    smaller = np.minimum(first, _above(likelihood, y, mean, sd))
    return np.asarray(np.minimum(1.0, 2.0 * smaller + at))


def _above(
    likelihood: Likelihood, y: Float[Array, ...], mean: Float[Array, ...], sd: Float[Array, ...]
) -> Float[Array, ...]:
    """Return P(Y > y): one minus the others has no digits left far above the mean."""
    from scipy import stats

    y, mean, sd = (np.asarray(x, dtype=float) for x in (y, mean, sd))
    if likelihood == "gaussian":
        return np.asarray(stats.norm.sf(y, mean, sd))
    if likelihood == "bernoulli":
        return np.where(y > 0.5, 0.0, mean)
    mean, mixed, size, p = _mixture(mean, sd)
    return np.where(mixed, stats.nbinom.sf(y, size, p), stats.poisson.sf(y, mean))
