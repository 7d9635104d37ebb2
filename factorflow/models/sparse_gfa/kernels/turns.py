"""Turns of two factors in their plane, z -> z R, their loadings integrated out: a loop over features.

Given s of the other factors, a feature says of z: sum over (s_j, s_k) of p(s) p(y | z, s), w and b integrated
out. Swept on the others, its normal equations leave two unknowns, C and h; C is R'CR and h is R'h after
the turn, and what the others say is the same before and after.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from factorflow.kernels.scalar.pivots import sweep
from factorflow.models.sparse_gfa.kernels.spikes import fill

__all__ = ["loop_turns"]


def _weigh(c, h, alpha, odds, spikes, weights):
    """Set weights to log p(s) p(y | s) of s = (0, 0), (1, 0), (0, 1), (1, 1); return the log of their sum.

    c, h are C of the data alone (its three entries) and h; without spikes only the last counts.
    """
    first, second = c[0] + alpha[0], c[2] + alpha[1]
    det = first * second - c[1] * c[1]
    both = (second * h[0] * h[0] - 2.0 * c[1] * h[0] * h[1] + first * h[1] * h[1]) / det
    weights[3] = odds[0] + odds[1] + 0.5 * (math.log(alpha[0] * alpha[1] / det) + both)
    if not spikes:
        weights[:3] = -math.inf
        return weights[3]
    weights[0] = 0.0
    weights[1] = odds[0] + 0.5 * (math.log(alpha[0] / first) + h[0] * h[0] / first)
    weights[2] = odds[1] + 0.5 * (math.log(alpha[1] / second) + h[1] * h[1] / second)
    top = max(max(weights[0], weights[1]), max(weights[2], weights[3]))
    total = 0.0
    for i in range(4):
        total += math.exp(weights[i] - top)
    return top + math.log(total)


def _pick(weights, log_total, uniform):
    """Return one of four choices, drawn with probabilities given by their logs."""
    below = 0.0
    for i in range(3):
        below += math.exp(weights[i] - log_total)
        if uniform < below:
            return i
    return 3


def _turn_square(c, cosine, sine):
    """Set c, the three entries of a symmetric C, to those of R'CR."""
    x, y, z = c[0], c[1], c[2]
    c[0] = cosine * cosine * x + 2.0 * cosine * sine * y + sine * sine * z
    c[1] = cosine * sine * (z - x) + (cosine * cosine - sine * sine) * y
    c[2] = sine * sine * x - 2.0 * cosine * sine * y + cosine * cosine * z


def _turn_packed(packed, size, first, second, cosine, sine, turned, c):
    """Set turned to R'PR; both are packed by their lower triangle, first < second."""
    turned[:] = packed
    of_first, of_second = first * (first + 1) // 2, second * (second + 1) // 2
    for i in range(size):
        if i != first and i != second:
            a = of_first + i if i < first else i * (i + 1) // 2 + first
            b = of_second + i if i < second else i * (i + 1) // 2 + second
            turned[a] = cosine * packed[a] + sine * packed[b]
            turned[b] = cosine * packed[b] - sine * packed[a]
    c[0], c[1], c[2] = packed[of_first + first], packed[of_second + first], packed[of_second + second]
    _turn_square(c, cosine, sine)
    turned[of_first + first], turned[of_second + first], turned[of_second + second] = c[0], c[1], c[2]


def loop_turns(pairs, cross, scale, precision, shift, odds, spikes, plane, turn, uniform, loadings,
               turned_pairs, turned_cross):  # fmt: skip
    """Return by how much a turn raises log p(y | z, s of the others) of a run of features.

    Parameters
    ----------
    pairs, cross, scale, precision, shift, odds, spikes
        As in `spikes.loop_features`.
    plane, turn : (int, int) and (float, float)
        The two factors, in order; cosine and sine of the angle: z_j becomes cos z_j + sin z_k.
    uniform : (D,) array
    loadings : (D, K + 1) array
        Those of the two become 1 or 0, drawn given the turned scores.
    turned_pairs, turned_cross : arrays
        Set to the normal equations of the turned scores.
    """
    size, (first, second), (cosine, sine) = cross.shape[1], plane, turn
    matrix, weights = np.empty((size + 1, size + 1)), np.empty(4)
    c, h, alpha, log_odds = np.empty(3), np.empty(2), np.empty(2), np.empty(2)
    alpha[0], alpha[1] = precision[first], precision[second]
    log_odds[0], log_odds[1] = odds[first], odds[second]
    total = 0.0
    for d in range(pairs.shape[0]):
        _turn_packed(pairs[d], size, first, second, cosine, sine, turned_pairs[d], c)
    for d in range(cross.shape[0]):
        fill(matrix, pairs[d if pairs.shape[0] > 1 else 0], cross[d], scale[d], precision, shift[d])
        for k in range(size):
            if k != first and k != second and (k == size - 1 or not spikes or loadings[d, k] != 0.0):
                sweep(matrix, k, 1.0)
        c[0], c[1] = matrix[first, first] - alpha[0], matrix[second, first]
        c[2] = matrix[second, second] - alpha[1]
        h[0], h[1] = matrix[first, size], matrix[second, size]
        total -= _weigh(c, h, alpha, log_odds, spikes, weights)
        _turn_square(c, cosine, sine)
        x, y = h[0], h[1]
        h[0], h[1] = cosine * x + sine * y, cosine * y - sine * x
        after = _weigh(c, h, alpha, log_odds, spikes, weights)
        total += after
        choice = _pick(weights, after, uniform[d])
        loadings[d, first], loadings[d, second] = float(choice % 2), float(choice // 2)
        turned_cross[d] = cross[d]
        turned_cross[d, first] = cosine * cross[d, first] + sine * cross[d, second]
        turned_cross[d, second] = cosine * cross[d, second] - sine * cross[d, first]
    return total
