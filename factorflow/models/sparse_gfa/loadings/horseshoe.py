"""Loadings that are nearly 0 or of any size: nothing is shrunk that is large.

References
----------
Carvalho, Polson and Scott (2010), Biometrika 97, 465-480.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters
from factorflow.models.sparse_gfa.loadings.mixture import Component, Mixture
from factorflow.models.sparse_gfa.state import View


class Horseshoe(Mixture):
    """w ~ N(0, c^2 / alpha), c half-Cauchy: of 2^-8 ... 2^8, with shares proportional to c / (1 + c^2)."""

    name, help = "horseshoe", "many are nearly 0, others of any size"
    scales = 2.0 ** np.arange(-8.0, 9.0)
    shares = np.log(scales / (1.0 + scales**2) / (scales / (1.0 + scales**2)).sum())
    components = tuple(Component("normal", float(c)) for c in scales)

    def log_shares(self, view: View, factor: int) -> Float64[Array, " J"]:
        """Return the shares of the grid."""
        return self.shares

    def drawn_log_shares(self, parameters: LoadingParameters) -> Float64[Array, "J K"]:
        """Return the shares of the grid."""
        return np.repeat(self.shares[:, None], len(parameters.alpha), axis=1)
