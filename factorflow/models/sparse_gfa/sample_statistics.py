"""Sufficient statistics of the updated rows of a block: sums that loadings, noise and the bound need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Integer

from factorflow.kernels import device
from factorflow.kernels.linalg import diagonal, pack, pad_columns
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.messages import Pseudo
from factorflow.models.sparse_gfa.pseudo_data import NO_NOISE, expected_scores, low_noise
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.rows import Conditional, noise_sums
from factorflow.models.sparse_gfa.state import Globals, Local
from factorflow.models.sparse_gfa.statistics import FeatureStats, Stats


@dataclass(frozen=True)
class UpdatedRows:
    """Rows after the update of their scores.

    Parameters
    ----------
    local : Local
        q(z), and q(rho).
    design : array
        a = (1, covariates).
    pseudo : mapping of view to Pseudo
        The pseudo-data they were updated from.
    free, entropy : float
        Terms of the bound: see `Stats`.
    precision : array
        sum_n log (S_n^-1)_kk.
    conditional : Conditional or None
        q(z) given the courses of the factors, where these have any.
    size_sums : array or None
        See `Stats`.
    """

    local: Local
    design: Float64[np.ndarray, "B C"]
    pseudo: dict[str, Pseudo]
    free: float
    entropy: float
    precision: Float64[np.ndarray, " K"]
    conditional: Conditional | None = None
    size_sums: Float64[np.ndarray, "M 3"] | None = None


def sum_statistics(
    settings: Settings, codes: Integer[Array, " B"], rows: UpdatedRows, globals_: Globals
) -> Stats:
    """Return what updated rows add up."""
    local = rows.local
    mean, spread = expected_scores(local)
    n_rows, n_factors = mean.shape
    ones, design = np.ones(n_rows), rows.design
    extended = np.concatenate([mean, design], axis=1)
    scores = pad_columns(extended, settings.dtype)
    moments = gfa.sum_pairs(mean, spread, design, None, ones)

    def weighted_moments(
        rows_with: Bool[Array, " B"], rho: Float64[Array, " B"] | None
    ) -> Float64[Array, " Q"]:
        if rho is None and rows_with.all():
            return moments
        weight = rows_with.astype(np.float64) if rho is None else rows_with * rho
        return gfa.sum_pairs(mean, spread, design, None, weight)

    table = None
    features, shared = {}, {}
    for m, view in enumerate(settings.views):
        p = rows.pseudo[view.name]
        rho = None
        if local.noise_shape is not None and local.noise_rate is not None and view.is_gaussian:
            rho = local.noise_shape[:, m] / local.noise_rate[:, m]
        cross = _cross(settings, p, scores, extended, rho)
        pairs = squares = None
        if view.scattered and p.gaps is not None and p.gaps.masks is not None:
            masks = p.gaps.masks
            of_masks = np.stack([weighted_moments(rows_with > 0.0, rho) for rows_with in masks.rows.T])
            pairs = masks.columns @ of_masks
        elif view.scattered:
            if table is None or (p.low_noise.size and table.dtype != np.float64):
                dtype = np.float64 if p.low_noise.size else settings.dtype
                table = device.move_beside(
                    gfa.expected_pairs(mean, spread, design, None, ones, dtype), p.response
                )
            mine = table
            if rho is not None:
                mine = table * device.move_beside(rho[:, None].astype(table.dtype), table)
            if p.weight is not None:
                pairs = device.product(p.weight.T, mine)
            else:
                assert p.gaps is not None
                pairs = gfa.pairs_by_column(mine, p.gaps, weighted_moments(p.gaps.complement, rho))
        else:
            assert p.gaps is not None
            shared[view.name] = weighted_moments(p.gaps.present, rho)[None]
        if rho is not None:
            squares = device.product(rho, p.response.astype(np.float64) ** 2)[:, None]
        else:
            squares = _exact_squares(low_noise(settings, view, globals_, NO_NOISE), p.response)
        phi = None if p.phi is None else p.phi[:, None]
        pairs = None if pairs is None else pairs[:, None]
        features[view.name] = FeatureStats(cross[:, None], pairs, squares, phi)
    number, second = _prior_sums(settings, codes, local, moments)
    sizes = np.bincount(codes, minlength=settings.n_groups).astype(np.float64)
    covariance = spread.sum(axis=0) if len(spread) == n_rows else float(n_rows) * spread[0]
    if spread.shape[1] == n_factors:
        covariance = pack(np.diag(covariance))
    of_courses = None if rows.conditional is None else noise_sums(rows.conditional, local.mean)
    sums = (number, second, moments, covariance, sizes, rows.precision, of_courses)
    return Stats(features, shared, rows.free, rows.entropy, *sums, rows.size_sums)


def _exact_squares(
    features: Integer[Array, " J"], response: Float[Array, "B D"]
) -> Float64[Array, "D 1"] | None:
    """Return the sums of squares of some features, of the entries as they are here; 0 of others; None: none.

    `Fixed.squares` are of the entries before they were centred, scaled and rounded, by which their sum
    changes by 1e-7 of itself: more than the residual sum of squares of a feature without noise, which is its
    difference from the products. It would be too small, or below 0, and the noise of the next pass with it.
    """
    if not features.size:
        return None
    squares, columns = np.zeros((response.shape[1], 1)), gfa.take_columns(response, features)
    squares[features, 0] = device.product(np.ones(len(response)), columns.astype(np.float64) ** 2)
    return squares


def _cross(
    settings: Settings,
    pseudo: Pseudo,
    scores: Float[Array, "B padded"],
    extended: Float64[Array, "B L"],
    rho: Float64[Array, " B"] | None,
) -> Float64[Array, "D L"]:
    """Return sum_n q y^ (z, a) of a view, of features of little noise in double precision."""
    weighted = scores if rho is None else scores * rho[:, None].astype(settings.dtype)
    cross = device.product(pseudo.response.T, weighted, extended.shape[1])
    if pseudo.low_noise.size:
        precise = extended if rho is None else extended * rho[:, None]
        columns = gfa.take_columns(pseudo.response, pseudo.low_noise)
        cross[pseudo.low_noise] = device.product(columns.T.astype(np.float64), precise)
    return cross


def _prior_sums(
    settings: Settings, codes: Integer[Array, " B"], local: Local, moments: Float64[Array, " Q"]
) -> tuple[Float64[Array, "G K"], Float64[Array, "G K"]]:
    """Return sum_n P(score not 0) and sum_n of the slab's moment that beta follows from, by group.

    Of scores without spikes and groups the latter are in the sum of E[(z, a)(z, a)'] already.
    """
    n_rows, n_factors = local.mean.shape
    if settings.n_groups == 1 and local.inclusion is None:
        return np.full((1, n_factors), float(n_rows)), diagonal(moments, n_factors + settings.n_given)[
            None, :n_factors
        ]
    included = local.inclusion
    squares = (
        local.mean if settings.score_power == 1.0 else local.mean**2 + diagonal(local.variance, n_factors)
    )
    if included is None:
        included = np.broadcast_to(1.0, squares.shape)
    else:
        squares = squares * included
    n_groups = settings.n_groups
    number, second = np.zeros((n_groups, n_factors)), np.zeros((n_groups, n_factors))
    for g in range(n_groups):
        rows = slice(None) if n_groups == 1 else codes == g
        number[g], second[g] = included[rows].sum(axis=0), squares[rows].sum(axis=0)
    return number, second
