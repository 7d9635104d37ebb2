"""The sampler of sparse group factor analysis: one Gibbs sweep of the model of the fit, its priors learned.

Order: omega of every binary entry given x, then covariates that are not known, z of every sample; (s, w, b),
w and b integrated out where s is drawn, and tau of every feature; then at the root what all share, alpha,
theta, m, lambda, beta and the priors of theta, alpha and tau (`pooled`). This draw is recorded. Then moves:
turns and strains of two factors (`turns`); m and lambda, the prior of tau, then b and tau (`collapsed`);
places and scales of all factors, alpha and beta integrated out; and once more what all share. Stored scores
follow the moves in the next map (`ChainGlobals.transform`, `ChainGlobals.shift`). Where a likelihood has no
such exact steps, scores and features take Metropolis steps (`metropolis`), in two passes, and factors are
not turned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Integer
from scipy import special

from factorflow.core.covariates import COVARIATES
from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.kernels.linalg import n_pairs, row_place, unpack
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.sparse_gfa.e_step import round_scores
from factorflow.models.sparse_gfa.entries import aux_of, entries_of
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.messages import Pseudo
from factorflow.models.sparse_gfa.pseudo_data import (
    PreparedGlobals,
    Table,
    evidence_of,
    gaussian_data,
)
from factorflow.models.sparse_gfa.sample_statistics import UpdatedRows, sum_statistics
from factorflow.models.sparse_gfa.sampler.drawn_sums import DrawnStats, DrawnSums, TryStats
from factorflow.models.sparse_gfa.sampler.feature_draws import choose_tries, draw_features
from factorflow.models.sparse_gfa.sampler.gibbs_state import (
    ChainGlobals,
    DrawnScores,
    DrawnWeights,
    Halfway,
    Record,
    as_globals,
)
from factorflow.models.sparse_gfa.sampler.metropolis import (
    Entries,
    corrected_views,
    predictor,
    slice_scores,
    stand_ins,
    try_sums,
)
from factorflow.models.sparse_gfa.sampler.offsets import (
    computed_level,
    log_sizes_of,
    values_before,
    without_offset,
)
from factorflow.models.sparse_gfa.sampler.score_prior import ScorePrior, score_prior
from factorflow.models.sparse_gfa.sampler.shared_draws import OF_RECORD, draw_moves, draw_shared
from factorflow.models.sparse_gfa.sampler.spiked_scores import (
    FIRST_SCANS,
    SpikedPrior,
    draw_spiked,
    slab_sums,
)
from factorflow.models.sparse_gfa.sampler.unknown_covariates import draw_covariates
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Local

WEIGHT_SITE, SCORE_SITE = MODELS[2], MODELS[3]
"""Noise: words of the tries of each binary entry; of each score."""


@dataclass(frozen=True)
class GibbsSweep(Sweep[ChainGlobals, DrawnScores, DrawnStats]):
    """One sweep; with views that take Metropolis steps its first pass.

    Parameters
    ----------
    settings : Settings
        Of the run; binary views are ``scattered``.
    keep : bool
        Whether scores are summed up: sampling, as opposed to burn-in.
    """

    settings: Settings
    keep: bool
    name: ClassVar[str] = "sweep"

    def prepare(self, globals_: ChainGlobals) -> tuple[PreparedGlobals, ChainGlobals]:
        """Return the globals with tables that all blocks read."""
        return PreparedGlobals(self.settings, as_globals(self.settings, globals_)), globals_

    def map(
        self,
        block: Block,
        local: DrawnScores | Local | None,
        globals_: tuple[PreparedGlobals, ChainGlobals],
        step: Step,
    ) -> tuple[DrawnScores, DrawnStats]:
        """Draw the weights of binary entries and the scores of a block."""
        settings, (prepared, sample) = self.settings, globals_
        k, design = sample.n_factors, settings.design(block, local)
        prior = score_prior(settings, block, sample, new=step.projecting)
        before, reference = values_before(settings, block, local, sample, design, step)
        tables = prepared.tables(0, next(iter(block.data.values())))
        rows = np.hstack([before, design]), np.hstack([reference, settings.design(block)])
        pseudo, entries = self._gaussian_forms(block, rows, tables, globals_, step)
        evidence = _evidence(rows[0].shape[1], pseudo, tables)
        if settings.incomplete:
            given = np.asarray(block.columns[COVARIATES]), prior, evidence, (before, design), entries
            together = not entries and sample.shared.psi is None
            design = draw_covariates(settings, *given, block.rows, step, integrate=together)
        equations = _row_equations(design, before.shape[1], *evidence)
        if sample.shared.psi is not None:
            share = sample.shared.psi if len(sample.shared.psi) == 1 else sample.shared.psi[prior.codes]
            spiked = SpikedPrior.of(settings, prior.precision, share)
            n_scans = 1 if isinstance(local, DrawnScores) else FIRST_SCANS
            own = block.rows, step, (entries, design), n_scans
            values, tried = draw_spiked(spiked, equations, before, *own)
        else:
            values, tried = _draw_normal(prior, equations, before, block.rows, step, (entries, design))
        values = round_scores(Local(values, np.zeros((1, k))), settings).mean
        scores, free = values[:, :k], sum(p.free for p in pseudo.values())
        pseudo = {
            name: without_offset(p, values[:, k:] @ settings.size_column(name)) for name, p in pseudo.items()
        }
        updated = UpdatedRows(Local(scores, np.zeros((1, k))), design, pseudo, free, 0.0, np.zeros(k))
        stats = sum_statistics(settings, settings.group_codes(block), updated, prepared.globals_)
        by_function = prior.sums_by_function(np.concatenate([scores, design], axis=1))
        sums = prior.codes, len(sample.shared.beta), by_function, tried
        drawn_stats = DrawnStats.of(stats, values - prior.mean, design, *sums)
        if settings.scores_spike:
            drawn_stats = slab_sums(settings, drawn_stats, scores, prior.codes)
        covariates = design[:, 1:] if settings.incomplete else None
        new = DrawnScores(values, reference=reference if entries else None, covariates=covariates)
        if settings.learns_sizes:
            new = replace(new, log_sizes=log_sizes_of(settings, block, sample, values[:, k:]))
        return self._add_draw(local, new, prior.mean[:, :k]), drawn_stats

    def _gaussian_forms(
        self,
        block: Block,
        rows: tuple[Float64[Array, "B L"], ...],
        tables: Mapping[str, Table],
        globals_: tuple[PreparedGlobals, ChainGlobals],
        step: Step,
    ) -> tuple[dict[str, Pseudo], list[Entries]]:
        """Return the entries of each view as Gaussian ones, and those of views with Metropolis steps.

        ``rows``: (z, a) with the scores of before, and of the fit.
        """
        settings, (prepared, sample) = self.settings, globals_
        pseudo: dict[str, Pseudo] = {}
        corrected = []
        width = sum(view.n_features for view in settings.views)
        for view in settings.views:
            name, table, values = view.name, tables[view.name], block.data[view.name]
            if view.is_gaussian:
                pseudo[name] = gaussian_data(settings, name, block, prepared.globals_, table.low_noise)
            elif view.density.has_augmentation:
                left = device.move_beside(rows[0].astype(settings.dtype), table.loadings)
                x = left @ table.loadings[:, : left.shape[1]].T
                columns = width, settings.first_column(name)
                augmented = view.density.augment(values, x, block.rows, columns, step, WEIGHT_SITE)
                pseudo[name] = Pseudo(augmented[1], augmented[0], None, table.low_noise, augmented[2])
            else:
                mine, fit = sample.weights[name], sample.reference[name]
                y = entries_of(view, sample.fixed[name], values, np.dtype(np.float64))
                column = settings.size_column(name)
                weights = np.concatenate([fit.extended(column), fit.coefficients], axis=1)
                x, aux = predictor(rows[1], weights, y), aux_of(view, block)
                aux = None if aux is None else aux.astype(np.float64)
                level = computed_level(view, block, sample, y)
                u, r = stand_ins(settings, view.density, y, x, fit.phi, aux, 0.0 if level is None else level)
                own = Pseudo(r, u, None, table.low_noise)
                pseudo[name] = own if level is None else without_offset(own, level[:, 0])
                weights = np.concatenate([mine.extended(column), mine.coefficients], axis=1)
                corrected.append(Entries(view.density, y, u, r, weights, mine.phi, aux, level))
        return pseudo, corrected

    def _add_draw(
        self,
        local: DrawnScores | Local | None,
        new: DrawnScores,
        courses: Float64[Array, "B K"],
    ) -> DrawnScores:
        if not self.keep:
            return new
        parts = [new.scores(self.settings)]
        parts += [courses] if self.settings.smooth is not None else []
        parts += [parts[0] != 0.0] if self.settings.scores_spike else []
        parts += [values for values in (new.log_sizes, new.covariates) if values is not None]
        kept = np.concatenate(parts, axis=1)
        if not isinstance(local, DrawnScores) or local.total is None or local.squares is None:
            return replace(new, n_kept=1, total=kept, squares=kept**2)
        total, squares = local.total + kept, local.squares + kept**2
        return replace(new, n_kept=local.n_kept + 1, total=total, squares=squares)

    def axes(self) -> Mapping[str, int]:
        """Return the views and their numbers of features."""
        return {view.name: view.n_features for view in self.settings.views}

    def features(
        self, axis: str, index: range, globals_: ChainGlobals, stats: DrawnStats, step: Step
    ) -> tuple[DrawnWeights, DrawnSums | None]:
        """Draw the loadings, intercepts and noise precisions of a run of features; see `draw_features`."""
        return draw_features(self.settings, axis, index, globals_, stats, step)

    def assemble(
        self,
        globals_: ChainGlobals,
        stats: DrawnStats,
        parts: Mapping[str, DrawnWeights],
        sums: Mapping[str, DrawnSums],
        step: Step,
    ) -> tuple[ChainGlobals, Info]:
        """Draw what features and samples share, and how the chain goes on; before that tries are taken."""
        if not corrected_views(self.settings):
            return _finish(self.settings, globals_, stats, parts, sums, step)
        done = {name: mine for name, mine in sums.items() if mine is not None}
        still = np.eye(globals_.shift.shape[1]), np.zeros(globals_.shift.shape)
        halfway = Halfway(stats, done)
        return replace(globals_, weights=parts, transform=still[0], shift=still[1], halfway=halfway), {}


@dataclass(frozen=True)
class ChoiceSweep(Sweep[ChainGlobals, DrawnScores, TryStats]):
    """The second pass of a sweep: features of views with Metropolis steps take one of their tries."""

    settings: Settings
    name: ClassVar[str] = "choice"

    def map(
        self, block: Block, local: DrawnScores | None, globals_: ChainGlobals, step: Step
    ) -> tuple[DrawnScores | None, TryStats]:
        """Return the scores as they are, and the log-likelihood of each try."""
        k = globals_.n_factors
        values = np.zeros((block.n_rows, globals_.shift.shape[1])) if local is None else local.values
        rows, sums = np.concatenate([values[:, :k], self.settings.design(block, local)], axis=1), {}
        for view in corrected_views(self.settings):
            y = entries_of(view, globals_.fixed[view.name], block.data[view.name], np.dtype(np.float64))
            tries = globals_.weights[view.name].tries
            assert tries is not None
            aux = aux_of(view, block)
            aux = None if aux is None else aux.astype(np.float64)
            level = computed_level(view, block, globals_, y)
            if view.learned_sizes:
                learned = device.move_beside(values[:, k:] @ self.settings.size_column(view.name)[:, None], y)
                level = learned if level is None else level + learned
            sums[view.name] = try_sums(view.density, y, rows, tries, aux, level)
        return local, TryStats(sums)

    def axes(self) -> Mapping[str, int]:
        """Return the views with Metropolis steps and their numbers of features."""
        return {view.name: view.n_features for view in corrected_views(self.settings)}

    def features(
        self, axis: str, index: range, globals_: ChainGlobals, stats: TryStats, step: Step
    ) -> tuple[DrawnWeights, DrawnSums]:
        """Draw which try each of a run of features takes; see `choose_tries`."""
        return choose_tries(self.settings, axis, index, globals_, stats, step)

    def assemble(
        self,
        globals_: ChainGlobals,
        stats: TryStats,
        parts: Mapping[str, DrawnWeights],
        sums: Mapping[str, DrawnSums],
        step: Step,
    ) -> tuple[ChainGlobals, Info]:
        """Draw what features and samples share, and how the chain goes on."""
        before = globals_.halfway
        assert before is not None
        of_views: dict[str, DrawnSums] = {**before.sums, **sums}
        ordered = {view.name: of_views[view.name] for view in self.settings.views}
        weights = {**globals_.weights, **parts}
        arguments = self.settings, replace(globals_, halfway=None), before.stats, weights
        new, info = _finish(*arguments, ordered, step)
        for name, mine in sums.items():
            assert mine.steps is not None
            took, tried, took_phi, tried_phi = mine.steps
            info[f"accepted_{name}"] = took / tried if tried else float("nan")
            if self.settings.view(name).density.n_phi:
                info[f"accepted_phi_{name}"] = took_phi / tried_phi if tried_phi else float("nan")
        info["slices"] = before.stats.slices / float(before.stats.rows.sum())
        return new, info


def _finish(
    settings: Settings,
    globals_: ChainGlobals,
    stats: DrawnStats,
    parts: Mapping[str, DrawnWeights],
    sums: Mapping[str, DrawnSums],
    step: Step,
) -> tuple[ChainGlobals, Info]:
    """Draw what features and samples share, record that, and move on."""
    shared, density = draw_shared(settings, stats, sums, globals_.shared, step, OF_RECORD)
    moves = draw_moves(settings, stats, globals_, parts, step)
    parts_drawn = {name: replace(part, residual_sums=None) for name, part in parts.items()}
    new = replace(
        globals_,
        weights=moves.weights,
        shared=moves.shared,
        transform=moves.transform,
        shift=moves.shift,
        record=Record(parts_drawn, shared, globals_.courses, _regression(settings, stats)),
        courses=moves.courses,
    )
    if globals_.courses is not None:
        density -= 0.5 * float(globals_.courses.energy[globals_.courses.is_smooth].sum())
    included = sum(float(s.of_loadings.included.sum()) for s in sums.values())
    most = sum(s.features for s in sums.values()) * max(1, globals_.n_factors)
    observed = sum(float(globals_.fixed[v.name].count.sum()) for v in settings.views)
    info = {
        "objective": density + stats.free,
        "observed": observed,
        "monitor_included": included / most,
        "moved_scales": moves.share,
        "turned": float(moves.transform[np.triu_indices(globals_.n_factors, 1)].any()),
    }
    return new, info


def _regression(settings: Settings, stats: DrawnStats) -> Float64[Array, "J K"] | None:
    """Return the regression of the scores on the covariates, by least squares; None: there are none."""
    if settings.covariates is None:
        return None
    n_given = settings.n_given
    k = stats.second.shape[1] - len(settings.learned_sizes)
    moments = unpack(stats.moments, k + n_given)
    slopes = np.linalg.lstsq(moments[k:, k:], moments[k:, :k], rcond=None)[0]
    return np.asarray(slopes[1:])


def _evidence(
    size: int, pseudo: Mapping[str, Pseudo], tables: Mapping[str, Table]
) -> tuple[Float64[Array, "#B Q"], Float64[Array, "B L"]]:
    """Return packed precisions and linear terms of (z, a) of rows, of the entries alone; ``size``: L."""
    pairs: Array = 0.0
    linear: Array = 0.0
    for name, table in tables.items():
        e = evidence_of(pseudo[name], table, size)
        pairs, linear = pairs + e.pairs, linear + e.linear
    return device.on_host(pairs), linear


def _row_equations(
    design: Float64[Array, "B C"], k: int, packed: Float64[Array, "#B Q"], linear: Float64[Array, "B L"]
) -> tuple[Float64[Array, "#B K K"], Float64[Array, "B K"]]:
    """Return precisions and linear terms of the scores of rows given a."""
    h = linear[:, :k]
    for c, column in enumerate(design.T):
        h = h - column[:, None] * packed[:, row_place(k + c, k)]
    return unpack(packed[:, : n_pairs(k)], k), h


def _draw_normal(
    prior: ScorePrior,
    equations: tuple[Float64[Array, "#B K K"], Float64[Array, "B K"]],
    before: Float64[Array, "B K"],
    rows: Integer[Array, " B"],
    step: Step,
    corrected: tuple[Sequence[Entries], Float64[Array, "B C"]],
) -> tuple[Float64[Array, "B K"], float]:
    """Draw normal scores of rows given everything else, and return how many places slices tried."""
    k, (entries, design) = before.shape[1], corrected
    if not k:
        return np.zeros(before.shape), 0.0
    noise = special.ndtri(draws.uniform(step, SCORE_SITE, rows, k))
    fresh = _draw_scores(prior, equations, noise)
    if not entries:
        return fresh, 0.0
    return slice_scores(
        entries, design, _draw_scores(prior, equations, 0.0 * noise), before, fresh, rows, step
    )


def _draw_scores(
    prior: ScorePrior,
    equations: tuple[Float64[Array, "#B K K"], Float64[Array, "B K"]],
    noise: Float64[Array, "B K"],
) -> Float64[Array, "B K"]:
    """Return scores of their Gaussian conditional, from standard normals."""
    pairs, h = equations
    h = h + prior.precision * prior.mean
    precision = pairs + prior.precision[:, :, None] * np.eye(noise.shape[1])
    root = np.linalg.cholesky(precision)  # precision = L L': z = L'^-1 (L^-1 h + noise)
    if len(root) == 1:
        inverse = np.linalg.inv(root[0])
        return np.asarray((h @ inverse.T + noise) @ inverse)
    white = np.linalg.solve(root, h[:, :, None]) + noise[:, :, None]
    return np.linalg.solve(root.transpose(0, 2, 1), white)[:, :, 0]
