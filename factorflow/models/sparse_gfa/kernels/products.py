"""Block-level numerics of sparse group factor analysis: matrix products; loops are in its neighbours.

Shapes: B rows of a block, D features, K factors, Q = (K + 1) (K + 2) / 2 packed second moments of
(x_1 ... x_K, 1). Functions of a block's entries work where these lie: blocks on a device are handed to
`factorflow.models.sparse_gfa.kernels.cuda`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Float, Float64, Shaped
from numpy.typing import DTypeLike

from factorflow.kernels import device
from factorflow.kernels.linalg import n_pairs, pack, unpack
from factorflow.models.sparse_gfa.kernels.gaps import Gaps, ListedGaps, list_gaps, lowest
from factorflow.shape import Array

__all__ = [
    "Gaps",
    "centred",
    "column_moments",
    "coordinate_updates",
    "expected_pairs",
    "gaps",
    "pairs_by_column",
    "pairs_by_row",
    "quadratic",
    "solve_normals",
    "sum_pairs",
]


F = TypeVar("F", bound=Callable[..., Any])


def _where_it_lies(function: F) -> F:
    """Let `gfa_cuda` do what the function does, where its first argument lies on a device."""

    @wraps(function)
    def choose(first: Any, *others: Any) -> Any:
        if device.on_device(first):
            from factorflow.models.sparse_gfa.kernels import cuda as gfa_cuda

            return getattr(gfa_cuda, function.__name__)(first, *others)
        return function(first, *others)

    return cast(F, choose)


@_where_it_lies
def column_moments(
    values: Shaped[Array, "B D"],
) -> tuple[Float64[Array, " D"], Float64[Array, " D"], Float64[Array, " D"]]:
    """Return number, sum and sum of squares of the observed entries of each feature."""
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    count, total, squares = (np.zeros(values.shape[1]) for _ in range(3))
    gfa_loops.column_moments(values, lowest(values), count, total, squares)
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
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    filled, at = np.empty(values.shape, dtype), np.promote_types(values.dtype, dtype)
    gfa_loops.centre(values, lowest(values), reference.astype(at), inverse_scale.astype(at), filled)
    filled.flags.writeable = False
    return filled


def expected_pairs(
    mean: Float64[Array, "N K"],
    spread: Float64[Array, "#N V"],
    constant: Float64[Array, " N"],
    constant_variance: Float64[Array, " N"],
    weight: Float64[Array, " N"],
    dtype: DTypeLike,
) -> Float[Array, "N Q"]:
    """Return weight_i E[x x'] packed, where x = (x_1 ... x_K, constant).

    ``spread``: variances, V = K, or packed covariances, V = K (K + 1) / 2.
    """
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    out = np.empty((mean.shape[0], n_pairs(mean.shape[1] + 1)), dtype)
    gfa_loops.expected_pairs(*map(_plain, (mean, spread, constant, constant_variance, weight)), out)
    return out


def sum_pairs(
    mean: Float[Array, "N K"],
    spread: Float[Array, "#N V"],
    constant: Float[Array, " N"],
    constant_variance: Float[Array, " N"],
    weight: Float[Array, " N"],
) -> Float[Array, " (K+1)*(K+2)//2"]:
    """Return the sum over i of `expected_pairs` by one matrix product."""
    xp = device.namespace(mean)
    n_factors = mean.shape[1]
    extended = xp.concat([mean, constant[:, None]], axis=1)
    gram = xp.matrix_transpose(extended * weight[:, None]) @ extended
    gram[n_factors, n_factors] += weight @ constant_variance
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
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    assert isinstance(missing, ListedGaps)
    out = np.empty((missing.complement.size, base.size))
    keep = missing.complement.astype(np.float64)
    gfa_loops.add_listed(table, missing.start, missing.column, keep, 1.0 - 2.0 * keep, base, out)
    return out


@_where_it_lies
def pairs_by_column(
    pairs: Float[Array, "B Q"], missing: Gaps, base: Float64[Array, " Q"]
) -> Float64[Array, "D Q"]:
    """Return the sum over the rows in which each feature is observed of ``pairs``.

    ``base`` is the sum over the rows whose missing entries are listed.
    """
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    assert isinstance(missing, ListedGaps)
    assert missing.start_by_column is not None
    out = np.empty((missing.n_features, base.size))
    signs = np.where(missing.complement, -1.0, 1.0).astype(pairs.dtype)
    aligned = np.zeros((len(pairs), -(-base.size // 16) * 16), pairs.dtype)  # rows of whole cache lines
    np.multiply(pairs, signs[:, None], out=aligned[:, : base.size])
    ones = np.ones(missing.n_features)
    gfa_loops.add_listed(aligned, missing.start_by_column, missing.row, ones, ones, base, out)
    return out


def quadratic(
    cross: Float64[Array, "N K1"],
    pairs: Float64[Array, "#N Q"],
    mean: Float64[Array, "N K"],
    spread: Float64[Array, "#N V"],
    constant: Float64[Array, " N"],
    constant_variance: Float64[Array, " N"],
) -> Float64[Array, " N"]:
    """Return E[x' P_i x] - 2 E[x]' c_i with x = (x_1 ... x_K, constant).

    The arguments are those of `expected_pairs`.
    """
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    out = np.empty(mean.shape[0])
    given = map(_plain, (cross, pairs, mean, spread, constant, constant_variance))
    gfa_loops.quadratic(*given, out)
    return out


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
    from factorflow.models.sparse_gfa.kernels import lanes as gfa_lanes

    n_rows, n_factors = linear.shape
    if pairs.shape[0] == prior.shape[0] == 1:
        return _solve_alike(pairs[0], linear, scale, prior[0])
    mean, logdet = np.empty((n_rows, n_factors)), np.empty(n_rows)
    covariance = np.empty((n_rows, n_pairs(n_factors)))
    given = map(_plain, (pairs, linear, scale, prior))
    gfa_lanes.solve_normals(*given, mean, covariance, logdet)
    return mean, covariance, logdet


def _plain(array: Shaped[Array, "*shape"]) -> Float64[Array, "*shape"]:
    """Return an array as the compiled loops take it: itself, or a contiguous copy in double precision."""
    return np.ascontiguousarray(array, np.float64)


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


def coordinate_updates(
    pairs: Float64[Array, "#N Q"],
    linear: Float64[Array, "N K"],
    scale: Float64[Array, " #N"],
    prior: Float64[Array, "#N K"],
    before: tuple[Float64[Array, "N K"], Float64[Array, "N K"], Float64[Array, "N K"]],
    odds: tuple[Float64[Array, "#N K"], Float64[Array, "#N K"]] | None = None,
    step: float = 1.0,
) -> tuple[Float64[Array, "N K"], Float64[Array, "N K"], Float64[Array, "N K"], Float64[Array, " N"]]:
    """One pass of coordinate updates of spike-and-slab vectors; see `gfa_lanes.coordinate_updates`.

    Parameters
    ----------
    pairs, linear, scale, prior
        As in `solve_normals`.
    before : three arrays
        Slab means and variances, and inclusion probabilities to start from.
    odds : two arrays or None
        Log prior odds of inclusion, and E[log prior]; None: no spike.
    step : float
        Share of the way that the natural parameters move.

    Returns
    -------
    mean, variance, inclusion : array
        Slab means and variances, and inclusion probabilities.
    entropy : array
        Of each vector.
    """
    from factorflow.models.sparse_gfa.kernels import lanes as gfa_lanes

    mean, variance, inclusion = (np.array(x, np.float64, order="C") for x in before)
    entropy = np.empty(mean.shape[0])
    spike = odds is not None
    log_odds, log_prior = odds if odds is not None else (np.zeros_like(prior), np.zeros_like(prior))
    given = map(_plain, (pairs, linear, scale, prior, log_odds, log_prior))
    gfa_lanes.coordinate_updates(*given, spike, float(step), mean, variance, inclusion, entropy)
    return mean, variance, inclusion, entropy
