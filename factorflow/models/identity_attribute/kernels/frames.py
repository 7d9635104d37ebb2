"""Loops over complete frames of the posterior that is factorised over frames and identities (equation 20).

Shapes: n frames, P identities, Q attributes, K = P Q columns, D features. Given all others, q(b_tp, a_tp) is
a mixture: a_tp is N(off, S0) where b_tp = 0 and N(on, S1) where it is 1, S0 diagonal. S1 depends on the
place of a frame in its sequence and on which entries are observed, so that few different ones are kept:
``which`` says which of them (M) is a frame's.

Frames with missing entries are in `kernels.incomplete_frames`. `update_lanes` is the source of the CPU and of
CUDA devices (`kernels.cuda`). Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,assignment"

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.compile import compile_scalar, options, read_only_view
from factorflow.models.identity_attribute.kernels.neighbours import NOBODY, OUTSIDE
from factorflow.models.identity_attribute.kernels.small import (
    STEADY,
    exponential,
    logarithm,
    maximum,
    minimum,
)

TILE = 128
"""Frames that are updated side by side: what is known of them stays in the second cache."""

WIDTH = TILE + 8
"""Lanes that lie in memory for them: columns 128 numbers apart would be in few sets of a cache."""

LANES = 8
"""Of them, those that are put side by side at a time."""


@options(fastmath=STEADY)
def update_lanes(low, high, gram, alone, inverse, offset, own, before, seen, met, chance, entropy, work):
    """Update all identities of some complete frames, one identity after the other.

    The equations are those of `incomplete_frames.update_one`. Each frame has a lane, the last axis of all
    that is worked in: on the CPU `TILE` lanes are one loop of vectors, and the arrays of a tile stay in the
    cache while its identities are updated; on a device a thread takes one lane.

    Parameters
    ----------
    low, high : int
        Lanes.
    gram : (K, K) array
        E W' rho W; 0 within one identity.
    alone, inverse, offset : (K,), (P, Q, Q), (P,) arrays
        S0, S1 and (log|S1| - log|S0|) / 2 of the frames.
    own : (K, lanes) array
        E a b; changed.
    before : (K, lanes) array
        Precision times mean of a by the neighbours (equation 29); written over: the mean where b = 0.
    seen : (K, lanes) array
        W' rho (y - m); worked in.
    met : (K, lanes) array
        Written: the mean where b = 1.
    chance : (P, lanes) array
        Log odds of b by the neighbours (24); written over: Q(b = 1).
    entropy : (lanes,) array
        Written: of all b.
    work : (4, lanes) array
        Worked in.
    """
    n_identities, size = inverse.shape[0], inverse.shape[1]
    k = n_identities * size
    gain, rest, more, total = work[0], work[1], work[2], work[3]
    for t in range(low, high):
        entropy[t] = 0.0
    for p in range(n_identities):
        first, last = p * size, (p + 1) * size
        for i in range(first, last - 1, 2):  # two at a time: what is read serves both
            for t in range(low, high):
                rest[t], more[t] = seen[i, t], seen[i + 1, t]
            for j in range(0, k - 7, 8):
                g0, g1, g2, g3 = gram[i, j], gram[i, j + 1], gram[i, j + 2], gram[i, j + 3]
                g4, g5, g6, g7 = gram[i, j + 4], gram[i, j + 5], gram[i, j + 6], gram[i, j + 7]
                n = i + 1
                h0, h1, h2, h3 = gram[n, j], gram[n, j + 1], gram[n, j + 2], gram[n, j + 3]
                h4, h5, h6, h7 = gram[n, j + 4], gram[n, j + 5], gram[n, j + 6], gram[n, j + 7]
                for t in range(low, high):
                    x0, x1, x2, x3 = own[j, t], own[j + 1, t], own[j + 2, t], own[j + 3, t]
                    x4, x5, x6, x7 = own[j + 4, t], own[j + 5, t], own[j + 6, t], own[j + 7, t]
                    r = rest[t] - g0 * x0 - g1 * x1 - g2 * x2 - g3 * x3
                    m = more[t] - h0 * x0 - h1 * x1 - h2 * x2 - h3 * x3
                    rest[t] = r - g4 * x4 - g5 * x5 - g6 * x6 - g7 * x7
                    more[t] = m - h4 * x4 - h5 * x5 - h6 * x6 - h7 * x7
            for j in range(k - k % 8, k):
                for t in range(low, high):
                    rest[t] -= gram[i, j] * own[j, t]
                    more[t] -= gram[i + 1, j] * own[j, t]
            for t in range(low, high):
                seen[i, t], seen[i + 1, t] = rest[t] + before[i, t], more[t] + before[i + 1, t]
        for i in range(last - size % 2, last):
            for t in range(low, high):
                rest[t] = seen[i, t]
            for j in range(0, k - 3, 4):
                g0, g1, g2, g3 = gram[i, j], gram[i, j + 1], gram[i, j + 2], gram[i, j + 3]
                for t in range(low, high):
                    rest[t] -= g0 * own[j, t] + g1 * own[j + 1, t] + g2 * own[j + 2, t] + g3 * own[j + 3, t]
            for j in range(k - k % 4, k):
                for t in range(low, high):
                    rest[t] -= gram[i, j] * own[j, t]
            for t in range(low, high):
                seen[i, t] = rest[t] + before[i, t]
        for t in range(low, high):
            gain[t] = chance[p, t] + offset[p]
        for i in range(first, last):
            for t in range(low, high):
                total[t] = 0.0
            for j in range(size):
                for t in range(low, high):
                    total[t] += inverse[p, i - first, j] * seen[first + j, t]
            for t in range(low, high):
                away = alone[i] * before[i, t]  # the mean where b = 0
                gain[t] += 0.5 * (total[t] * seen[i, t] - away * before[i, t])
                met[i, t], before[i, t] = total[t], away
        for t in range(low, high):
            odds = minimum(maximum(gain[t], -700.0), 700.0)
            e = exponential(-odds)
            b = 1.0 / (1.0 + e)
            chance[p, t] = b
            entropy[t] += logarithm(1.0 + e) + (1.0 - b) * odds
        for i in range(first, last):
            for t in range(low, high):
                own[i, t] = chance[p, t] * met[i, t]


@options(fastmath=STEADY)
def spread_out(values, n, size, out):
    """Write values of identities, row n, to their columns: a loop over those of one is short for vectors."""
    if size == 2:
        for p in range(values.shape[1]):
            out[2 * p] = values[n, p]
            out[2 * p + 1] = values[n, p]
    else:
        for i in range(size):
            for p in range(values.shape[1]):
                out[p * size + i] = values[n, p]


@options(fastmath=STEADY)
def mean_of(n, end, present, on, off, by, beside_present, beside_mean, there, to, chances, means):
    """Write Q(b = 1) and E a of one neighbour of a frame: of the half ``n`` is in, or one of `OUTSIDE`.

    A row of an array is counted as one that refers to it, which takes longer than what is done with it here:
    hence ``to``, the row that is written.
    """
    n_identities, k = chances.shape[1], means.shape[1]
    if n >= 0:
        spread_out(present, n, k // n_identities, there)
        for p in range(n_identities):
            chances[to, p] = present[n, p]
        for i in range(k):
            means[to, i] = by[i] * (there[i] * on[n, i] + (1.0 - there[i]) * off[n, i])
    else:
        known = 1.0 if n == OUTSIDE else 0.0
        for p in range(n_identities):
            chances[to, p] = known * beside_present[end, p]
        for i in range(k):
            means[to, i] = known * beside_mean[end, i]


@options(fastmath=STEADY)
def _update_tiles(
    kind, earlier, later, data, pull, gram, hold, odds, alone, inverse, offset, beside_present, beside_mean,
    other_by, other_present, other_on, other_off, old_by, old_present, old_on, present, on, off, entropy,
):  # fmt: skip
    n_identities, size = inverse.shape[1], inverse.shape[2]
    k = n_identities * size
    own, before = np.empty((k, WIDTH)), np.empty((k, WIDTH))
    seen, met = np.empty((k, WIDTH)), np.empty((k, WIDTH))
    chance, spread, work = np.empty((n_identities, WIDTH)), np.empty(WIDTH), np.empty((4, WIDTH))
    means, chances, there = np.empty((2, k)), np.empty((2, n_identities)), np.empty(k)
    stage, odds_of = np.empty((2, LANES, k)), np.empty((LANES, n_identities))
    chosen, inner = np.empty(len(kind), np.int64), 0
    for n in range(len(kind)):
        inner += kind[n] == 0
    dense = 8 * inner > 7 * len(kind)
    for place in range(len(odds)):
        m, known = 0, NOBODY
        for n in range(len(kind)):
            if kind[n] == place or (
                place == 0 and dense
            ):  # few others: they stay in lanes, but are not written
                chosen[m] = n
                m += 1
        for begin in range(0, m, TILE):
            count = minimum(TILE, m - begin)
            for group in range(0, count, LANES):
                for u in range(LANES):
                    n, e = chosen[begin + minimum(group + u, count - 1)], u % 2
                    fresh = u == 0 or earlier[n] < 0 or earlier[n] != known  # else the later one before
                    for end in range(0 if fresh else 1, 2):  # called at one place: every call is compiled
                        mean_of(
                            later[n] if end else earlier[n], end, other_present, other_on, other_off,
                            other_by, beside_present, beside_mean, there, 1 - e if end else e, chances, means,
                        )  # fmt: skip
                    known = later[n]
                    for p in range(n_identities):
                        ahead, back = odds[place, 1] * chances[e, p], odds[place, 2] * chances[1 - e, p]
                        odds_of[u, p] = odds[place, 0] + ahead + back
                    spread_out(old_present, n, size, there)
                    for i in range(k):
                        stage[0, u, i] = hold[place, 0, i] * means[e, i] + hold[place, 1, i] * means[1 - e, i]
                        stage[1, u, i] = there[i] * (old_by[i] * old_on[n, i])
                for i in range(k):
                    for u in range(LANES):
                        before[i, group + u] = stage[0, u, i]
                    for u in range(LANES):
                        own[i, group + u] = stage[1, u, i]
                for p in range(n_identities):
                    for u in range(LANES):
                        chance[p, group + u] = odds_of[u, p]
            low = np.uint64(chosen[begin])  # of a type without negative numbers, which count from behind
            if chosen[begin + count - 1] - chosen[begin] == count - 1:
                for i in range(k):
                    for t in range(count):
                        seen[i, t] = data[i, low + np.uint64(t)] - pull[i]
            else:
                for i in range(k):
                    for t in range(count):
                        seen[i, t] = data[i, chosen[begin + t]] - pull[i]
            high = -(-count // LANES) * LANES
            for i in range(k):
                for t in range(count, high):
                    seen[i, t] = 0.0
            update_lanes(
                0, high, gram, alone[place], inverse[place], offset[place], own, before, seen, met, chance,
                spread, work,
            )  # fmt: skip
            for t in range(count):
                n = chosen[begin + t]
                if kind[n] == place:
                    for i in range(k):
                        on[n, i], off[n, i] = met[i, t], before[i, t]
                    for p in range(n_identities):
                        present[n, p] = chance[p, t]
                    entropy[n] = spread[t]


def update_complete(*arguments: Any) -> None:
    """Update all identities of complete frames, one after the other.

    Parameters
    ----------
    kind : (n,) array
        Places in sequences, 0 to 3, of the frames of one half; those of no place are left out.
    earlier, later : (n,) arrays
        Where the frames before and behind them are in the other half; `OUTSIDE` in another block, `NOBODY`.
    data : (K, n or more) array
        W' rho y.
    pull : (K,) array
        W' rho m.
    gram : (K, K) array
        E W' rho W; 0 within one identity.
    hold : (4, 2, K) array
        What E a of the frame before and of the one behind is multiplied with (equation 29), by place: 0 where
        there is none.
    odds : (4, 3) array
        Log odds of b by the neighbours, by place: c_0 + c_1 b_before + c_2 b_behind (equation 24).
    alone, inverse, offset : (4, K), (4, P, Q, Q), (4, P) arrays
        S0, S1 and (log|S1| - log|S0|) / 2, by place.
    beside_present, beside_mean : (2, P), (2, K) arrays
        Q(b = 1) and E a of the frames before and behind the block.
    other_by, other_present, other_on, other_off : (K,), (N, P), (N, K), (N, K) arrays
        The other half, and what makes its unit that of now.
    old_by, old_present, old_on : (K,), (n, P), (n, K) arrays
        The half itself.
    present, on, off, entropy : (n, P), (n, K), (n, K), (n,) arrays
        Written: q(b = 1); the two means; the entropy of all b.
    """
    compile_scalar(_update_tiles)(*map(read_only_view, arguments[:-4]), *arguments[-4:])
