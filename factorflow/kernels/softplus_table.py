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

from factorflow.kernels.compile import INNER
from factorflow.kernels.vectors import compile_loop

__all__ = ["RUN", "expected_softplus", "softplus_run", "softplus_tables", "workspace"]

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


def _place(m: Array, v: Array, node: Array, d: Array, e: Array) -> Any:
    """Write the number of the node nearest to each entry, its distance, and half of that in v.

    Returns whether an entry lies beyond the table; it gets a node of the border.
    """
    beyond: Any = 0
    for i in range(m.size):
        mean = np.float64(m[i])
        z: Any = ((mean if mean < 0.0 else -mean) - LOWEST) * PER_UNIT
        w: Any = np.float64(v[i]) * PER_UNIT
        beyond |= np.int64(z < 0.0) | np.int64(w > LAST)
        z, w = z if z > 0.0 else 0.0, w if w > 0.0 else 0.0
        w = w if w < LAST else LAST
        row, column = np.int32(z + 0.5), np.int32(w + 0.5)
        d[i], e[i] = (z - row) * STEP, (w - column) * (0.5 * STEP)
        node[i] = row * np.int32(COLUMNS) + column
    return beyond


def _collect(table: Array, node: Array, f: Array) -> None:
    """Write the derivatives at the node of each entry, 32 bytes side by side."""
    for i in range(node.size):
        k, n = np.uintp(np.uint32(node[i])) * np.uintp(8), np.uintp(8 * i)
        f[n] = table[k]
        f[n + np.uintp(1)] = table[k + np.uintp(1)]
        f[n + np.uintp(2)] = table[k + np.uintp(2)]
        f[n + np.uintp(3)] = table[k + np.uintp(3)]
        f[n + np.uintp(4)] = table[k + np.uintp(4)]
        f[n + np.uintp(5)] = table[k + np.uintp(5)]
        f[n + np.uintp(6)] = table[k + np.uintp(6)]
        f[n + np.uintp(7)] = table[k + np.uintp(7)]


def _expand(m: Array, ds: Array, es: Array, f: Array, value: Array, slope: Array, curvature: Array) -> None:
    """Write Taylor's expansion about the node of each entry."""
    for i in range(m.size):
        d, e, n = ds[i], es[i], 8 * i
        square = 0.5 * e * e
        cube = square * e * (1.0 / 3.0)
        t0 = f[n] + e * f[n + 2] + square * f[n + 4] + cube * f[n + 6]
        t1 = f[n + 1] + e * f[n + 3] + square * f[n + 5] + cube * f[n + 7]
        t2 = f[n + 2] + e * f[n + 4] + square * f[n + 6]
        t3 = f[n + 3] + e * f[n + 5] + square * f[n + 7]
        t4, t5 = f[n + 4] + e * f[n + 6], f[n + 5] + e * f[n + 7]
        a = t0 + d * (t1 + d * (0.5 * t2 + d * (t3 * (1.0 / 6.0) + d * t4 * (1.0 / 24.0))))
        b = t1 + d * (t2 + d * (0.5 * t3 + d * (t4 * (1.0 / 6.0) + d * t5 * (1.0 / 24.0))))
        mean = np.float64(m[i])
        value[i] = a if mean < 0.0 else mean + a
        slope[i] = b if mean < 0.0 else 1.0 - b
        curvature[i] = t2 + d * (t3 + d * (0.5 * t4 + d * t5 * (1.0 / 6.0)))


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


def _beyond(nodes: Array, m: Array, v: Array, value: Array, slope: Array, curvature: Array) -> None:
    """Write the entries beyond the table."""
    for i in range(m.size):
        mean, variance = np.float64(m[i]), np.float64(v[i])
        below = mean if mean < 0.0 else -mean
        if below < LOWEST or variance > WIDEST:
            if variance > NARROW:
                a, b, c = _summed(nodes[0], nodes[1], below, variance)
            else:
                a = math.exp(below + 0.5 * variance)
                b, c = a, a
            value[i] = a if mean < 0.0 else mean + a
            slope[i] = b if mean < 0.0 else 1.0 - b
            curvature[i] = c


_FAST: dict[str, Any] = {**INNER, "fastmath": {"contract"}}
"""An entry's bits must not depend on where in a run it stands: sums keep their order."""

_summed = compile_loop(_sums, **_FAST)
_placed, _collected = compile_loop(_place, **_FAST), compile_loop(_collect, **_FAST)
_expanded, _written_beyond = compile_loop(_expand, **_FAST), compile_loop(_beyond, **_FAST)


def _softplus_run(
    tables: Any, work: Any, m: Array, v: Array, value: Array, slope: Array, curvature: Array
) -> None:
    """Write value, slope and curvature of at most `RUN` entries, in three loops.

    Two of them are vector instructions; all in one would be none, since the compiler does not look up so.
    """
    table, nodes = tables
    node, d, e, f = work
    size = m.size
    beyond = _placed(m, v, node[:size], d[:size], e[:size])
    _collected(table, node[:size], f)
    _expanded(m, d[:size], e[:size], f, value, slope, curvature)
    if beyond:
        _written_beyond(nodes, m, v, value, slope, curvature)


def _workspace() -> Any:
    """Return what `softplus_run` needs room for."""
    return np.empty(RUN, np.int32), np.empty(RUN), np.empty(RUN), np.empty(8 * RUN, np.float32)


softplus_run, workspace = compile_loop(_softplus_run, **_FAST), compile_loop(_workspace, **_FAST)


def _loop(tables: Any, m: Array, v: Array, value: Array, slope: Array, curvature: Array) -> None:
    work = workspace()
    for i in range(0, m.size, RUN):
        j = min(i + RUN, m.size)
        softplus_run(tables, work, m[i:j], v[i:j], value[i:j], slope[i:j], curvature[i:j])


_compiled = compile_loop(_loop)


@cache
def softplus_tables() -> tuple[Float32[np.ndarray, " nodes"], Float[np.ndarray, "2 n"]]:
    """Return the table, and nodes and weights for what lies beyond it."""
    return _table(), np.stack(_hermite(N_BEYOND))


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
    _compiled(softplus_tables(), mean, variance, value, slope, curvature)
    return value.reshape(shape), slope.reshape(shape), curvature.reshape(shape)
