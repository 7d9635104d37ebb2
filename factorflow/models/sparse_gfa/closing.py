"""The closing pass of sparse group factor analysis: variance explained, order and signs of the factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels.explained import explained_share
from factorflow.kernels.linalg import pack, unpack
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.sparse_gfa.change_of_basis import change_basis, select_factors
from factorflow.models.sparse_gfa.intervals import Spread, corrected_moments
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.learned_sizes import log_sizes_of
from factorflow.models.sparse_gfa.projection import project_scores
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, expected_scores
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start.restarts import other_starts, start_similarity
from factorflow.models.sparse_gfa.state import Change, Globals, Local, Start, replace_part
from factorflow.models.sparse_gfa.stored_scores import rotated_scores
from factorflow.models.sparse_gfa.summaries import Closing, Corrected
from factorflow.models.sparse_gfa.variance_explained import Squares, explained_squares, squares_of_block
from factorflow.models.sparse_gfa.weights import expected_weights

NEW_SAMPLES = 0.5
"""Share of the way that scores of new samples move in each pass, where only the curvature at q(x) guides."""


@dataclass(frozen=True)
class ClosingStats:
    """What the blocks add up in the last pass.

    ``alike``, after several starts, of products of the scores: see `start_similarity`. ``moments`` and
    ``covariance``: see `intervals.Spread`.
    """

    squares: Squares
    moments: Float64[np.ndarray, " Q"]
    covariance: Float64[np.ndarray, " P"]
    alike: Float64[np.ndarray, "L L"] | None = None


@dataclass(frozen=True)
class ClosingSweep(Sweep[Globals, Local, ClosingStats]):
    """Last pass: variance explained on the data scale, then factors in order and signs fixed.

    Factors are ordered by the share of the variance they explain, summed over views. The sign of each is
    such that its largest loading in absolute value, on the scale of the model, over all views is positive;
    where loadings of a view, or scores, are not negative, as they are.
    After a warm start order and signs are those of the earlier fit.
    """

    settings: Settings
    warm: bool = False
    name: ClassVar[str] = "closing"

    def prepare(self, globals_: Globals) -> tuple[PreparedGlobals, ...]:
        """Return the globals with tables that all blocks read, and those of other starts."""
        return tuple(PreparedGlobals(self.settings, g) for g in (globals_, *other_starts(globals_)))

    def map(
        self, block: Block, local: Local | None, givens: tuple[PreparedGlobals, ...], step: Step
    ) -> tuple[Local | None, ClosingStats]:
        """Add up residual sums of squares of the block."""
        own, *others = givens
        settings, globals_ = self.settings, own.globals_
        new = project_scores(settings, block, rotated_scores(local, globals_), own, integrate=True)
        scores, spread = expected_scores(new)
        alike = None
        if others:
            other_scores = [
                expected_scores(project_scores(settings, block, None, other))[0] for other in others
            ]
            together = np.column_stack([scores, *other_scores, np.ones(len(scores))])
            alike = together.T @ together
        design, levels = settings.design(block, new), log_sizes_of(settings, block, new, globals_)
        squares = squares_of_block(settings, block, scores, design, globals_, levels)
        stats = ClosingStats(squares, *_products(scores, spread, design), alike)
        return (new if settings.stateful else None), stats

    def update(self, globals_: Globals, stats: ClosingStats, step: Step) -> tuple[Globals, Info]:
        """Put the factors in order and fix their signs."""
        settings = self.settings
        explained = explained_squares(settings, stats.squares)
        total, single = explained.total, explained.single
        share = explained_share(np.nansum(total, axis=0)[:, None], np.nansum(single, axis=0))
        spread = Spread(
            stats.moments, stats.covariance, float(settings.n_rows), globals_.n_factors, settings.n_given
        )
        order = np.arange(share.shape[1]) if self.warm else np.argsort(-share.sum(axis=0), kind="stable")
        ordered = select_factors(replace(globals_, change=Change()), order)
        sign = np.ones(len(order)) if self.warm else _signs(settings, ordered)
        turned = change_basis(ordered, np.diag(sign), np.diag(sign))
        if settings.tangent:
            turned = replace_part(turned, "progress", step_length=NEW_SAMPLES)
        similarity = None
        if settings.n_starts > 1:
            similarity = start_similarity(globals_, stats.alike)[:, order]
            starts = tuple(_without_globals(globals_, start) for start in globals_.starts)
            turned = replace(turned, starts=starts)
        slopes = _slopes(settings, stats.moments, globals_.n_factors)
        closing = Closing(
            replace(explained, single=single[:, :, order]),
            {
                name: Corrected(one.mean[:, order] * sign, one.variance[:, order])
                for name, one in corrected_moments(settings, globals_, spread).items()
            },
            None if slopes is None else slopes[:, order] * sign,
            similarity,
        )
        return replace(turned, closing=closing), {}


def _without_globals(globals_: Globals, start: Start) -> Start:
    """Return a start of which its loadings are left, in data units."""
    if start.globals_ is None:
        return start
    loadings = {
        name: expected_weights(weights)[0] * globals_.fixed[name].scale[:, None]
        for name, weights in start.globals_.weights.items()
    }
    return replace(start, globals_=None, loadings=loadings)


def _products(
    mean: Float64[Array, "B K"], spread: Float64[Array, "#B V"], design: Float64[Array, "B C"]
) -> tuple[Float64[Array, " Q"], Float64[Array, " P"]]:
    """Return sum_n E[(z, a)(z, a)'] and sum_n Cov z, packed."""
    n_rows, k = mean.shape
    moments = gfa.sum_pairs(mean, spread, design, None, np.ones(n_rows))
    covariance = spread.sum(axis=0) if len(spread) == n_rows else float(n_rows) * spread[0]
    return moments, pack(np.diag(covariance)) if spread.shape[1] == k else covariance


def _slopes(settings: Settings, moments: Float64[Array, " Q"], k: int) -> Float64[Array, "J K"] | None:
    """Return the slopes of the scores on the covariates, given sum_n E[(z, a)(z, a)']."""
    if settings.covariates is None:
        return None
    full = unpack(moments, k + settings.n_given)
    return np.linalg.lstsq(full[k:, k:], full[k:, :k], rcond=1e-10)[0][1:]


def _signs(settings: Settings, globals_: Globals) -> Float64[Array, " K"]:
    signed = all(view.prior.signed for view in settings.views) and not settings.nonnegative
    if not signed:  # they have their signs
        return np.ones(globals_.n_factors)
    stacked = np.concatenate([expected_weights(globals_.weights[v.name])[0] for v in settings.views])
    if not stacked.shape[1]:
        return np.ones(0)
    largest = stacked[np.abs(stacked).argmax(axis=0), np.arange(stacked.shape[1])]
    return np.where(largest < 0, -1.0, 1.0)
