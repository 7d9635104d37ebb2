"""How much of what q(lambda) rests on the data have not told: the width of intervals of chains.

q(lambda) is too narrow for two reasons. It counts E a_t a_t-1 of all frames as if attributes had been seen;
where an identity is absent, or the noise is large, they follow from lambda itself. r is the share of a small
change of lambda that an iteration leaves (Dempster, Laird and Rubin 1977, JRSS B 39; Meng and Rubin 1991,
JASA 86, 899-909)::

    r = (M(l + d) - M(l)) / d          M: the mean of q(lambda) after the attributes are smoothed given l

And it takes the scale of attributes for known, which is learned with the loadings. Of log scale s and lambda,
complete data of n pairs of frames and n0 first frames have the information::

    I_ll = n (1 + l^2) / (1 - l^2)^2     I_ls = -2 n l / (1 - l^2)     I_ss = 2 (n + n0)
    1 - I_ls^2 / (I_ll I_ss) = 1 - 2 l^2 / (1 + l^2)  n / (n + n0)

So a run of chains ends with two more smoothings, the first of them with another lambda, and intervals are
those of q(lambda) to the power of (1 - r) times this share.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Info, Stage, Step
from factorflow.models.identity_attribute.chains import AllChains, AttributeSweep, ChainEnd, PresenceSweep
from factorflow.models.identity_attribute.dynamics import expectations
from factorflow.models.identity_attribute.learning import dynamics_statistics
from factorflow.models.identity_attribute.settings import Settings
from factorflow.models.identity_attribute.state import Globals, Moments, Stats

__all__ = ["looking"]

AWAY = 2.0
"""How far lambda is moved, in standard deviations of q(lambda)."""

FARTHEST = 0.5
"""How far at most: |g| < -(f + h) remains."""

MOST_MISSING = 0.99
"""Largest r: where hardly any frame shows an identity, its lambda is hardly known."""


def looking(settings: Settings) -> Stage[Globals]:
    """Return the stage that finds the missing information; the state is that of the fit after it."""
    each = [
        (AttributeSweep(settings, p), PresenceSweep(settings, p))
        for p in range(settings.choices.n_identities)
    ]
    sweeps = (
        (AllAgain(settings, False),)
        if settings.one_block
        else (*(sweep for pair in each for sweep in pair), EndAgain(settings, False))
    )
    return Stage("missing information", sweeps, 2, enter=_moved, counts=False, closing=True)


class AllAgain(AllChains):
    """All identities once more, as they are where lambda is another one; then as they were."""

    def axes(self) -> dict[str, int]:
        """Return that nothing of the features is updated."""
        return {}

    def update(self, globals_: Globals, stats: Stats, step: Step) -> tuple[Globals, Info]:
        """See `_looked`."""
        return _looked(self.settings, globals_, stats, step), {}


class EndAgain(ChainEnd):
    """The end of such an iteration where chains go on in other blocks."""

    def axes(self) -> dict[str, int]:
        """Return that nothing of the features is updated."""
        return {}

    def update(self, globals_: Globals, stats: Stats, step: Step) -> tuple[Globals, Info]:
        """See `_looked`."""
        return _looked(self.settings, globals_, stats, step), {}


def _elsewhere(globals_: Globals) -> Float64[np.ndarray, "4 K"]:
    """Return the parameters of q(lambda) moved towards 0, where it stays a density."""
    eta, f, g, h = globals_.dynamics
    away = np.minimum(AWAY * np.sqrt(globals_.expected.variance), FARTHEST)
    return np.stack([eta, f, g + np.where(g < 0.0, -1.0, 1.0) * away * (f + h), h])


def _moved(globals_: Globals) -> Globals:
    return replace(globals_, expected=expectations(_elsewhere(globals_)))


def _looked(settings: Settings, globals_: Globals, stats: Stats, step: Step) -> Globals:
    """Note what lambda became of another one; then of itself, and what share of the change was left."""
    found = expectations(settings.choices.dynamics_prior + dynamics_statistics(stats.moments)).mean
    if step.count == 0:
        return replace(globals_, expected=expectations(globals_.dynamics), missing=found)
    change = expectations(_elsewhere(globals_)).mean - globals_.expected.mean
    still = change == 0.0  # q(lambda) is a uniform prior
    left = np.where(still, 0.0, globals_.missing - found) / np.where(still, 1.0, change)
    seen = 1.0 - np.clip(left, 0.0, MOST_MISSING)
    scaled = 1.0 - _shared_with_scale(globals_.expected.mean, stats.moments)
    return replace(globals_, missing=1.0 - seen * scaled)


def _shared_with_scale(lam: Float64[np.ndarray, " K"], moments: Moments) -> Float64[np.ndarray, " K"]:
    """Return I_ls^2 / (I_ll I_ss)."""
    share = moments.n_pairs / max(moments.n_pairs + moments.n_first, 1.0)
    return np.asarray(2.0 * lam**2 / (1.0 + lam**2) * share)
