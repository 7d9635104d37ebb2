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

import math
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from factorflow.kernels.vectors import compile_loop

__all__ = ["expected_softplus"]

Array = Any

LOWEST, WIDEST = -12.0, 8.0
"""Smallest mean and largest variance of the table."""

PER_UNIT, STEP, LAST, COLUMNS = 8.0, 0.125, 64.0, 65
"""Nodes a unit of m or v, their distance, and the last one in v and how many there are."""

N_NODES = 81
"""Gauss-Hermite nodes of the table's entries."""

N_BEYOND = 31
"""Gauss-Hermite nodes of entries beyond the table."""

NARROW = 1.0
"""Variance up to which E log(1 + e^x) is E e^x below the table: by 1e-5 of it."""

_FAST = {"fastmath": {"contract"}}  # an entry's bits must not depend on where in the array it stands


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


def _expand(d, e, f0, f1, f2, f3, f4, f5, f6, f7):  # type: ignore[no-untyped-def]
    """Return value, slope and curvature at distances d of m and 2 e of v from a node."""
    square = 0.5 * e * e
    cube = square * e * (1.0 / 3.0)
    t0 = f0 + e * f2 + square * f4 + cube * f6
    t1 = f1 + e * f3 + square * f5 + cube * f7
    t2 = f2 + e * f4 + square * f6
    t3 = f3 + e * f5 + square * f7
    t4, t5 = f4 + e * f6, f5 + e * f7
    value = t0 + d * (t1 + d * (0.5 * t2 + d * (t3 * (1.0 / 6.0) + d * t4 * (1.0 / 24.0))))
    slope = t1 + d * (t2 + d * (0.5 * t3 + d * (t4 * (1.0 / 6.0) + d * t5 * (1.0 / 24.0))))
    return value, slope, t2 + d * (t3 + d * (0.5 * t4 + d * t5 * (1.0 / 6.0)))


def _sums(t: Array, weights: Array, m: float, v: float) -> tuple[float, float, float]:
    """Return value, slope and curvature at m <= 0 by nodes of x."""
    s, value, slope, curvature = math.sqrt(v), 0.0, 0.0, 0.0
    for i in range(t.size):
        x = m + s * t[i]
        small = math.exp(-abs(x))
        p = (1.0 if x > 0.0 else small) / (1.0 + small)
        value += weights[i] * ((x if x > 0.0 else 0.0) + math.log(1.0 + small))
        slope += weights[i] * p
        curvature += weights[i] * p * (1.0 - p)
    return value, slope, curvature


_expanded, _summed = compile_loop(_expand, inline="always", **_FAST), compile_loop(_sums, **_FAST)


def _within(table: Array, m: Array, v: Array, value: Array, slope: Array, curvature: Array) -> Any:
    """Write all entries as if they lay within the table; return whether one lies beyond it."""
    beyond: Any = False
    for i in range(m.size):
        mean = np.float64(m[i])
        z: Any = ((mean if mean < 0.0 else -mean) - LOWEST) * PER_UNIT
        w: Any = np.float64(v[i]) * PER_UNIT
        beyond |= (z < 0.0) | (w > LAST)
        z, w = z if z > 0.0 else 0.0, w if w > 0.0 else 0.0
        w = w if w < LAST else LAST
        row, column = np.int32(z + 0.5), np.int32(w + 0.5)
        d, e = (z - row) * STEP, (w - column) * (0.5 * STEP)
        k = np.uintp(np.uint32(row * np.int32(COLUMNS) + column) * np.uint32(8))  # no look for k < 0
        a, b, c = _expanded(
            d,
            e,
            table[k],
            table[k + np.uintp(1)],
            table[k + np.uintp(2)],
            table[k + np.uintp(3)],
            table[k + np.uintp(4)],
            table[k + np.uintp(5)],
            table[k + np.uintp(6)],
            table[k + np.uintp(7)],
        )
        value[i] = a if mean < 0.0 else mean + a
        slope[i] = b if mean < 0.0 else 1.0 - b
        curvature[i] = c
    return beyond


def _beyond(
    t: Array, weights: Array, m: Array, v: Array, value: Array, slope: Array, curvature: Array
) -> None:
    """Write the entries beyond the table."""
    for i in range(m.size):
        mean, variance = np.float64(m[i]), np.float64(v[i])
        below = mean if mean < 0.0 else -mean
        if below < LOWEST or variance > WIDEST:
            if variance > NARROW:
                a, b, c = _summed(t, weights, below, variance)
            else:
                a = math.exp(below + 0.5 * variance)
                b, c = a, a
            value[i] = a if mean < 0.0 else mean + a
            slope[i] = b if mean < 0.0 else 1.0 - b
            curvature[i] = c


_write_within, _write_beyond = compile_loop(_within, **_FAST), compile_loop(_beyond, **_FAST)


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
    value, slope, curvature = (np.empty(math.prod(shape), dtype) for _ in range(3))
    mean, variance = (np.ascontiguousarray(a).reshape(-1) for a in (m, v))
    if _write_within(_table(), mean, variance, value, slope, curvature):
        _write_beyond(*_hermite(N_BEYOND), mean, variance, value, slope, curvature)
    return value.reshape(shape), slope.reshape(shape), curvature.reshape(shape)
