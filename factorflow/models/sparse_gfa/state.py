"""State of sparse group factor analysis: what is learned, what is kept per sample, what is added up.

Shapes: D features of a view, K factors, G groups of samples, T groups with a noise precision of their own (1
unless asked for), B rows of a block, Q = (K + 1) (K + 2) / 2 packed second moments of (z, 1) or (w, b).
All arrays live on the scale of the model: entries are (data - reference) / scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float64, Int64

from factorflow.kernels.linalg import congruence
from factorflow.models.contract import Array, wide

__all__ = [
    "Explained",
    "FeatureStats",
    "FeatureSums",
    "Fixed",
    "Globals",
    "Held",
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
    reference, scale : array
        What is subtracted from Gaussian entries (their mean; 0 for others), and data units in one unit of
        the model.
    location : array
        Mean of the observed entries as the start sees them (`starting_values`).
    count, squares, constant : array
        Observed entries; sum of squares of Gaussian entries about the reference, of others about the
        location; parts of the bound that never change.
    """

    reference: Float64[np.ndarray, " D"]
    scale: Float64[np.ndarray, " D"]
    location: Float64[np.ndarray, " D"]
    count: Float64[np.ndarray, "D T"]
    squares: Float64[np.ndarray, "D T"]
    constant: Float64[np.ndarray, "D T"]


@dataclass(frozen=True)
class Weights:
    """q(w, s), q(b) and q(tau) of the features of a view.

    Parameters
    ----------
    mean : array
        mu, mean of the slab.
    variance : array
        sigma^2, variance of the slab, V = K; without a spike, Cov w packed, V = K (K + 1) / 2.
        One row of zeros where rows are sent what they need, and need none of it (`pseudo.sent`).
    inclusion : array or None
        gamma; None without a spike.
    intercept, intercept_variance : array
        b - reference, v_b.
    noise_shape, noise_rate : array or None
        q(tau); None where the likelihood has no such parameter.
    dispersion : array or None
        delta of negative binomial counts, of variance r + delta r^2; None of others.
    """

    mean: Float64[np.ndarray, "D K"]
    variance: Float64[np.ndarray, "#D V"]
    inclusion: Float64[np.ndarray, "D K"] | None
    intercept: Float64[np.ndarray, " D"]
    intercept_variance: Float64[np.ndarray, " D"]
    noise_shape: Float64[np.ndarray, "D T"] | None
    noise_rate: Float64[np.ndarray, "D T"] | None
    dispersion: Float64[np.ndarray, " D"] | None = None


@dataclass(frozen=True)
class View:
    """Parameters that the features of a view share.

    Parameters
    ----------
    alpha_shape, alpha_rate : array
        q(alpha): precision of the slab.
    theta_on, theta_off : array
        q(theta): probability of a weight that is not 0.
    off_variance : array
        v_0, variance of q(w-hat | s = 0) (``hat`` only).
    intercept_mean, intercept_mean_variance, intercept_shape, intercept_rate : float
        q(m), q(lambda): mean and precision of the intercepts.
    pairs : array
        sum_d f_d E[(w, b)(w, b)'].
    """

    alpha_shape: Float64[np.ndarray, " K"]
    alpha_rate: Float64[np.ndarray, " K"]
    theta_on: Float64[np.ndarray, " K"]
    theta_off: Float64[np.ndarray, " K"]
    off_variance: Float64[np.ndarray, " K"]
    intercept_mean: float
    intercept_mean_variance: float
    intercept_shape: float
    intercept_rate: float
    pairs: Float64[np.ndarray, "T Q"]

    @property
    def alpha(self) -> Float64[Array, " K"]:
        """Expected precision of the slab."""
        return self.alpha_shape / self.alpha_rate


