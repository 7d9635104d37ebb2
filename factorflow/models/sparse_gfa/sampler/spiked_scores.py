"""Draws of scores that may be 0, or may not be negative, one factor after the other.

z = s v, s ~ Bernoulli(psi), and v ~ N(0, 1 / beta), on v >= 0 N(0, 1 / beta) or Exp(beta); psi and beta of
each group and factor. With precision A_n and linear term h_n of a row, P, mu and Z of `loadings.mixture`::

    l = h_k - sum_{j != k} A_kj z_j,   p = A_kk
    s ~ Bernoulli(psi Z / (1 - psi + psi Z)),   v | s = 1 ~ N(mu, 1 / P), on v >= 0 where the slab is

What is learned of size factors has neither spikes nor signs, and a normal prior.

Where views take Metropolis steps this conditional, of their stand-ins, is a proposal, accepted by R
(`metropolis`). Stand-ins fall where log p is flat, and rows would stay there: a step of elliptical slice
sampling of the scores that are not 0 follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float64, Integer
from scipy import special

from factorflow.core.trees import replace
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.loadings.mixture import Component, draw_mixture
from factorflow.models.sparse_gfa.loadings.nonnegative import SLABS
from factorflow.models.sparse_gfa.sampler.drawn_sums import DrawnStats
from factorflow.models.sparse_gfa.sampler.metropolis import Entries, log_ratios, slice_scores
from factorflow.models.sparse_gfa.settings import Settings

ROW_SITE = MODELS[36]
"""Noise: s, v and acceptance of each score, then what the slice begins with."""
FIRST_SCANS = 10
"""Draws of every score in the first sweep, from arbitrary values; there is one in each later sweep."""


@dataclass(frozen=True)
class SpikedPrior:
    """Prior of the scores of some rows, and of what is learned of their size factors.

    Parameters
    ----------
    slab : {"normal", "half", "exponential"}
        Density of scores that are not 0.
    precision : array
        beta of each score, the precisions of learned size factors last.
    share : array
        psi.
    """

    slab: Literal["normal", "half", "exponential"]
    precision: Float64[np.ndarray, "#B L"]
    share: Float64[np.ndarray, "#B K"]

    @classmethod
    def of(
        cls, settings: Settings, precision: Float64[Array, "#B L"], share: Float64[Array, "#B K"]
    ) -> SpikedPrior:
        """Return the prior of the scores in these settings."""
        kind = SLABS[settings.score_slab].kind if settings.nonnegative else "normal"
        assert kind != "zero"
        return cls(kind, precision, share)

    def draw(
        self,
        k: int,
        p: Float64[Array, "#B"],
        linear: Float64[Array, " B"],
        uniform: Float64[Array, "B two"],
    ) -> Float64[Array, " B"]:
        """Draw score k of all rows given its message exp(linear z - p z^2 / 2)."""
        beta = self.precision[:, k]
        if k >= self.share.shape[1]:
            sd = (p + beta) ** -0.5
            return linear * sd**2 + sd * special.ndtri(uniform[:, 1])
        components, psi = (Component("zero"), Component(self.slab)), self.share[:, k]
        log_shares = np.stack([np.log1p(-psi), np.log(psi)], axis=1)
        return draw_mixture(components, linear, p, beta, log_shares, uniform)

    def gaussian_part(
        self,
    ) -> tuple[Float64[Array, "#B L"], Callable[[Float64[Array, "P L"], Array], Array] | None]:
        """Return the precision of a normal density of scores that are not 0, and log of the slab over it."""
        n_factors = self.share.shape[1]
        if self.slab == "normal":
            return self.precision, None
        precision, rate = self.precision.copy(), self.precision[:, :n_factors]
        if self.slab == "exponential":  # as wide: alone it has no precision
            precision[:, :n_factors] = rate**2

        def log_extra(values: Float64[Array, "P L"], rows: Integer[Array, " P"]) -> Float64[Array, " P"]:
            z, extra = values[:, :n_factors], np.zeros(len(values))
            if self.slab == "exponential":
                scaled = z * (rate if len(rate) == 1 else rate[rows])
                extra = (0.5 * scaled**2 - scaled).sum(axis=1)
            return np.where((z >= 0.0).all(axis=1), extra, -np.inf)

        return precision, log_extra


def draw_spiked(
    prior: SpikedPrior,
    equations: tuple[Float64[Array, "#B L L"], Float64[Array, "B L"]],
    before: Float64[Array, "B L"],
    rows: Integer[Array, " B"],
    step: Step,
    corrected: tuple[Sequence[Entries], Float64[Array, "B C"]],
    n_scans: int,
) -> tuple[Float64[Array, "B L"], float]:
    """Return new scores of rows, and how many places slices tried.

    Parameters
    ----------
    equations : (array, array)
        A and h, without the prior.
    before : array
        Scores to begin with, and learned sizes.
    rows : array
        Numbers of the rows.
    corrected : (list of Entries, array)
        Of views with Metropolis steps, and the given columns of the rows.
    n_scans : int
        Times that each score is drawn.
    """
    (pairs, linear), (entries, design), z = equations, corrected, before.copy()
    n, size = z.shape
    noise = draws.uniform(step, ROW_SITE, rows, max(1, (3 * n_scans + 1) * size))
    uniform = noise[:, : 3 * n_scans * size].reshape(n, n_scans * size, 3)
    now = log_ratios(entries, z, design) if entries else np.zeros(n)
    for i in range(n_scans * size):
        k = i % size
        row = pairs[:, k]
        others = np.einsum("nj,nj->n", np.broadcast_to(row, z.shape), z) - row[:, k] * z[:, k]
        value = prior.draw(k, row[:, k], linear[:, k] - others, uniform[:, i, :2])
        if not entries:
            z[:, k] = value
            continue
        tried = z.copy()
        tried[:, k] = value
        then = log_ratios(entries, tried, design)
        taken = np.log(uniform[:, i, 2]) < then - now
        z[taken], now = tried[taken], np.where(taken, then, now)
    if not entries or not size:
        return z, 0.0
    is_free = np.ones(z.shape, bool)
    is_free[:, : prior.share.shape[1]] = z[:, : prior.share.shape[1]] != 0.0
    precision, log_extra = prior.gaussian_part()
    centre, fresh = _gaussian(
        (pairs, linear), precision, is_free, special.ndtri(noise[:, 3 * n_scans * size :])
    )
    z, tried_places = slice_scores(entries, design, centre, z, fresh, rows, step, log_extra)
    return z if log_extra is None else _not_below_zero(z, prior.share.shape[1]), tried_places


def _not_below_zero(z: Float64[Array, "B L"], n_factors: int) -> Float64[Array, "B L"]:
    """Return scores that rounding took below 0 as 0."""
    return np.concatenate([np.maximum(z[:, :n_factors], 0.0), z[:, n_factors:]], axis=1)


def _gaussian(
    equations: tuple[Float64[Array, "#B L L"], Float64[Array, "B L"]],
    precision: Float64[Array, "#B L"],
    is_free: Bool[Array, "B L"],
    noise: Float64[Array, "B L"],
) -> tuple[Float64[Array, "B L"], Float64[Array, "B L"]]:
    """Return mean, and a draw, of normal scores of which some are 0."""
    pairs, linear = equations
    of_both = is_free[:, :, None] & is_free[:, None, :]
    size = linear.shape[1]
    full = np.where(of_both, pairs + precision[:, :, None] * np.eye(size), np.eye(size))
    root = np.linalg.cholesky(full)
    white = np.linalg.solve(root, np.where(is_free, linear, 0.0)[:, :, None])
    both = np.concatenate([white, white + np.where(is_free, noise, 0.0)[:, :, None]], axis=2)
    solved = np.linalg.solve(root.transpose(0, 2, 1), both)
    return solved[:, :, 0], solved[:, :, 1]


def slab_sums(
    settings: Settings, stats: DrawnStats, scores: Float64[Array, "B K"], codes: Integer[Array, " B"]
) -> DrawnStats:
    """Return the sums of scores that beta and psi follow from: how many are not 0, and |z|^power of these."""
    number, second, k = stats.number.copy(), stats.second.copy(), scores.shape[1]
    for g in range(len(number)):
        own = scores[codes == g]
        number[g, :k], second[g, :k] = (
            (own != 0.0).sum(axis=0),
            (np.abs(own) ** settings.score_power).sum(axis=0),
        )
    return replace(stats, number=number, second=second)
