"""Variance that factors explain in each view, on the data scale, from sums of squares over blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Shaped

from factorflow.kernels import device
from factorflow.kernels.explained import explained_share, total_squares
from factorflow.likelihoods import Likelihood
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.kernels.gaps import lowest
from factorflow.models.sparse_gfa.pseudo_data import TILE, aux_of
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, expected_weights
from factorflow.models.sparse_gfa.summaries import Explained

__all__ = ["Squares", "explained_shares", "explained_squares", "squares_of_block"]


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


def squares_of_block(
    settings: Settings, block: Block, scores: Float64[Array, "B K"], globals_: Globals
) -> Squares:
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
                values = values[device.move_beside(mine, values)]
            parts.append(_moments(settings, view.name, values, globals_))
            aux = aux_of(view, block)
            aux = None if aux is None else device.on_host(aux)[mine]
            residual[g, m] = _residuals(settings, view.name, values, scores[mine], globals_, aux)
        moments.append(list(np.concatenate(parts, axis=1)))
    count, total, squares = (np.stack(column) for column in zip(*moments, strict=True))
    return Squares(count, total, squares, residual)


def explained_squares(settings: Settings, sums: Squares) -> Explained:
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


def _residuals(
    settings: Settings,
    name: str,
    values: Shaped[Array, "B D"],
    scores: Float64[Array, "B K"],
    globals_: Globals,
    aux: Shaped[Array, "B D"] | None = None,
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
            a = None if aux is None else aux[rows]
            out += _mean_residuals(view.density, y, z, loadings, intercept, phi, settings.dtype, a)
    return out


def _mean_residuals(
    density: Likelihood,
    values: Shaped[Array, "B D"],
    scores: Float64[Array, "B K"],
    loadings: Float64[Array, "D K"],
    intercept: Float64[Array, " D"],
    phi: Float64[Array, "P D"],
    dtype: np.dtype[np.floating],
    aux: Shaped[Array, "B D"] | None,
) -> Float64[Array, " K+2"]:
    """Return sums of squares of y - E[y | x]."""
    y, z, w, b, p = (device.on_host(a).astype(dtype) for a in (values, scores, loadings, intercept, phi))
    seen, alone = y >= lowest(values), z.T[:, :, None] * w.T[:, None, :]
    x = np.concatenate([(z @ w.T)[None], alone, np.zeros((1, *y.shape), dtype)])
    squares = [(y - density.moments(one + b, p, aux)[0]) ** 2 for one in x]
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


def explained_shares(
    settings: Settings, globals_: Globals
) -> tuple[Float64[Array, "G M K"], Float64[Array, "G M"]]:
    """Return the share of the variance of each view that each factor, and all, explain."""
    if globals_.explained is None:
        nothing = np.full((settings.n_groups, len(settings.views), globals_.n_factors), np.nan)
        return nothing, nothing[:, :, 0]
    explained = globals_.explained
    alone = explained_share(explained.total[:, :, None], explained.single)
    return alone, explained_share(explained.total, explained.residual)
