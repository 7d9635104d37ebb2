"""Sums of the messages of rows about the courses: of a block, and of all rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import csr_array

from factorflow.kernels.linalg import n_pairs, pack, packed_place, unpack
from factorflow.models.contract import Array, Block, Gather
from factorflow.models.sparse_gfa.smooth.cosines import ProductRows
from factorflow.models.sparse_gfa.smooth.courses import Courses
from factorflow.models.sparse_gfa.smooth.evidence import Forms
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.rows import Conditional, SmoothSettings, sum_functions


@dataclass(frozen=True)
class SiteSums:
    """Messages of rows about the courses, added up.

    Parameters
    ----------
    linear : array
        sum phi (m - f)' / zeta, by function or place.
    weights : array or None
        sum J packed: by place; of complete views of all rows.
    forms : array or None
        sum J_kk phi phi' packed, by factor.
    ratio : Gather or None
        See `Forms.ratio`, by block.
    """

    linear: Float64[np.ndarray, "M K"]
    weights: Float64[np.ndarray, "N V"] | None = None
    forms: Float64[np.ndarray, "K P"] | None = None
    ratio: Gather | None = None


def site_sums(
    smooth: SmoothSettings, block: Block, conditional: Conditional, mean: Float64[Array, "B K"]
) -> SiteSums:
    """Return the messages of rows about the courses."""
    prior, k = conditional.prior, mean.shape[1]
    left = (mean - prior.mean) * prior.precision * prior.known[:, None]
    says = -unpack(conditional.covariance, k) * prior.precision[:, :, None] * prior.precision[:, None, :]
    index = np.arange(k)
    says[:, index, index] += prior.precision
    if isinstance(smooth.basis, Points):
        by_place = member_rows(prior.functions, prior.known, smooth.basis.size)
        packed = np.broadcast_to(pack(says), (len(mean), n_pairs(k)))
        return SiteSums(by_place @ left, by_place @ packed)
    linear = sum_functions(prior.functions, left)
    if smooth.complete:
        return SiteSums(linear, float(len(mean)) * pack(says))
    says = np.broadcast_to(says, (len(mean), k, k))
    own = np.maximum(says[:, index, index], 0.0)
    functions = prior.functions
    if isinstance(functions, ProductRows):
        functions = functions.whole()
    forms = [pack((functions * own[:, j, None]).T @ functions) for j in range(k)]
    smooth_ones = prior.precision.max(axis=0) > 1.0
    size = np.sqrt(np.where(smooth_ones & (own > 0.0), own, np.inf))
    relative = np.abs(says) / size[:, :, None] / size[:, None, :]
    ratio = float((relative.sum(axis=2) * prior.known[:, None]).max(initial=1.0))
    return SiteSums(linear, None, np.stack(forms), Gather.of(block, ratio))


def member_rows(numbers: Int64[Array, " B"], has_place: Bool[Array, " B"], size: int) -> csr_array:
    """Return which rows are of which place, (size, B)."""
    rows = np.flatnonzero(has_place)
    ones = np.ones(len(rows))
    return csr_array((ones, (numbers[rows], rows)), shape=(size, len(has_place)))


def forms_of(smooth: SmoothSettings, courses: Courses, sums: SiteSums) -> Forms:
    """Return the messages of all rows about the courses."""
    centre = courses.centre
    if isinstance(smooth.basis, Points):
        assert sums.weights is not None
        weights = sums.weights

        def by_place(k: int, j: int) -> Float64[Array, "M M"]:
            own = weights[:, packed_place(k, j)]
            moved = np.outer(centre, own)
            return np.diag(own) - moved - moved.T + own.sum() * np.outer(centre, centre)

        return Forms(by_place, sums.linear.T - np.outer(sums.linear.sum(axis=0), centre))
    if sums.weights is not None:
        one = sums.weights[0]

        def times(k: int, others: list[int], vector: Float64[Array, " M"]) -> Float64[Array, "J M"]:
            return np.outer(one[packed_place(k, others)], courses.second @ vector)

        return Forms(
            lambda k, j: one[packed_place(k, j)] * courses.second, sums.linear.T.copy(), products=times
        )
    assert sums.forms is not None
    assert sums.ratio is not None
    forms, size = sums.forms, smooth.basis.size
    ratio = float(np.max(sums.ratio.values))
    return Forms(
        lambda k, j: unpack(forms[k], size), sums.linear.T.copy(), has_cross_forms=False, ratio=ratio
    )
