"""Priors of the loadings: mixtures of a point at zero and normals, and their update given a message.

From the entries of its feature, with all else known, a loading gets the message exp(l w - p w^2 / 2). Each
component of p(w) = sum_j pi_j p_j(w) has a closed integral with it, and q(w, j) = r_j q_j(w) is exact, the
component collapsed. With P_j = p + alpha / c_j^2, for normals N(0, c_j^2 / alpha)::

    log r_j = log pi_j + 1/2 [E log alpha - log c_j^2 - log P_j + l^2 / P_j] + constant
    q_j     = N(l / P_j, 1 / P_j)

| name | components |
|---|---|
| spike_slab | zero, N(0, 1 / alpha); shares theta learned |
| ard | N(0, 1 / alpha) |
| horseshoe | N(0, c^2 / alpha), c = 2^-8 ... 2^8, shares proportional to c / (1 + c^2): half-Cauchy scales |

A further prior is a further class here.

References
----------
Carvalho, Polson and Scott (2010), Biometrika 97, 465-480 (horseshoe).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.errors import InputError
from factorflow.kernels.linalg import diagonal
from factorflow.kernels.special import digamma, expected_log_beta
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.state import View, Weights, expected_weights
from factorflow.trees import replace

__all__ = ["LoadingsPrior", "get_prior", "prior_names"]

Pairs = Float64[np.ndarray, "#D Q"]
Linear = Float64[np.ndarray, "D K"]
Scale = Float64[np.ndarray, " D"]


class LoadingsPrior(ABC):
    """A prior of the loadings of a view."""

    name: ClassVar[str]
    spikes: ClassVar[bool] = False
    """Whether a loading may be 0: it has an inclusion probability then, and theta is learned."""

    @abstractmethod
    def update(
        self, weights: Weights, view: View, pairs: Pairs, linear: Linear, scale: Scale, step: float
    ) -> tuple[Weights, float]:
        """Return q(w) of a run of features, one factor after the other, and its entropy.

        Parameters
        ----------
        weights, view : Weights, View
            Before the update.
        pairs, linear, scale : array
            Normal equations: precision scale_d P_d, packed, and linear term.
        step : float
            Share of the way that natural parameters, or moments of a mixture, move.
        """

    def __init_subclass__(cls) -> None:
        _REGISTRY[cls.name] = cls()


_REGISTRY: dict[str, LoadingsPrior] = {}


class SpikeSlab(LoadingsPrior):
    """Loadings that are 0 with a probability of their own."""

    name, spikes = "spike_slab", True

    def update(
        self, weights: Weights, view: View, pairs: Pairs, linear: Linear, scale: Scale, step: float
    ) -> tuple[Weights, float]:
        inclusion = np.ones(weights.mean.shape) if weights.inclusion is None else weights.inclusion
        on, off = expected_log_beta(view.theta_on, view.theta_off)
        mean, variance, inclusion, entropy = gfa.coordinate_updates(
            pairs,
            linear,
            scale,
            view.alpha[None],
            (weights.mean, _variances(weights), inclusion),
            ((on - off)[None], _log_alpha(view)[None]),
            step,
        )
        return replace(weights, mean=mean, variance=variance, inclusion=inclusion), float(entropy.sum())


class ARD(LoadingsPrior):
    """Loadings of a scale of each factor and view."""

    name = "ard"

    def update(
        self, weights: Weights, view: View, pairs: Pairs, linear: Linear, scale: Scale, step: float
    ) -> tuple[Weights, float]:
        before = weights.mean, _variances(weights), np.ones(weights.mean.shape)
        mean, variance, _, entropy = gfa.coordinate_updates(
            pairs, linear, scale, view.alpha[None], before, None, step
        )
        return replace(weights, mean=mean, variance=variance, inclusion=None), float(entropy.sum())


class Horseshoe(LoadingsPrior):
    """Loadings that are nearly 0 or of any size: nothing is shrunk that is large."""

    name = "horseshoe"
    scales = 2.0 ** np.arange(-8.0, 9.0)
    log_shares = np.log(scales / (1.0 + scales**2) / (scales / (1.0 + scales**2)).sum())

    def update(
        self, weights: Weights, view: View, pairs: Pairs, linear: Linear, scale: Scale, step: float
    ) -> tuple[Weights, float]:
        """Move moments on a straight line where ``step`` is below 1."""
        mean, variance = (part.copy() for part in (expected_weights(weights)[0], _variances(weights)))
        squares, terms = np.empty_like(mean), np.empty_like(mean)
        k = mean.shape[1]
        for i in range(k):
            packed = [max(i, j) * (max(i, j) + 1) // 2 + min(i, j) for j in range(k)]
            row = scale[:, None] * pairs[:, packed]
            rest = linear[:, i] - np.einsum("dj,dj->d", row, mean) + row[:, i] * mean[:, i]
            found = self._collapsed(rest, row[:, i], float(view.alpha[i]), float(_log_alpha(view)[i]))
            centre, second, squares[:, i], terms[:, i] = found
            mean[:, i] += step * (centre - mean[:, i])
            variance[:, i] += step * (second - centre**2 - variance[:, i])
        if step < 1.0 and weights.scaled_square is not None:
            squares = weights.scaled_square + step * (squares - weights.scaled_square)
        new = replace(
            weights, mean=mean, variance=variance, inclusion=None, scaled_square=squares, entropies=terms
        )
        return new, float(terms.sum())

    def _collapsed(
        self, linear: Float64[Array, " D"], p: Float64[Array, " D"], alpha: float, log_alpha: float
    ) -> tuple[Float64[Array, " D"], ...]:
        """Return E w, E w^2, E w^2 / c^2, and -KL(w) without its terms of alpha."""
        squared = self.scales**2
        precision = p[:, None] + alpha / squared
        mean = linear[:, None] / precision
        log_p = np.log(precision)
        share = self.log_shares + 0.5 * (log_alpha - np.log(squared) - log_p + linear[:, None] * mean)
        share -= share.max(axis=1, keepdims=True)
        log_r = share - np.log(np.exp(share).sum(axis=1, keepdims=True))
        r, second = np.exp(log_r), mean**2 + 1.0 / precision
        terms = self.log_shares - log_r + 0.5 * (1.0 - np.log(squared) - log_p)
        return (
            (r * mean).sum(axis=1),
            (r * second).sum(axis=1),
            (r * second / squared).sum(axis=1),
            (r * terms).sum(axis=1),
        )


def _variances(weights: Weights) -> Float64[Array, "D K"]:
    """Return variances, also of the full covariances that the warm-up leaves."""
    return np.asarray(diagonal(weights.variance, weights.mean.shape[1]))


def _log_alpha(view: View) -> Float64[Array, " K"]:
    return np.asarray(digamma(view.alpha_shape) - np.log(view.alpha_rate))


def prior_names() -> tuple[str, ...]:
    """Return the names of all priors of loadings."""
    return tuple(_REGISTRY)


def get_prior(name: str) -> LoadingsPrior:
    """Return a prior by name.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    if name not in _REGISTRY:
        raise InputError("loadings", name, f"one of {', '.join(prior_names())}", "Choose one of them.")
    return _REGISTRY[name]
