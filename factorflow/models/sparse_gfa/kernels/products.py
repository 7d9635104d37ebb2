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
from array_api_compat import array_namespace

from factorflow.kernels import device
from factorflow.kernels.linalg import n_pairs, pack, unpack
from factorflow.models.sparse_gfa.kernels.gaps import Gaps, ListedGaps, list_gaps, lowest

Array = Any

__all__ = [
    "Gaps",
    "centred",
    "column_moments",
    "coordinate_updates",
    "expected_pairs",
    "gaps",
    "pairs_by_column",
    "pairs_by_row",
    "pseudo_boehning",
    "pseudo_jaakkola",
    "pseudo_poisson",
    "pseudo_tilted",
    "quadratic",
    "residual_squares",
    "solve_normals",
    "sum_pairs",
]


F = TypeVar("F", bound=Callable[..., Any])


def _where_it_lies(function: F) -> F:
    """Let `gfa_cuda` do what the function does, where its first argument lies on a device."""

    @wraps(function)
    def choose(first: Array, *others: Any) -> Any:
        if device.on_device(first):
            from factorflow.models.sparse_gfa.kernels import cuda as gfa_cuda

            return getattr(gfa_cuda, function.__name__)(first, *others)
        return function(first, *others)

    return cast(F, choose)


@_where_it_lies
def column_moments(values: Array) -> tuple[Array, Array, Array]:
    """Return number, sum and sum of squares of the observed entries of each feature, (D,) each."""
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    count, total, squares = (np.zeros(values.shape[1]) for _ in range(3))
    gfa_loops.column_moments(values, lowest(values), count, total, squares)
    return count, total, squares


@_where_it_lies
def centred(values: Array, reference: Array, inverse_scale: Array, dtype: Any) -> Array:
    """Return (values - reference) * inverse_scale with zeros where entries are missing; read-only."""
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    filled = np.empty(values.shape, dtype)
    gfa_loops.centre(values, lowest(values), reference.astype(dtype), inverse_scale.astype(dtype), filled)
    filled.flags.writeable = False
    return filled


def expected_pairs(
    mean: Array, spread: Array, constant: Array, constant_variance: Array, weight: Array, dtype: Any
) -> Array:
    """Return weight_i E[x x'] packed, (N, Q), where x = (x_1 ... x_K, constant).

    ``mean`` (N, K); ``spread``: variances (N or 1, K) or packed covariances (N or 1, K (K + 1) / 2);
    ``constant``, its variance and ``weight`` (N,).
    """
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    out = np.empty((mean.shape[0], n_pairs(mean.shape[1] + 1)), dtype)
    gfa_loops.expected_pairs(*map(_plain, (mean, spread, constant, constant_variance, weight)), out)
    return out


def sum_pairs(mean: Array, spread: Array, constant: Array, constant_variance: Array, weight: Array) -> Array:
    """Return the sum over i of `expected_pairs`, (Q,), by one matrix product; ``weight`` (N,)."""
    xp = array_namespace(mean)
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
def gaps(values: Array, by_column: bool = True) -> Gaps:
    """Return the gaps of a block; ``by_column``: whether `pairs_by_column` will be asked for."""
    return list_gaps(values, by_column)


@_where_it_lies
def pairs_by_row(table: Array, missing: Gaps, base: Array) -> Array:
    """Return the sum over the observed features of each row of ``table`` (D, Q), of sum ``base``: (B, Q)."""
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    assert isinstance(missing, ListedGaps)
    out = np.empty((missing.complement.size, base.size))
    keep = missing.complement.astype(np.float64)
    gfa_loops.add_listed(table, missing.start, missing.column, keep, 1.0 - 2.0 * keep, base, out)
    return out


