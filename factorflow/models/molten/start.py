"""Initialisation: sums by level, factors around them; the best of several starts; dead components.

Products of G factors of every component are to have the size of the response. By default they follow the mean
responses of the levels ("margins"): of counts, all factors of a level are in proportion to its mean, times
noise; Gaussian, component g = 1 ... G has the deviations of the levels of variable g, the others are noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Block, Info, Step, Sweep, wide
from factorflow.models.molten.factors import complete_levels
from factorflow.models.molten.measurements import gaussian_totals
from factorflow.models.molten.rows import prepare_rows
from factorflow.models.molten.scales import update_scale
from factorflow.models.molten.settings import Settings
from factorflow.models.molten.state import Globals, Levels, Moments, Totals, best_start, select_columns

START = MODELS[0]

_SHAPE = 10.0
"""Shape of q(lambda) at the start."""

_SPREAD = 0.5
"""Standard deviation of the logarithm of the noise around the margins."""


@dataclass(frozen=True)
class LevelSums:
    """Sums over the shown rows of each level: how many, of the response, of the exposure."""

    n: Float64[np.ndarray, " D"]
    response: Float64[np.ndarray, " D"]
    exposure: Float64[np.ndarray, " D"]


@dataclass(frozen=True)
class Stats:
    """Sums over the shown rows; ``groups``: of weights and their squares, by level of a linear group."""

    levels: Mapping[str, LevelSums] = field(metadata=wide())
    groups: Mapping[str, Float64[np.ndarray, "2 D"]]
    moments: Moments


@dataclass(frozen=True)
class StartSweep(Sweep[Globals, None, Stats]):
    """One pass over the data: where each level lies."""

    settings: Settings
    name: ClassVar[str] = "start"

    def axes(self) -> Mapping[str, int]:
        """Return the variables."""
        return {name: self.settings.size(name) for name in self.settings.names}

    def map(self, block: Block, local: None, globals_: Globals, step: Step) -> tuple[None, Stats]:
        """Return the sums of a block."""
        s, rows = self.settings, prepare_rows(self.settings, block)
        counts, t = s.likelihood == "poisson", rows.weight
        response = rows.y if counts else t * rows.y
        levels, observed = {}, (t > 0).astype(float)
        for g, name in enumerate(s.names):
            if name in rows.groups:
                x = rows.groups[name]
                levels[name] = LevelSums(observed @ (x != 0.0), response @ x, t @ x)
                continue
            codes, size = rows.codes[:, g] - s.starts[g], s.size(name)
            sums = (np.bincount(codes, x, size) for x in (observed, response, t))
            levels[name] = LevelSums(*sums)
        groups = {name: np.stack([observed @ np.abs(x), observed @ x**2]) for name, x in rows.groups.items()}
        about = s.roles.location
        squares = rows.within + float(response @ rows.y)
        if about:
            squares = rows.within + float(t @ np.where(t > 0, rows.y - about, 0.0) ** 2)
        total, exposure = float(response.sum()), float(t.sum())
        return None, Stats(levels, groups, Moments(rows.n, total, squares, exposure, about * rows.n))

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Levels, Totals]:
        """Return where a run of levels starts."""
        s, sums, k = self.settings, stats.levels[axis], globals_.scale.shape[2]
        free, moments = s.free(axis, index, k), stats.moments
        several = s.likelihood == "gaussian" and axis not in stats.groups
        weights = np.maximum(sums.n, sums.exposure) if several else sums.n
        if s.roles.level_exposures is not None:  # cells with y = 0 are not among the rows
            each = np.array([s.grid_exposure(name).sum() for name in s.names])
            own = s.grid_exposure(axis)[index.start : index.stop]
            exposure = own * each.prod() / each[s.names.index(axis)]
            sums, weights = replace(sums, exposure=exposure), (own > 0).astype(float)
            moments = replace(moments, exposure=float(each.prod()))
        make = self._rates if s.likelihood == "poisson" else self._effects
        levels = make(axis, index, free, sums, moments, step)
        if axis in stats.groups:
            levels = self._divide(levels, free, _typical_divisor(stats.groups[axis], moments.n, index))
        levels = replace(levels, seen=weights)
        unseen = (weights == 0)[:, None, None] & free[:, None, :]
        one, two = self._prior(moments)
        levels = replace(levels, one=np.where(unseen, one, levels.one), two=np.where(unseen, two, levels.two))
        if s.likelihood == "gaussian":
            return levels, gaussian_totals(levels, free)
        return complete_levels(levels, free)

    def assemble(
        self,
        globals_: Globals,
        stats: Stats,
        parts: Mapping[str, Levels],
        sums: Mapping[str, Totals],
        step: Step,
    ) -> tuple[Globals, Info]:
        """Return the globals of the start."""
        s, moments = self.settings, stats.moments
        after = replace(globals_, levels=dict(parts), totals=dict(sums), moments=moments)
        if globals_.noise is not None:
            n_starts = s.hyper.n_starts
            after = replace(after, noise=np.stack([np.ones(n_starts), np.full(n_starts, moments.unit)]))
        return update_scale(s, after), {"observed": moments.n}

    def _divide(self, levels: Levels, free: np.ndarray, typical: Float64[np.ndarray, "D 1 1"]) -> Levels:
        """Return levels with factors divided by numbers."""
        by = np.where(free[:, None, :], typical, 1.0)
        if self.settings.likelihood == "poisson":
            return replace(levels, two=levels.two * by)
        return replace(levels, one=levels.one / by, two=levels.two / by**2)

    def _prior(self, moments: Moments) -> tuple[float, float]:
        """Return q of a level that no row has, before the prior is learned."""
        hyper = self.settings.hyper
        if self.settings.likelihood == "poisson":
            return hyper.shape or 1.0, hyper.rate or 1.0
        return 0.0, 1.0 / hyper.rate if hyper.rate else moments.unit ** (1.0 / self.settings.n_variables)

    def _noise(self, axis: str, index: range, step: Step, n_columns: int) -> Float64[np.ndarray, "D S K"]:
        s = self.settings
        n_starts = s.hyper.n_starts
        rows = s.starts[s.names.index(axis)] + np.arange(index.start, index.stop)
        noise = step.normal(START, rows, n_starts * n_columns)
        return np.asarray(noise.reshape(len(index), n_starts, n_columns))

    def _rates(
        self, axis: str, index: range, free: np.ndarray, sums: LevelSums, moments: Moments, step: Step
    ) -> Levels:
        """Return q(lambda) of a run of levels."""
        s, k = self.settings, free.shape[1]
        rate = max(moments.total, 1.0) / max(moments.exposure, 1e-300)
        mean = (rate / (k - s.n_additive)) ** (1.0 / s.n_variables)
        noise = self._noise(axis, index, step, k)
        if s.hyper.start == "margins":
            ratio = (sums.response + 1.0) / (rate * sums.exposure + 1.0)
            factors = mean * ratio[:, None, None] * np.exp(_SPREAD * noise)
        else:
            factors = mean * np.exp(noise)
        if s.n_additive:
            apart = ~s.is_component(k)
            factors[:, :, apart] = 0.1 * rate / s.n_variables * np.exp(_SPREAD * noise[:, :, apart])
        learned = free[:, None, :]
        one = np.where(learned, _SHAPE, 1.0) * np.ones(factors.shape)
        return Levels(one, np.where(learned, _SHAPE / factors, 1.0), np.zeros(factors.shape), sums.n)

    def _effects(
        self, axis: str, index: range, free: np.ndarray, sums: LevelSums, moments: Moments, step: Step
    ) -> Levels:
        """Return q(mu) of a run of levels."""
        s, k, g = self.settings, free.shape[1], self.settings.names.index(axis)
        size = (moments.unit / k) ** (0.5 / s.n_variables)
        noise = self._noise(axis, index, step, k)
        m = size * noise
        if s.hyper.start == "margins":
            there = sums.exposure > 0.0
            deviation = np.where(there, sums.response / np.where(there, sums.exposure, 1.0), 0.0)
            deviation = deviation - moments.mean
            for main in range(min(k, s.n_variables)):
                own = deviation[:, None] / size ** (s.n_variables - 1)
                m[:, :, main] = own if main == g else size
            m = m + 0.1 * size * noise
        learned = free[:, None, :]
        m = np.where(learned, m, 1.0)
        return Levels(m, np.where(learned, 0.01 * size**2, 0.0) * np.ones(m.shape), None, sums.n)


def _typical_divisor(
    sums: Float64[np.ndarray, "2 A"], n: float, index: range
) -> Float64[np.ndarray, "D 1 1"]:
    """Return what factors of a linear group are divided by, so that their weighted sum has their size.

    The weight of a level where it has one, times the number of levels that a row has at once; for one-hot
    weights both are 1.
    """
    some = sums[0] > 0.0
    weight = np.where(some, sums[1] / np.where(some, sums[0], 1.0), 1.0)
    together = max(float((sums[0] / weight).sum()) / max(n, 1.0), 1.0)
    return np.asarray(weight[index.start : index.stop, None, None] * together)


def empty_globals(settings: Settings) -> Globals:
    """Return globals before any data are seen."""
    hyper, counts = settings.hyper, settings.likelihood == "poisson"
    n, k = hyper.n_starts, hyper.n_components + settings.n_additive
    ones = np.ones(n)
    return Globals(
        levels={},
        totals={},
        scale=np.ones((2, n, k)),
        noise=None if counts else np.ones((2, n)),
        intercept=None if counts or hyper.intercept_precision is None else np.stack([0.0 * ones, ones]),
        shape=ones * (hyper.shape or 1.0) if counts else None,
        dispersion=ones if hyper.overdispersed else None,
        data=0.0 * ones,
        strength=np.ones((n, k)) / k,
        objective=0.0 * ones,
        tried=np.zeros(0),
        moments=Moments(),
    )


def choose(globals_: Globals) -> Globals:
    """Return the best start alone."""
    return best_start(globals_)


def prune(settings: Settings, globals_: Globals) -> Globals:
    """Return globals without components whose share is below `Hyperparameters.drop`; one is left."""
    chosen = best_start(globals_)
    strength, multiplied = chosen.strength[0], settings.is_component(chosen.strength.shape[1])
    is_kept = (strength >= settings.hyper.drop) | ~multiplied
    is_kept[int(np.argmax(np.where(multiplied, strength, -1.0)))] = True
    return chosen if is_kept.all() else select_columns(chosen, is_kept)
