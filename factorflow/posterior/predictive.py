"""Predictive distributions made of mean and standard deviation: probabilities and quantiles of new values.

A measurement is taken for normal, or for Student's t where its degrees of freedom are known. A count is
negative binomial with this mean and variance (the rate is close to a Gamma variable), Poisson where the
variance is no larger than the mean; a binary value has its probability. What these are is said in
`factorflow.likelihoods`: here is which x and phi have the mean and the variance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float

from factorflow.core.design import WEIGHT, WITHIN
from factorflow.likelihoods import Likelihood, get_likelihood

Array = np.ndarray

Method = Callable[[Likelihood, Array, Array], tuple[Array, ...]]
"""Something of a likelihood at x and phi."""


def tails(
    likelihood: Likelihood | str, y: Float[Array, ...], mean: Float[Array, ...], sd: Float[Array, ...]
) -> tuple[Float[Array, ...], Float[Array, ...], Float[Array, ...]]:
    """Return P(Y < y), P(Y > y) and P(Y = y) of new values, the last 0 for measurements; NaN where y is.

    Parameters
    ----------
    mean, sd : array
        Of a new observation, as `Posterior.predict` gives them.
    """
    y, mean, sd = (np.asarray(x, dtype=float) for x in (y, mean, sd))

    def of(density: Likelihood, x: Array, phi: Array) -> tuple[Array, ...]:
        at = np.exp(density.log_density(y, x, phi)) if density.discrete else np.where(np.isnan(y), y, 0.0)
        return *density.tails(y, x, phi), at

    first, last, at = _match_moments(likelihood, mean, sd, of)
    return first, last, at


def with_exposure(
    mean: Float[Array, ...], sd: Float[Array, ...], times: float
) -> tuple[Float[Array, ...], Float[Array, ...]]:
    """Return mean and standard deviation of counts of so many times the rate: what exceeds Poisson's scales.

    Parameters
    ----------
    mean, sd : array
        Of a new observation.
    times : float
        What rates are multiplied by.
    """
    if times == 1.0:
        return mean, sd
    extra = np.maximum(sd**2 - mean, 0.0)
    return times * mean, np.sqrt(times * mean + times**2 * extra)


def two_sided(first: Float[Array, ...], last: Float[Array, ...], at: Float[Array, ...]) -> Float[Array, ...]:
    """Return p-values, given `tails`: twice the smaller one, half of P(Y = y) counted to each side."""
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(first, last) + at))


def _match_moments(
    likelihood: Likelihood | str, mean: Float[Array, ...], sd: Float[Array, ...], of: Method
) -> tuple[Float[Array, ...], ...]:
    """Return something of the likelihood that has this mean and standard deviation.

    Of measurements a normal one, of counts without a largest a negative binomial one.
    """
    none = np.empty(0)
    density = get_likelihood(likelihood) if isinstance(likelihood, str) else likelihood
    if not density.discrete:
        with np.errstate(divide="ignore"):
            return of(get_likelihood("gaussian"), mean, np.log(sd)[None])
    if np.isfinite(density.largest):
        share = np.clip(mean / density.largest, np.finfo(float).tiny, 1.0 - np.finfo(float).epsneg)
        return of(density, np.log(share) - np.log1p(-share), none)
    mean = np.maximum(mean, 1e-300)
    extra = sd**2 - mean
    mixed = extra > 1e-9 * mean
    size = mean**2 / np.where(mixed, extra, mean)
    x = np.log(mean)
    of_mixed = of(get_likelihood("negative_binomial"), x, np.log(size)[None])
    of_poisson = of(get_likelihood("poisson"), x, none)
    return tuple(np.where(mixed, *pair) for pair in zip(of_mixed, of_poisson, strict=True))


def log_density(
    likelihood: Likelihood | str,
    y: Float[Array, " E"],
    mean: Float[Array, " E"],
    sd: Float[Array, " E"],
    values: Mapping[str, Float[Array, " E"]],
) -> Float[Array, " E"]:
    """Return log p(Y = y), nats, of new values; a merged measurement counts as all that it stands for.

    Parameters
    ----------
    y : array
        Values (E of them).
    mean, sd : array
        Of a new observation, as `Posterior.predict` gives them.
    values : mapping of str to array
        What the rows stand for (`Model.row_roles`): ``weight`` and ``within`` of merged measurements.
    """
    y, mean, sd = (np.asarray(x, dtype=float) for x in (y, mean, sd))
    if {WEIGHT, WITHIN} & set(values):
        w, within = values.get(WEIGHT, 1.0), values.get(WITHIN, 0.0)
        return np.asarray(-0.5 * (w * np.log(2 * np.pi * sd**2) + (w * (y - mean) ** 2 + within) / sd**2))
    return _match_moments(likelihood, mean, sd, lambda density, x, phi: (density.log_density(y, x, phi),))[0]


def interval(
    likelihood: Likelihood | str,
    share: float,
    mean: Float[Array, ...],
    sd: Float[Array, ...],
    degrees: Float[Array, ...] | None = None,
) -> tuple[Float[Array, ...], Float[Array, ...]]:
    """Return the central interval that holds this share of new values: lower and upper ends, inclusive.

    Parameters
    ----------
    degrees : array, optional
        Of freedom of Student's t with this standard deviation (above 2); none: normal.
    """
    tail = 0.5 * (1.0 - share)
    if degrees is not None:
        from scipy.special import stdtrit

        degrees = np.maximum(degrees, 2.01)
        reach = stdtrit(degrees, 1.0 - tail) * np.sqrt((degrees - 2.0) / degrees) * sd
        return mean - reach, mean + reach
    low, high = _match_moments(
        likelihood,
        np.asarray(mean, float),
        np.asarray(sd, float),
        lambda density, x, phi: (density.draw(tail, x, phi), density.draw(1.0 - tail, x, phi)),
    )
    return low, high
