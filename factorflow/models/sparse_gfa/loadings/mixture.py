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
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float64, Int8, Int64
from scipy import special

from factorflow.core.trees import replace
from factorflow.kernels.linalg import diagonal, packed_place
from factorflow.kernels.special import log_ndtr
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.base import (
    Linear,
    LoadingsPrior,
    LoadingSums,
    Pairs,
    PriorConstants,
    Scale,
    Share,
    log_alpha,
)
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters
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
        self, weights: Weights, view: View, pairs: Pairs, linear: Linear, scale: Scale, step: Share
    ) -> tuple[Weights, float]:
        """Move moments, and what follows from them, on a straight line where ``step`` is below 1."""
        step = 1.0 if weights.entropies is None else step  # q was no mixture before
        k = weights.mean.shape[1]
        mean = expected_weights(weights)[0].copy()
        parts = [np.empty_like(mean) for _ in range(5)]
        responsibilities = np.empty((len(mean), len(self.components), k))
        alphas, logs = view.alpha, log_alpha(view)
        for i in range(k):
            row = scale[:, None] * pairs[:, packed_place(i, np.arange(k))]
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
            mean[:, i : i + 1] += step * (parts[0][:, i : i + 1] - mean[:, i : i + 1])
        if self.keeps_shares:
            old = weights.shares
            if np.min(step) < 1.0 and old is not None:
                responsibilities = old + np.reshape(step, (-1, 1, 1)) * (responsibilities - old)
            weights = replace(weights, shares=responsibilities)
        return self._update_moments(weights, mean, parts, step)

    def _update_moments(
        self, weights: Weights, mean: Float64[Array, "D K"], parts: list[Float64[Array, "D K"]], step: Share
    ) -> tuple[Weights, float]:
        """Return weights of expectation ``mean``; q moves from what it was to a mixture of both."""
        centre, second, amount, terms, included = parts
        place, spread = expected_weights(weights)
        before = np.asarray(diagonal(spread, mean.shape[1]))
        between = step * (1.0 - step) * (centre - place) ** 2
        variance = before + step * (second - centre**2 - before) + between
        if np.min(step) < 1.0:
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

    @property
    def is_drawn(self) -> bool:
        """Whether the sampler draws loadings of this mixture: it says what shares are."""
        return type(self).drawn_log_shares is not Mixture.drawn_log_shares

    def drawn_log_shares(self, parameters: LoadingParameters) -> Float64[Array, "J K"]:
        """Return log pi of each component and factor."""
        raise NotImplementedError

    def draw(
        self,
        factor: int,
        linear: Float64[Array, " D"],
        p: Float64[Array, " D"],
        parameters: LoadingParameters,
        uniform: Float64[Array, "D two"],
    ) -> Float64[Array, " D"]:
        """Draw the loadings of a factor given the message of each: the component, then the loading."""
        shares, alpha = self.drawn_log_shares(parameters)[:, factor], parameters.alpha[factor]
        return draw_mixture(self.components, linear, p, alpha, shares[None], uniform)

    def components_of_draw(
        self,
        loadings: Float64[Array, "D K"],
        parameters: LoadingParameters,
        uniform: Callable[[], Float64[Array, "D K"]],
    ) -> Int64[Array, "D K"]:
        """Draw the component that each loading is of, given the loading."""
        slabs = np.flatnonzero([one.kind != "zero" for one in self.components])
        if len(slabs) == 1:
            return np.where(loadings != 0.0, slabs[0], 0)
        shares, alpha = self.drawn_log_shares(parameters), parameters.alpha
        log = np.stack([_log_slab(self.components[j], loadings, alpha) + shares[j] for j in slabs])
        steps = np.cumsum(np.exp(log - log.max(axis=0)), axis=0)
        drawn = slabs[np.minimum((uniform() * steps[-1] >= steps).sum(axis=0), len(slabs) - 1)]
        return np.where(loadings != 0.0, drawn, 0) if slabs[0] else drawn

    def sums_of_draw(
        self,
        loadings: Float64[Array, "D K"],
        parameters: LoadingParameters,
        classes: Int8[Array, "D K"] | None,
        uniform: Callable[[], Float64[Array, "D K"]],
    ) -> LoadingSums:
        """Return what drawn loadings add up; as counts how many are of each component."""
        own = self.components_of_draw(loadings, parameters, uniform)
        counts = np.stack([(own == j).sum(axis=0) for j in range(len(self.components))]).astype(np.float64)
        is_slab = np.array([one.kind != "zero" for one in self.components])
        scaled = np.abs(loadings) / np.array([one.scale for one in self.components])[own]
        return LoadingSums(counts[is_slab].sum(axis=0), (scaled**self.power).sum(axis=0), counts)

    def log_density_of_components(self, sums: LoadingSums, log_shares: Float64[Array, "J K"]) -> float:
        """Return the log density of the components of drawn loadings, and of the units of these."""
        assert sums.counts is not None
        units = np.log([one.scale for one in self.components])
        return float((sums.counts * (log_shares - units[:, None])).sum())

    def draw_parameters(
        self,
        constants: PriorConstants,
        sums: LoadingSums,
        before: LoadingParameters,
        uniform: Float64[Array, "K words"],
    ) -> tuple[LoadingParameters, float]:
        """Draw alpha, and theta where it is learned; see `LoadingsPrior.draw_parameters`."""
        new, density = super().draw_parameters(constants, sums, before, uniform)
        if self.learns_shares:
            return new, density
        return new, density + self.log_density_of_components(sums, self.drawn_log_shares(new))

    def gaussian_part(
        self,
        loadings: Float64[Array, "D K"],
        parameters: LoadingParameters,
        uniform: Callable[[], Float64[Array, "D K"]],
    ) -> tuple[Float64[Array, "D K"], Callable[[Float64[Array, "D K"]], Float64[Array, " D"]] | None]:
        """Return that of the components that loadings are of; exponentials have a normal of their width."""
        own = self.components_of_draw(loadings, parameters, uniform)
        kinds = np.array([one.kind for one in self.components])[own]
        size = parameters.alpha / np.array([one.scale for one in self.components])[own] ** self.power
        if self.signed:
            return size, None
        rates = np.where(kinds == "exponential", size, 0.0)

        def log_extra(w: Float64[Array, "D K"]) -> Float64[Array, " D"]:
            scaled = rates * w
            return np.where((w >= 0.0).all(axis=1), (0.5 * scaled**2 - scaled).sum(axis=1), -np.inf)

        return np.where(kinds == "exponential", size**2, size), log_extra

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
        m, v, log_mass = truncated_moments(mean[:, one_sided], 1.0 / precision[:, one_sided])
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


