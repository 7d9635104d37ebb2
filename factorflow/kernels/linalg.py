"""Small dense linear algebra on any array namespace: packed symmetric matrices, rotations, varimax.

A symmetric (K, K) matrix is packed by rows of its lower triangle: entry (k, j), j <= k, is at
k (k + 1) / 2 + j.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Real
from numpy.typing import DTypeLike

from factorflow.core.block import Array
from factorflow.kernels.device import namespace

_MANY, _SMALL = 300, 26
"""Matrices from which on, and rows up to which, T S T' is one product with what takes packed S there: half as
many numbers move as of unpacked ones (of larger matrices the K^4 products take longer)."""


def n_pairs(size: int) -> int:
    """Return the length of a packed symmetric matrix."""
    return size * (size + 1) // 2


@cache
def triangle(size: int) -> tuple[Int[np.ndarray, " Q"], Int[np.ndarray, " Q"]]:
    """Return the row and column of each packed entry."""
    rows, columns = np.tril_indices(size)
    return rows, columns


def packed_place(row: Any, column: Any) -> Any:
    """Return where entries of a symmetric matrix, on either side of its diagonal, stand in the packed one."""
    high, low = np.maximum(row, column), np.minimum(row, column)
    return high * (high + 1) // 2 + low


@cache
def _places(size: int) -> tuple[Int[np.ndarray, " Q"], Int[np.ndarray, " KK"]]:
    """Return where packed entries stand in the flat matrix, and where its entries stand in the packed."""
    rows, columns = triangle(size)
    return rows * size + columns, packed_place(*np.indices((size, size))).reshape(-1)


def pack(matrix: Real[Array, "*n K K"]) -> Real[Array, "*n K*(K+1)//2"]:
    """Return symmetric matrices packed."""
    xp = namespace(matrix)
    size = matrix.shape[-1]
    flat = xp.reshape(matrix, (*matrix.shape[:-2], size * size))
    return xp.take(flat, xp.asarray(_places(size)[0]), axis=-1)


def unpack(packed: Real[Array, "*n Q"], size: int) -> Real[Array, "*n {size} {size}"]:
    """Return packed symmetric matrices in full."""
    xp = namespace(packed)
    taken = xp.take(packed, xp.asarray(_places(size)[1]), axis=-1)
    return xp.reshape(taken, (*packed.shape[:-1], size, size))


def block_places(first: int, size: int) -> Int[np.ndarray, " P"]:
    """Return where a block on the diagonal of a packed matrix stands in it: rows ``first`` and on, packed."""
    rows, columns = triangle(size)
    return np.asarray((first + rows) * (first + rows + 1) // 2 + first + columns)


def row_place(row: int, stop: int) -> slice:
    """Return where the first ``stop`` entries of a row of a packed matrix stand in it."""
    return slice(n_pairs(row), n_pairs(row) + stop)


def diagonal(packed: Real[Array, "*n Q"], size: int) -> Real[Array, "*n {size}"]:
    """Return the diagonals of packed symmetric matrices; what holds only diagonals, as it is."""
    if packed.shape[-1] == size:
        return packed
    index = np.arange(size)
    return packed[..., index * (index + 3) // 2]


def congruence(
    packed: Float[Array, "N Q"], transform: Float[Array, "after before"]
) -> Float[Array, "N after*(after+1)//2"]:
    """Return T S T' for packed matrices S and a transform T."""
    xp = namespace(packed)
    after, before = transform.shape
    n = packed.shape[0]
    if n >= _MANY and before <= _SMALL:
        return packed @ xp.matrix_transpose(_packed_transform(transform))
    turn = xp.matrix_transpose(transform)
    # two products of tall matrices instead of n products of small ones
    half = xp.reshape(unpack(packed, before), (n * before, before)) @ turn
    other = xp.matrix_transpose(xp.reshape(half, (n, before, after)))
    return pack(xp.reshape(xp.reshape(other, (n * after, before)) @ turn, (n, after, after)))


