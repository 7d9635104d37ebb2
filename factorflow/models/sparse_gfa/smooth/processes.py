"""Covariances of smooth functions: kernels, their spectral densities, and how groups share a function.

For places that differ by h_r in covariate r, with length scales l_r, everything follows from
r^2 = sum_r |h_r|^2 / l_r^2; the spectral density at frequencies w_r from q = sum_r l_r^2 |w_r|^2::

    rbf       k = exp(-r^2 / 2)                  log S = p/2 log 2 pi + sum_r p_r log l_r - q / 2
    matern    k of order nu = 1/2, 3/2 or 5/2    log S = c + sum_r p_r log l_r - (nu + p/2) log(2 nu + q)

with p_r dimensions of covariate r, p of all, and c = p log 2 + p/2 log pi + log Gamma(nu + p/2) -
log Gamma(nu) + nu log 2 nu. Slopes are by the logarithm of each length scale.

References
----------
Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, chapter 4. Solin and Sarkka (2020),
Statistics and Computing 30, 419-446.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from scipy.special import gammaln

from factorflow.models.contract import Array

KERNELS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5, "rbf": np.inf}
"""Order nu of each kernel: how often its functions can be differentiated."""


LEVELS = "levels"
"""Kernel of places without distances: independent where they differ."""


def correlation(
    kernel: str, squares: Float64[Array, "R ..."]
) -> tuple[Float64[Array, " ..."], Float64[Array, "R ..."]]:
    """Return the correlation of places, and its slope by the logarithm of each length scale.

    Parameters
    ----------
    kernel : str
        One of `KERNELS`.
    squares : array
        Squared distance in each covariate, in length scales.
    """
    total = squares.sum(axis=0)
    if kernel == LEVELS:
        return (total == 0.0).astype(np.float64), 0.0 * squares
    order = KERNELS[kernel]
    if np.isinf(order):
        value = np.exp(-0.5 * total)
        return value, squares * value
    scaled = np.sqrt(2.0 * order * np.maximum(total, 0.0))
    decay = np.exp(-scaled)
    if order == 0.5:  # its slope has no limit at 0, where the distance has no slope
        return decay, squares * np.divide(decay, scaled, out=np.zeros_like(decay), where=scaled > 0.0)
    if order == 1.5:
        return (1.0 + scaled) * decay, squares * 3.0 * decay
    return (1.0 + scaled + scaled**2 / 3.0) * decay, squares * (5.0 / 3.0) * (1.0 + scaled) * decay


def log_spectral_density(
    kernel: str,
    squares: Float64[Array, "R M"],
    lengths: Float64[Array, " R"],
    dimensions: Float64[Array, " R"],
) -> tuple[Float64[Array, " M"], Float64[Array, "R M"]]:
    """Return log S of a kernel of variance 1, and its slope by the logarithm of each length scale.

    Parameters
    ----------
    kernel : str
        One of `KERNELS`.
    squares : array
        Squared frequency in each covariate.
    lengths, dimensions : array
        Length scale and number of columns of each covariate.
    """
    order, p = KERNELS[kernel], float(dimensions.sum())
    scaled = lengths[:, None] ** 2 * squares
    total, volume = scaled.sum(axis=0), float(dimensions @ np.log(lengths))
    if np.isinf(order):
        return 0.5 * p * np.log(2.0 * np.pi) + volume - 0.5 * total, dimensions[:, None] - scaled
    constant = p * np.log(2.0) + 0.5 * p * np.log(np.pi) + order * np.log(2.0 * order)
    constant += float(gammaln(order + 0.5 * p) - gammaln(order))
    value = constant + volume - (order + 0.5 * p) * np.log(2.0 * order + total)
    return value, dimensions[:, None] - (2.0 * order + p) * scaled / (2.0 * order + total)


def group_correlation(sharing: Float64[Array, " G"]) -> tuple[Float64[Array, "G G"], Float64[Array, "G G G"]]:
    """Return R, 1 on its diagonal and a_g a_h beside it, and its slope by each a.

    Parameters
    ----------
    sharing : array
        a, from -1 to 1: 1 throughout is one course of all groups, 0 one of each.
    """
    correlation, slopes = np.outer(sharing, sharing), np.zeros((len(sharing),) * 3)
    np.fill_diagonal(correlation, 1.0)
    for g in range(len(sharing)):
        slopes[g, g], slopes[g, :, g] = sharing, sharing
        slopes[g, g, g] = 0.0
    return correlation, slopes