@dataclass(frozen=True)
class Globals:
    """All that travels to the blocks.

    Parameters
    ----------
    fixed, weights, views : mapping of view to Fixed, Weights, View
        See there.
    basis : mapping of view to array
        Sketch of the data's row space while the start is computed; then the projection that starts z.
    beta_shape, beta_rate, psi_on, psi_off : array
        q(beta), q(psi): precision and inclusion of the scores of each group.
    second : array
        Average of E[z z'] over the samples, at the last iteration.
    strength : array
        Share of each view's sum of squares that a factor carries: what decides on dropping it.
    transform : array or None
        What the next map applies to stored scores first: a rotation, a selection.
    rest : float or None
        What the bound had after the last iteration besides the likelihood of views with a tangent.
    reached : float or None
        The objective that the last iteration reported, where it is one that may fall (`Settings.paced`).
    pace : float
        Share of the way that scores and weights move then: less after every fall.
    explained : Explained or None
        Set by the closing pass.
    held : Held or None
        Set while weights are with strips of features; then ``fixed`` and ``weights`` are empty.
    numbers : array or None
        Number of each factor, from 0, in the fit that the first of a row of warm starts began with; None:
        they are numbered by their order.
    """

    fixed: Mapping[str, Fixed] = field(metadata=wide())
    weights: Mapping[str, Weights] = field(metadata=wide())
    views: Mapping[str, View]
    basis: Mapping[str, Float64[np.ndarray, "D L"]] = field(metadata=wide())
    beta_shape: Float64[np.ndarray, "G K"]
    beta_rate: Float64[np.ndarray, "G K"]
    psi_on: Float64[np.ndarray, "G K"]
    psi_off: Float64[np.ndarray, "G K"]
    second: Float64[np.ndarray, "K K"]
    strength: Float64[np.ndarray, "M K"]
    transform: Float64[np.ndarray, "K before"] | None = None
    rest: float | None = None
    reached: float | None = None
    pace: float = 1.0
    explained: Explained | None = None
    held: Held | None = None
    numbers: Int64[np.ndarray, " K"] | None = None

    @property
    def n_factors(self) -> int:
        """Number of factors (K)."""
        return int(self.beta_rate.shape[1])


@dataclass(frozen=True)
class Local:
    """q(z) of the rows of a block, kept where it is not a function of the globals alone.

    Parameters
    ----------
    mean : array
        Mean (of the slab, with a spike).
    variance : array
        Variances (of the slab), V = K, or covariances packed, V = K (K + 1) / 2; one row where all are equal.
    inclusion : array or None
        Probability that a score is not 0, with a spike.
    noise_shape, noise_rate : array or None
        q(rho): precision of each sample in each view.
    """

    mean: Float64[np.ndarray, "B K"]
    variance: Float64[np.ndarray, "#B V"]
    inclusion: Float64[np.ndarray, "B K"] | None = None
    noise_shape: Float64[np.ndarray, "B M"] | None = None
    noise_rate: Float64[np.ndarray, "B M"] | None = None


@dataclass(frozen=True)
class Held:
    """What the root holds while each strip of features keeps its own weights.

    Parameters
    ----------
    scores : Local
        q(z) of all samples.
    entropy : float
        Of q(z), without its constant.
    squares : mapping of view to float
        Sum of squares of the entries about the references.
    observed : float
        Entries that are not missing.
    turn : array or None
        What strips apply to their weights first.
    """

    scores: Local
    entropy: float
    squares: Mapping[str, float]
    observed: float
    turn: Float64[np.ndarray, "K before"] | None = None


@dataclass(frozen=True)
class FeatureStats:
    """Statistics of a view with a row for each feature.

    Parameters
    ----------
    cross : array
        sum_n q y^ (z, 1).
    pairs : array or None
        sum_n q E[(z, 1)(z, 1)'], where q depends on the feature.
    squares : array or None
        sum_n q y^2, where it changes (sample noise, parts of the rows).
    dispersion : array or None
        First and second derivative of the expected log-likelihood by the dispersion (P = 2).
    """

    cross: Float64[np.ndarray, "D T K1"]
    pairs: Float64[np.ndarray, "D T Q"] | None
    squares: Float64[np.ndarray, "D T"] | None = None
    dispersion: Float64[np.ndarray, "D T P"] | None = None


