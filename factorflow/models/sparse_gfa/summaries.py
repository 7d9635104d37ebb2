"""Summaries of the closing passes: variance explained, and intervals of loadings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

__all__ = ["Corrected", "Explained"]


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
    terms : array or None
        About the prediction by the covariates of one term, and, last, by all of them.
    """

    total: Float64[np.ndarray, "G M"]
    residual: Float64[np.ndarray, "G M"]
    single: Float64[np.ndarray, "G M K"]
    terms: Float64[np.ndarray, "G M H1"] | None = None


@dataclass(frozen=True)
class Corrected:
    """Loadings of a view with what q(z) leaves open, inclusion in it; see `intervals`."""

    mean: Float64[np.ndarray, "D K"]
    variance: Float64[np.ndarray, "D K"]
