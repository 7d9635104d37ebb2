"""Small symmetric positive definite matrices, and functions of one number, inside loops over frames.

Plain functions, of which `factorflow.kernels.compile` makes machine code for the CPU and for CUDA devices.
Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math
from typing import Any

from factorflow.kernels import vectors
from factorflow.kernels.compile import compile_scalar, options

__all__ = [
    "FAST",
    "STEADY",
    "exponential",
    "invert",
    "invert_all",
    "invert_small",
    "logarithm",
    "logistic",
    "maximum",
    "minimum",
]

Array = Any

FAST = {"contract", "reassoc", "nsz"}
"""What the compiler of the CPU may do to sums: put them into vectors."""

STEADY = {"contract", "nsz"}
"""The same for loops over frames that read and write arrays of them: sums keep their order.

Such a loop is compiled twice, frames side by side and one by one, and where arrays lie close together, as
those of small blocks may, the latter is taken. Sums in another order would give other bits there.
"""


@options(stand_in=vectors.exp)
def exponential(x):
    """Return e^x for |x| < 700."""
    return math.exp(x)


@options(stand_in=vectors.log)
def logarithm(x):
    """Return log x of a positive normal number."""
    return math.log(x)


@options(fastmath=STEADY)
def maximum(a, b):
    """Return the larger one; Numba's CUDA has no `max` of two."""
    return a if a > b else b


@options(fastmath=STEADY)
def minimum(a, b):
    """Return the smaller one."""
    return a if a < b else b


@options(fastmath=STEADY)
def invert_small(size, matrix, out):
    """Write the inverse of a symmetric positive definite matrix (Q, Q); return log of its determinant.

    Gauss-Jordan elimination without pivots, which such matrices do not need. ``out`` may be ``matrix``.
    ``size`` is (0,) * Q: its length is known when the loop is compiled.
    """
    log_det, determinant = 0.0, 1.0
    if len(size) == 2:  # one division to wait for instead of two
        a, b, c = matrix[0, 0], matrix[0, 1], matrix[1, 1]
        determinant = a * c - b * b
        inverse = 1.0 / determinant
        out[0, 0], out[1, 1] = c * inverse, a * inverse
        out[0, 1] = out[1, 0] = -b * inverse
        return logarithm(determinant)
    for i in range(len(size)):
        for j in range(len(size)):
            out[i, j] = matrix[i, j]
    for k in range(len(size)):
        pivot = out[k, k]
        determinant *= pivot
        if determinant > 1e100 or determinant < 1e-100:  # one logarithm for all pivots, as a rule
            log_det += logarithm(determinant)
            determinant = 1.0
        inverse = 1.0 / pivot
        out[k, k] = 1.0
        for j in range(len(size)):
            out[k, j] *= inverse
        for i in range(len(size)):
            if i != k:
                factor = out[i, k]
                out[i, k] = 0.0
                for j in range(len(size)):
                    out[i, j] -= factor * out[k, j]
    return log_det + logarithm(determinant)


@options(fastmath=FAST)
def invert(matrix, out):
    """Write the inverse as `invert_small` does, of any size; return log of the determinant."""
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


@options(fastmath=FAST)
def invert_one(m, precision, gram, inverse, log_det):
    """Do for row m what `invert_all` does for all."""
    n_identities, size = gram.shape[1], gram.shape[2]
    for p in range(n_identities):
        own = inverse[m, p]
        for i in range(size):
            for j in range(size):
                own[i, j] = gram[m, p, i, j]
            own[i, i] += precision[m, p * size + i]
        log_det[m, p] = invert(own, own)


@options(fastmath=FAST)
def _invert_rows(precision, gram, inverse, log_det):
    for m in range(gram.shape[0]):
        invert_one(m, precision, gram, inverse, log_det)


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
    compile_scalar(_invert_rows)(precision, gram, inverse, log_det)


@options(fastmath=FAST)
def logistic(odds):
    """Return 1 / (1 + e^-odds) without overflow."""
    if odds >= 0.0:
        return 1.0 / (1.0 + math.exp(-minimum(odds, 700.0)))
    e = math.exp(maximum(odds, -700.0))
    return e / (1.0 + e)
