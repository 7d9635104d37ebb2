"""Loadings that are 0 or positive: parts that add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.errors import InputError
from factorflow.kernels.special import expected_log_beta
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.base import LoadingSums, PriorConstants
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters
from factorflow.models.sparse_gfa.loadings.mixture import Component, Mixture
from factorflow.models.sparse_gfa.state import View
from factorflow.models.sparse_gfa.weights import Weights

SLABS = {"exponential": Component("exponential"), "half_normal": Component("half")}


@dataclass(frozen=True)
class Nonnegative(Mixture):
    """w = s u, s ~ Bernoulli(theta), u ~ Exp(alpha), or N(0, 1 / alpha) on u >= 0.

    Parameters
    ----------
    slab : str
        "exponential" or "half_normal".
    """

    slab: str = "exponential"
    name, help = "nonnegative", "some are 0, others positive"
    spikes, signed, learns_shares = True, False, True
    options = {"scores": "nonnegative"}

    def __post_init__(self) -> None:
        if self.slab not in SLABS:
            raise InputError("slab", self.slab, f"one of {', '.join(SLABS)}", "Choose one of them.")

    @property
    def power(self) -> float:
        """1 of exponentials, whose rate is alpha; 2 of half-normals, whose precision it is."""
        return 1.0 if self.slab == "exponential" else 2.0

    @property
    def components(self) -> tuple[Component, ...]:
        """Zero and the slab."""
        return Component("zero"), SLABS[self.slab]

    def log_shares(self, view: View, factor: int) -> Float64[Array, " J"]:
        """Return E log (1 - theta) and E log theta of a factor."""
        on, off = expected_log_beta(view.theta_on[factor : factor + 1], view.theta_off[factor : factor + 1])
        return np.concatenate([off, on])

    def sums(self, weights: Weights) -> LoadingSums:
        """Return what the loadings add up; of exponentials the loadings themselves."""
        sums = super().sums(weights)
        if self.power == 2.0 or weights.inclusion is None:
            return sums
        return replace(sums, squares=(weights.inclusion * weights.mean).sum(axis=0))

    def drawn_log_shares(self, parameters: LoadingParameters) -> Float64[Array, "J K"]:
        """Return log (1 - theta) and log theta."""
        return np.stack([np.log1p(-parameters.theta), np.log(parameters.theta)])

    def draw_alpha(
        self, constants: PriorConstants, sums: LoadingSums, uniform: Float64[Array, " K"]
    ) -> tuple[Float64[Array, " K"], float]:
        """Draw alpha; half-normals have twice the density of normals."""
        alpha, density = super().draw_alpha(constants, sums, uniform)
        return alpha, density + (np.log(2.0) * float(sums.included.sum()) if self.power == 2.0 else 0.0)
