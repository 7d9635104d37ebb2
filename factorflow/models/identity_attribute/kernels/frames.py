"""Loops over frames of the posterior that is factorised over frames and identities (equation 20).

Shapes: n frames, P identities, Q attributes, K = P Q columns, D features. Given all others, q(b_tp, a_tp) is
a mixture: a_tp is N(off, S0) where b_tp = 0 and N(on, S1) where it is 1, S0 diagonal. S1 depends on the
place of a frame in its sequence and on which entries are observed, so that few different ones are kept:
``which`` says which of them (M) is a frame's. Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.vectors import compiled, inner, log
from factorflow.models.identity_attribute.kernels.small import present_of

__all__ = ["covariances", "entropies", "means", "tally", "update_few", "update_gaps"]

Array = Any


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
def update_few(
    kind: Array,
    outside: Array,
    gram: Array,
    prior: Array,
    precision: Array,
    inverse: Array,
    offset: Array,
    odds: Array,
    first: int,
    x: Array,
    present: Array,
    on: Array,
    off: Array,
) -> None:
    """Update some identities of complete frames, one after the other.

    Parameters
    ----------
    kind : (n,) array
        Places of the frames in their sequences: which of ``precision`` (M, K), ``inverse`` (M, P, Q, Q) and
        ``offset`` (M, P).
    outside : (n, k) array
        W' rho (y - part of all other identities), of these k columns.
    gram : (k, k) array
        E W' rho W among them; what belongs to one identity is left out.
    prior : (n, K) array
        What the neighbouring frames say.
    odds : (n, P) array
        Log odds of b by the neighbouring frames.
    first : int
        The first of these identities.
    x, on, off : (n, K) arrays
        Written: E a b; the two means.
    present : (n, P) array
        Written: q(b = 1).
    """
    size = inverse.shape[2]
    few = gram.shape[0] // size
    for n in range(kind.shape[0]):
        which = kind[n]
        own = x[n, first * size : (first + few) * size]
        for p in range(few):
            low, high = (first + p) * size, (first + p + 1) * size
            information = outside[n, p * size : (p + 1) * size]
            for i in range(size):
                total = 0.0
                for j in range(few * size):
                    total += gram[p * size + i, j] * own[j]
                information[i] -= total
            b = _update_one(
                information,
                prior[n, low:high],
                precision[which, low:high],
                inverse[which, first + p],
                offset[which, first + p],
                odds[n, first + p],
                on[n, low:high],
                off[n, low:high],
            )
            present[n, first + p] = b
            for i in range(size):
                own[p * size + i] = b * on[n, low + i]


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

    As `update_few`, but with y - E W x of the observed entries, ``residual`` (n, D), 0 elsewhere (changed on
    the way), ``seen`` (n, D), E W and E rho W as (K, D), and ``inverse`` (n, P, Q, Q) and ``offset`` (n, P)
    of each frame.
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
    kind: Array,
    precision: Array,
    which: Array,
    inverse: Array,
    squares: Array,
    spread: Array,
) -> None:
    """Add up second moments of the attributes over frames.

    Parameters
    ----------
    present, on, off : arrays
        (B, P), (B, K), (B, K).
    kind : (B,) array
        Place in the sequence: row of ``precision`` (4, K) and of ``squares``.
    which : (B,) array
        Row of ``inverse`` (M, P, Q, Q).
    squares : (4, K) array
        Added to: E a^2 (equation 51).
    spread : (P, Q, Q) array
        Added to: covariance of a b.
    """
    n, n_identities = present.shape
    size = inverse.shape[2]
    for t in range(n):
        where, place = which[t], kind[t]
        for p in range(n_identities):
            b = present[t, p]
            own = inverse[where, p]
            for i in range(size):
                k = p * size + i
                for j in range(size):
                    spread[p, i, j] += b * (own[i, j] + (1.0 - b) * on[t, k] * on[t, p * size + j])
                there, here = off[t, k], on[t, k]
                second = b * (own[i, i] + here * here)
                squares[place, k] += second + (1.0 - b) * (1.0 / precision[place, k] + there * there)


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
