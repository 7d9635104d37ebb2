"""Draws of the loadings and the coefficients of one feature, with spikes, and a loop over features.

Given precision s P + diag(alpha, lambda) and linear term s c + (0, lambda m) of (w, b): s_k in turn with
(w, b) integrated out, by sweeps of the normal equations, then (w, b) of those that take part at once. b are
the coefficients of given columns, the intercept first, which alone has a prior mean.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from factorflow.kernels.scalar.normal import fast_exp
from factorflow.kernels.scalar.pivots import cholesky, colour, sweep


def fill(matrix, pairs, cross, scale, precision, shift, n_factors):
    """Set matrix to the normal equations, their linear term last; P comes packed by its lower triangle."""
    size = cross.size
    position = 0
    for i in range(size):
        for j in range(i + 1):
            matrix[i, j] = scale * pairs[position]
            matrix[j, i] = matrix[i, j]
            position += 1
        matrix[i, i] += precision[i]
        matrix[i, size] = scale * cross[i]
    if n_factors < size:
        matrix[n_factors, size] += precision[n_factors] * shift
    for i in range(size):
        matrix[size, i] = matrix[i, size]
    matrix[size, size] = 0.0


def _choose(matrix, precision, odds, backwards, uniform, loadings):
    """Draw s_k, k by k, with (w, b) integrated out: loadings become 1 or 0; swept on those that are not 0."""
    last, n_factors = loadings.size, odds.size
    for i in range(n_factors):
        k = n_factors - 1 - i if backwards else i
        before = loadings[k] != 0.0
        if before:
            curvature = -1.0 / matrix[k, k]
            force = matrix[k, last] * curvature
        else:
            curvature, force = matrix[k, k], matrix[k, last]
        explained = min(0.5 * force * force / curvature, 600.0)  # beyond, s = 1 for sure
        ratio = odds[k] * math.sqrt(precision[k] / curvature) * fast_exp(explained)
        after = uniform[k] * (1.0 + ratio) < ratio
        if after != before:
            sweep(matrix, k, 1.0 if after else -1.0)
            loadings[k] = 1.0 if after else 0.0


def _draw_feature(pairs, cross, scale, precision, shift, odds, spikes, backwards, uniform, normal, loadings,
                  matrix, noise, taken, ones):  # fmt: skip
    """Draw (s, w, b) of a feature, in place; see `loop_features`."""
    size, n_factors = cross.size, odds.size
    loadings[n_factors:] = 1.0  # given columns always take part
    if spikes:
        fill(matrix, pairs, cross, scale, precision, shift, n_factors)
        for k in range(size):
            if loadings[k] != 0.0:
                sweep(matrix, k, 1.0)
        _choose(matrix, precision, odds, backwards, uniform, loadings)
    else:
        loadings[:] = 1.0
    n = 0
    for i in range(size):
        if loadings[i] != 0.0:
            taken[n] = i
            n += 1
    for i in range(n):  # of those that take part alone
        k = taken[i]
        for j in range(i + 1):
            matrix[i, j] = scale * pairs[k * (k + 1) // 2 + taken[j]]
        matrix[i, i] += precision[k]
        matrix[i, size] = scale * cross[k]
        if k == n_factors:
            matrix[i, size] += precision[k] * shift
    cholesky(matrix, ones[:n])
    for i in range(n):  # L^-1 (linear term), plus noise of its covariance
        total = matrix[i, size]
        for j in range(i):
            total -= matrix[i, j] * matrix[j, size]
        matrix[i, size] = total / matrix[i, i]
        noise[i] = matrix[i, size] + normal[taken[i]]
    colour(matrix, ones[:n], noise)
    for i in range(n):
        loadings[taken[i]] = noise[i]


def loop_features(pairs, cross, scale, precision, shift, odds, spikes, backwards, uniform, normal,
                  loadings):  # fmt: skip
    """Draw the loadings of a run of features.

    Parameters
    ----------
    pairs : (D or 1, Q) array
        P, packed by its lower triangle.
    cross : (D, L) array
        c, L = K factors and given columns.
    scale : (D,) array
        s.
    precision : (D or 1, L) array
        alpha and lambda.
    shift : (D,) array
        m, on the scale of the intercepts, which are column K.
    odds : (D or 1, K) array
        Prior odds of s = 1.
    spikes : bool
        Whether there are any.
    backwards : bool
        Whether s of the last factor is drawn first.
    uniform, normal : (D, K) and (D, L) arrays
    loadings : (D, L) array
        Loadings and coefficients, changed in place; 0 where s = 0.
    """
    size = cross.shape[1]
    matrix, noise = np.empty((size + 1, size + 1)), np.empty(size)
    taken, ones = np.empty(size, np.int64), np.ones(size)
    for d in range(cross.shape[0]):
        mine = pairs[d if pairs.shape[0] > 1 else 0]
        own, of_one = precision[d if precision.shape[0] > 1 else 0], odds[d if odds.shape[0] > 1 else 0]
        _draw_feature(mine, cross[d], scale[d], own, shift[d], of_one, spikes, backwards, uniform[d],
                      normal[d], loadings[d], matrix, noise, taken, ones)  # fmt: skip