def _packed_transform(transform: Float[Array, "after before"]) -> Float[Array, "Q_after Q_before"]:
    """Return the matrix that takes packed S to packed T S T'."""
    xp = namespace(transform)
    (i, j), (a, b) = ([xp.asarray(index) for index in triangle(size)] for size in transform.shape)
    one, other = xp.take(transform, i, axis=0), xp.take(transform, j, axis=0)
    crossed = xp.take(one, a, axis=1) * xp.take(other, b, axis=1)
    crossed += xp.take(one, b, axis=1) * xp.take(other, a, axis=1)
    rows, columns = triangle(transform.shape[1])
    return crossed * xp.asarray(np.where(rows == columns, 0.5, 1.0))


def gaussian(
    precision: Float[np.ndarray, "N K K"], moment: Float[np.ndarray, "N K"], noise: Float[np.ndarray, "N K"]
) -> Float[np.ndarray, "N K"]:
    """Return draws from N(P^-1 m, P^-1), one for each row, from standard normals.

    With P = L L', a draw is L'^-1 (L^-1 m + noise).
    """
    chol = np.linalg.cholesky(precision)
    whitened = np.linalg.solve(chol, moment[..., None])
    return np.linalg.solve(np.swapaxes(chol, -1, -2), whitened + noise[..., None])[..., 0]


def pad_columns(matrix: Float[Array, "N K"], dtype: DTypeLike) -> Float[Array, "N padded"]:
    """Return a matrix with columns of zeros up to a multiple of 8, which matrix products like."""
    xp = namespace(matrix)
    n_rows, n_columns = matrix.shape
    out = xp.zeros((n_rows, -(-n_columns // 8) * 8), dtype=dtype)
    out[:, :n_columns] = xp.astype(matrix, dtype)
    return out


def symmetric_power(matrix: Float[Array, "K K"], power: float) -> Float[Array, "K K"]:
    """Return a power of a symmetric positive definite matrix."""
    xp = namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    smallest = xp.max(values) * 1e-14
    values = xp.where(values > smallest, values, smallest)
    return (vectors * values**power) @ xp.matrix_transpose(vectors)


def orthonormal(matrix: Float[Array, "D L"]) -> Float[Array, "D rank"]:
    """Return an orthonormal basis of the columns of a tall matrix."""
    xp = namespace(matrix)
    return xp.linalg.qr(matrix, mode="reduced")[0]


def whitening(second_moments: Float[Array, "K K"]) -> Float[Array, "K K"]:
    """Return the symmetric T with T S T' = I."""
    return symmetric_power(second_moments, -0.5)


def varimax(loadings: Float[Array, "D K"], *, max_iter: int = 200, tol: float = 1e-7) -> Float[Array, "K K"]:
    """Return the rotation R that makes ``loadings @ R`` simplest, with Kaiser's normalised rows.

    Parameters
    ----------
    loadings : array
        Rows of zeros have no say.
    tol : float
        Relative gain of the criterion that ends them.

    References
    ----------
    Kaiser (1958), Psychometrika 23, 187-200.
    """
    xp = namespace(loadings)
    size = xp.sqrt(xp.sum(loadings**2, axis=1, keepdims=True))
    rows = loadings / xp.where(size > 0, size, 1.0)
    n_rows, n_factors = rows.shape
    rotation = xp.eye(n_factors, dtype=rows.dtype)
    before = 0.0
    for _ in range(max_iter):
        rotated = rows @ rotation
        squares = rotated**2
        gradient = xp.matrix_transpose(rows) @ (rotated * (squares - xp.mean(squares, axis=0)))
        left, singular, right = xp.linalg.svd(gradient, full_matrices=False)
        rotation = left @ right
        criterion = float(xp.sum(singular))
        if criterion <= before * (1.0 + tol):
            break
        before = criterion
    return rotation