@dataclass(frozen=True)
class Stats:
    """Statistics of a block, or of all.

    Parameters
    ----------
    features : mapping of view to FeatureStats
        See there.
    shared : mapping of view to array
        sum_n q E[(z, 1)(z, 1)'], where q does not depend on the feature.
    free : float
        Parts of the likelihood's bound that do not depend on the weights, and the terms of rho.
    entropy : float
        Entropy of q(z) without its constant.
    number, second : array
        sum_n P(score not 0) and sum_n E[z^2] (of the slab) in each group.
    moments : array
        sum_n E[(z, 1)(z, 1)'].
    rows : array
        Samples of each group.
    tangent, reached : float
        Of views whose pseudo-data are a tangent of the bound: its part of ``free``, and the bound itself at
        the scores and weights that the iteration began with.
    """

    features: Mapping[str, FeatureStats] = field(metadata=wide())
    shared: Mapping[str, Float64[np.ndarray, "T Q"]]
    free: float
    entropy: float
    number: Float64[np.ndarray, "G K"]
    second: Float64[np.ndarray, "G K"]
    moments: Float64[np.ndarray, " Q"]
    rows: Float64[np.ndarray, " G"]
    tangent: float = 0.0
    reached: float = 0.0


@dataclass(frozen=True)
class FeatureSums:
    """Sums over the features of a view, after their update.

    Parameters
    ----------
    included, squares : array
        sum_d gamma, sum_d gamma (mu^2 + sigma^2).
    entropy, likelihood, noise : float
        Entropy of q(w), expected log-likelihood, terms of q(tau).
    intercepts, intercept_squares, intercept_entropy : float
        sum_d b, sum_d (b^2 + v_b), sum_d log v_b / 2; b in full.
    pairs : array
        See `View.pairs`.
    gram : array or None
        sum_d E[(w, b)(w, b)'], in the warm-up (for the rotation).
    """

    included: Float64[np.ndarray, " K"]
    squares: Float64[np.ndarray, " K"]
    entropy: float
    likelihood: float
    noise: float
    intercepts: float
    intercept_squares: float
    intercept_entropy: float
    pairs: Float64[np.ndarray, "T Q"]
    gram: Float64[np.ndarray, " Q"] | None


@dataclass(frozen=True)
class Explained:
    """Sums of squares on the data scale, per group and view.

    Parameters
    ----------
    total : array
        About the mean of each feature.
    residual : array
        About the prediction by all factors.
    single : array
        About the prediction by one factor alone.
    """

    total: Float64[np.ndarray, "G M"]
    residual: Float64[np.ndarray, "G M"]
    single: Float64[np.ndarray, "G M K"]


def expected_slab(
    mean: Float64[Array, "N K"], variance: Float64[Array, "#N V"], inclusion: Float64[Array, "N K"] | None
) -> tuple[Float64[Array, "N K"], Float64[Array, "#N V"]]:
    """Return mean and variance of a product of a Bernoulli variable and a Gaussian one (None: always 1).

    What is smaller than 1e-16 becomes 0: squares of it are no normal single-precision numbers, and matrix
    products of such are tens of times slower.
    """
    if inclusion is None:
        return mean, variance
    spread = inclusion * variance + inclusion * (1.0 - inclusion) * mean**2
    mean = inclusion * mean
    return np.where(np.abs(mean) < 1e-16, 0.0, mean), np.where(spread < 1e-32, 0.0, spread)


def expected_weights(weights: Weights) -> tuple[Float64[Array, "D K"], Float64[Array, "#D V"]]:
    """Return E[w], and Var w (D, K) or Cov w packed (D, K (K + 1) / 2)."""
    return expected_slab(weights.mean, weights.variance, weights.inclusion)


def transformed_weights(weights: Weights, transform: Float64[Array, "K before"]) -> Weights:
    """Return the weights after z -> T z, w -> T'^-1 w, given the inverse transpose of T.

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
