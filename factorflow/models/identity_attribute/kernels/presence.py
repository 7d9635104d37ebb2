"""Forward-backward over chains of b, a run of frames of one sequence at a time (equation 19).

A chain is held by log odds; a block by what it says of b before it and of its last b, all others summed out.
B frames of a block, R runs of them (of one sequence each), M blocks, Q attributes. ``each`` is (0,) * Q.
Plain functions, for the CPU and for CUDA devices (`kernels.cuda`). Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.compile import compile_scalar, options, read_only_view
from factorflow.models.identity_attribute.kernels.small import (
    STEADY,
    exponential,
    logarithm,
    maximum,
    minimum,
)

Array = Any


@options(fastmath=STEADY)
def log_sum(a, b):
    """Return log(e^a + e^b)."""
    high: float = maximum(a, b)
    return high + logarithm(1.0 + exponential(maximum(minimum(a, b) - high, -700.0)))


@options(fastmath=STEADY)
def propagate_forward(odds, table):
    """Return the log odds of the next state from those of this one; ``table`` is E log T, [from, to]."""
    return log_sum(table[0, 1], table[1, 1] + odds) - log_sum(table[0, 0], table[1, 0] + odds)


@options(fastmath=STEADY)
def propagate_backward(odds, table):
    """Return the log odds of this state from those of the next one."""
    return log_sum(table[1, 0], table[1, 1] + odds) - log_sum(table[0, 0], table[0, 1] + odds)


@options(fastmath=STEADY)
def plogp(p):
    """Return p log p, 0 where p is."""
    return p * logarithm(maximum(p, 1e-300))


@options(fastmath=STEADY)
def odds_of_run(each, low, high, evidence, own, gaps, mean, covariance, odds):
    """Write the log odds of b by the data of frames low to high alone.

    Parameters
    ----------
    evidence : (B, Q) array
        E W_p' rho (y - the part of all other identities).
    own : (B, Q, Q) or (1, Q, Q) array
        E W_p' rho W_p over the observed entries; one for all frames where ``gaps`` is 0 instead of 1.
    mean, covariance : (B, Q), (B, Q, Q) arrays
        Of a.
    odds : (B,) array
        Written.
    """
    for t in range(low, high):
        total = 0.0
        for i in range(len(each)):
            total += evidence[t, i] * mean[t, i]
            for j in range(len(each)):
                second = covariance[t, i, j] + mean[t, i] * mean[t, j]
                total -= 0.5 * own[gaps * t, i, j] * second
        odds[t] = total


@options(fastmath=STEADY)
def block_message(starts, stops, first, evidence, table, start, out):
    """Do what `presence_message` does, given the log odds of the first and of the last run."""
    runs = len(starts)
    for b in range(2):  # the state before the block
        weight, odds = 0.0, start + evidence[0]
        if not first[0]:
            weight, odds = table[b, 0], table[b, 1] - table[b, 0] + evidence[0]
        for t in range(1, stops[0]):
            weight += log_sum(table[0, 0], table[1, 0] + odds)
            odds = propagate_forward(odds, table) + evidence[t]
        if runs > 1:  # the sequence ends here, and another one goes on
            weight = 0.0 if first[0] else weight + log_sum(0.0, odds)
            low = starts[runs - 1]
            odds = start + evidence[low]
            for t in range(low + 1, stops[runs - 1]):
                odds = propagate_forward(odds, table) + evidence[t]
        out[b, 0], out[b, 1] = weight, weight + odds


@options(fastmath=STEADY)
def _span(each, starts, stops, first, evidence, own, gaps, mean, covariance, table, start, odds, out):
    runs = len(starts)
    odds_of_run(each, 0, stops[0], evidence, own, gaps, mean, covariance, odds)
    if runs > 1:
        low, high = starts[runs - 1], stops[runs - 1]
        odds_of_run(each, low, high, evidence, own, gaps, mean, covariance, odds)
    block_message(starts, stops, first, odds, table, start, out)


def presence_message(*arguments: Any) -> None:
    """Write the message of a block about b before it and its last b, (2, 2) logarithms.

    Parameters
    ----------
    starts, stops : (R,) arrays
        First frame of every run, and the one behind its last.
    first : (B,) bool array
        Whether a sequence begins.
    evidence, own, gaps, mean, covariance
        As for `odds_of_run`.
    table : (2, 2) array
        E log T, [from, to].
    start : float
        Log odds of b in the first frame of a sequence.
    odds : (B,) array
        Worked in.
    out : (2, 2) array
        Written.
    """
    compile_scalar(_span)(*map(read_only_view, arguments[:-2]), *arguments[-2:])


@options(fastmath=STEADY)
def _scan(spans, before, behind):
    count = spans.shape[0]
    before[0], behind[count - 1] = 0.0, 0.0
    for i in range(1, count):
        before[i] = propagate_forward(before[i - 1], spans[i - 1])
    for i in range(count - 1, 0, -1):
        behind[i - 1] = propagate_backward(behind[i], spans[i])


def scan_presence(spans: Array, before: Array, behind: Array) -> None:
    """Write the log odds of b from before and behind each block.

    Parameters
    ----------
    spans : (M, 2, 2) array
        As of `presence_message`, in block order.
    before : (M,) array
        Written: of b in the frame before a block.
    behind : (M,) array
        Written: of its last b, by all frames behind.
    """
    compile_scalar(_scan)(spans, before, behind)


@options(fastmath=STEADY)
def chance(log):
    """Return e^log of a logarithm of a probability; below e^-100 that."""
    return exponential(maximum(log, -100.0))


@options(fastmath=STEADY)
def ratio(odds, most):
    """Return e^odds, within e^-most and e^most."""
    return exponential(maximum(minimum(odds, most), -most))


@options(fastmath={"nsz"})
def share(t, t00, t01, t10, t11, l00, l01, l10, l11, backward, earlier, present, joint, entropy):
    """Write what frame t and the one before share: Q(b_t-1 = b_t = 1), and the entropy of b_t given b_t-1.

    Products are rounded before they are added: of the sum of two, compilers choose which one is not, and one
    choice for frames side by side and another one for a single frame would be felt (`STEADY`).
    """
    odds, was, now = backward[t], earlier[t], present[t]
    off, on = t00 + t01 * odds, t10 + t11 * odds
    both = was * (t11 * odds / on)
    joint[t] = both
    log = (1.0 - was) * logarithm(off) + was * logarithm(on) - now * logarithm(odds)
    log -= both * l11 + (was - both) * l10 + (now - both) * l01
    entropy[t] = log - (1.0 - was - now + both) * l00


@options(fastmath=STEADY)
def smooth_run(
    low, high, fresh, evidence, table, start, before, behind, forward, backward, present, joint, earlier,
    entropy,
):  # fmt: skip
    """Write the marginals of the run of frames low to high; ``fresh``: a sequence begins with it.

    What is passed along a run are odds, not their logarithms: none can overflow where those of the data of a
    frame are at most e^300 to one, those of a first frame e^100, and no transition is rarer than e^-100;
    beyond, they are taken for that. ``forward``, ``backward`` (B,) and ``evidence`` are worked in; all
    others as for `smooth_presence`.
    """
    l00, l01, l10, l11 = table[0, 0], table[0, 1], table[1, 0], table[1, 1]
    t00, t01, t10, t11 = chance(l00), chance(l01), chance(l10), chance(l11)
    for t in range(low, high):
        evidence[t] = ratio(evidence[t], 300.0)
    past = ratio(before, 300.0)
    odds = ratio(start, 100.0) if fresh else (t01 + t11 * past) / (t00 + t10 * past)
    later = ratio(behind, 300.0)
    for n in range(high - low):  # both ways at a time: neither waits for the other
        t, back_t = low + n, high - 1 - n
        forward[t] = odds  # of b_t by all frames before
        odds *= evidence[t]
        odds = (t01 + t11 * odds) / (t00 + t10 * odds)
        later *= evidence[back_t]
        backward[back_t] = later  # by this one and all behind
        later = (t10 + t11 * later) / (t00 + t01 * later)
    for t in range(low, high):
        odds = forward[t] * backward[t]
        present[t] = odds / (1.0 + odds)
    earlier[low] = past * later / (1.0 + past * later)
    for t in range(low + 1, high):
        earlier[t] = present[t - 1]
    for t in range(low, high):
        share(t, t00, t01, t10, t11, l00, l01, l10, l11, backward, earlier, present, joint, entropy)
    if fresh:
        now = present[low]
        joint[low], earlier[low], entropy[low] = 0.0, 0.0, -plogp(now) - plogp(1.0 - now)


@options(fastmath=STEADY)
def smooth_block(
    each, starts, stops, first, last, evidence, own, gaps, mean, covariance, table, start, before, behind,
    present, joint, earlier, entropy,
):  # fmt: skip
    """Do what `smooth_presence` does."""
    work = np.empty((3, len(first)))
    for run in range(len(starts)):
        low, high = starts[run], stops[run]
        odds_of_run(each, low, high, evidence, own, gaps, mean, covariance, work[0])
        beyond = 0.0 if last[high - 1] else behind
        smooth_run(
            low, high, first[low], work[0], table, start, before, beyond, work[1], work[2], present, joint,
            earlier, entropy,
        )  # fmt: skip


def smooth_presence(*arguments: Any) -> None:
    """Write the marginals of a chain of b.

    Parameters
    ----------
    each, starts, stops, first, evidence, own, gaps, mean, covariance, table, start
        As for `presence_message`.
    last : (B,) bool array
        Whether a sequence ends; behind ``first``.
    before, behind : float
        As of `scan_presence`; behind ``start``.
    present, joint, earlier : (B,) arrays
        Written: Q(b_t = 1), Q(b_t-1 = 1, b_t = 1) and Q(b_t-1 = 1); the latter two are 0 in first frames.
    entropy : (B,) array
        Written: of b_t given b_t-1.
    """
    compile_scalar(smooth_block)(*map(read_only_view, arguments[:-4]), *arguments[-4:])
