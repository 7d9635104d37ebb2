"""Prior of the scores of rows in a sweep, and draws of the courses that are its means.

z_nk ~ N(f_nk, 1 / beta): f = 0, or the course of the factor (`smooth`), f_nk = phi_n'c_k with c_k = L v_k,
v ~ N(0, I). Given z a course is drawn exactly. Its share of the variance, length scales and how groups share
it stay as the fit has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Integer
from scipy import special

from factorflow.core.trees import replace
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Block, Step
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.sampler.gibbs_state import ChainGlobals
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.cosines import ProductRows
from factorflow.models.sparse_gfa.smooth.courses import Courses
from factorflow.models.sparse_gfa.smooth.evidence import draw_course
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.rows import course_prior, sum_functions, with_tables
from factorflow.models.sparse_gfa.smooth.site_sums import member_rows
from factorflow.models.sparse_gfa.smooth.warping import moved_basis

COURSE_SITE = MODELS[33]
"""Noise: coefficients of the courses."""


@dataclass(frozen=True)
class ScorePrior:
    """Prior of the scores of some rows.

    Parameters
    ----------
    mean, precision : array
        f, and the precision about it; those of learned size factors last.
    codes : array
        Row of `Shared.beta` that each row has.
    functions : array or None
        phi, centred; of `Points` the number of each row's.
    n_functions : int
        Number of functions (M).
    """

    mean: Float64[np.ndarray, "B L"]
    precision: Float64[np.ndarray, "#B L"]
    codes: Integer[np.ndarray, " B"]
    functions: Array | ProductRows | None = None
    n_functions: int = 0

    def sums_by_function(self, rows: Float64[Array, "B L"]) -> Float64[Array, "M L"]:
        """Return sum_n phi_n row_n'; of points sums by place."""
        if self.functions is None:
            return np.zeros((0, rows.shape[1]))
        if self.functions.ndim == 1:
            return np.asarray(member_rows(self.functions, self.codes > 0, self.n_functions) @ rows)
        return np.asarray(sum_functions(self.functions, rows))


def score_prior(settings: Settings, block: Block, sample: ChainGlobals, *, new: bool) -> ScorePrior:
    """Return the prior of the scores of a block; ``new``: of rows that are not of the fit."""
    beta, courses = sample.shared.beta, sample.courses
    if courses is None:
        codes = settings.group_codes(block)
        nothing = np.zeros((block.n_rows, sample.n_factors))
        return _with_sizes(ScorePrior(nothing, beta if len(beta) == 1 else beta[codes], codes), sample)
    assert settings.smooth is not None
    smooth = replace(settings.smooth, complete=True)  # a drawn course has no variance
    courses = courses if new else with_tables(smooth, courses, each=False)
    prior = course_prior(smooth, block, courses, each=False, new=new)
    known = prior.known.astype(np.int64)
    own = prior.mean, prior.precision, known, prior.functions, smooth.basis.size
    return _with_sizes(ScorePrior(*own), sample)


def _with_sizes(prior: ScorePrior, sample: ChainGlobals) -> ScorePrior:
    """Return the prior of the scores with that of learned size factors."""
    sizes = sample.shared.sizes
    if not len(sizes):
        return prior
    mean = np.concatenate([prior.mean, np.zeros((len(prior.mean), len(sizes)))], axis=1)
    precision = np.concatenate([prior.precision, np.tile(sizes, (len(prior.precision), 1))], axis=1)
    return replace(prior, mean=mean, precision=precision)


def draw_courses(settings: Settings, courses: Courses, scores: Float64[Array, "M K"], step: Step) -> Courses:
    """Draw c of all factors, given sums of z by function (of points by place)."""
    assert settings.smooth is not None
    basis = moved_basis(settings.smooth.basis, courses.warp)
    if isinstance(basis, Points):
        scores = scores - np.outer(courses.centre, scores.sum(axis=0))
    mean, energy = courses.mean.copy(), courses.energy.copy()
    noise = special.ndtri(draws.uniform(step, COURSE_SITE, np.arange(len(mean)), mean.shape[1]))
    for k in np.flatnonzero(courses.is_smooth):
        scaled, _ = basis.scaled_covariance(courses.lengths[k], courses.sharing[k], courses.second)
        precision = 1.0 / courses.noise[k]
        form = courses.n_known * precision * courses.second
        covariance = (1.0 - courses.noise[k]) * scaled
        mean[k], energy[k] = draw_course(covariance, form, precision * scores[:, k], noise[k])
    return replace(courses, mean=mean, energy=energy)
