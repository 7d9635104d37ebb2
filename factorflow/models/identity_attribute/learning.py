"""The M-step and the free energy, the same for both factorisations (equations 52 to 116, corrected).

In the order of the updates: loadings and noise of each view, T, Lambda, the unit of the attributes, then the
relevance of the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np
from jaxtyping import Float64
from scipy.special import betaln, digamma, gammaln

from factorflow.kernels.linalg import triangle, unpack
from factorflow.models.contract import Gather, Info, Step, Sweep
from factorflow.models.identity_attribute.dynamics import expectations
from factorflow.models.identity_attribute.settings import Settings
from factorflow.models.identity_attribute.state import Globals, Moments, Stats, ViewStats, Weights
from factorflow.models.identity_attribute.tables import Tables, compute_tables, expected_log

L = TypeVar("L")
S = TypeVar("S")
LOG_2PI = float(np.log(2.0 * np.pi))

MOST_RELEVANCE = 1e12
"""Largest gamma: a column of loadings that is 0 to any precision."""


@dataclass(frozen=True)
class Sums:
    """Sums over the features of a view.

    Parameters
    ----------
    squares : array
        E w^2.
    log_variance : array
        log sigma^2.
    data : float
        E log P(Y | ...), on the scale of the values.
    noise : float
        - KL of the noise.
    """

    squares: Float64[np.ndarray, " K"]
    log_variance: Float64[np.ndarray, " K"]
    data: float
    noise: float
    n: float


@dataclass(frozen=True)
class TableSweep(Sweep[Globals, L, S]):
    """A sweep whose blocks read the tables of the globals; unless it overrides `update`, these stay."""

    settings: Settings

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables of the globals."""
        return compute_tables(self.settings, globals_)

    def update(self, globals_: Globals, stats: S, step: Step) -> tuple[Globals, Info]:
        """Return the globals unchanged."""
        return globals_, {}


@dataclass(frozen=True)
class Learning(TableSweep[L, Stats]):
    """A sweep that ends in an M-step."""

    learn_relevance: bool
    neighbours: ClassVar[bool] = True

    def axes(self) -> dict[str, int]:
        """Return the features of the views."""
        return {view.name: view.n_features for view in self.settings.views}

    def carry(self, globals_: Globals, stats: Stats, step: Step) -> Globals:
        """Hand the edges on."""
        return replace(globals_, edges=stats.edges)

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Weights, Sums]:
        """Update loadings and noise of some features of a view."""
        own = stats.views[axis]
        rows = slice(index.start, index.stop)
        second = stats.second[axis] if own.second is None else own.second
        rho = globals_.weights[axis].precision[rows]
        c = self.settings.hyper
        mean, variance, shift = loadings(own, second, rho, globals_.relevance, c.center)
        own = shift_statistics(own, shift)
        shape, rate = noise(own, second, mean, variance, c.noise)
        after = Weights(mean, variance, shape, rate, shift)
        scale = globals_.fixed[axis].scale[rows]
        return after, sums_of(self.settings, own, second, after, scale)

    def assemble(
        self,
        globals_: Globals,
        stats: Stats,
        parts: Mapping[str, Weights],
        sums: Mapping[str, Sums],
        step: Step,
    ) -> tuple[Globals, Info]:
        """Update T, Lambda and the relevance, and return the free energy."""
        c = self.settings.hyper
        transition = np.array(c.transition) + stats.moments.pairs
        dynamics = c.dynamics_prior + dynamics_statistics(stats.moments)
        expected = expectations(dynamics)
        relevance, size = globals_.relevance, self.settings.n_features
        squares = sum(s.squares for s in sums.values())
        fixed = None if self.learn_relevance else relevance * squares
        by = best_scale(stats.moments, expected.moments, c.variance, size, fixed)
        moments = scale_moments(stats.moments, by)
        scaled = {
            name: replace(
                s,
                squares=s.squares / by**2,
                log_variance=s.log_variance - 2.0 * len(parts[name].shape) * np.log(by),
            )
            for name, s in sums.items()
        }
        if self.learn_relevance:
            relevance = np.minimum(size * by**2 / squares, MOST_RELEVANCE)
        edges = globals_.edges.values
        after = replace(
            globals_,
            weights={v: replace(w, mean=w.mean / by, variance=w.variance / by**2) for v, w in parts.items()},
            relevance=relevance,
            transition=transition,
            dynamics=dynamics,
            expected=expected,
            edges=Gather(
                globals_.edges.numbers,
                replace(edges, first_mean=edges.first_mean * by, last_mean=edges.last_mean * by),
            ),
            unit=globals_.unit * by,
        )
        energy = energy_of_columns(self.settings, after.relevance, scaled)
        energy += energy_of_states(self.settings, after, moments)
        energy += sum(s.data + s.noise for s in sums.values())
        return after, {"objective": float(energy), "observed": sum(s.n for s in sums.values())}


