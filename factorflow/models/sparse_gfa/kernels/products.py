"""Block-level numerics of sparse group factor analysis: NumPy, and compiled loops where it is slow.

Shapes: B rows of a block, D features, K factors, C given columns, L = K + C, Q = L (L + 1) / 2 packed second
moments of (x_1 ... x_K, c_1 ... c_C). Functions of a block's entries work where these lie: blocks on a device
are handed to `factorflow.models.sparse_gfa.kernels.cuda`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Float, Float64, Int, Int32, Int64, Integer, Shaped
from numpy.typing import DTypeLike

from factorflow.core.block import Array
from factorflow.kernels import device
from factorflow.kernels.linalg import block_places, n_pairs, pack, unpack
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.sparse_gfa.kernels.arrays import clear, contiguous, runs
from factorflow.models.sparse_gfa.kernels.coordinates import coordinate_updates
from factorflow.models.sparse_gfa.kernels.gaps import Gaps, ListedGaps, list_gaps, lowest

__all__ = [
    "Gaps",
    "centred",
    "column_moments",
    "coordinate_updates",
    "dense_rows",
    "expected_pairs",
    "gaps",
    "observed",
    "pairs_by_column",
    "pairs_by_row",
    "quadratic",
    "solve_normals",
    "sum_pairs",
    "take_columns",
]


F = TypeVar("F", bound=Callable[..., Any])


def _where_it_lies(function: F) -> F:
    """Let `cuda` do what the function does with arrays on a device, `entry_rows` with rows by entries."""

    @wraps(function)
    def choose(first: Any, *others: Any) -> Any:
        if isinstance(first, SparseRows):
            from factorflow.models.sparse_gfa.kernels import entry_rows

            return getattr(entry_rows, function.__name__)(first, *others)
        if device.on_device(first):
            from factorflow.models.sparse_gfa.kernels import cuda as gfa_cuda

            return getattr(gfa_cuda, function.__name__)(first, *others)
        return function(first, *others)

    return cast(F, choose)


@_where_it_lies
def column_moments(
    values: Shaped[Array, "B D"], about: Float64[Array, " D"] | None = None
) -> tuple[Float64[Array, " D"], Float64[Array, " D"], Float64[Array, " D"]]:
    """Return number, sum and sum of squares of the observed entries of each feature, less ``about``."""
    count, total, squares = (np.zeros(values.shape[1]) for _ in range(3))
    for run in runs(values):
        y = values[run].astype(np.float64)
        if about is not None:
            y -= about
        missing = ~(values[run] >= lowest(values))
        count += len(y)
        if missing.any():
            clear(y, missing)
            count -= np.count_nonzero(missing, axis=0)
        total += y.sum(axis=0)
        squares += np.einsum("nd,nd->d", y, y)
    return count, total, squares


@_where_it_lies
def centred(
    values: Shaped[Array, "B D"],
    reference: Float64[Array, " D"],
    inverse_scale: Float64[Array, " D"],
    dtype: DTypeLike,
) -> Float[Array, "B D"]:
    """Return (values - reference) * inverse_scale with zeros where entries are missing; read-only.

    Values in double precision are rounded to ``dtype`` only then.
    """
    filled, at = np.empty(values.shape, dtype), np.promote_types(values.dtype, dtype)
    shift, factor = reference.astype(at), inverse_scale.astype(at)
    for run in runs(values):
        missing = ~(values[run] >= lowest(values))
        part = np.subtract(values[run], shift, out=filled[run] if at == dtype else None)
        part *= factor
        if missing.any():
            clear(part, missing)
        if at != dtype:
            filled[run] = part
    filled.flags.writeable = False
    return filled


def observed(values: Shaped[Array, "B D"]) -> Any:
    """Return 1 where entries are observed, 0 where they are missing."""
    if isinstance(values, SparseRows):
        from factorflow.models.sparse_gfa.kernels import entry_rows

        return entry_rows.observed(values)
    return (values >= lowest(values)).astype(np.float64)


def dense_rows(rows: Any) -> Any:
    """Return centred entries as an array."""
    return rows if not isinstance(rows, device.HostRows) else rows.dense()  # type: ignore[attr-defined]


def take_columns(rows: Any, features: Integer[np.ndarray, " J"]) -> Float[Array, "B J"]:
    """Return some columns of centred entries, dense, where they lie."""
    if isinstance(rows, device.HostRows):
        return rows.columns(features)  # type: ignore[attr-defined]
    return rows[:, device.move_beside(features, rows)]


def expected_pairs(
    mean: Float64[Array, "N K"],
    spread: Float64[Array, "#N V"],
    others: Float64[Array, "N C"],
    others_spread: Float64[Array, "N P"] | None,
    weight: Float64[Array, " N"],
    dtype: DTypeLike,
) -> Float[Array, "N Q"]:
    """Return weight_i E[x x'] packed, where x = (x_1 ... x_K, c_1 ... c_C).

    Parameters
    ----------
    mean, spread : array
        E x, and variances, V = K, or packed covariances, V = K (K + 1) / 2.
    others, others_spread : array, array or None
        E c, and packed covariances, P = C (C + 1) / 2; None: c is known.
    weight : array
        By what each is multiplied.
    dtype : dtype
        Of what is returned.
    """
    from factorflow.models.sparse_gfa.kernels import loops

    n_factors = mean.shape[1]
    extended = _contiguous_pair(mean, others)
    out = np.empty((len(mean), n_pairs(extended.shape[1])), dtype)
    loops.multiply_pairs(extended * weight[:, None], extended, out)
    own = slice(n_pairs(n_factors)) if spread.shape[1] != n_factors else _diagonal_places(n_factors)
    for run in runs(out):
        out[run, own] += weight[run, None] * (spread if len(spread) == 1 else spread[run])
    if others_spread is not None:
        out[:, block_places(n_factors, others.shape[1])] += weight[:, None] * others_spread
    return out


def _contiguous_pair(left: Float64[Array, "N K"], right: Float64[Array, "N C"]) -> Float64[Array, "N L"]:
    """Return (left, right), row by row in memory whatever the order of theirs."""
    k = left.shape[1]
    out = np.empty((len(left), k + right.shape[1]))
    out[:, :k], out[:, k:] = left, right
    return out


def _diagonal_places(size: int) -> Int[np.ndarray, " K"]:
    """Return where the diagonal stands in a packed matrix."""
    k = np.arange(size)
    return k * (k + 3) // 2


def sum_pairs(
    mean: Float[Array, "N K"],
    spread: Float[Array, "#N V"],
    others: Float[Array, "N C"],
    others_spread: Float[Array, "N P"] | None,
    weight: Float[Array, " N"],
) -> Float[Array, " Q"]:
    """Return the sum over i of `expected_pairs` by one matrix product."""
    xp = device.namespace(mean)
    n_factors = mean.shape[1]
    extended = xp.concat([mean, others], axis=1)
    gram = xp.matrix_transpose(extended * weight[:, None]) @ extended
    if others_spread is not None:
        gram[n_factors:, n_factors:] += unpack(weight @ others_spread, others.shape[1])
    if spread.shape[0] == 1:
        extra = xp.sum(weight) * spread[0]
    else:
        extra = weight @ spread
    if spread.shape[1] == n_factors:
        gram[:n_factors, :n_factors] += xp.eye(n_factors, dtype=extra.dtype) * extra
    else:
        gram[:n_factors, :n_factors] += unpack(extra, n_factors)
    return pack(gram)


@_where_it_lies
def gaps(values: Shaped[Array, "B D"], by_column: bool = True) -> Gaps:
    """Return the gaps of a block; ``by_column``: whether `pairs_by_column` will be asked for."""
    return list_gaps(values, by_column)


@_where_it_lies
def pairs_by_row(
    table: Float[Array, "D Q"], missing: Gaps, base: Float64[Array, " Q"]
) -> Float64[Array, "B Q"]:
    """Return the sum over the observed features of each row of ``table``, of sum ``base``."""
    if missing.masks is not None:
        return missing.masks.rows @ (missing.masks.columns.T @ table)
    assert isinstance(missing, ListedGaps)
    keep = missing.complement.astype(np.float64)
    return _add_listed(table, missing.start, missing.column, keep, 1.0 - 2.0 * keep, base)


@_where_it_lies
def pairs_by_column(
    pairs: Float[Array, "B Q"], missing: Gaps, base: Float64[Array, " Q"]
) -> Float64[Array, "D Q"]:
    """Return the sum over the rows in which each feature is observed of ``pairs``.

    ``base`` is the sum over the rows whose missing entries are listed.
    """
    assert isinstance(missing, ListedGaps)
    assert missing.start_by_column is not None
    assert missing.row is not None
    signs = np.where(missing.complement, -1.0, 1.0).astype(pairs.dtype)
    aligned = np.zeros((len(pairs), -(-base.size // 16) * 16), pairs.dtype)  # rows of whole cache lines
    np.multiply(pairs, signs[:, None], out=aligned[:, : base.size])
    ones = np.ones(missing.n_features)
    return _add_listed(aligned, missing.start_by_column, missing.row, ones, ones, base)


def _add_listed(
    table: Float[np.ndarray, "N _"],
    start: Int64[np.ndarray, " n1"],
    index: Int32[np.ndarray, " J"],
    keep: Float64[np.ndarray, " n"],
    sign: Float64[np.ndarray, " n"],
    base: Float64[np.ndarray, " Q"],
) -> Float64[np.ndarray, "n Q"]:
    """Return keep_i base + sign_i sum of the rows of ``table`` that the i-th list names."""
    from factorflow.models.sparse_gfa.kernels import loops

    out = np.empty((len(keep), base.size))
    lists = contiguous(table, table.dtype), contiguous(start, np.int64), contiguous(index, np.int32)
    room = np.empty(table.shape[1], table.dtype), start[:-1].copy()
    loops.add_listed(*lists, *map(contiguous, (keep, sign, base)), *room, out)
    return out


def quadratic(
    cross: Float64[Array, "N L"],
    pairs: Float64[Array, "#N Q"],
    mean: Float64[Array, "N K"],
    spread: Float64[Array, "#N V"],
    others: Float64[Array, "N C"],
    others_spread: Float64[Array, "N P"] | None,
) -> Float64[Array, " N"]:
    """Return E[x' P_i x] - 2 E[x]' l_i with x = (x_1 ... x_K, c_1 ... c_C) and ``cross`` l.

    The arguments are those of `expected_pairs`.
    """
    from factorflow.models.sparse_gfa.kernels import loops

    n_factors = mean.shape[1]
    extended = _contiguous_pair(mean, others)
    out = -2.0 * _dot(cross, extended)
    if others_spread is not None:
        mine = pairs[:, block_places(n_factors, others.shape[1])]
        out += _dot(mine, others_spread * _twice(others.shape[1]))
    if spread.shape[1] == n_factors:
        out += _dot(pairs[:, _diagonal_places(n_factors)], spread)
    else:
        out += _dot(pairs[:, : n_pairs(n_factors)], spread * _twice(n_factors))
    if len(pairs) == 1:
        return out + _dot(extended @ unpack(pairs[0], extended.shape[1]), extended)
    forms = np.empty(len(mean))
    loops.quadratic_forms(contiguous(pairs), extended, forms)
    return out + forms


def _twice(size: int) -> Float64[np.ndarray, " P"]:
    """Return how often each entry of a packed matrix stands in the full one."""
    times = np.full(n_pairs(size), 2.0)
    times[_diagonal_places(size)] = 1.0
    return times


def _dot(left: Float64[Array, "#N K"], right: Float64[Array, "#N K"]) -> Float64[Array, " #N"]:
    """Return the scalar product of each pair of rows; one row serves all."""
    if len(left) == 1:
        return right @ left[0]
    return left @ right[0] if len(right) == 1 else np.einsum("nk,nk->n", left, right)


@_where_it_lies
def solve_normals(
    pairs: Float64[Array, "#N Q"],
    linear: Float64[Array, "N K"],
    scale: Float64[Array, " #N"],
    prior: Float64[Array, "#N K"],
) -> tuple[Float64[Array, "N K"], Float64[Array, "#N V"], Float64[Array, " N"]]:
    """Return N(mean, covariance) of vectors with precision scale_i P_i + diag(prior) and linear term h_i.

    Covariances are packed; where all precisions are equal one is returned. Third: log determinants of the
    covariances.
    """
    from factorflow.models.sparse_gfa.kernels import lanes

    n_rows, n_factors = linear.shape
    if pairs.shape[0] == prior.shape[0] == 1:
        return _solve_alike(pairs[0], linear, scale, prior[0])
    covariance = np.empty((n_rows, n_pairs(n_factors)))
    solved = _contiguous_pair(linear, np.zeros((n_rows, 1)))
    work = np.empty((covariance.shape[1] + 2 * n_factors + 1, lanes.LANES))
    lanes.solve(*map(contiguous, (pairs, scale, prior)), solved, covariance, work)
    return np.ascontiguousarray(solved[:, :n_factors]), covariance, solved[:, n_factors].copy()


def _solve_alike(
    pairs: Float64[Array, " Q"],
    linear: Float64[Array, "N K"],
    scale: Float64[Array, " #N"],
    prior: Float64[Array, " K"],
) -> tuple[Float64[Array, "N K"], Float64[Array, "#N V"], Float64[Array, " N"]]:
    """Do `solve_normals` where the precisions scale_i P + A differ in their scale alone, A = diag(prior).

    One basis makes all of them diagonal: with A^-1/2 P A^-1/2 = V diag(l) V' and M = A^-1/2 V each
    covariance is M diag(1 / (1 + scale_i l)) M'.
    """
    n_factors = linear.shape[1]
    size = prior**-0.5
    eigenvalues, vectors = np.linalg.eigh(
        size[:, None] * unpack(pairs[: n_pairs(n_factors)], n_factors) * size
    )
    basis = size[:, None] * vectors
    variance = 1.0 / (1.0 + scale[:, None] * np.maximum(eigenvalues, 0.0))
    mean = ((linear @ basis) * variance) @ basis.T
    covariance = variance @ pack(basis.T[:, :, None] * basis.T[:, None, :])
    logdet = np.log(variance).sum(axis=1) - np.log(prior).sum()
    return mean, covariance, np.broadcast_to(logdet, (len(linear),))
