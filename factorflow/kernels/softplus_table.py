"""E log(1 + e^x), x ~ N(m, v), with its first two derivatives in m: from one table.

The one function of (m, v) that messages of Bernoulli, binomial and negative binomial entries need. It obeys
the heat equation d/dv = 1/2 d^2/dm^2, so that eight derivatives in m at a node are Taylor's expansion in both
m and v about it: an entry takes one look-up of 32 bytes, at the node nearest to it. Nodes lie `STEP` apart at
m = -12 ... 0 and v = 0 ... 8; m above 0 is brought there by log(1 + e^x) = x + log(1 + e^-x). With
delta = m - m_i and epsilon = (v - v_j) / 2::

    T_k = f_k + epsilon f_(k+2) + epsilon^2/2 f_(k+4) + epsilon^3/6 f_(k+6)
    value, slope, curvature = sum_k T_(k+n) delta^k / k!,  n = 0, 1, 2

Below m = -12 all three are e^(m + v/2) where v is at most 1, and beyond the table else sums over nodes of x.
Errors are below 1e-6 of value and slope and 4e-6 of the curvature, and as much of e^m far below 0: those of
nine nodes are 2e-4 at v = 4, in 15 times the time. Importing this module imports numba.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from factorflow.kernels.vectors import compile_loop

Array = Any

LOWEST, WIDEST = -12.0, 8.0
"""Smallest mean and largest variance of the table."""

PER_UNIT, STEP, LAST, COLUMNS = 8.0, 0.125, 64.0, 65
"""Nodes a unit of m or v, their distance, and the last one in v and how many there are."""

N_NODES = 81
"""Gauss-Hermite nodes of the table's entries."""

N_BEYOND = 31
"""Gauss-Hermite nodes of entries beyond the table."""

RUN = 1024
"""Entries that are looked up together: what they need stays in the nearest cache."""

NARROW = 1.0
"""Variance up to which E log(1 + e^x) is E e^x below the table: by 1e-5 of it."""


