"""Clocks of groups that differ: own times are put on a common one, where groups share their courses.

h_g is continuous and linear between `KNOTS` own times, h_g(first) = first + span delta_g, with increments
span / (`KNOTS` - 1) exp(theta_gi), so that time never runs backwards; that of one group, the reference, is
the identity. Places are parameters of T alone (one coefficient a distinct own time), so clocks are learned at
the root from what the rows said in one pass: they maximise sum_k e_k (`evidence`) at sharing `SHARED`, less
`RIDGE` / 2 times the squared parameters. With B = s (alpha alpha' - W) / 2 the slope of e by T, scaled to
B / nu - S tr(B T) / nu^2, that by the place of a cell is::

    2 sum_c' B_cc' R_cc' dk_cc' / dx_c,   dk / dx_c = -(dk / dlog l) / (x_c - x_c')
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from factorflow.core.places import Places
from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.smooth.basis import Basis
from factorflow.models.sparse_gfa.smooth.courses import Courses
from factorflow.models.sparse_gfa.smooth.evidence import EVALUATIONS, Forms, slope_by_covariance
from factorflow.models.sparse_gfa.smooth.points import Points

KNOTS = 5
"""Own times between which clocks run evenly."""
SHARED = 0.97
"""Sharing of courses between groups while clocks are learned."""
RIDGE = 2.0
"""Precision of the parameters of clocks about the identity."""
FIRST_STEP = 0.05
"""First step of the search for clocks, in ranges: groups moved past each other share nothing."""
WARP_ROUNDS = (2, 4, 6)
"""Rounds of the stage of smooth scores in which clocks are learned, each from the places of the last."""


def common_clock(
    places: Places,
    times: Float64[Array, " n"],
    codes: Int64[Array, " n"],
    warp: Float64[Array, "G W"],
) -> tuple[Float64[Array, " n"], Float64[Array, "n W"]]:
    """Return own times on the common clock, and the slopes by the parameters of their group."""
    low, span = places.low[0], places.high[0] - places.low[0]
    step = span / (KNOTS - 1)
    pace = np.exp(warp[:, 1:])
    heights = np.concatenate([np.zeros((len(warp), 1)), np.cumsum(step * pace, axis=1)], axis=1)
    piece = np.clip(np.floor((times - low) / step), 0, KNOTS - 2).astype(np.int64)
    beyond = times - (low + step * piece)
    clock = low + span * warp[codes, 0] + heights[codes, piece] + beyond * pace[codes, piece]
    slopes = np.zeros((len(times), KNOTS))
    slopes[:, 0] = span
    before = np.arange(KNOTS - 1) < piece[:, None]
    slopes[:, 1:] = np.where(before, step * pace[codes], 0.0)
    slopes[np.arange(len(times)), 1 + piece] = beyond * pace[codes, piece]
    return clock, slopes


def moved_basis(basis: Basis, warp: Float64[Array, "G W"] | None) -> Basis:
    """Return the functions with their places on the common clock."""
    if warp is None:
        return basis
    assert isinstance(basis, Points)
    cells = np.asarray(basis.places.cells)
    return basis.with_positions(
        common_clock(basis.places, cells[:, 1], cells[:, 0].astype(np.int64), warp)[0]
    )


def learn_warp(basis: Points, courses: Courses, forms: Forms, reference: int) -> Courses:
    """Return the courses with the clocks of the groups that they favour.

    Parameters
    ----------
    basis, courses : Points, Courses
        The functions at own times; as they were.
    forms : Forms
        What the rows say.
    reference : int
        Number of the group whose clock is the common one.
    """
    from scipy.optimize import minimize

    assert courses.warp is not None
    cells = np.asarray(basis.places.cells)
    times, codes = cells[:, 1], cells[:, 0].astype(np.int64)
    others = np.delete(np.arange(len(courses.warp)), reference)
    smooth = [int(k) for k in np.flatnonzero(courses.is_smooth)]
    forms_of_factors = [(k, forms.form(k, k)) for k in smooth]
    linear = {k: forms.slope[k] + form @ courses.mean[k] for k, form in forms_of_factors}
    sharing = np.full(basis.n_groups, SHARED)

    def negative(vector: Float64[Array, " n"]) -> tuple[float, Float64[Array, " n"]]:
        warp = np.zeros_like(courses.warp)
        warp[others] = FIRST_STEP * vector.reshape(len(others), -1)
        places, by_warp = common_clock(basis.places, times, codes, warp)
        moved = basis.with_positions(places)
        apart = places[:, None] - places[None]
        inverse = np.divide(1.0, apart, out=np.zeros_like(apart), where=apart != 0.0)
        total, by_place = 0.0, np.zeros(len(places))
        for k, form in forms_of_factors:
            share = 1.0 - float(courses.noise[k])
            covariance, slopes = moved.covariance(courses.lengths[k], sharing)
            unit = float((courses.second * covariance).sum())
            value, weight = slope_by_covariance(share * covariance / unit, form, linear[k])
            weight = 0.5 * share * weight
            weight = weight / unit - courses.second * (float((weight * covariance).sum()) / unit**2)
            total += value
            by_place -= 2.0 * (weight * slopes[0] * inverse).sum(axis=1)
        by = np.zeros_like(warp)
        np.add.at(by, codes, by_place[:, None] * by_warp)
        flat = FIRST_STEP * vector
        total -= 0.5 * RIDGE * float(flat @ flat)
        return -total, -FIRST_STEP * (by[others].ravel() - RIDGE * flat)

    first = courses.warp[others].ravel() / FIRST_STEP
    best = minimize(negative, first, jac=True, method="L-BFGS-B", options={"maxfun": EVALUATIONS})
    if not best.fun < negative(first)[0]:
        return courses
    warp = np.zeros_like(courses.warp)
    warp[others] = FIRST_STEP * best.x.reshape(len(others), -1)
    return replace(courses, warp=warp)
