"""Normal loadings, with a scale of each factor and view."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int8

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.loadings.base import (
    Linear,
    LoadingsPrior,
    Pairs,
    Scale,
    Share,
    slab_variances,
)
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters
from factorflow.models.sparse_gfa.state import View
from factorflow.models.sparse_gfa.weights import Weights


class ARD(LoadingsPrior):
    """w ~ N(0, 1 / alpha)."""

    name, help, allows_plane_moves = "ard", "normal, with a scale of each factor and view", True

    def update(
        self, weights: Weights, view: View, pairs: Pairs, linear: Linear, scale: Scale, step: Share
    ) -> tuple[Weights, float]:
        """Return q(w) and its entropy; see `LoadingsPrior.update`."""
        before = weights.mean, slab_variances(weights), np.ones(weights.mean.shape)
        mean, variance, _, entropy = gfa.coordinate_updates(
            pairs, linear, scale, view.alpha[None], before, None, step
        )
        return replace(weights, mean=mean, variance=variance, inclusion=None), float(entropy.sum())

    def odds(self, parameters: LoadingParameters, classes: Int8[Array, "D K"] | None) -> None:
        """Return None: no loading is 0."""

    def density(self, w: Float64[Array, " n"], view: View) -> tuple[float, Float64[Array, " n"]]:
        """Return the probability of 0, and the density of other values."""
        alpha = view.alpha[0]
        return 0.0, np.sqrt(alpha / (2.0 * np.pi)) * np.exp(-0.5 * alpha * w**2)