@cache
def _hermite(n: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    t, weights = np.polynomial.hermite_e.hermegauss(n)
    return t, weights / weights.sum()


@cache
def _table() -> Float32[np.ndarray, " nodes"]:
    """Return E of log(1 + e^x) and of its derivatives 1 to 7 at all nodes, those of a node side by side."""
    t, weights = _hermite(N_NODES)
    m = LOWEST + STEP * np.arange(round(-LOWEST * PER_UNIT) + 1)
    v = STEP * np.arange(COLUMNS)
    x = m[:, None, None] + np.sqrt(v)[None, :, None] * t
    p = 1.0 / (1.0 + np.exp(-x))
    h, c = p * (1.0 - p), 1.0 - 2.0 * p
    derivatives = (
        np.logaddexp(0.0, x),
        p,
        h,
        h * c,
        h * (1.0 - 6.0 * h),
        h * c * (1.0 - 12.0 * h),
        h * (1.0 - 30.0 * h + 120.0 * h**2),
        h * c * (1.0 - 60.0 * h + 360.0 * h**2),
    )
    return np.stack([f @ weights for f in derivatives], axis=-1).astype(np.float32).ravel()


def _look_up(table: Array, m: Array, v: Array, out: Array, node: Array, work: Array, f: Array) -> None:
    """Write value, slope and curvature (3, n) of entries; one beyond the table gets a node of its border.

    Each `RUN` of them takes three loops: the nearest node with the distance in m and half of that in v, the
    derivatives there, 32 bytes side by side, and Taylor's expansion. Two of them are vector instructions; all
    in one would be none, since the compiler does not look up so.
    """
    for first in range(0, m.size, RUN):
        size = min(RUN, m.size - first)
        mean, variance = m[first : first + size], v[first : first + size]
        ds, es = work[0], work[1]
        for i in range(size):
            z: Any = (-abs(np.float64(mean[i])) - LOWEST) * PER_UNIT
            w: Any = np.float64(variance[i]) * PER_UNIT
            z, w = z if z > 0.0 else 0.0, w if w > 0.0 else 0.0
            w = w if w < LAST else LAST
            row, column = np.int32(z + 0.5), np.int32(w + 0.5)
            ds[i], es[i] = (z - row) * STEP, (w - column) * (0.5 * STEP)
            node[i] = row * np.int32(COLUMNS) + column
        for i in range(size):
            k, n = np.uintp(np.uint32(node[i])) * np.uintp(8), np.uintp(8 * i)
            f[n] = table[k]
            f[n + np.uintp(1)] = table[k + np.uintp(1)]
            f[n + np.uintp(2)] = table[k + np.uintp(2)]
            f[n + np.uintp(3)] = table[k + np.uintp(3)]
            f[n + np.uintp(4)] = table[k + np.uintp(4)]
            f[n + np.uintp(5)] = table[k + np.uintp(5)]
            f[n + np.uintp(6)] = table[k + np.uintp(6)]
            f[n + np.uintp(7)] = table[k + np.uintp(7)]
        value, slope = out[0, first : first + size], out[1, first : first + size]
        curvature = out[2, first : first + size]
        for i in range(size):
            d, e, j = ds[i], es[i], 8 * i
            square = 0.5 * e * e
            cube = square * e * (1.0 / 3.0)
            t0 = f[j] + e * f[j + 2] + square * f[j + 4] + cube * f[j + 6]
            t1 = f[j + 1] + e * f[j + 3] + square * f[j + 5] + cube * f[j + 7]
            t2 = f[j + 2] + e * f[j + 4] + square * f[j + 6]
            t3 = f[j + 3] + e * f[j + 5] + square * f[j + 7]
            t4, t5 = f[j + 4] + e * f[j + 6], f[j + 5] + e * f[j + 7]
            a = t0 + d * (t1 + d * (0.5 * t2 + d * (t3 * (1.0 / 6.0) + d * t4 * (1.0 / 24.0))))
            b = t1 + d * (t2 + d * (0.5 * t3 + d * (t4 * (1.0 / 6.0) + d * t5 * (1.0 / 24.0))))
            x = np.float64(mean[i])
            value[i] = a if x < 0.0 else x + a
            slope[i] = b if x < 0.0 else 1.0 - b
            curvature[i] = t2 + d * (t3 + d * (0.5 * t4 + d * t5 * (1.0 / 6.0)))


_looked_up = compile_loop(_look_up, fastmath={"contract"})
"""An entry's bits must not depend on where in a run it stands: sums keep their order."""


def _beyond(m: Float[np.ndarray, " n"], v: Float[np.ndarray, " n"]) -> Float[np.ndarray, "3 n"]:
    """Return value, slope and curvature of entries beyond the table: E e^x, or sums over nodes of x."""
    mean, variance = -np.abs(m.astype(np.float64)), v.astype(np.float64)
    out = np.empty((3, len(m)))
    out[:] = np.exp(mean + 0.5 * np.minimum(variance, NARROW))
    wide = np.flatnonzero(variance > NARROW)
    if wide.size:
        nodes, weights = _hermite(N_BEYOND)
        x = mean[wide, None] + np.sqrt(variance[wide, None]) * nodes
        small = np.exp(-np.abs(x))
        p = np.where(x > 0.0, 1.0, small) / (1.0 + small)
        sums = np.maximum(x, 0.0) + np.log1p(small), p, p * (1.0 - p)
        out[:, wide] = [np.einsum("ni,i->n", f, weights) for f in sums]
    above = m >= 0.0
    out[0, above] += m[above]
    out[1, above] = 1.0 - out[1, above]
    return out


def expected_softplus(
    m: Float[np.ndarray, "*shape"], v: Float[np.ndarray, "*shape"]
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Return E log(1 + e^x), x ~ N(m, v), E sigma(x) and E sigma'(x): the value and two derivatives in m.

    Parameters
    ----------
    m, v : arrays
        Means and variances, of one type, float32 or float64: also that of what is returned.
    """
    shape, dtype = np.shape(m), np.asarray(m).dtype
    mean, variance = (np.ascontiguousarray(a).reshape(-1) for a in (m, v))
    out = np.empty((3, mean.size), dtype)
    room = np.empty(RUN, np.int32), np.empty((2, RUN)), np.empty(8 * RUN, np.float32)
    _looked_up(_table(), mean, variance, out, *room)
    if mean.size and (mean.min() < LOWEST or mean.max() > -LOWEST or variance.max() > WIDEST):
        beyond = np.flatnonzero((np.abs(mean) > -LOWEST) | (variance > WIDEST))
        out[:, beyond] = _beyond(mean[beyond], variance[beyond])
    value, slope, curvature = out.reshape(3, *shape)
    return value, slope, curvature