def loadings(
    own: ViewStats,
    second: Float64[np.ndarray, ...],
    rho: Float64[np.ndarray, " D"],
    relevance: Float64[np.ndarray, " K"],
    center: bool,
) -> tuple[Float64[np.ndarray, "D K"], Float64[np.ndarray, "D K"], Float64[np.ndarray, " D"]]:
    """Return mean and variance of the loadings, and m: a feature's means at once, variances of equation 71.

    m, the value of a feature where no identity is present, is a number that is learned with them: it has no
    prior, and its best value given the loadings is put into their equations.

    Parameters
    ----------
    own : ViewStats
        r, and the sums of y and x.
    second : array
        R, (K, K) for all features, or packed for each of them, (D, pairs).
    rho : array
        E rho.
    relevance : array
        gamma.
    center : bool
        Whether m is learned; else it is 0.
    """
    k, count = own.cross.shape[1], np.maximum(own.n, 1.0)
    middle = own.active / count[:, None] if center else np.zeros_like(own.active)
    cross = own.cross - own.total[:, None] * middle
    if second.shape == (k, k):
        size = np.sqrt(relevance)
        around = second - np.multiply.outer(own.active[0], middle[0])
        values, vectors = np.linalg.eigh(around / np.multiply.outer(size, size))
        turned = (cross / size) @ vectors
        shrunk = rho[:, None] * turned / (1.0 + rho[:, None] * np.maximum(values, 0.0))
        variance = 1.0 / (relevance + np.multiply.outer(rho, np.diagonal(second)))
        mean = (shrunk @ vectors.T) / size
    else:
        mean, variance = np.empty_like(cross), np.empty_like(cross)
        at = np.arange(k)
        for d in range(len(cross)):
            full = rho[d] * unpack(second[d], k)
            variance[d] = 1.0 / (relevance + full[at, at])
            full -= rho[d] * np.multiply.outer(own.active[d], middle[d])
            full[at, at] += relevance
            mean[d] = np.linalg.solve(full, rho[d] * cross[d])
    shift = own.total / count - (mean * middle).sum(axis=1) if center else np.zeros(len(mean))
    return mean, variance, shift


def shift_statistics(own: ViewStats, shift: Float64[np.ndarray, " D"]) -> ViewStats:
    """Return the sums of a view with y - m in the place of y."""
    return replace(
        own,
        total=own.total - own.n * shift,
        squares=own.squares - shift * (2.0 * own.total - own.n * shift),
        cross=own.cross - shift[:, None] * own.active,
    )


def squared_errors(
    own: ViewStats,
    second: Float64[np.ndarray, ...],
    mean: Float64[np.ndarray, "D K"],
    variance: Float64[np.ndarray, "D K"],
) -> Float64[np.ndarray, " D"]:
    """Return sum of E (y - w'x)^2 of every feature (the correction of equations 75 and 78)."""
    k = mean.shape[1]
    if second.shape == (k, k):
        quadratic = np.einsum("dk,dk->d", mean @ second, mean)
        spread = variance @ np.diagonal(second)
    else:
        low, high = triangle(k)
        twice = np.where(low == high, 1.0, 2.0)
        quadratic = np.einsum("dq,dq->d", second, twice * mean[:, low] * mean[:, high])
        spread = np.einsum("dk,dk->d", variance, second[:, low == high])
    errors = own.squares - 2.0 * np.einsum("dk,dk->d", mean, own.cross) + quadratic + spread
    return np.asarray(np.maximum(errors, 0.0))


def noise(
    own: ViewStats,
    second: Float64[np.ndarray, ...],
    mean: Float64[np.ndarray, "D K"],
    variance: Float64[np.ndarray, "D K"],
    prior: tuple[float, float],
) -> tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, " D"]]:
    """Return shape and rate of the noise precisions (77; 78 with the variance of the loadings)."""
    return prior[0] + 0.5 * own.n, prior[1] + 0.5 * squared_errors(own, second, mean, variance)


