"""Block-level numerics of sparse group factor analysis: matrix products; loops are in its neighbours.

Shapes: B rows of a block, D features, K factors, Q = (K + 1) (K + 2) / 2 packed second moments of
(x_1 ... x_K, 1).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from factorflow.kernels.linalg import n_pairs, pack, unpack

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
    "quadratic",
    "residual_squares",
    "solve_normals",
    "sum_pairs",
]


@dataclass(frozen=True)
class Gaps:
    """Which entries of a block are missing: per row, the missing ones or, if fewer, the observed ones.

    Parameters
    ----------
    start, column : (B + 1,), (J,) int array
        Listed features of each row.
    complement : (B,) bool array
        Whether the missing entries are listed (else the observed ones).
    missing : (B,) int array
        Missing entries of each row.
    n_features : int
        Features (D).
    """

    start: Array
    column: Array
    complement: Array
    missing: Array
    n_features: int

    @cached_property
    def by_column(self) -> tuple[Array, Array]:
        """The same lists by feature: (D + 1,) starts, (J,) rows."""
        from factorflow.kernels import gfa_loops

        start = np.empty(self.n_features + 1, np.int64)
        row = np.empty(self.column.size, np.int32)
        gfa_loops.transpose_lists(self.start, self.column, start, row)
        return start, row

    @cached_property
    def complete(self) -> bool:
        """Whether no entry is missing."""
        return not self.missing.any()

    @property
    def present(self) -> Array:
        """Rows with any observed entry, (B,) bool."""
        return self.missing < self.n_features


def _lowest(values: Array) -> Any:
    """Return the value at and above which an entry is observed: missing is NaN, or -1 in integers."""
    return values.dtype.type(0 if values.dtype.kind == "i" else -np.inf)


def column_moments(values: Array) -> tuple[Array, Array, Array]:
    """Return number, sum and sum of squares of the observed entries of each feature, (D,) each."""
    from factorflow.kernels import gfa_loops

    count, total, squares = (np.zeros(values.shape[1]) for _ in range(3))
    gfa_loops.column_moments(values, _lowest(values), count, total, squares)
    return count, total, squares


@dataclass(frozen=True)
class _Centred:
    values: weakref.ref[Any]
    reference: Array
    inverse_scale: Array
    filled: Array


_REMEMBERED_BYTES = 64 * 2**20
_centred: dict[int, _Centred] = {}


def centred(values: Array, reference: Array, inverse_scale: Array, dtype: Any) -> Array:
    """Return (values - reference) * inverse_scale with zeros where entries are missing.

    Of blocks that the engine keeps in memory (read-only arrays that live on) up to 64 MB are remembered:
    where the products are few, writing the block again takes half as long as they do.
    """
    from factorflow.kernels import gfa_loops

    key, known = id(values), _centred.get(id(values))
    if known is not None and known.values() is values and known.filled.dtype == dtype:
        same = np.array_equal(known.reference, reference) and np.array_equal(
            known.inverse_scale, inverse_scale
        )
        if same:
            return known.filled
    filled = np.empty(values.shape, dtype)
    gfa_loops.centre(values, _lowest(values), reference.astype(dtype), inverse_scale.astype(dtype), filled)
    spent = sum(c.filled.nbytes for c in list(_centred.values()))
    if not values.flags.writeable and spent + filled.nbytes <= _REMEMBERED_BYTES:
        filled.flags.writeable = False
        forget = weakref.ref(values, lambda _: _centred.pop(key, None))
        _centred[key] = _Centred(forget, reference, inverse_scale, filled)
    return filled


_known: dict[int, tuple[weakref.ref[Any], Gaps]] = {}


def gaps(values: Array) -> Gaps:
    """Return the gaps of a block.

    They are remembered as long as the array lives and is read-only, as blocks that the engine keeps in
    memory are: listing them is a tenth of the work of a pass.
    """
    key = id(values)
    known = _known.get(key)
    if known is not None and known[0]() is values:
        return known[1]
    found = _list_gaps(values)
    if not values.flags.writeable:
        _known[key] = (weakref.ref(values, lambda _: _known.pop(key, None)), found)
    return found


def _list_gaps(values: Array) -> Gaps:
    from factorflow.kernels import gfa_loops

    n_rows, n_features = values.shape
    missing = np.empty(n_rows, np.int64)
    gfa_loops.count_missing(values, _lowest(values), missing)
    complement = 2 * missing <= n_features
    start = np.zeros(n_rows + 1, np.int64)
    listed = int(np.minimum(missing, n_features - missing).sum())
    column = np.empty(listed + 1, np.int32)
    if listed:
        gfa_loops.list_minority(values, _lowest(values), missing, start, column)
    return Gaps(start, column[:listed], complement, missing, n_features)


def expected_pairs(
    mean: Array, spread: Array, constant: Array, constant_variance: Array, weight: Array, dtype: Any
) -> Array:
    """Return weight_i E[x x'] packed, (N, Q), where x = (x_1 ... x_K, constant).

    ``mean`` (N, K); ``spread``: variances (N or 1, K) or packed covariances (N or 1, K (K + 1) / 2);
    ``constant``, its variance and ``weight`` (N,).
    """
    from factorflow.kernels import gfa_loops

    out = np.empty((mean.shape[0], n_pairs(mean.shape[1] + 1)), dtype)
    gfa_loops.expected_pairs(mean, spread, constant, constant_variance, weight, out)
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


def pairs_by_row(table: Array, missing: Gaps, base: Array) -> Array:
    """Return the sum over the observed features of each row of ``table`` (D, Q), of sum ``base``: (B, Q)."""
    from factorflow.kernels import gfa_loops

    out = np.zeros((missing.complement.size, base.size))
    keep = missing.complement.astype(np.float64)
    gfa_loops.add_listed(table, missing.start, missing.column, keep, 1.0 - 2.0 * keep, base, out)
    return out


def pairs_by_column(pairs: Array, missing: Gaps, base: Array) -> Array:
    """Return the sum over the rows in which each feature is observed of ``pairs`` (B, Q): (D, Q).

    ``base`` (Q,) is the sum over the rows whose missing entries are listed.
    """
    from factorflow.kernels import gfa_loops

    out = np.zeros((missing.n_features, base.size))
    by_column, row = missing.by_column
    sign = -np.ones(missing.n_features)
    if not missing.complement.all():
        signs = np.where(missing.complement, -1.0, 1.0).astype(pairs.dtype)
        pairs, sign = pairs * signs[:, None], -sign
    gfa_loops.add_listed(pairs, by_column, row, np.ones(missing.n_features), sign, base, out)
    return out


def quadratic(
    cross: Array, pairs: Array, mean: Array, spread: Array, constant: Array, constant_variance: Array
) -> Array:
    """Return E[x' P_i x] - 2 E[x]' c_i with x = (x_1 ... x_K, constant): (N,).

    ``cross`` (N, K + 1), ``pairs`` (N or 1, Q); the others as in `expected_pairs`.
    """
    from factorflow.kernels import gfa_loops

    out = np.empty(mean.shape[0])
    gfa_loops.quadratic(cross, pairs, mean, spread, constant, constant_variance, out)
    return out


def solve_normals(pairs: Array, linear: Array, scale: Array, prior: Array) -> tuple[Array, Array, Array]:
    """Return N(mean, covariance) of vectors with precision scale_i P_i + diag(prior) and linear term h_i.

    ``pairs`` (N or 1, Q), ``linear`` (N, K), ``scale`` (N or 1,), ``prior`` (N or 1, K). Where all
    precisions are equal one covariance is returned, (1, K (K + 1) / 2), else N. Third: log determinants
    of the covariances, (N,).
    """
    from factorflow.kernels import gfa_lanes

    n_rows, n_factors = linear.shape
    if pairs.shape[0] == scale.size == prior.shape[0] == 1:
        one = np.zeros((1, n_factors))
        covariance, logdet = np.empty((1, n_pairs(n_factors))), np.empty(1)
        gfa_lanes.solve_normals(pairs, one, scale, prior, one.copy(), covariance, logdet)
        return linear @ unpack(covariance[0], n_factors), covariance, np.full(n_rows, logdet[0])
    mean, logdet = np.empty((n_rows, n_factors)), np.empty(n_rows)
    covariance = np.empty((n_rows, n_pairs(n_factors)))
    gfa_lanes.solve_normals(pairs, linear, scale, prior, mean, covariance, logdet)
    return mean, covariance, logdet


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
    from factorflow.kernels import gfa_lanes

    mean, variance, inclusion = (np.array(x) for x in before)
    entropy = np.empty(mean.shape[0])
    spike = odds is not None
    log_odds, log_prior = odds if odds is not None else (np.zeros_like(prior), np.zeros_like(prior))
    gfa_lanes.coordinate_updates(
        pairs, linear, scale, prior, log_odds, log_prior, spike, step, mean, variance, inclusion, entropy
    )
    return mean, variance, inclusion, entropy


def pseudo_jaakkola(values: Array, second: Array) -> tuple[Array, Array, float]:
    """Return precision u, u times pseudo-data, (B, D) each, and the x-free part of the bound, by E[x^2]."""
    from factorflow.kernels import gfa_bounds

    precision, weighted = np.empty_like(second), np.empty_like(second)
    return precision, weighted, float(gfa_bounds.jaakkola(values, second, precision, weighted))


def pseudo_poisson(values: Array, x: Array) -> tuple[Array, Array, float]:
    """Return precision u, u times pseudo-data, (B, D) each, and the x-free part less log y!; E[x] given."""
    from factorflow.kernels import gfa_bounds

    precision, weighted = np.empty_like(x), np.empty_like(x)
    return precision, weighted, float(gfa_bounds.poisson(values, x, precision, weighted))


def pseudo_boehning(values: Array, x: Array) -> tuple[Array, float]:
    """Return pseudo-data of precision 1/4, 0 where missing, (B, D), and the x-free part; E[x] given."""
    from factorflow.kernels import gfa_bounds

    pseudo = np.empty_like(x)
    return pseudo, float(gfa_bounds.boehning(values, x, pseudo))


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
    from factorflow.kernels import gfa_bounds

    out = np.zeros(1 + scores.shape[1])
    fit = scores @ loadings.T + intercept
    link = ("gaussian", "bernoulli", "poisson").index(likelihood)
    gfa_bounds.residual_squares(
        values, _lowest(values), fit, scores, np.ascontiguousarray(loadings.T), intercept, weight, link, out
    )
    return out
