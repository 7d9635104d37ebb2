"""Draws of covariates that are not known of a sample, c ~ N(0, S) given those that are (`Covariates`).

Where scores are normal, and all views Gaussian or augmented, scores are integrated out, and then drawn given
c: a joint draw. Else c is drawn given the scores of before; R of views with Metropolis steps enters by
elliptical slice sampling, as for scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Integer
from scipy import special

from factorflow.core.trees import replace
from factorflow.kernels.linalg import block_places, row_place, unpack
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.sampler.metropolis import Entries, slice_scores
from factorflow.models.sparse_gfa.sampler.score_prior import ScorePrior
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.unknown_covariates import solve_jointly

COVARIATE_SITE, SLICE_SITE = MODELS[43], MODELS[44]
"""Noise: of each covariate; of slices of each row."""


def draw_covariates(
    settings: Settings,
    covariates: Float64[Array, "B J"],
    prior: ScorePrior,
    evidence: tuple[Float64[Array, "#B Q"], Float64[Array, "B L"]],
    before: tuple[Float64[Array, "B K"], Float64[Array, "B C"]],
    entries: Sequence[Entries],
    rows: Integer[Array, " B"],
    step: Step,
    *,
    integrate: bool,
) -> Float64[Array, "B C"]:
    """Return given columns of rows, drawn where they are not known.

    Parameters
    ----------
    covariates : array
        NaN where they are not known.
    evidence : (array, array)
        Packed precisions and linear terms of (z, 1, c), of the entries alone.
    before : (array, array)
        Scores, and given columns.
    integrate : bool
        Whether scores are integrated out: they are normal, and ``entries`` empty.
    """
    scores, design = before
    own = np.flatnonzero(np.isnan(covariates).any(axis=1))
    if not len(own):
        return design
    centre, fresh = np.nan_to_num(covariates), np.nan_to_num(covariates)
    pairs, precision = (part if len(part) == 1 else part[own] for part in (evidence[0], prior.precision))
    linear = evidence[1][own]
    k = scores.shape[1] if integrate else 0
    if integrate:
        linear[:, :k] += precision * prior.mean[own]
    else:
        pairs, linear = _given_scores(pairs, linear, scores[own])
    joint = solve_jointly(settings, covariates[own], pairs, linear, precision[:, :k])
    size, known = covariates.shape[1], ~np.isnan(covariates[own])
    covariance = unpack(joint.covariance[:, block_places(k, size)], size)
    root = np.linalg.cholesky(covariance + known[:, :, None] * np.eye(size))
    noise = special.ndtri(draws.uniform(step, COVARIATE_SITE, rows[own], size))
    centre[own] = joint.mean[:, k:]
    fresh[own] = centre[own] + np.einsum("nij,nj->ni", root, np.where(known, 0.0, noise))
    if not entries:
        return np.concatenate([design[:, :1], fresh], axis=1)
    n_scores = scores.shape[1]
    order = np.r_[n_scores + 1 : n_scores + 1 + size, : n_scores + 1]  # covariates first: they move
    moved = [replace(one, weights=one.weights[:, order]) for one in entries]
    beside = np.concatenate([scores, design[:, :1]], axis=1)
    drawn, _ = slice_scores(moved, beside, centre, design[:, 1:], fresh, rows, step, site=SLICE_SITE)
    return np.concatenate([design[:, :1], drawn], axis=1)


def _given_scores(
    pairs: Float64[Array, "#B Q"], linear: Float64[Array, "B L"], scores: Float64[Array, "B K"]
) -> tuple[Float64[Array, "#B P"], Float64[Array, "B C"]]:
    """Return precisions and linear terms of (1, c) given z."""
    k, n_given = scores.shape[1], linear.shape[1] - scores.shape[1]
    between = np.stack([pairs[:, row_place(k + c, k)] for c in range(n_given)], axis=1)
    less = (between * scores[:, None, :]).sum(axis=2)
    return pairs[:, block_places(k, n_given)], linear[:, k:] - less
