"""Gamma factors of all levels at once: their updates, expected logarithms, entropies, and sums over levels.

Logarithms of Gamma and their derivatives are those of x + 10 by Stirling's series, less what the product
x (x + 1) ... (x + 9) adds. With t = x (x + 9) that is t (t + 8) (t + 14) (t + 18) (t + 20), so that neither
branches nor calls keep a loop from becoming vector instructions. Errors are a few units in the last place of
the larger of the two parts. Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.kernels.vectors import compile_inline, compile_loop, exp, inner, log

Array = Any
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


def compile_ordered(function: Array) -> Array:
    """Compile a loop; sums keep their order, so that bits do not depend on where small arrays lie."""
    return compile_loop(function, fastmath={"contract", "nsz"})


@compile_inline
def digamma_and_gammaln(x: Array) -> Array:
    """Return psi(x) and log Gamma(x) of 1e-300 < x < 1e29."""
    t, z = x * (x + 9.0), x + 10.0
    sums, product = 1.0, t
    sums, product = sums * (t + 8.0) + product, product * (t + 8.0)
    sums, product = sums * (t + 14.0) + product, product * (t + 14.0)
    sums, product = sums * (t + 18.0) + product, product * (t + 18.0)
    sums, product = sums * (t + 20.0) + product, product * (t + 20.0)
    one, log_z = 1.0 / z, log(z)
    two = one * one
    psi = (
        (((two / 12.0 - 691.0 / 32760.0) * two + 1.0 / 132.0) * two - 1.0 / 240.0) * two + 1.0 / 252.0
    ) * two
    psi = log_z - 0.5 * one - ((psi - 1.0 / 120.0) * two + 1.0 / 12.0) * two
    psi = psi - (2.0 * x + 9.0) * (sums / product)
    rest = (
        (((two / 156.0 - 691.0 / 360360.0) * two + 1.0 / 1188.0) * two - 1.0 / 1680.0) * two + 1.0 / 1260.0
    ) * two
    rest = ((rest - 1.0 / 360.0) * two + 1.0 / 12.0) * one
    return psi, (z - 0.5) * log_z - z + _HALF_LOG_2_PI + rest - log(product)


@inner
def write_logs_and_entropies(shape: Array, rate: Array, logs: Array, entropies: Array) -> None:
    """Write E log x and the entropy of each x ~ Gamma(shape, rate), (N,) each."""
    for i in range(shape.size):
        log_rate = log(rate[i])
        psi, gammaln = digamma_and_gammaln(shape[i])
        logs[i] = psi - log_rate
        entropies[i] = shape[i] - log_rate + gammaln + (1.0 - shape[i]) * psi


@compile_ordered
def logs_and_entropies(shape: Array, rate: Array, logs: Array, entropies: Array) -> None:
    """Write E log x and the entropy of each x ~ Gamma(shape, rate), (N,) each."""
    write_logs_and_entropies(shape, rate, logs, entropies)


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
