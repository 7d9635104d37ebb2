"""Sums of squares about means, and shares of explained variance."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

ROUNDING = 16 * np.finfo(np.float64).eps
"""A feature's mean square about its mean is rounding where it is below this share of that about 0."""


def total_squares(
    count: Float64[np.ndarray, "G D"], total: Float64[np.ndarray, "G D"], squares: Float64[np.ndarray, "G D"]
) -> Float64[np.ndarray, "G D"]:
    """Return sums of squares of each group about the mean of each feature over all groups.

    Parameters
    ----------
    count, total, squares : array
        Number, sum and sum of squares of the observed entries of each feature in each group. Values far from
        0 are to be taken less a constant of their feature first.

    Returns
    -------
    array
        0 where a feature is constant; NaN where a group has no entry of it, or it has one entry in all.
    """
    n = count.sum(axis=0)
    mean = total.sum(axis=0) / np.maximum(n, 1.0)
    about = squares - 2.0 * mean * total + count * mean**2
    about[about <= ROUNDING * count * squares.sum(axis=0) / np.maximum(n, 1.0)] = 0.0
    return np.where((count > 0) & (n > 1), about, np.nan)


def explained_share(
    total: Float64[np.ndarray, "*#shape"], residual: Float64[np.ndarray, "*#shape"]
) -> Float64[np.ndarray, "*_"]:
    """Return the share of a sum of squares that is not residual: 0 where there is none, NaN where it is NaN.

    Parameters
    ----------
    total : array
        Sum of squares about the means.
    """
    share = 1.0 - residual / np.where(total > 0.0, total, 1.0)
    return np.where(np.isnan(total), np.nan, np.where(total > 0.0, share, 0.0))
