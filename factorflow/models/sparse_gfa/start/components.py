"""Start of a run of sparse group factor analysis: moments, weights of zero, principal components.

Components (`count`) see entries as `Likelihood.start` has them: of one variance at every mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Float64, Real, Shaped
from numpy.typing import DTypeLike

from factorflow.core.kinds import KINDS
from factorflow.core.trees import replace
from factorflow.errors import InputError
from factorflow.kernels import device
from factorflow.kernels.linalg import block_places, n_pairs, pad_columns, unpack
from factorflow.kernels.sites import MODELS
from factorflow.likelihoods.base import LEAST_CURVATURE
from factorflow.models.contract import Array, Block, Info, Step, Sweep, wide
from factorflow.models.sparse_gfa.entries import aux_of, centred, starting_values
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.kernels.entry_rows import EntryRows
from factorflow.models.sparse_gfa.kernels.gaps import lowest
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.size_factors import entry_level
from factorflow.models.sparse_gfa.state import Factors, Fixed, Globals, Scores, View
from factorflow.models.sparse_gfa.weights import Weights, sum_pairs

SITE_SCORES = MODELS[1]
INTERCEPT_VARIANCE = 0.01
"""Variance of the intercepts that a fit begins with."""


def empty_globals(settings: Settings) -> Globals:
    """Return globals before any data are seen."""
    k, g = settings.n_factors, settings.n_groups
    ones = np.ones((g, k))
    return Globals(
        fixed={},
        weights={},
        views={},
        scores=Scores(ones, ones, ones, ones, np.eye(k)),
        factors=Factors(np.ones((len(settings.views), k))),
    )


CLIPPED_PASSES = 6
"""Passes over the entries of heavy-tailed views: each clips them by the moments of the one before."""


def moment_passes(settings: Settings) -> int:
    """Return how many passes location and scale of the features take."""
    clips = any(np.isfinite(view.density.clip_start) for view in settings.views)
    sized = any(view.size_factors != "none" for view in settings.views)  # their averages come first
    return CLIPPED_PASSES if clips else 1 + sized


ROUNDING = 1e-12
"""Share of sums of squares about 0 that rounding may leave of those about the mean."""


@dataclass(frozen=True)
class Moments:
    """Number, sum, sum of squares of a view's entries by noise group; sum of `Likelihood.log_factor`.

    ``covariate_sums``, ``cross``: sums of the covariates over the entries of each feature, and of their
    products with these; None without covariates. ``level``: see `size_factors.entry_level`.
    """

    count: Float64[np.ndarray, "D T"]
    total: Float64[np.ndarray, "D T"]
    squares: Float64[np.ndarray, "D T"]
    log_factor: Float64[np.ndarray, "D T"] | None
    covariate_sums: Float64[np.ndarray, "D J"] | None = None
    cross: Float64[np.ndarray, "D J"] | None = None
    level: Float64[np.ndarray, " D"] | None = None


@dataclass(frozen=True)
class MomentsStats:
    """Statistics of the first pass."""

    views: Mapping[str, Moments] = field(metadata=wide())


@dataclass(frozen=True)
class MomentsSweep(Sweep[Globals, None, MomentsStats]):
    """First pass over the data: where each feature lies and how far it spreads."""

    settings: Settings
    name: ClassVar[str] = "moments"

    def map(self, block: Block, local: None, globals_: Globals, step: Step) -> tuple[None, MomentsStats]:
        """Add up moments of the block."""
        settings = self.settings
        codes = settings.group_codes(block) if settings.grouped_noise else np.zeros(block.n_rows, np.int64)
        views, grouped = {}, settings.n_noise_groups > 1
        for view in settings.views:
            raw = block.data[view.name]
            fixed_view = globals_.fixed.get(view.name)
            values = _clip(view, starting_values(settings, view.name, block, fixed_view), fixed_view)
            if view.location:  # squares about 0 would lose all digits
                values = values - device.move_beside(np.array(view.location), values)
            parts = [
                gfa.column_moments(values[device.move_beside(codes == t, values)] if grouped else values)
                for t in range(settings.n_noise_groups)
            ]
            factor = None
            if not view.is_gaussian and not view.density.n_phi:
                factor = np.stack(
                    [
                        _log_factor(view, block, device.move_beside(codes == t, raw))
                        for t in range(settings.n_noise_groups)
                    ],
                    axis=1,
                )
            count, total, squares = (np.stack(column, axis=1) for column in zip(*parts, strict=True))
            given_sums = *_covariate_sums(settings, block, values), entry_level(view, raw)
            views[view.name] = Moments(count, total, squares, factor, *given_sums)
        return None, MomentsStats(views)

    def update(self, globals_: Globals, stats: MomentsStats, step: Step) -> tuple[Globals, Info]:
        """Fix reference and scale, and start weights at zero."""
        settings = self.settings
        fixed = {}
        for view in settings.views:
            mine = stats.views[view.name]
            if not mine.count.any():
                expected, remedy = "some that are not held out", "Hold out less, or leave the view out."
                raise InputError(f"values of view {view.name}", "none", expected, remedy)
            fixed_view = _regress(settings, _fix(settings, view.name, mine), view, mine)
            if mine.level is not None:
                fixed_view = replace(fixed_view, average=mine.level / np.maximum(mine.count.sum(axis=1), 1.0))
            fixed[view.name] = fixed_view
        observed = sum(float(f.count.sum()) for f in fixed.values())
        return initial_globals(settings, fixed), {"observed": observed}


def initial_globals(settings: Settings, fixed: Mapping[str, Fixed]) -> Globals:
    """Return the globals that a start begins with, given the moments."""
    weights = {name: _blank_weights(settings, name, f) for name, f in fixed.items()}
    views = {name: initial_view(settings, name, w, fixed[name]) for name, w in weights.items()}
    return replace(empty_globals(settings), fixed=fixed, weights=weights, views=views)


def _clip(view: ViewSettings, values: Shaped[Array, "B D"], fixed: Fixed | None) -> Shaped[Array, "B D"]:
    """Return entries within so many standard deviations of their mean as those of the start lie."""
    reach = view.density.clip_start
    if fixed is None or not np.isfinite(reach):
        return values
    spread = np.sqrt(fixed.squares.sum(axis=1) / np.maximum(fixed.count.sum(axis=1), 1.0)) * fixed.scale
    ends = (device.move_beside(fixed.location + sign * reach * spread, values) for sign in (-1.0, 1.0))
    low, high = (end.astype(values.dtype) for end in ends)
    xp = device.namespace(values)
    return xp.where(values < low, low, xp.where(values > high, high, values))


def _covariate_sums(
    settings: Settings, block: Block, values: Shaped[Array, "B D"]
) -> tuple[Float64[Array, "D J"] | None, Float64[Array, "D J"] | None]:
    """Return the sums of covariates in `Moments`."""
    if settings.covariates is None:
        return None, None
    covariates = device.move_beside(settings.design(block)[:, 1:], values)
    size = values.shape[1]
    filled = gfa.centred(values, np.zeros(size), np.ones(size), np.float64)
    return device.on_host(gfa.observed(values).T @ covariates), device.on_host(filled.T @ covariates)


def _regress(settings: Settings, fixed: Fixed, view: ViewSettings, moments: Moments) -> Fixed:
    """Return the moments of the features with their regression on the covariates, of ridge penalty 1.

    Of what the start sees; covariates are taken to be seen alike in all features. A feature with about as few
    entries as there are covariates would be explained by more than its variance: it has none.
    """
    if settings.covariates is None or moments.cross is None or moments.covariate_sums is None:
        return fixed
    second = unpack(np.array(settings.covariates.second), len(settings.covariates))
    about = fixed.location - np.array(view.location) if view.location else fixed.location
    cross = (moments.cross - about[:, None] * moments.covariate_sums) / fixed.scale[:, None]
    count = np.maximum(fixed.count.sum(axis=1), 1.0)
    coefficients = np.linalg.solve(count[:, None, None] * second + np.eye(len(second)), cross[:, :, None])[
        :, :, 0
    ]
    regressed = np.einsum("dc,ce,de->d", coefficients, second, coefficients)
    possible = regressed < fixed.squares.sum(axis=1) / count
    return replace(
        fixed,
        regression=np.where(possible[:, None], coefficients, 0.0),
        regressed=np.where(possible, regressed, 0.0),
    )


def _log_factor(view: ViewSettings, block: Block, rows: Bool[Array, " B"]) -> Float64[Array, " D"]:
    values, aux = block.data[view.name][rows], aux_of(view, block)
    aux = None if aux is None else aux[rows].astype(np.float64)
    is_observed = KINDS[view.kind].observed(values)
    observed = device.namespace(values).where(is_observed, values, 0.0).astype(np.float64)
    return device.on_host(view.density.log_factor(observed, np.empty((0, 1)), aux).sum(axis=0))


def _fix(settings: Settings, name: str, moments: Moments) -> Fixed:
    """Return reference, scale and constants of a view."""
    view = settings.view(name)
    count = moments.count
    mean = moments.total.sum(axis=1) / np.maximum(count.sum(axis=1), 1.0)
    about = np.array(view.location) if view.location else 0.0 * mean
    one = np.ones(view.n_features)
    if not view.is_scaled:
        squares = _squares_about(mean, moments)
        constant = np.zeros_like(count) if moments.log_factor is None else moments.log_factor
        return Fixed(0.0 * one, one, mean, count, squares, constant)
    reference = mean if settings.center or settings.intercepts else -about
    squares = _squares_about(reference, moments)
    spread = squares.sum(axis=1)
    per_feature = np.sqrt(spread / np.maximum(count.sum(axis=1), 1.0))
    scale = one
    if settings.scale_features:
        scale = np.where(per_feature > 0, per_feature, 1.0)
    elif settings.scale_views:
        overall = float(np.sqrt(spread.sum() / max(count.sum(), 1.0)))
        scale = one * (overall if overall > 0 else 1.0)
    constant = -count * np.log(scale)[:, None]  # of the change of units
    if view.is_gaussian:
        constant = -0.5 * count * float(np.log(2.0 * np.pi)) + constant
    elif moments.log_factor is not None:
        constant = constant + moments.log_factor
    location = reference + about
    return Fixed(reference, scale, location, count, squares / scale[:, None] ** 2, constant)


def _squares_about(mean: Float64[Array, " D"], moments: Moments) -> Float64[Array, "D T"]:
    """Return sums of squares about a mean: 0 of a feature that does not vary, whatever rounding leaves."""
    squares = moments.squares - 2.0 * mean[:, None] * moments.total + moments.count * mean[:, None] ** 2
    return np.where(squares > ROUNDING * moments.squares, squares, 0.0)


def _blank_weights(settings: Settings, name: str, fixed: Fixed) -> Weights:
    """Return weights of zero with intercepts at the level of the data."""
    view, k = settings.view(name), settings.n_factors
    zeros, covariance = np.zeros((view.n_features, k)), np.zeros((view.n_features, n_pairs(k)))
    level, uncertain = 0.0 * fixed.location, np.ones(view.n_features)
    coefficients = np.zeros((view.n_features, settings.n_given))
    spread = np.zeros((view.n_features, n_pairs(settings.n_given)))
    phi, noise = np.empty((view.n_features, 0)), None
    if view.is_gaussian:
        noise = np.ones(fixed.count.shape) if settings.feature_noise else None
    else:
        alone, phi = fit_alone(view, fixed)
        level, phi = alone if settings.has_intercepts(view) else level, phi.T
        # With a variance of 1 E e^x would be 1.6 times the rate: intercepts fall, and a factor takes over.
        n = np.maximum(fixed.count.sum(axis=1), 1.0)
        uncertain = 1.0 / (1.0 + n * view.density.information(level, phi.T))
    diagonal = block_places(0, settings.n_given)[np.cumsum(np.arange(1, settings.n_given + 1)) - 1]
    spread[:, diagonal] = uncertain[:, None]
    if not settings.has_intercepts(view):
        spread[:, 0] = 0.0
    coefficients[:, 0] = level
    return Weights(zeros, covariance, None, coefficients, spread, noise, noise, phi)


def fit_alone(view: ViewSettings, fixed: Fixed) -> tuple[Float64[Array, " D"], Float64[Array, "P D"]]:
    """Return the predictor and phi of each feature without factors, in units of the model."""
    n, (mean, variance) = np.maximum(fixed.count.sum(axis=1), 1.0), _entry_moments(view, fixed)
    phi = view.density.phi_start(n, n * mean, n * (mean**2 + variance))
    return view.density.intercept(n, n * mean), phi


def _entry_moments(view: ViewSettings, fixed: Fixed) -> tuple[Float64[Array, " D"], Float64[Array, " D"]]:
    """Return mean and variance of the entries of each feature, in units of the model."""
    variance = fixed.squares.sum(axis=1) / np.maximum(fixed.count.sum(axis=1), 1.0)
    mean = (fixed.location - view.level(fixed.reference)) / fixed.scale if view.is_scaled else fixed.location
    return view.density.start_moments(mean, variance)


def initial_view(settings: Settings, name: str, weights: Weights, fixed: Fixed) -> View:
    """Return shared parameters of a view: at the mean of their priors; of the intercepts, fitted.

    A prior mean of 0 would pull the intercepts of data far from 0 away before it has learned better.
    """
    level = weights.intercept + fixed.reference / fixed.scale
    shape, rate = settings.priors.intercept
    intercept_shape, mean = shape + 0.5 * len(level), float(level.mean())
    intercept_rate = rate + 0.5 * float(((level - mean) ** 2 + INTERCEPT_VARIANCE).sum())
    mean_precision = settings.priors.intercept_mean + len(level) * intercept_shape / intercept_rate
    ones = np.ones(weights.mean.shape[1])
    on, off = settings.priors.theta
    size = 1.0
    # What is not scaled has slabs as wide as the noise of x; log odds are of a size that is known.
    if not settings.view(name).is_scaled and settings.view(name).kind != "bernoulli":
        size = float((1.0 / np.maximum(settings.information(name, weights), LEAST_CURVATURE)).mean())
    return View(
        alpha_shape=ones,
        alpha_rate=size * ones,
        theta_on=on * ones,
        theta_off=off * ones,
        intercept_mean=mean,
        intercept_mean_variance=1.0 / mean_precision,
        intercept_shape=intercept_shape,
        intercept_rate=intercept_rate,
        coefficient_shape=np.ones(settings.n_terms),
        coefficient_rate=np.ones(settings.n_terms),
        pairs=sum_pairs(weights, settings.precision(name, weights)),
        noise_shape=settings.priors.noise[0],
        noise_rate=settings.priors.noise[1],
    )


def filled_views(settings: Settings, block: Block, globals_: Globals) -> dict[str, Float[Array, "B _"]]:
    """Return the centred views of a block, zeros where entries are missing."""
    filled = {}
    for view in settings.views:
        fixed = globals_.fixed[view.name]
        values = _clip(view, starting_values(settings, view.name, block, fixed), fixed)
        centred_values = centred(settings, block, view.name, values, fixed.location, fixed.scale)
        if fixed.regression is not None:  # only what they leave is for factors
            covariates, slopes = (
                settings.design(block)[:, 1:].astype(centred_values.dtype),
                fixed.regression.T.astype(centred_values.dtype),
            )
            if isinstance(centred_values, EntryRows):
                centred_values = centred_values.subtract_observed(covariates, slopes.T)
            else:
                level = device.move_beside(covariates, centred_values) @ device.move_beside(
                    slopes, centred_values
                )
                centred_values = centred_values - level * (values >= lowest(values))
        filled[view.name] = centred_values
    return filled


def multiply_views(
    rows: Mapping[str, Float[Array, "B _"]], matrices: Mapping[str, Float64[Array, "_ L"]], dtype: DTypeLike
) -> Float64[Array, "B L"]:
    """Return the sum over views of rows times the matrix of the view."""
    total: Array = 0.0
    for name, matrix in matrices.items():
        total = total + device.product(rows[name], pad_columns(matrix, dtype), matrix.shape[1])
    return total


def starting_scores(settings: Settings, block: Block, globals_: Globals, step: Step) -> Float64[Array, "B K"]:
    """Return the scores a run starts from: principal components, noise, or given ones."""
    k = globals_.n_factors
    if globals_.basis:
        basis = {name: columns[:, :k] for name, columns in globals_.basis.items()}
        return multiply_views(filled_views(settings, block, globals_), basis, settings.dtype)
    if settings.start in {"random", "pca"}:  # "pca": a run that was cut short before components were known
        return step.normal(SITE_SCORES, block.rows, k)
    user_scores = _given_scores(settings.start, settings.n_rows, settings.n_factors)
    within = block.rows % len(user_scores)  # the made-up rows of a trial may be more
    rows = np.array(user_scores[within, :k], dtype=np.float64)
    if not np.isfinite(rows).all():
        raise InputError(
            "start",
            f"{settings.start}, with a NaN or infinite value in rows {block.start} to "
            f"{block.start + block.n_rows - 1}",
            "finite scores",
            "Fill in what is missing, or use {start}.",
            start="pca",
        )
    return rows


def _given_scores(path: str, n_rows: int, n_factors: int) -> Real[np.ndarray, "N L"]:
    """Return the scores in a file, mapped into memory; at least as many columns as there are factors.

    Raises
    ------
    InputError
        When the file cannot be read, or holds an array of another shape or type.
    """
    expected = f"'pca', 'random', or an .npy file of numbers ({n_rows} samples, {n_factors} factors or more)"
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it holds no such array"
        raise InputError("start", path, f"{expected}: {why}", "Write it with numpy.save.") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf" or array.ndim != 2:
        actual = f"{path}, which holds {_what(array)}"
        raise InputError("start", actual, expected, "Write it with numpy.save.")
    if array.shape[0] != n_rows or array.shape[1] < n_factors:
        actual = f"{path}, of {array.shape[0]} rows and {array.shape[1]} columns"
        raise InputError("start", actual, expected, "One row for each sample, in the order of the dataset.")
    return array


def _what(array: object) -> str:
    if not isinstance(array, np.ndarray):
        return "several arrays"
    return f"{array.dtype} of shape {array.shape}"
