"""Loadings of one factor alone: those of an outcome that guides it.

Which factor that is, `Weights.classes` says; all are open until then. `start.guided` turns the factors so
that one of them is what predicts the outcome.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int8

from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.ard import ARD
from factorflow.models.sparse_gfa.loadings.base import PriorConstants
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters
from factorflow.models.sparse_gfa.loadings.spike_slab import SpikeSlab
from factorflow.models.sparse_gfa.state import View
from factorflow.models.sparse_gfa.weights import Weights

CERTAIN = 1e15
"""Log odds of a loading that is known to be there: no message outweighs them."""


class Guided(SpikeSlab):
    """w ~ N(0, 1 / alpha) of one factor, 0 of the others."""

    name, help, spikes, guides = "guided", "normal, of one factor alone", False, True
    allows_plane_moves = False

    def log_odds(self, weights: Weights, view: View) -> Float64[Array, "#D K"]:
        """Return log odds that are certain."""
        if weights.classes is None:
            return np.full((1, weights.mean.shape[1]), CERTAIN)
        return np.where(weights.classes == 1, CERTAIN, -CERTAIN)

    def odds(
        self, parameters: LoadingParameters, classes: Int8[Array, "D K"] | None
    ) -> Float64[Array, "#D K"]:
        """Return odds that are certain."""
        if classes is None:
            return np.full((1, len(parameters.alpha)), CERTAIN)
        return np.where(classes == 1, CERTAIN, 0.0)

    def density(self, w: Float64[Array, " n"], view: View) -> tuple[float, Float64[Array, " n"]]:
        """Return the probability of 0, and the density of other values."""
        return ARD().density(w, view)

    def optimize(
        self, constants: PriorConstants, weights: Weights, view: View, used: Float64[Array, " K"]
    ) -> View:
        """Return the view with what `learn` found."""
        return view
