"""Updates of blocks: scores given their courses, and messages of rows about the courses.

Given the loadings, q(z_n | c) is the exact conditional, whatever q(c) is::

    S_n = (A_n + Z^-1)^-1,  Gamma_n = S_n Z^-1,  m_n = S_n (h_n + Z^-1 E f_n),  Z = diag zeta
    E z_n = m_n,  Cov z_n = S_n + Gamma_n D_n Gamma_n',  D_n = diag Var f_n
    J_n = Z^-1 - Z^-1 S_n Z^-1                                     what a row says of f_n

A mean field of z and c would be Gamma = 0, and takes the variance of the courses far too small where views
say little. Rows whose place is not known have f = 0 and the prior of a plain fit, N(0, 1).

Where views are complete A_n is one matrix, and sums over rows need the average of D_n alone
(`SmoothSettings.complete`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Bool, Float64, Int64

from factorflow.core.places import PLACES
from factorflow.core.trees import replace
from factorflow.kernels.linalg import diagonal, pack, unpack
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.smooth.basis import Basis
from factorflow.models.sparse_gfa.smooth.cosines import Cosines, ProductRows
from factorflow.models.sparse_gfa.smooth.courses import Courses, NoiseSums
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.warping import common_clock, moved_basis


@dataclass(frozen=True)
class SmoothSettings:
    """Settings of smooth scores.

    Parameters
    ----------
    basis : Basis
        The functions.
    complete : bool
        Whether all rows are known by the same precision: complete Gaussian views, all places known.
    warping : int or None
        Number of the group whose clock the others are put on; None: clocks are the same.
    """

    basis: Basis
    complete: bool
    warping: int | None = None

    def codes(self, block: Block) -> Int64[Array, " B"]:
        """Return the group of each row, as the courses have it."""
        if self.basis.n_groups == 1:
            return np.zeros(block.n_rows, np.int64)
        return np.asarray(block.columns.get("group", np.full(block.n_rows, -1)), np.int64)


@dataclass(frozen=True)
class CoursePrior:
    """Prior of the scores of some rows, given q of the courses.

    Parameters
    ----------
    mean : array
        E f.
    variance : array or None
        Var f; None where it is in the precision, or averages out.
    precision : array
        1 / zeta; 1 of rows whose place is not known.
    known : array
        Whether the place is known.
    functions : array
        The functions, centred; of `Points` the number of each row's.
    """

    mean: Float64[np.ndarray, "B K"]
    variance: Float64[np.ndarray, "#B K"] | None
    precision: Float64[np.ndarray, "#B K"]
    known: Bool[np.ndarray, " B"]
    functions: Array | ProductRows


@dataclass(frozen=True)
class Conditional:
    """q(z | c) of some rows: its prior, and S packed."""

    prior: CoursePrior
    covariance: Float64[np.ndarray, "#B V"]


def for_blocks(smooth: SmoothSettings, courses: Courses) -> Courses:
    """Return what the blocks of a fit need of the courses."""
    k = len(courses.noise)
    return replace(
        with_tables(smooth, courses, each=False),
        mean=np.zeros((k, 0)),
        covariance=np.zeros((k, 0, 0)),
        second=np.zeros((0, 0)),
    )


def with_tables(smooth: SmoothSettings, courses: Courses, *, each: bool) -> Courses:
    """Return the courses with tables for rows of the fit.

    E f and Var f by place; of cosines E c, and Var f as a sum of cosines; of others Cov c side by side.
    ``each``: see `course_prior`.
    """
    if courses.values is None:
        values = courses.mean
        if isinstance(smooth.basis, Points):
            values = values - (values @ courses.centre)[:, None]
        courses = replace(courses, values=values.T.copy())
    if courses.spread is None and (each or not smooth.complete):
        courses = replace(courses, spread=_spread(smooth, courses))
    return courses


def _spread(smooth: SmoothSettings, courses: Courses) -> Float64[Array, "M V"]:
    if isinstance(smooth.basis, Points):
        pulled = courses.covariance @ courses.centre
        variances = np.diagonal(courses.covariance, axis1=1, axis2=2) - 2.0 * pulled
        variances = variances + (pulled @ courses.centre)[:, None]
        return np.asarray(np.maximum(variances, 0.0).T)
    if isinstance(smooth.basis, Cosines):
        each = [smooth.basis.quadratic(covariance, courses.centre) for covariance in courses.covariance]
        return np.stack(each, axis=1)
    return np.concatenate([np.zeros((smooth.basis.size, 0)), *courses.covariance[courses.is_smooth]], axis=1)


def course_prior(
    smooth: SmoothSettings, block: Block, courses: Courses, *, each: bool, new: bool
) -> CoursePrior:
    """Return the prior of the scores of a block.

    Parameters
    ----------
    smooth : SmoothSettings
        Of the run.
    block : Block
        The rows.
    courses : Courses
        With tables (`with_tables`); of rows that are not of the fit whole.
    each : bool
        Whether each row's own variance of f is needed where views are complete.
    new : bool
        Whether the rows are not of the fit: f then is no more than a prior.
    """
    places, codes = np.asarray(block.columns[PLACES], np.float64), smooth.codes(block)
    basis = smooth.basis
    if new:
        return _of_new(basis, places, codes, courses)
    has_place = np.asarray(np.isfinite(places).all(axis=1))
    noise = courses.noise[None]
    precision = 1.0 / noise
    if not has_place.all():
        precision = np.where(has_place[:, None], precision, 1.0)
    values, spread = courses.values, courses.spread
    assert values is not None
    functions = _functions(basis, block, places, codes, courses.centre)
    if isinstance(basis, Points):
        mean = np.where(has_place[:, None], values[cast("Array", functions)], 0.0)
    else:
        given = values, courses.centre
        mean = block.once(("courses",), given, lambda: times_functions(functions, values))
    if smooth.complete and not each:
        return CoursePrior(mean, courses.average[None], precision, has_place, functions)
    assert spread is not None
    if isinstance(basis, Points):
        variance = np.where(has_place[:, None], spread[cast("Array", functions)], 0.0)
    elif isinstance(basis, Cosines):
        products = basis.products.functions(np.where(has_place[:, None], places, 0.0), codes)
        variance = np.where(has_place[:, None], np.maximum(products @ spread, 0.0), 0.0)
    else:
        variance, own = np.zeros(mean.shape), np.flatnonzero(courses.is_smooth)
        assert isinstance(functions, np.ndarray)
        products = (functions @ spread).reshape(len(mean), len(own), basis.size)
        variance[:, own] = np.maximum(np.einsum("bkm,bm->bk", products, functions), 0.0)
    return CoursePrior(mean, variance, precision, has_place, functions)


def place_values(block: Block) -> tuple[Float64[Array, "B p"], Bool[Array, " B"]]:
    """Return the places of rows, 0 where they are not known, and where they are."""
    places = np.asarray(block.columns[PLACES], np.float64)
    has_place = np.asarray(np.isfinite(places).all(axis=1))
    return np.where(has_place[:, None], places, 0.0), has_place


def place_functions(smooth: SmoothSettings, block: Block) -> tuple[Array, Bool[Array, " B"]]:
    """Return the functions of rows before they are centred, 0 where the place is not known, and where it is.

    Of `Points` the number of each row's.
    """
    places, codes = np.asarray(block.columns[PLACES], np.float64), smooth.codes(block)
    has_place = np.asarray(np.isfinite(places).all(axis=1))
    if isinstance(smooth.basis, Points):
        return smooth.basis.cell(places, codes), has_place
    functions = smooth.basis.functions(np.where(has_place[:, None], places, 0.0), codes)
    return np.asarray(functions * has_place[:, None]), has_place


def _functions(
    basis: Basis,
    block: Block,
    places: Float64[Array, "B p"],
    codes: Int64[Array, " B"],
    centre: Float64[Array, " M"],
) -> Array | ProductRows:
    """Return the functions of rows, centred, 0 where the place is not known; of points the number of each."""
    if isinstance(basis, Points):
        return block.once(("cells",), (), lambda: basis.cell(places, codes))
    has_place = np.asarray(np.isfinite(places).all(axis=1))
    if isinstance(basis, Cosines) and basis.n_groups == 1:
        at = np.where(has_place[:, None], places, 0.0)
        first, others = block.once(("cosines",), (), lambda: basis.by_column(at))
        return ProductRows(first, others, centre, has_place.astype(np.float64))

    def make() -> Float64[Array, "B M"]:
        functions = basis.functions(np.where(has_place[:, None], places, 0.0), codes) - centre
        return functions if has_place.all() else np.asarray(functions * has_place[:, None])

    return block.once(("functions",), (centre,), make)


def times_functions(functions: Array | ProductRows, values: Float64[Array, "M K"]) -> Float64[Array, "B K"]:
    """Return functions of rows times a matrix."""
    return functions.times(values) if isinstance(functions, ProductRows) else functions @ values


def sum_functions(functions: Array | ProductRows, values: Float64[Array, "B K"]) -> Float64[Array, "M K"]:
    """Return sum_n phi_n value_n'."""
    return functions.sums(values) if isinstance(functions, ProductRows) else functions.T @ values


