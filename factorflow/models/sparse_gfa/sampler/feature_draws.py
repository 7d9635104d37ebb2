"""Draws of loadings, intercepts and noise of a run of features, and sums for the moves after them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Integer
from scipy import special

from factorflow.core.trees import replace, take
from factorflow.kernels.linalg import packed_place, triangle
from factorflow.kernels.sites import MODELS
from factorflow.likelihoods import Likelihood
from factorflow.models.contract import Step
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.loadings import LoadingSums
from factorflow.models.sparse_gfa.m_step import (
    System,
    normal_equations,
    residual_squares,
)
from factorflow.models.sparse_gfa.sampler.drawn_sums import DrawnStats, DrawnSums, TryStats
from factorflow.models.sparse_gfa.sampler.feature_prior import FeaturePrior, feature_prior
from factorflow.models.sparse_gfa.sampler.gibbs_state import ChainGlobals, DrawnWeights, Plane, ResidualSums
from factorflow.models.sparse_gfa.sampler.metropolis import choose, corrected_views, propose
from factorflow.models.sparse_gfa.sampler.plane_moves import plane_of
from factorflow.models.sparse_gfa.sampler.pooled import NoiseSums
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Fixed

LOADING_SITE, CHOICE_SITE, NOISE_SITE, COMPONENT_SITE = (MODELS[i] for i in (4, 5, 22, 40))
"""Noise: each loading; each s; tau; what component each loading is of."""


def draw_features(
    settings: Settings, axis: str, index: range, globals_: ChainGlobals, stats: DrawnStats, step: Step
) -> tuple[DrawnWeights, DrawnSums | None]:
    """Draw (s, w, b) and tau of a run of features; of a view with Metropolis steps its tries."""
    run = _Run(settings, axis, index, globals_, step)
    statistics = stats.features[axis]
    pairs = stats.shared[axis][None] if statistics.pairs is None else statistics.pairs
    system = normal_equations(run.precision, pairs, statistics)
    view = settings.view(axis)
    if view in corrected_views(settings):
        return run.tries(system, view.density), None
    return run.draw(system, run.before.whole, statistics.squares)


def choose_tries(
    settings: Settings, axis: str, index: range, globals_: ChainGlobals, stats: TryStats, step: Step
) -> tuple[DrawnWeights, DrawnSums]:
    """Draw which of their tries the features of a run take."""
    run, density = _Run(settings, axis, index, globals_, step), settings.view(axis).density
    tries = globals_.weights[axis].tries
    assert tries is not None
    tries, k = tries[run.rows], globals_.n_factors
    size = k + settings.n_given
    chosen = choose(density, tries, stats.views[axis], run.numbers, step)
    each = np.arange(len(index))
    accepted = tries[each, chosen]
    new = DrawnWeights(accepted[:, :k], accepted[:, k:size], None, phi=accepted[:, size:-1])
    likelihood = float(stats.views[axis][each, chosen].sum())
    levels = new.levels(settings, settings.view(axis), run.fixed)
    sums = DrawnSums.of(run.loading_sums(new.loadings), new.loadings, levels, likelihood, None)
    walks = (tries[:, 1:, size:-1] != tries[:, :1, size:-1]).any(axis=(1, 2))
    steps = [float(part.sum()) for part in ((chosen > 0) & ~walks, ~walks, (chosen > 0) & walks, walks)]
    return new, replace(sums, steps=np.array(steps))


@dataclass(frozen=True)
class _Run:
    """A run of features of a view, and what their draws are given beside the scores."""

    settings: Settings
    axis: str
    index: range
    globals_: ChainGlobals
    step: Step

    @property
    def rows(self) -> slice:
        return slice(self.index.start, self.index.stop)

    @cached_property
    def before(self) -> DrawnWeights:
        """What the last sweep drew."""
        return take(self.globals_.weights[self.axis], self.rows)

    @cached_property
    def fixed(self) -> Fixed:
        """What never changes."""
        return take(self.globals_.fixed[self.axis], self.rows)

    @property
    def precision(self) -> Float64[np.ndarray, "D T"]:
        """Noise precisions of the last sweep; 1 of binary entries, whose weights are in the statistics."""
        precision = self.before.precision
        return np.ones((len(self.index), 1)) if precision is None else precision

    @cached_property
    def numbers(self) -> Integer[np.ndarray, " D"]:
        """Numbers of the features among those of all views."""
        return self.settings.first_column(self.axis) + np.arange(self.index.start, self.index.stop)

    @cached_property
    def prior(self) -> FeaturePrior:
        """Prior of loadings and coefficients."""
        return feature_prior(self.settings, self.axis, self.globals_, self.rows)

    def loading_sums(self, loadings: Float64[np.ndarray, "D K"]) -> LoadingSums:
        """Return what drawn loadings add up."""
        k = loadings.shape[1]
        return self.prior.sums(loadings, lambda: draws.uniform(self.step, COMPONENT_SITE, self.numbers, k))

    @cached_property
    def noise(self) -> tuple[Float64[np.ndarray, "D K"], Float64[np.ndarray, "D L"]]:
        """Uniforms of s; normals of (w, b)."""
        k = self.globals_.n_factors
        uniform = draws.uniform(self.step, CHOICE_SITE, self.numbers, k)
        normal = draws.uniform(self.step, LOADING_SITE, self.numbers, k + len(self.prior.precision))
        return uniform, special.ndtri(normal)

    def tries(self, system: System, density: Likelihood) -> DrawnWeights:
        """Return loadings and nuisance parameters of the last sweep, with what they may become."""
        now, count = self.before, self.fixed.count[:, 0]
        assert now.phi is not None
        learned = self.settings.learned_columns(self.settings.view(self.axis))
        start = now.loadings, now.coefficients[:, learned], now.phi
        own = self.learned(system)
        proposals = propose(own, self.prior, density, start, count, self.numbers, self.step)
        return replace(now, tries=self.with_fixed(proposals, 2))

    def learned(self, system: System) -> System:
        """Return the equations of what is learned alone: of features without intercepts all but these."""
        k, size = self.globals_.n_factors, system.cross.shape[1]
        if self.settings.has_intercepts(self.settings.view(self.axis)):
            return system
        rows, columns = triangle(size)
        pairs = np.flatnonzero((rows != k) & (columns != k))
        return System(system.pairs[:, pairs], np.delete(system.cross, k, axis=1), system.scale)

    def with_fixed(self, values: Float64[np.ndarray, ...], axis: int) -> Float64[np.ndarray, ...]:
        """Return values of what is learned with intercepts of 0 where features have none to learn."""
        if self.settings.has_intercepts(self.settings.view(self.axis)):
            return values
        return np.insert(values, self.globals_.n_factors, 0.0, axis=axis)

    def draw(
        self, system: System, start: Float64[np.ndarray, "D L"], squares: Float64[np.ndarray, "D 1"] | None
    ) -> tuple[DrawnWeights, DrawnSums]:
        """Draw (s, w, b), s from where it starts, then tau; ``squares`` as in `FeatureStats`."""
        k = self.globals_.n_factors
        own = self.learned(system)
        if own is not system:
            start = np.delete(start, k, axis=1)
        new = self.with_fixed(self.prior.draw(own, self.noise, start), 1)
        likelihood, precision, of_noise, residual = 0.0, None, None, np.zeros((len(new), 1))
        prior = self.globals_.shared.views[self.axis].noise
        if prior is not None:
            w = new[:, :k]
            fit = gfa.quadratic(system.cross, system.pairs, w, np.zeros((len(new), k)), new[:, k:], None)
            variances, count = self.globals_.variances[self.axis][self.rows], self.fixed.count
            residual = residual_squares(self.settings, fit[:, None], self.fixed.squares, squares)
            residual = np.maximum(residual, 0.0)
            rate = prior.rates(variances)[:, None] + 0.5 * residual
            shapes = prior.shape + 0.5 * count[:, 0]
            precision = draws.draw_gammas(self.step, NOISE_SITE, self.numbers, shapes)[:, None] / rate
            logs = np.log(np.maximum(precision, 1e-300))
            likelihood = 0.5 * float((count * (logs - np.log(2.0 * np.pi)) - precision * residual).sum())
            of_noise = NoiseSums.of(precision[:, 0], variances, prior)
        row = system.pairs[:, packed_place(k, np.arange(new.shape[1]))]  # of the constant with all
        count, slope = (
            np.broadcast_to(row[:, k], len(new)).copy(),
            system.cross[:, k] - (row * new).sum(axis=1),
        )
        plane = self.plane(system, new, system.scale if precision is None else precision[:, 0])
        message = ResidualSums(count, slope, residual[:, 0], plane)
        drawn = DrawnWeights(new[:, :k].copy(), new[:, k:].copy(), precision, message)
        sums = self.loading_sums(drawn.loadings)
        return drawn, DrawnSums.of(sums, drawn.loadings, drawn.on_scale(self.fixed), likelihood, of_noise)

    def plane(
        self, system: System, loadings: Float64[np.ndarray, "D L"], scale: Float64[np.ndarray, " D"]
    ) -> Plane | None:
        """Return the equations of the two factors that this sweep rotates, if it does."""
        prior, k = self.prior, self.globals_.n_factors
        plane = plane_of(self.settings, k, self.step)
        if plane is None:
            return None
        precision = np.append(prior.parameters.alpha, prior.precision)
        own = self.learned(system)
        loadings = loadings if own is system else np.delete(loadings, k, axis=1)
        arguments = own.pairs, own.cross, scale, precision, prior.shift, k, prior.loadings.spikes
        square, linear, follow, change = draws.plane_equations(*arguments, plane, loadings)
        return Plane(square, linear, self.with_fixed(follow, 1), change)
