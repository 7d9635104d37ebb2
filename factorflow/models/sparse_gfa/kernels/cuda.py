"""What `products` does with the entries of a block, on a CUDA device.

One thread takes every n-th entry; the formulas are those the CPU runs (`entry_bounds`).
Matrix products, masks and the normal equations of the rows are array-API calls (CuPy's). Missing entries are
marks instead of lists: adding up a list becomes a product with the marks. Results agree with the CPU's up to
rounding, since sums are taken in another order. Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Bool

from factorflow.kernels import device
from factorflow.kernels.compile import compiled
from factorflow.kernels.cuda import cuda
from factorflow.kernels.linalg import n_pairs, pack, unpack
from factorflow.models.sparse_gfa.kernels import entry_bounds as bounds
from factorflow.models.sparse_gfa.kernels.gaps import Gaps, lowest
from factorflow.shape import Array

__all__ = [
    "MarkedGaps",
    "centred",
    "column_moments",
    "gaps",
    "pairs_by_column",
    "pairs_by_row",
    "pseudo_boehning",
    "pseudo_jaakkola",
    "pseudo_poisson",
    "residual_squares",
    "solve_normals",
]

THREADS = 128
"""Threads in a block."""
MAX_BLOCKS = 4096
"""Blocks of a launch at most: each of their threads leaves one partial sum."""


@dataclass(frozen=True)
class MarkedGaps(Gaps):
    """The gaps of a block on a device.

    Parameters
    ----------
    marked : array
        The missing entries of rows with ``complement``, the observed ones of others; on the device.
    """

    marked: Bool[Array, "B D"]


@cache
def bound_kernel(formula: Callable[..., Any]) -> Any:
    """Return the kernel of a bound: weight and pseudo-data of each entry, a partial sum for each thread."""
    entry = compiled(formula, "cuda")

    @cuda.jit
    def kernel(values, x, weight, response, partial):
        first, stride = cuda.grid(1), cuda.gridsize(1)
        total = 0.0
        for i in range(first, values.size, stride):
            weight[i], response[i], free = entry(values[i], x[i])
            total += free
        partial[first] = total

    return kernel


@cache
def error_kernel() -> Any:
    """Return the kernel of weighted squared errors of observed entries: a partial sum for each thread."""
    squared_error = compiled(bounds.squared_error, "cuda")

    @cuda.jit
    def kernel(values, x, weight, lowest, link, partial):
        first, stride = cuda.grid(1), cuda.gridsize(1)
        total = 0.0
        for i in range(first, values.size, stride):
            if values[i] >= lowest:
                total += weight[i % weight.size] * squared_error(np.float64(values[i]), x[i], link)
        partial[first] = total

    return kernel


def _sum_over(kernel: Any, values: Array, *arguments: Array) -> Array:
    """Run a kernel over the entries of a block; return the sum of what its threads leave, as () array."""
    xp = device.namespace(values)
    flat = [xp.reshape(a, (-1,)) if getattr(a, "ndim", 0) == 2 else a for a in (values, *arguments)]
    n_blocks = max(1, min(MAX_BLOCKS, -(-values.size // THREADS)))
    partial = xp.zeros(n_blocks * THREADS)
    kernel[n_blocks, THREADS](*flat, partial)
    return xp.sum(partial)


def _pseudo(formula: Callable[..., Any], values: Array, x: Array) -> tuple[Array, Array, float]:
    xp = device.namespace(values)
    weight, response = xp.empty(x.shape, dtype=x.dtype), xp.empty(x.shape, dtype=x.dtype)
    free = _sum_over(bound_kernel(formula), values, x, weight, response)
    return weight, response, float(free)


def pseudo_jaakkola(values: Array, second: Array) -> tuple[Array, Array, float]:
    """See `factorflow.models.sparse_gfa.kernels.products.pseudo_jaakkola`."""
    return _pseudo(bounds.jaakkola, values, second)


def pseudo_poisson(values: Array, x: Array) -> tuple[Array, Array, float]:
    """See `factorflow.models.sparse_gfa.kernels.products.pseudo_poisson`."""
    return _pseudo(bounds.poisson, values, x)


def pseudo_boehning(values: Array, x: Array) -> tuple[Array, float]:
    """See `factorflow.models.sparse_gfa.kernels.products.pseudo_boehning`."""
    return _pseudo(bounds.boehning, values, x)[1:]


def residual_squares(
    values: Array, scores: Array, loadings: Array, intercept: Array, weight: Array, likelihood: str
) -> Array:
    """See `factorflow.models.sparse_gfa.kernels.products.residual_squares`; (1 + K,) on the host."""
    xp = device.namespace(values)
    scores, loadings = device.beside(scores, values), device.beside(loadings, values)
    intercept, weight = device.beside(intercept, values), device.beside(weight, values)

    def squares(x: Array) -> Array:
        level = np.float64(lowest(values))
        return _sum_over(error_kernel(), values, x, weight, level, bounds.LINKS.index(likelihood))

    whole = squares(scores @ loadings.T + intercept)
    alone = [squares(scores[:, k, None] * loadings[None, :, k] + intercept) for k in range(scores.shape[1])]
    return device.on_host(xp.stack([whole, *alone]))


def column_moments(values: Array) -> tuple[Array, Array, Array]:
    """See `factorflow.models.sparse_gfa.kernels.products.column_moments`; on the host."""
    xp = device.namespace(values)
    seen = values >= lowest(values)
    y = xp.where(seen, values, 0).astype(np.float64)
    sums = (xp.sum(part, axis=0) for part in (seen.astype(np.float64), y, y * y))
    count, total, squares = (device.on_host(part) for part in sums)
    return count, total, squares


def centred(values: Array, reference: Array, inverse_scale: Array, dtype: Any) -> Array:
    """See `factorflow.models.sparse_gfa.kernels.products.centred`."""
    xp = device.namespace(values)
    at = np.promote_types(values.dtype, dtype)
    shift, factor = (device.beside(a.astype(at), values) for a in (reference, inverse_scale))
    return xp.where(values >= lowest(values), (values.astype(at) - shift) * factor, 0).astype(dtype)


def gaps(values: Array, by_column: bool = True) -> MarkedGaps:
    """See `factorflow.models.sparse_gfa.kernels.products.gaps`."""
    xp = device.namespace(values)
    seen = values >= lowest(values)
    n_features = values.shape[1]
    missing = n_features - device.on_host(xp.sum(seen.astype(np.int64), axis=1))
    complement = 2 * missing <= n_features
    return MarkedGaps(complement, missing, n_features, seen != device.beside(complement[:, None], values))


def pairs_by_row(table: Array, missing: MarkedGaps, base: Array) -> Array:
    """See `factorflow.models.sparse_gfa.kernels.products.pairs_by_row`; on the device."""
    keep = device.beside(missing.complement[:, None].astype(np.float64), table)
    listed = (missing.marked.astype(table.dtype) @ table).astype(np.float64)
    return keep * device.beside(base, table) + (1.0 - 2.0 * keep) * listed


def pairs_by_column(pairs: Array, missing: MarkedGaps, base: Array) -> Array:
    """See `factorflow.models.sparse_gfa.kernels.products.pairs_by_column`; on the host."""
    sign = np.where(missing.complement, -1.0, 1.0).astype(pairs.dtype)
    listed = device.product(missing.marked.astype(pairs.dtype).T, pairs * device.beside(sign[:, None], pairs))
    return base + listed


def solve_normals(pairs: Array, linear: Array, scale: Array, prior: Array) -> tuple[Array, Array, Array]:
    """See `products.solve_normals`; ``pairs`` on the device, the results on the host."""
    xp = device.namespace(pairs)
    n_rows, n_factors = linear.shape
    linear, scale, prior = (device.beside(a, pairs) for a in (linear, scale, prior))
    precision = scale[:, None, None] * unpack(pairs[:, : n_pairs(n_factors)], n_factors)
    precision = precision + xp.eye(n_factors) * prior[:, None, :]
    covariance = xp.linalg.inv(precision)
    mean = (covariance @ linear[:, :, None])[:, :, 0]
    diagonal = xp.linalg.diagonal(xp.linalg.cholesky(precision))
    logdet = device.on_host(-2.0 * xp.sum(xp.log(diagonal), axis=-1))
    return device.on_host(mean), device.on_host(pack(covariance)), np.broadcast_to(logdet, (n_rows,))