def sums_of(
    settings: Settings,
    own: ViewStats,
    second: Float64[np.ndarray, ...],
    weights: Weights,
    scale: Float64[np.ndarray, " D"],
) -> Sums:
    """Return the message of the features about the relevance, and their part of the free energy."""
    d, e = settings.hyper.noise
    shape, rate = weights.shape, weights.rate
    log_rho = digamma(shape) - np.log(rate)
    errors = squared_errors(own, second, weights.mean, weights.variance)
    data = 0.5 * own.n * (log_rho - LOG_2PI) - 0.5 * weights.precision * errors - own.n * np.log(scale)
    divergence = shape * np.log(rate) - d * np.log(e) - gammaln(shape) + gammaln(d)
    divergence += (shape - d) * log_rho - shape * (1.0 - e / rate)
    return Sums(
        squares=(weights.mean**2 + weights.variance).sum(axis=0),
        log_variance=np.log(weights.variance).sum(axis=0),
        data=float(data.sum()),
        noise=-float(divergence.sum()),
        n=float(own.n.sum()),
    )


def dynamics_statistics(moments: Moments) -> Float64[np.ndarray, "4 K"]:
    """Return what is added to eta, f, g, h (equations 63 to 66)."""
    k = len(moments.current)
    eta = np.full(k, 0.5 * moments.n_pairs)
    return np.stack([eta, -0.5 * moments.current, moments.cross, -0.5 * moments.previous])


def best_scale(
    moments: Moments,
    dynamics: Float64[np.ndarray, "3 K"],
    variance: float,
    n_features: int,
    fixed: Float64[np.ndarray, " K"] | None,
) -> Float64[np.ndarray, " K"]:
    """Return the best c of every column: attributes times c and loadings divided by it explain the same data.

    Loadings and attributes, updated in turns, move along this line by small steps only. The free energy has
    N log c - c^2 s / 2 with s = E a' (prior precision) a, and -D log c - gamma E w'w / (2 c^2).

    Parameters
    ----------
    dynamics : array
        E 1/(1 - l^2), l/(1 - l^2), l^2/(1 - l^2).
    variance : float
        sigma_a^2.
    n_features : int
        D of all views.
    fixed : array or None
        gamma E w'w; None where gamma is learned with it, so that the loadings have no say.
    """
    n = moments.n_first + moments.n_pairs
    size = moments.first / variance + dynamics[0] * moments.current
    size += dynamics[2] * moments.previous - 2.0 * dynamics[1] * moments.cross
    if fixed is None:
        return np.asarray(np.sqrt(n / size))
    n_others = n - n_features
    return np.asarray(np.sqrt((n_others + np.sqrt(n_others**2 + 4.0 * size * fixed)) / (2.0 * size)))


def scale_moments(moments: Moments, by: Float64[np.ndarray, " K"]) -> Moments:
    """Return the sums of attributes that are ``by`` times as large."""
    n, square = moments.n_first + moments.n_pairs, by**2
    return replace(
        moments,
        first=moments.first * square,
        current=moments.current * square,
        previous=moments.previous * square,
        cross=moments.cross * square,
        entropy=moments.entropy + n * float(np.log(by).sum()),
    )


def energy_of_columns(
    settings: Settings, relevance: Float64[np.ndarray, " K"], sums: Mapping[str, Sums]
) -> float:
    """Return E log P(W) - E log Q(W) (equations 96, corrected, and 106)."""
    squares = sum(s.squares for s in sums.values())
    log_variance = sum(s.log_variance for s in sums.values())
    size = settings.n_features
    each = size * (1.0 + np.log(relevance)) - relevance * squares + log_variance
    return 0.5 * float(each.sum())


def energy_of_states(settings: Settings, globals_: Globals, moments: Moments) -> float:
    """Return the parts of the free energy of B, A, T and Lambda (equations 92 to 110, corrected)."""
    c, now = settings.hyper, globals_.expected
    prior, posterior = np.array(c.transition), globals_.transition
    log_t = expected_log(posterior)
    energy = float((betaln(*posterior.T) - betaln(*prior.T)).sum())
    energy += float(((prior - posterior + moments.pairs) * log_t).sum())
    energy += float(moments.starts @ np.log([1.0 - c.initial, c.initial]))
    added = globals_.dynamics - c.dynamics_prior
    data = dynamics_statistics(moments)
    difference = data - added  # 0 right after the update of Lambda
    energy += float((now.log_normaliser - _prior_normaliser(c.dynamics)).sum())
    energy += float((-difference[0] * now.log + (difference[1:] * now.moments).sum(axis=0)).sum())
    k = c.n_columns
    energy -= 0.5 * k * moments.n_pairs * LOG_2PI
    energy -= 0.5 * k * moments.n_first * float(np.log(2.0 * np.pi * c.variance))
    energy -= 0.5 * float(moments.first.sum()) / c.variance
    return energy + moments.entropy


@lru_cache(maxsize=64)
def _prior_normaliser(dynamics: tuple[float, float, float, float]) -> float:
    """Return log Z of the prior of lambda."""
    return float(expectations(np.array(dynamics)[:, None]).log_normaliser[0])
