"""Covariates that are not known of a sample: latent columns beside its scores.

c ~ N(0, S), S the covariance over the samples of the fit, given those that are known; z and c are solved for
together, c with the coefficients as loadings. At their average, their effect would be read as scores. In the
passes of a fit they are there all the same; what it ends with, and new samples, have their distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.core.covariates import RIDGE
from factorflow.core.trees import replace
from factorflow.kernels.linalg import block_places, diagonal, n_pairs, pack, packed_place, triangle
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Local


@dataclass(frozen=True)
class JointScores:
    """q(z, c) of rows; of those whose covariates are known nothing but these.

    Parameters
    ----------
    is_incomplete : array
        Rows of which some covariate is not known.
    mean : array
        E (z, c).
    covariance : array
        Cov (z, c), packed; 0 of covariates that are known.
    """

    is_incomplete: Bool[np.ndarray, " B"]
    mean: Float64[np.ndarray, "B L"]
    covariance: Float64[np.ndarray, "B P"]

    def in_place_of(
        self, mean: Float64[Array, "B K"], covariance: Float64[Array, "#B V"]
    ) -> tuple[Float64[Array, "B K"], Float64[Array, "B V"]]:
        """Return mean and covariance, or variances, of all scores, given those of the other rows."""
        k, rows = mean.shape[1], self.is_incomplete[:, None]
        own = self.covariance[:, : n_pairs(k)]
        own = own if covariance.shape[1] == own.shape[1] else diagonal(own, k)
        return np.where(rows, self.mean[:, :k], mean), np.where(rows, own, covariance)

    def normal(self, new: Local) -> Local:
        """Return factorised q(z) with the scores that were solved for, normal ones."""
        mean, variance = self.in_place_of(new.mean, new.variance)
        inclusion = (
            None if new.inclusion is None else np.where(self.is_incomplete[:, None], 1.0, new.inclusion)
        )
        return replace(new, mean=mean, variance=variance, inclusion=inclusion)

    def with_covariates(
        self, new: Local, variance: Float64[Array, "#B V"], *, together: bool = True
    ) -> Local:
        """Return q(z) with that of the covariates.

        Parameters
        ----------
        variance : array
            Var z or Cov z of ``new``.
        together : bool
            Whether z is solved for together with c, or independent of it.
        """
        k, covariance = new.mean.shape[1], self.covariance.copy()
        rows, columns = triangle(self.mean.shape[1])
        if not together:
            covariance[:, columns < k] = 0.0
            covariance[:, np.flatnonzero((rows == columns) & (columns < k))] = diagonal(variance, k)
        elif variance.shape[1] == n_pairs(k):
            covariance[:, : n_pairs(k)] = variance
        covariance[~self.is_incomplete] = 0.0
        return replace(new, covariates=self.mean[:, k:].copy(), scores_covariance=covariance)


def solve_jointly(
    settings: Settings,
    values: Float64[Array, "B J"],
    pairs: Float64[Array, "#B Q"],
    linear: Float64[Array, "B L"],
    prior: Float64[Array, "#B K"],
) -> JointScores:
    """Return q(z, c) of rows whose covariates are ``values``, NaN where they are not known.

    Parameters
    ----------
    pairs, linear : array
        Packed precisions and linear terms of (z, 1, c), of the entries alone.
    prior : array
        Prior precision of the scores.
    """
    (n, size), k = values.shape, prior.shape[1]
    assert settings.covariates is not None
    precision, is_unknown = np.linalg.inv(settings.covariates.covariance), np.isnan(values)
    mean = np.concatenate([np.zeros((n, k)), np.nan_to_num(values)], axis=1)
    covariance = np.zeros((n, n_pairs(k + size)))
    patterns, pattern_of = np.unique(is_unknown, axis=0, return_inverse=True)
    for number, unknown in enumerate(patterns):
        rows = np.flatnonzero(pattern_of.ravel() == number)
        if not unknown.any() or not len(rows):
            continue
        own = pairs if len(pairs) == 1 else pairs[rows]
        free = np.concatenate([np.arange(k), k + 1 + np.flatnonzero(unknown)])
        known = np.concatenate([[k], k + 1 + np.flatnonzero(~unknown)])
        given = np.concatenate([np.ones((len(rows), 1)), values[np.ix_(rows, ~unknown)]], axis=1)
        first, second = triangle(len(free))
        joint, h = own[:, packed_place(free[first], free[second])], linear[np.ix_(rows, free)]
        for column, value in zip(known, given.T, strict=True):
            h = h - value[:, None] * own[:, packed_place(free, np.array([column]))]
        if not unknown.all():
            h[:, k:] -= given[:, 1:] @ precision[np.ix_(~unknown, unknown)]
        joint[:, block_places(k, len(free) - k)] += pack(precision[np.ix_(unknown, unknown)])
        whole = prior if len(prior) == 1 else prior[rows]
        whole = np.concatenate([whole, np.full((len(whole), len(free) - k), RIDGE)], axis=1)
        solved, spread, _ = gfa.solve_normals(joint, h, np.ones(1), whole)
        place = np.concatenate([np.arange(k), k + np.flatnonzero(unknown)])
        mean[np.ix_(rows, place)] = solved
        covariance[np.ix_(rows, packed_place(place[first], place[second]))] = spread
    return JointScores(is_unknown.any(axis=1), mean, covariance)
