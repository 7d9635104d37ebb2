"""Gamma factors of a run of levels: means, expected logarithms, and the sums that bound and scales go by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.models.molten.scales import seen_rows
from factorflow.models.molten.settings import Settings
from factorflow.models.molten.state import Globals, Levels, Totals

__all__ = ["finished", "means", "rows_of_levels", "shifted"]

_LOWEST = -600.0
"""Sum over the variables of the logarithms that one factor of a row may be below the largest."""

_LOWEST_SINGLE = -80.0
"""The same of each variable, in tables of single precision."""


def means(levels: Levels) -> Float64[np.ndarray, "D S K"]:
    """Return E lambda; 1 where nothing is learned."""
    return np.asarray(levels.one / levels.two)


def finished(levels: Levels, free: Bool[np.ndarray, "D K"]) -> tuple[Levels, Totals]:
    """Return levels of given shapes and rates with their E log lambda, and the sums over them.

    Shape and rate are 1, and the logarithm is 0, where nothing is learned (``free``).
    """
    from factorflow.models.molten.kernels import gammas

    size, n_starts, k = levels.one.shape
    one, two = (np.ascontiguousarray(x).reshape(size, -1) for x in (levels.one, levels.two))
    logs, entropies, sums = np.empty(one.shape), np.empty(one.shape), np.zeros((4, one.shape[1]))
    gammas.logs_and_entropies(one.ravel(), two.ravel(), logs.ravel(), entropies.ravel())
    learned = np.tile(free, n_starts)
    if not free.all():
        logs[~learned] = 0.0
    gammas.add_levels(one, two, logs, entropies, levels.seen, learned, sums)
    size_and_seen = free.sum(axis=0).astype(float), seen_rows(levels.seen, free).sum(axis=0).astype(float)
    totals = Totals(*size_and_seen, *sums.reshape(4, n_starts, k))
    return replace(levels, log=logs.reshape(levels.one.shape)), totals


def rows_of_levels(levels: Levels, index: range) -> Levels:
    """Return some levels of a variable."""
    run = slice(index.start, index.stop)
    counts, log = (None if x is None else x[run] for x in (levels.counts, levels.log))
    return Levels(levels.one[run], levels.two[run], counts, levels.seen[run], log)


def lowest(settings: Settings) -> float:
    """Return how far below the largest of its level the logarithm of a factor may be in the tables."""
    each = _LOWEST / settings.n_variables
    return max(each, _LOWEST_SINGLE) if settings.choices.table_bits == 32 else each


def shifted(
    settings: Settings, globals_: Globals, name: str, index: range | None = None
) -> tuple[Float64[np.ndarray, "D S K"], Float64[np.ndarray, "D S"]]:
    """Return E log lambda less the largest of its level, not too far below, and the largest.

    Of all levels, or those of a run. Levels of a linear group are added up, and have one largest together.
    """
    from factorflow.models.molten.kernels import gammas

    logs = globals_.levels[name].log
    assert logs is not None
    run = range(len(logs)) if index is None else index
    if name not in settings.roles.linear:
        some = np.ascontiguousarray(logs[run.start : run.stop])
        below, largest = np.empty(some.shape), np.empty(some.shape[:2])
        k = some.shape[2]
        gammas.below_largest(some.reshape(-1, k), lowest(settings), below.reshape(-1, k), largest.reshape(-1))
        return below, largest
    top = np.broadcast_to(logs.max(axis=(0, 2)), (len(run), logs.shape[1]))
    return np.maximum(logs[run.start : run.stop] - top[:, :, None], lowest(settings)), top
