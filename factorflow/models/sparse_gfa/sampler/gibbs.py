"""The sampler of sparse group factor analysis: one Gibbs sweep of the model of the fit, its priors learned.

Order: omega of every binary entry given x, then z of every sample; (s, w, b), w and b integrated out where s
is drawn, and tau of every feature; then at the root what all share, alpha, theta, m, lambda, beta and the
priors of theta, alpha and tau (`pooled`). This draw is recorded. Then moves: turns and strains of two
factors (`turns`); m and lambda, the prior of tau, then b and tau (`collapsed`); places and scales of all
factors, alpha and beta integrated out; and once more what all share. Stored scores follow the moves in the
next map (`Drawn.transform`, `Drawn.shift`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Integer
from scipy import special

from factorflow.kernels import device
from factorflow.kernels.linalg import n_pairs, unpack
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.sparse_gfa.e_step import UpdatedRows, round_scores, statistics
from factorflow.models.sparse_gfa.groups import add_groups, by_noise_group
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.pseudo_data import (
    PreparedGlobals,
    Pseudo,
    Table,
    evidence_of,
    expected_scores,
    gaussian_data,
)
from factorflow.models.sparse_gfa.sampler.drawn import (
    Drawn,
    DrawnScores,
    DrawnWeights,
    Record,
    as_globals,
)
from factorflow.models.sparse_gfa.sampler.drawn_sums import DrawnStats, DrawnSums
from factorflow.models.sparse_gfa.sampler.feature_draws import draw_features
from factorflow.models.sparse_gfa.sampler.shared_draws import OF_RECORD, draw_moves, draw_shared
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Local
from factorflow.models.sparse_gfa.statistics import Stats
from factorflow.trees import replace

__all__ = ["GibbsSweep"]

WEIGHT_SITE, SCORE_SITE = MODELS[2], MODELS[3]
"""Noise: words of the tries of each binary entry; of each score."""


@dataclass(frozen=True)
class GibbsSweep(Sweep[Drawn, DrawnScores, DrawnStats]):
    """One sweep.

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

    def prepare(self, globals_: Drawn) -> tuple[PreparedGlobals, Drawn]:
        """Return the globals with tables that all blocks read."""
        return PreparedGlobals(self.settings, as_globals(self.settings, globals_)), globals_

    def map(
        self,
        block: Block,
        local: DrawnScores | Local | None,
        globals_: tuple[PreparedGlobals, Drawn],
        step: Step,
    ) -> tuple[DrawnScores, DrawnStats]:
        """Draw the weights of binary entries and the scores of a block."""
        settings, (given, drawn) = self.settings, globals_
        codes = settings.group_codes(block)
        before = _scores_before(local, drawn, block.n_rows, step)
        noise = special.ndtri(draws.uniform(step, SCORE_SITE, block.rows, max(1, drawn.n_factors)))[
            :, : drawn.n_factors
        ]
        values, parts = np.zeros(before.shape), []
        start = Local(before, np.zeros((1, drawn.n_factors)))
        for group, index, rows, of_group, old in _parts(settings, block, codes, start):
            assert old is not None
            where = rows, block.rows[index], of_group, group
            new, stats = self._draw_rows(where, old.mean, noise[index], given, step)
            values[index] = new
            parts.append((group, stats))
        total = parts[0][1] if settings.n_noise_groups == 1 else add_groups(parts, settings.n_noise_groups)
        return self._added(local, values), DrawnStats.of(total, values, codes, settings.n_groups)

    def _draw_rows(
        self,
        where: tuple[Block, Integer[Array, " B"], Integer[Array, " B"], int],
        before: Float64[Array, "B K"],
        noise: Float64[Array, "B K"],
        given: PreparedGlobals,
        step: Step,
    ) -> tuple[Float64[Array, "B K"], Stats]:
        """Draw the scores of rows that share their noise precision, and return what they add up."""
        settings, globals_ = self.settings, given.globals_
        rows, numbers, codes, group = where
        n_factors = globals_.n_factors
        tables = given.tables(group, next(iter(rows.data.values())))
        pseudo: dict[str, Pseudo] = {}
        width = sum(view.n_features for view in settings.views)
        for view in settings.views:
            table = tables[view.name]
            if view.is_gaussian:
                pseudo[view.name] = gaussian_data(settings, view.name, rows, globals_, table.low_noise)
            else:
                extended = np.concatenate([before, np.ones((len(before), 1))], axis=1)
                left = device.beside(extended.astype(settings.dtype), table.loadings)
                x = left @ table.loadings[:, : n_factors + 1].T
                columns = width, settings.first_column(view.name)
                found = view.density.augment(rows.data[view.name], x, numbers, columns, step, WEIGHT_SITE)
                pseudo[view.name] = Pseudo(found[1], found[0], None, table.low_noise, found[2])
        new = _draw_scores(settings, codes, pseudo, tables, given, noise)
        local = round_scores(Local(new, np.zeros((1, n_factors))), settings)
        free = sum(p.free for p in pseudo.values())
        stats = statistics(
            settings, codes, UpdatedRows(local, pseudo, free, 0.0, np.zeros(n_factors)), globals_
        )
        return local.mean, stats

    def _added(self, local: DrawnScores | Local | None, values: Float64[Array, "B K"]) -> DrawnScores:
        if not self.keep:
            return DrawnScores(values)
        if not isinstance(local, DrawnScores) or local.total is None or local.squares is None:
            return DrawnScores(values, 1, values, values**2)
        return DrawnScores(values, local.n_kept + 1, local.total + values, local.squares + values**2)

    def axes(self) -> Mapping[str, int]:
        """Return the views and their numbers of features."""
        return {view.name: view.n_features for view in self.settings.views}

    def features(
        self, axis: str, index: range, globals_: Drawn, stats: DrawnStats, step: Step
    ) -> tuple[DrawnWeights, DrawnSums]:
        """Draw the loadings, intercepts and noise precisions of a run of features; see `draw_features`."""
        return draw_features(self.settings, axis, index, globals_, stats, step)

    def assemble(
        self,
        globals_: Drawn,
        stats: DrawnStats,
        parts: Mapping[str, DrawnWeights],
        sums: Mapping[str, DrawnSums],
        step: Step,
    ) -> tuple[Drawn, Info]:
        """Draw what features and samples share, and how the chain goes on."""
        settings = self.settings
        found, density = draw_shared(settings, stats, sums, globals_.shared, step, OF_RECORD)
        moves = draw_moves(settings, stats, globals_, parts, step)
        drawn = {name: replace(part, told=None) for name, part in parts.items()}
        new = replace(
            globals_,
            weights=moves.weights,
            shared=moves.shared,
            transform=moves.transform,
            shift=moves.shift,
            record=Record(drawn, found),
        )
        included = sum(float(s.included.sum()) for s in sums.values())
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


