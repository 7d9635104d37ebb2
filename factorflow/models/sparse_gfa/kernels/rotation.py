"""Changes of basis of a factor model that raise its bound: K x K work, no data (parameter expansion)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from factorflow.core.block import Array


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
    rotated = rotation @ moments
    excess = n_rows - float(sum(sizes))
    value = excess * logdet - 0.5 * float((rotated * rotation).sum())
    gradient = excess * inverse.T - rotated
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
        number = np.full((1, 1), float(n_rows))
        squares, included = [np.diag(m) for m in grams], [np.array([d]) for d in sizes]
        r = best_scale(np.diag(moments)[None], number, squares, included, priors)
        return np.diag(r)
    scale = float(n_rows + sum(sizes))

    def negative(x: Float64[Array, " KK"]) -> tuple[float, Float64[Array, " KK"]]:
        value, gradient = _rotation_objective(x.reshape(k, k), moments, grams, n_rows, sizes, priors)
        return -value / scale, -gradient.ravel() / scale

    start = np.eye(k).ravel()
    optimum = minimize(negative, start, jac=True, method="L-BFGS-B", options={"maxiter": max_iter})
    better = np.isfinite(optimum.fun) and optimum.fun <= negative(start)[0]
    return optimum.x.reshape(k, k) if better else np.eye(k)


_NEWTON, _LONGEST = 12, 2.0
"""Newton steps of a scale, and the most that its logarithm moves in one."""


def best_scale(
    second: Float64[Array, "G K"],
    number: Float64[Array, "G _"],
    squares: Sequence[Float64[Array, " K"]],
    included: Sequence[Float64[Array, " K"]],
    priors: Sequence[tuple[float, float]],
    scores: tuple[float, float] | None = None,
    powers: Sequence[float] | None = None,
) -> Float64[Array, " K"]:
    """Return r of z_k -> r_k z_k, w_k -> w_k / r_k that maximises the bound over r, q(alpha) and q(beta).

    Maximises (N - sum_m c_m) log r - r^2 S / 2 - sum_m (a_m + c_m / n) log(b_m + T_m / (n r^n)), which is
    concave in log r, by Newton's method; where the scores of each group have a precision beta of their own,
    sum_g (a + N_g / 2) log(b + r^2 S_g / 2) takes the place of r^2 S / 2.

    Parameters
    ----------
    second, number : array
        S, sum over samples of E[z^2], and their number N, by group.
    squares, included : sequence of array
        T_m, sum of E |w|^n over the weights of a view that are not 0, and their number c_m.
    priors : sequence of (float, float)
        Shape and rate of the prior of alpha in each view (a_m, b_m).
    scores : (float, float) or None
        Shape and rate of the prior of beta (a, b); None: scores have variance 1.
    powers : sequence of float or None
        n of each view; None: 2.
    """
    powers = [2.0] * len(priors) if powers is None else powers
    second = np.maximum(second, 1e-300)
    n_rows = number.sum(axis=0)
    u = 0.5 * np.log(n_rows / second.sum(axis=0))
    for _ in range(_NEWTON):
        grown = np.exp(2.0 * u) * second
        slope, curvature = n_rows - sum(included), np.zeros_like(u)
        if scores is None:
            slope, curvature = slope - grown.sum(axis=0), -2.0 * grown.sum(axis=0)
        else:
            weight, x = 2.0 * scores[0] + number, 0.5 * grown
            slope = slope - (weight * x / (scores[1] + x)).sum(axis=0)
            curvature = curvature - 2.0 * (weight * x * scores[1] / (scores[1] + x) ** 2).sum(axis=0)
        for c, t, (shape, rate), n in zip(included, squares, priors, powers, strict=True):
            x = t / n * np.exp(-n * u)
            weight = n * shape + c
            slope = slope + weight * x / (rate + x)
            curvature = curvature - n * weight * x * rate / (rate + x) ** 2
        u = u - np.clip(slope / np.minimum(curvature, -1e-300), -_LONGEST, _LONGEST)
    return np.exp(u)
