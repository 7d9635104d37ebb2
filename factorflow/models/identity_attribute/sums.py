"""Sums over the frames of a block that the M-step needs, the same for both factorisations."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.kernels import device
from factorflow.kernels.linalg import n_pairs, triangle
from factorflow.models.contract import Array
from factorflow.models.identity_attribute.settings import ObservedBlock, Settings
from factorflow.models.identity_attribute.state import Moments, ViewStats

CHUNK = 512
"""Frames whose packed second moments are in memory at a time."""


def sums_by_view(
    settings: Settings,
    observed: ObservedBlock,
    x: Float64[Array, "B K"],
    total: Float64[np.ndarray, " K"],
    covariance: Float64[Array, "B P Q Q"] | None,
    spread: Float64[np.ndarray, "P Q Q"],
) -> tuple[dict[str, ViewStats], dict[str, Float64[np.ndarray, "K K"]]]:
    """Return the sums of every view, and R of those whose frames are missing whole or not at all.

    Parameters
    ----------
    x, covariance : arrays
        Mean of x = a b, and its covariance within each identity; the latter not where nothing is missing.
    total : array
        Sum of the mean.
    spread : array
        Sum of the covariance over all frames.
    """
    views, second = {}, {}
    y, xp = observed.y, device.namespace(observed.y)
    cross = device.on_host(y.T @ x)
    if observed.seen is None:
        active = np.broadcast_to(total, cross.shape)
    else:
        active = device.on_host(observed.seen.T @ x)
    everywhere = None
    for view in settings.views:
        part = settings.slices[view.name]
        observed_here = None if observed.seen is None else observed.seen[:, part]
        packed = None
        if view.missing == "scattered":
            assert observed_here is not None
            assert covariance is not None
            packed = _packed_sums(observed_here, x, covariance)
        elif view.missing == "none":
            if everywhere is None:
                everywhere = device.on_host(x.T @ x) + block_diagonal(spread)
            second[view.name] = everywhere
        else:
            assert observed_here is not None
            assert covariance is not None
            there = device.move_beside(np.flatnonzero(device.on_host(observed_here[:, 0]) > 0), y)
            rows_shown = x[there]
            spread_there = device.on_host(xp.sum(covariance[there], axis=0))
            second[view.name] = device.on_host(rows_shown.T @ rows_shown) + block_diagonal(spread_there)
        views[view.name] = ViewStats(
            n=observed.n[part],
            total=observed.total[part],
            squares=observed.squares[part],
            active=active[part],
            cross=cross[part],
            second=packed,
        )
    return views, second


def block_diagonal(blocks: Float64[np.ndarray, "P Q Q"]) -> Float64[np.ndarray, "K K"]:
    """Return the matrix with given blocks on its diagonal."""
    p, q, _ = blocks.shape
    out = np.zeros((p, q, p, q))
    out[np.arange(p), :, np.arange(p), :] = blocks
    return out.reshape(p * q, p * q)


def unpack_bands(bands: Float64[np.ndarray, "Q K"]) -> Float64[np.ndarray, "P Q Q"]:
    """Return symmetric matrices given their diagonals beside each other, then what lies beside these."""
    q = len(bands)
    out = np.zeros((bands.shape[1] // q, q, q))
    for apart, band in enumerate(bands):
        low = np.arange(q - apart)
        out[:, low, low + apart] = out[:, low + apart, low] = band.reshape(-1, q)[:, low]
    return out


def _packed_sums(
    observed: Float64[Array, "B D"], x: Float64[Array, "B K"], covariance: Float64[Array, "B P Q Q"]
) -> Float64[np.ndarray, "D pairs"]:
    """Return sum of E x x' over the observed frames of every feature, packed."""
    xp, k, q = device.namespace(x), x.shape[1], covariance.shape[2]
    low, high = triangle(k)
    same = np.flatnonzero(low // q == high // q)  # pairs within one identity
    own = (low[same] // q) * q**2 + (low[same] % q) * q + high[same] % q
    low, high, same, own = (device.move_beside(part, x) for part in (low, high, same, own))
    flat = xp.reshape(covariance, (len(x), -1))
    total = device.move_beside(np.zeros((observed.shape[1], n_pairs(k))), x)
    for start in range(0, len(x), CHUNK):
        part = slice(start, start + CHUNK)
        products = x[part][:, low] * x[part][:, high]
        products[:, same] += flat[part][:, own]
        total += xp.asarray(observed[part].T, copy=True) @ products
    return np.asarray(device.on_host(total))


def state_moments(
    settings: Settings, squares: Float64[np.ndarray, "4 K"], first: Float64[np.ndarray, "n P"], entropy: float
) -> Moments:
    """Return the sums that no pair of frames enters; E a^2 by place, Q(b = 1) in the first frames."""
    starts = np.array([float((1.0 - first).sum()), float(first.sum())])
    k = settings.hyper.n_columns
    return Moments(
        pairs=np.zeros((2, 2)),
        starts=starts,
        first=squares[1] + squares[3],
        current=squares[0] + squares[2],
        previous=squares[0] + squares[1],
        cross=np.zeros(k),
        n_first=float(len(first)),
        n_pairs=0.0,
        entropy=float(entropy),
    )
