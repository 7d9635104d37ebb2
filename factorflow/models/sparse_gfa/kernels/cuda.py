"""The sums of `products` over the entries of a block, on a CUDA device.

Matrix products, masks and the normal equations of the rows are array-API calls (CuPy's). Missing entries are
marks instead of lists: adding up a list becomes a product with the marks. Results agree with the CPU's up to
rounding, since sums are taken in another order.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from factorflow.core.block import Array
from factorflow.kernels import device
from factorflow.kernels.linalg import n_pairs, pack, unpack
from factorflow.models.sparse_gfa.kernels.gaps import Gaps, lowest

__all__ = [
    "MarkedGaps",
    "centred",
    "column_moments",
    "gaps",
    "pairs_by_column",
    "pairs_by_row",
    "solve_normals",
]


@dataclass(frozen=True)
class MarkedGaps(Gaps):
    """The gaps of a block on a device.

    Parameters
    ----------
    marked : array
        The missing entries of rows with ``complement``, the observed ones of others; on the device.
    """

    marked: Bool[Array, "B D"]


def column_moments(values: Array, about: Array | None = None) -> tuple[Array, Array, Array]:
    """See `factorflow.models.sparse_gfa.kernels.products.column_moments`; on the host."""
    xp = device.namespace(values)
    seen = values >= lowest(values)
    y = values.astype(np.float64) - (0.0 if about is None else xp.asarray(about))
    y = xp.where(seen, y, 0.0)
    sums = (xp.sum(part, axis=0) for part in (seen.astype(np.float64), y, y * y))
    count, total, squares = (device.on_host(part) for part in sums)
    return count, total, squares


def centred(values: Array, reference: Array, inverse_scale: Array, dtype: Any) -> Array:
    """See `factorflow.models.sparse_gfa.kernels.products.centred`."""
    xp = device.namespace(values)
    at = np.promote_types(values.dtype, dtype)
    shift, factor = (device.move_beside(a.astype(at), values) for a in (reference, inverse_scale))
    return xp.where(values >= lowest(values), (values.astype(at) - shift) * factor, 0).astype(dtype)


def gaps(values: Array, by_column: bool = True) -> MarkedGaps:
    """See `factorflow.models.sparse_gfa.kernels.products.gaps`."""
    xp = device.namespace(values)
    seen = values >= lowest(values)
    n_features = values.shape[1]
    missing = n_features - device.on_host(xp.sum(seen.astype(np.int64), axis=1))
    complement = 2 * missing <= n_features
    return MarkedGaps(
        complement, missing, n_features, seen != device.move_beside(complement[:, None], values)
    )


def pairs_by_row(table: Array, missing: MarkedGaps, base: Array) -> Array:
    """See `factorflow.models.sparse_gfa.kernels.products.pairs_by_row`; on the device."""
    keep = device.move_beside(missing.complement[:, None].astype(np.float64), table)
    listed = (missing.marked.astype(table.dtype) @ table).astype(np.float64)
    return keep * device.move_beside(base, table) + (1.0 - 2.0 * keep) * listed


def pairs_by_column(pairs: Array, missing: MarkedGaps, base: Array) -> Array:
    """See `factorflow.models.sparse_gfa.kernels.products.pairs_by_column`; on the host."""
    sign = np.where(missing.complement, -1.0, 1.0).astype(pairs.dtype)
    listed = device.product(
        missing.marked.astype(pairs.dtype).T, pairs * device.move_beside(sign[:, None], pairs)
    )
    return base + listed


def solve_normals(pairs: Array, linear: Array, scale: Array, prior: Array) -> tuple[Array, Array, Array]:
    """See `products.solve_normals`; ``pairs`` on the device, the results on the host."""
    xp = device.namespace(pairs)
    n_rows, n_factors = linear.shape
    linear, scale, prior = (device.move_beside(a, pairs) for a in (linear, scale, prior))
    precision = scale[:, None, None] * unpack(pairs[:, : n_pairs(n_factors)], n_factors)
    precision = precision + xp.eye(n_factors) * prior[:, None, :]
    covariance = xp.linalg.inv(precision)
    mean = (covariance @ linear[:, :, None])[:, :, 0]
    diagonal = xp.linalg.diagonal(xp.linalg.cholesky(precision))
    logdet = device.on_host(-2.0 * xp.sum(xp.log(diagonal), axis=-1))
    return device.on_host(mean), device.on_host(pack(covariance)), np.broadcast_to(logdet, (n_rows,))
