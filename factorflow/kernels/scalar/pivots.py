"""Normal equations of which only some unknowns take part, on scalars: sweeps, Cholesky factors, noise.

Which take part is told by ``loadings``: those that are not 0. What spike-and-slab draws are made of.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

from factorflow.kernels.compile import options


@options(fastmath={"contract"})
def sweep(matrix, k, sign):
    """Sweep (sign = 1) or unsweep (sign = -1) a symmetric matrix on its k-th pivot, in place."""
    size, pivot = matrix.shape[0], matrix[k, k]
    for i in range(size):
        if i != k:
            ratio = matrix[i, k] / pivot
            for j in range(size):  # without branches; what stands in column k is set after it
                matrix[i, j] -= ratio * matrix[k, j]
            matrix[i, k] = sign * ratio
    for i in range(size):
        matrix[k, i] = matrix[i, k]
    matrix[k, k] = -1.0 / pivot


def cholesky(matrix, loadings):
    """Set the lower triangle, where loadings are not 0, to L with L L' = the matrix of those."""
    size = loadings.size
    for i in range(size):
        if loadings[i] == 0.0:
            continue
        for j in range(i + 1):
            if loadings[j] != 0.0:
                total = matrix[i, j]
                for m in range(j):
                    if loadings[m] != 0.0:
                        total -= matrix[i, m] * matrix[j, m]
                matrix[i, j] = math.sqrt(total) if i == j else total / matrix[j, j]


def colour(matrix, loadings, noise):
    """Turn the noise, where loadings are not 0, into a normal of covariance (L L')^-1: solve L' x = noise."""
    size = loadings.size
    for i in range(size - 1, -1, -1):
        if loadings[i] != 0.0:
            total = noise[i]
            for m in range(i + 1, size):
                if loadings[m] != 0.0:
                    total -= matrix[m, i] * noise[m]
            noise[i] = total / matrix[i, i]