def draw_mixture(
    components: tuple[Component, ...],
    linear: Float64[Array, " D"],
    p: Float64[Array, "#D"],
    alpha: Float64[Array, "#D"] | float,
    log_shares: Float64[Array, "#D J"],
    uniform: Float64[Array, "D two"],
) -> Float64[Array, " D"]:
    """Draw values given their messages exp(linear w - p w^2 / 2): the component, then the value."""
    scales = np.array([one.scale for one in components])
    kinds = np.array([one.kind for one in components])
    exponential, size = kinds == "exponential", np.reshape(alpha, (-1, 1)) / scales
    rates = np.where(exponential, size, 0.0)
    precision = np.maximum(p[:, None] + np.where(exponential, 0.0, size / scales), LEAST)
    sd = precision**-0.5
    mean = (linear[:, None] - rates) * sd**2
    one_sided = exponential | (kinds == "half")
    log_mass = np.where(one_sided, special.log_ndtr(np.where(one_sided, mean / sd, 0.0)), 0.0)
    log = log_shares + np.log(sd) + 0.5 * (mean / sd) ** 2 + log_mass
    log += np.where(exponential, np.log(size) + 0.5 * LOG_2PI, 0.5 * np.log(size / scales))
    log += np.where(kinds == "half", np.log(2.0), 0.0)
    log = np.where(kinds == "zero", log_shares, log)
    steps = np.cumsum(np.exp(log - log.max(axis=1, keepdims=True))[:, ::-1], axis=1)  # zero is the last
    below = (uniform[:, :1] * steps[:, -1:] >= steps).sum(axis=1)
    own = len(components) - 1 - np.minimum(below, len(components) - 1)
    rows = np.arange(len(own))
    mean, sd, log_mass = mean[rows, own], np.broadcast_to(sd, log.shape)[rows, own], log_mass[rows, own]
    value = mean + sd * special.ndtri(uniform[:, 1])
    if one_sided.any():
        positive = mean - sd * special.ndtri_exp(np.log(uniform[:, 1]) + log_mass)
        positive = np.maximum(positive, np.finfo(np.float32).tiny)  # 0 says that it is of the first component
        value = np.where(one_sided[own], positive, value)
    return np.where(kinds[own] == "zero", 0.0, value)


def _log_slab(one: Component, w: Float64[Array, "D K"], alpha: Float64[Array, " K"]) -> Float64[Array, "D K"]:
    """Return the log density of values that are not 0, up to a constant that components have alike."""
    if one.kind == "exponential":
        return np.asarray(np.log(alpha / one.scale) - alpha / one.scale * w)
    size = alpha / one.scale**2
    return np.asarray(0.5 * (np.log(size) - size * w**2) + (np.log(2.0) if one.kind == "half" else 0.0))


def truncated_moments(
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
