"""Loadings whose prior is a mixture of zero, normals, half-normals and exponentials.

Given its message exp(l w - p w^2 / 2) a loading has q(w, j) = r_j q_j(w), exact, the component collapsed;
scales are c, alpha the precision of normals and the rate of exponentials, Z = exp(mu^2 P / 2) P^-1/2, and
q_j = N(mu, 1 / P), on w >= 0 where the component is::

    zero         log r = log pi
    normal       log r = log pi + 1/2 E log alpha - log c + log Z,  P = p + alpha / c^2,  mu = l / P
    half         the same, and log (2 Phi(mu P^1/2))
    exponential  log r = log pi + E log alpha - log c + log Z + 1/2 log 2 pi + log Phi(mu P^1/2),
                 P = p,  mu = (l - alpha / c) / P
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels.linalg import diagonal
from factorflow.kernels.special import log_ndtr
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.base import (
    Linear,
    LoadingsPrior,
    Pairs,
    Scale,
    log_alpha,
)
from factorflow.models.sparse_gfa.state import View
from factorflow.models.sparse_gfa.weights import Weights, expected_weights

LOG_2PI = float(np.log(2.0 * np.pi))
LEAST = 1e-10
"""Least precision of a message that an exponential component gets: it has none of its own."""
FAR = -20.0
"""Below this many standard deviations moments of truncated normals follow from their asymptotic series."""


@dataclass(frozen=True)
class Component:
    """A component of a mixture: its kind, and its scale c."""

    kind: Literal["zero", "normal", "half", "exponential"]
    scale: float = 1.0


class Mixture(LoadingsPrior):
    """A prior that is a list of components, of shares that are known or learned."""

    learns_shares: ClassVar[bool] = False
    """Whether `log_shares` are learned: parameters that the loadings share."""
    keeps_shares: ClassVar[bool] = False
    """Whether they are those of each component: probabilities of these are kept (`Weights.shares`)."""

    @property
    @abstractmethod
    def components(self) -> tuple[Component, ...]:
        """Its components; zero, if it is among them, the first."""

    @abstractmethod
    def log_shares(self, view: View, factor: int) -> Float64[Array, " J"]:
        """Return E log pi of each component, for the loadings of a factor."""

    def update(
        self, weights: Weights, view: View, pairs: Pairs, linear: Linear, scale: Scale, step: float
    ) -> tuple[Weights, float]:
        """Move moments, and what follows from them, on a straight line where ``step`` is below 1."""
        step = 1.0 if weights.entropies is None else step  # q was no mixture before
        k = weights.mean.shape[1]
        mean = expected_weights(weights)[0].copy()
        parts = [np.empty_like(mean) for _ in range(5)]
        responsibilities = np.empty((len(mean), len(self.components), k))
        alphas, logs = view.alpha, log_alpha(view)
        for i in range(k):
            packed = [max(i, j) * (max(i, j) + 1) // 2 + min(i, j) for j in range(k)]
            row = scale[:, None] * pairs[:, packed]
            residual = linear[:, i] - np.einsum("dj,dj->d", row, mean) + row[:, i] * mean[:, i]
            shares = self.log_shares(view, i)
            alpha = float(alphas[i]), float(logs[i])
            *found, responsibilities[:, :, i] = collapsed(
                self.components,
                residual,
                row[:, i],
                alpha,
                shares,
                power=self.power,
                learned=self.learns_shares,
            )
            for part, values in zip(parts, found, strict=True):
                part[:, i] = values
            mean[:, i] += step * (parts[0][:, i] - mean[:, i])
        if self.keeps_shares:
            old = weights.shares
            if step < 1.0 and old is not None:
                responsibilities = old + step * (responsibilities - old)
            weights = replace(weights, shares=responsibilities)
        return self._update_moments(weights, mean, parts, step)

    def _update_moments(
        self, weights: Weights, mean: Float64[Array, "D K"], parts: list[Float64[Array, "D K"]], step: float
    ) -> tuple[Weights, float]:
        """Return weights of expectation ``mean``; q moves from what it was to a mixture of both."""
        centre, second, amount, terms, included = parts
        place, spread = expected_weights(weights)
        before = np.asarray(diagonal(spread, mean.shape[1]))
        between = step * (1.0 - step) * (centre - place) ** 2
        variance = before + step * (second - centre**2 - before) + between
        if step < 1.0:
            old = weights.scaled_square, weights.entropies, weights.inclusion
            amount, terms, included = (
                new if was is None else was + step * (new - was)
                for was, new in zip(old, (amount, terms, included), strict=True)
            )
        updated = replace(weights, scaled_square=amount if self.power == 2.0 else None, entropies=terms)
        if not self.spikes:
            return replace(updated, mean=mean, variance=variance, inclusion=None), float(terms.sum())
        positive = np.maximum(included, 1e-300)
        slab = mean / positive
        variance = np.maximum((variance + mean**2) / positive - slab**2, 1e-300)
        return replace(updated, mean=slab, variance=variance, inclusion=included), float(terms.sum())

    def density(self, w: Float64[Array, " n"], view: View) -> tuple[float, Float64[Array, " n"]]:
        """Return the probability of 0, and the density of other values."""
        at_zero, total = 0.0, np.zeros_like(w)
        for one, share in zip(self.components, np.exp(self.log_shares(view, 0)), strict=True):
            size = view.alpha[0] / one.scale**self.power
            if one.kind == "zero":
                at_zero = float(share)
            elif one.kind == "exponential":
                total += share * size * np.exp(-size * np.abs(w)) * (w >= 0.0)
            else:
                sides = 2.0 * (w >= 0.0) if one.kind == "half" else 1.0
                total += share * sides * np.sqrt(size / (2.0 * np.pi)) * np.exp(-0.5 * size * w**2)
        return at_zero, total


def collapsed(
    components: tuple[Component, ...],
    linear: Float64[Array, " D"],
    p: Float64[Array, " D"],
    alpha: tuple[float | Float64[Array, "#D 1"], float | Float64[Array, "#D 1"]],
    log_shares: Float64[Array, "*#D J"],
    *,
    power: float,
    learned: bool,
) -> tuple[Float64[Array, "D ..."], ...]:
    """Return of each loading E w, E w^2, E |w / c|^power, terms of the bound, P(w not 0), and r.

    The terms are E log p(w, j) - E log q(w, j) less what alpha adds (`LoadingsPrior.power`), and less
    E log pi where shares are learned; ``alpha`` are its expectation, and that of its logarithm. They
    and shares are those of all loadings, or of each.
    """
    of_alpha, log_of_alpha = alpha
    scales = np.array([one.scale for one in components])
    kinds = np.array([one.kind for one in components])
    squared, rates = scales**2, np.where(kinds == "exponential", of_alpha / scales, 0.0)
    precision = np.maximum(p[:, None] + np.where(kinds == "exponential", 0.0, of_alpha / squared), LEAST)
    mean = (linear[:, None] - rates) / precision
    log_p = np.log(precision)
    share = log_shares + 0.5 * (log_of_alpha - np.log(squared) - log_p + (linear[:, None] - rates) * mean)
    first, second = mean, mean**2 + 1.0 / precision
    entropy = 0.5 * (1.0 - np.log(squared) - log_p)
    one_sided = (kinds == "half") | (kinds == "exponential")
    if one_sided.any():
        m, v, log_mass = truncated(mean[:, one_sided], 1.0 / precision[:, one_sided])
        extra = np.where(kinds[one_sided] == "half", np.log(2.0), 0.5 * (LOG_2PI + log_of_alpha))
        share[:, one_sided] += log_mass + extra
        old_m, old_p = mean[:, one_sided], precision[:, one_sided]
        first, second = first.copy(), second.copy()
        first[:, one_sided], second[:, one_sided] = m, v
        own = np.where(kinds[one_sided] == "half", np.log(2.0), 0.5 * LOG_2PI)
        entropy[:, one_sided] += 0.5 * (old_p * (v - 2.0 * old_m * m + old_m**2) - 1.0) + log_mass + own
    zero = kinds == "zero"
    if zero.any():
        share[:, zero], first[:, zero], second[:, zero], entropy[:, zero] = (
            log_shares[..., zero],
            0.0,
            0.0,
            0.0,
        )
    share -= share.max(axis=1, keepdims=True)
    log_r = share - np.log(np.exp(share).sum(axis=1, keepdims=True))
    r = np.exp(log_r)
    amount = second / squared if power == 2.0 else first / scales
    return (
        (r * first).sum(axis=1),
        (r * second).sum(axis=1),
        (r * amount).sum(axis=1),
        (r * ((0.0 if learned else log_shares) - log_r + entropy)).sum(axis=1),
        r[:, ~zero].sum(axis=1),  # 1 less that of zero would be 0 where means are not
        r,
    )


def truncated(
    mean: Float64[Array, "D J"], variance: Float64[Array, "D J"]
) -> tuple[Float64[Array, "D J"], Float64[Array, "D J"], Float64[Array, "D J"]]:
    """Return E, E of the square, and the log of its mass, of a normal on [0, inf)."""
    s = np.sqrt(variance)
    a = mean / s
    log_mass = np.asarray(log_ndtr(a))
    b, far = np.maximum(-a, -FAR), a < FAR
    near = np.exp(np.minimum(-0.5 * (a**2 + LOG_2PI) - log_mass, 50.0))
    tail = 2 - (10 - (74 - (706 - 8162 / b**2) / b**2) / b**2) / b**2  # b^2 (1 - b E)
    first = np.where(far, (1 - tail / b**2) / b, a + near)
    second = np.where(far, tail / b**2, 1 + a * first)
    return s * first, variance * second, log_mass
