"""Results of sparse group factor analysis: the table of variables, and final scores of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.core.trees import replace
from factorflow.kernels.linalg import diagonal
from factorflow.models.contract import Array, Block, Step, Variable
from factorflow.models.sparse_gfa.learned_sizes import log_sizes_of, size_means
from factorflow.models.sparse_gfa.naming import own_evidence
from factorflow.models.sparse_gfa.projection import project_scores
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, expected_scores
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.results import course_variables
from factorflow.models.sparse_gfa.smooth.rows import courses_of_rows
from factorflow.models.sparse_gfa.state import Globals, Local, View
from factorflow.models.sparse_gfa.stored_scores import rotated_scores
from factorflow.models.sparse_gfa.summaries import Closing
from factorflow.models.sparse_gfa.variance_explained import (
    Squares,
    explained_shares,
    explained_squares,
    squares_of_block,
    terms_shares,
)
from factorflow.models.sparse_gfa.view_results import view_table
from factorflow.models.sparse_gfa.weights import expected_weights

SCORE = ("obs", "factor")


def variables(settings: Settings) -> tuple[Variable, ...]:
    """Return the table of variables: of the globals, of q(z) of a block, of each view."""
    table = [*_rows_table(settings), *_shared_table(settings)]
    if settings.smooth is not None:
        table += course_variables(settings.smooth)
    for view in settings.views:
        table += view_table(settings, view.name)
    return tuple(table)


@dataclass(frozen=True)
class Final:
    """What the variables of rows are computed from.

    Final q(z), size factors, covariates, noise groups, mean and variance of the courses.
    """

    q: Local
    size_factors: Float64[np.ndarray, "B M"]
    covariates: Float64[np.ndarray, "B J"]
    noise_group: Integer[np.ndarray, " B"]
    courses: tuple[Float64[np.ndarray, "B K"], Float64[np.ndarray, "B K"]] | None = None


def finish(
    settings: Settings, block: Block, local: Local | None, prepared: PreparedGlobals, step: Step
) -> Final:
    """Return the final q of the rows of a block."""
    before = local if step.projecting else rotated_scores(local, prepared.globals_)
    new = step.projecting
    projected = project_scores(settings, block, before, prepared, new=new, each=True, integrate=True)
    levels = log_sizes_of(settings, block, projected, prepared.globals_)
    sizes = np.exp(levels - size_means(settings, prepared.globals_))
    design, codes = settings.design(block, projected)[:, 1:], settings.group_codes(block)
    return Final(projected, sizes, design, codes, _courses(settings, block, prepared, new=step.projecting))


def _courses(
    settings: Settings, block: Block, prepared: PreparedGlobals, *, new: bool
) -> tuple[Float64[Array, "B K"], Float64[Array, "B K"]] | None:
    """Return mean and variance of the courses of the rows; 0 of factors without one, NaN where unknown."""
    if settings.smooth is None:
        return None
    courses = prepared.globals_.courses if new else prepared.courses(each=True)
    if courses is None:
        shape = block.n_rows, prepared.globals_.n_factors
        return np.zeros(shape), np.zeros(shape)
    return courses_of_rows(settings.smooth, block, courses, new=new)


def covariates_variable(value: Callable[[Any], Array]) -> Variable:
    """Return the variable of the covariates of rows."""
    doc = "Covariates as the model has them: centred, numbers by their standard deviation."
    return Variable("covariates", ("obs", "covariate"), doc, value, rows=True, of_data=True)


def _rows_table(settings: Settings) -> list[Variable]:
    """Return the variables with a row for each sample."""
    single = partial(Variable, rows=True)

    def spread(rows: Final) -> Float64[Array, "B K"]:
        mean, variance = expected_scores(rows.q)
        return np.broadcast_to(diagonal(variance, mean.shape[1]), mean.shape)

    doc = "Expected score of a sample on a factor, E[z]."
    table = [
        single("scores", SCORE, doc, lambda rows: expected_scores(rows.q)[0], positive=settings.nonnegative),
        single("scores_variance", SCORE, "Variance of a score, Var z.", spread),
    ]
    if settings.scores_spike:
        doc = "Probability that a score is not 0."
        table.append(single("scores_inclusion", SCORE, doc, lambda rows: rows.q.inclusion))
    if settings.sample_noise:
        doc = "Noise precision of a sample, rho."
        table.append(
            single("sample_precision", ("obs", "view"), doc, lambda f: f.q.noise_shape / f.q.noise_rate)
        )
    if settings.sized:
        doc = "Size factor of a sample in a view; 1 where the view has none."
        table.append(single("size_factors", ("obs", "view"), doc, lambda rows: rows.size_factors))
    if settings.learns_sizes:
        doc = "Variance of the logarithm of a learned size factor; 0 in views without."
        variable = "log_size_factors_variance"
        table.append(single(variable, ("obs", "view"), doc, lambda rows: rows.q.log_sizes_variance))
    if settings.covariates is not None:
        table.append(covariates_variable(lambda rows: rows.covariates))
        if settings.incomplete:
            doc = "Covariance of scores and covariates, packed, where these are not known; 0 where they are."
            own = "scores_covariance", ("obs", "score_pair"), doc, lambda rows: rows.q.scores_covariance
            table.append(single(*own, dtype="float32"))  # of every sample: the most of all variables
    if settings.smooth is not None:
        doc = "Course of a factor at the place of a sample, E f; NaN where the place is not known."
        table.append(single("smooth_scores", SCORE, doc, lambda rows: rows.courses[0]))
        table.append(single("smooth_scores_variance", SCORE, "Its variance.", lambda rows: rows.courses[1]))
    if settings.n_noise_groups > 1:
        doc = "Group whose noise precision holds."
        table.append(single("noise_group", ("obs",), doc, lambda rows: rows.noise_group))
    return table


def _by_group(settings: Settings, value: Callable[[Globals], Array]) -> Callable[[Globals], Array]:
    """Return a function of the globals without the first axis, of groups, where there are none."""
    return value if settings.groups else lambda g: value(g)[0]


def _shared_table(settings: Settings) -> list[Variable]:
    """Return the variables that all features share."""
    names = [view.name for view in settings.views]
    group: tuple[str, ...] = ("group",) if settings.groups else ()
    by_group = partial(_by_group, settings)

    def each(value: Callable[[View], Array | float]) -> Callable[[Globals], Array]:
        return lambda g: np.stack([np.asarray(value(g.views[name])) for name in names])

    table = [
        Variable(
            "alpha",
            ("view", "factor"),
            "Precision of the loadings that are not 0, on the model's scale.",
            each(lambda v: v.alpha),
        ),
        *_variance_table(settings),
        Variable(
            "intercept_mean",
            ("view",),
            "Mean of the intercepts of a view, m, on the model's scale.",
            each(lambda v: v.intercept_mean + v.size_mean),
        ),
        Variable(
            "intercept_precision",
            ("view",),
            "Precision of the intercepts about it, lambda.",
            each(lambda v: v.intercept_shape / v.intercept_rate),
        ),
    ]
    if settings.covariates is not None:
        doc = "Precision of the coefficients of a term, on the model's scale."
        table.append(
            Variable(
                "coefficient_precision",
                ("view", "term"),
                doc,
                each(lambda v: v.coefficient_shape / v.coefficient_rate),
            )
        )
        doc = "Regression of the scores on the covariates, by least squares."
        table.append(Variable("score_regression", ("covariate", "factor"), doc, _regression))
    if settings.counts:
        doc = "Components that random signs do not show, counted before the fit; -1: they were not."
        table.append(Variable("n_factors_counted", (), doc, _n_counted, dtype="int64"))
    if settings.deletes:
        doc = "Nats by which the bound is higher with each factor than without it; NaN: not known."
        table.append(Variable("worth", ("factor",), doc, _worth))
    if settings.n_starts > 1:
        table += _starts_table(settings)
    if any(view.spikes for view in settings.views):

        def theta(g: Globals) -> Float64[Array, "M K"]:
            shares = {name: v.theta_on / (v.theta_on + v.theta_off) for name, v in g.views.items()}
            ones = np.ones(g.n_factors)
            return np.stack([shares[view.name] if view.spikes else ones for view in settings.views])

        doc = "Share of loadings that are not 0."
        table.append(Variable("theta", ("view", "factor"), doc, theta))
    if settings.sets is not None:
        table += _sets_table(settings)
    if settings.scores_prior != "normal":
        doc, beta = (
            "Prior precision of scores, beta.",
            by_group(lambda g: g.scores.beta_shape / g.scores.beta_rate),
        )
        table.append(Variable("score_precision", (*group, "factor"), doc, beta))
    if settings.scores_spike:
        doc, psi = (
            "Share of scores that are not 0, psi.",
            by_group(lambda g: g.scores.psi_on / (g.scores.psi_on + g.scores.psi_off)),
        )
        table.append(Variable("score_theta", (*group, "factor"), doc, psi))
    return table


def _variance_table(settings: Settings) -> list[Variable]:
    """Return the shares of variance that factors and covariates explain."""
    group: tuple[str, ...] = ("group",) if settings.groups else ()
    by_group = partial(_by_group, settings)

    def squares(block: Block, rows: Mapping[str, Array], globals_: Globals) -> Squares:
        covariates = (
            [rows["covariates"]] if settings.covariates is not None else []
        )  # expected ones, if unknown
        design = np.concatenate([np.ones((block.n_rows, 1)), *covariates], axis=1)
        levels = None
        if settings.sized:
            levels = np.log(np.asarray(rows["size_factors"])) + size_means(settings, globals_)
        return squares_of_block(settings, block, rows["scores"], design, globals_, levels)

    def variable(name: str, dims: tuple[str, ...], doc: str, shares: Callable[[Globals], Array]) -> Variable:
        value = by_group(shares)

        def of_samples(globals_: Globals, sums: Squares) -> Array:
            return value(replace(globals_, closing=Closing(explained_squares(settings, sums))))

        return Variable(name, (*group, *dims), doc, value, sums=squares, of_sums=of_samples)

    doc = "Share of the variance of a view that a factor explains."
    by_factor = variable(
        "variance_explained", ("view", "factor"), doc, lambda g: explained_shares(settings, g)[0]
    )
    doc = "Share that all factors explain together."
    total = variable("variance_explained_total", ("view",), doc, lambda g: explained_shares(settings, g)[1])
    if settings.covariates is None:
        return [by_factor, total]
    doc = "Share of the variance of a view that each term of covariates explains alone."
    by_term = variable(
        "variance_explained_term", ("view", "term"), doc, lambda g: terms_shares(settings, g)[:, :, :-1]
    )
    doc = "Share that all covariates explain together."
    by_all = variable(
        "variance_explained_covariates", ("view",), doc, lambda g: terms_shares(settings, g)[:, :, -1]
    )
    return [by_factor, total, by_term, by_all]


def _sets_table(settings: Settings) -> list[Variable]:
    """Return the variables of feature sets."""

    def own(g: Globals) -> Array:
        return np.full(g.n_factors, -1) if g.factors.sets is None else g.factors.sets

    def inside(g: Globals) -> Float64[Array, "M K"]:
        counts = [g.views[view.name].counts for view in settings.views]
        ones = np.full(g.n_factors, np.nan)
        return np.stack(
            [ones if c is None else np.where(own(g) >= 0, c[0] / c.sum(axis=0), ones) for c in counts]
        )

    return [
        Variable(
            "set_of_factor",
            ("factor",),
            "Number of the feature set that a factor has; -1: none.",
            own,
            dtype="int64",
        ),
        Variable(
            "set_evidence",
            ("view", "factor"),
            "Nats by which the bound is higher with the set of a factor than without.",
            lambda g: own_evidence(settings, g),
        ),
        Variable(
            "set_theta",
            ("view", "factor"),
            "Share of loadings in the set of a factor that are not 0.",
            inside,
        ),
    ]


def _worth(globals_: Globals) -> Array:
    return np.full(globals_.n_factors, np.nan) if globals_.factors.worth is None else globals_.factors.worth


def _regression(globals_: Globals) -> Array:
    if globals_.closing is None or globals_.closing.regression is None:
        return np.full((globals_.n_given - 1, globals_.n_factors), np.nan)
    return globals_.closing.regression


def _n_counted(globals_: Globals) -> Array:
    return np.array(-1 if globals_.factors.n_counted is None else globals_.factors.n_counted)


def _start_loadings(settings: Settings, name: str, globals_: Globals) -> Float64[Array, "starts L D"]:
    """Return the loadings of every start in data units; NaN: it has fewer factors than were asked for."""
    out = np.full((len(globals_.starts), settings.n_factors, settings.view(name).n_features), np.nan)
    own = expected_weights(globals_.weights[name])[0] * globals_.fixed[name].scale[:, None]
    for number, start in enumerate(globals_.starts):
        loadings = own if start.kept else None if start.loadings is None else start.loadings[name]
        if loadings is not None:
            out[number, : loadings.shape[1]] = loadings.T
    return out


def _starts_table(settings: Settings) -> list[Variable]:
    """Return the variables of several starts."""

    def by_start(g: Globals) -> Float64[Array, "starts K"]:
        similarity = None if g.closing is None else g.closing.similarity
        return np.ones((len(g.starts), g.n_factors)) if similarity is None else similarity

    def stability(g: Globals) -> Float64[Array, " K"]:
        others = [
            similarity for start, similarity in zip(g.starts, by_start(g), strict=True) if not start.kept
        ]
        return np.mean(others, axis=0) if others else np.full(g.n_factors, np.nan)

    loadings = [
        Variable(
            f"start_loadings_{view.name}",
            ("start", "start_factor", f"feature_{view.name}"),
            "Loadings of each start; NaN: it has fewer factors.",
            partial(_start_loadings, settings, view.name),
            dtype="float32",
        )
        for view in settings.views
    ]
    return [
        *loadings,
        Variable(
            "start_objective",
            ("start",),
            "bound that each start reached",
            lambda g: np.array([start.objective for start in g.starts]),
        ),
        Variable(
            "start_stability",
            ("start", "factor"),
            "Largest correlation (absolute) of the scores of a factor with those of any factor of a start.",
            by_start,
        ),
        Variable(
            "stability", ("factor",), "Its mean over the starts that were not kept; NaN: none.", stability
        ),
    ]
