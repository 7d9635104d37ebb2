"""Sufficient statistics of blocks and of runs of features; for shapes see `state`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import wide
from factorflow.models.sparse_gfa.loadings import LoadingSums
from factorflow.models.sparse_gfa.smooth.courses import NoiseSums


@dataclass(frozen=True)
class FeatureStats:
    """Statistics of a view with a row for each feature.

    Parameters
    ----------
    cross : array
        sum_n q y^ (z, a).
    pairs : array or None
        sum_n q E[(z, a)(z, a)'], where q depends on the feature.
    squares : array or None
        sum_n q y^2, where it changes (sample noise); of features without noise, of
        others 0.
    phi : array or None
        First and second derivatives of the expected log-likelihood in phi.
    """

    cross: Float64[np.ndarray, "D T L"]
    pairs: Float64[np.ndarray, "D T Q"] | None
    squares: Float64[np.ndarray, "D T"] | None = None
    phi: Float64[np.ndarray, "D T P"] | None = None


@dataclass(frozen=True)
class Stats:
    """Statistics of a block, or of all.

    Parameters
    ----------
    features : mapping of view to FeatureStats
        See there.
    shared : mapping of view to array
        sum_n q E[(z, a)(z, a)'], where q does not depend on the feature.
    free : float
        Parts of the likelihood's bound, or tangent, that do not depend on the weights; the terms of rho.
    entropy : float
        Entropy of q(z) without its constant.
    number, second : array
        sum_n P(score not 0) and sum_n E[z^n] (of the slab; n: `Settings.score_power`) in each group.
    moments : array
        sum_n E[(z, a)(z, a)'].
    covariance : array
        sum_n Cov z packed, V = K (K + 1) / 2.
    rows : array
        Samples of each group.
    precision : array
        sum_n log (S_n^-1)_kk, S_n = Cov z.
    courses : NoiseSums or None
        Of scores with courses.
    size_sums : array or None
        Of learned size factors, by view: rows, sums of their logarithms r (less computed ones) and of E r^2.
    """

    features: Mapping[str, FeatureStats] = field(metadata=wide())
    shared: Mapping[str, Float64[np.ndarray, "T Q"]]
    free: float
    entropy: float
    number: Float64[np.ndarray, "G K"]
    second: Float64[np.ndarray, "G K"]
    moments: Float64[np.ndarray, " Q"]
    covariance: Float64[np.ndarray, " V"]
    rows: Float64[np.ndarray, " G"]
    precision: Float64[np.ndarray, " K"]
    courses: NoiseSums | None = None
    size_sums: Float64[np.ndarray, "M 3"] | None = None


@dataclass(frozen=True)
class FeatureSums:
    """Sums over the features of a view, after their update.

    Parameters
    ----------
    loadings : LoadingSums
        Of the loadings, for the parameters that they share.
    entropy, likelihood, noise : float
        Entropy of q(w), expected log-likelihood, terms of q(tau).
    intercepts, intercept_squares : float
        Sums of intercepts b, in full, and of b^2 + Var b.
    coefficient_squares : array
        sum E b^2 over the other coefficients, by group of covariates.
    coefficient_entropy : float
        sum_d log |Cov b| / 2.
    pairs : array
        See `View.pairs`.
    gram : array or None
        sum_d E[(w, b)(w, b)'], in the warm-up (for the rotation).
    worth : pair of arrays or None
        What these features add to the worth of each factor, see `n_factors.worth_of_loadings`; with spikes.
    """

    loadings: LoadingSums
    entropy: float
    likelihood: float
    noise: float
    intercepts: float
    intercept_squares: float
    coefficient_squares: Float64[np.ndarray, " H"]
    coefficient_entropy: float
    pairs: Float64[np.ndarray, "T Q"]
    gram: Float64[np.ndarray, " Q"] | None
    worth: tuple[Float64[np.ndarray, " K"], Float64[np.ndarray, " K"]] | None = None
