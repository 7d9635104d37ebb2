"""The luck of the sets of ``sparse_gfa_draws.py``: what a sampler finds that is told the most.

It knows the precisions of noise and loadings, the share of loadings that are not 0, the number of factors and
the level of the features, and its chain begins at the truth: what it claims of false loadings is what there
are, but for chance. Where it errs in some sets, one that has to learn all this errs for the same reason. A
textbook's Gibbs sampler, apart from the package: z of each sample given w; s and w of each feature given z, s
by all 2^K patterns.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

SWEEPS, BURN_IN = 10000, 1000


def inclusions(z: Any, w: Any, y: Any, hidden: Any, share: float, seed: int) -> Any:
    """Return posterior inclusion probabilities, (D, K), given all that is not to be found.

    Parameters
    ----------
    z, w : array
        True scores (N, K) and loadings (D, K), for a start and to name factors.
    y, hidden : array
        Entries, and which are hidden, (N, D).
    share : float
        Of loadings that are not 0; these are N(0, 1), as noise and scores are.
    seed : int
    """
    rng = np.random.default_rng([seed, 1])
    seen, truth = (~hidden).astype(float), z
    data, count = np.where(hidden, 0.0, y), np.zeros(w.shape)
    patterns = np.array(list(itertools.product((0.0, 1.0), repeat=z.shape[1])))
    prior = patterns.sum(axis=1) * np.log(share / (1.0 - share))
    for sweep in range(SWEEPS):
        z = _normals(np.einsum("nd,dk,dl->nkl", seen, w, w, optimize=True), data @ w, rng)
        w = _loadings(np.einsum("nd,nk,nl->dkl", seen, z, z, optimize=True), data.T @ z, patterns, prior, rng)
        if sweep >= BURN_IN:
            r = np.abs(np.corrcoef(truth.T, z.T)[: len(z.T), len(z.T) :])
            count += w[:, linear_sum_assignment(-r)[1]] != 0.0
    return count / (SWEEPS - BURN_IN)


def _loadings(squares: Any, linear: Any, patterns: Any, prior: Any, rng: Any) -> Any:
    """Draw which loadings are not 0, their values integrated out, then these; (D, K)."""
    on = patterns[:, None, :, None] * patterns[:, None, None, :]
    precision = on * squares + np.eye(patterns.shape[1])  # (2^K, D, K, K)
    h = patterns[:, None, :] * linear
    fit = (h * np.linalg.solve(precision, h[..., None])[..., 0]).sum(axis=-1)
    log = prior[:, None] + 0.5 * (fit - np.linalg.slogdet(precision)[1])
    steps = np.cumsum(np.exp(log - log.max(axis=0)), axis=0)
    chosen = (steps < rng.random(len(linear)) * steps[-1]).sum(axis=0)
    features = np.arange(len(linear))
    found = _normals(precision[chosen, features] - np.eye(patterns.shape[1]), h[chosen, features], rng)
    return patterns[chosen] * found


def _normals(squares: Any, linear: Any, rng: Any) -> Any:
    """Draw x of density exp(-x' x / 2 - x' squares x / 2 + linear' x), by row."""
    root = np.linalg.cholesky(squares + np.eye(linear.shape[1]))
    white = np.linalg.solve(root, linear[..., None]) + rng.standard_normal((*linear.shape, 1))
    return np.linalg.solve(root.transpose(0, 2, 1), white)[..., 0]
