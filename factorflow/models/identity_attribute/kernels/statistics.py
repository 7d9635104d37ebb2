"""Sums over the frames of a block (equations 47 to 65), CPU.

Shapes as in `kernels.frames`. Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.compile import INNER, read_only_view
from factorflow.kernels.vectors import compile_loop
from factorflow.models.identity_attribute.kernels import frames
from factorflow.models.identity_attribute.kernels.small import STEADY


def _steady(function: Any) -> Any:
    """Compile a loop in which sums keep their order (`kernels.small.STEADY`)."""
    return compile_loop(function, fastmath=STEADY)


def _inner(function: Any) -> Any:
    """Compile such a function into the loops that call it."""
    return compile_loop(function, fastmath=STEADY, **INNER)


spread_out: Any = _inner(frames.spread_out)


@compile_loop
def write_means(present, on, off, x, a):
    """Write E a b and E a (equations 47, 48), (B, K) each."""
    n, k = on.shape
    size, there = k // present.shape[1], np.empty(k)
    for t in range(n):
        spread_out(present, t, size, there)
        for i in range(k):
            x[t, i] = there[i] * on[t, i]
            a[t, i] = x[t, i] + (1.0 - there[i]) * off[t, i]


@_inner
def _add_frame(
    t, m, present, on, off, where, place, link, there, b, a, x, active, cross, bands, squares, chances, pairs
):
    """Add frame t, which is m in its half; the one before it is in the other rows of ``b`` and ``a``."""
    n_identities, k, size, e = b.shape[1], a.shape[1], len(bands), t % 2
    spread_out(present, m, size, there)
    for p in range(n_identities):
        b[e, p] = present[m, p]
    for i in range(k):
        x[t, i] = there[i] * on[m, i]
        a[e, i] = there[i] * on[m, i] + (1.0 - there[i]) * off[m, i]
    for i in range(k):
        squares[place, i] += x[t, i] * on[m, i] + (a[e, i] - x[t, i]) * off[m, i]
    for i in range(k):
        active[i] += x[t, i]
    if link > 0.0:
        for i in range(k):
            cross[i] += a[1 - e, i] * a[e, i]
    for apart in range(size):
        for i in range(k - apart):  # those of two identities as well: a loop of vectors
            bands[apart, i] += x[t, i] * (on[m, i + apart] - x[t, i + apart])
    for p in range(n_identities):
        chances[1, place, p] += b[e, p]
    for p in range(n_identities):
        pairs[0, p] += link * (b[1 - e, p] * b[e, p])
    for p in range(n_identities):
        pairs[1, p] += link * b[1 - e, p]
    for p in range(n_identities):
        pairs[2, p] += link * b[e, p]
    if where < 4:
        for p in range(n_identities):
            chances[0, place, p] += b[e, p]


@_steady
def sum_statistics(
    odd, at, even_present, even_on, even_off, odd_present, odd_on, odd_off, kind, which, inverse, half_on,
    linked, beside_present, beside_mean, x, active, cross, bands, squares, spread, chances, numbers, pairs,
):  # fmt: skip
    """Add up moments over frames, but for what is the same in many of them.

    Parameters
    ----------
    odd, at : (B,) arrays
        Half of each frame, and where it is there.
    even_present, even_on, even_off, odd_present, odd_on, odd_off : arrays
        The two halves: (n, P), (n, K), (n, K) each.
    kind : (B,) array
        Place in the sequence: row of ``squares``.
    which : (B,) array
        Row of ``inverse`` (M, P, Q, Q) and of ``half_on`` (M, P); below 4: the place.
    linked : (B + 1,) array
        1 where the pair of a frame and the one before it is to be added; the last one is that behind B.
    beside_present, beside_mean : (2, P), (2, K) arrays
        Q(b = 1) and E a of the frames before the first and behind the last one of B.
    x : (B, K) array
        Written: E a b.
    active, cross : (K,) arrays
        Added to: E a b; E a_t E a_t-1 of pairs (65).
    bands : (Q, K) array
        Added to: the covariance of a b less b S1, of columns k and k + q of one identity.
    squares : (4, K) array
        Added to: E a^2 (equation 51) less the variances of a; those where b = 1 are added where entries are
        missing.
    spread : (P, Q, Q) array
        Added to: b S1 where entries are missing.
    chances : (2, 4, P) array
        Added to: b, by place, of complete frames and of all.
    numbers : (4,) array
        Added to: 1, by place.
    pairs : (3, P) array
        Added to: b b' of pairs, b of the earlier frames, b' of the later ones.

    Returns
    -------
    float
        Sum of b log|S1| / 2 where entries are missing.
    """
    n, n_identities, size = len(odd), inverse.shape[1], inverse.shape[2]
    k = n_identities * size
    there, a, b, total = np.empty(k), np.empty((2, k)), np.empty((2, n_identities)), 0.0
    for i in range(k):  # not a[1] = ...: what says that shapes differ takes half the time to compile
        a[1, i] = beside_mean[0, i]
    for p in range(n_identities):
        b[1, p] = beside_present[0, p]
    for t in range(n):
        e, m, where, place = t % 2, at[t], which[t], kind[t]
        numbers[place] += 1.0
        present, on, off = even_present, even_on, even_off
        if odd[t]:
            present, on, off = odd_present, odd_on, odd_off
        _add_frame(
            t, m, present, on, off, where, place, linked[t], there, b, a, x, active, cross, bands, squares,
            chances, pairs,
        )  # fmt: skip
        if where < 4:
            continue
        for p in range(n_identities):
            total += b[e, p] * half_on[where, p]
            for i in range(size):
                squares[place, p * size + i] += b[e, p] * inverse[where, p, i, i]
                for j in range(size):
                    spread[p, i, j] += b[e, p] * inverse[where, p, i, j]
    if linked[n] > 0.0:
        for i in range(k):
            cross[i] += a[1 - n % 2, i] * beside_mean[1, i]
        for p in range(n_identities):
            pairs[0, p] += b[1 - n % 2, p] * beside_present[1, p]
            pairs[1, p] += b[1 - n % 2, p]
            pairs[2, p] += beside_present[1, p]
    return total


@compile_loop
def covariances(present, on, which, inverse, out):
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


@compile_loop
def _sum_chain(
    each, first, last, present, joint, earlier, present_entropy, mean_entropy, mean, covariance, cross,
    chances, moments, spread,
):  # fmt: skip
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


def sum_chain_statistics(*arguments: Any) -> None:
    """Write sums over the frames of the chains of one identity.

    No loop over frames writes: their sums are put into vectors wherever arrays lie.

    Parameters
    ----------
    each : tuple
        (0,) * Q.
    first, last : (B,) bool arrays
        Whether a sequence begins or ends.
    chances : (5,) array
        Written: Q(b_t-1 = b_t = 1), Q(b_t-1 = 1) and Q(b_t = 1) where a frame is before, Q(b_t = 1) where
        none is, the entropy.
    moments : (4, Q) array
        Written: E a^2 in first frames, in all others and in all but the last; E a_t a_t-1.
    spread : (Q, Q) array
        Written: covariance of a b.
    """
    _sum_chain(*map(read_only_view, arguments[:-3]), *arguments[-3:])
