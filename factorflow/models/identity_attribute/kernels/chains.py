"""An information smoother over chains of a, a run of frames of one sequence at a time (equation 19).

A chain is held by precision and precision times mean, (Q + 1, Q): the latter is the last row. B frames of a
block, R runs of them (of one sequence each), Q attributes. ``each`` is (0,) * Q, so that loops over the
attributes have a length that is known when they are compiled. Plain functions, for the CPU and for CUDA
devices (`kernels.cuda`). Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.kernels.compile import compile_scalar, options, read_only_view
from factorflow.models.identity_attribute.kernels.small import STEADY, invert_small

LOG_2PI = math.log(2.0 * math.pi)


@options(fastmath=STEADY)
def product(each, left, right, out):
    """Write left right, (Q, Q) each."""
    for i in range(len(each)):
        for j in range(len(each)):
            total = 0.0
            for k in range(len(each)):
                total += left[i, k] * right[k, j]
            out[i, j] = total


@options(fastmath=STEADY)
def add_evidence(each, t, present, evidence, own, gaps, beyond, out):
    """Write the message about a of frame t from its data and from ``beyond``, (Q + 1, Q)."""
    size, b = len(each), present[t]
    for i in range(size):
        out[size, i] = beyond[size, i] + b * evidence[t, i]
        for j in range(size):
            out[i, j] = beyond[i, j] + b * own[gaps * t, i, j]


@options(fastmath=STEADY)
def propagate(each, known, there, moments, new, out):
    """Write the message from one a to the next (``new`` 0) or the last (2) one.

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
def invert_with_link(each, known, moments, which, there):
    """Write (known precision + diag(moments[which]))^-1, return log of the determinant of its inverse."""
    for i in range(len(each)):
        for j in range(len(each)):
            there[i, j] = known[i, j]
        there[i, i] += moments[which, i]
    return invert_small(each, there, there)


@options(fastmath=STEADY)
def smooth_run(
    each, low, high, fresh, ended, present, evidence, own, gaps, moments, variance, before, behind, there,
    work, mean, covariance, cross, entropy,
):  # fmt: skip
    """Write the marginals of the run of frames low to high; ``fresh``, ``ended``: a sequence is no longer.

    Forward what all frames up to t say of a_t, and what that makes of a_t given a_t+1; backward the marginals
    by those conditionals. ``there`` (B, Q, Q) and ``work`` (4 Q + 2, Q) are worked in; all others as for
    `smooth_attributes`.
    """
    size = len(each)
    half = 0.5 * size * (1.0 + LOG_2PI)
    known, step = work[: size + 1], work[size + 1 : 2 * size + 2]
    past, edge = work[2 * size + 2 : 3 * size + 2], work[3 * size + 2 :]
    extra, last = 0.0, high - 1
    if fresh:
        for i in range(size):
            step[size, i] = 0.0
            for j in range(size):
                step[i, j] = 1.0 / variance if i == j else 0.0
    else:
        extra = continue_chain(each, before, moments, past, step)
    for t in range(low, high):
        add_evidence(each, t, present, evidence, own, gaps, step, known)
        if t == last and not ended:
            for i in range(size):
                known[size, i] += behind[size, i]
                for j in range(size):
                    known[i, j] += behind[i, j]
        for i in range(size):
            mean[t, i] = known[size, i]
            for j in range(size):
                there[t, i, j] = known[i, j]
            if t < last:
                there[t, i, i] += moments[2, i]
        entropy[t] = half - 0.5 * invert_small(each, there[t], there[t])
        if t < last:
            propagate(each, known, there[t], moments, 0, step)
    for i in range(size):
        total = 0.0
        for j in range(size):
            covariance[last, i, j] = there[last, i, j]
            total += covariance[last, i, j] * known[size, j]
        mean[last, i] = total
    for t in range(last - 1, low - 1, -1):
        condition(
            each, there[t], moments, mean[t], mean[t + 1], covariance[t + 1], covariance[t], cross[t + 1],
            known,
        )  # fmt: skip
    if fresh:
        for i in range(size):
            cross[low, i] = 0.0
    else:
        for i in range(size):
            step[size, i] = before[size, i]
        entropy[low] += extra - add_frame_before(
            each, past, moments, step[size], mean[low], covariance[low], edge, cross[low], known
        )


@options(fastmath=STEADY)
def continue_chain(each, before, moments, past, step):
    """Write the message about a of the first frame of a run that goes on from another block."""
    log_determinant = invert_with_link(each, before, moments, 2, past)
    propagate(each, before, past, moments, 0, step)
    return -0.5 * log_determinant


@options(fastmath=STEADY)
def add_frame_before(each, there, moments, mean, later, later_covariance, covariance, cross, spare):
    """Do what `condition` does for the frame before a run, in another block; return its entropy's part."""
    condition(each, there, moments, mean, later, later_covariance, covariance, cross, spare)
    return 0.5 * invert_small(each, covariance, covariance)


@options(fastmath=STEADY)
def condition(each, there, moments, mean, later, later_covariance, covariance, cross, spare):
    """Write mean and covariance of a_t, given those of a_t+1, and E a_t+1 a_t of each attribute.

    Given a_t+1, a_t has covariance ``there``, and information ``mean`` (its mean is put in the place of that)
    and ``moments[1]`` a_t+1. ``spare`` (Q + 1, Q) is worked in.
    """
    size = len(each)
    for i in range(size):
        spare[size, i] = mean[i] + moments[1, i] * later[i]
        for j in range(size):  # covariance of a_t and a_t+1
            total = 0.0
            for k in range(size):
                total += there[i, k] * moments[1, k] * later_covariance[k, j]
            spare[i, j] = total
    for i in range(size):
        total = 0.0
        for j in range(size):
            total += there[i, j] * spare[size, j]
        mean[i] = total
        cross[i] = total * later[i] + spare[i, i]
        for j in range(size):
            total = there[i, j]
            for k in range(size):
                total += spare[i, k] * moments[1, k] * there[k, j]
            covariance[i, j] = total


@options(fastmath=STEADY)
def smooth_block(
    each, starts, stops, first, last, present, evidence, own, gaps, moments, variance, before, behind, mean,
    covariance, cross, entropy,
):  # fmt: skip
    """Do what `smooth_attributes` does."""
    size = len(each)
    there, work = np.empty((len(first), size, size)), np.empty((4 * size + 2, size))
    for run in range(len(starts)):
        low, high = starts[run], stops[run]
        smooth_run(
            each, low, high, first[low], last[high - 1], present, evidence, own, gaps, moments, variance,
            before, behind, there, work, mean, covariance, cross, entropy,
        )  # fmt: skip


def smooth_attributes(*arguments: Any) -> None:
    """Write the marginals of a chain of a.

    Parameters
    ----------
    each, starts, stops, first, present, evidence, own, gaps, moments, variance
        As for `attribute_message`.
    last : (B,) bool array
        Whether a sequence ends; behind ``first``.
    before, behind : (Q + 1, Q) arrays
        As of `scan_attributes`; behind ``variance``.
    mean, covariance : (B, Q) and (B, Q, Q) arrays
        Written.
    cross : (B, Q) array
        Written: E a_t a_t-1 of each attribute; 0 in first frames.
    entropy : (B,) array
        Written: of a_t given a_t+1, of the last one by itself, and of the first one so that their sum is
        that of all given the frame before them.
    """
    compile_scalar(smooth_block)(*map(read_only_view, arguments[:-4]), *arguments[-4:])
