"""Loops over frames of the posterior that is factorised over frames and identities (equation 20).

Shapes: n frames, P identities, Q attributes, K = P Q columns, D features. Given all others, q(b_tp, a_tp) is
a mixture: a_tp is N(off, S0) where b_tp = 0 and N(on, S1) where it is 1, S0 diagonal. S1 depends on the
place of a frame in its sequence and on which entries are observed, so that few different ones are kept:
``which`` says which of them (M) is a frame's. Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.vectors import compiled, exp, inner, log
from factorflow.models.identity_attribute.kernels.small import present_of

__all__ = ["covariances", "entropies", "means", "pairs", "tally", "update_complete", "update_gaps"]

Array = Any

TILE = 32
"""Frames that are updated side by side: what is known of them stays in the first cache."""


@inner
def _update_one(
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
    return float(present_of(odds + gain))


@compiled
def update_complete(
    rows: Array,
    chosen: Array,
    data: Array,
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
    """Update all identities of complete frames, one after the other, `TILE` frames side by side.

    The equations are those of `_update_one`; frames are the last axis of a tile, so that every step is one of
    vectors, and what is known of a tile stays in the cache while its identities take their turns.

    Parameters
    ----------
    rows : (n,) array
        Frames that are updated, of B.
    chosen : (m,) array
        Those of them at one place of their sequences, among n.
    data : (n, K) array
        W' rho y.
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
    n_identities, size = inverse.shape[0], inverse.shape[1]
    k = n_identities * size
    own, before = np.zeros((k, TILE)), np.zeros((k, TILE))
    seen, met = np.zeros((k, TILE)), np.zeros((k, TILE))
    chance = np.zeros((n_identities, TILE))
    gain, rest, total = np.zeros(TILE), np.zeros(TILE), np.zeros(TILE)
    for begin in range(0, len(chosen), TILE):
        count = min(TILE, len(chosen) - begin)
        for t in range(count):
            n = chosen[begin + t]
            row = rows[n]
            for p in range(n_identities):
                there = present[row, p]
                early = present[row - 1, p] if row > 0 else beside_present[0, p]
                late = present[row + 1, p] if row < len(present) - 1 else beside_present[1, p]
                chance[p, t] = odds[0] + odds[1] * early + odds[2] * late
                for i in range(p * size, (p + 1) * size):
                    own[i, t], seen[i, t] = there * on[row, i], data[n, i]
                    a, c = beside_mean[0, i], beside_mean[1, i]
                    if row > 0:
                        a = early * on[row - 1, i] + (1.0 - early) * off[row - 1, i]
                    if row < len(present) - 1:
                        c = late * on[row + 1, i] + (1.0 - late) * off[row + 1, i]
                    before[i, t] = hold[0, i] * a + hold[1, i] * c
        for p in range(n_identities):
            low, high = p * size, (p + 1) * size
            for i in range(low, high):
                rest[:] = seen[i]
                for j in range(0, k - 3, 4):
                    g0, g1, g2, g3 = gram[i, j], gram[i, j + 1], gram[i, j + 2], gram[i, j + 3]
                    for t in range(TILE):
                        rest[t] -= (
                            g0 * own[j, t] + g1 * own[j + 1, t] + g2 * own[j + 2, t] + g3 * own[j + 3, t]
                        )
                for j in range(k - k % 4, k):
                    for t in range(TILE):
                        rest[t] -= gram[i, j] * own[j, t]
                for t in range(TILE):
                    seen[i, t] = rest[t] + before[i, t]
            for t in range(TILE):
                gain[t] = chance[p, t] + offset[p]
            for i in range(low, high):
                total[:] = 0.0
                for j in range(size):
                    for t in range(TILE):
                        total[t] += inverse[p, i - low, j] * seen[low + j, t]
                scale = 1.0 / precision[i]
                for t in range(TILE):
                    gain[t] += 0.5 * (total[t] * seen[i, t] - scale * before[i, t] * before[i, t])
                    met[i, t] = total[t]
            for t in range(TILE):
                chance[p, t] = 1.0 / (1.0 + exp(min(max(-gain[t], -700.0), 700.0)))
            for i in range(low, high):
                for t in range(TILE):
                    own[i, t] = chance[p, t] * met[i, t]
        for t in range(count):
            row = rows[chosen[begin + t]]
            for i in range(k):
                on[row, i], off[row, i] = met[i, t], before[i, t] / precision[i]
            for p in range(n_identities):
                present[row, p] = chance[p, t]


