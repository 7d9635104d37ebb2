"""Results of chains: the table of variables, and averages of rows over draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.models.contract import Array, Variable
from factorflow.models.sparse_gfa import results
from factorflow.models.sparse_gfa.sampler.gibbs_state import ChainGlobals, DrawnView, Shared
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.results import course_variables
from factorflow.models.sparse_gfa.smooth.rows import SmoothSettings
from factorflow.models.variables import AVERAGES

DRAWN, NOT_DRAWN = (
    {"course", "score_coefficients"},
    {"course_covariance", "course_second", "score_coefficients_variance"},
)
"""Of the variables of courses those with draws, and those that chains do not have; others stay as fitted."""


@dataclass(frozen=True)
class Averages:
    """Covariates of the rows of a block; means and variances over the draws of a chain.

    Parameters
    ----------
    covariates : array
        Of the features, means over draws where they are not known.
    means, variances : tuple of array
        Of scores; of their courses, or of whether they are 0; of the logarithms of size factors.
    """

    covariates: Float64[np.ndarray, "B J"]
    means: tuple[Float64[np.ndarray, "B _"], ...]
    variances: tuple[Float64[np.ndarray, "B _"], ...]


def drawn_variables(settings: Settings) -> tuple[Variable, ...]:
    """Return the table of variables of chains."""
    names = [view.name for view in settings.views]
    single = partial(Variable, rows=True, dtype="float32")

    def each(value: Callable[[DrawnView], object]) -> Callable[[ChainGlobals], Array]:
        return lambda g: np.stack([np.asarray(value(g.record.shared.views[name])) for name in names])

    table = [
        single(
            "scores",
            results.SCORE,
            "Score of a sample on a factor, z: mean over draws.",
            lambda f: f.means[0],
            positive=settings.nonnegative,
        ),
        single("scores_variance", results.SCORE, "Variance of a score over draws.", lambda f: f.variances[0]),
        single(
            "scores_draws", results.SCORE, "z, every draw.", lambda local: local.scores(settings), draws=True
        ),
        Variable(
            "alpha",
            ("view", "factor"),
            "Precision of the loadings that are not 0, on the model's scale.",
            each(lambda v: v.alpha),
        ),
        Variable("intercept_mean", ("view",), "Mean of the intercepts, m.", each(lambda v: v.intercept_mean)),
        Variable(
            "intercept_precision",
            ("view",),
            "Precision of the intercepts about it, lambda.",
            each(lambda v: v.intercept_precision),
        ),
    ]
    if settings.sized:
        doc = "Size factor of a sample in a view; 1 where the view has none."
        table.append(
            single(
                "size_factors",
                ("obs", "view"),
                doc,
                lambda f: np.exp(f.means[2]),
                of_data=True,
                dtype="float64",
            )
        )
    if settings.learns_sizes:
        doc, by_view = "Logarithm of the size factor of a sample in a view", ("obs", "view")
        log_sizes = single(
            "log_size_factors", by_view, f"{doc}, every draw.", lambda local: local.log_sizes, draws=True
        )
        doc = "Variance of the logarithm of a learned size factor over draws; 0 in views without."
        spread = single("log_size_factors_variance", by_view, doc, lambda f: f.variances[2])
        table += [log_sizes, spread]
    if settings.covariates is not None:
        table.append(results.covariates_variable(lambda rows: rows.covariates))
        if settings.incomplete:
            doc = "Covariates, drawn where they are not known, every draw."
            name, given = "covariates_draws", ("obs", "covariate")
            table.append(single(name, given, doc, lambda local: local.covariates, draws=True))
        doc = "Precision of the coefficients of a term, on the model's scale."
        precision = each(lambda v: v.term_precision)
        table.append(Variable("coefficient_precision", ("view", "term"), doc, precision))
        doc = "Regression of the scores on the covariates, by least squares."
        table.append(
            Variable("score_regression", ("covariate", "factor"), doc, lambda g: g.record.regression)
        )
    if any(view.spikes for view in settings.views):
        doc = "Share of loadings that are not 0."
        table.append(Variable("theta", ("view", "factor"), doc, partial(_theta, settings)))
    if settings.sets is not None:
        table += _sets_table(settings)
    if settings.scores_prior != "normal":
        dims = ("group", "factor") if settings.groups else ("factor",)
        doc = "Prior precision of scores, beta."
        table.append(Variable("score_precision", dims, doc, lambda g: _by_group(settings, _shared(g).beta)))
    if settings.scores_spike:
        doc = "Probability that a score is not 0: share of draws."
        table.append(single("scores_inclusion", results.SCORE, doc, lambda f: f.means[1]))
        doc = "Share of scores that are not 0, psi."
        table.append(Variable("score_theta", dims, doc, lambda g: _by_group(settings, _shared(g).psi)))
    if settings.smooth is not None:
        table += _courses_table(settings.smooth)
    for view in settings.views:
        table += _view_table(settings, view.name)
    return tuple(table)


def _sets_table(settings: Settings) -> Iterator[Variable]:
    """Yield the variables of feature sets: assigned by the fit; shares of loadings inside are drawn."""

    def numbers(g: ChainGlobals) -> Array:
        return np.full(g.n_factors, -1) if g.sets is None else g.sets.numbers

    def evidence(g: ChainGlobals) -> Array:
        return np.zeros((len(settings.views), g.n_factors)) if g.sets is None else g.sets.evidence

    def inside(g: ChainGlobals) -> Float64[Array, "M K"]:
        nothing, views = np.full(g.n_factors, np.nan), g.record.shared.views
        shares = [views[view.name].shares if view.prior.takes_sets else None for view in settings.views]
        return np.stack([nothing if s is None else np.where(numbers(g) >= 0, s[0], nothing) for s in shares])

    doc, of_fit = "Number of the feature set that a factor has; -1: none.", AVERAGES
    yield Variable("set_of_factor", ("factor",), doc, numbers, dtype="int64", group=of_fit)
    doc = "Nats by which the bound of the fit is higher with the set of a factor than without."
    yield Variable("set_evidence", ("view", "factor"), doc, evidence, group=of_fit)
    doc = "Share of loadings in the set of a factor that are not 0."
    yield Variable("set_theta", ("view", "factor"), doc, inside)


def _courses_table(smooth: SmoothSettings) -> Iterator[Variable]:
    """Yield the variables of the courses: of draws, and the parameters that are those of the fit."""
    doc = "Course of a factor at the place of a sample, f: mean over draws."
    course = "smooth_scores"
    yield Variable(course, results.SCORE, doc, lambda rows: rows.means[1], rows=True)
    doc, name = "Variance of it over draws.", f"{course}_variance"
    yield Variable(name, results.SCORE, doc, lambda rows: rows.variances[1], rows=True)
    for variable in course_variables(smooth):
        if variable.name not in NOT_DRAWN:
            group = "" if variable.name in DRAWN else AVERAGES
            yield replace(variable, value=partial(_of_record, variable), group=group)
    doc = "Average prior variance of a course before it is scaled to 1."
    yield Variable("course_unit", ("factor",), doc, _units, group=AVERAGES)


def _units(sample: ChainGlobals) -> Float64[Array, " K"]:
    """Return the units of the courses of a draw; 1 where the fit opened none."""
    courses = sample.record.courses
    return np.ones(sample.n_factors) if courses is None or courses.units is None else courses.units


def _of_record(variable: Variable, sample: ChainGlobals) -> Array:
    """Return the value of a variable of the courses in a draw."""
    return np.asarray(
        variable.value(SimpleNamespace(courses=sample.record.courses, n_factors=sample.n_factors))
    )


def _theta(settings: Settings, sample: ChainGlobals) -> Float64[Array, "M K"]:
    """Return the share of loadings that are not 0, of each view."""
    ones, views = np.ones(sample.n_factors), sample.record.shared.views
    return np.stack([views[view.name].theta if view.spikes else ones for view in settings.views])


def _shared(sample: ChainGlobals) -> Shared:
    return sample.record.shared


def _by_group(settings: Settings, values: Float64[Array, "G K"] | None) -> Float64[Array, "*G K"]:
    """Return parameters of the prior of scores, by group where there are any."""
    assert values is not None
    return values if settings.groups else values[0]


def _view_table(settings: Settings, name: str) -> Iterator[Variable]:
    """Yield the variables of a view, on the data's own scale."""
    feature = f"feature_{name}"

    def loadings(g: ChainGlobals) -> Float64[Array, "D K"]:
        return g.record.weights[name].loadings

    def scale(g: ChainGlobals) -> Float64[Array, " D"]:
        return g.fixed[name].scale

    def phi(name_shown: str, g: ChainGlobals) -> Float64[Array, " D"]:
        values = g.record.weights[name].phi
        assert values is not None
        return np.asarray(settings.view(name).density.report_phi(values.T, scale(g))[name_shown])

    yield Variable(
        f"loadings_{name}",
        (feature, "factor"),
        "Loading in data units, w, 0 where s = 0.",
        lambda g: loadings(g) * scale(g)[:, None],
    )
    yield Variable(
        f"intercept_{name}",
        (feature,),
        "Intercept in data units, b.",
        lambda g: (
            g.record.weights[name].coefficients[:, 0] * scale(g)
            + settings.view(name).level(g.fixed[name].reference)
        ),
    )
    if settings.view(name).prior.takes_sets:
        yield Variable(
            f"scale_{name}", (feature,), "Data units in one unit of the model.", scale, group=AVERAGES
        )
    if settings.covariates is not None:
        yield Variable(
            f"coefficients_{name}",
            (feature, "covariate"),
            "Coefficient of a covariate in data units.",
            lambda g: g.record.weights[name].coefficients[:, 1:] * scale(g)[:, None],
        )
    if settings.view(name).spikes:
        doc = "Whether a loading is not 0, s."
        yield Variable(
            f"inclusion_{name}", (feature, "factor"), doc, lambda g: loadings(g) != 0.0, dtype="uint8"
        )
    for variable, doc in settings.view(name).density.phi_variables.items():
        yield Variable(f"{variable}_{name}", (feature,), doc, partial(phi, variable))
    if settings.view(name).is_gaussian:
        doc = "Noise precision in data units, tau."
        yield Variable(
            f"noise_precision_{name}",
            (feature,),
            doc,
            lambda g: g.record.weights[name].precision[:, 0] / scale(g) ** 2,
        )
