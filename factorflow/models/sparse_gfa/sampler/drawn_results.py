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
from factorflow.models.sparse_gfa.sampler.gibbs_state import ChainGlobals, DrawnView, Shared
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.results import course_variables
from factorflow.models.sparse_gfa.smooth.rows import SmoothSettings
from factorflow.models.sparse_gfa.variables import variable
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
    table = [*_rows_table(settings), *_shared_table(settings)]
    if settings.smooth is not None:
        table += _courses_table(settings.smooth)
    for view in settings.views:
        table += _view_table(settings, view.name)
    return tuple(table)


def _rows_table(settings: Settings) -> Iterator[Variable]:
    """Yield the variables with a row for each sample."""
    single = partial(variable, dtype="float32")
    doc = "Score of a sample on a factor, z: mean over draws."
    yield single("scores", lambda f: f.means[0], doc=doc, positive=settings.nonnegative)
    yield single("scores_variance", lambda f: f.variances[0], doc="Variance of a score over draws.")
    yield single("scores_draws", lambda local: local.scores(settings), draws=True)
    if settings.sized:
        yield variable("size_factors", lambda f: np.exp(f.means[2]), of_data=True)
    if settings.learns_sizes:
        yield single("log_size_factors", lambda local: local.log_sizes, draws=True)
        yield single("log_size_factors_variance", lambda f: f.variances[2])
    if settings.covariates is not None:
        yield variable("covariates", lambda rows: rows.covariates, of_data=True)
        if settings.incomplete:
            yield single("covariates_draws", lambda local: local.covariates, draws=True)
    if settings.scores_spike:
        yield single("scores_inclusion", lambda f: f.means[1])
    if settings.smooth is not None:
        doc = "Course of a factor at the place of a sample, f: mean over draws."
        yield variable("smooth_scores", lambda f: f.means[1], doc=doc)
        yield variable("smooth_scores_variance", lambda f: f.variances[1], doc="Variance of it over draws.")


def _shared_table(settings: Settings) -> Iterator[Variable]:
    """Yield the variables that all features share."""
    names = [view.name for view in settings.views]

    def each(value: Callable[[DrawnView], object]) -> Callable[[ChainGlobals], Array]:
        return lambda g: np.stack([np.asarray(value(g.record.shared.views[name])) for name in names])

    def by_group(name: str, value: Callable[[Shared], Array | None]) -> Variable:
        def of_record(g: ChainGlobals) -> Float64[Array, "*G K"]:
            values = value(g.record.shared)
            assert values is not None
            return values if settings.groups else values[0]

        return variable(name, of_record, grouped=bool(settings.groups))

    yield variable("alpha", each(lambda v: v.alpha))
    yield variable("intercept_mean", each(lambda v: v.intercept_mean))
    yield variable("intercept_precision", each(lambda v: v.intercept_precision))
    if settings.covariates is not None:
        yield variable("coefficient_precision", each(lambda v: v.term_precision))
        yield variable("score_regression", lambda g: g.record.regression)
    if any(view.spikes for view in settings.views):
        yield variable("theta", partial(_theta, settings))
    if settings.sets is not None:
        yield from _sets_table(settings)
    if settings.scores_prior != "normal":
        yield by_group("score_precision", lambda shared: shared.beta)
    if settings.scores_spike:
        yield by_group("score_theta", lambda shared: shared.psi)


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

    yield variable("set_of_factor", numbers, dtype="int64", group=AVERAGES)
    yield variable("set_evidence", evidence, group=AVERAGES)
    yield variable("set_theta", inside)


def _courses_table(smooth: SmoothSettings) -> Iterator[Variable]:
    """Yield the variables of the courses: of draws, and the parameters that are those of the fit."""
    for fitted in course_variables(smooth):
        if fitted.name not in NOT_DRAWN:
            group = "" if fitted.name in DRAWN else AVERAGES
            yield replace(fitted, value=partial(_of_record, fitted), group=group)
    yield variable("course_unit", _units, group=AVERAGES)


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


def _view_table(settings: Settings, name: str) -> Iterator[Variable]:
    """Yield the variables of a view, on the data's own scale."""
    of_view = partial(variable, view=name)

    def loadings(g: ChainGlobals) -> Float64[Array, "D K"]:
        return g.record.weights[name].loadings

    def scale(g: ChainGlobals) -> Float64[Array, " D"]:
        return g.fixed[name].scale

    def phi(name_shown: str, g: ChainGlobals) -> Float64[Array, " D"]:
        values = g.record.weights[name].phi
        assert values is not None
        return np.asarray(settings.view(name).density.report_phi(values.T, scale(g))[name_shown])

    yield of_view(
        "loadings", lambda g: loadings(g) * scale(g)[:, None], doc="Loading in data units, w, 0 where s = 0."
    )
    yield of_view(
        "intercept",
        lambda g: (
            g.record.weights[name].coefficients[:, 0] * scale(g)
            + settings.view(name).level(g.fixed[name].reference)
        ),
        doc="Intercept in data units, b.",
    )
    if settings.view(name).prior.takes_sets:
        yield of_view("scale", scale, group=AVERAGES)
    if settings.covariates is not None:
        yield of_view(
            "coefficients", lambda g: g.record.weights[name].coefficients[:, 1:] * scale(g)[:, None]
        )
    if settings.view(name).spikes:
        yield of_view(
            "inclusion", lambda g: loadings(g) != 0.0, dtype="uint8", doc="Whether a loading is not 0, s."
        )
    for parameter, doc in settings.view(name).density.phi_variables.items():
        yield Variable(f"{parameter}_{name}", (f"feature_{name}",), doc, partial(phi, parameter))
    if settings.view(name).is_gaussian:
        doc = "Noise precision in data units, tau."
        yield of_view(
            "noise_precision", lambda g: g.record.weights[name].precision[:, 0] / scale(g) ** 2, doc=doc
        )
