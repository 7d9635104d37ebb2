"""Results of smooth scores: the table of variables, and courses read back from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Array, Variable
from factorflow.models.sparse_gfa.smooth.composite import linear_part
from factorflow.models.sparse_gfa.smooth.courses import Courses
from factorflow.models.sparse_gfa.smooth.rows import SmoothSettings
from factorflow.models.sparse_gfa.smooth.warping import KNOTS
from factorflow.models.sparse_gfa.state import Globals

__all__ = ["course_labels", "course_variables", "courses_from_record"]


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
    size = basis.size

    def of(value: Callable[[Courses], Array], *shape: int, first: bool = True) -> Callable[[Globals], Array]:
        """Return a value of the courses; 0 where no factor has one, of a shape behind factors, or before."""

        def get(g: Globals) -> Array:
            none = (g.n_factors, *shape) if first else (*shape, g.n_factors)
            return np.zeros(none) if g.courses is None else value(g.courses)

        return get

    def lengths(courses: Courses) -> Float64[Array, "K R"]:
        return np.where(courses.is_smooth[:, None], courses.lengths, np.nan)

    def sharing(courses: Courses) -> Float64[Array, "K G"]:
        return np.where(courses.is_smooth[:, None], courses.sharing, np.nan)

    def nats(courses: Courses) -> Float64[Array, " K"]:
        return np.nan_to_num(courses.evidence)

    def centre(g: Globals) -> Float64[Array, " M"]:
        return np.zeros(size) if g.courses is None else g.courses.centre

    def second(g: Globals) -> Float64[Array, "M M"]:
        return np.zeros((size, size)) if g.courses is None else g.courses.second

    n_lengths, n_groups, n_parts = len(basis.labels), basis.n_groups, len(basis.part_names)

    def part_shares(courses: Courses) -> Float64[Array, "K parts"]:
        shares = np.zeros((len(courses.noise), n_parts))
        for k in np.flatnonzero(courses.is_smooth):
            of_parts = basis.shares(courses.lengths[k], courses.sharing[k], courses.second)
            shares[k] = (1.0 - courses.noise[k]) * of_parts
        return shares

    def warp(g: Globals) -> Float64[Array, "G W"]:
        warp_values = None if g.courses is None else g.courses.warp
        return np.zeros((n_groups, KNOTS)) if warp_values is None else warp_values

    linear = linear_part(basis)

    def coefficients(c: Courses) -> Float64[Array, "Q K"]:
        assert linear is not None
        return linear[0].effects() @ c.mean[:, linear[1]].T

    def variances(c: Courses) -> Float64[Array, "Q K"]:
        assert linear is not None
        own, effects = linear[1], linear[0].effects()
        return np.einsum("qi,kij,qj->qk", effects, c.covariance[:, own, own], effects)

    doc = "Clock of a group: when it starts, in ranges, and the logarithm of its pace between knots."
    of_covariates = []
    if linear is not None:
        shape = (linear[0].size,)
        dims, of_linear = ("score_covariate", "factor"), "the covariates of the scores, as they are coded."
        doc_mean, doc_variance = (
            f"Coefficients of {of_linear}",
            f"Variances of the coefficients of {of_linear}",
        )
        of_covariates = [
            Variable("score_coefficients", dims, doc_mean, of(coefficients, *shape, first=False)),
            Variable("score_coefficients_variance", dims, doc_variance, of(variances, *shape, first=False)),
        ]
    of_clocks = [Variable("warp", ("smooth_group", "warp_parameter"), doc, warp)]
    return (
        (of_clocks if smooth.warping is not None else [])
        + of_covariates
        + [
            Variable(
                "smooth_share",
                ("factor",),
                "Share of the prior variance of a factor that is its course; 0: it has none.",
                of(lambda c: 1.0 - c.noise),
            ),
            Variable(
                "length_scale",
                ("factor", "smooth_covariate"),
                "Distance over which a course changes, or standard deviation of a part; NaN: there is none.",
                of(lengths, n_lengths),
            ),
            Variable(
                "smooth_part_share",
                ("factor", "smooth_part"),
                "Share of the prior variance of a factor that is each part of its course.",
                of(part_shares, n_parts),
            ),
            Variable(
                "group_sharing",
                ("factor", "smooth_group"),
                "How much of its course a group shares with others, a: their correlation is a_g a_h.",
                of(sharing, n_groups),
            ),
            Variable(
                "smooth_evidence",
                ("factor",),
                "Nats by which the data favour a course.",
                of(nats),
            ),
            Variable(
                "course", ("factor", "function"), "Coefficients of a course, E c.", of(lambda c: c.mean, size)
            ),
            Variable(
                "course_covariance",
                ("factor", "function", "other_function"),
                "Their covariance.",
                of(lambda c: c.covariance, size, size),
            ),
            Variable("course_centre", ("function",), "Average of the functions over the samples.", centre),
            Variable(
                "course_second",
                ("function", "other_function"),
                "Average of their products, centred.",
                second,
            ),
        ]
    )


def courses_from_record(record: Mapping[str, Array]) -> Courses:
    """Return the courses that were stored, as far as they are read at other places.

    Parameters
    ----------
    record : mapping of str to array
        The stored variables, whole.
    """
    share = np.asarray(record["smooth_share"], np.float64)
    none = np.zeros(len(share))
    return Courses(
        mean=np.asarray(record["course"], np.float64),
        covariance=np.asarray(record["course_covariance"], np.float64),
        energy=none,
        logdet=none,
        noise=1.0 - share,
        lengths=np.asarray(record["length_scale"], np.float64),
        sharing=np.asarray(record["group_sharing"], np.float64),
        evidence=np.asarray(record["smooth_evidence"], np.float64),
        average=none,
        centre=np.asarray(record["course_centre"], np.float64),
        second=np.asarray(record["course_second"], np.float64),
        n_known=0.0,
        warp=np.asarray(record["warp"], np.float64) if "warp" in record else None,
    )
