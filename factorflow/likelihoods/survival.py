"""Survival likelihood: times to an event, some of them censored, of hazard h(t) e^x (proportional hazards).

The baseline h is constant within intervals, and H(t) = sum_j h_j T_j(t), T_j the time spent in interval j::

    log p = delta (x + log h(t)) - e^x H(t)    delta: 1 where the event was seen at y, else 0

That is a Poisson entry delta of rate e^x H(t) (Holford 1980). phi are the logarithms of h_1 ... h_J; their
update is Breslow's estimate with half an event spread over the intervals, and features have no intercept: h
has it. aux is 1 where y is the time that a sample was seen last without an event, else 0.

References
----------
Holford (1980), Biometrics 36, 299-305. Breslow (1974), Biometrics 30, 89-99. Peto and Peto (1972), Journal of
the Royal Statistical Society A 135, 185-207.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from typing import Any

import numpy as np

from factorflow.core.block import Array
from factorflow.errors import InputError
from factorflow.kernels.device import namespace
from factorflow.kernels.special import logistic
from factorflow.likelihoods.base import LARGEST, Likelihood, Message
from factorflow.likelihoods.poisson import rate_of

MOST_INTERVALS = 5
"""Intervals of the baseline hazard: quintiles of the times of events."""
PRIOR_EVENTS = 0.5
"""Events that are spread over the intervals beside those that were seen."""
SMALL = 1e-3
"""Time in an interval, in units of 1 / hazard, below which squares follow from a series."""


@dataclass(frozen=True)
class Survival(Likelihood):
    """Times to an event: ``times`` where intervals meet, ``hazards`` without factors (a:b:c)."""

    times: str = ""
    hazards: str = ""

    name, kinds, limited, aux, loading_size = "survival", ("gaussian",), True, "censored", 1.0
    is_time, has_intercept, smallest = True, False, 0.0
    remedy = "Times are 0 or more."

    def __str__(self) -> str:
        return f"{self.name}(times={self.times}, hazards={self.hazards})" if self.hazards else self.name

    @property
    def label(self) -> str:
        return self.name

    def for_entries(self, largest: float, aux: str = "") -> Likelihood:
        if not self.hazards:
            expected = "a view that was written as survival, with an event at least"
            remedy = "Write the dataset with columns time and event of the view, and {likelihoods}."
            raise InputError("likelihoods", self.name, expected, remedy, likelihoods={"VIEW": self.name})
        return self

    @cached_property
    def edges(self) -> tuple[float, ...]:
        """Where intervals begin; the last one has no end."""
        return (0.0, *(float(text) for text in self.times.split(":") if text))

    @cached_property
    def log_hazards(self) -> tuple[float, ...]:
        """Logarithms of the hazards of a feature without factors."""
        return tuple(log(float(text)) for text in self.hazards.split(":"))

    @property
    def n_phi(self) -> int:  # type: ignore[override]
        return len(self.edges)

    @property
    def phi_mean(self) -> tuple[float, ...]:  # type: ignore[override]
        return self.log_hazards

    @property
    def phi_variables(self) -> Mapping[str, str]:  # type: ignore[override]
        ends = [f" to {end:.6g}" for end in self.edges[1:]] + [" on"]
        spans = [f"{begin:.6g}{end}" for begin, end in zip(self.edges, ends, strict=True)]
        return {f"hazard_{j}": f"Baseline hazard from {span}." for j, span in enumerate(spans, 1)}

    def _spans(self) -> list[tuple[int, float, float]]:
        """Return number, begin and end of each interval."""
        ends = (*self.edges[1:], float("inf"))
        return [(j, begin, end) for j, (begin, end) in enumerate(zip(self.edges, ends, strict=True))]

    def exposures(self, y: Array) -> list[Array]:
        """Return the time until y that is spent in each interval."""
        xp, parts = namespace(y), []
        for _, begin, end in self._spans():
            part = xp.where(y > begin, y - begin, 0.0 * y)
            parts.append(part if end == float("inf") else xp.where(y > end, end - begin + 0.0 * y, part))
        return parts

    def cumulative_hazard(self, y: Array, phi: Array) -> Array:
        """Return H(y)."""
        xp = namespace(phi)
        return sum(xp.exp(phi[j, ...]) * part for j, part in enumerate(self.exposures(y)))

    def within(self, y: Array) -> list[Array]:
        """Return whether y is in each interval, its end in it."""
        return [((y > begin) if j else (y >= begin)) & (y <= end) for j, begin, end in self._spans()]

    def _events(self, y: Array, aux: Array | None) -> Array:
        """Return delta."""
        one = 0.0 * y + 1.0
        return one if aux is None else namespace(y).where(aux > 0, 0.0 * y, one)

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return self._events(y, aux) * x - rate_of(x) * self.cumulative_hazard(y, phi)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        xp, total = namespace(y), 0.0 * y
        for j, inside in enumerate(self.within(y)):
            total = total + xp.where(inside, phi[j, ...] + 0.0 * y, 0.0 * y)
        return self._events(y, aux) * total

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        event, expected = self._events(y, aux), rate_of(m + 0.5 * v) * self.cumulative_hazard(y, phi)
        return Message(event * m - expected, event - expected, expected)

    def phi_derivatives(
        self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None, *, bounded: bool = False
    ) -> Array:
        xp, event, rate = namespace(m), self._events(y, aux), rate_of(m + 0.5 * v)
        expected = [xp.exp(phi[j, ...]) * part * rate for j, part in enumerate(self.exposures(y))]
        inside = zip(self.within(y), expected, strict=True)
        gradient = [xp.where(here, event, 0.0 * event) - each for here, each in inside]
        second = [-expected[j] if i == j else 0.0 * rate for j in range(self.n_phi) for i in range(j + 1)]
        return xp.stack([*gradient, *second])

    def log_prior(self, phi: Array) -> float:
        return PRIOR_EVENTS / self.n_phi * float(phi.sum())

    def update_phi(self, phi: Array, derivatives: Array) -> Array:
        """Return Breslow's estimate: events over the exposures times E e^x, for each interval."""
        j = np.arange(self.n_phi)
        expected = -derivatives[:, self.n_phi + j * (j + 3) // 2]  # h_j sum T_j E e^x
        events = derivatives[:, : self.n_phi] + expected + PRIOR_EVENTS / self.n_phi
        watched = expected > 0.0
        return phi + np.where(watched, np.log(events / np.where(watched, expected, 1.0)), 0.0)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        """Return them of the time of the event, the last hazard going on."""
        return self.moments_after(0.0 * x, x, phi)

    def moments_after(self, y: Array, x: Array, phi: Array) -> tuple[Array, Array]:
        xp = namespace(x)
        mean, half_square, alive = y + 0.0 * x, 0.5 * y**2 + 0.0 * x, 1.0 + 0.0 * x
        for j, first, last in self._spans():
            begin, end = xp.where(y > first, y, first + 0.0 * y), xp.where(y > last, y, last + 0.0 * y)
            rate = rate_of(xp.where(x > -LARGEST, x, -LARGEST + 0.0 * x) + phi[j, ...])
            z = rate * (end - begin)
            z = xp.where(z < LARGEST, z, LARGEST + 0.0 * x)
            lost = -xp.expm1(-z)
            series = z**2 * (0.5 - z / 3.0 + z**2 / 8.0)
            later = xp.where(z < SMALL, series, lost - z * xp.exp(-z)) / rate**2
            mean, half_square = (
                mean + alive * lost / rate,
                half_square + alive * (begin * lost / rate + later),
            )
            alive = alive * (1.0 - lost)
        return mean, 2.0 * half_square - mean**2

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        hazard = rate_of(x) * self.cumulative_hazard(np.asarray(y + 0.0 * x), phi)
        return -np.expm1(-hazard), np.exp(-hazard)

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        left, y = -np.log1p(-uniform) / rate_of(x), 0.0
        for j, begin, end in self._spans():
            hazard = np.exp(phi[j])
            y = y + np.minimum(left / hazard, end - begin)
            left = np.maximum(left - hazard * (end - begin), 0.0)
        return y

    def response(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        """Return F(y) = 1 - e^-H(y), of censored times its mean beyond y: scores of Peto and Peto (1972)."""
        xp, censored = namespace(y), 1.0 - self._events(y, aux)
        alive = xp.exp(-self.cumulative_hazard(y, phi))
        return 1.0 - alive * (1.0 - 0.5 * censored)

    def expected_response(self, x: Array, phi: Array, aux: Array | None = None) -> Array:
        """Return E F(y) = 1 / (1 + e^x), of any baseline."""
        return logistic(-x)

    def excludes(self, y: Array) -> Array:
        return y < 0.0

    def start(self, y: Array, aux: Array | None = None) -> Array:
        """Return delta - H(y) without factors: martingale residuals, of about variance 1."""
        parts = zip(self.log_hazards, self.exposures(y), strict=True)
        return self._events(y, aux) - sum(exp(log_hazard) * part for log_hazard, part in parts)

    def intercept(self, n: Array, total: Array) -> Array:
        return 0.0 * total

    def phi_start(self, n: Array, total: Array, squares: Array) -> Array:
        return np.tile(np.array(self.log_hazards)[:, None], (1, len(n)))


def event_intervals(times: Array, events: Array) -> list[float]:
    """Return where intervals of a baseline hazard meet: at quintiles of the times of events.

    Parameters
    ----------
    times, events : (N,) arrays
        Times, and 1 where they are of an event.
    """
    inner = np.quantile(
        times[events > 0], np.arange(1, MOST_INTERVALS) / MOST_INTERVALS, method="inverted_cdf"
    )
    return [float(t) for t in np.unique(inner) if 0.0 < t < times.max()]


def baseline_hazard(edges: list[float], times: Array, events: Array, rates: Any = 1.0) -> Array:
    """Return the hazards of intervals by Breslow's estimate, half an event spread over them.

    Parameters
    ----------
    edges : list of float
        Where intervals meet.
    times, events : (N,) arrays
        Times, and 1 where they are of an event.
    rates : (N,) array or float
        E e^x of the samples.
    """
    density = Survival(":".join(map(repr, edges)), "1")
    exposure = np.array([(part * rates).sum() for part in density.exposures(times)])
    seen = np.array([events[inside].sum() for inside in density.within(times)])
    return np.asarray((seen + PRIOR_EVENTS / len(seen)) / exposure)
