"""Rising factorials of counts, r (r + 1) ... (r + y - 1): their logarithms and derivatives in log r.

What a negative binomial likelihood has beside functions of x. A count of 0 has none of it, and of small
counts products and sums of y terms are exact where differences of log Gamma lose digits. Importing this
module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from factorflow.kernels.compile import read_only_view
from factorflow.kernels.gammas import digamma_and_gammaln
from factorflow.kernels.vectors import compile_loop, inner

__all__ = ["derivatives", "log_rising"]

Array = Any
SMALL = 24.0
"""Counts up to which terms are multiplied and added up: r^24 is a number up to `LARGEST_R`."""
LARGEST_R = 1e10
"""Larger r stand for this one: Poisson counts."""


@inner
def _trigamma(x: Array) -> Array:
    """Return the derivative of the digamma function, by Stirling's series at x of 10 and more."""
    total = 0.0
    while x < 10.0:
        total += 1.0 / (x * x)
        x += 1.0
    one = 1.0 / x
    two = one * one
    series = (((1.0 / 42.0 - two / 30.0) * two - 1.0 / 30.0) * two + 1.0 / 6.0) * two * one
    return total + one + 0.5 * two + series


@inner
def _terms(count: Array, r: Array) -> Array:
    """Return log (r)_y - log y! of a count above 0, and two derivatives in log r; NaN of a missing one."""
    if not count >= 0.0:
        return math.nan, math.nan, math.nan
    if count <= SMALL and count == math.floor(count):
        product, first, second = 1.0, 0.0, 0.0
        for j in range(int(count)):
            share = r / (r + j)
            product *= (r + j) / (1.0 + j)
            first += share
            second += share * (1.0 - share)
        return math.log(product), first, second
    one, gamma_one = digamma_and_gammaln(r)
    two, gamma_two = digamma_and_gammaln(r + count)
    _, factorial = digamma_and_gammaln(1.0 + count)
    first = r * (two - one)
    return gamma_two - gamma_one - factorial, first, first + r * r * (_trigamma(r + count) - _trigamma(r))


def _write_logs(y: Array, r: Array, out: Array) -> None:
    """Write log (r)_y - log y! of counts (n, D) into ``out``; r is (1 or n, D)."""
    for n in range(y.shape[0]):
        size = r[min(n, r.shape[0] - 1)]
        for d in range(y.shape[1]):
            out[n, d] = 0.0 if y[n, d] == 0.0 else _terms(np.float64(y[n, d]), size[d])[0]


def _write_derivatives(y: Array, r: Array, softplus: Array, out: Array) -> None:
    """Write log (r)_y - log y! and two derivatives in log r into ``out``, (3, n, D).

    The latter are those of y x - (y + r) E softplus + log (r)_y. ``softplus``: E softplus and its two
    derivatives in its mean, which is x - log r.
    """
    value, slope, curvature = softplus
    for n in range(y.shape[0]):
        size = r[min(n, r.shape[0] - 1)]
        for d in range(y.shape[1]):
            count, one = np.float64(y[n, d]), size[d]
            log, first, second = 0.0, 0.0, 0.0
            if count != 0.0:
                log, first, second = _terms(count, one)
            inside = -one * value[n, d]
            out[0, n, d] = log
            out[1, n, d] = first + inside - count + (count + one) * slope[n, d]
            out[2, n, d] = second + inside + 2.0 * one * slope[n, d] - (count + one) * curvature[n, d]


_logs_written = compile_loop(_write_logs, fastmath={"contract"})
_derivatives_written = compile_loop(_write_derivatives, fastmath={"contract"})


def log_rising(y: Float[np.ndarray, ...], log_r: Float[np.ndarray, ...]) -> Float[np.ndarray, ...]:
    """Return log (r)_y - log y!; 0 where y is, NaN where it is missing.

    Parameters
    ----------
    log_r : array
        It broadcasts against them.
    """
    shape, counts, r = _flat(y, log_r)
    out = np.empty(counts.shape, np.result_type(y, log_r))
    _logs_written(read_only_view(counts), read_only_view(r), out)
    return out.reshape(shape)


def derivatives(
    y: Float[np.ndarray, "*shape"],
    log_r: Float[np.ndarray, ...],
    softplus: tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]],
) -> Float[np.ndarray, ...]:
    """Return what `log_rising` does, and two derivatives in log r; see `_write_derivatives`.

    Parameters
    ----------
    y, log_r : arrays
        As for `log_rising`.
    softplus : tuple of arrays
        E softplus and its two derivatives.
    """
    shape, counts, r = _flat(y, log_r)
    out = np.empty((3, *counts.shape), softplus[0].dtype)
    parts = tuple(read_only_view(np.ascontiguousarray(part).reshape(counts.shape)) for part in softplus)
    _derivatives_written(read_only_view(counts), read_only_view(r), parts, out)
    return out.reshape(3, *shape)


def _flat(y: Array, log_r: Array) -> tuple[tuple[int, ...], Array, Array]:
    """Return the shape of both, counts as rows of the last axis, and r: one row for all, or one for each."""
    shape = np.broadcast_shapes(np.shape(y), np.shape(log_r))
    rows, size = math.prod(shape[:-1]), shape[-1] if shape else 1
    counts = np.ascontiguousarray(np.broadcast_to(y, shape)).reshape(rows, size)
    r = np.minimum(np.exp(np.asarray(log_r, np.float64)), LARGEST_R)
    if r.ndim and any(n > 1 for n in r.shape[:-1]):
        return shape, counts, np.ascontiguousarray(np.broadcast_to(r, shape)).reshape(rows, size)
    return shape, counts, np.ascontiguousarray(np.broadcast_to(r.reshape(-1), (size,))).reshape(1, size)
