"""Gamma factors of a run of levels: means, expected logarithms, and the sums that bound and scales go by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Float64

from factorflow.kernels.compile import read_only_view
from factorflow.models.molten.rows import blank_table
from factorflow.models.molten.settings import Settings
from factorflow.models.molten.state import Globals, Levels, Totals

_LOWEST = -600.0
"""Sum over the variables of the logarithms that one factor of a row may be below the largest."""

_LOWEST_SINGLE = -80.0
"""The same of each variable, in tables of single precision."""


def mean_factors(levels: Levels) -> Float64[np.ndarray, "D S K"]:
    """Return E lambda; 1 where nothing is learned."""
    return np.asarray(levels.one / levels.two)


def complete_levels(levels: Levels, free: Bool[np.ndarray, "D K"]) -> tuple[Levels, Totals]:
    """Return levels of given shapes and rates with their E log lambda, and the sums over them.

    Shape and rate are 1, and the logarithm is 0, where nothing is learned (``free``).
    """
    from factorflow.models.molten.kernels import gammas

    one, two = np.ascontiguousarray(levels.one), np.ascontiguousarray(levels.two)
    logs, entropies, sums = _allocate(one)
    gammas.complete_levels(one, two, levels.seen, free, logs, entropies, sums)
    return replace(levels, log=logs), _totals(levels, free, sums)


def update_levels(
    old: Levels,
    counts: Float64[np.ndarray, "D S K"],
    rates: Float64[np.ndarray, "D S K"],
    prior: tuple[Float64[np.ndarray, "S K"], Float64[np.ndarray, "S K"]],
    before: Float64[np.ndarray, "D S K"],
    free: Bool[np.ndarray, "D K"],
) -> tuple[Levels, Totals, Float64[np.ndarray, " S"], Float64[np.ndarray, " S"]]:
    """Return q(lambda) given the sums of y p and of t xi F, and shape and rate of the prior.

    Beside them the sums over the levels, and by start sum counts (E log lambda - before), sum E lambda rates.
    """
    from factorflow.models.molten.kernels import gammas

    logs, entropies, sums = _allocate(counts)
    (one, two), (gain, mass) = np.empty((2, *counts.shape)), np.zeros((2, counts.shape[1]))
    inputs = (
        read_only_view(counts),
        read_only_view(rates),
        *prior,
        read_only_view(before),
        read_only_view(old.seen),
        free,
    )
    gammas.update_levels(*inputs, one, two, logs, entropies, sums, gain, mass)
    return Levels(one, two, counts, old.seen, logs), _totals(old, free, sums), gain, mass


def _allocate(
    levels: Float64[np.ndarray, "D S K"],
) -> tuple[Float64[np.ndarray, "D S K"], Float64[np.ndarray, "D S K"], Float64[np.ndarray, "4 S K"]]:
    """Return where logarithms, entropies and sums of levels go."""
    return np.empty(levels.shape), np.empty(levels.shape), np.zeros((4, *levels.shape[1:]))


def _totals(levels: Levels, free: Bool[np.ndarray, "D K"], sums: Float64[np.ndarray, "4 S K"]) -> Totals:
    has_rows = (levels.seen > 0).astype(float)
    return Totals(free.sum(axis=0, dtype=float), has_rows @ free, sums)


def rows_of_levels(levels: Levels, index: range) -> Levels:
    """Return some levels of a variable."""
    run = slice(index.start, index.stop)
    counts, log = (None if x is None else x[run] for x in (levels.counts, levels.log))
    return Levels(levels.one[run], levels.two[run], counts, levels.seen[run], log)


def table_of_means(settings: Settings, globals_: Globals, bits: int) -> Float[np.ndarray, "S D W"]:
    """Return E lambda of all variables below each other (`rows.blank_table`)."""
    from factorflow.models.molten.kernels import gammas

    _, n_starts, k = globals_.scale.shape
    out, levels = blank_table(settings, n_starts, k, bits), globals_.levels
    one, two = (
        tuple(read_only_view(getattr(levels[name], x)) for name in settings.names) for x in ("one", "two")
    )
    gammas.write_means(one, two, out)
    return out


def table_of_logs(settings: Settings, globals_: Globals, bits: int) -> Float[np.ndarray, "S D W"]:
    """Return exp of what `shift_logs` gives of all variables, below each other."""
    from factorflow.models.molten.kernels import gammas

    n_starts, k = globals_.scale.shape[1:]
    out = blank_table(settings, n_starts, k, bits)
    logs = tuple(read_only_view(np.asarray(globals_.levels[name].log)) for name in settings.names)
    gammas.write_logs(logs, lowest_log(settings), out)
    for name in settings.roles.linear:
        out[:, settings.place(name), :k] = np.exp(shift_logs(settings, globals_, name)[0]).transpose(1, 0, 2)
    return out


def sum_weighted_counts(
    counts: Float64[np.ndarray, "D S K"], largest: Float64[np.ndarray, "D S"]
) -> tuple[Float64[np.ndarray, " S"], Float64[np.ndarray, "S K"]]:
    """Return the sums of counts, each times the largest of its level, and by column."""
    from factorflow.models.molten.kernels import gammas

    shift, strength = np.zeros(counts.shape[1]), np.zeros(counts.shape[1:])
    gammas.sum_weighted_counts(counts, np.ascontiguousarray(largest), shift, strength)
    return shift, strength


def lowest_log(settings: Settings) -> float:
    """Return how far below the largest of its level the logarithm of a factor may be in the tables."""
    each = _LOWEST / settings.n_variables
    return max(each, _LOWEST_SINGLE) if settings.hyper.table_bits == 32 else each


def shift_logs(
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
        gammas.subtract_largest(
            some.reshape(-1, k), lowest_log(settings), below.reshape(-1, k), largest.reshape(-1)
        )
        return below, largest
    top = np.broadcast_to(logs.max(axis=(0, 2)), (len(run), logs.shape[1]))
    return np.maximum(logs[run.start : run.stop] - top[:, :, None], lowest_log(settings)), top
