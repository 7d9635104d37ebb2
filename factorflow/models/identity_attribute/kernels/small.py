"""Small symmetric positive definite matrices inside compiled loops.

Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

from factorflow.kernels.vectors import compiled, inner

__all__ = ["invert", "invert_all", "present_of"]

Array = Any


@inner
def invert(matrix: Array, out: Array) -> float:
    """Write the inverse of a symmetric positive definite matrix (Q, Q); return log of its determinant.

    Gauss-Jordan elimination without pivots, which such matrices do not need. ``out`` may be ``matrix``.
    """
    size = matrix.shape[0]
    log_det = 0.0
    for i in range(size):
        for j in range(size):
            out[i, j] = matrix[i, j]
    for k in range(size):
        pivot = out[k, k]
        log_det += math.log(pivot)
        inverse = 1.0 / pivot
        out[k, k] = 1.0
        for j in range(size):
            out[k, j] *= inverse
        for i in range(size):
            if i != k:
                factor = out[i, k]
                out[i, k] = 0.0
                for j in range(size):
                    out[i, j] -= factor * out[k, j]
    return log_det


@compiled
def invert_all(precision: Array, gram: Array, inverse: Array, log_det: Array) -> None:
    """Write (diag(precision) + gram)^-1 of many rows and identities, and log of its determinants.

    Parameters
    ----------
    precision : (M, K) array
        Of the attributes without data; K = P Q.
    gram : (M, P, Q, Q) array
        What the data add.
    inverse : (M, P, Q, Q) array
        Written.
    log_det : (M, P) array
        Written: of diag(precision) + gram.
    """
    n, n_identities, size = gram.shape[0], gram.shape[1], gram.shape[2]
    for m in range(n):
        for p in range(n_identities):
            own = inverse[m, p]
            for i in range(size):
                for j in range(size):
                    own[i, j] = gram[m, p, i, j]
                own[i, i] += precision[m, p * size + i]
            log_det[m, p] = invert(own, own)


@inner
def present_of(odds: float) -> float:
    """Return 1 / (1 + e^-odds) without overflow."""
    if odds >= 0.0:
        return 1.0 / (1.0 + math.exp(-min(odds, 700.0)))
    e = math.exp(max(odds, -700.0))
    return e / (1.0 + e)
