"""An information smoother over chains of a, a run of frames of one sequence at a time (equation 19).

A chain is held by precision and precision times mean, (Q + 1, Q): the latter is the last row. B frames of a
block, R runs of them (of one sequence each), Q attributes. ``each`` is (0,) * Q, so that loops over the
attributes have a length that is known when they are compiled. Plain functions, for the CPU and for CUDA
devices (`kernels.cuda`). Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.kernels.compile import compiled, options
from factorflow.models.identity_attribute.kernels.small import STEADY, inverse_of

__all__ = ["linked", "pass_on", "product", "smooth_attributes", "smooth_run", "tell"]

Array = Any
LOG_2PI = math.log(2.0 * math.pi)


@options(fastmath=STEADY)
def product(each: Any, left: Array, right: Array, out: Array) -> None:
    """Write left right, (Q, Q) each."""
    for i in range(len(each)):
        for j in range(len(each)):
            total = 0.0
            for k in range(len(each)):
                total += left[i, k] * right[k, j]
            out[i, j] = total


@options(fastmath=STEADY)
def tell(
    each: Any, t: int, present: Array, evidence: Array, own: Array, gaps: int, beyond: Array, out: Array
) -> None:
    """Write what the data of frame t and ``beyond`` say of its a, (Q + 1, Q)."""
    size, b = len(each), present[t]
    for i in range(size):
        out[size, i] = beyond[size, i] + b * evidence[t, i]
        for j in range(size):
            out[i, j] = beyond[i, j] + b * own[gaps * t, i, j]


@options(fastmath=STEADY)
def pass_on(each: Any, known: Array, there: Array, moments: Array, new: int, out: Array) -> None:
    """Write what is known of one a as what that says of the next (``new`` 0) or the last (2) one.

    ``there`` (Q, Q) is the inverse of the known precision and that of the link on this side.
    """
    size = len(each)
    for i in range(size):
        total = 0.0
        for j in range(size):
            total += there[i, j] * known[size, j]
            out[i, j] = -moments[1, i] * there[i, j] * moments[1, j]
        out[i, i] += moments[new, i]
        out[size, i] = moments[1, i] * total


@options(fastmath=STEADY)
def linked(each: Any, known: Array, moments: Array, which: int, there: Array) -> float:
    """Write (known precision + diag(moments[which]))^-1, return log of the determinant of its inverse."""
    for i in range(len(each)):
        for j in range(len(each)):
            there[i, j] = known[i, j]
        there[i, i] += moments[which, i]
    return inverse_of(each, there, there)


@options(fastmath=STEADY)
def smooth_run(
    each: Any,
    low: int,
    high: int,
    fresh: bool,
    ended: bool,
    present: Array,
    evidence: Array,
    own: Array,
    gaps: int,
    moments: Array,
    variance: float,
    before: Array,
    behind: Array,
    forward: Array,
    backward: Array,
    there: Array,
    work: Array,
    mean: Array,
    covariance: Array,
    cross: Array,
    entropy: Array,
) -> None:
    """Write the marginals of the run of frames low to high; ``fresh``, ``ended``: a sequence is no longer.

    ``forward``, ``backward`` (B, Q + 1, Q), ``there`` (B, Q, Q) and ``work`` (3 Q + 2, Q) are worked in; all
    others as for `smooth_attributes`.
    """
    size = len(each)
    half = 0.5 * size * (1.0 + LOG_2PI)
    step, past, edge = work[: size + 1], work[size + 1 : 2 * size + 1], work[2 * size + 1 :]
    for t in range(low, high):  # forward: what all frames up to t say of a_t
        if t == low and fresh:
            for i in range(size):
                step[size, i] = 0.0
                for j in range(size):
                    step[i, j] = 1.0 / variance if i == j else 0.0
        else:
            known = before if t == low else forward[t - 1]
            linked(each, known, moments, 2, past)
            pass_on(each, known, past, moments, 0, step)
        tell(each, t, present, evidence, own, gaps, step, forward[t])
    for i in range(size):
        for j in range(size + 1):
            backward[high - 1, j, i] = 0.0 if ended else behind[j, i]
    for t in range(high - 1, low if fresh else low - 1, -1):  # backward: what those behind t say of it
        tell(each, t, present, evidence, own, gaps, backward[t], step)
        entropy[t] = half - 0.5 * linked(each, step, moments, 0, there[t])  # of a_t given a_t-1
        pass_on(each, step, there[t], moments, 2, backward[t - 1] if t > low else edge)
    for t in range(low, high):
        for i in range(size):
            for j in range(size):
                covariance[t, i, j] = forward[t, i, j] + backward[t, i, j]
        log_det = inverse_of(each, covariance[t], covariance[t])
        if t == low and fresh:
            entropy[t] = half - 0.5 * log_det
        for i in range(size):
            total = 0.0
            for j in range(size):
                total += covariance[t, i, j] * (forward[t, size, j] + backward[t, size, j])
            mean[t, i] = total
    if fresh:
        for i in range(size):
            cross[low, i] = 0.0
    else:  # of the frame before, in another block: covariance and, in the last row, mean
        for i in range(size):
            for j in range(size):
                past[i, j] = edge[i, j] + before[i, j]
        inverse_of(each, past, past)
        for i in range(size):
            total = 0.0
            for j in range(size):
                total += past[i, j] * (edge[size, j] + before[size, j])
            step[size, i] = total
        covary(each, past, step[size], mean[low], there[low], moments, cross[low])
    for t in range(low + 1, high):
        covary(each, covariance[t - 1], mean[t - 1], mean[t], there[t], moments, cross[t])


@options(fastmath=STEADY)
def covary(
    each: Any, covariance: Array, earlier: Array, mean: Array, there: Array, moments: Array, out: Array
) -> None:
    """Write E a_t a_t-1 of each attribute, from covariance and mean of a_t-1 and the mean of a_t."""
    for i in range(len(each)):
        total = earlier[i] * mean[i]
        for j in range(len(each)):
            total += covariance[i, j] * moments[1, j] * there[j, i]
        out[i] = total


@options(fastmath=STEADY)
def _smooth(
    each: Any,
    starts: Array,
    stops: Array,
    first: Array,
    last: Array,
    present: Array,
    evidence: Array,
    own: Array,
    gaps: int,
    moments: Array,
    variance: float,
    before: Array,
    behind: Array,
    mean: Array,
    covariance: Array,
    cross: Array,
    entropy: Array,
) -> None:
    count, size = len(first), len(each)
    forward, backward = np.empty((count, size + 1, size)), np.empty((count, size + 1, size))
    there, work = np.empty((count, size, size)), np.empty((3 * size + 2, size))
    for run in range(len(starts)):
        low, high = starts[run], stops[run]
        smooth_run(
            each, low, high, first[low], last[high - 1], present, evidence, own, gaps, moments, variance,
            before, behind, forward, backward, there, work, mean, covariance, cross, entropy,
        )  # fmt: skip


def smooth_attributes(*arguments: Any) -> None:
    """Write the marginals of a chain of a.

    Parameters
    ----------
    each, starts, stops, first, present, evidence, own, gaps, moments, variance
        As for `span_attributes`.
    last : (B,) bool array
        Whether a sequence ends; behind ``first``.
    before, behind : (Q + 1, Q) arrays
        As of `scan_attributes`; behind ``variance``.
    mean, covariance : (B, Q) and (B, Q, Q) arrays
        Written.
    cross : (B, Q) array
        Written: E a_t a_t-1 of each attribute; 0 in first frames.
    entropy : (B,) array
        Written: of a_t given a_t-1.
    """
    compiled(_smooth)(*arguments)
