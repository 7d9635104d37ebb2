"""alpha and theta of spike-and-slab loadings at their optimum, given the messages of the entries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.core.threads import allowed_threads, map_in_threads
from factorflow.kernels.special import beta_term, digamma, gamma_term, logistic
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.weights import Weights

INNER = 3
"""Steps of alpha and theta at fixed messages, of two iterations each. Always as many: an end that rounding
decides would show in the fourth digit of a fit."""
SMALL = 1 << 18
"""Loadings that are not worth a second thread."""
FURTHEST = 30.0
"""Longest extrapolation, in first steps."""


@dataclass(frozen=True)
class Shares:
    """q(theta) of each class of loadings (H), its prior, and which loadings are in the second class.

    ``inside`` is None where there is one class.
    """

    on: Float64[np.ndarray, "H K"]
    off: Float64[np.ndarray, "H K"]
    prior_on: Float64[np.ndarray, "H K"] | float
    prior_off: Float64[np.ndarray, "H K"] | float
    inside: Bool[np.ndarray, "D K"] | None = None

    def of(self, columns: slice) -> Shares:
        """Return those of some factors."""
        parts = (part[:, columns] if isinstance(part, np.ndarray) else part for part in vars(self).values())
        return Shares(*parts)

    def of_loadings(self, values: Float64[Array, "H K"]) -> Float64[Array, "#D K"]:
        """Return the value of the class of each loading."""
        return values[:1] if self.inside is None else np.where(self.inside, values[1], values[0])

    def sums(self, values: Float64[Array, "D K"]) -> Float64[Array, "H K"]:
        """Return the sum over the loadings of each class."""
        if self.inside is None:
            return values.sum(axis=0)[None]
        inside = np.where(self.inside, values, 0.0).sum(axis=0)
        return np.stack([np.where(self.inside, 0.0, values).sum(axis=0), inside])


def optimal_slab(
    alpha_prior: tuple[float, float],
    weights: Weights,
    alpha: Float64[Array, " K"],
    used: Float64[Array, " K"],
    shares: Shares,
) -> tuple[Float64[Array, " K"], Float64[Array, " K"], Float64[Array, "H K"], Float64[Array, "H K"]]:
    """Return q(alpha), shape and rate, and q(theta), on and off: see `hyperparameters`.

    Parameters
    ----------
    alpha_prior : (float, float)
        Shape and rate.
    weights : Weights
        After a pass.
    alpha, used : array
        Expectations of alpha: where the search begins, and what the loadings were updated with.
    shares : Shares
        Where the search begins.
    """
    n_factors = len(alpha)
    n_parts = max(1, min(allowed_threads(), n_factors // 2)) if weights.mean.size > SMALL else 1

    def optimum(columns: slice) -> tuple[Float64[Array, ...], ...]:
        mean, variance = weights.mean[:, columns], weights.variance[:, columns]
        return _optimum(alpha_prior, mean, variance, alpha[columns], used[columns], shares.of(columns))

    ends = [i * n_factors // n_parts for i in range(n_parts + 1)]
    parts = map_in_threads(optimum, [slice(*pair) for pair in pairwise(ends)])
    a, b, t, u = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
    return a, b, t, u


def _optimum(
    alpha_prior: tuple[float, float],
    mean: Float64[Array, "D K"],
    variance: Float64[Array, "D K"],
    alpha: Float64[Array, " K"],
    used: Float64[Array, " K"],
    shares: Shares,
) -> tuple[Float64[Array, " K"], Float64[Array, " K"], Float64[Array, "H K"], Float64[Array, "H K"]]:
    """Do what `optimal_slab` does for some factors, at least two of more: sums are of one factor each.

    NumPy adds the rows of (D, 1) in another order than those of (D, K).
    """
    precision, (shape, rate) = 1.0 / variance, alpha_prior
    p, squared = np.maximum(precision - used, 0.0), (mean * precision) ** 2  # l^2
    on, off = shares.prior_on, shares.prior_off
    total = on + off + shares.sums(np.ones(p.shape))

    def parameters(at: Float64[Array, "H1 K"]) -> tuple[Float64[Array, " K"], ...]:
        """Return q(alpha) and q(theta), given log <alpha> and the log odds of theta's expectations."""
        included = total * logistic(at[1:])
        a = shape + 0.5 * np.maximum(included - on, 0.0).sum(axis=0)
        return a, a / np.exp(at[0]), included, total - included

    def iterate(at: Float64[Array, "H1 K"]) -> Float64[Array, "H1 K"]:
        """Return what follows from the loadings that some hyperparameters give."""
        a, b, t, u = parameters(at)
        posterior_precision = p + a / b
        fit = squared / posterior_precision
        odds = shares.of_loadings(digamma(t) - digamma(u))
        gamma = logistic(odds + 0.5 * (digamma(a) - np.log(b) - np.log(posterior_precision) + fit))
        included = shares.sums(gamma)
        squares = (gamma * (fit + 1.0) / posterior_precision).sum(axis=0)
        precision = (shape + 0.5 * included.sum(axis=0)) / (rate + 0.5 * squares)
        return np.log(np.concatenate([precision[None], (on + included) / (total - on - included)]))

    def evidence(at: Float64[Array, "H1 K"]) -> Float64[Array, " K"]:
        """Return the bound's terms of alpha, theta and the loadings, these integrated out."""
        a, b, t, u = parameters(at)
        precision = p + a / b
        log_on, log_off = digamma(t) - digamma(t + u), digamma(u) - digamma(t + u)
        slab = shares.of_loadings(log_on) + 0.5 * (
            digamma(a) - np.log(b) - np.log(precision) + squared / precision
        )
        terms = gamma_term(a, b, shape, rate) + beta_term(t, u, on, off).sum(axis=0)
        return np.asarray(np.logaddexp(shares.of_loadings(log_off), slab).sum(axis=0) + terms)

    at = np.log(np.concatenate([alpha[None], shares.on / shares.off]))
    for _ in range(INNER):
        first = iterate(at)
        at = _further(at, first, iterate(first))
    # From where all loadings seem to be there, and small, to where none is, iterations creep.
    none = np.log(
        np.concatenate([np.full_like(at[:1], shape / rate), np.full_like(at[1:], 1.0) * on / (total - on)])
    )
    at = np.where(evidence(none) > evidence(at), none, at)
    a, b, t, u = parameters(at)
    return a, b, t, u


def _further(
    zero: Float64[Array, "*n"], first: Float64[Array, "*n"], second: Float64[Array, "*n"]
) -> Float64[Array, "*n"]:
    """Return where three iterates of each number lead (Aitken), if they come nearer; else the last."""
    r, v = first - zero, second - 2.0 * first + zero
    nearer = (r * v < 0.0) & (np.abs(v) > np.abs(r) / FURTHEST)
    return np.where(nearer, zero - r * r / np.where(nearer, v, 1.0), second)
