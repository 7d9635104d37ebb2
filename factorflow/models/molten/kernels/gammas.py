"""Gamma factors of all levels at once: their updates, expected logarithms, entropies, and sums over levels.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.gammas import compile_ordered, write_logs_and_entropies
from factorflow.kernels.vectors import exp, inner

Array = Any


@inner
def add_levels(
    one: Array, two: Array, logs: Array, entropies: Array, seen: Array, learned: Array, sums: Array
) -> None:
    """Add E x, E x of levels with rows, E log x and entropies, (D, S, K), to sums (4, S, K).

    Of the ``learned`` ones (D, K); the logarithm of others becomes 0.
    """
    for d in range(one.shape[0]):
        there = 1.0 if seen[d] > 0.0 else 0.0
        for s in range(one.shape[1]):
            for k in range(one.shape[2]):
                own = 1.0 if learned[d, k] else 0.0
                mean = own * (one[d, s, k] / two[d, s, k])
                logs[d, s, k] *= own
                sums[0, s, k] += mean
                sums[1, s, k] += there * mean
                sums[2, s, k] += logs[d, s, k]
                sums[3, s, k] += own * entropies[d, s, k]


@compile_ordered
def complete_levels(
    one: Array, two: Array, seen: Array, learned: Array, logs: Array, entropies: Array, sums: Array
) -> None:
    """Write E log x of Gammas (D, S, K), 0 where nothing is ``learned``, and add up as `add_levels`."""
    write_logs_and_entropies(one.reshape(-1), two.reshape(-1), logs.reshape(-1), entropies.reshape(-1))
    add_levels(one, two, logs, entropies, seen, learned, sums)


@compile_ordered
def update_levels(
    counts: Array, rates: Array, shape: Array, rate: Array, before: Array, seen: Array, learned: Array,
    one: Array, two: Array, logs: Array, entropies: Array, sums: Array, gain: Array, mass: Array,
) -> None:  # fmt: skip
    """Write q(lambda) of levels (D, S, K) given their sums and the prior (S, K); then as `complete_levels`.

    To gain (S,) is added sum counts (E log lambda - before), to mass sum E lambda rates.
    """
    for d in range(one.shape[0]):
        for s in range(one.shape[1]):
            for k in range(one.shape[2]):
                own = learned[d, k]
                one[d, s, k] = shape[s, k] + counts[d, s, k] if own else 1.0
                two[d, s, k] = rate[s, k] + rates[d, s, k] if own else 1.0
    write_logs_and_entropies(one.reshape(-1), two.reshape(-1), logs.reshape(-1), entropies.reshape(-1))
    add_levels(one, two, logs, entropies, seen, learned, sums)
    parts = np.zeros((2, one.shape[1], one.shape[2]))
    for d in range(one.shape[0]):
        for s in range(one.shape[1]):
            for k in range(one.shape[2]):
                parts[0, s, k] += counts[d, s, k] * (logs[d, s, k] - before[d, s, k])
                parts[1, s, k] += one[d, s, k] / two[d, s, k] * rates[d, s, k]
    for s in range(one.shape[1]):
        for k in range(one.shape[2]):
            gain[s] += parts[0, s, k]
            mass[s] += parts[1, s, k]


@compile_ordered
def subtract_largest(logs: Array, lowest: float, below: Array, largest: Array) -> None:
    """Write the largest of each row of (N, K) logarithms, and by how much others are below it, at most so."""
    for n in range(logs.shape[0]):
        top = logs[n, 0]
        for k in range(1, logs.shape[1]):
            top = max(top, logs[n, k])
        largest[n] = top
        for k in range(logs.shape[1]):
            below[n, k] = max(logs[n, k] - top, lowest)


@compile_ordered
def sum_weighted_counts(counts: Array, largest: Array, shift: Array, strength: Array) -> None:
    """Add counts (D, S, K) times ``largest`` (D, S) to shift (S,), and counts to strength (S, K)."""
    for d in range(counts.shape[0]):
        for s in range(counts.shape[1]):
            together = 0.0
            for k in range(counts.shape[2]):
                together += counts[d, s, k]
                strength[s, k] += counts[d, s, k]
            shift[s] += together * largest[d, s]


@compile_ordered
def write_means(one: Array, two: Array, table: Array) -> None:
    """Write shape over rate, tuples of (D, S, K) below each other, into a table (S, A, W)."""
    first = 0
    for g in range(len(one)):
        for d in range(one[g].shape[0]):
            for s in range(one[g].shape[1]):
                for k in range(one[g].shape[2]):
                    table[s, first + d, k] = one[g][d, s, k] / two[g][d, s, k]
        first += one[g].shape[0]


@compile_ordered
def write_logs(logs: Array, lowest: float, table: Array) -> None:
    """Write exp of what `subtract_largest` makes of tuples of logarithms into a table, as `write_means`."""
    first = 0
    for g in range(len(logs)):
        for d in range(logs[g].shape[0]):
            for s in range(logs[g].shape[1]):
                top = logs[g][d, s, 0]
                for k in range(1, logs[g].shape[2]):
                    top = max(top, logs[g][d, s, k])
                for k in range(logs[g].shape[2]):
                    table[s, first + d, k] = exp(max(logs[g][d, s, k] - top, lowest))
        first += logs[g].shape[0]


@compile_ordered
def multiply_levels(
    two: Array, logs: Array, seen: Array, learned: Array, by: Array, rates: Array, after: Array
) -> None:
    """Write rates and E log of Gammas (D, S, K) multiplied by numbers (S, K), where learned and with rows."""
    log_by = np.log(by)
    for d in range(two.shape[0]):
        for s in range(two.shape[1]):
            for k in range(two.shape[2]):
                there = seen[d] > 0.0 and learned[d, k]
                rates[d, s, k] = two[d, s, k] / by[s, k] if there else two[d, s, k]
                after[d, s, k] = logs[d, s, k] + log_by[s, k] if there else logs[d, s, k]
