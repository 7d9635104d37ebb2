"""The predictive distribution: a likelihood averaged over the uncertainty of its predictor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from factorflow.core.block import Array
from factorflow.likelihoods.base import LARGEST, Likelihood

REACH = 6.0
"""Standard deviations of x on either side of its mean that are looked at."""

SHORTEST = 1 / 32
"""Shortest step between nodes, in standard deviations of x."""

NEWTON = 40
"""Steps to a quantile at most; a few are taken, and halves where a quarter of them does not do."""

LEAST_ALIVE = 1e-300
"""Least probability of being without an event: where all are less, nodes weigh as they do before the time."""

CLOSE = 1e-7
"""Probability to which a quantile of measurements is found."""


@dataclass(frozen=True)
class Predictive:
    """Distribution of new observations y ~ p(y | x, phi), x ~ N(mean, variance).

    By the trapezoidal rule in x, whose error falls with exp(-2 pi^2 (width / step)^2): steps are as long as
    the product of likelihood and N(x) is wide.

    Parameters
    ----------
    mean, variance : array
        Of x, any shape.
    phi : array
        Nuisance parameters, (P, ...).
    aux : array or None
        What entries have beside their values (`Likelihood.aux`).
    """

    likelihood: Likelihood
    mean: Float[Array, ...]
    variance: Float[Array, ...]
    phi: Float[Array, "P ..."]
    aux: Float[Array, ...] | None = None

    def at(self, entries: Any) -> Predictive:
        """Return the distribution of some entries, as an index of (B, D) arrays names them."""
        phi = [np.broadcast_to(row, np.shape(self.mean))[entries] for row in self.phi]
        picked = np.stack(phi) if phi else np.empty((0, 1))
        aux = None if self.aux is None else self.aux[entries]
        return Predictive(self.likelihood, self.mean[entries], self.variance[entries], picked, aux)

    def with_exposure(self, times: float) -> Predictive:
        """Return the distribution of counts of so many times the rate (`Likelihood.log_link`)."""
        return replace(self, mean=self.mean + np.log(times))

    def mean_and_sd(self) -> tuple[Float[Array, ...], Float[Array, ...]]:
        """Return mean and standard deviation of y."""
        mean, square = self.likelihood.predict(self.mean, self.variance, self.phi, self.aux)
        return mean, np.sqrt(square)

    def log_density(self, y: Float[Array, ...]) -> Float[Array, ...]:
        """Return log p(y), nats: the logarithm of the mean over x."""
        total: Array = -np.inf
        with np.errstate(divide="ignore"):  # of nodes that other entries have
            for x, weight in self._places():
                total = np.logaddexp(
                    total, np.log(weight) + self.likelihood.log_kernel(y, x, self.phi, self.aux)
                )
        return np.asarray(total + self.likelihood.log_factor(y, self.phi, self.aux))

    def tails(self, y: Float[Array, ...]) -> tuple[Float[Array, ...], Float[Array, ...]]:
        """Return P(Y < y) and P(Y > y)."""
        low, high = 0.0, 0.0
        for x, weight in self._places():
            below, above = self.likelihood.tails(y, x, self.phi, self.aux)
            low, high = low + weight * below, high + weight * above
        return np.asarray(low), np.asarray(high)

    def mean_and_sd_after(self, y: Float[Array, ...]) -> tuple[Float[Array, ...], Float[Array, ...]]:
        """Return mean and standard deviation of times, given that they are after y."""
        total, mean, square = 0.0, 0.0, 0.0
        for x, weight in self._places():
            alive = weight * np.maximum(self.likelihood.tails(y, x, self.phi, self.aux)[1], LEAST_ALIVE)
            after, variance = self.likelihood.moments_after(y, x, self.phi)
            total, mean = total + alive, mean + alive * after
            square = square + alive * (variance + after**2)
        mean = mean / total
        return np.asarray(mean), np.sqrt(np.maximum(square / total - mean**2, 0.0))

    def interval(self, share: float) -> tuple[Float[Array, ...], Float[Array, ...]]:
        """Return the central interval that holds this share of new observations: ends, inclusive."""
        tail = 0.5 * (1.0 - share)
        return self._quantile(tail), self._quantile(1.0 - tail)

    def _places(self) -> list[tuple[Array, Array]]:
        """Return nodes and weights; those of an entry do not depend on the other entries."""
        sd = np.sqrt(self.variance)
        near_and_far = [
            self.likelihood.information(self.mean + t * sd, self.phi, self.aux) for t in (-4.0, 0.0, 4.0)
        ]
        information = np.maximum.reduce(np.broadcast_arrays(*near_and_far))
        step = np.maximum((1.0 + self.variance * information) ** -0.5, SHORTEST)
        n_steps = np.rint(REACH / step)
        most = int(n_steps.max(initial=0.0))
        numbers = np.arange(-most, most + 1)
        weights = [np.where(abs(i) <= n_steps, np.exp(-0.5 * (i * step) ** 2), 0.0) for i in numbers]
        total = sum(weights)
        at = (np.clip(i * step, -REACH, REACH) for i in numbers)  # no further where other entries have nodes
        return [(self.mean + t * sd, w / total) for t, w in zip(at, weights, strict=True)]

    def _quantile(self, share: float) -> Float[Array, ...]:
        """Return the smallest y with P(Y <= y) >= share.

        By halves of the logarithm of counts, of measurements by Newton's method, then by halves. Quantiles
        rise with x, or fall, so it lies between those at the outermost nodes.
        """
        from scipy.special import ndtri

        reach = REACH * np.sqrt(self.variance)
        ends = (self.mean - reach, self.mean + reach)
        at_ends = [self.likelihood.draw(share, x, self.phi, self.aux) for x in ends]
        low, high = np.minimum(*at_ends), np.maximum(*at_ends)
        if not self.likelihood.discrete:  # where entries end there are none, but for rounding
            first, last = self.likelihood.smallest, self.likelihood.largest
            inside = np.nextafter(first, np.inf), np.nextafter(last, -np.inf)
            low, high = np.clip(low, *inside), np.clip(high, *inside)
        mean, sd = self.mean_and_sd()
        low, high, y = map(np.array, np.broadcast_arrays(low, high, mean + ndtri(share) * sd))
        y, left = y.clip(low, high), np.ones(np.shape(y), bool)
        for step in range(NEWTON):
            of_left, below, above = self.at(left), low[left], high[left]
            here = _between(below, above) if self.likelihood.discrete else y[left]
            excess = 1.0 - of_left.tails(here)[1] - share
            below = np.where(excess < 0.0, here + self.likelihood.discrete, below)
            above = np.where(excess < 0.0, above, here)
            low[left], high[left] = below, above
            if self.likelihood.discrete:
                far = below < above
            else:
                far = np.abs(excess) >= CLOSE
                log_density = np.clip(of_left.log_density(here), -LARGEST, LARGEST)  # halves beyond
                nearer = here - excess / np.exp(log_density)
                inside = (nearer > below) & (nearer < above) & (step < NEWTON / 4)
                y[left] = np.where(far, np.where(inside, nearer, _middle(below, above)), here)
            left[left] = far
            if not far.any():
                break
        return high if self.likelihood.discrete else y


def _middle(below: Float[Array, " n"], above: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return numbers between: of two above 0, which may be of any size, those of the mean logarithm."""
    geometric = np.sqrt(np.maximum(below, 0.0)) * np.sqrt(np.maximum(above, 0.0))
    return np.asarray(np.where(below > 0.0, geometric, 0.5 * (below + above)))


def _between(below: Float[Array, " n"], above: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return counts from ``below`` to ``above`` - 1: those that halve the range of log (1 + y)."""
    middle = np.floor(np.expm1(0.5 * (np.log1p(below) + np.log1p(above))))
    return np.asarray(np.maximum(np.minimum(middle, above - 1.0), below))