def _of_new(
    basis: Basis, places: Float64[Array, "B p"], codes: Int64[Array, " B"], courses: Courses
) -> CoursePrior:
    """Return the prior of rows that are not of the fit: N(E f, zeta + Var f)."""
    mean, variance, beside, reached = courses_at(basis, places, codes, courses)
    precision = np.where(reached[:, None], 1.0 / (courses.noise + variance + beside), 1.0)
    return CoursePrior(mean, None, precision, reached, np.zeros(len(places), np.int64))


def courses_of_rows(
    smooth: SmoothSettings, block: Block, courses: Courses, *, new: bool
) -> tuple[Float64[Array, "B K"], Float64[Array, "B K"]]:
    """Return mean and variance of the courses of rows, NaN where the place is not known or not reached."""
    places, codes = np.asarray(block.columns[PLACES], np.float64), smooth.codes(block)
    if new:
        mean, variance, _, has_place = courses_at(smooth.basis, places, codes, courses)
    else:
        prior = course_prior(smooth, block, courses, each=True, new=False)
        assert prior.variance is not None
        mean, variance, has_place = prior.mean, prior.variance, prior.known
    return np.where(has_place[:, None], mean, np.nan), np.where(has_place[:, None], variance, np.nan)


def course_units(basis: Basis, courses: Courses) -> Float64[Array, " K"]:
    """Return tr(S T) of each factor before T is scaled; 1 of factors without a course."""
    units, basis = np.ones(len(courses.noise)), moved_basis(basis, courses.warp)
    for k in np.flatnonzero(courses.is_smooth):
        units[k] = basis.unit(courses.lengths[k], courses.sharing[k], courses.second)
    return units


