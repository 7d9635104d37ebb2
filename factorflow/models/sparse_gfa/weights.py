"""q of the loadings, intercepts, coefficients and noise of a view; shapes as in `state`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int8

from factorflow.core.trees import replace
from factorflow.kernels.linalg import congruence
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.kernels import products


@dataclass(frozen=True)
class Weights:
    """q(w, s), q(b), b = (intercept, coefficients of the covariates), and q(tau) of the features of a view.

    Parameters
    ----------
    mean : array
        mu, mean of the slab.
    variance : array
        sigma^2, variance of the slab, V = K; without a spike, Cov w packed, V = K (K + 1) / 2.
        One row of zeros where rows need none of it (`pseudo_data.strip_for_workers`).
    inclusion : array or None
        gamma; None without a spike.
    scaled_square, entropies : array or None
        Of scale mixtures: E[w^2 / c^2], c the scale of the component; terms of the bound of each loading
        (`loadings`).
    classes : array or None
        1 where a feature is in the set of a factor, else 0; None while no factor has one.
    shares : array or None
        Probability of each component of a mixture whose shares are learned.
    coefficients, coefficients_spread : array
        E b, the intercept less the reference; Cov b, packed.
    noise_shape, noise_rate : array or None
        q(tau); None where the likelihood has no such parameter.
    phi : array
        Nuisance parameters of the likelihood (`factorflow.likelihoods`): log r of negative binomial counts.
    """

    mean: Float64[np.ndarray, "D K"]
    variance: Float64[np.ndarray, "#D V"]
    inclusion: Float64[np.ndarray, "D K"] | None
    coefficients: Float64[np.ndarray, "D C"]
    coefficients_spread: Float64[np.ndarray, "D CC"]
    noise_shape: Float64[np.ndarray, "D T"] | None
    noise_rate: Float64[np.ndarray, "D T"] | None
    phi: Float64[np.ndarray, "D P"]
    scaled_square: Float64[np.ndarray, "D K"] | None = None
    entropies: Float64[np.ndarray, "D K"] | None = None
    classes: Int8[np.ndarray, "D K"] | None = None
    shares: Float64[np.ndarray, "D J K"] | None = None

    @property
    def intercept(self) -> Float64[Array, " D"]:
        """Intercepts, less the reference."""
        return self.coefficients[:, 0]

    @property
    def intercept_variance(self) -> Float64[Array, " D"]:
        """Their variance."""
        return self.coefficients_spread[:, 0]


def expected_slab(
    mean: Float64[Array, "N K"], variance: Float64[Array, "#N V"], inclusion: Float64[Array, "N K"] | None
) -> tuple[Float64[Array, "N K"], Float64[Array, "#N V"]]:
    """Return mean and variance of a product of a Bernoulli variable and a Gaussian one (None: always 1).

    What is smaller than 1e-16 becomes 0: squares of it are no normal single-precision numbers, and matrix
    products of such are tens of times slower.
    """
    if inclusion is None:
        return mean, variance
    spread = 1.0 - inclusion  # in place, without `where`: each pass does this several times, mostly in memory
    spread *= inclusion
    spread *= mean**2
    spread += inclusion * variance
    mean = inclusion * mean
    mean *= np.abs(mean) >= 1e-16
    spread *= spread >= 1e-32
    return mean, spread


def expected_weights(weights: Weights) -> tuple[Float64[Array, "D K"], Float64[Array, "#D V"]]:
    """Return E[w], and Var w (D, K) or Cov w packed (D, K (K + 1) / 2)."""
    return expected_slab(weights.mean, weights.variance, weights.inclusion)


def sum_pairs(
    weights: Weights,
    precision: Float64[Array, "D T"],
    expected: tuple[Float64[Array, "D K"], Float64[Array, "#D V"]] | None = None,
) -> Float64[Array, "T Q"]:
    """Return sum_d f_d E[(w, b)(w, b)'] for each column f of ``precision``.

    ``expected`` is `expected_weights`, where it is known.
    """
    mean, spread = expected_weights(weights) if expected is None else expected
    coefficients = weights.coefficients, weights.coefficients_spread
    return np.stack([products.sum_pairs(mean, spread, *coefficients, f) for f in precision.T])


def transformed_weights(weights: Weights, transform: Float64[Array, "K before"]) -> Weights:
    """Return the weights after z -> T z, w -> T'^-1 w, given the inverse transpose of T.

    Full covariances follow exactly. Independent (spike-and-slab) weights are only ever selected, permuted,
    and scaled, with one entry in each row of the transform.
    """
    mean = weights.mean @ transform.T
    if weights.inclusion is None and weights.variance.shape[1] != weights.mean.shape[1]:
        return replace(weights, mean=mean, variance=congruence(weights.variance, transform))
    non_zero, squared = (transform != 0).T.astype(np.float64), (transform**2).T
    scaled, entropies = weights.scaled_square, weights.entropies
    included = None if weights.inclusion is None else weights.inclusion @ non_zero
    grown = np.log(np.abs(transform).sum(axis=1)) * (1.0 if included is None else included)
    return replace(
        weights,
        mean=mean,
        variance=weights.variance @ squared,
        inclusion=included,
        scaled_square=None if scaled is None else scaled @ squared,
        entropies=None if entropies is None else entropies @ non_zero + grown,
        shares=None if weights.shares is None else weights.shares @ non_zero,
        classes=None if weights.classes is None else weights.classes @ non_zero.astype(np.int8),
    )
