"""Sums over the frames of a block that the M-step needs, the same for both factorisations."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Int

from factorflow.kernels.linalg import n_pairs, triangle
from factorflow.models.identity_attribute.settings import Observed, Settings
from factorflow.models.identity_attribute.state import ViewStats

__all__ = ["block_diagonal", "by_view", "transitions"]

CHUNK = 512
"""Frames whose packed second moments are in memory at a time."""


def by_view(
    settings: Settings,
    observed: Observed,
    x: Float64[np.ndarray, "B K"],
    covariance: Float64[np.ndarray, "B P Q Q"] | None,
    spread: Float64[np.ndarray, "P Q Q"],
) -> tuple[dict[str, ViewStats], dict[str, Float64[np.ndarray, "K K"]]]:
    """Return the sums of every view, and R of those whose frames are missing whole or not at all.

    Parameters
    ----------
    settings, observed
        The model; the values of the block.
    x, covariance : arrays
        Mean of x = a b, and its covariance within each identity; the latter not where nothing is missing.
    spread : array
        Sum of the covariance over all frames.
    """
    views, second = {}, {}
    cross = observed.y.T @ x
    squares = np.einsum("td,td->d", observed.y, observed.y)
    everywhere = None
    for view in settings.views:
        part = settings.slices[view.name]
        seen = None if observed.seen is None else observed.seen[:, part]
        n = np.full(view.n_features, float(len(x))) if seen is None else seen.sum(axis=0)
        packed = None
        if view.missing == "scattered":
            assert seen is not None
            assert covariance is not None
            packed = _packed(seen, x, covariance)
        elif view.missing == "none":
            if everywhere is None:
                everywhere = x.T @ x + block_diagonal(spread)
            second[view.name] = everywhere
        else:
            assert seen is not None
            assert covariance is not None
            there = seen[:, 0] > 0
            shown = np.ascontiguousarray(x[there])
            second[view.name] = shown.T @ shown + block_diagonal(covariance[there].sum(axis=0))
        views[view.name] = ViewStats(n, squares[part], cross[part], packed)
    return views, second


def block_diagonal(blocks: Float64[np.ndarray, "P Q Q"]) -> Float64[np.ndarray, "K K"]:
    """Return the matrix with given blocks on its diagonal."""
    p, q, _ = blocks.shape
    out = np.zeros((p, q, p, q))
    out[np.arange(p), :, np.arange(p), :] = blocks
    return out.reshape(p * q, p * q)


def _packed(
    seen: Float64[np.ndarray, "B D"],
    x: Float64[np.ndarray, "B K"],
    covariance: Float64[np.ndarray, "B P Q Q"],
) -> Float64[np.ndarray, "D pairs"]:
    """Return sum of E x x' over the observed frames of every feature, packed."""
    k, q = x.shape[1], covariance.shape[2]
    low, high = triangle(k)
    same = np.flatnonzero(low // q == high // q)  # pairs within one identity
    p, i, j = low[same] // q, low[same] % q, high[same] % q
    total = np.zeros((seen.shape[1], n_pairs(k)))
    for start in range(0, len(x), CHUNK):
        part = slice(start, start + CHUNK)
        products = x[part][:, low] * x[part][:, high]
        products[:, same] += covariance[part][:, p, i, j]
        total += np.ascontiguousarray(seen[part].T) @ products
    return total


def transitions(
    before: Float64[np.ndarray, "n P"],
    now: Float64[np.ndarray, "n P"],
    joint: Float64[np.ndarray, "n P"] | None,
    valid: Bool[np.ndarray, " n"] | Int[np.ndarray, " n"],
) -> Float64[np.ndarray, "2 2"]:
    """Return the expected transitions of b; of independent frames where no ``joint`` is given."""
    before, now = before[valid], now[valid]
    both = float((before * now).sum() if joint is None else joint[valid].sum())
    came, went, n = float(before.sum()), float(now.sum()), float(before.size)
    return np.array([[n - came - went + both, went - both], [came - both, both]])
