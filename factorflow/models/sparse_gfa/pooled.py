"""What noise precisions of a view, and shares of loadings of all, have in common: learned along with them.

tau_d ~ Ga(a, a s v (u_d / v)^gamma), u_d the variance of the entries of feature d and v that of the view: s
is the noise variance of a feature in units of v (gamma = 0) or of its own variance (1), a how alike they are.
theta_mk ~ Beta(mu kappa, (1 - mu) kappa). With a prior of its own for every feature, a factor of few features
comes to stand for the noise of the one that loads most on it (a Heywood case), which makes scores too sure;
with one of its own for every view and factor, loadings that are 0 are let in where views have few features.

a, gamma, mu and kappa are drawn from grids, uniformly before the data; s ~ Exp(1). Where they are drawn, s
and theta are integrated out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy import special

from factorflow.models.contract import Array
from factorflow.trees import replace

__all__ = [
    "ALIKE",
    "CONCENTRATIONS",
    "MEANS",
    "POWERS",
    "NoisePrior",
    "NoiseSums",
    "draw_noise_prior",
    "draw_share_prior",
    "noise_log_density",
]

ALIKE = np.geomspace(0.5, 128.0, 25)
"""a: from precisions of all orders of magnitude to precisions within a tenth of each other."""
POWERS = np.array([0.0, 0.5, 1.0])
"""gamma."""
MEANS = np.arange(1, 20) / 20.0
"""mu."""
CONCENTRATIONS = np.geomspace(1.0, 256.0, 9)
"""kappa; 2 at a mean of one half is uniform."""


@dataclass(frozen=True)
class NoisePrior:
    """The prior of the noise precisions of a view.

    Parameters
    ----------
    shape, mean, power : float
        a, s, gamma.
    level : float
        v, a constant: variance of the entries of the view.
    """

    shape: float
    mean: float
    power: float
    level: float

    def rates(self, variances: Float64[Array, " D"]) -> Float64[Array, " D"]:
        """Return the rates of tau of features whose entries have these variances."""
        return self.shape * self.mean * self.level * (variances / self.level) ** self.power


@dataclass(frozen=True)
class NoiseSums:
    """Sums over the features of a view that its `NoisePrior` goes by.

    Parameters
    ----------
    precisions : array
        Sum of tau v (u / v)^gamma, for each of the `POWERS`.
    logs, log_variances : float
        Sum of log(tau v), and of log(u / v).
    """

    precisions: Float64[np.ndarray, " P"]
    logs: float
    log_variances: float

    @classmethod
    def of(
        cls, precision: Float64[Array, " D"], variances: Float64[Array, " D"], prior: NoisePrior
    ) -> NoiseSums:
        """Return the sums over some features."""
        scaled, relative = precision * prior.level, variances / prior.level
        sums = (scaled[:, None] * relative[:, None] ** POWERS).sum(axis=0)
        return cls(sums, float(np.log(np.maximum(scaled, 1e-300)).sum()), float(np.log(relative).sum()))


def draw_noise_prior(
    sums: NoiseSums, n_features: float, before: NoisePrior, uniform: Float64[Array, " two"]
) -> NoisePrior:
    """Draw a and gamma with s integrated out, then s, given the noise precisions of a view."""
    shape, power = ALIKE[:, None], POWERS[None]
    logs = sums.logs + power * sums.log_variances
    after = n_features * shape + 1.0  # s given the others: Ga(D a + 1, a sum + 1)
    log_density = special.gammaln(after) - after * np.log1p(shape * sums.precisions)
    log_density = log_density + n_features * (shape * np.log(shape) - special.gammaln(shape)) + shape * logs
    i, j = divmod(_pick(log_density.ravel(), uniform[0]), len(POWERS))
    a = float(ALIKE[i])
    mean = special.gammaincinv(n_features * a + 1.0, uniform[1]) / (1.0 + a * sums.precisions[j])
    return replace(before, shape=a, mean=float(mean), power=float(POWERS[j]))


def noise_log_density(sums: NoiseSums, n_features: float, prior: NoisePrior) -> float:
    """Return log p(tau, s | a, gamma) of a view, up to a constant."""
    total = sums.precisions[np.flatnonzero(prior.power == POWERS)[0]]
    logs = sums.logs + prior.power * sums.log_variances
    a, s = prior.shape, prior.mean
    normal = a * np.log(a * s) - float(special.gammaln(a))
    return float(n_features * normal + a * logs - sums.logs - a * s * total - s)


def draw_share_prior(
    included: Sequence[Float64[Array, " K"]], n_features: Sequence[float], uniform: float
) -> tuple[float, float]:
    """Draw mu and kappa with all theta integrated out; return mu kappa and (1 - mu) kappa.

    Parameters
    ----------
    included : sequence of array
        Loadings of each factor that are not 0, for each view.
    n_features : sequence of float
        Features of each view.
    """
    on = np.outer(MEANS, CONCENTRATIONS).ravel()[:, None]
    off = np.outer(1.0 - MEANS, CONCENTRATIONS).ravel()[:, None]
    log_density = sum(
        (special.betaln(on + counts, off + size - counts) - special.betaln(on, off)).sum(axis=1)
        for counts, size in zip(included, n_features, strict=True)
    )
    i = _pick(np.asarray(log_density), uniform)
    return float(on[i, 0]), float(off[i, 0])


def _pick(log_density: Float64[Array, " G"], uniform: float) -> int:
    """Return a place of a grid, drawn with probabilities given by their logs up to a constant."""
    steps = np.cumsum(np.exp(log_density - log_density.max()))
    return min(int(np.searchsorted(steps, uniform * steps[-1], side="right")), len(steps) - 1)
