"""Sums over the frames of a block (equations 47 to 65), CPU.

Shapes as in `kernels.frames`. Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

from factorflow.kernels.vectors import compiled, log

__all__ = ["covariances", "entropies", "means", "pairs", "tally", "tally_chain"]

Array = Any


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


@compiled
def tally_chain(
    each: Any,
    first: Array,
    last: Array,
    present: Array,
    joint: Array,
    earlier: Array,
    present_entropy: Array,
    mean_entropy: Array,
    mean: Array,
    covariance: Array,
    cross: Array,
    chances: Array,
    moments: Array,
    spread: Array,
) -> None:
    """Write sums over the frames of the chains of one identity.

    No loop over frames writes: their sums are put into vectors wherever arrays lie.

    Parameters
    ----------
    each : tuple
        (0,) * Q.
    first, last : (B,) bool arrays
        Whether a sequence begins or ends.
    present, joint, earlier, present_entropy, mean_entropy, mean, covariance, cross : arrays
        Of the chains (`state.Track`).
    chances : (5,) array
        Written: Q(b_t-1 = b_t = 1), Q(b_t-1 = 1) and Q(b_t = 1) where a frame is before, Q(b_t = 1) where
        none is, the entropy.
    moments : (4, Q) array
        Written: E a^2 in first frames, in all others and in all but the last; E a_t a_t-1.
    spread : (Q, Q) array
        Written: covariance of a b.
    """
    n = len(present)
    both = came = went = begun = entropy = 0.0
    for t in range(n):
        both += joint[t]
        came += earlier[t]
        entropy += present_entropy[t] + mean_entropy[t]
        went += 0.0 if first[t] else present[t]
        begun += present[t] if first[t] else 0.0
    chances[0], chances[1], chances[2], chances[3], chances[4] = both, came, went, begun, entropy
    for i in range(len(each)):
        start = now = past = product = 0.0
        for t in range(n):
            square = mean[t, i] * mean[t, i] + covariance[t, i, i]
            start += square if first[t] else 0.0
            now += 0.0 if first[t] else square
            past += 0.0 if last[t] else square
            product += cross[t, i]
        moments[0, i], moments[1, i], moments[2, i], moments[3, i] = start, now, past, product
        for j in range(i + 1):
            total = 0.0
            for t in range(n):
                b = present[t]
                total += b * (covariance[t, i, j] + (1.0 - b) * mean[t, i] * mean[t, j])
            spread[i, j] = spread[j, i] = total
