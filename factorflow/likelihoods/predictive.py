"""The distribution of new observations: a likelihood, averaged over what is not known of its predictor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from factorflow.likelihoods.base import Likelihood
from factorflow.shape import Array

__all__ = ["Predictive"]

REACH = 8.0
"""Standard deviations of x on either side of its mean that are looked at."""

STEPS = 1 / 32, 1 / 2
"""Shortest and longest step between nodes, in standard deviations of x."""

HALVINGS = 24
"""Halvings, at most, of the range in which a quantile lies: to 1e-6 standard deviations."""


@dataclass(frozen=True)
class Predictive:
    """Distribution of new observations y ~ p(y | x, phi), x ~ N(mean, variance).

    By the trapezoidal rule in x, whose error falls with exp(-pi^2 (width / step)^2): steps
    are no longer than the likelihood is wide as a function of x, and at most half a standard deviation of x.

    Parameters
    ----------
    likelihood : Likelihood
        Of the entries.
    mean, variance : array
        Of x, any shape.
    phi : array
        Nuisance parameters, (P, ...).
    """

    likelihood: Likelihood
    mean: Float[Array, ...]
    variance: Float[Array, ...]
    phi: Float[Array, "P ..."]

    def at(self, entries: Any) -> Predictive:
        """Return the distribution of some entries, as an index of (B, D) arrays names them."""
        shape = np.shape(self.mean)
        phi = np.broadcast_to(self.phi, (len(self.phi), *shape)) if len(self.phi) else np.empty((0, 1))
        picked = np.stack([row[entries] for row in phi]) if len(self.phi) else phi
        return Predictive(self.likelihood, self.mean[entries], self.variance[entries], picked)

    def mean_and_sd(self) -> tuple[Float[Array, ...], Float[Array, ...]]:
        """Return mean and standard deviation of y."""
        mean, square = self.likelihood.predict(self.mean, self.variance, self.phi)
        return mean, np.sqrt(square)

    def log_density(self, y: Float[Array, ...]) -> Float[Array, ...]:
        """Return log p(y), nats: the logarithm of the mean over x."""
        total: Array = -np.inf
        for x, weight in self._places():
            total = np.logaddexp(total, np.log(weight) + self.likelihood.log_kernel(y, x, self.phi))
        return np.asarray(total + self.likelihood.log_factor(y, self.phi))

    def tails(self, y: Float[Array, ...]) -> tuple[Float[Array, ...], Float[Array, ...]]:
        """Return P(Y < y) and P(Y > y)."""
        low, high = 0.0, 0.0
        for x, weight in self._places():
            below, above = self.likelihood.tails(y, x, self.phi)
            low, high = low + weight * below, high + weight * above
        return np.asarray(low), np.asarray(high)

    def interval(self, share: float) -> tuple[Float[Array, ...], Float[Array, ...]]:
        """Return the central interval that holds this share of new observations: ends, inclusive."""
        tail = 0.5 * (1.0 - share)
        return self._quantile(tail), self._quantile(1.0 - tail)

    def _places(self) -> list[tuple[Array, float]]:
        sd = np.sqrt(self.variance)
        known = self.likelihood.information(self.mean + 3.0 * sd, self.phi)
        widest = float(np.sqrt(np.max(self.variance * known, initial=0.0)))
        step = float(np.clip(1.0 / max(widest, 1e-12), *STEPS))
        t = step * np.arange(-round(REACH / step), round(REACH / step) + 1)
        weights = np.exp(-0.5 * t**2)
        return [(self.mean + a * sd, w) for a, w in zip(t, weights / weights.sum(), strict=True)]

    def _quantile(self, share: float) -> Float[Array, ...]:
        """Return the smallest y with P(Y <= y) >= share: quantiles rise with x."""
        places = self._places()
        low, high = (self.likelihood.draw(share, x, self.phi) for x, _ in (places[0], places[-1]))
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            middle = np.floor(middle) if self.likelihood.discrete else middle
            reached = 1.0 - self.tails(middle)[1] >= share
            low = np.where(reached, low, middle + self.likelihood.discrete)
            high = np.where(reached, middle, high)
            if (low >= high).all():
                break
        return high
