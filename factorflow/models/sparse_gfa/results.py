"""What comes out of sparse group factor analysis: closing pass, record, scores of samples, predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Integer, Shaped

from factorflow.kernels import device
from factorflow.kernels.explained import explained_share, total_squares
from factorflow.kernels.linalg import diagonal, pack
from factorflow.likelihoods import Likelihood
from factorflow.models.contract import Array, Block, Info, Step, Sweep, Variable
from factorflow.models.sparse_gfa.e_step import rotated_scores
from factorflow.models.sparse_gfa.global_step import change_basis, select_factors
from factorflow.models.sparse_gfa.intervals import Spread, corrected, corrected_table
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.kernels.gaps import lowest
from factorflow.models.sparse_gfa.projection import project_scores
from factorflow.models.sparse_gfa.pseudo_data import TILE, PreparedGlobals, expected_scores
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start.restarts import other_starts, start_similarity
from factorflow.models.sparse_gfa.state import Globals, Local, View, Weights, expected_weights
from factorflow.models.sparse_gfa.summaries import Corrected, Explained
from factorflow.trees import replace

__all__ = ["ClosingSweep", "finish", "variables"]

SCORE = ("obs", "factor")

NEW_SAMPLES = 0.5
"""Share of the way that scores of new samples move in each pass, where only the curvature at q(x) guides."""


@dataclass(frozen=True)
class Squares:
    """Sums of squares on the data scale: of the data by feature and group, and of residuals.

    The features are those of all views, Gaussian ones less their reference; ``residual``, (G, M, 2 + K), is
    about the prediction by all factors, by each alone, and by none.
    """

    count: Float64[np.ndarray, "G D"]
    total: Float64[np.ndarray, "G D"]
    squares: Float64[np.ndarray, "G D"]
    residual: Float64[np.ndarray, "G M K2"]


@dataclass(frozen=True)
class ClosingStats:
    """What the blocks add up in the last pass.

    ``alike``, after several starts, of products of the scores: see `start_similarity`. ``moments`` and
    ``covariance``: see `intervals.Spread`.
    """

    squares: Squares
    moments: Float64[np.ndarray, " Q"]
    covariance: Float64[np.ndarray, " P"]
    alike: Float64[np.ndarray, "L L"] | None = None


@dataclass(frozen=True)
class ClosingSweep(Sweep[Globals, Local, ClosingStats]):
    """Last pass: variance explained on the data scale, then factors in order and signs fixed.

    Factors are ordered by the share of the variance they explain, summed over views. The sign of each is
    such that its largest loading in absolute value, on the scale of the model, over all views is positive.
    After a warm start order and signs are those of the earlier fit.
    """

    settings: Settings
    warm: bool = False
    name: ClassVar[str] = "closing"

    def prepare(self, globals_: Globals) -> tuple[PreparedGlobals, ...]:
        """Return the globals with tables that all blocks read, and those of other starts."""
        return tuple(PreparedGlobals(self.settings, g) for g in (globals_, *other_starts(globals_)))

    def map(
        self, block: Block, local: Local | None, givens: tuple[PreparedGlobals, ...], step: Step
    ) -> tuple[Local | None, ClosingStats]:
        """Add up residual sums of squares of the block."""
        given, *others = givens
        settings, globals_ = self.settings, given.globals_
        new = project_scores(settings, block, rotated_scores(local, globals_), given)
        scores, spread = expected_scores(new)
        alike = None
        if others:
            found = [expected_scores(project_scores(settings, block, None, other))[0] for other in others]
            together = np.column_stack([scores, *found, np.ones(len(scores))])
            alike = together.T @ together
        squares = _squares(settings, block, scores, globals_)
        stats = ClosingStats(squares, *_products(scores, spread), alike)
        return (new if settings.stateful else None), stats

    def update(self, globals_: Globals, stats: ClosingStats, step: Step) -> tuple[Globals, Info]:
        """Put the factors in order and fix their signs."""
        settings = self.settings
        explained = _explained_squares(settings, stats.squares)
        total, single = explained.total, explained.single
        share = explained_share(np.nansum(total, axis=0)[:, None], np.nansum(single, axis=0))
        spread = Spread(stats.moments, stats.covariance, float(settings.n_rows), globals_.n_factors)
        found = corrected(settings, globals_, spread)
        order = np.arange(share.shape[1]) if self.warm else np.argsort(-share.sum(axis=0), kind="stable")
        ordered = select_factors(replace(globals_, transform=None), order)
        sign = np.ones(len(order)) if self.warm else _signs(settings, ordered)
        turned = change_basis(settings, ordered, np.diag(sign), np.diag(sign))
        turned = replace(turned, step_length=NEW_SAMPLES) if settings.tangent else turned
        explained = replace(explained, single=single[:, :, order])
        if settings.n_starts > 1:
            alike = start_similarity(globals_, stats.alike)[:, order]
            starts = tuple(replace(start, globals_=None) for start in globals_.starts)
            turned = replace(turned, likeness=alike, starts=starts)
        found = {
            name: Corrected(one.mean[:, order] * sign, one.variance[:, order]) for name, one in found.items()
        }
        return replace(turned, explained=explained, corrected=found, regained=False), {}


def _products(
    mean: Float64[Array, "B K"], spread: Float64[Array, "#B V"]
) -> tuple[Float64[Array, " Q"], Float64[Array, " P"]]:
    """Return sum_n E[(z, 1)(z, 1)'] and sum_n Cov z, packed."""
    n_rows, k = mean.shape
    ones, zeros = np.ones(n_rows), np.zeros(n_rows)
    moments = gfa.sum_pairs(mean, spread, ones, zeros, ones)
    covariance = spread.sum(axis=0) if len(spread) == n_rows else float(n_rows) * spread[0]
    return moments, pack(np.diag(covariance)) if spread.shape[1] == k else covariance


def _squares(settings: Settings, block: Block, scores: Float64[Array, "B K"], globals_: Globals) -> Squares:
    """Return the sums of squares of a block whose scores are known."""
    codes = settings.group_codes(block)
    residual = np.zeros((settings.n_groups, len(settings.views), 2 + globals_.n_factors))
    moments: list[list[Array]] = []
    for g in range(settings.n_groups):
        mine = slice(None) if settings.n_groups == 1 else codes == g
        parts = [np.zeros((3, 0))]
        for m, view in enumerate(settings.views):
            values = block.data[view.name]
            if settings.n_groups > 1:
                values = values[device.beside(mine, values)]
            parts.append(_moments(settings, view.name, values, globals_))
            residual[g, m] = _residuals(settings, view.name, values, scores[mine], globals_)
        moments.append(list(np.concatenate(parts, axis=1)))
    count, total, squares = (np.stack(column) for column in zip(*moments, strict=True))
    return Squares(count, total, squares, residual)


def _explained_squares(settings: Settings, sums: Squares) -> Explained:
    """Return total and residual sums of squares by group and view.

    A factor explains what it takes from the residual of the intercepts: nothing, if it has no loadings.
    """
    total = _total_squares(settings, sums)
    single = sums.residual[:, :, 1:-1] + (total[:, :, None] - sums.residual[:, :, -1:])
    return Explained(total, sums.residual[:, :, 0], single)


def _moments(
    settings: Settings, name: str, values: Shaped[Array, "B D"], globals_: Globals
) -> Float64[Array, "3 D"]:
    """Return number, sum and sum of squares of the entries of each feature, Gaussian ones less the reference.

    Where a mean is far larger than its feature varies, squares about 0 tell nothing of the variance.
    """
    count, total, squares = gfa.column_moments(values)
    if settings.view(name).is_scaled:
        place = settings.view(name).level(globals_.fixed[name].reference)
        about = gfa.centred(values, place, np.ones(len(count)), np.float64)
        total, squares = (device.on_host(part.sum(axis=0)) for part in (about, about * about))
    return np.stack([count, total, squares])


def _total_squares(settings: Settings, sums: Squares) -> Float64[Array, "G M"]:
    """Return sums of squares about the mean of each feature over all samples; NaN: nothing was observed."""
    by_feature = total_squares(sums.count, sums.total, sums.squares)
    cuts = np.cumsum([0] + [view.n_features for view in settings.views])[:-1]
    known = np.add.reduceat(~np.isnan(by_feature), cuts, axis=1, dtype=np.int64)
    return np.where(known > 0, np.add.reduceat(np.nan_to_num(by_feature), cuts, axis=1), np.nan)


def _signs(settings: Settings, globals_: Globals) -> Float64[Array, " K"]:
    stacked = np.concatenate([expected_weights(globals_.weights[v.name])[0] for v in settings.views])
    if not stacked.shape[1]:
        return np.ones(0)
    largest = stacked[np.abs(stacked).argmax(axis=0), np.arange(stacked.shape[1])]
    return np.where(largest < 0, -1.0, 1.0)


def _residuals(
    settings: Settings,
    name: str,
    values: Shaped[Array, "B D"],
    scores: Float64[Array, "B K"],
    globals_: Globals,
) -> Float64[Array, " K+2"]:
    """Return residual sums of squares about predictions by all factors, by each alone, by none."""
    view, fixed, weights = settings.view(name), globals_.fixed[name], globals_.weights[name]
    loadings = expected_weights(weights)[0] * fixed.scale[:, None]
    intercept = weights.intercept * fixed.scale + view.level(fixed.reference)
    phi, rows_at_once = weights.phi.T, max(1, TILE // view.n_features)
    out = np.zeros(2 + globals_.n_factors)
    for begin in range(0, len(values), rows_at_once):
        rows = slice(begin, begin + rows_at_once)
        y, z = values[rows], scores[rows]
        if view.is_gaussian:
            out += _gaussian_residuals(y, z, loadings, intercept)
        else:
            out += _mean_residuals(view.density, y, z, loadings, intercept, phi, settings.dtype)
    return out


def _mean_residuals(
    density: Likelihood,
    values: Shaped[Array, "B D"],
    scores: Float64[Array, "B K"],
    loadings: Float64[Array, "D K"],
    intercept: Float64[Array, " D"],
    phi: Float64[Array, "P D"],
    dtype: np.dtype[np.floating],
) -> Float64[Array, " K+2"]:
    """Return sums of squares of y - E[y | x]."""
    y, z, w, b, p = (device.on_host(a).astype(dtype) for a in (values, scores, loadings, intercept, phi))
    seen, alone = y >= lowest(values), z.T[:, :, None] * w.T[:, None, :]
    x = np.concatenate([(z @ w.T)[None], alone, np.zeros((1, *y.shape), dtype)])
    squares = [(y - density.moments(one + b, p)[0]) ** 2 for one in x]
    return np.array([s.sum(where=seen, dtype=np.float64) for s in squares])


def _gaussian_residuals(
    values: Shaped[Array, "B D"],
    scores: Float64[Array, "B K"],
    loadings: Float64[Array, "D K"],
    intercept: Float64[Array, " D"],
) -> Float64[Array, " K+2"]:
    """Return what `_mean_residuals` does where E[y | x] is x, of single factors by matrix products."""
    residual = device.on_host(gfa.centred(values, intercept, np.ones(len(intercept)), np.float64))
    seen = device.on_host(values >= lowest(values)).astype(np.float64)
    none = float(np.vdot(residual, residual))
    moved = (loadings**2 * (seen.T @ scores**2) - 2.0 * loadings * (residual.T @ scores)).sum(axis=0)
    left = residual - seen * (scores @ loadings.T)
    return np.concatenate([[np.vdot(left, left)], none + moved, [none]])


def variables(settings: Settings) -> tuple[Variable, ...]:
    """Return the table of variables: of the globals, of q(z) of a block, of each view."""
    table = [*_rows_table(settings), *_shared_table(settings)]
    for view in settings.views:
        table += _view_table(settings, view.name)
    return tuple(table)


@dataclass(frozen=True)
class Final:
    """What the variables of the rows of a block are computed from: its final q(z), and noise groups."""

    q: Local
    noise_group: Integer[np.ndarray, " B"]


def finish(
    settings: Settings, block: Block, local: Local | None, given: PreparedGlobals, step: Step
) -> Final:
    """Return what is known of the rows of a block in the end."""
    before = local if step.projecting else rotated_scores(local, given.globals_)
    return Final(project_scores(settings, block, before, given), settings.group_codes(block))


def _rows_table(settings: Settings) -> list[Variable]:
    """Return the variables with a row for each sample."""
    single = partial(Variable, rows=True)

    def spread(found: Final) -> Float64[Array, "B K"]:
        mean, variance = expected_scores(found.q)
        return np.broadcast_to(diagonal(variance, mean.shape[1]), mean.shape)

    doc = "Expected score of a sample on a factor, E[z]."
    table = [
        single("scores", SCORE, doc, lambda found: expected_scores(found.q)[0]),
        single("scores_variance", SCORE, "Variance of a score, Var z.", spread),
    ]
    if settings.scores_spike:
        doc = "Probability that a score is not 0."
        table.append(single("scores_inclusion", SCORE, doc, lambda found: found.q.inclusion))
    if settings.sample_noise:
        doc = "Noise precision of a sample, rho."
        table.append(
            single("sample_precision", ("obs", "view"), doc, lambda f: f.q.noise_shape / f.q.noise_rate)
        )
    if settings.n_noise_groups > 1:
        doc = "Group whose noise precision holds."
        table.append(single("noise_group", ("obs",), doc, lambda found: found.noise_group))
    return table


def _shared_table(settings: Settings) -> list[Variable]:
    """Return the variables that all features share."""
    names = [view.name for view in settings.views]
    group: tuple[str, ...] = ("group",) if settings.groups else ()

    def each(value: Callable[[View], Array | float]) -> Callable[[Globals], Array]:
        return lambda g: np.stack([np.asarray(value(g.views[name])) for name in names])

    def by_group(value: Callable[[Globals], Array]) -> Callable[[Globals], Array]:
        return value if group else lambda g: value(g)[0]

    def squares(block: Block, rows: Mapping[str, Array], globals_: Globals) -> Squares:
        return _squares(settings, block, rows["scores"], globals_)

    def of_samples(which: int) -> Callable[[Globals, Squares], Array]:
        def shares(globals_: Globals, sums: Squares) -> Array:
            found = replace(globals_, explained=_explained_squares(settings, sums))
            return by_group(lambda g: _explained(settings, g)[which])(found)

        return shares

    table = [
        Variable(
            "alpha",
            ("view", "factor"),
            "Precision of the loadings that are not 0, on the model's scale.",
            each(lambda v: v.alpha),
        ),
        Variable(
            "variance_explained",
            (*group, "view", "factor"),
            "Share of the variance of a view that a factor explains.",
            by_group(lambda g: _explained(settings, g)[0]),
            sums=squares,
            of_sums=of_samples(0),
        ),
        Variable(
            "variance_explained_total",
            (*group, "view"),
            "Share that all factors explain together.",
            by_group(lambda g: _explained(settings, g)[1]),
            sums=squares,
            of_sums=of_samples(1),
        ),
        Variable(
            "intercept_mean",
            ("view",),
            "Mean of the intercepts of a view, m, on the model's scale.",
            each(lambda v: v.intercept_mean),
        ),
        Variable(
            "intercept_precision",
            ("view",),
            "Precision of the intercepts about it, lambda.",
            each(lambda v: v.intercept_shape / v.intercept_rate),
        ),
    ]
    if settings.counts:
        doc = "Components that random signs do not show, counted before the fit; -1: they were not."
        table.append(Variable("n_factors_counted", (), doc, _n_counted, dtype="int64"))
    if settings.deletes:
        doc = "Nats by which the bound is higher with each factor than without it; NaN: not known."
        table.append(Variable("worth", ("factor",), doc, _worth))
    if settings.n_starts > 1:
        table += _starts_table()
    if any(view.spikes for view in settings.views):

        def theta(g: Globals) -> Float64[Array, "M K"]:
            shares = {name: v.theta_on / (v.theta_on + v.theta_off) for name, v in g.views.items()}
            ones = np.ones(g.n_factors)
            return np.stack([shares[view.name] if view.spikes else ones for view in settings.views])

        doc = "Share of loadings that are not 0."
        table.append(Variable("theta", ("view", "factor"), doc, theta))
    if settings.scores_prior != "normal":
        doc, beta = "Prior precision of scores, beta.", by_group(lambda g: g.beta_shape / g.beta_rate)
        table.append(Variable("score_precision", (*group, "factor"), doc, beta))
    if settings.scores_spike:
        doc, psi = (
            "Share of scores that are not 0, psi.",
            by_group(lambda g: g.psi_on / (g.psi_on + g.psi_off)),
        )
        table.append(Variable("score_theta", (*group, "factor"), doc, psi))
    return table


def _worth(globals_: Globals) -> Array:
    return np.full(globals_.n_factors, np.nan) if globals_.worth is None else globals_.worth


def _n_counted(globals_: Globals) -> Array:
    return np.array(-1 if globals_.n_counted is None else globals_.n_counted)


def _starts_table() -> list[Variable]:
    """Return the variables of several starts."""

    def by_start(g: Globals) -> Float64[Array, "starts K"]:
        return np.ones((len(g.starts), g.n_factors)) if g.likeness is None else g.likeness

    def stability(g: Globals) -> Float64[Array, " K"]:
        others = [found for start, found in zip(g.starts, by_start(g), strict=True) if not start.kept]
        return np.mean(others, axis=0) if others else np.full(g.n_factors, np.nan)

    return [
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


def _view_table(settings: Settings, name: str) -> list[Variable]:
    """Return the variables of a view, on the data's own scale."""
    feature = f"feature_{name}"

    def scale(g: Globals) -> Float64[Array, " D"]:
        return g.fixed[name].scale

    def weights(g: Globals) -> Weights:
        return g.weights[name]

    def loadings(g: Globals) -> Float64[Array, "D K"]:
        return expected_weights(weights(g))[0] * scale(g)[:, None]

    def spread(g: Globals) -> Float64[Array, "D K"]:
        return diagonal(expected_weights(weights(g))[1], g.n_factors) * scale(g)[:, None] ** 2

    def inclusion(g: Globals) -> Float64[Array, "D K"]:
        gamma = weights(g).inclusion
        return np.ones(weights(g).mean.shape) if gamma is None else gamma

    def precision(g: Globals) -> Float64[Array, " D"] | Float64[Array, "T D"]:
        found = settings.precision(name, weights(g)) / scale(g)[:, None] ** 2
        return found[:, 0] if found.shape[1] == 1 else found.T.copy()

    expected = "Expected loading in data units, E[w]."
    if settings.view(name).bounded:
        expected = "Expected loading in data units, E[w]: made too small by the bound (option bound)."

    def phi(shown: str, g: Globals) -> Float64[Array, " D"]:
        return np.asarray(settings.view(name).density.report_phi(weights(g).phi.T, scale(g))[shown])

    def degrees(g: Globals) -> Float64[Array, " D"] | Float64[Array, "T D"]:
        shape = weights(g).noise_shape
        assert shape is not None
        return 2.0 * (shape[:, 0] if shape.shape[1] == 1 else shape.T)

    table = [
        Variable(f"loadings_{name}", (feature, "factor"), expected, loadings),
        Variable(f"loadings_variance_{name}", (feature, "factor"), "Variance of a loading, Var w.", spread),
        *corrected_table(name, (feature, "factor")),
        Variable(
            f"intercept_{name}",
            (feature,),
            "Intercept in data units, b (with the mean subtracted first).",
            lambda g: weights(g).intercept * scale(g) + settings.view(name).level(g.fixed[name].reference),
        ),
        Variable(
            f"intercept_variance_{name}",
            (feature,),
            "Variance of the intercept, v_b.",
            lambda g: weights(g).intercept_variance * scale(g) ** 2,
        ),
        Variable(f"scale_{name}", (feature,), "Data units in one unit of the model.", scale),
    ]
    if settings.view(name).spikes:
        doc = "Probability that a loading is not 0."
        table.append(Variable(f"inclusion_{name}", (feature, "factor"), doc, inclusion))
    for shown, doc in settings.view(name).density.phi_variables.items():
        table.append(Variable(f"{shown}_{name}", (feature,), doc, partial(phi, shown)))
    if settings.view(name).is_gaussian and settings.feature_noise:
        dims = ("group", feature) if settings.n_noise_groups > 1 else (feature,)
        doc = "Noise precision in data units, E[tau]."
        table.append(Variable(f"noise_precision_{name}", dims, doc, precision))
        doc = "Degrees of freedom of the noise variance, 2 a of q(tau) = Ga(a, b)."
        table.append(Variable(f"noise_degrees_{name}", dims, doc, degrees))
    return table


def _explained(
    settings: Settings, globals_: Globals
) -> tuple[Float64[Array, "G M K"], Float64[Array, "G M"]]:
    """Return the share of the variance of each view that each factor, and all, explain."""
    if globals_.explained is None:
        nothing = np.full((settings.n_groups, len(settings.views), globals_.n_factors), np.nan)
        return nothing, nothing[:, :, 0]
    explained = globals_.explained
    alone = explained_share(explained.total[:, :, None], explained.single)
    return alone, explained_share(explained.total, explained.residual)