@_where_it_lies
def pairs_by_column(pairs: Array, missing: Gaps, base: Array) -> Array:
    """Return the sum over the rows in which each feature is observed of ``pairs`` (B, Q): (D, Q).

    ``base`` (Q,) is the sum over the rows whose missing entries are listed.
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
    cross: Array, pairs: Array, mean: Array, spread: Array, constant: Array, constant_variance: Array
) -> Array:
    """Return E[x' P_i x] - 2 E[x]' c_i with x = (x_1 ... x_K, constant): (N,).

    ``cross`` (N, K + 1), ``pairs`` (N or 1, Q); the others as in `expected_pairs`.
    """
    from factorflow.models.sparse_gfa.kernels import loops as gfa_loops

    out = np.empty(mean.shape[0])
    given = map(_plain, (cross, pairs, mean, spread, constant, constant_variance))
    gfa_loops.quadratic(*given, out)
    return out


@_where_it_lies
def solve_normals(pairs: Array, linear: Array, scale: Array, prior: Array) -> tuple[Array, Array, Array]:
    """Return N(mean, covariance) of vectors with precision scale_i P_i + diag(prior) and linear term h_i.

    ``pairs`` (N or 1, Q), ``linear`` (N, K), ``scale`` (N or 1,), ``prior`` (N or 1, K). Where all
    precisions are equal one covariance is returned, (1, K (K + 1) / 2), else N. Third: log determinants
    of the covariances, (N,).
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


def _plain(array: Array) -> Array:
    """Return an array as the compiled loops take it: itself, or a contiguous copy in double precision."""
    return np.ascontiguousarray(array, np.float64)


def _solve_alike(pairs: Array, linear: Array, scale: Array, prior: Array) -> tuple[Array, Array, Array]:
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
    pairs: Array,
    linear: Array,
    scale: Array,
    prior: Array,
    before: tuple[Array, Array, Array],
    odds: tuple[Array, Array] | None = None,
    step: float = 1.0,
) -> tuple[Array, Array, Array, Array]:
    """One pass of coordinate updates of spike-and-slab vectors; see `gfa_lanes.coordinate_updates`.

    Parameters
    ----------
    pairs, linear, scale, prior
        As in `solve_normals`.
    before : ((N, K), (N, K), (N, K)) arrays
        Slab means and variances, and inclusion probabilities to start from.
    odds : ((N or 1, K), (N or 1, K)) arrays, or None
        Log prior odds of inclusion, and E[log prior]; None: no spike.
    step : float
        Share of the way that the natural parameters move.

    Returns
    -------
    mean, variance, inclusion : (N, K) array
        Slab means and variances, and inclusion probabilities.
    entropy : (N,) array
    """
    from factorflow.models.sparse_gfa.kernels import lanes as gfa_lanes

    mean, variance, inclusion = (np.array(x, np.float64, order="C") for x in before)
    entropy = np.empty(mean.shape[0])
    spike = odds is not None
    log_odds, log_prior = odds if odds is not None else (np.zeros_like(prior), np.zeros_like(prior))
    given = map(_plain, (pairs, linear, scale, prior, log_odds, log_prior))
    gfa_lanes.coordinate_updates(*given, spike, float(step), mean, variance, inclusion, entropy)
    return mean, variance, inclusion, entropy


@_where_it_lies
def pseudo_jaakkola(values: Array, second: Array) -> tuple[Array, Array, float]:
    """Return precision u, u times pseudo-data, (B, D) each, and the x-free part of the bound, by E[x^2]."""
    from factorflow.models.sparse_gfa.kernels import bounds as gfa_bounds

    precision, weighted = np.empty_like(second), np.empty_like(second)
    return precision, weighted, float(gfa_bounds.jaakkola(values, second, precision, weighted))


def pseudo_tilted(values: Array, x: Array, second: Array) -> tuple[Array, Array, float, float]:
    """Return precision u, u times pseudo-data, (B, D) each, the x-free part of the tangent, and the bound."""
    from factorflow.models.sparse_gfa.kernels import bounds as gfa_bounds

    y, x, second = (device.on_host(a) for a in (values, x, second))
    precision, weighted = np.empty_like(second), np.empty_like(second)
    free, reached = gfa_bounds.tilted(y, x, second, precision, weighted)
    precision, weighted = (device.beside(a, values) for a in (precision, weighted))
    return precision, weighted, float(free), float(reached)


@_where_it_lies
def pseudo_poisson(values: Array, x: Array) -> tuple[Array, Array, float]:
    """Return precision u, u times pseudo-data, (B, D) each, and the x-free part less log y!; E[x] given."""
    from factorflow.models.sparse_gfa.kernels import bounds as gfa_bounds

    precision, weighted = np.empty_like(x), np.empty_like(x)
    return precision, weighted, float(gfa_bounds.poisson(values, x, precision, weighted))


@_where_it_lies
def pseudo_boehning(values: Array, x: Array) -> tuple[Array, float]:
    """Return pseudo-data of precision 1/4, 0 where missing, (B, D), and the x-free part; E[x] given."""
    from factorflow.models.sparse_gfa.kernels import bounds as gfa_bounds

    pseudo = np.empty_like(x)
    return pseudo, float(gfa_bounds.boehning(values, x, pseudo))


@_where_it_lies
def residual_squares(
    values: Array,
    scores: Array,
    loadings: Array,
    intercept: Array,
    weight: Array,
    likelihood: str,
) -> Array:
    """Return residual sums of squares on the data scale, about all factors and about each alone.

    Parameters
    ----------
    values : (B, D) array
        Entries of a view.
    scores, loadings, intercept : (B, K), (D, K), (D,) array
        x = intercept + scores @ loadings'.
    weight : (D,) array
        Of the squares of a feature.
    likelihood : str
        The prediction is x, the logistic function of it ("bernoulli"), or log(1 + e^x) ("poisson").

    Returns
    -------
    (1 + K,) array
    """
    from factorflow.models.sparse_gfa.kernels import bounds as gfa_bounds

    out = np.zeros(1 + scores.shape[1])
    fit = scores @ loadings.T + intercept
    link = ("gaussian", "bernoulli", "poisson").index(likelihood)
    gfa_bounds.residual_squares(
        values, lowest(values), fit, scores, np.ascontiguousarray(loadings.T), intercept, weight, link, out
    )
    return out
