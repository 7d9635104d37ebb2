"""Results of sparse group factor analysis: the table of variables, and final scores of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

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
from factorflow.models.sparse_gfa.state import Globals, Local, Scores, View
from factorflow.models.sparse_gfa.stored_scores import rotated_scores
from factorflow.models.sparse_gfa.summaries import Closing
from factorflow.models.sparse_gfa.variables import variable
from factorflow.models.sparse_gfa.variance_explained import (
    Squares,
    explained_shares,
    explained_squares,
    squares_of_block,
    terms_shares,
)
from factorflow.models.sparse_gfa.view_results import view_table
from factorflow.models.sparse_gfa.weights import expected_weights


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


def _rows_table(settings: Settings) -> Iterator[Variable]:
    """Yield the variables with a row for each sample."""

    def spread(rows: Final) -> Float64[Array, "B K"]:
        mean, variance = expected_scores(rows.q)
        return np.broadcast_to(diagonal(variance, mean.shape[1]), mean.shape)

    yield variable("scores", lambda rows: expected_scores(rows.q)[0], positive=settings.nonnegative)
    yield variable("scores_variance", spread)
    if settings.scores_spike:
        yield variable("scores_inclusion", lambda rows: rows.q.inclusion)
    if settings.sample_noise:
        yield variable("sample_precision", lambda rows: rows.q.noise_shape / rows.q.noise_rate)
    if settings.sized:
        yield variable("size_factors", lambda rows: rows.size_factors)
    if settings.learns_sizes:
        yield variable("log_size_factors_variance", lambda rows: rows.q.log_sizes_variance)
    if settings.covariates is not None:
        yield variable("covariates", lambda rows: rows.covariates, of_data=True)
        if settings.incomplete:  # float32, since there are more of it of every sample than of all others
            yield variable("scores_covariance", lambda rows: rows.q.scores_covariance, dtype="float32")
    if settings.smooth is not None:
        yield variable("smooth_scores", lambda rows: rows.courses[0])
        yield variable("smooth_scores_variance", lambda rows: rows.courses[1])
    if settings.n_noise_groups > 1:
        yield variable("noise_group", lambda rows: rows.noise_group)


def _by_group(settings: Settings, value: Callable[[Globals], Array]) -> Callable[[Globals], Array]:
    """Return a function of the globals without the first axis, of groups, where there are none."""
    return value if settings.groups else lambda g: value(g)[0]


def _shared_table(settings: Settings) -> Iterator[Variable]:
    """Yield the variables that all features share."""
    names, grouped = [view.name for view in settings.views], bool(settings.groups)

    def each(value: Callable[[View], Array | float]) -> Callable[[Globals], Array]:
        return lambda g: np.stack([np.asarray(value(g.views[name])) for name in names])

    def by_group(name: str, value: Callable[[Scores], Array]) -> Variable:
        return variable(name, _by_group(settings, lambda g: value(g.scores)), grouped=grouped)

    yield variable("alpha", each(lambda v: v.alpha))
    yield from _variance_table(settings)
    yield variable("intercept_mean", each(lambda v: v.intercept_mean + v.size_mean))
    yield variable("intercept_precision", each(lambda v: v.intercept_shape / v.intercept_rate))
    if settings.covariates is not None:
        yield variable("coefficient_precision", each(lambda v: v.coefficient_shape / v.coefficient_rate))
        yield variable("score_regression", _regression)
    if settings.counts:
        yield variable("n_factors_counted", _n_counted, dtype="int64")
    if settings.deletes:
        yield variable("worth", _worth)
    if settings.n_starts > 1:
        yield from _starts_table(settings)
    if any(view.spikes for view in settings.views):

        def theta(g: Globals) -> Float64[Array, "M K"]:
            shares = {name: v.theta_on / (v.theta_on + v.theta_off) for name, v in g.views.items()}
            ones = np.ones(g.n_factors)
            return np.stack([shares[view.name] if view.spikes else ones for view in settings.views])

        yield variable("theta", theta)
    if settings.sets is not None:
        yield from _sets_table(settings)
    if settings.scores_prior != "normal":
        yield by_group("score_precision", lambda scores: scores.beta_shape / scores.beta_rate)
    if settings.scores_spike:
        yield by_group("score_theta", lambda scores: scores.psi_on / (scores.psi_on + scores.psi_off))


def _variance_table(settings: Settings) -> Iterator[Variable]:
    """Yield the shares of variance that factors and covariates explain."""

    def squares(block: Block, rows: Mapping[str, Array], globals_: Globals) -> Squares:
        covariates = (
            [rows["covariates"]] if settings.covariates is not None else []
        )  # expected ones, if unknown
        design = np.concatenate([np.ones((block.n_rows, 1)), *covariates], axis=1)
        levels = None
        if settings.sized:
            levels = np.log(np.asarray(rows["size_factors"])) + size_means(settings, globals_)
        return squares_of_block(settings, block, rows["scores"], design, globals_, levels)

    def share(name: str, shares: Callable[[Globals], Array]) -> Variable:
        value = _by_group(settings, shares)

        def of_samples(globals_: Globals, sums: Squares) -> Array:
            return value(replace(globals_, closing=Closing(explained_squares(settings, sums))))

        return variable(name, value, grouped=bool(settings.groups), sums=squares, of_sums=of_samples)

    yield share("variance_explained", lambda g: explained_shares(settings, g)[0])
    yield share("variance_explained_total", lambda g: explained_shares(settings, g)[1])
    if settings.covariates is not None:
        yield share("variance_explained_term", lambda g: terms_shares(settings, g)[:, :, :-1])
        yield share("variance_explained_covariates", lambda g: terms_shares(settings, g)[:, :, -1])


def _sets_table(settings: Settings) -> Iterator[Variable]:
    """Yield the variables of feature sets."""

    def own(g: Globals) -> Array:
        return np.full(g.n_factors, -1) if g.factors.sets is None else g.factors.sets

    def inside(g: Globals) -> Float64[Array, "M K"]:
        counts = [g.views[view.name].counts for view in settings.views]
        ones = np.full(g.n_factors, np.nan)
        return np.stack(
            [ones if c is None else np.where(own(g) >= 0, c[0] / c.sum(axis=0), ones) for c in counts]
        )

    yield variable("set_of_factor", own, dtype="int64")
    yield variable("set_evidence", lambda g: own_evidence(settings, g))
    yield variable("set_theta", inside)


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


def _starts_table(settings: Settings) -> Iterator[Variable]:
    """Yield the variables of several starts."""

    def by_start(g: Globals) -> Float64[Array, "starts K"]:
        similarity = None if g.closing is None else g.closing.similarity
        return np.ones((len(g.starts), g.n_factors)) if similarity is None else similarity

    def stability(g: Globals) -> Float64[Array, " K"]:
        others = [
            similarity for start, similarity in zip(g.starts, by_start(g), strict=True) if not start.kept
        ]
        return np.mean(others, axis=0) if others else np.full(g.n_factors, np.nan)

    for view in settings.views:
        loadings = partial(_start_loadings, settings, view.name)
        yield variable("start_loadings", loadings, view=view.name, dtype="float32")
    yield variable("start_objective", lambda g: np.array([start.objective for start in g.starts]))
    yield variable("start_stability", by_start)
    yield variable("stability", stability)
