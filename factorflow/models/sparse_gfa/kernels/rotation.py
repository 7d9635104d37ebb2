"""Changes of basis of a factor model that raise its bound: K x K work, no data (parameter expansion)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from factorflow.shape import Array

__all__ = ["best_rotation", "best_scale"]


def _rotation_objective(
    rotation: Float64[Array, "K K"],
    moments: Float64[Array, "K K"],
    grams: Sequence[Float64[Array, "K K"]],
    n_rows: int,
    sizes: Sequence[float],
    priors: Sequence[tuple[float, float]],
) -> tuple[float, Float64[Array, "K K"]]:
    """Return the bound as a function of the rotation (up to a constant), and its gradient."""
    sign, logdet = np.linalg.slogdet(rotation)
    if sign <= 0:
        return -np.inf, np.zeros_like(rotation)
    inverse = np.linalg.inv(rotation)
    turned = rotation @ moments
    excess = n_rows - float(sum(sizes))
    value = excess * logdet - 0.5 * float((turned * rotation).sum())
    gradient = excess * inverse.T - turned
    for gram, size, (shape, rate) in zip(grams, sizes, priors, strict=True):
        after = inverse.T @ gram @ inverse
        rates = rate + 0.5 * np.diag(after)
        weight = shape + 0.5 * size
        value -= weight * float(np.log(rates).sum())
        gradient += (after * (weight / rates)) @ inverse.T
    return value, gradient


def best_rotation(
    moments: Float64[Array, "K K"],
    grams: Sequence[Float64[Array, "K K"]],
    n_rows: int,
    sizes: Sequence[float],
    priors: Sequence[tuple[float, float]],
    max_iter: int = 12,
) -> Float64[Array, "K K"]:
    """Return R of z -> R z, w -> R'^-1 w that raises the bound, with q(alpha) at its optimum.

    Maximises (N - sum D_m) log |R| - tr(R P R') / 2
    - sum_m (a_m + D_m / 2) sum_k log(b_m + (R'^-1 M_m R^-1)_kk / 2).

    Parameters
    ----------
    moments : array
        P, sum over samples of E[z z'].
    grams : sequence of array
        M_m, sum over the features of each view of E[w w'].
    n_rows : int
        Samples (N).
    sizes : sequence of float
        Features of each view (D_m).
    priors : sequence of (float, float)
        Shape and rate of the prior of alpha in each view (a_m, b_m).
    max_iter : int
        Steps of L-BFGS.
    """
    from scipy.optimize import minimize

    k = len(moments)
    if k == 1:  # a scale, known exactly: where a search stops depends on the last bits
        r = best_scale(
            np.diag(moments), [np.diag(m) for m in grams], n_rows, [np.array([d]) for d in sizes], priors
        )
        return np.diag(r)
    scale = float(n_rows + sum(sizes))

    def negative(x: Float64[Array, " KK"]) -> tuple[float, Float64[Array, " KK"]]:
        value, gradient = _rotation_objective(x.reshape(k, k), moments, grams, n_rows, sizes, priors)
        return -value / scale, -gradient.ravel() / scale

    start = np.eye(k).ravel()
    found = minimize(negative, start, jac=True, method="L-BFGS-B", options={"maxiter": max_iter})
    better = np.isfinite(found.fun) and found.fun <= negative(start)[0]
    return found.x.reshape(k, k) if better else np.eye(k)


def best_scale(
    second: Float64[Array, " K"],
    squares: Sequence[Float64[Array, " K"]],
    n_rows: int,
    included: Sequence[Float64[Array, " K"]],
    priors: Sequence[tuple[float, float]],
) -> Float64[Array, " K"]:
    """Return r of z_k -> r_k z_k, w_k -> w_k / r_k that maximises the bound over r and q(alpha).

    Maximises (N - sum_m c_m) log r - r^2 S / 2 - sum_m (a_m + c_m / 2) log(b_m + T_m / (2 r^2)), which is
    concave in log r, by Newton's method.

    Parameters
    ----------
    second : array
        S, sum over samples of E[z^2].
    squares, included : sequence of array
        T_m, sum of E[w^2] over the weights of a view that are not 0, and their number c_m.
    n_rows : int
        Samples (N).
    priors : sequence of (float, float)
        Shape and rate of the prior of alpha in each view (a_m, b_m).
    """
    second = np.maximum(second, 1e-300)
    excess = n_rows - sum(included)
    u = 0.5 * np.log(n_rows / second)
    for _ in range(6):
        grown = np.exp(2.0 * u) * second
        slope, curvature = excess - grown, -2.0 * grown
        for c, t, (shape, rate) in zip(included, squares, priors, strict=True):
            x = 0.5 * t * np.exp(-2.0 * u)
            weight = 2.0 * shape + c
            slope = slope + weight * x / (rate + x)
            curvature = curvature - 2.0 * weight * x * rate / (rate + x) ** 2
        u = u - slope / curvature
    return np.exp(u)
