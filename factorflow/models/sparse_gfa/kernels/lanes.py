"""Compiled updates of many small Gaussians and spike-and-slab vectors, 64 at a time.

A symmetric (K, K) matrix is packed by rows of its lower triangle: entry (k, j), j <= k, is at
k (k + 1) / 2 + j. The innermost loop runs over 64 samples or features ("lanes"), which the compiler turns
into vector instructions. Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from factorflow.models.sparse_gfa.kernels.vectors import (
    GIVEN_1,
    GIVEN_2,
    WRITTEN_1,
    WRITTEN_2,
    compiled_for,
    exp,
    inlined,
    inner,
    log,
    log1p_small,
)

__all__ = ["coordinate_updates", "solve_normals"]

Array = Any
LANES = 64


@inlined
def _load(source: Array, first: Array, factor: Array, work: Array) -> None:
    """Copy 64 rows of ``source`` (the last one repeated; a single row serves all) into lanes."""
    n_rows = source.shape[0]
    for lane in range(LANES):
        i = min(first + lane, n_rows - 1)
        row = source[i]
        f = factor[min(first + lane, factor.size - 1)]
        for q in range(work.shape[0]):
            work[q, lane] = f * row[q]


@inner
def _cholesky_lanes(a: Array, prior: Array, logdet: Array, t: Array) -> None:
    """Factor a + diag(prior) in place; the diagonal of L holds its reciprocals; log |inverse|."""
    n_factors = prior.shape[0]
    for lane in range(LANES):
        logdet[lane] = 0.0
    for j in range(n_factors):
        rj = j * (j + 1) // 2
        for lane in range(LANES):
            a[rj + j, lane] += prior[j, lane]
        for k in range(j):
            for lane in range(LANES):
                a[rj + j, lane] -= a[rj + k, lane] * a[rj + k, lane]
        for lane in range(LANES):
            logdet[lane] -= log(a[rj + j, lane])
            t[lane] = 1.0 / math.sqrt(a[rj + j, lane])
            a[rj + j, lane] = t[lane]
        for i in range(j + 1, n_factors):
            ri = i * (i + 1) // 2
            row = a[ri + j]
            for k in range(j):
                for lane in range(LANES):
                    row[lane] -= a[ri + k, lane] * a[rj + k, lane]
            for lane in range(LANES):
                row[lane] *= t[lane]


@inner
def _invert_lanes(a: Array, x: Array, t: Array) -> None:
    """X = (L L')^-1 packed, from L with reciprocal diagonal; ``a`` is overwritten by L^-1."""
    n_pairs = a.shape[0]
    n_factors = int((math.sqrt(8.0 * n_pairs + 1.0) - 1.0) / 2.0 + 0.5)
    for i in range(n_factors):
        ri = i * (i + 1) // 2
        for j in range(i):
            for lane in range(LANES):
                t[lane] = 0.0
            for k in range(j, i):
                rk = k * (k + 1) // 2
                for lane in range(LANES):
                    t[lane] -= a[ri + k, lane] * x[rk + j, lane]
            for lane in range(LANES):
                x[ri + j, lane] = t[lane] * a[ri + i, lane]
        for lane in range(LANES):
            x[ri + i, lane] = a[ri + i, lane]
    for q in range(n_pairs):
        for lane in range(LANES):
            a[q, lane] = x[q, lane]
    for i in range(n_factors):
        for j in range(i + 1):
            for lane in range(LANES):
                t[lane] = 0.0
            for k in range(i, n_factors):
                rk = k * (k + 1) // 2
                for lane in range(LANES):
                    t[lane] += a[rk + i, lane] * a[rk + j, lane]
            for lane in range(LANES):
                x[i * (i + 1) // 2 + j, lane] = t[lane]


@compiled_for((GIVEN_2, GIVEN_2, GIVEN_1, GIVEN_2, WRITTEN_2, WRITTEN_2, WRITTEN_1))
def solve_normals(
    pairs: Array,
    linear: Array,
    scale: Array,
    prior: Array,
    mean: Array,
    covariance: Array,
    log_determinant: Array,
) -> None:
    """Means (scale_i P_i + prior)^-1 h_i, the inverses packed, and the log determinants of the inverses.

    ``pairs`` (N or 1, >= K (K + 1) / 2), ``linear`` (N, K), ``scale`` (N or 1,), ``prior`` (N or 1, K).
    """
    n_factors = linear.shape[1]
    n_pairs = n_factors * (n_factors + 1) // 2
    a, x = np.empty((n_pairs, LANES)), np.empty((n_pairs, LANES))
    p, h = np.empty((n_factors, LANES)), np.empty((n_factors, LANES))
    m, logdet, t = np.empty((n_factors, LANES)), np.empty(LANES), np.empty(LANES)
    one = np.ones(1)
    for first in range(0, linear.shape[0], LANES):
        _load(pairs, first, scale, a)
        _load(prior, first, one, p)
        _load(linear, first, one, h)
        _cholesky_lanes(a, p, logdet, t)
        _invert_lanes(a, x, t)
        for k in range(n_factors):
            for lane in range(LANES):
                t[lane] = 0.0
            for j in range(n_factors):
                row = x[k * (k + 1) // 2 + j] if j <= k else x[j * (j + 1) // 2 + k]
                for lane in range(LANES):
                    t[lane] += row[lane] * h[j, lane]
            for lane in range(LANES):
                m[k, lane] = t[lane]
        for lane in range(min(LANES, linear.shape[0] - first)):
            log_determinant[first + lane] = logdet[lane]
            for k in range(n_factors):
                mean[first + lane, k] = m[k, lane]
            for q in range(n_pairs):
                covariance[first + lane, q] = x[q, lane]


@inlined
def _logit(p: Array) -> Array:
    """Return log(p / (1 - p)), p kept 1e-16 away from 0 and 1."""
    q = min(max(p, 1e-16), 1.0 - 1e-16)
    return log(q) - log(1.0 - q)


@compiled_for(
    (GIVEN_2, GIVEN_2, GIVEN_1, GIVEN_2, GIVEN_2, GIVEN_2, types.boolean, types.float64)
    + (WRITTEN_2, WRITTEN_2, WRITTEN_2, WRITTEN_1)
)
def coordinate_updates(
    pairs: Array,
    linear: Array,
    scale: Array,
    prior: Array,
    log_odds: Array,
    log_prior: Array,
    spike: Array,
    step: Array,
    mean: Array,
    variance: Array,
    inclusion: Array,
    entropy: Array,
) -> None:
    """One pass of coordinate updates over k of N independent spike-and-slab (or Gaussian) vectors.

    With l = h_k - sum_{j != k} A_kj <x_j>, p = A_kk + prior_k: slab N(l / p, 1 / p),
    logit gamma = log_odds_k + (log_prior_k + l^2 / p - log p) / 2; without spike gamma stays as it is.
    ``pairs`` (N or 1, >= K (K + 1) / 2) times ``scale`` is A; ``prior``, ``log_odds``, ``log_prior``
    (N or 1, K). With ``step`` < 1 the natural parameters move that share of the way (a stochastic update:
    log q = s (eta_0 + eta_1 w - eta_2 w^2 / 2) + constant). In place: slab ``mean``, ``variance``,
    ``inclusion`` (N, K). ``entropy`` (N,) receives
    sum_k gamma (1 + log variance) / 2 - gamma log gamma - (1 - gamma) log (1 - gamma).
    """
    n_factors = linear.shape[1]
    n_pairs = n_factors * (n_factors + 1) // 2
    a, h = np.empty((n_pairs, LANES)), np.empty((n_factors, LANES))
    p, o, c = np.empty((n_factors, LANES)), np.empty((n_factors, LANES)), np.empty((n_factors, LANES))
    m, g, w = np.empty((n_factors, LANES)), np.empty((n_factors, LANES)), np.empty((n_factors, LANES))
    v, total, rest = np.empty((n_factors, LANES)), np.empty(LANES), np.empty(LANES)
    one = np.ones(1)
    for first in range(0, linear.shape[0], LANES):
        _load(pairs, first, scale, a)
        _load(linear, first, one, h)
        _load(prior, first, one, p)
        _load(log_odds, first, one, o)
        _load(log_prior, first, one, c)
        _load(mean, first, one, m)
        _load(inclusion, first, one, g)
        _load(variance, first, one, v)
        for lane in range(LANES):
            total[lane] = 0.0
        for k in range(n_factors):
            for lane in range(LANES):
                w[k, lane] = m[k, lane] * g[k, lane]
        for k in range(n_factors):
            for lane in range(LANES):
                rest[lane] = h[k, lane]
            for j in range(n_factors):
                if j != k:
                    row = a[k * (k + 1) // 2 + j] if j < k else a[j * (j + 1) // 2 + k]
                    for lane in range(LANES):
                        rest[lane] -= row[lane] * w[j, lane]
            diagonal = a[k * (k + 1) // 2 + k]
            for lane in range(LANES):
                precision = diagonal[lane] + p[k, lane]
                linear_term = rest[lane]
                odds = o[k, lane] + 0.5 * c[k, lane]
                if step < 1.0:
                    before = 1.0 / v[k, lane]
                    old_odds = _logit(g[k, lane]) + 0.5 * (log(before) - m[k, lane] * m[k, lane] * before)
                    precision = (1.0 - step) * before + step * precision
                    linear_term = (1.0 - step) * before * m[k, lane] + step * linear_term
                    odds = (1.0 - step) * old_odds + step * odds
                log_precision = log(precision)
                v[k, lane] = 1.0 / precision
                m[k, lane] = linear_term / precision
                gamma = g[k, lane]
                uncertainty = 0.0
                if spike:
                    logit = odds + 0.5 * (linear_term * m[k, lane] - log_precision)
                    size = min(abs(logit), 500.0)
                    e = exp(-size)
                    small = e / (1.0 + e)
                    gamma = 1.0 - small if logit > 0.0 else small
                    uncertainty = log1p_small(e) + size * small
                g[k, lane] = gamma
                w[k, lane] = gamma * m[k, lane]
                total[lane] += 0.5 * gamma * (1.0 - log_precision) + uncertainty
        for lane in range(min(LANES, linear.shape[0] - first)):
            entropy[first + lane] = total[lane]
            for k in range(n_factors):
                mean[first + lane, k] = m[k, lane]
                variance[first + lane, k] = v[k, lane]
                inclusion[first + lane, k] = g[k, lane]
