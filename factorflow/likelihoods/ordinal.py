"""Ordinal likelihood: levels 0 ... L - 1, P(y > l) = 1 / (1 + e^(c_l - x)), c_0 = 0 < c_1 < ...

phi has the logarithms of the gaps c_l - c_(l - 1), l = 1 ... L - 2. x is the log odds of any level above the
first one, as of a binary entry, so that an intercept is as well identified as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import pi
from typing import Any

import numpy as np

from factorflow.core.block import Array
from factorflow.errors import InputError
from factorflow.kernels.device import namespace
from factorflow.kernels.special import logistic, softplus
from factorflow.likelihoods.base import Likelihood, Message, expected_softplus

FAR, CLOSE = 1e30, 1e-12
"""Where the ends of the first and the last level lie, and the smallest gap."""


@dataclass(frozen=True)
class Ordinal(Likelihood):
    """Levels in an order: grades, stages, answers from "never" to "always"."""

    levels: int = 0  # type: ignore[misc]

    name, kinds, discrete, limited, smallest = "ordinal", ("poisson",), True, True, 0.0
    loading_size, phi_sd = 1.0, 5.0
    remedy = "Correct the entry, or say how many levels there are: ordinal(levels=L)."

    def __post_init__(self) -> None:
        if self.levels and self.levels < 2:
            raise InputError("levels", self.levels, "at least 2", "Leave it out for those of the data.")

    def for_entries(self, largest: float, aux: str = "") -> Likelihood:
        return self if self.levels else replace(self, levels=max(2, int(largest) + 1))

    @property
    def largest(self) -> float:  # type: ignore[override]
        return self.levels - 1.0

    @property
    def n_phi(self) -> int:  # type: ignore[override]
        return max(0, self.levels - 2)

    @property
    def phi_variables(self) -> Mapping[str, str]:  # type: ignore[override]
        doc = "Predictor at which levels above {} are as likely as not, c; that of level 0 is 0."
        return {f"cutpoint_{level}": doc.format(level) for level in range(1, self.levels - 1)}

    def report_phi(self, phi: Array, scale: Array) -> dict[str, Array]:
        return dict(zip(self.phi_variables, np.exp(phi).cumsum(axis=0), strict=True))

    def phi_from_report(self, report: Mapping[str, Array]) -> Array:
        cuts = [np.asarray(report[name]) for name in self.phi_variables]
        return np.log(np.diff(cuts, axis=0, prepend=0.0)) if cuts else np.zeros((0, 1))

    def cutpoints(self, phi: Array) -> list[Any]:
        """Return c_0, c_1, ..."""
        cutpoints: list[Any] = [0.0]
        for level in range(self.n_phi):
            cutpoints.append(cutpoints[-1] + namespace(phi).exp(phi[level, ...]))
        return cutpoints

    def ends(self, y: Array, phi: Array) -> tuple[Array, Array]:
        """Return the cutpoints below and above each entry."""
        xp, cuts = namespace(y), self.cutpoints(phi)
        low, high = -FAR + 0.0 * y, FAR + 0.0 * y
        for level, cut in enumerate(cuts):
            low = xp.where(y > level, cut + 0.0 * y, low)
        for level, cut in reversed(list(enumerate(cuts))):
            high = xp.where(y <= level, cut + 0.0 * y, high)
        return low, high

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        low, high = self.ends(y, phi)
        return -softplus(x - high) - softplus(low - x)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        low, high = self.ends(y, phi)
        xp, gap = namespace(y), high - low
        return xp.log(-xp.expm1(-xp.where(gap < CLOSE, CLOSE, gap)))

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        low, high = self.ends(y, phi)
        above, below = expected_softplus(m - high, v), expected_softplus(low - m, v)
        return Message(-above[0] - below[0], below[1] - above[1], above[2] + below[2])

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return self._moments([logistic(x - cut) for cut in self.cutpoints(phi)])

    def predict(self, m: Array, v: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        return self._moments([expected_softplus(m - cut, v + 0.0 * m)[1] for cut in self.cutpoints(phi)])

    def _moments(self, above: list[Array]) -> tuple[Array, Array]:
        mean = sum(above)
        return mean, sum((2.0 * level + 1.0) * share for level, share in enumerate(above)) - mean**2

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        low, high = self.ends(y + 0.0 * x, phi)
        return logistic(low - x), logistic(x - high)

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return sum((logistic(cut - x) < uniform) + 0.0 for cut in self.cutpoints(phi))

    def start_moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return x, and the square of the gap between cutpoints, of codes of this mean and variance."""
        gap = np.clip(pi / np.sqrt(3.0 * np.maximum(variance, 1e-12)), 0.2, 5.0)
        return gap * (mean - 0.5), gap**2

    def phi_start(self, n: Array, total: Array, squares: Array) -> Array:
        return np.tile(0.5 * np.log(squares / n - (total / n) ** 2), (self.n_phi, 1))
