"""What the closing passes find beside q: variance explained, and loadings under the likelihood itself."""

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
    """

    total: Float64[np.ndarray, "G M"]
    residual: Float64[np.ndarray, "G M"]
    single: Float64[np.ndarray, "G M K"]


@dataclass(frozen=True)
class Corrected:
    """Loadings of a view under the likelihood itself, given q(z); see `debias`.

    Parameters
    ----------
    mean, variance : array
        Of the loadings, the scores integrated out of the variance: while the passes go on of loadings whose
        inclusion is above one half, given that they are not 0; in the end of all, with inclusion.
    covariance, intercept, intercept_variance : array or None
        Packed Cov w, b and its variance, given the scores; None in the end.
    """

    mean: Float64[np.ndarray, "D K"]
    variance: Float64[np.ndarray, "D K"]
    covariance: Float64[np.ndarray, "D P"] | None = None
    intercept: Float64[np.ndarray, " D"] | None = None
    intercept_variance: Float64[np.ndarray, " D"] | None = None
