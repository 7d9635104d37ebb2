"""Loops over the frames of chains: forward-backward for b, an information smoother for a (equation 19).

A chain of b is held by log odds, one of a by precision and precision times mean; a run of frames by what it
says of the state before it and of its last one, all others summed out. B frames of a block, Q attributes,
M blocks. Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.kernels.vectors import compiled, inner
from factorflow.models.identity_attribute.kernels.small import invert, present_of

__all__ = [
    "scan_attributes",
    "scan_presence",
    "smooth_attributes",
    "smooth_presence",
    "span_attributes",
    "span_presence",
]

Array = Any


@inner
def _either(a: float, b: float) -> float:
    """Return log(e^a + e^b)."""
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high))


@inner
def _ahead(odds: float, table: Array) -> float:
    """Return the log odds of the next state from those of this one; ``table`` is E log T, [from, to]."""
    return float(_either(table[0, 1], table[1, 1] + odds) - _either(table[0, 0], table[1, 0] + odds))


@inner
def _back(odds: float, table: Array) -> float:
    """Return the log odds of this state from those of the next one."""
    return float(_either(table[1, 0], table[1, 1] + odds) - _either(table[0, 0], table[0, 1] + odds))


@compiled
def span_presence(evidence: Array, first: Array, table: Array, start: float, out: Array) -> None:
    """Write what a block says of b before it and of its last b, (2, 2) logarithms.

    Parameters
    ----------
    evidence : (B,) array
        Log odds of b by the frames' own data.
    first : (B,) bool array
        Whether a sequence begins.
    table : (2, 2) array
        E log T, [from, to].
    start : float
        Log odds of b in the first frame of a sequence.
    out : (2, 2) array
        Written.
    """
    weight, odds = np.zeros(2), np.zeros(2)  # of each state before: log weight, log odds of the frame at hand
    led = np.zeros(2)  # what was said of the state before, once a sequence has begun
    cut = False
    for t in range(evidence.shape[0]):
        for b in range(2):
            if first[t]:
                if not cut:
                    led[b] = 0.0 if t == 0 else weight[b] + _either(0.0, odds[b])
                weight[b], odds[b] = 0.0, start + evidence[t]
            elif t == 0:
                weight[b], odds[b] = table[b, 0], table[b, 1] - table[b, 0] + evidence[t]
            else:
                weight[b] += _either(table[0, 0], table[1, 0] + odds[b])
                odds[b] = _ahead(odds[b], table) + evidence[t]
        cut = cut or first[t]
    for b in range(2):
        base = led[b] if cut else weight[b]
        out[b, 0], out[b, 1] = base, base + odds[b]


@compiled
def scan_presence(spans: Array, before: Array, behind: Array) -> None:
    """Write the log odds of b that what lies before and behind each block says.

    Parameters
    ----------
    spans : (M, 2, 2) array
        As of `span_presence`, in block order.
    before : (M,) array
        Written: of b in the frame before a block.
    behind : (M,) array
        Written: of its last b, by all frames behind.
    """
    count = spans.shape[0]
    before[0], behind[count - 1] = 0.0, 0.0
    for i in range(1, count):
        before[i] = _ahead(before[i - 1], spans[i - 1])
    for i in range(count - 1, 0, -1):
        behind[i - 1] = _back(behind[i], spans[i])


@compiled
def smooth_presence(
    evidence: Array,
    first: Array,
    last: Array,
    table: Array,
    start: float,
    before: float,
    behind: float,
    present: Array,
    joint: Array,
    earlier: Array,
    entropy: Array,
) -> None:
    """Write the marginals of a chain of b.

    Parameters
    ----------
    evidence, first, table, start
        As for `span_presence`.
    last : (B,) bool array
        Whether a sequence ends.
    before, behind : float
        As of `scan_presence`.
    present, joint, earlier : (B,) arrays
        Written: Q(b_t = 1), Q(b_t-1 = 1, b_t = 1) and Q(b_t-1 = 1); the latter two are 0 in first frames.
    entropy : (B,) array
        Written: of b_t given b_t-1.
    """
    count = evidence.shape[0]
    forward, backward = np.empty(count), np.empty(count)
    odds = before
    for t in range(count):
        odds = evidence[t] + (start if first[t] else _ahead(odds, table))
        forward[t] = odds
    odds = behind
    for t in range(count - 1, -1, -1):
        backward[t] = 0.0 if last[t] else odds
        if t > 0:
            odds = _back(backward[t] + evidence[t], table)
    for t in range(count):
        b = present_of(forward[t] + backward[t])
        present[t] = b
        joint[t], earlier[t] = 0.0, 0.0
        if first[t]:
            entropy[t] = -_plogp(b) - _plogp(1.0 - b)
            continue
        past, here = (before if t == 0 else forward[t - 1]), evidence[t] + backward[t]
        w00, w01 = table[0, 0], table[0, 1] + here
        w10, w11 = past + table[1, 0], past + table[1, 1] + here
        high = max(max(w00, w01), max(w10, w11))
        e00, e01, e10, e11 = (
            math.exp(w00 - high),
            math.exp(w01 - high),
            math.exp(w10 - high),
            math.exp(w11 - high),
        )
        total = e00 + e01 + e10 + e11
        joint[t], earlier[t] = e11 / total, (e10 + e11) / total
        entropy[t] = _plogp(e00 / total + e01 / total) + _plogp(e10 / total + e11 / total)
        entropy[t] -= _plogp(e00 / total) + _plogp(e01 / total) + _plogp(e10 / total) + _plogp(e11 / total)


@inner
def _plogp(p: float) -> float:
    return p * math.log(p) if p > 0.0 else 0.0


@compiled
def span_attributes(
    precision: Array,
    information: Array,
    first: Array,
    moments: Array,
    variance: float,
    matrix: Array,
    vector: Array,
) -> None:
    """Write what a block says of a before it and of its last a: exp(-u'Mu / 2 + v'u), u = (before, last).

    Parameters
    ----------
    precision : (B, Q, Q) array
        What the frames' own data add to the precision of a.
    information : (B, Q) array
        And to precision times mean.
    first : (B,) bool array
        Whether a sequence begins.
    moments : (3, Q) array
        E 1/(1 - l^2), l/(1 - l^2), l^2/(1 - l^2).
    variance : float
        Of a in the first frame of a sequence.
    matrix : (2 Q, 2 Q) array
        Written: M.
    vector : (2 Q,) array
        Written: v.
    """
    count, size = information.shape
    inner, there, across = np.empty((size, size)), np.empty((size, size)), np.zeros((size, size))
    early, late = np.zeros((size, size)), np.zeros((size, size))
    before, now, flow = np.zeros(size), np.zeros(size), np.empty(size)
    for t in range(count):
        goes_on = not first[t]
        if t == 0 and goes_on:
            for i in range(size):
                early[i, i], across[i, i] = moments[2, i], -moments[1, i]
        elif t > 0:
            for i in range(size):
                for j in range(size):
                    inner[i, j] = late[i, j]
                if goes_on:
                    inner[i, i] += moments[2, i]
            invert(inner, there)
            _times(across, there, inner)  # inner: M_bt S^-1
            for i in range(size):
                for j in range(size):
                    total = 0.0
                    for k in range(size):
                        total += inner[i, k] * across[j, k]
                    early[i, j] -= total
                    before[i] -= inner[i, j] * now[j]
            for i in range(size):
                flow[i] = 0.0
                for j in range(size):
                    flow[i] += there[i, j] * now[j]
            for i in range(size):
                now[i] = moments[1, i] * flow[i] if goes_on else 0.0
                for j in range(size):
                    across[i, j] = inner[i, j] * moments[1, j] if goes_on else 0.0
                    late[i, j] = -moments[1, i] * there[i, j] * moments[1, j] if goes_on else 0.0
        for i in range(size):
            if t == 0:
                now[i] = 0.0
            now[i] += information[t, i]
            for j in range(size):
                late[i, j] = precision[t, i, j] + (late[i, j] if t > 0 else 0.0)
            late[i, i] += moments[0, i] if goes_on else 1.0 / variance
    for i in range(size):
        vector[i], vector[size + i] = before[i], now[i]
        for j in range(size):
            matrix[i, j], matrix[size + i, size + j] = early[i, j], late[i, j]
            matrix[i, size + j] = across[i, j]
            matrix[size + j, i] = across[i, j]


@inner
def _times(left: Array, right: Array, out: Array) -> None:
    size = left.shape[0]
    for i in range(size):
        for j in range(size):
            total = 0.0
            for k in range(size):
                total += left[i, k] * right[k, j]
            out[i, j] = total


@inner
def _through(matrix: Array, vector: Array, there: Array, given: Array, info: Array, out: Array) -> None:
    """Sum out one end of a span of which something more is known: (Q, Q) and (Q,) of the other end.

    ``there`` is which end is left: 0 the state before, 1 the last one.
    """
    size = given.shape[0]
    at, gone = there * size, (1 - there) * size
    inner, half = np.empty((size, size)), np.empty((size, size))
    for i in range(size):
        for j in range(size):
            inner[i, j] = matrix[gone + i, gone + j] + given[i, j]
    invert(inner, inner)
    _times(matrix[at : at + size, gone : gone + size], inner, half)
    for i in range(size):
        out[size, i] = vector[at + i]
        for j in range(size):
            total = matrix[at + i, at + j]
            for k in range(size):
                total -= half[i, k] * matrix[at + j, gone + k]
            out[i, j] = total
            out[size, i] -= half[i, j] * (vector[gone + j] + info[j])


@compiled
def scan_attributes(matrix: Array, vector: Array, joined: Array, before: Array, behind: Array) -> None:
    """Write what lies before and behind each block says of a: precisions, and in the last row information.

    Parameters
    ----------
    matrix, vector : (M, 2 Q, 2 Q) and (M, 2 Q) arrays
        As of `span_attributes`, in block order.
    joined : (M,) array
        Whether the first frame of a block goes on a sequence.
    before, behind : (M, Q + 1, Q) arrays
        Written: of a in the frame before the block (as its sequence has it so far); of its last a.
    """
    count, size = matrix.shape[0], before.shape[2]
    before[0], behind[count - 1] = 0.0, 0.0
    for i in range(1, count):
        before[i] = 0.0
        if joined[i - 1] > 0.0:
            _through(matrix[i - 1], vector[i - 1], 1, before[i - 1, :size], before[i - 1, size], before[i])
        else:
            for j in range(size):
                before[i, size, j] = vector[i - 1, size + j]
                for k in range(size):
                    before[i, j, k] = matrix[i - 1, size + j, size + k]
    for i in range(count - 1, 0, -1):
        behind[i - 1] = 0.0
        if joined[i] > 0.0:
            _through(matrix[i], vector[i], 0, behind[i, :size], behind[i, size], behind[i - 1])


@compiled
def smooth_attributes(
    precision: Array,
    information: Array,
    first: Array,
    last: Array,
    moments: Array,
    variance: float,
    before: Array,
    behind: Array,
    mean: Array,
    covariance: Array,
    cross: Array,
    entropy: Array,
) -> None:
    """Write the marginals of a chain of a.

    Parameters
    ----------
    precision, information, first, moments, variance
        As for `span_attributes`.
    last : (B,) bool array
        Whether a sequence ends.
    before, behind : (Q + 1, Q) arrays
        As of `scan_attributes`.
    mean, covariance : (B, Q) and (B, Q, Q) arrays
        Written.
    cross : (B, Q) array
        Written: E a_t a_t-1 of each attribute; 0 in first frames.
    entropy : (B,) array
        Written: of a_t given a_t-1.
    """
    count, size = information.shape
    forward = np.empty((count + 1, size + 1, size))  # row t + 1: by all frames of the sequence up to t
    backward = np.zeros((count, size + 1, size))
    inner, there = np.empty((size, size)), np.empty((size, size))
    forward[0] = before
    for t in range(count):
        now = forward[t + 1]
        if first[t]:
            now[:] = 0.0
            for i in range(size):
                now[i, i] = 1.0 / variance
        else:
            _pass_on(forward[t], moments, 2, 0, inner, there, now)
        for i in range(size):
            now[size, i] += information[t, i]
            for j in range(size):
                now[i, j] += precision[t, i, j]
    backward[count - 1] = behind
    merged = np.empty((size + 1, size))
    for t in range(count - 1, -1, -1):
        if last[t]:
            backward[t] = 0.0
        if t > 0 and not first[t]:
            _own(precision[t], information[t], backward[t], merged)
            _pass_on(merged, moments, 0, 2, inner, there, backward[t - 1])
    past, apart = np.empty((size, size)), np.empty(size)
    half = 0.5 * size * (1.0 + math.log(2.0 * math.pi))
    for t in range(count):
        for i in range(size):
            for j in range(size):
                inner[i, j] = forward[t + 1, i, j] + backward[t, i, j]
        log_det = invert(inner, covariance[t])
        for i in range(size):
            mean[t, i] = 0.0
            for j in range(size):
                mean[t, i] += covariance[t, i, j] * (forward[t + 1, size, j] + backward[t, size, j])
        if first[t]:
            entropy[t] = half - 0.5 * log_det
            for i in range(size):
                cross[t, i] = 0.0
            continue
        _own(precision[t], information[t], backward[t], merged)
        for i in range(size):
            for j in range(size):
                inner[i, j] = merged[i, j]
            inner[i, i] += moments[0, i]
        entropy[t] = half - 0.5 * invert(inner, there)  # of a_t given a_t-1
        for i in range(size):
            for j in range(size):
                past[i, j] = forward[t, i, j] - moments[1, i] * there[i, j] * moments[1, j]
            past[i, i] += moments[2, i]
        invert(past, past)  # covariance of a_t-1
        for i in range(size):
            apart[i] = forward[t, size, i]
            for j in range(size):
                apart[i] += moments[1, i] * there[i, j] * merged[size, j]
        for i in range(size):
            earlier = 0.0
            for j in range(size):
                earlier += past[i, j] * apart[j]
            cross[t, i] = earlier * mean[t, i]
            for j in range(size):
                cross[t, i] += past[i, j] * moments[1, j] * there[j, i]


@inner
def _own(precision: Array, information: Array, beyond: Array, out: Array) -> None:
    """Write what a frame's own data and those beyond it say of its a."""
    size = information.shape[0]
    for i in range(size):
        out[size, i] = beyond[size, i] + information[i]
        for j in range(size):
            out[i, j] = beyond[i, j] + precision[i, j]


@inner
def _pass_on(
    known: Array, moments: Array, left: int, new: int, inner: Array, there: Array, out: Array
) -> None:
    """Write what is known of one a as what it says of the next (left 2, new 0) or the last (0, 2) one."""
    size = inner.shape[0]
    for i in range(size):
        for j in range(size):
            inner[i, j] = known[i, j]
        inner[i, i] += moments[left, i]
    invert(inner, there)
    for i in range(size):
        out[size, i] = 0.0
        for j in range(size):
            out[size, i] += moments[1, i] * there[i, j] * known[size, j]
            out[i, j] = -moments[1, i] * there[i, j] * moments[1, j]
        out[i, i] += moments[new, i]
