"""Compiled updates of many small Gaussians and spike-and-slab vectors, 64 at a time.

A symmetric (K, K) matrix is packed by rows of its lower triangle: entry (k, j), j <= k, is at
k (k + 1) / 2 + j. The innermost loop runs over 64 samples or features ("lanes"), which the compiler turns
into vector instructions. What is a few operations an entry is left to NumPy (`products`): each line here is
compiled on every machine. Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

from factorflow.kernels.vectors import compile_loop, exp, log

Array = Any
LANES = 64


@compile_loop
def solve(pairs: Array, scale: Array, prior: Array, linear: Array, inverse: Array, work: Array) -> None:
    """Invert positive definite matrices scale_i P_i + diag(prior_i) and solve their equations in place.

    Row by row: of the inverse X of the rows before, the next row b and its diagonal a follow u = X b,
    the pivot s = a - b'u, X + u u' / s, and the new row (-u / s, 1 / s).

    Parameters
    ----------
    pairs, scale, prior : (N or 1, >= Q), (N or 1,) and (N or 1, K) arrays
        P_i packed, and what is added.
    linear : (N, K + 1) array
        h_i; becomes the inverse times h_i, and in the last column the log determinant of the inverse.
    inverse : (N, Q) array
        Set to the inverses, packed.
    work : (Q + 2 K + 1, 64) array
        Room for 64 of them.
    """
    n_rows, n_pairs, n_factors = inverse.shape[0], inverse.shape[1], linear.shape[1] - 1
    product, logdet = work[n_pairs + n_factors :], work[n_pairs + 2 * n_factors]
    for first in range(0, n_rows, LANES):
        for lane in range(LANES):  # the last row repeated
            i = min(first + lane, n_rows - 1)
            p, f, own = (
                pairs[min(i, pairs.shape[0] - 1)],
                scale[min(i, scale.size - 1)],
                prior[min(i, prior.shape[0] - 1)],
            )
            for q in range(n_pairs):
                work[q, lane] = f * p[q]
            for k in range(n_factors):
                work[k * (k + 3) // 2, lane] += own[k]
                work[n_pairs + k, lane] = linear[i, k]
            logdet[lane] = 0.0
        for k in range(n_factors + 1):  # the linear term is the last row
            new = work[k * (k + 1) // 2 :]
            for i in range(k):
                u = product[i]
                for lane in range(LANES):
                    u[lane] = 0.0
                for j in range(k):
                    row, b = work[max(i, j) * (max(i, j) + 1) // 2 + min(i, j)], new[j]
                    for lane in range(LANES):
                        u[lane] += row[lane] * b[lane]
            if k == n_factors:
                break
            pivot = new[k]
            for i in range(k):
                u, b = product[i], new[i]
                for lane in range(LANES):
                    pivot[lane] -= b[lane] * u[lane]
            for lane in range(LANES):
                logdet[lane] -= log(pivot[lane])
                pivot[lane] = 1.0 / pivot[lane]
            for i in range(k):
                u, b = product[i], new[i]
                for lane in range(LANES):
                    b[lane] = -u[lane] * pivot[lane]
                for j in range(i + 1):
                    row, other = work[i * (i + 1) // 2 + j], product[j]
                    for lane in range(LANES):
                        row[lane] -= b[lane] * other[lane]
        for lane in range(min(LANES, n_rows - first)):
            for q in range(n_pairs):
                inverse[first + lane, q] = work[q, lane]
            for k in range(n_factors):
                linear[first + lane, k] = product[k, lane]
            linear[first + lane, n_factors] = logdet[lane]


@compile_loop
def update_coordinates(pairs: Array, scale: Array, vectors: Array, spike: Array, work: Array) -> None:
    """Update k by k the slab means and inclusion probabilities of spike-and-slab vectors, in place.

    With l = h_k - sum_{j != k} scale P_kj gamma_j m_j: m_k = l v_k and, with a spike, logit gamma_k =
    odds_k + l m_k / 2.

    Parameters
    ----------
    pairs : (N or 1, >= Q) array
        P, packed; times ``scale`` (N or 1,).
    vectors : (5, N, K) array
        h, v, odds, m, gamma; odds become logit gamma.
    spike : bool
        Whether gamma changes.
    work : (Q + 6 K, 64) array
        Room for 64 of them.
    """
    n_rows, n_factors = vectors.shape[1:]
    n_pairs = n_factors * (n_factors + 1) // 2
    mine, weight = work[n_pairs:], work[n_pairs + 5 * n_factors :]
    for first in range(0, n_rows, LANES):
        for lane in range(LANES):  # the last row repeated
            i = min(first + lane, n_rows - 1)
            p, f = pairs[min(i, pairs.shape[0] - 1)], scale[min(i, scale.size - 1)]
            for q in range(n_pairs):
                work[q, lane] = f * p[q]
            for t in range(5):
                for k in range(n_factors):
                    mine[t * n_factors + k, lane] = vectors[t, i, k]
            for k in range(n_factors):
                weight[k, lane] = mine[3 * n_factors + k, lane] * mine[4 * n_factors + k, lane]
        for k in range(n_factors):
            rest, w = mine[k], weight[k]
            for lane in range(LANES):
                w[lane] = 0.0
            for j in range(n_factors):
                row, other = work[max(j, k) * (max(j, k) + 1) // 2 + min(j, k)], weight[j]
                for lane in range(LANES):
                    rest[lane] -= row[lane] * other[lane]
            variance, odds = mine[n_factors + k], mine[2 * n_factors + k]
            mean, gamma = mine[3 * n_factors + k], mine[4 * n_factors + k]
            for lane in range(LANES):
                m, inclusion, logit = rest[lane] * variance[lane], gamma[lane], odds[lane]
                if spike:
                    logit += 0.5 * rest[lane] * m
                    e = exp(-min(abs(logit), 500.0))
                    inclusion = (1.0 if logit > 0.0 else e) / (1.0 + e)
                odds[lane], mean[lane], gamma[lane], w[lane] = logit, m, inclusion, inclusion * m
        for lane in range(min(LANES, n_rows - first)):
            for t in range(2, 5):
                for k in range(n_factors):
                    vectors[t, first + lane, k] = mine[t * n_factors + k, lane]
