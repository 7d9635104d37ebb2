"""Two factors of a feature with its other loadings and its intercept integrated out: loops over features.

Given s of the other factors, a feature says of the two by w = (w_j, w_k) a Gaussian of precision C and linear
term h (of the data; the prior comes in where w or s are drawn). Of scores z A in place of z it says A'CA and
A'h. What is left of the others beside w does not depend on it: with w the others go by -G dw.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from factorflow.kernels.compile import options
from factorflow.kernels.scalar.normal import fast_exp
from factorflow.kernels.scalar.pivots import sweep
from factorflow.models.sparse_gfa.kernels.spikes import fill


@options(forceinline=True)
def _joint_weights(c, h, alpha, odds, spikes):
    """Return p(s) p(y | s) of s = (0, 0), (1, 0), (0, 1), (1, 1), over exp of what is returned last.

    c, h are C of the data alone (its three entries) and h; odds those of s = 1. Without spikes only the last
    counts. What (1, 1) explains is most of all.
    """
    first, second = c[0] + alpha[0], c[2] + alpha[1]
    det = first * second - c[1] * c[1]
    both = 0.5 * (second * h[0] * h[0] - 2.0 * c[1] * h[0] * h[1] + first * h[1] * h[1]) / det
    size = math.sqrt(alpha[0] * alpha[1] / det)
    if not spikes:
        return 0.0, 0.0, 0.0, size, both
    one, other = 0.5 * h[0] * h[0] / first, 0.5 * h[1] * h[1] / second
    return (
        fast_exp(-both),
        odds[0] * math.sqrt(alpha[0] / first) * fast_exp(one - both),
        odds[1] * math.sqrt(alpha[1] / second) * fast_exp(other - both),
        odds[0] * odds[1] * size,
        both,
    )


def _pick(weights, uniform):
    """Return one of four choices, drawn with probabilities in proportion to their weights."""
    left = uniform * (((weights[0] + weights[1]) + weights[2]) + weights[3])
    for i in range(3):
        left -= weights[i]
        if left < 0.0:
            return i
    return 3


@options(forceinline=True)
def _transform_loadings(square, linear, p, q, r, s):
    """Return the three entries of A'CA, and A'h."""
    x, y, z = square
    c = (
        p * p * x + 2.0 * p * r * y + r * r * z,
        p * q * x + (p * s + q * r) * y + r * s * z,
        q * q * x + 2.0 * q * s * y + s * s * z,
    )
    return c, (p * linear[0] + r * linear[1], q * linear[0] + s * linear[1])


def _change(whole, cross, loadings, first, second, n_factors, follow, own, change):
    """Set change to what residuals go by as w does; see `loop_planes`. ``own``: (2, L), written over."""
    size = cross.size
    for i in range(size):
        own[0, i], own[1, i] = -follow[i, 0], -follow[i, 1]
    own[0, first] += 1.0
    own[1, second] += 1.0
    change[:] = 0.0
    for i in range(size):
        slope, x, y = cross[i], 0.0, 0.0
        for j in range(size):
            entry = whole[i, j]
            slope -= entry * loadings[j]
            x += entry * own[0, j]
            y += entry * own[1, j]
        change[0] += own[0, i] * slope
        change[1] += own[1, i] * slope
        change[2] += own[0, i] * x
        change[3] += own[0, i] * y
        change[4] += own[1, i] * y
        if i == n_factors:
            change[5], change[6] = x, y


def loop_planes(pairs, cross, scale, precision, shift, n_factors, spikes, plane, loadings, square, linear,
                follow, change):  # fmt: skip
    """Integrate out all but two loadings of each of a run of features.

    Parameters
    ----------
    pairs, cross, scale, precision, shift, spikes, loadings
        As in `spikes.loop_features`; loadings are not changed.
    n_factors : int
        K.
    plane : (int, int)
        The two factors, in order.
    square, linear : (D, 3) and (D, 2) arrays
        Set to C_jj, C_kj, C_kk, and h.
    follow : (D, L, 2) array
        Set to G, 0 in the rows of the two.
    change : (D, 7) array
        Set to E'g, the three entries of E'PE, and row K of PE, with E = dloadings / dw, g = c - P w:
        residuals squared change by -2 dw'E'g + dw'E'PE dw, their sum by -(PE) dw.
    """
    size, (first, second) = cross.shape[1], plane
    matrix, whole, own = np.empty((size + 1, size + 1)), np.empty((size, size)), np.empty((2, size))
    for d in range(cross.shape[0]):
        mine = pairs[d if pairs.shape[0] > 1 else 0]
        if d == 0 or pairs.shape[0] > 1:
            position = 0
            for i in range(size):
                for j in range(i + 1):
                    whole[i, j] = whole[j, i] = mine[position]
                    position += 1
        fill(matrix, mine, cross[d], scale[d], precision, shift[d], n_factors)
        follow[d] = 0.0
        for k in range(size):
            if k != first and k != second and (k >= n_factors or not spikes or loadings[d, k] != 0.0):
                sweep(matrix, k, 1.0)
        for k in range(size):
            if k != first and k != second and (k >= n_factors or not spikes or loadings[d, k] != 0.0):
                follow[d, k, 0], follow[d, k, 1] = matrix[k, first], matrix[k, second]
        square[d, 0], square[d, 1] = matrix[first, first] - precision[first], matrix[second, first]
        square[d, 2] = matrix[second, second] - precision[second]
        linear[d, 0], linear[d, 1] = matrix[first, size], matrix[second, size]
        _change(whole, cross[d], loadings[d], first, second, n_factors, follow[d], own, change[d])


def loop_gains(square, linear, alpha, odds, spikes, turns, gains):
    """Set gains to log p(y | z A, s of the others), up to a constant, of each A = (p, q; r, s).

    square, linear as in `loop_planes`; alpha, odds: of the two; turns: (J, 4) array.
    """
    product, total, explained = np.ones(gains.size), np.empty(gains.size), np.empty(gains.size)
    p, q, r, s = turns[:, 0].copy(), turns[:, 1].copy(), turns[:, 2].copy(), turns[:, 3].copy()
    alphas, both = (alpha[0], alpha[1]), (odds[0], odds[1])
    gains[:] = 0.0
    for d in range(square.shape[0]):
        mine, own = (square[d, 0], square[d, 1], square[d, 2]), (linear[d, 0], linear[d, 1])
        for i in range(gains.size):  # without branches: vector instructions
            c, h = _transform_loadings(mine, own, p[i], q[i], r[i], s[i])
            w, x, y, z, explained[i] = _joint_weights(c, h, alphas, both, spikes)
            total[i] = w + x + y + z
        for i in range(gains.size):
            gains[i] += explained[i]
            product[i] *= total[i]
            if not 1e-100 < product[i] < 1e100:  # of many features one logarithm
                gains[i] += math.log(product[i])
                product[i] = 1.0
    for i in range(gains.size):
        gains[i] += math.log(product[i])


def loop_pairs(square, linear, alpha, odds, spikes, turn, uniform, normal, drawn):
    """Set drawn to new loadings of the two factors after z -> z A: s, then w.

    uniform, normal, drawn: (D,), (D, 2), (D, 2) arrays; the others as in `loop_gains`.
    """
    for d in range(square.shape[0]):
        mine, own = (square[d, 0], square[d, 1], square[d, 2]), (linear[d, 0], linear[d, 1])
        c, h = _transform_loadings(mine, own, turn[0], turn[1], turn[2], turn[3])
        choice = _pick(_joint_weights(c, h, alpha, odds, spikes), uniform[d])
        a, b = c[0] + alpha[0], c[2] + alpha[1]
        drawn[d, 0] = drawn[d, 1] = 0.0
        if choice == 1:
            drawn[d, 0] = h[0] / a + normal[d, 0] / math.sqrt(a)
        elif choice == 2:
            drawn[d, 1] = h[1] / b + normal[d, 1] / math.sqrt(b)
        elif choice == 3:
            left = b - c[1] * c[1] / a  # w_k with w_j integrated out, then w_j
            drawn[d, 1] = (h[1] - c[1] * h[0] / a) / left + normal[d, 1] / math.sqrt(left)
            drawn[d, 0] = (h[0] - c[1] * drawn[d, 1]) / a + normal[d, 0] / math.sqrt(a)
