"""Scores that a sweep begins with, and size factors: offsets of rows, computed, or learned like scores.

What is learned of the size factors of a view is a score whose loading is 1 in this view and 0 elsewhere, with
a prior precision of its own; what is computed is an offset.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.models.contract import Array, Block, Step
from factorflow.models.sparse_gfa.entries import values_of
from factorflow.models.sparse_gfa.learned_sizes import computed_sizes
from factorflow.models.sparse_gfa.messages import Pseudo
from factorflow.models.sparse_gfa.pseudo_data import expected_scores
from factorflow.models.sparse_gfa.sampler.gibbs_state import ChainGlobals, DrawnScores
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.size_factors import log_size_factors
from factorflow.models.sparse_gfa.state import Local


def computed_level(
    view: ViewSettings, block: Block, sample: ChainGlobals, beside: Array
) -> Float64[Array, "B 1"] | None:
    """Return the logarithms of size factors that are computed, where ``beside`` lies; None: none are."""
    if not view.has_computed_sizes:
        return None
    level = log_size_factors(view, sample.fixed[view.name], block, values_of(view, block))
    return None if level is None else device.move_beside(level[:, None], beside)


def without_offset(pseudo: Pseudo, offset: Float64[Array, " B"]) -> Pseudo:
    """Return the Gaussian forms of entries in x, of those in x and an offset of each row."""
    if pseudo.weight is None or not device.on_host(offset).any():
        return pseudo
    column = device.move_beside(
        device.on_host(offset)[:, None].astype(pseudo.response.dtype), pseudo.response
    )
    return replace(pseudo, response=pseudo.response - pseudo.weight * column)


def learned_sizes(
    settings: Settings, block: Block, sample: ChainGlobals, log_sizes: Float64[Array, "B M"] | None
) -> Float64[Array, "B sizes"]:
    """Return what is learned of logarithms of size factors: of the fit, of other rows of the totals."""
    of_totals, columns = computed_sizes(settings, block, sample.fixed), [np.zeros((block.n_rows, 0))]
    for m, view in enumerate(settings.views):
        if view.learned_sizes:
            own = of_totals[:, m] if log_sizes is None else log_sizes[:, m]
            columns.append((own - of_totals[:, m] if view.has_computed_sizes else own)[:, None])
    return np.concatenate(columns, axis=1)


def log_sizes_of(
    settings: Settings, block: Block, sample: ChainGlobals, learned: Float64[Array, "B sizes"]
) -> Float64[Array, "B M"]:
    """Return the logarithms of the size factors of all views, 0 in views without."""
    columns = []
    for view in settings.views:
        level = computed_level(view, block, sample, learned)
        own = learned @ settings.size_column(view.name)
        columns.append(own if level is None else own + level[:, 0])
    return np.stack(columns, axis=1)


def values_before(
    settings: Settings,
    block: Block,
    local: DrawnScores | Local | None,
    sample: ChainGlobals,
    design: Float64[Array, "B C"],
    step: Step,
) -> tuple[Float64[Array, "B L"], Float64[Array, "B L"]]:
    """Return scores and learned sizes before (of the last sweep, of the fit, or none), and of the fit."""
    if isinstance(local, DrawnScores) and local.reference is not None:
        of_fit = local.reference
    else:
        scores, sizes = np.zeros((block.n_rows, sample.n_factors)), None
        if isinstance(local, Local):
            scores, sizes = expected_scores(local)[0] @ sample.transform.T, local.log_sizes
        of_fit = np.concatenate([scores, learned_sizes(settings, block, sample, sizes)], axis=1)
    if not isinstance(local, DrawnScores):
        return of_fit, of_fit
    moved = local.values if step.projecting else local.values @ sample.transform.T + design @ sample.shift
    return moved, of_fit
