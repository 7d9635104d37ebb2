"""State of sparse group factor analysis: what is learned, what is kept per sample, what is added up.

Shapes: D features of a view, K factors, G groups of samples, T groups with a noise precision of their own (1
unless asked for), B rows of a block, Q = (K + 1) (K + 2) / 2 packed second moments of (z, 1) or (w, b).
All arrays live on the scale of the model: entries are (data - reference) / scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from factorflow.kernels.linalg import congruence
from factorflow.models.contract import Array, wide

__all__ = [
    "Explained",
    "FeatureStats",
    "FeatureSums",
    "Fixed",
    "Globals",
    "Local",
    "Stats",
    "View",
    "Weights",
    "expected_slab",
    "expected_weights",
    "transformed_weights",
]


@dataclass(frozen=True)
class Fixed:
    """What the first pass over the data learned of the features of a view; never changes afterwards.

    Parameters
    ----------
    reference, scale : (D,) array
        What is subtracted from Gaussian entries (their mean; 0 for others), and data units in one unit of
        the model.
    location : (D,) array
        Mean of the observed entries as the start sees them (`starting_values`).
    count, squares, constant : (D, T) array
        Observed entries; sum of squares of Gaussian entries about the reference, of others about the
        location; parts of the bound that never change.
    """

    reference: Array
    scale: Array
    location: Array
    count: Array
    squares: Array
    constant: Array


@dataclass(frozen=True)
class Weights:
    """q(w, s), q(b) and q(tau) of the features of a view.

    Parameters
    ----------
    mean : (D, K) array
        mu, mean of the slab.
    variance : (D, K) or (D, K (K + 1) / 2) array
        sigma^2, variance of the slab; without a spike, Cov w packed.
    inclusion : (D, K) array or None
        gamma; None without a spike.
    intercept, intercept_variance : (D,) array
        b - reference, v_b.
    noise_shape, noise_rate : (D, T) array or None
        q(tau); None where the likelihood has no such parameter.
    """

    mean: Array
    variance: Array
    inclusion: Array | None
    intercept: Array
    intercept_variance: Array
    noise_shape: Array | None
    noise_rate: Array | None


@dataclass(frozen=True)
class View:
    """Parameters that the features of a view share.

    Parameters
    ----------
    alpha_shape, alpha_rate : (K,) array
        q(alpha): precision of the slab.
    theta_on, theta_off : (K,) array
        q(theta): probability of a weight that is not 0.
    off_variance : (K,) array
        v_0, variance of q(w-hat | s = 0) (``hat`` only).
    intercept_mean, intercept_mean_variance, intercept_shape, intercept_rate : float
        q(m), q(lambda): mean and precision of the intercepts.
    pairs : (T, Q) array
        sum_d f_d E[(w, b)(w, b)'].
    """

    alpha_shape: Array
    alpha_rate: Array
    theta_on: Array
    theta_off: Array
    off_variance: Array
    intercept_mean: float
    intercept_mean_variance: float
    intercept_shape: float
    intercept_rate: float
    pairs: Array

    @property
    def alpha(self) -> Array:
        """Expected precision of the slab, (K,)."""
        return self.alpha_shape / self.alpha_rate


@dataclass(frozen=True)
class Globals:
    """All that travels to the blocks.

    Parameters
    ----------
    fixed, weights, views : mapping of view to Fixed, Weights, View
        See there.
    basis : mapping of view to (D, L) array
        Sketch of the data's row space while the start is computed; then the projection that starts z.
    beta_shape, beta_rate, psi_on, psi_off : (G, K) array
        q(beta), q(psi): precision and inclusion of the scores of each group.
    second : (K, K) array
        Average of E[z z'] over the samples, at the last iteration.
    strength : (M, K) array
        Share of each view's sum of squares that a factor carries: what decides on dropping it.
    transform : (K, K_old) array or None
        What the next map applies to stored scores first: a rotation, a selection.
    rest : float or None
        What the bound had after the last iteration besides the likelihood of views with a tangent.
    explained : Explained or None
        Set by the closing pass.
    """

    fixed: Mapping[str, Fixed] = field(metadata=wide())
    weights: Mapping[str, Weights] = field(metadata=wide())
    views: Mapping[str, View]
    basis: Mapping[str, Array] = field(metadata=wide())
    beta_shape: Array
    beta_rate: Array
    psi_on: Array
    psi_off: Array
    second: Array
    strength: Array
    transform: Array | None = None
    rest: float | None = None
    explained: Explained | None = None

    @property
    def n_factors(self) -> int:
        """Number of factors (K)."""
        return int(self.beta_rate.shape[1])


@dataclass(frozen=True)
class Local:
    """q(z) of the rows of a block, kept where it is not a function of the globals alone.

    Parameters
    ----------
    mean : (B, K) array
        Mean (of the slab, with a spike).
    variance : (B or 1, K) or (B or 1, K (K + 1) / 2) array
        Variances (of the slab), or covariances packed; one row where all are equal.
    inclusion : (B, K) array or None
        Probability that a score is not 0, with a spike.
    noise_shape, noise_rate : (B, M) array or None
        q(rho): precision of each sample in each view.
    """

    mean: Array
    variance: Array
    inclusion: Array | None = None
    noise_shape: Array | None = None
    noise_rate: Array | None = None


@dataclass(frozen=True)
class FeatureStats:
    """Statistics of a view with a row for each feature.

    Parameters
    ----------
    cross : (D, T, K + 1) array
        sum_n q y^ (z, 1).
    pairs : (D, T, Q) array or None
        sum_n q E[(z, 1)(z, 1)'], where q depends on the feature.
    squares : (D, T) array or None
        sum_n q y^2, where it changes (sample noise).
    """

    cross: Array
    pairs: Array | None
    squares: Array | None = None


@dataclass(frozen=True)
class Stats:
    """Statistics of a block, or of all.

    Parameters
    ----------
    features : mapping of view to FeatureStats
        See there.
    shared : mapping of view to (T, Q) array
        sum_n q E[(z, 1)(z, 1)'], where q does not depend on the feature.
    free : float
        Parts of the likelihood's bound that do not depend on the weights, and the terms of rho.
    entropy : float
        Entropy of q(z) without its constant.
    number, second : (G, K) array
        sum_n P(score not 0) and sum_n E[z^2] (of the slab) in each group.
    moments : (Q,) array
        sum_n E[(z, 1)(z, 1)'].
    rows : (G,) array
        Samples of each group.
    tangent, reached : float
        Of views whose pseudo-data are a tangent of the bound: its part of ``free``, and the bound itself at
        the scores and weights that the iteration began with.
    """

    features: Mapping[str, FeatureStats] = field(metadata=wide())
    shared: Mapping[str, Array]
    free: float
    entropy: float
    number: Array
    second: Array
    moments: Array
    rows: Array
    tangent: float = 0.0
    reached: float = 0.0


@dataclass(frozen=True)
class FeatureSums:
    """Sums over the features of a view, after their update.

    Parameters
    ----------
    included, squares : (K,) array
        sum_d gamma, sum_d gamma (mu^2 + sigma^2).
    entropy, likelihood, noise : float
        Entropy of q(w), expected log-likelihood, terms of q(tau).
    intercepts, intercept_squares, intercept_entropy : float
        sum_d b, sum_d (b^2 + v_b), sum_d log v_b / 2; b in full.
    pairs : (T, Q) array
        See `View.pairs`.
    gram : (Q,) array or None
        sum_d E[(w, b)(w, b)'], in the warm-up (for the rotation).
    """

    included: Array
    squares: Array
    entropy: float
    likelihood: float
    noise: float
    intercepts: float
    intercept_squares: float
    intercept_entropy: float
    pairs: Array
    gram: Array | None


@dataclass(frozen=True)
class Explained:
    """Sums of squares on the data scale, per group and view.

    Parameters
    ----------
    total : (G, M) array
        About the mean of each feature.
    residual : (G, M) array
        About the prediction by all factors.
    single : (G, M, K) array
        About the prediction by one factor alone.
    """

    total: Array
    residual: Array
    single: Array


def expected_slab(mean: Array, variance: Array, inclusion: Array | None) -> tuple[Array, Array]:
    """Return mean and variance of a product of a Bernoulli variable and a Gaussian one (None: always 1).

    What is smaller than 1e-16 becomes 0: squares of it are no normal single-precision numbers, and matrix
    products of such are tens of times slower.
    """
    if inclusion is None:
        return mean, variance
    spread = inclusion * variance + inclusion * (1.0 - inclusion) * mean**2
    mean = inclusion * mean
    return np.where(np.abs(mean) < 1e-16, 0.0, mean), np.where(spread < 1e-32, 0.0, spread)


def expected_weights(weights: Weights) -> tuple[Array, Array]:
    """Return E[w] (D, K), and Var w (D, K) or Cov w packed (D, K (K + 1) / 2)."""
    return expected_slab(weights.mean, weights.variance, weights.inclusion)


def transformed_weights(weights: Weights, transform: Array) -> Weights:
    """Return the weights after z -> T z, w -> T'^-1 w, given the inverse transpose of T (K', K).

    Full covariances follow exactly. Independent (spike-and-slab) weights are only ever selected, permuted,
    and scaled, with one entry in each row of the transform.
    """
    mean = weights.mean @ transform.T
    if weights.inclusion is None and weights.variance.shape[1] != weights.mean.shape[1]:
        return replace(weights, mean=mean, variance=congruence(weights.variance, transform))
    inclusion = (
        None if weights.inclusion is None else weights.inclusion @ (transform != 0).T.astype(np.float64)
    )
    return replace(weights, mean=mean, variance=weights.variance @ (transform**2).T, inclusion=inclusion)
