"""The sweep of a probit factor model: factors per block, loadings per feature, then a, b and tau^2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Float64, Int32, Shaped
from scipy import special

from factorflow.errors import InputError, pluralize
from factorflow.kernels.device import on_host
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.probit.kernels.blocks import draw_loadings, sweep_block
from factorflow.models.probit.kernels.samplers import HMC, STOPPED, TRAJECTORIES
from factorflow.models.probit.kernels.tables import FactorTables
from factorflow.models.probit.kernels.trajectory import CROSSINGS, ENERGY_ERROR, SWITCHES, WALLS
from factorflow.models.probit.state import (
    DrawSums,
    FeatureStats,
    FeatureSums,
    Globals,
    Local,
    Settings,
    Stats,
    initial_factors,
    pack,
)

LOADING_SITE, GLOBALS_SITE = MODELS[5], MODELS[6]
"""Noise: per feature c, z and the rescaling of its utilities; and a, b and tau^2 by number."""

EDGE = 1e-12
"""a and b are kept this far from 0 and 1: their logarithms are taken."""


@dataclass(frozen=True)
class ProbitSweep(Sweep[Globals, Local, Stats]):
    """One sweep: (s, v, y) of every row, (c, z) of every feature, then a, b and tau^2.

    Parameters
    ----------
    keep : bool
        Whether predictions and factors are averaged: sampling, as opposed to burn-in.
    """

    settings: Settings
    keep: bool
    name: ClassVar[str] = "sweep"

    def map(self, block: Block, local: Local | None, globals_: Globals, step: Step) -> tuple[Local, Stats]:
        """Move the factors of a block, draw its utilities and sum their statistics."""
        s = self.settings
        x = block.data[s.view]
        if local is None:
            _check_rows(s.view, block)
        hidden = block.hidden.get(s.view)
        held_out = self.keep and s.keep_held_out and hidden is not None and len(hidden[0]) > 0
        keep_rows = self.keep and s.keep_all
        before = initial_factors(s, block, step) if local is None else local.factors(s.n_factors)
        new_factors, chances, sums = sweep_block(
            x, block.start, before, factor_tables(s, globals_), step, chances=keep_rows or held_out
        )
        new_factors = on_host(new_factors)
        draw_sums = DrawSums()
        if self.keep:
            draw_sums = _add_draw(s, local, new_factors, chances, x, hidden if held_out else None)
        stats = Stats(
            {s.view: FeatureStats(sums.missing_gram if s.scattered else None, sums.cross, sums.squares)},
            sums.total_gram,
            (new_factors != 0.0).sum(axis=0, dtype=np.float64),
            float(block.n_rows),
            float((x >= 0).sum()),
            float(sums.density),
            sums.counts,
        )
        return Local(**pack(s, new_factors), **draw_sums), stats

    def axes(self) -> Mapping[str, int]:
        """Return the view and its number of features."""
        return {self.settings.view: self.settings.n_features}

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Float64[np.ndarray, "N K1"], FeatureSums]:
        """Draw the loadings of a run of features."""
        part = stats.features[axis]
        size = self.settings.n_factors + 1
        gram = (
            np.tile(stats.total_gram, (len(index), 1))
            if part.missing_gram is None
            else stats.total_gram - part.missing_gram
        )
        _check_features(axis, index, gram[:, -1])
        uniform = step.uniform(LOADING_SITE, np.asarray(index), 2 * size + 1)
        chi_squares = 2.0 * special.gammaincinv(0.5 * np.round(gram[:, -1]), uniform[:, -1])
        choice = np.ascontiguousarray(uniform[:, :size])
        noise = choice, special.ndtri(uniform[:, size:-1]), chi_squares
        before = globals_.loadings[axis][index.start : index.stop]
        odds = globals_.density / (1.0 - globals_.density)
        z = draw_loadings(gram, part.cross, part.squares, odds, globals_.variance, noise, before)
        prior = _log_prior_loadings(before, globals_)
        return z, FeatureSums(float((z != 0.0).sum()), float(z.size), float((z * z).sum()), prior)

    def assemble(
        self,
        globals_: Globals,
        stats: Stats,
        parts: Mapping[str, Float64[np.ndarray, "N K1"]],
        sums: Mapping[str, FeatureSums],
        step: Step,
    ) -> tuple[Globals, Info]:
        """Draw a, b and tau^2; report the log joint density of the state the sweep started from."""
        s, total = self.settings, sums[self.settings.view]
        uniform = step.uniform(GLOBALS_SITE, np.arange(s.n_factors + 2))[:, 0]
        activity = _draw_beta(stats.active, stats.n_rows - stats.active, s.activity_prior, uniform[2:])
        included = np.array([total.included])
        density = _draw_beta(included, total.entries - included, s.density_prior, uniform[:1])[0]
        shape = s.variance_prior[0] + 0.5 * total.included
        rate = s.variance_prior[1] + 0.5 * total.square
        usable = shape > 0.0 and rate > 0.0  # an improper prior with nothing included
        variance = rate / special.gammaincinv(shape, uniform[1]) if usable else globals_.variance
        objective = stats.density + stats.n_rows * float(np.log1p(-globals_.activity).sum())
        objective += total.log_prior + _log_prior_globals(s, globals_)
        info: Info = {
            "objective": float(objective),
            "observed": stats.observed,
            "variance": float(variance),
            "density": float(density),
            "monitor_active": float(stats.active.sum() / (stats.n_rows * s.n_factors)),
            "monitor_included": total.included / total.entries,
        }
        if s.sampler == HMC:
            info |= _trajectory_info(s, stats.counts)
        return Globals(dict(parts), activity, float(density), float(variance)), info


def factor_tables(settings: Settings, globals_: Globals) -> FactorTables:
    """Return the tables of globals for the kernels."""
    loadings = globals_.loadings[settings.view]
    z = np.ascontiguousarray(loadings[:, :-1].T)
    return FactorTables(
        z,
        np.ascontiguousarray(loadings[:, -1]),
        z @ z.T,
        globals_.activity / (1.0 - globals_.activity),
        settings.kind,
        settings.sampler,
        settings.travel_time,
        settings.step_limit,
    )


def _add_draw(
    settings: Settings,
    local: Local | None,
    factors: Float[np.ndarray, "B K"],
    chances: Float64[np.ndarray, "B N"] | None,
    x: Shaped[Array, "B N"],
    hidden: tuple[Int32[np.ndarray, " H"], Int32[np.ndarray, " H"]] | None,
) -> DrawSums:
    """Return the fields of `Local` that sum over draws, with one more draw in them."""
    fields = DrawSums(n_kept=1 if local is None else local.n_kept + 1)
    if settings.keep_means:
        fields["sum_on"] = _add_to_sum(local.sum_on if local else None, (factors != 0.0).astype(np.float32))
        fields["sum_values"] = _add_to_sum(local.sum_values if local else None, factors.astype(np.float32))
    if chances is None:
        return fields
    of_one = np.where(on_host(x) == 0, 1.0 - chances, chances)
    if settings.keep_all:
        fields["sum_chances"] = _add_to_sum(local.sum_chances if local else None, of_one)
    if hidden is not None:
        fields["sum_held_out"] = _add_to_sum(
            local.sum_held_out if local else None, of_one[hidden[0], hidden[1]]
        )
    return fields


def _add_to_sum(
    total: Float[np.ndarray, "*shape"] | None, new: Float[np.ndarray, "*shape"]
) -> Float[np.ndarray, "*shape"]:
    return new if total is None else total + new


def _check_rows(view: str, block: Block) -> None:
    """Refuse rows without a single entry, hidden ones counted."""
    observed = (on_host(block.data[view]) >= 0).any(axis=1)
    if view in block.hidden:
        observed[block.hidden[view][0]] = True
    if not observed.all():
        row = block.start + int(np.argmin(observed))
        raise InputError(
            f"row {row} of view {view}",
            "all entries missing",
            "at least one observed entry per row",
            f"Leave out {pluralize(int((~observed).sum()), 'such row')} of block {block.number}.",
        )


def _check_features(view: str, index: range, observed: Float64[np.ndarray, " N"]) -> None:
    if not (observed > 0.5).all():
        feature = index.start + int(np.argmin(observed > 0.5))
        raise InputError(
            f"feature {feature} of view {view}",
            "all entries missing or held out",
            "at least one observed entry in every feature",
            "Leave out the feature, or hold out fewer entries.",
        )


def _draw_beta(
    on: Float64[np.ndarray, " K"],
    off: Float64[np.ndarray, " K"],
    prior: tuple[float, float],
    uniform: Float64[np.ndarray, " K"],
) -> Float64[np.ndarray, " K"]:
    """Draw from Beta(prior + counts); a parameter of 0 (improper priors) puts all mass at that edge."""
    first, second = prior[0] + on, prior[1] + off
    usable = (first > 0.0) & (second > 0.0)
    draws = special.betaincinv(np.where(usable, first, 1.0), np.where(usable, second, 1.0), uniform)
    edge = np.where(first > 0.0, 1.0, 0.0)
    return np.asarray(np.clip(np.where(usable, draws, edge), EDGE, 1.0 - EDGE))


def _log_prior_loadings(loadings: Float64[np.ndarray, "N K1"], globals_: Globals) -> float:
    """Return log p(z, c | tau^2, b)."""
    included = float((loadings != 0.0).sum())
    slab = -0.5 * included * np.log(2.0 * np.pi * globals_.variance)
    slab -= 0.5 * float((loadings * loadings).sum()) / globals_.variance
    odds = included * np.log(globals_.density) + (loadings.size - included) * np.log1p(-globals_.density)
    return float(slab + odds)


def _log_prior_globals(settings: Settings, globals_: Globals) -> float:
    """Return log p(a) + log p(b) + log p(tau^2), up to a constant where they are improper."""
    total = _log_beta(globals_.activity, settings.activity_prior).sum()
    total += _log_beta(np.array([globals_.density]), settings.density_prior).sum()
    shape, rate = settings.variance_prior
    total += -(shape + 1.0) * np.log(globals_.variance) - rate / globals_.variance
    if shape > 0.0 and rate > 0.0:
        total += shape * np.log(rate) - special.gammaln(shape)
    return float(total)


def _log_beta(p: Float64[np.ndarray, " K"], prior: tuple[float, float]) -> Float64[np.ndarray, " K"]:
    first, second = prior
    constant = special.betaln(first, second) if first > 0.0 and second > 0.0 else 0.0
    return np.asarray((first - 1.0) * np.log(p) + (second - 1.0) * np.log1p(-p) - constant)


def _trajectory_info(settings: Settings, counts: Float64[np.ndarray, " 6"]) -> Info:
    flown = max(counts[TRAJECTORIES], 1.0)
    landed = max(counts[TRAJECTORIES] - counts[STOPPED], 1.0)
    return {
        "wall_hits_per_time": float((counts[WALLS] + counts[SWITCHES]) / (flown * settings.travel_time)),
        "crossing_rate": float(counts[CROSSINGS] / max(counts[SWITCHES], 1.0)),
        "energy_error": float(counts[ENERGY_ERROR] / landed),
        "stopped": float(counts[STOPPED]),
    }
