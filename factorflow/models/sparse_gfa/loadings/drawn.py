"""What priors of loadings have in common where they are drawn; the interface is that of `LoadingsPrior`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy import special

from factorflow.kernels.linalg import unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.kernels import draws

EDGE, SMALLEST = 1e-12, 1e-100
"""theta is kept that far from 0 and 1; gamma variates of tiny shapes, which underflow, above the second."""


@dataclass(frozen=True)
class LoadingParameters:
    """A draw of what the loadings of each factor of a view share.

    Parameters
    ----------
    alpha, theta : array
        Precision, or rate, of the loadings that are not 0, and the share of them.
    shares : array or None
        What the prior learns besides.
    """

    alpha: Float64[np.ndarray, " K"]
    theta: Float64[np.ndarray, " K"]
    shares: Float64[np.ndarray, "P K"] | None = None


@dataclass(frozen=True)
class Equations:
    """Normal equations of (w, b) of some features, and the prior of b, N(shift, 1 / precision).

    Parameters
    ----------
    pairs, cross, scale : array
        Precision scale_d P_d, P packed, and linear term scale_d c_d of the entries.
    precision : array
        Prior precisions of the coefficients of the given columns.
    shift : array
        Prior mean of the first of them, the intercept; that of the others is 0.
    """

    pairs: Float64[np.ndarray, "#D Q"]
    cross: Float64[np.ndarray, "D L"]
    scale: Float64[np.ndarray, " D"]
    precision: Float64[np.ndarray, " C"]
    shift: Float64[np.ndarray, " D"]


Noise = tuple[Float64[np.ndarray, "D K"], Float64[np.ndarray, "D L"]]
"""Uniforms of each loading; normals of loadings and coefficients."""


def draw_gamma(
    shape: Float64[Array, "*_"] | float, rate: Float64[Array, "*_"] | float, uniform: Float64[Array, "*_"]
) -> Float64[Array, "*_"]:
    """Return draws from Gamma(shape, rate) by inversion."""
    return np.maximum(special.gammaincinv(shape, uniform) / rate, SMALLEST)


def draw_sequentially(
    draw: Callable[[int, Array, Array, Array], Float64[Array, " D"]],
    equations: Equations,
    noise: Noise,
    start: Float64[Array, "D L"],
    *,
    backwards: bool,
) -> Float64[Array, "D L"]:
    """Return loadings drawn one factor after the other with b integrated out, then b.

    Parameters
    ----------
    draw : callable
        Draws the loadings of a factor, by its number, linear term and precision of their message, and two
        uniforms of each.
    equations, noise, start
        As in `LoadingsPrior.draw_features`.
    backwards : bool
        Whether the last factor is the first.
    """
    (uniform, normal), k = noise, noise[0].shape[1]
    full = equations.scale[:, None, None] * unpack(equations.pairs, start.shape[1])
    linear = equations.scale[:, None] * equations.cross
    given = full[:, k:, k:] + np.diag(equations.precision)
    linear[:, k : k + 1] += equations.precision[:1] * equations.shift[:, None]
    both = np.concatenate([full[:, k:, :k], linear[:, k:, None]], axis=2)
    solved = np.linalg.solve(given, both)  # of what b is, given w
    left = full[:, :k, :k] - full[:, :k, k:] @ solved[:, :, :k]
    cross = linear[:, :k] - (full[:, :k, k:] @ solved[:, :, k:])[:, :, 0]
    new = start.copy()
    w, words = new[:, :k], np.stack([uniform, special.ndtr(normal[:, :k])], axis=2)
    for i in reversed(range(k)) if backwards else range(k):
        row = left[:, i]
        others = np.einsum("dj,dj->d", row, w) - row[:, i] * w[:, i]
        w[:, i] = draw(i, cross[:, i] - others, row[:, i], words[:, i])
    root = np.linalg.cholesky(given)
    apart = np.linalg.solve(root.transpose(0, 2, 1), normal[:, k:, None])
    new[:, k:] = (solved[:, :, k:] - solved[:, :, :k] @ w[:, :, None] + apart)[:, :, 0]
    return new


def draw_share(
    prior: tuple[Float64[Array, " K"] | float, Float64[Array, " K"] | float],
    on: Float64[Array, " K"],
    off: Float64[Array, " K"],
    uniform: Float64[Array, " K"],
) -> tuple[Float64[Array, " K"], float]:
    """Draw shares of loadings that are not 0, given how many are and are not; return the log density, too."""
    a, b = prior[0] + on, prior[1] + off
    theta = np.clip(special.betaincinv(a, b, uniform), EDGE, 1.0 - EDGE)
    density = float(((a - 1.0) * np.log(theta)).sum())
    density += float(((b - 1.0) * np.log1p(-theta) - special.betaln(*prior)).sum())
    return theta, density


def draw_normal_slabs(
    equations: Equations,
    alpha: Float64[Array, " K"],
    odds: Float64[Array, "#D K"] | None,
    noise: Noise,
    start: Float64[Array, "D L"],
    *,
    backwards: bool,
) -> Float64[Array, "D L"]:
    """Draw loadings that are 0 or N(0, 1 / alpha): which are 0 with (w, b) integrated out, then (w, b)."""
    precision = np.append(alpha, equations.precision)
    arguments = equations.pairs, equations.cross, equations.scale, precision, equations.shift, odds
    return draws.draw_loadings(*arguments, noise, start, backwards=backwards)
