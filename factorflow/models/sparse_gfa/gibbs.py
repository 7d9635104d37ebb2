"""The sampler of sparse group factor analysis: one Gibbs sweep of the model of the variational fit.

Order: omega of every binary entry given x, then z of every sample; (s, w, b), w and b integrated out where s
is drawn, and tau of every feature; then at the root changes of place and scale of every factor, alpha and
beta integrated out, the priors of theta and tau (`pooled`), and alpha, theta, m, lambda, beta. Stored scores
follow the changes in the next map (`Drawn.transform`, `Drawn.shift`).
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
from factorflow.models.sparse_gfa.drawn import (
    Drawn,
    DrawnScores,
    DrawnView,
    DrawnWeights,
    as_globals,
)
from factorflow.models.sparse_gfa.features import System, normal_equations
from factorflow.models.sparse_gfa.groups import add_groups, by_noise_group
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.pooled import NoiseSums
from factorflow.models.sparse_gfa.pseudo import (
    Given,
    Pseudo,
    Table,
    evidence_of,
    expected_scores,
    gaussian_data,
)
from factorflow.models.sparse_gfa.samples import Refreshed, rounded, statistics
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.shared_draws import DrawnStats, DrawnSums, draw_shared
from factorflow.models.sparse_gfa.state import Local
from factorflow.models.sparse_gfa.sums import Stats
from factorflow.trees import replace

__all__ = ["GibbsSweep"]

WEIGHT_SITE, SCORE_SITE, LOADING_SITE, CHOICE_SITE = MODELS[2], MODELS[3], MODELS[4], MODELS[5]
"""Noise: words of the tries of each binary entry; of each score; of each loading and tau; of each s."""


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

    def prepare(self, globals_: Drawn) -> tuple[Given, Drawn]:
        """Return the globals with tables that all blocks read."""
        return Given(self.settings, as_globals(self.settings, globals_)), globals_

    def map(
        self,
        block: Block,
        local: DrawnScores | Local | None,
        globals_: tuple[Given, Drawn],
        step: Step,
    ) -> tuple[DrawnScores, DrawnStats]:
        """Draw the weights of binary entries and the scores of a block."""
        settings, (given, drawn) = self.settings, globals_
        codes = settings.group_codes(block)
        before = _scores_before(local, drawn, block.n_rows, step)
        noise = step.normal(SCORE_SITE, block.rows, max(1, drawn.n_factors))[:, : drawn.n_factors]
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
        given: Given,
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
            if view.likelihood == "gaussian":
                pseudo[view.name] = gaussian_data(settings, view.name, rows, globals_, table.low_noise)
            else:
                extended = np.concatenate([before, np.ones((len(before), 1))], axis=1)
                left = device.beside(extended.astype(settings.dtype), table.loadings)
                x = left @ table.loadings[:, : n_factors + 1].T
                columns = width, settings.first_column(view.name)
                found = draws.draw_weights(rows.data[view.name], x, numbers, columns, step, WEIGHT_SITE)
                pseudo[view.name] = Pseudo(found[1], found[0], None, table.low_noise, found[2])
        new = _draw_scores(settings, codes, pseudo, tables, given, noise)
        local = rounded(Local(new, np.zeros((1, n_factors))), settings)
        free = sum(p.free for p in pseudo.values())
        stats = statistics(settings, codes, Refreshed(local, pseudo, free, 0.0), globals_)
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
        """Draw the loadings, intercepts and noise precisions of a run of features."""
        settings, k = self.settings, globals_.n_factors
        rows = slice(index.start, index.stop)
        mine, shared, fixed = globals_.weights[axis], globals_.views[axis], globals_.fixed[axis]
        found = stats.features[axis]
        pairs = stats.shared[axis][None] if found.pairs is None else found.pairs
        old = mine.loadings[rows]
        tau = np.ones((len(old), settings.n_noise_groups))
        if mine.precision is not None:
            tau = mine.precision[rows]
        system = normal_equations(tau, pairs, found)
        numbers = settings.first_column(axis) + np.asarray(index)
        shift = shared.intercept_mean - fixed.reference[rows] / fixed.scale[rows]
        new = self._draw_loadings(system, shared, shift, old, numbers, step)
        likelihood, precision, noise = 0.0, None, None
        if mine.precision is not None:
            mean, spread = new[:, :k], np.zeros((len(new), k))
            fit = np.stack(
                [
                    gfa.quadratic(found.cross[:, t], pairs[:, t], mean, spread, new[:, k], np.zeros(len(new)))
                    for t in range(tau.shape[1])
                ],
                axis=1,
            )
            residual = np.maximum(fit + fixed.squares[rows], 0.0)
            count, variances, prior = fixed.count[rows], globals_.variances[axis][rows], shared.noise
            assert prior is not None
            uniform = step.uniform(CHOICE_SITE, numbers, k + tau.shape[1])[:, k:]
            rate = prior.rates(variances)[:, None] + 0.5 * residual
            precision = special.gammaincinv(prior.shape + 0.5 * count, uniform) / rate
            logs = np.log(np.maximum(precision, 1e-300))
            likelihood = 0.5 * float((count * (logs - np.log(2.0 * np.pi)) - precision * residual).sum())
            noise = NoiseSums.of(precision[:, 0], variances, prior)
        included = (new[:, :k] != 0.0).sum(axis=0).astype(np.float64)
        b = new[:, k] + fixed.reference[rows] / fixed.scale[rows]
        w = new[:, :k]
        of_intercepts = float(len(new)), float(b.sum()), float((b**2).sum())
        products = w.T @ w, b @ w, w.sum(axis=0)
        sums = DrawnSums(included, (w**2).sum(axis=0), *of_intercepts, likelihood, *products, noise)
        return DrawnWeights(new, precision), sums

    def _draw_loadings(
        self,
        system: System,
        shared: DrawnView,
        shift: Float64[Array, " D"],
        old: Float64[Array, "D K1"],
        numbers: Integer[Array, " D"],
        step: Step,
    ) -> Float64[Array, "D K1"]:
        """Draw (s, w, b) given the normal equations."""
        k = old.shape[1] - 1
        odds = None
        if self.settings.spike != "none":
            odds = np.log(shared.theta) - np.log1p(-shared.theta)
        uniform = step.uniform(CHOICE_SITE, numbers, k + 1)[:, :k]
        noise = uniform, step.normal(LOADING_SITE, numbers, k + 1)
        precision = np.append(shared.alpha, shared.intercept_precision)
        return draws.draw_loadings(
            system.pairs, system.cross, system.scale, precision, shift, odds, noise, old
        )

    def assemble(
        self,
        globals_: Drawn,
        stats: DrawnStats,
        parts: Mapping[str, DrawnWeights],
        sums: Mapping[str, DrawnSums],
        step: Step,
    ) -> tuple[Drawn, Info]:
        """Change the scales, and draw what features and samples share."""
        found = draw_shared(self.settings, stats, sums, globals_, step)
        weights = {}
        for name, part in parts.items():
            w, b = part.loadings[:, :-1], part.loadings[:, -1:]
            moved = np.concatenate([w / found.scale, b - (w @ found.shift)[:, None]], axis=1)
            weights[name] = DrawnWeights(moved, part.precision)
        turn = np.diag(found.scale)
        new = Drawn(
            globals_.fixed,
            weights,
            found.views,
            globals_.variances,
            found.beta,
            turn,
            turn @ found.shift,
            globals_.numbers,
        )
        included = sum(float(s.included.sum()) for s in sums.values())
        most = sum(s.features for s in sums.values()) * max(1, globals_.n_factors)
        observed = sum(float(globals_.fixed[v.name].count.sum()) for v in self.settings.views)
        info = {
            "objective": found.density + stats.free,
            "observed": observed,
            "monitor_included": included / most,
            "moved_scales": found.moved,
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
    given: Given,
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
    white = np.linalg.solve(np.broadcast_to(root, (len(h), k, k)), h[:, :, None]) + noise[:, :, None]
    return np.linalg.solve(np.broadcast_to(root.transpose(0, 2, 1), (len(h), k, k)), white)[:, :, 0]