def courses_at(
    basis: Basis, places: Float64[Array, "B p"], codes: Int64[Array, " B"], courses: Courses
) -> tuple[Float64[Array, "*draws B K"], Float64[Array, "B K"], Float64[Array, "B K"], Bool[Array, " B"]]:
    """Return mean and variance of the courses at any places, and which places the functions reach.

    Elsewhere, and of groups that are not known, 0 and the prior variance. The third is the variance of parts
    of the courses of which a row does not tell.
    """
    reached = np.asarray(basis.inside(places)) & (codes >= 0)
    shape = len(places), len(courses.noise)
    mean, variance = (
        np.zeros((*courses.mean.shape[:-2], *shape)),
        np.tile(1.0 - courses.noise, (len(places), 1)),
    )
    beside, rows, own = np.zeros(shape), places[reached], codes[reached]
    units = course_units(basis, courses) if courses.units is None else courses.units
    if courses.warp is not None:
        assert isinstance(basis, Points)
        rows = common_clock(basis.places, rows[:, 0], own, courses.warp)[0][:, None]
        basis = moved_basis(basis, courses.warp)
    for k in np.flatnonzero(courses.is_smooth) if len(rows) else ():
        parameters = courses.lengths[k], courses.sharing[k]
        functions, residual, unknown = basis.at(rows, own, *parameters, courses.centre)
        scale = (1.0 - courses.noise[k]) / units[k]
        mean[..., reached, k] = courses.mean[..., k, :] @ functions.T
        variance[reached, k] = scale * residual
        if courses.covariance.size:  # a drawn course has none
            variance[reached, k] += ((functions @ courses.covariance[k]) * functions).sum(axis=1)
        beside[reached, k] = scale * unknown
    return mean, variance, beside, reached


def spread_scores(prior: CoursePrior, covariance: Float64[Array, "#B V"]) -> Float64[Array, "#B V"]:
    """Return Cov z packed, given S packed."""
    if prior.variance is None:
        return covariance
    gain = unpack(covariance, prior.mean.shape[1]) * prior.precision[:, None, :]
    return np.asarray(covariance + pack((gain * prior.variance[:, None, :]) @ gain.transpose(0, 2, 1)))


def noise_sums(conditional: Conditional, mean: Float64[Array, "B K"]) -> NoiseSums:
    """Return the sums that zeta is updated by, at means m of the scores."""
    prior, k = conditional.prior, mean.shape[1]
    assert prior.variance is not None
    rows = prior.known.astype(np.float64)
    gain = unpack(conditional.covariance, k) * prior.precision[:, None, :]
    own, spread = np.einsum("bkk->bk", gain), prior.variance
    covariance = diagonal(conditional.covariance, k)
    of_course = np.einsum("bkl,bl->bk", (gain - np.eye(k)) ** 2, spread)
    of_scores = np.einsum("bkl,bl->bk", gain**2, spread)
    left = mean - prior.mean

    def total(values: Float64[Array, "#B K"]) -> Float64[Array, " K"]:
        return np.asarray(rows @ np.broadcast_to(values, mean.shape))

    return NoiseSums(
        residual=total(left**2 + covariance + of_course),
        second=total(mean**2 + covariance + of_scores),
        cross=total(mean * prior.mean + own * spread),
        course=total(prior.mean**2 + spread),
        unknown=(1.0 - rows) @ np.broadcast_to(mean**2 + covariance, mean.shape),
    )