def _parts(
    settings: Settings, block: Block, codes: Integer[Array, " B"], start: Local
) -> list[tuple[int, Array, Block, Array, Local | None]]:
    """Return the rows of each noise group; scores without variance have a row of it for each."""
    wide = replace(start, variance=np.zeros(start.mean.shape))
    return list(by_noise_group(settings, block, codes, wide))


def _scores_before(
    local: DrawnScores | Local | None, drawn: Drawn, n_rows: int, step: Step
) -> Float64[Array, "B K"]:
    """Return the scores that the globals go with: of the last sweep, of the fit, or zeros."""
    if local is None:
        return np.zeros((n_rows, drawn.n_factors))
    if isinstance(local, Local):
        return expected_scores(local)[0] @ drawn.transform.T + drawn.shift
    return local.values if step.projecting else local.values @ drawn.transform.T + drawn.shift


def _draw_scores(
    settings: Settings,
    codes: Integer[Array, " B"],
    pseudo: Mapping[str, Pseudo],
    tables: Mapping[str, Table],
    given: PreparedGlobals,
    noise: Float64[Array, "B K"],
) -> Float64[Array, "B K"]:
    """Draw z of rows given everything else."""
    k = given.globals_.n_factors
    pairs: Array = 0.0
    linear: Array = 0.0
    for name, table in tables.items():
        e = evidence_of(pseudo[name], table, k)
        pairs, linear = pairs + e.pairs, linear + e.linear
    packed = device.on_host(pairs)
    h = linear[:, :k] - packed[:, n_pairs(k) : n_pairs(k) + k]
    beta = given.globals_.beta_shape
    prior = beta if beta.shape[0] == 1 else beta[codes]
    if not k:
        return np.zeros(h.shape)
    precision = unpack(packed[:, : n_pairs(k)], k) + prior[:, :, None] * np.eye(k)
    root = np.linalg.cholesky(precision)  # precision = L L': z = L'^-1 (L^-1 h + noise)
    if len(root) == 1:
        inverse = np.linalg.inv(root[0])
        return np.asarray((h @ inverse.T + noise) @ inverse)
    white = np.linalg.solve(root, h[:, :, None]) + noise[:, :, None]
    return np.linalg.solve(root.transpose(0, 2, 1), white)[:, :, 0]
