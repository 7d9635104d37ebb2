"""Loops over frames of the posterior that is factorised over frames and identities (equation 20).

Shapes: n frames, P identities, Q attributes, K = P Q columns, D features. Given all others, q(b_tp, a_tp) is
a mixture: a_tp is N(off, S0) where b_tp = 0 and N(on, S1) where it is 1, S0 diagonal. S1 depends on the
place of a frame in its sequence and on which entries are observed, so that few different ones are kept:
``which`` says which of them (M) is a frame's.

`update_lanes` and `update_gap` are the source of the CPU and of CUDA devices (`kernels.cuda`). Importing this
module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.compile import compiled, options
from factorflow.models.identity_attribute.kernels.small import (
    FAST,
    exponential,
    larger,
    present_of,
    smaller,
)

__all__ = ["TILE", "update_complete", "update_gap", "update_gaps", "update_lanes"]

Array = Any

TILE = 64
"""Frames that are updated side by side: what is read most of them, E a b, stays in the first cache."""

WIDTH = TILE + 8
"""Lanes that lie in memory for them: at a distance of 64 numbers, columns would be in few sets of a cache."""


@options(fastmath=FAST)
def update_one(
    information: Array,
    prior: Array,
    precision: Array,
    inverse: Array,
    offset: float,
    odds: float,
    on: Array,
    off: Array,
) -> float:
    """Write the two means of one identity in one frame (equations 29, 40), return q(b = 1) (41, 46).

    ``information`` is what the data say of a (Q), ``prior`` what the neighbouring frames do, ``offset`` is
    (log|S1| - log|S0|) / 2.
    """
    size = on.shape[0]
    gain = offset
    for i in range(size):
        total = 0.0
        for j in range(size):
            total += inverse[i, j] * (prior[j] + information[j])
        on[i] = total
        off[i] = prior[i] / precision[i]
        gain += 0.5 * (total * (prior[i] + information[i]) - off[i] * prior[i])
    return present_of(odds + gain)


@options(fastmath=FAST)
def update_lanes(
    low: int,
    high: int,
    begin: int,
    count: int,
    rows: Array,
    chosen: Array,
    data: Array,
    pull: Array,
    gram: Array,
    hold: Array,
    odds: Array,
    precision: Array,
    inverse: Array,
    offset: Array,
    beside_present: Array,
    beside_mean: Array,
    own: Array,
    before: Array,
    seen: Array,
    met: Array,
    chance: Array,
    work: Array,
    present: Array,
    on: Array,
    off: Array,
) -> None:
    """Update all identities of some complete frames, one identity after the other.

    The equations are those of `update_one`. Each frame has a lane, the last axis of what is worked in: on the
    CPU `TILE` lanes are one loop of vectors, and what is known of a tile stays in the cache while its
    identities take their turns; on a device a thread takes one lane.

    Parameters
    ----------
    low, high : int
        Lanes: of the frames ``chosen[begin + lane]``.
    begin, count : int
        Where they begin among the chosen ones; the first ``count`` lanes have a frame.
    own, before, seen, met : (K, lanes) arrays
        Worked in.
    chance, work : (P, lanes), (4, lanes) arrays
        Worked in.
    rows, chosen, data, pull, gram, hold, odds, precision, inverse, offset, beside_present, beside_mean, \
    present, on, off
        See `update_complete`.
    """
    n_identities, size = inverse.shape[0], inverse.shape[1]
    k = n_identities * size
    gain, rest, more, total = work[0], work[1], work[2], work[3]
    for t in range(low, smaller(high, count)):
        n = chosen[begin + t]
        row = rows[n]
        for p in range(n_identities):
            there = present[row, p]
            early = present[row - 1, p] if row > 0 else beside_present[0, p]
            late = present[row + 1, p] if row < len(present) - 1 else beside_present[1, p]
            chance[p, t] = odds[0] + odds[1] * early + odds[2] * late
            for i in range(p * size, (p + 1) * size):
                own[i, t], seen[i, t] = there * on[row, i], data[n, i] - pull[i]
                a, c = beside_mean[0, i], beside_mean[1, i]
                if row > 0:
                    a = early * on[row - 1, i] + (1.0 - early) * off[row - 1, i]
                if row < len(present) - 1:
                    c = late * on[row + 1, i] + (1.0 - late) * off[row + 1, i]
                before[i, t] = hold[0, i] * a + hold[1, i] * c
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
                    rest[t] -= g0 * x0 + g1 * x1 + g2 * x2 + g3 * x3 + g4 * x4 + g5 * x5 + g6 * x6 + g7 * x7
                    more[t] -= h0 * x0 + h1 * x1 + h2 * x2 + h3 * x3 + h4 * x4 + h5 * x5 + h6 * x6 + h7 * x7
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
            scale = 1.0 / precision[i]
            for t in range(low, high):
                away = scale * before[i, t]  # the mean where b = 0
                gain[t] += 0.5 * (total[t] * seen[i, t] - away * before[i, t])
                met[i, t], before[i, t] = total[t], away
        for t in range(low, high):
            chance[p, t] = 1.0 / (1.0 + exponential(smaller(larger(-gain[t], -700.0), 700.0)))
        for i in range(first, last):
            for t in range(low, high):
                own[i, t] = chance[p, t] * met[i, t]
    for t in range(low, smaller(high, count)):
        row = rows[chosen[begin + t]]
        for i in range(k):
            on[row, i], off[row, i] = met[i, t], before[i, t]
        for p in range(n_identities):
            present[row, p] = chance[p, t]


@options(fastmath=FAST)
def _update_tiles(
    rows: Array,
    chosen: Array,
    data: Array,
    pull: Array,
    gram: Array,
    hold: Array,
    odds: Array,
    precision: Array,
    inverse: Array,
    offset: Array,
    beside_present: Array,
    beside_mean: Array,
    present: Array,
    on: Array,
    off: Array,
) -> None:
    n_identities, size = inverse.shape[0], inverse.shape[1]
    k = n_identities * size
    own, before = np.zeros((k, WIDTH)), np.zeros((k, WIDTH))
    seen, met = np.zeros((k, WIDTH)), np.zeros((k, WIDTH))
    chance, work = np.zeros((n_identities, WIDTH)), np.zeros((4, WIDTH))
    for begin in range(0, len(chosen), TILE):
        count = min(TILE, len(chosen) - begin)
        update_lanes(
            0, TILE, begin, count, rows, chosen, data, pull, gram, hold, odds, precision, inverse, offset,
            beside_present, beside_mean, own, before, seen, met, chance, work, present, on, off,
        )  # fmt: skip


def update_complete(*arguments: Array) -> None:
    """Update all identities of complete frames, one after the other.

    Parameters
    ----------
    rows : (n,) array
        Frames that are updated, of B.
    chosen : (m,) array
        Those of them at one place of their sequences, among n.
    data : (n, K) array
        W' rho y.
    pull : (K,) array
        W' rho m.
    gram : (K, K) array
        E W' rho W; 0 within one identity.
    hold : (2, K) array
        What E a of the frame before and of the one behind is multiplied with (equation 29): 0 where there is
        none.
    odds : (3,) array
        Log odds of b by the neighbours: c_0 + c_1 b_before + c_2 b_behind (equation 24).
    precision : (K,) array
        At this place, as ``inverse`` (P, Q, Q) and ``offset`` (P,).
    beside_present, beside_mean : (2, P), (2, K) arrays
        Q(b = 1) and E a of the frames before the first and behind the last one of B.
    present, on, off : (B, P), (B, K), (B, K) arrays
        Changed in these frames: q(b = 1); the two means.
    """
    compiled(_update_tiles)(*arguments)


@options(fastmath=FAST)
def update_gap(
    n: int,
    kind: Array,
    residual: Array,
    seen: Array,
    weights: Array,
    weighted: Array,
    prior: Array,
    precision: Array,
    inverse: Array,
    offset: Array,
    odds: Array,
    information: Array,
    x: Array,
    present: Array,
    on: Array,
    off: Array,
) -> None:
    """Update all identities of frame n with missing entries; ``information`` (Q,) is worked in.

    See `update_gaps` for all others.
    """
    n_identities, size = inverse.shape[1], inverse.shape[2]
    n_features = weights.shape[1]
    which = kind[n]
    rest = residual[n]
    for p in range(n_identities):
        low, high = p * size, (p + 1) * size
        for i in range(low, high):
            for d in range(n_features):
                rest[d] += x[n, i] * weights[i, d] * seen[n, d]
        for i in range(size):
            total = 0.0
            for d in range(n_features):
                total += weighted[low + i, d] * rest[d]
            information[i] = total
        b = update_one(
            information,
            prior[n, low:high],
            precision[which, low:high],
            inverse[n, p],
            offset[n, p],
            odds[n, p],
            on[n, low:high],
            off[n, low:high],
        )
        present[n, p] = b
        for i in range(low, high):
            x[n, i] = b * on[n, i]
            for d in range(n_features):
                rest[d] -= x[n, i] * weights[i, d] * seen[n, d]


@options(fastmath=FAST)
def _update_rows(
    kind: Array,
    residual: Array,
    seen: Array,
    weights: Array,
    weighted: Array,
    prior: Array,
    precision: Array,
    inverse: Array,
    offset: Array,
    odds: Array,
    x: Array,
    present: Array,
    on: Array,
    off: Array,
) -> None:
    information = np.empty(inverse.shape[2])
    for n in range(kind.shape[0]):
        update_gap(
            n, kind, residual, seen, weights, weighted, prior, precision, inverse, offset, odds, information,
            x, present, on, off,
        )  # fmt: skip


def update_gaps(*arguments: Array) -> None:
    """Update all identities of frames with missing entries, one after the other.

    Parameters
    ----------
    kind : (n,) array
        Places, rows of ``precision`` (4, K).
    residual : (n, D) array
        y - E W x of the observed entries, 0 elsewhere; changed on the way.
    seen : (n, D) array
        1.0 where an entry is observed.
    weights, weighted : (K, D) arrays
        E W and E rho W.
    prior : (n, K) array
        What the neighbouring frames say of a.
    precision, inverse, offset : (4, K), (n, P, Q, Q), (n, P) arrays
        The latter two of each frame.
    odds : (n, P) array
        What the neighbouring frames say of b.
    x, present, on, off : (n, K), (n, P), (n, K), (n, K) arrays
        Written.
    """
    compiled(_update_rows)(*arguments)
