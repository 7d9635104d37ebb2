"""Noise of the entries of a matrix: `factorflow.kernels.random.entry_uniform` inside a compiled loop."""

from __future__ import annotations

import numpy as np

from factorflow.kernels.compile import options
from factorflow.kernels.scalar.philox import philox_pair

TRIALS = 512
"""Trials that one uniform number decides: .5^512 is above the least double."""


def mark_entries(seed, place, start, fraction, out):  # type: ignore[no-untyped-def]
    """Set out[i, j] to whether the uniform of entry (start + i, j) is below ``fraction``."""
    for i in range(out.shape[0]):
        row = np.uint64(start + i)
        for j in range(out.shape[1]):
            column = np.uint64(j)
            uniform, _ = philox_pair(seed, row, np.uint64(0), column, place)  # type: ignore[no-untyped-call]
            out[i, j] = uniform < fraction


def thin_matrix(seed, place, start, share, values, out):  # type: ignore[no-untyped-def]
    """Take from counts values[i, j] of rows start + i draws from Binomial(count, share), into out[i, j]."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            count = values[i, j]
            rest = np.int64(0)
            if count > 0:  # not where it is missing
                rest = draw_part(seed, place, np.uint64(start + i), np.uint64(j), np.int64(count), share)  # type: ignore[no-untyped-call]
            values[i, j] = count - rest
            out[i, j] = rest


def thin_rows(seed, place, start, share, n_entries, columns, entries, out):  # type: ignore[no-untyped-def]
    """Draw out[m] from Binomial(entries[m], share): of rows by their entries, n_entries[i] of each."""
    m = 0
    for i in range(n_entries.size):
        for _ in range(n_entries[i]):
            count = np.int64(entries[m])
            out[m] = draw_part(seed, place, np.uint64(start + i), np.uint64(columns[m]), count, share)  # type: ignore[no-untyped-call]
            m += 1


@options(forceinline=True)
def draw_part(seed, place, row, column, count, share):  # type: ignore[no-untyped-def]
    """Return a draw from Binomial(count, share) by uniforms of the entry."""
    left, word, part = count, 0, 0
    while left > 0:
        trials = left if left < TRIALS else TRIALS
        uniform, _ = philox_pair(seed, row, np.uint64(word & 0xFFFF), column, place)  # type: ignore[no-untyped-call]
        part += binomial_quantile(uniform, trials, share)  # type: ignore[no-untyped-call]
        left, word = left - trials, word + 1
    return part


@options(forceinline=True)
def binomial_quantile(uniform, trials, share):  # type: ignore[no-untyped-def]
    """Return the smallest k with P(K <= k) >= uniform, K ~ Binomial(trials, share), at most `TRIALS` of them.

    With a share above 1/2, trials less that of 1 - share: its first probability does not underflow.
    """
    rare = min(share, 1.0 - share)
    probability, odds, k = (1.0 - rare) ** trials, rare / (1.0 - rare), 0
    below = probability
    while below < uniform and k < trials:
        probability *= odds * (trials - k) / (k + 1)
        below += probability
        k += 1
    return k if share <= 0.5 else trials - k
