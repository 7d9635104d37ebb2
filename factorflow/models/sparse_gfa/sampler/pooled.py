"""What noise precisions of a view, slabs and shares of loadings of all views, have in common: learned, too.

tau_d ~ Ga(a, a s v (u_d / v)^gamma), u_d the variance of the entries of feature d and v that of the view: s
is the noise variance of a feature in units of v (gamma = 0) or of its own variance (1), a how alike they are.
alpha_mk ~ Ga(c, c t), t the variance of loadings that are not 0. theta_mk ~ Beta(mu kappa, (1 - mu) kappa).
With a prior of its own for every feature, a factor of few features comes to stand for the noise of the one
that loads most on it (a Heywood case), which makes scores too sure; with one of its own for every view and
factor, loadings that are 0 are let in where views have few features.

a, gamma, c, mu and kappa are drawn from grids, uniformly before the data; s, t ~ Exp(1). Where they are
drawn, s, t and theta are integrated out; once more they are drawn with tau and alpha integrated out, which
they bind and which bind them (`redrawn_noise_prior`, `redrawn_slab_prior`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy import special

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.kernels import draws

ALIKE = np.geomspace(0.5, 128.0, 25)
"""a and c: from precisions of all orders of magnitude to precisions within a tenth of each other."""
POWERS = np.array([0.0, 0.5, 1.0])
"""gamma."""
MEANS = np.arange(1, 20) / 20.0
"""mu."""
CONCENTRATIONS = np.geomspace(1.0, 256.0, 9)
"""kappa; 2 at a mean of one half is uniform."""
_ON = np.outer(MEANS, CONCENTRATIONS).ravel()[:, None]
_OFF = np.outer(1.0 - MEANS, CONCENTRATIONS).ravel()[:, None]
_BEFORE = special.betaln(_ON, _OFF)

WIDTHS = (2.0, 1.0, 0.5, 0.25, 0.125)
"""Of Metropolis steps on the log of a scale: how much is left open depends on how many features there are."""
N_TRIES = len(WIDTHS)


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
        sums = _powers(relative) @ scaled
        return cls(sums, float(np.log(np.maximum(scaled, 1e-300)).sum()), float(np.log(relative).sum()))


def _powers(x: Float64[Array, " D"]) -> Float64[Array, "P D"]:
    """Return x to each of the `POWERS`."""
    return np.stack([np.ones_like(x), np.sqrt(x), x])


def draw_noise_prior(
    sums: NoiseSums, n_features: float, before: NoisePrior, uniform: Float64[Array, " two"]
) -> NoisePrior:
    """Draw a and gamma with s integrated out, then s, given the noise precisions of a view."""
    logs = sums.logs + POWERS * sums.log_variances
    a, mean, j = _draw_shape_and_mean(n_features, sums.precisions, logs, uniform)
    return replace(before, shape=a, mean=mean, power=float(POWERS[j]))


def noise_log_density(sums: NoiseSums, n_features: float, prior: NoisePrior) -> float:
    """Return log p(tau, s | a, gamma) of a view, up to a constant."""
    total = float(sums.precisions[np.flatnonzero(prior.power == POWERS)[0]])
    logs = sums.logs + prior.power * sums.log_variances
    return _log_density(n_features, total, logs, prior.shape, prior.mean) - sums.logs


@dataclass(frozen=True)
class SlabPrior:
    """The prior of the precisions of loadings that are not 0, of all views and factors: c and t."""

    shape: float
    mean: float

    @property
    def parameters(self) -> tuple[float, float]:
        """Shape and rate."""
        return self.shape, self.shape * self.mean


def draw_slab_prior(alpha: Float64[Array, " MK"], uniform: Float64[Array, " two"]) -> SlabPrior:
    """Draw c with t integrated out, then t, given the precisions of all views and factors."""
    total, logs = np.array([alpha.sum()]), np.array([np.log(alpha).sum()])
    shape, mean, _ = _draw_shape_and_mean(float(alpha.size), total, logs, uniform)
    return SlabPrior(shape, mean)


def slab_log_density(alpha: Float64[Array, " MK"], prior: SlabPrior) -> float:
    """Return log p(alpha, t | c), up to a constant."""
    logs = float(np.log(alpha).sum())
    return _log_density(float(alpha.size), float(alpha.sum()), logs, prior.shape, prior.mean) - logs


def _draw_shape_and_mean(
    n: float, totals: Float64[Array, " P"], logs: Float64[Array, " P"], uniform: Float64[Array, " two"]
) -> tuple[float, float, int]:
    """Draw a and s of n precisions x ~ Ga(a, a s), s ~ Exp(1), and which of P scales they are on.

    ``totals`` and ``logs`` are sums of x and of log x on each of the scales; s is integrated out at first.
    """
    shape = ALIKE[:, None]
    after = n * shape + 1.0  # s given the others: Ga(n a + 1, a sum + 1)
    log_density = special.gammaln(after) - after * np.log1p(shape * totals)
    log_density = log_density + n * (shape * np.log(shape) - special.gammaln(shape)) + shape * logs
    i, j = divmod(pick(log_density.ravel(), uniform[0]), len(totals))
    a = float(ALIKE[i])
    return a, float(special.gammaincinv(n * a + 1.0, uniform[1]) / (1.0 + a * totals[j])), j


def _log_density(n: float, total: float, logs: float, a: float, s: float) -> float:
    """Return the log density of log x of n precisions, and of s ~ Exp(1)."""
    return float(n * (a * np.log(a * s) - special.gammaln(a)) + a * logs - a * s * total - s)


def redrawn_noise_prior(
    halves: Float64[Array, " D"],
    rates: Float64[Array, " D"],
    variances: Float64[Array, " D"],
    before: NoisePrior,
    uniform: Float64[Array, " W"],
) -> NoisePrior:
    """Draw a and gamma, then s, of a view with all tau integrated out: entries say Ga(halves + 1, rates)."""
    units = before.level * _powers(variances / before.level)
    now = int(np.flatnonzero(before.power == POWERS)[0])
    a, mean, j = _redrawn(halves, rates, units, before.mean, now, uniform)
    return replace(before, shape=a, mean=mean, power=float(POWERS[j]))


def redrawn_slab_prior(
    halves: Float64[Array, " MK"],
    rates: Float64[Array, " MK"],
    before: SlabPrior,
    uniform: Float64[Array, " W"],
) -> SlabPrior:
    """Draw c, then t, with all alpha integrated out: loadings say Ga(halves + 1, rates) of alpha."""
    shape, mean, _ = _redrawn(halves, rates, np.ones((1, len(rates))), before.mean, 0, uniform)
    return SlabPrior(shape, mean)


def _redrawn(
    halves: Float64[Array, " D"],
    rates: Float64[Array, " D"],
    units: Float64[Array, "P D"],
    s: float,
    now: int,
    uniform: Float64[Array, " W"],
) -> tuple[float, float, int]:
    """Draw a of precisions x ~ Ga(a, a s unit) and which of P units, now that, by s ~ Exp(1); then s.

    x, of which data say x^halves exp(-rates x), is integrated out. With the units s changes so that the
    geometric mean of s unit stays.
    """
    n, order = max(1, len(halves)), np.argsort(halves, kind="stable")  # without factors there is no slab
    halves, rates, units = halves[order], rates[order], units[:, order]
    begins = np.flatnonzero(np.diff(halves, prepend=-1.0))
    sizes, times = halves[begins], np.diff(begins, append=len(halves))
    logs = np.log(units).sum(axis=1)
    scales = s * np.exp((logs[now] - logs) / n)
    shape, arguments = ALIKE[:, None], (halves, rates)
    marginals = draws.gamma_marginals(*arguments, ALIKE, scales, units, logs)
    counted = (times * (special.gammaln(shape + sizes) - special.gammaln(shape))).sum(axis=1)
    log_density = counted[:, None] + marginals + np.log(scales) - scales
    i, j = divmod(pick(log_density.ravel(), uniform[0]), len(units))
    one, unit = slice(i, i + 1), slice(j, j + 1)

    def log_density_of(log_s: float) -> float:
        s = np.exp(np.array([log_s]))
        marginals = draws.gamma_marginals(*arguments, ALIKE[one], s, units[unit], logs[unit])
        return float(log_s - s[0] + marginals[0, 0])

    return float(ALIKE[i]), float(np.exp(metropolis_walk(np.log(scales[j]), log_density_of, uniform[1:]))), j


def metropolis_walk(
    start: float, log_density: Callable[[float], float], uniform: Float64[Array, " W"]
) -> float:
    """Return where Metropolis steps of widths from large to small lead."""
    x, now = start, log_density(start)
    for width, normal, u in zip(WIDTHS, special.ndtri(uniform[:N_TRIES]), uniform[N_TRIES:], strict=True):
        tried = x + width * float(normal)
        then = log_density(tried)
        if np.log(u) < then - now:
            x, now = tried, then
    return x


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
    log_density = sum(
        (special.betaln(_ON + counts, _OFF + size - counts) - _BEFORE).sum(axis=1)
        for counts, size in zip(included, n_features, strict=True)
    )
    i = pick(np.asarray(log_density), uniform)
    return float(_ON[i, 0]), float(_OFF[i, 0])


def pick(log_density: Float64[Array, " G"], uniform: float) -> int:
    """Return a place of a grid, drawn with probabilities given by their logs up to a constant."""
    steps = np.cumsum(np.exp(log_density - log_density.max()))
    return min(int(np.searchsorted(steps, uniform * steps[-1], side="right")), len(steps) - 1)
