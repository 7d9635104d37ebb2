"""Variance that factors explain in each view, on the data scale, from sums of squares over blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
from jaxtyping import Float, Float64, Shaped

from factorflow.kernels import device
from factorflow.kernels.explained import explained_share, total_squares
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.likelihoods import Likelihood
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.entries import aux_of, values_of
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.kernels.arrays import clear
from factorflow.models.sparse_gfa.kernels.entry_rows import centred
from factorflow.models.sparse_gfa.kernels.gaps import lowest
from factorflow.models.sparse_gfa.messages import TILE
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.summaries import Explained
from factorflow.models.sparse_gfa.weights import expected_weights


@dataclass(frozen=True)
class Squares:
    """Sums of squares on the data scale: of the data by feature and group, and of residuals.

    The features are those of all views, Gaussian ones less their reference; ``residual``, (G, M, R), is about
    the prediction by the intercepts and, where there are covariates, by each term of these alone; by all
    covariates, by all factors beside these, and by each factor.
    """

    count: Float64[np.ndarray, "G D"]
    total: Float64[np.ndarray, "G D"]
    squares: Float64[np.ndarray, "G D"]
    residual: Float64[np.ndarray, "G M R"]


def squares_of_block(
    settings: Settings,
    block: Block,
    scores: Float64[Array, "B K"],
    design: Float64[Array, "B C"],
    globals_: Globals,
    log_sizes: Float64[Array, "B M"] | None = None,
) -> Squares:
    """Return the sums of squares of a block whose scores, given columns and size factors are known."""
    codes = settings.group_codes(block)
    size = _n_term_predictions(settings) + 2 + globals_.n_factors
    residual = np.zeros((settings.n_groups, len(settings.views), size))
    moments: list[list[Array]] = []
    for g in range(settings.n_groups):
        mine = slice(None) if settings.n_groups == 1 else codes == g
        parts = [np.zeros((3, 0))]
        for m, view in enumerate(settings.views):
            values = values_of(view, block)
            if settings.n_groups > 1:
                values = values[device.move_beside(mine, values)]
            aux = aux_of(view, block)
            aux = None if aux is None else device.on_host(aux)[mine]
            parts.append(_moments(settings, view.name, values, globals_, aux))
            rows = scores[mine], design[mine]
            level = None if log_sizes is None else log_sizes[mine, m]
            residual[g, m] = _residuals(settings, view.name, values, *rows, globals_, aux, level)
        moments.append(list(np.concatenate(parts, axis=1)))
    count, total, squares = (np.stack(column) for column in zip(*moments, strict=True))
    return Squares(count, total, squares, residual)


def explained_squares(settings: Settings, sums: Squares) -> Explained:
    """Return total and residual sums of squares by group and view.

    A factor explains what it takes from the residual of intercepts and covariates, and a term of covariates
    what it takes from that of the intercepts: nothing, if it has no loadings or coefficients.
    """
    total, n = _total_squares(settings, sums), _n_term_predictions(settings)
    none = sums.residual[:, :, n : n + 1]
    single = sums.residual[:, :, n + 2 :] + (total[:, :, None] - none)
    terms = sums.residual[:, :, 1 : n + 1] + (total[:, :, None] - sums.residual[:, :, :1]) if n else None
    return Explained(total, sums.residual[:, :, n + 1], single, terms)


def _n_term_predictions(settings: Settings) -> int:
    """Return the number of predictions without all covariates: by intercepts alone, and by each term."""
    return settings.n_terms + 1 if settings.n_terms else 0


def _moments(
    settings: Settings,
    name: str,
    values: Shaped[Array, "B D"],
    globals_: Globals,
    aux: Shaped[Array, "B D"] | None = None,
) -> Float64[Array, "3 D"]:
    """Return number, sum and sum of squares of the entries of each feature, Gaussian ones less the reference.

    Where a mean is far larger than its feature varies, squares about 0 tell nothing of the variance.
    """
    view, phi = settings.view(name), globals_.weights[name].phi.T
    place = view.level(globals_.fixed[name].reference)
    if view.is_scaled and not isinstance(values, SparseRows):
        return np.stack(gfa.column_moments(values, place))
    count, total, squares = gfa.column_moments(view.density.response(values, phi, aux))
    if view.is_scaled:  # zeros are where most of them lie
        return np.stack([count, total - count * place, squares + place * (count * place - 2.0 * total)])
    return np.stack([count, total, squares])


def _total_squares(settings: Settings, sums: Squares) -> Float64[Array, "G M"]:
    """Return sums of squares about the mean of each feature over all samples; NaN: nothing was observed."""
    by_feature = total_squares(sums.count, sums.total, sums.squares)
    cuts = np.cumsum([0] + [view.n_features for view in settings.views])[:-1]
    n_known = np.add.reduceat(~np.isnan(by_feature), cuts, axis=1, dtype=np.int64)
    return np.where(n_known > 0, np.add.reduceat(np.nan_to_num(by_feature), cuts, axis=1), np.nan)


def _residuals(
    settings: Settings,
    name: str,
    values: Shaped[Array, "B D"],
    scores: Float64[Array, "B K"],
    design: Float64[Array, "B C"],
    globals_: Globals,
    aux: Shaped[Array, "B D"] | None = None,
    size: Float64[Array, " B"] | None = None,
) -> Float64[Array, " R"]:
    """Return residual sums of squares about the predictions of `Squares`."""
    view, fixed, weights = settings.view(name), globals_.fixed[name], globals_.weights[name]
    loadings = expected_weights(weights)[0] * fixed.scale[:, None]
    coefficients = weights.coefficients * fixed.scale[:, None]
    coefficients[:, 0] += view.level(fixed.reference)
    if (
        settings.nonnegative and globals_.scores.mean is not None
    ):  # what a factor explains is what it varies by
        scores = scores - globals_.scores.mean
        coefficients[:, 0] += loadings @ globals_.scores.mean
    phi, rows_at_once = weights.phi.T, max(1, TILE // view.n_features)
    if isinstance(values, SparseRows):
        rows_at_once = max(1, len(values))
    numbers = range(-1, _n_term_predictions(settings) - 1)  # -1: of no column
    terms = [np.concatenate([[True], settings.term_of_column == t]) for t in numbers]
    out = np.zeros(len(terms) + 2 + globals_.n_factors)
    for begin in range(0, len(values), rows_at_once):
        rows = slice(begin, begin + rows_at_once)
        y, z, a = values[rows], scores[rows], design[rows]
        if view.is_gaussian:
            squares = _entry_residuals if isinstance(y, SparseRows) else _gaussian_residuals
            alone = [squares(y, z[:, :0], loadings[:, :0], a * t, coefficients)[0] for t in terms]
            residuals = squares(y, z, loadings, a, coefficients)
        else:
            arguments = view.density, y, phi, settings.dtype, None if aux is None else aux[rows]
            none, own = (z[:, :0], loadings[:, :0]), 0.0 if size is None else size[rows, None]
            alone = [_mean_residuals(*arguments, *none, (a * t) @ coefficients.T + own)[0] for t in terms]
            residuals = _mean_residuals(*arguments, z, loadings, a @ coefficients.T + own)
        out += np.concatenate([alone, residuals])
    return out


def _mean_residuals(
    density: Likelihood,
    values: Shaped[Array, "B D"],
    phi: Float64[Array, "P D"],
    dtype: np.dtype[np.floating],
    aux: Shaped[Array, "B D"] | None,
    scores: Float64[Array, "B K"],
    loadings: Float64[Array, "D K"],
    level: Float64[Array, "B D"],
) -> Float64[Array, " K+2"]:
    """Return sums of squares of y - E[y | x], x of ``level`` alone, with all factors, with each."""
    y, z, w, b, p = (device.on_host(a).astype(dtype) for a in (values, scores, loadings, level, phi))
    missing, y = ~(y >= lowest(values)), density.response(y, p, aux)

    def squares(x: Float[Array, "B D"]) -> float:
        residual = density.residual(y - density.expected_response(x, p, aux), aux)
        clear(residual, missing)
        return float(np.einsum("nd,nd->", residual, residual, dtype=np.float64))

    alone = (b + z[:, k, None] * w[:, k] for k in range(z.shape[1]))  # in turn: all are too many for a cache
    return np.array([squares(x) for x in chain((b, b + z @ w.T), alone)])


def _gaussian_residuals(
    values: Shaped[Array, "B D"],
    scores: Float64[Array, "B K"],
    loadings: Float64[Array, "D K"],
    design: Float64[Array, "B C"],
    coefficients: Float64[Array, "D C"],
) -> Float64[Array, " K+2"]:
    """Return what `_mean_residuals` does where E[y | x] is x, of single factors by matrix products."""
    intercept = coefficients[:, 0]
    residual = device.on_host(gfa.centred(values, intercept, np.ones(len(intercept)), np.float64))
    observed = device.on_host(values >= lowest(values)).astype(np.float64)
    if design.shape[1] > 1:
        residual = residual - observed * (design[:, 1:] @ coefficients[:, 1:].T)
    none = float(np.vdot(residual, residual))
    moved = (loadings**2 * (observed.T @ scores**2) - 2.0 * loadings * (residual.T @ scores)).sum(axis=0)
    left = residual - observed * (scores @ loadings.T)
    return np.concatenate([[none, np.vdot(left, left)], none + moved])


def _entry_residuals(
    values: SparseRows,
    scores: Float64[Array, "B K"],
    loadings: Float64[Array, "D K"],
    design: Float64[Array, "B C"],
    coefficients: Float64[Array, "D C"],
) -> Float64[Array, " K+2"]:
    """Return what `_gaussian_residuals` does, of rows by their entries."""
    rows = centred(values, coefficients[:, 0], np.ones(len(coefficients)), np.float64)
    rows = rows.subtract_observed(design[:, 1:], coefficients[:, 1:])
    none, left = rows.squares(), rows.subtract_observed(scores, loadings).squares()
    powers = rows.masks.columns @ (rows.masks.rows.T @ scores**2)
    moved = loadings**2 * powers - 2.0 * loadings * (rows.T @ scores)
    return np.concatenate([[none, left], none + moved.sum(axis=0)])


def explained_shares(
    settings: Settings, globals_: Globals
) -> tuple[Float64[Array, "G M K"], Float64[Array, "G M"]]:
    """Return the share of the variance of each view that each factor, and all, explain."""
    if globals_.closing is None:
        nothing = np.full((settings.n_groups, len(settings.views), globals_.n_factors), np.nan)
        return nothing, nothing[:, :, 0]
    explained = globals_.closing.explained
    alone = explained_share(explained.total[:, :, None], explained.single)
    return alone, explained_share(explained.total, explained.residual)


def terms_shares(settings: Settings, globals_: Globals) -> Float64[Array, "G M H1"]:
    """Return the share of the variance of each view that each term of covariates, and all, explain."""
    terms = None if globals_.closing is None else globals_.closing.explained.terms
    if globals_.closing is None or terms is None:
        return np.full((settings.n_groups, len(settings.views), settings.n_terms + 1), np.nan)
    return explained_share(globals_.closing.explained.total[:, :, None], terms)
