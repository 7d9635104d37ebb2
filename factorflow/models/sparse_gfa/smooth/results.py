"""Results of smooth scores: the table of variables, and courses read back from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Array, Variable
from factorflow.models.sparse_gfa.smooth.basis import Basis
from factorflow.models.sparse_gfa.smooth.composite import linear_part
from factorflow.models.sparse_gfa.smooth.courses import Courses
from factorflow.models.sparse_gfa.smooth.rows import SmoothSettings
from factorflow.models.sparse_gfa.smooth.warping import KNOTS
from factorflow.models.sparse_gfa.state import Globals


def course_labels(smooth: SmoothSettings) -> dict[str, list[str]]:
    """Return the labels of covariates, groups and functions."""
    basis = smooth.basis
    linear = linear_part(basis)
    numbers = [str(i) for i in range(basis.size)]
    labels = {"warp_parameter": ["start", *(f"pace{i}" for i in range(1, KNOTS))]}
    return (labels if smooth.warping is not None else {}) | {
        "smooth_covariate": basis.labels,
        "smooth_part": basis.part_names,
        "smooth_group": list(basis.groups) or ["all"],
        **({} if linear is None else {"score_covariate": linear[0].covariates.labels}),
        "function": numbers,
        "other_function": numbers,
    }


def course_variables(smooth: SmoothSettings) -> list[Variable]:
    """Return the table of variables of the courses."""
    basis = smooth.basis
    size, shares = basis.size, partial(_part_shares, basis)
    n_lengths, n_groups, n_parts = len(basis.labels), basis.n_groups, len(basis.part_names)

    def centre(g: Globals) -> Float64[Array, " M"]:
        return np.zeros(size) if g.courses is None else g.courses.centre

    def second(g: Globals) -> Float64[Array, "M M"]:
        return np.zeros((size, size)) if g.courses is None else g.courses.second

    by_factor = [
        ("smooth_share", (), "Share of the prior variance of a factor that is its course; 0: it has none.",
         _by_factor(lambda c: 1.0 - c.noise)),
        ("length_scale", ("smooth_covariate",),
         "Distance over which a course changes, or standard deviation of a part; NaN: there is none.",
         _by_factor(lambda c: _of_courses(c, c.lengths), n_lengths)),
        ("smooth_part_share", ("smooth_part",),
         "Share of the prior variance of a factor that is each part of its course.",
         _by_factor(shares, n_parts)),
        ("group_sharing", ("smooth_group",),
         "How much of its course a group shares with others, a: their correlation is a_g a_h.",
         _by_factor(lambda c: _of_courses(c, c.sharing), n_groups)),
        ("smooth_evidence", (), "Nats by which the data favour a course.",
         _by_factor(lambda c: np.nan_to_num(c.evidence))),
        ("course", ("function",), "Coefficients of a course, E c.", _by_factor(lambda c: c.mean, size)),
        ("course_covariance", ("function", "other_function"), "Their covariance.",
         _by_factor(lambda c: c.covariance, size, size)),
    ]  # fmt: skip
    return [
        *_clock_variables(smooth),
        *_coefficient_variables(smooth),
        *(Variable(name, ("factor", *dims), doc, value) for name, dims, doc, value in by_factor),
        Variable("course_centre", ("function",), "Average of the functions over the samples.", centre),
        Variable(
            "course_second", ("function", "other_function"), "Average of their products, centred.", second
        ),
    ]


def _by_factor(
    value: Callable[[Courses], Array], *shape: int, last: bool = False
) -> Callable[[Globals], Array]:
    """Return a function of the globals: a value of the courses, 0 of each factor where there are none.

    ``shape`` is that of a factor, whose axis is the first one, or the last.
    """

    def get(g: Globals) -> Array:
        none = (*shape, g.n_factors) if last else (g.n_factors, *shape)
        return np.zeros(none) if g.courses is None else value(g.courses)

    return get


def _of_courses(courses: Courses, values: Float64[Array, "K n"]) -> Float64[Array, "K n"]:
    """Return values by factor, NaN of factors without a course."""
    return np.where(courses.is_smooth[:, None], values, np.nan)


def _part_shares(basis: Basis, courses: Courses) -> Float64[Array, "K parts"]:
    shares = np.zeros((len(courses.noise), len(basis.part_names)))
    for k in np.flatnonzero(courses.is_smooth):
        of_parts = basis.shares(courses.lengths[k], courses.sharing[k], courses.second)
        shares[k] = (1.0 - courses.noise[k]) * of_parts
    return shares


def _clock_variables(smooth: SmoothSettings) -> list[Variable]:
    if smooth.warping is None:
        return []

    def warp(g: Globals) -> Float64[Array, "G W"]:
        values = None if g.courses is None else g.courses.warp
        return np.zeros((smooth.basis.n_groups, KNOTS)) if values is None else values

    doc = "Clock of a group: when it starts, in ranges, and the logarithm of its pace between knots."
    return [Variable("warp", ("smooth_group", "warp_parameter"), doc, warp)]


def _coefficient_variables(smooth: SmoothSettings) -> list[Variable]:
    """Return the variables of the covariates of the scores."""
    part = linear_part(smooth.basis)
    if part is None:
        return []
    linear, own = part
    effects = linear.effects()

    def means(c: Courses) -> Float64[Array, "Q K"]:
        return effects @ c.mean[:, own].T

    def variances(c: Courses) -> Float64[Array, "Q K"]:
        return np.einsum("qi,kij,qj->qk", effects, c.covariance[:, own, own], effects)

    dims, of = (
        ("score_covariate", "factor"),
        "coefficients of the covariates of the scores, as they are coded.",
    )
    return [
        Variable("score_coefficients", dims, f"The {of}", _by_factor(means, linear.size, last=True)),
        Variable(
            "score_coefficients_variance",
            dims,
            f"Variances of the {of}",
            _by_factor(variances, linear.size, last=True),
        ),
    ]


def courses_from_record(record: Mapping[str, Array]) -> Courses:
    """Return the courses that were stored, as far as they are read at other places.

    Parameters
    ----------
    record : mapping of str to array
        The stored variables, whole; of a sampler ``course`` of all draws, others of one.
    """
    share = np.asarray(record["smooth_share"], np.float64)
    none = np.zeros(len(share))
    return Courses(
        mean=np.asarray(record["course"], np.float64),
        covariance=np.asarray(record.get("course_covariance", np.zeros((len(share), 0, 0))), np.float64),
        energy=none,
        logdet=none,
        noise=1.0 - share,
        lengths=np.asarray(record["length_scale"], np.float64),
        sharing=np.asarray(record["group_sharing"], np.float64),
        evidence=np.asarray(record["smooth_evidence"], np.float64),
        average=none,
        centre=np.asarray(record["course_centre"], np.float64),
        second=np.asarray(record.get("course_second", np.zeros((0, 0))), np.float64),
        n_known=0.0,
        warp=np.asarray(record["warp"], np.float64) if "warp" in record else None,
        units=np.asarray(record["course_unit"], np.float64) if "course_unit" in record else None,
    )