@compiled
def update_gaps(
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
    """Update all identities of frames with missing entries, one after the other.

    ``kind`` (n,) are places, rows of ``precision`` (4, K); ``inverse`` (n, P, Q, Q) and ``offset`` (n, P) are
    those of each frame; ``residual`` (n, D) is y - E W x of the observed entries, 0 elsewhere (changed on the
    way); ``seen`` (n, D), E W and E rho W as (K, D); ``prior`` (n, K) and ``odds``
    (n, P) are what the neighbouring frames say; x, on, off (n, K) and present (n, P) are written.
    """
    n_identities, size = inverse.shape[1], inverse.shape[2]
    n_features = weights.shape[1]
    for n in range(kind.shape[0]):
        which = kind[n]
        rest = residual[n]
        information = np.empty(size)
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
            b = _update_one(
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


@compiled
def means(present: Array, on: Array, off: Array, x: Array, a: Array) -> None:
    """Write E a b and E a (equations 47, 48), (B, K) each."""
    n, n_identities = present.shape
    size = on.shape[1] // n_identities
    for t in range(n):
        for p in range(n_identities):
            b = present[t, p]
            for i in range(p * size, (p + 1) * size):
                x[t, i] = b * on[t, i]
                a[t, i] = x[t, i] + (1.0 - b) * off[t, i]


@compiled
def tally(
    present: Array,
    on: Array,
    off: Array,
    x: Array,
    a: Array,
    kind: Array,
    which: Array,
    inverse: Array,
    squares: Array,
    bands: Array,
    spread: Array,
    chances: Array,
    numbers: Array,
) -> None:
    """Add up second moments of the attributes over frames, but for what is the same in many frames.

    Parameters
    ----------
    present, on, off, x, a : arrays
        (B, P), (B, K), (B, K), E a b and E a, (B, K) each.
    kind : (B,) array
        Place in the sequence: row of ``squares``.
    which : (B,) array
        Row of ``inverse`` (M, P, Q, Q); below 4: the place.
    squares : (4, K) array
        Added to: E a^2 (equation 51) less the variances of a; those where b = 1 are added where entries are
        missing.
    bands : (Q, K) array
        Added to: the covariance of a b less b S1, of columns k and k + q of one identity.
    spread : (P, Q, Q) array
        Added to: b S1 where entries are missing.
    chances : (2, 4, P) array
        Added to: b, by place, of complete frames and of all.
    numbers : (4,) array
        Added to: 1, by place.
    """
    n, n_identities = present.shape
    size, k = inverse.shape[2], on.shape[1]
    for t in range(n):
        where, place = which[t], kind[t]
        numbers[place] += 1.0
        for i in range(k):
            squares[place, i] += x[t, i] * on[t, i] + (a[t, i] - x[t, i]) * off[t, i]
        for p in range(n_identities):
            chances[1, place, p] += present[t, p]
        for apart in range(size):
            for i in range(k - apart):  # those of two identities as well: a loop of vectors
                bands[apart, i] += x[t, i] * (on[t, i + apart] - x[t, i + apart])
        if where < 4:
            for p in range(n_identities):
                chances[0, place, p] += present[t, p]
            continue
        for p in range(n_identities):
            for i in range(size):
                squares[place, p * size + i] += present[t, p] * inverse[where, p, i, i]
                for j in range(size):
                    spread[p, i, j] += present[t, p] * inverse[where, p, i, j]


@compiled
def pairs(
    rows: Array,
    goes_on: Array,
    present: Array,
    a: Array,
    beside_present: Array,
    beside_mean: Array,
    cross: Array,
) -> tuple[float, float, float]:
    """Add up the pairs of neighbouring frames that odd frames are in, the frame before first.

    Parameters
    ----------
    rows, goes_on : (n,) arrays
        Odd frames, and 1 where the sequence does not end there.
    present, a : (B, P), (B, K) arrays
        Q(b = 1) and E a.
    beside_present, beside_mean : (2, P), (2, K) arrays
        The same of the frames before the first and behind the last one of B.
    cross : (K,) array
        Added to: E a of one times E a of the other (65).

    Returns
    -------
    both, came, went : float
        Sums of b b' of the two frames, of b and of b'.
    """
    both = came = went = 0.0
    for n in range(rows.size):
        row, then = rows[n], goes_on[n]
        for p in range(present.shape[1]):
            early = present[row - 1, p] if row > 0 else beside_present[0, p]
            late = present[row + 1, p] if row < len(present) - 1 else beside_present[1, p]
            now = present[row, p]
            both += now * (early + then * late)
            came += early + then * now
            went += now + then * late
        for i in range(a.shape[1]):
            early = a[row - 1, i] if row > 0 else beside_mean[0, i]
            late = a[row + 1, i] if row < len(a) - 1 else beside_mean[1, i]
            cross[i] += a[row, i] * (early + then * late)
    return both, came, went


@compiled
def covariances(present: Array, on: Array, which: Array, inverse: Array, out: Array) -> None:
    """Write the covariance of a b of every frame and identity, (B, P, Q, Q)."""
    n, n_identities = present.shape
    size = inverse.shape[2]
    for t in range(n):
        for p in range(n_identities):
            b = present[t, p]
            for i in range(size):
                for j in range(size):
                    there = (1.0 - b) * on[t, p * size + i] * on[t, p * size + j]
                    out[t, p, i, j] = b * (inverse[which[t], p, i, j] + there)


@compiled
def entropies(present: Array, which: Array, half_on: Array, kind: Array, half_off: Array) -> float:
    """Return the sum of the entropies of q(b_tp, a_tp) (equation 94) less Q (1 + log 2 pi) / 2 each.

    ``half_on`` (M, P) and ``half_off`` (4, P) are log|S1| / 2 and log|S0| / 2.
    """
    n, n_identities = present.shape
    total = 0.0
    for t in range(n):
        on, off = half_on[which[t]], half_off[kind[t]]
        for p in range(n_identities):
            b = present[t, p]
            total += b * on[p] + (1.0 - b) * off[p]
            total -= b * log(max(b, 1e-300)) + (1.0 - b) * log(max(1.0 - b, 1e-300))
    return total
