"""q(z) of a block given the globals: of a run that is over, of a start, of samples not seen before."""

from __future__ import annotations

import numpy as np

from factorflow.models.contract import Block
from factorflow.models.sparse_gfa.e_step import update_rows
from factorflow.models.sparse_gfa.groups import by_noise_group, scatter_rows
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Local

PROJECTION_PASSES = 50
"""Updates of the scores of new samples, at most."""


def project_scores(
    settings: Settings,
    block: Block,
    before: Local | None,
    prepared: PreparedGlobals,
    *,
    new: bool = False,
    each: bool = False,
    integrate: bool = False,
) -> Local:
    """Return q(z) of a block given the globals; of samples not seen before, by repeated updates.

    ``new``, ``each`` and ``integrate`` as for `update_rows`.
    """
    codes = settings.group_codes(block)
    passes = 1
    if settings.stateful and before is None:
        before, passes = _unknown(settings, block.n_rows, prepared.globals_.n_factors), PROJECTION_PASSES
    for _ in range(passes):
        parts = by_noise_group(settings, block, codes, before)
        done = [
            (
                r,
                update_rows(
                    settings, rows, c, old, prepared, g, new=new, each=each, integrate=integrate
                ).local,
            )
            for g, r, rows, c, old in parts
        ]
        after = done[0][1] if settings.n_noise_groups == 1 else scatter_rows(done, block.n_rows)
        if before is not None and np.abs(after.mean - before.mean).max(initial=0.0) < 1e-5:
            return after
        before = after
    return after


def _unknown(settings: Settings, n_rows: int, n_factors: int) -> Local:
    """Return q(z) of samples of which nothing is known."""
    shape, noise = (n_rows, n_factors), None
    if settings.sample_noise:
        noise = np.ones((n_rows, len(settings.views)))
    inclusion = np.ones(shape) if settings.scores_spike else None
    return Local(np.zeros(shape), np.ones(shape), inclusion, noise, noise)
