"""Predictive distributions made of mean and standard deviation: probabilities and quantiles of new values.

A measurement is taken for normal. A count is negative binomial with this mean and variance (the rate is close
to a Gamma variable), Poisson where the variance is no larger than the mean; a binary value has its
probability.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from factorflow.shape import Likelihood

__all__ = ["below", "surprise"]

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
    mean = np.maximum(mean, 1e-300)
    extra = sd**2 - mean
    mixed = extra > 1e-9 * mean
    size = mean**2 / np.where(mixed, extra, 1.0)
    p = size / (size + mean)
    first = np.where(mixed, stats.nbinom.cdf(y - 1, size, p), stats.poisson.cdf(y - 1, mean))
    at = np.where(mixed, stats.nbinom.pmf(y, size, p), stats.poisson.pmf(y, mean))
    return np.where(np.isnan(y), np.nan, first), np.where(np.isnan(y), np.nan, at)


def surprise(
    likelihood: Likelihood, y: Float[Array, ...], mean: Float[Array, ...], sd: Float[Array, ...]
) -> Float[Array, ...]:
    """Return two-sided predictive p-values: twice the smaller tail, half of P(Y = y) counted to each side."""
    first, at = below(likelihood, y, mean, sd)
    tail = first + 0.5 * at
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(tail, 1.0 - tail)))
