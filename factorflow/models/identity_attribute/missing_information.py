"""Missing information (SEM) of q(lambda) and q(rho), which widens the intervals of chains.

q(lambda) is too narrow for two reasons. It counts E a_t a_t-1 of all frames as if attributes had been seen;
where an identity is absent, or the noise is large, they follow from lambda itself. r is the share of a small
change of lambda that an iteration leaves (Dempster, Laird and Rubin 1977, JRSS B 39; Meng and Rubin 1991,
JASA 86, 899-909)::

    r = (M(l + d) - M(l)) / d          M: the mean of q(lambda) after the attributes are smoothed given l

And it takes the scale of attributes for known, which is learned with the loadings. Of log scale s and lambda,
complete data of n pairs of frames and n0 first frames have the information::

    I_ll = n (1 + l^2) / (1 - l^2)^2     I_ls = -2 n l / (1 - l^2)     I_ss = 2 (n + n0)
    1 - I_ls^2 / (I_ll I_ss) = 1 - 2 l^2 / (1 + l^2)  n / (n + n0)

q(rho) counts entries as if what explains them was known. With h the share of a feature's noise that is
uncertainty of x = a b, frames have the information (1 - h)^2 / 2 of log rho (of N(0, W S W' + 1 / rho), S the
covariance of x: (S_y^-1)_dd = rho_d (1 - h_d))::

    h_d = rho_d w_d' Cov(x) w_d = 1 - rho_d / n_d  sum_t (y_td - m_d - w_d' E x_t)^2

So a run of chains ends with two more smoothings, the first of them with another lambda, and intervals are
those of q(lambda) to the power of (1 - r) times that share, and of q(rho) to the power of (1 - h)^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import map_leaves
from factorflow.kernels import device
from factorflow.models.contract import Block, Info, Stage, Step, Sweep
from factorflow.models.identity_attribute.chains import (
    AllChains,
    AttributeSweep,
    ChainEnd,
    PresenceSweep,
    State,
)
from factorflow.models.identity_attribute.dynamics import expectations
from factorflow.models.identity_attribute.learning import (
    dynamics_statistics,
    shift_statistics,
    squared_errors,
)
from factorflow.models.identity_attribute.settings import Settings
from factorflow.models.identity_attribute.state import Chains, Globals, Moments, Stats
from factorflow.models.identity_attribute.sums import sums_by_view
from factorflow.models.identity_attribute.tables import Tables

AWAY = 2.0
"""Step in lambda, in standard deviations of q(lambda)."""

FARTHEST = 0.5
"""Largest step: |g| < -(f + h) remains."""

MOST_MISSING = 0.99
"""Largest r: where hardly any frame shows an identity, its lambda is hardly known."""


def missing_information_stage(settings: Settings) -> Stage[Globals]:
    """Return the stage that finds the missing information; the state is that of the fit after it."""
    each = [
        (AttributeSweep(settings, p), PresenceSweep(settings, p)) for p in range(settings.hyper.n_identities)
    ]
    sweeps = (
        (RepeatedEnd(AllChains(settings, False)),)
        if settings.one_block
        else (*(sweep for pair in each for sweep in pair), RepeatedEnd(ChainEnd(settings, False)))
    )
    return Stage("missing information", sweeps, 2, enter=_enter_displaced, counts=False, closing=True)


@dataclass(frozen=True)
class RepeatedEnd(Sweep[Globals, State, Stats]):
    """The end of an iteration that updates nothing, but for what is noted.

    Parameters
    ----------
    end : AllChains or ChainEnd
        The end of an iteration of the fit.
    """

    end: AllChains | ChainEnd
    name: ClassVar[str] = "chains again"
    neighbours: ClassVar[bool] = True

    @property
    def settings(self) -> Settings:
        """The model."""
        return self.end.settings

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables of the globals."""
        return self.end.prepare(globals_)

    def axes(self) -> dict[str, int]:
        """Return the features of the views."""
        return self.end.axes()

    def carry(self, globals_: Globals, stats: Stats, step: Step) -> Globals:
        """Hand the edges on."""
        return self.end.carry(globals_, stats, step)

    def map(self, block: Block, local: State | None, globals_: Tables, step: Step) -> tuple[Chains, Stats]:
        """Smooth, and add up; of x its mean alone."""
        now, stats = self.end.map(block, local, globals_, step)
        settings, c = self.settings, self.settings.hyper
        observed = settings.observed(block, globals_.location, globals_.scale)
        x, size = now.activity, (c.n_identities, c.n_attributes, c.n_attributes)
        total = device.on_host(x.sum(axis=0))
        nothing = device.move_beside(np.zeros((len(x), *size)), x)
        views, second = sums_by_view(settings, observed, x, total, nothing, np.zeros(size))
        return now, replace(stats, views=views, second=second)

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Float64[np.ndarray, " D"], float]:
        """Return h of some features of a view."""
        rows = slice(index.start, index.stop)
        weights = map_leaves(lambda array: array[rows], globals_.weights[axis])
        own = shift_statistics(stats.views[axis], weights.shift)
        second = stats.second[axis] if own.second is None else own.second
        left = squared_errors(own, second, weights.mean, 0.0 * weights.mean)
        share = np.where(own.n > 0.0, 1.0 - weights.precision * left / np.maximum(own.n, 1.0), 0.0)
        return np.clip(share, 0.0, MOST_MISSING), 0.0

    def assemble(
        self,
        globals_: Globals,
        stats: Stats,
        parts: Mapping[str, Float64[np.ndarray, " D"]],
        sums: Mapping[str, float],
        step: Step,
    ) -> tuple[Globals, Info]:
        """Note what lambda became of another one; then of itself, what share of that was left, and h."""
        mean_dynamics = expectations(
            self.settings.hyper.dynamics_prior + dynamics_statistics(stats.moments)
        ).mean
        if step.count == 0:
            return replace(globals_, expected=expectations(globals_.dynamics), missing=mean_dynamics), {}
        change = expectations(_displace_dynamics(globals_)).mean - globals_.expected.mean
        still = change == 0.0  # q(lambda) is a uniform prior
        left = np.where(still, 0.0, globals_.missing - mean_dynamics) / np.where(still, 1.0, change)
        share_observed = 1.0 - np.clip(left, 0.0, MOST_MISSING)
        scaled = 1.0 - _shared_with_scale(globals_.expected.mean, stats.moments)
        return replace(globals_, missing=1.0 - share_observed * scaled, uncertain=dict(parts)), {}


def _displace_dynamics(globals_: Globals) -> Float64[np.ndarray, "4 K"]:
    """Return the parameters of q(lambda) moved towards 0, where it stays a density."""
    eta, f, g, h = globals_.dynamics
    away = np.minimum(AWAY * np.sqrt(globals_.expected.variance), FARTHEST)
    return np.stack([eta, f, g + np.where(g < 0.0, -1.0, 1.0) * away * (f + h), h])


def _enter_displaced(globals_: Globals) -> Globals:
    return replace(globals_, expected=expectations(_displace_dynamics(globals_)))


def _shared_with_scale(lam: Float64[np.ndarray, " K"], moments: Moments) -> Float64[np.ndarray, " K"]:
    """Return I_ls^2 / (I_ll I_ss)."""
    share = moments.n_pairs / max(moments.n_pairs + moments.n_first, 1.0)
    return np.asarray(2.0 * lam**2 / (1.0 + lam**2) * share)
