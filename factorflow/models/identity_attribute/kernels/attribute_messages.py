"""Messages of blocks about a before them and their last a, all others integrated out; scans over blocks.

Letters as in `kernels.chains`; M blocks. Plain functions, for the CPU and for CUDA devices (`kernels.cuda`).
Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.compile import compile_scalar, options, read_only_view
from factorflow.models.identity_attribute.kernels.chains import (
    add_evidence,
    invert_with_link,
    product,
    propagate,
)
from factorflow.models.identity_attribute.kernels.small import STEADY, invert_small


@options(fastmath=STEADY)
def run_message(
    each, low, high, fresh, present, evidence, own, gaps, moments, variance, work, matrix, vector
):
    """Write exp(-u'Mu / 2 + v'u) of u = (a before the run, its last a); ``fresh``: nothing is before it.

    ``work`` (5 Q + 3, Q) is worked in.
    """
    size = len(each)
    late, step, before = work[: size + 1], work[size + 1 : 2 * size + 2], work[2 * size + 2]
    there, across = work[2 * size + 3 : 3 * size + 3], work[3 * size + 3 : 4 * size + 3]
    inner = work[4 * size + 3 : 5 * size + 3]
    for i in range(size):
        before[i], step[size, i] = 0.0, 0.0
        for j in range(size):
            across[i, j], step[i, j], matrix[i, j] = 0.0, 0.0, 0.0
        step[i, i] = 1.0 / variance if fresh else moments[0, i]
        if not fresh:
            matrix[i, i], across[i, i] = moments[2, i], -moments[1, i]
    add_evidence(each, low, present, evidence, own, gaps, step, late)
    for t in range(low + 1, high):
        invert_with_link(each, late, moments, 2, there)
        if not fresh:
            product(each, across, there, inner)  # M_bt S^-1
            for i in range(size):
                for j in range(size):
                    total = 0.0
                    for k in range(size):
                        total += inner[i, k] * across[j, k]
                    matrix[i, j] -= total
                    before[i] -= inner[i, j] * late[size, j]
            for i in range(size):
                for j in range(size):
                    across[i, j] = inner[i, j] * moments[1, j]
        propagate(each, late, there, moments, 0, step)
        add_evidence(each, t, present, evidence, own, gaps, step, late)
    for i in range(size):
        vector[i], vector[size + i] = before[i], late[size, i]
        for j in range(size):
            matrix[size + i, size + j] = late[i, j]
            matrix[i, size + j] = across[i, j]
            matrix[size + j, i] = across[i, j]


@options(fastmath=STEADY)
def block_message(
    each, starts, stops, first, present, evidence, own, gaps, moments, variance, work, matrix, vector
):
    """Do what `attribute_message` does; ``work`` (6 Q + 4, Q) is worked in."""
    size, runs = len(each), len(starts)
    run_message(
        each, 0, stops[0], first[0], present, evidence, own, gaps, moments, variance, work, matrix, vector
    )
    if runs == 1:
        return
    there, inner, kept = work[:size], work[size : 2 * size], work[5 * size + 3 :]
    for i in range(size):  # the sequence ends here: its last a is integrated out
        for j in range(size):
            there[i, j] = matrix[size + i, size + j]
    invert_small(each, there, there)
    product(each, matrix[:size, size:], there, inner)
    for i in range(size):
        kept[size, i] = vector[i]
        for j in range(size):
            kept[i, j] = matrix[i, j]
            kept[size, i] -= inner[i, j] * vector[size + j]
            for k in range(size):
                kept[i, j] -= inner[i, k] * matrix[j, size + k]
    low, high = starts[runs - 1], stops[runs - 1]
    run_message(each, low, high, True, present, evidence, own, gaps, moments, variance, work, matrix, vector)
    for i in range(size):
        vector[i] = kept[size, i]
        for j in range(size):
            matrix[i, j] = kept[i, j]


@options(fastmath=STEADY)
def _span(each, starts, stops, first, present, evidence, own, gaps, moments, variance, matrix, vector):
    work = np.empty((6 * len(each) + 4, len(each)))
    block_message(
        each, starts, stops, first, present, evidence, own, gaps, moments, variance, work, matrix, vector
    )


def attribute_message(*arguments: Any) -> None:
    """Write the message of a block about a before it and its last a: exp(-u'Mu / 2 + v'u), u of both.

    Parameters
    ----------
    starts, stops : (R,) arrays
        First frame of every run, and the one behind its last.
    first : (B,) bool array
        Whether a sequence begins.
    present : (B,) array
        Q(b = 1): precision b E W_p' rho W_p, and b evidence, are what a frame's own data say of a.
    evidence : (B, Q) array
        E W_p' rho (y - the part of all other identities).
    own : (B, Q, Q) or (1, Q, Q) array
        E W_p' rho W_p over the observed entries; one for all frames where ``gaps`` is 0 instead of 1.
    moments : (3, Q) array
        E 1/(1 - l^2), l/(1 - l^2), l^2/(1 - l^2).
    variance : float
        Of a in the first frame of a sequence.
    matrix : (2 Q, 2 Q) array
        Written: M.
    vector : (2 Q,) array
        Written: v.
    """
    compile_scalar(_span)(*map(read_only_view, arguments[:-2]), *arguments[-2:])


@options(fastmath=STEADY)
def integrate_end(each, matrix, vector, there, given, inner, half, out):
    """Integrate out one end of a span, with a further message about it, ``given`` (Q + 1, Q).

    ``there`` is which end is left: 0 the state before, 1 the last one; ``inner``, ``half`` (Q, Q) are worked
    in.
    """
    size = len(each)
    at, gone = there * size, (1 - there) * size
    for i in range(size):
        for j in range(size):
            inner[i, j] = matrix[gone + i, gone + j] + given[i, j]
    invert_small(each, inner, inner)
    product(each, matrix[at : at + size, gone : gone + size], inner, half)
    for i in range(size):
        out[size, i] = vector[at + i]
        for j in range(size):
            total = matrix[at + i, at + j]
            for k in range(size):
                total -= half[i, k] * matrix[at + j, gone + k]
            out[i, j] = total
            out[size, i] -= half[i, j] * (vector[gone + j] + given[size, j])


@options(fastmath=STEADY)
def _scan(each, matrix, vector, joined, before, behind):
    count, size = matrix.shape[0], len(each)
    inner, half = np.empty((size, size)), np.empty((size, size))
    before[0], behind[count - 1] = 0.0, 0.0
    for i in range(1, count):
        before[i] = 0.0
        if joined[i - 1] > 0.0:
            integrate_end(each, matrix[i - 1], vector[i - 1], 1, before[i - 1], inner, half, before[i])
        else:
            for j in range(size):
                before[i, size, j] = vector[i - 1, size + j]
                for k in range(size):
                    before[i, j, k] = matrix[i - 1, size + j, size + k]
    for i in range(count - 1, 0, -1):
        behind[i - 1] = 0.0
        if joined[i] > 0.0:
            integrate_end(each, matrix[i], vector[i], 0, behind[i], inner, half, behind[i - 1])


def scan_attributes(*arguments: Any) -> None:
    """Write the messages about a from before and behind each block: precisions, in the last row information.

    Parameters
    ----------
    matrix, vector : (M, 2 Q, 2 Q) and (M, 2 Q) arrays
        As of `attribute_message`, in block order.
    joined : (M,) array
        Whether the first frame of a block goes on a sequence.
    before, behind : (M, Q + 1, Q) arrays
        Written: of a in the frame before the block (as its sequence has it so far); of its last a.
    """
    compile_scalar(_scan)(*arguments)
