"""The luck of the sets of ``sparse_gfa_draws.py``: what a sampler finds that is told the most.

It knows the precisions of noise and loadings, the share of loadings that are not 0, the number of factors and
the level of the features, and its chain begins at the truth: what it claims of false loadings is what there
are, but for chance. Where it errs in some sets, one that has to learn all this errs for the same reason. A
textbook's Gibbs sampler, apart from the package: z of each sample given w; a Metropolis step z -> z A in the
plane of two factors, det A = 1, s and w summed and integrated out; s and w of each feature given z, s by all
2^K patterns.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy.linalg import expm
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

SWEEPS, BURN_IN = 6000, 500


def inclusions(z: Any, w: Any, y: Any, hidden: Any, share: float, seed: int, names: Any) -> Any:
    """Return posterior inclusion probabilities, one (D, K) for each of ``names``, given all but z and w.

    Parameters
    ----------
    z, w : array
        True scores (N, K) and loadings (D, K), for a start.
    y, hidden : array
        Entries, and which are hidden, (N, D).
    share : float
        Of loadings that are not 0; these are N(0, 1), as noise and scores are.
    seed : int
    names : sequence of array
        Loadings, (D, K), that name the factors of each draw: those nearest to its own, as a posterior aligns
        its draws. Where factors are as near to one as to another, other names would give other inclusions.
    """
    rng, seen = np.random.default_rng([seed, 1]), (~hidden).astype(float)
    data, counts = np.where(hidden, 0.0, y), np.zeros((len(names), *w.shape))
    patterns = np.array(list(itertools.product((0.0, 1.0), repeat=z.shape[1])))
    prior = patterns.sum(axis=1) * np.log(share / (1.0 - share))
    for sweep in range(SWEEPS):
        z = _normals(np.einsum("nd,dk,dl->nkl", seen, w, w, optimize=True), data @ w, rng)
        told = np.einsum("nd,nk,nl->dkl", seen, z, z, optimize=True), data.T @ z
        a = _move(*told, z.T @ z, patterns, prior, rng)
        z = z @ a
        w = _loadings(a.T @ told[0] @ a, told[1] @ a, patterns, prior, rng)
        if sweep >= BURN_IN:
            for count, named in zip(counts, names, strict=True):
                count += w[:, linear_sum_assignment(-np.abs(named.T @ w))[1]] != 0.0
    return counts / (SWEEPS - BURN_IN)


def _move(squares: Any, linear: Any, of_prior: Any, patterns: Any, prior: Any, rng: Any) -> Any:
    """Return A of a step z -> z A, or the identity where it is refused."""
    k = len(of_prior)
    direction, plane = np.zeros((k, k)), rng.choice(k, 2, replace=False)
    entries = rng.standard_normal(3)
    direction[np.ix_(plane, plane)] = [[entries[0], entries[1]], [entries[2], -entries[0]]]
    a = expm(np.exp(rng.uniform(np.log(0.02), 0.0)) * direction)

    def log_density(a: Any) -> float:
        log = _patterns(a.T @ squares @ a, linear @ a, patterns, prior)[2]
        return float(logsumexp(log, axis=0).sum() - 0.5 * np.trace(a.T @ of_prior @ a))

    taken = np.log(rng.random()) < log_density(a) - log_density(np.eye(k))
    return a if taken else np.eye(k)


def _patterns(squares: Any, linear: Any, patterns: Any, prior: Any) -> tuple[Any, Any, Any]:
    """Return precisions less 1, linear terms and log probabilities of each pattern of s of each feature."""
    on = patterns[:, None, :, None] * patterns[:, None, None, :] * squares  # (2^K, D, K, K)
    h = patterns[:, None, :] * linear
    precision = on + np.eye(patterns.shape[1])
    fit = (h * np.linalg.solve(precision, h[..., None])[..., 0]).sum(axis=-1)
    return on, h, prior[:, None] + 0.5 * (fit - np.linalg.slogdet(precision)[1])


def _loadings(squares: Any, linear: Any, patterns: Any, prior: Any, rng: Any) -> Any:
    """Draw which loadings are not 0, their values integrated out, then these; (D, K)."""
    on, h, log = _patterns(squares, linear, patterns, prior)
    steps = np.cumsum(np.exp(log - log.max(axis=0)), axis=0)
    chosen = (steps < rng.random(len(linear)) * steps[-1]).sum(axis=0)
    features = np.arange(len(linear))
    return patterns[chosen] * _normals(on[chosen, features], h[chosen, features], rng)


def _normals(squares: Any, linear: Any, rng: Any) -> Any:
    """Draw x of density exp(-x' x / 2 - x' squares x / 2 + linear' x), by row."""
    root = np.linalg.cholesky(squares + np.eye(linear.shape[1]))
    white = np.linalg.solve(root, linear[..., None]) + rng.standard_normal((*linear.shape, 1))
    return np.linalg.solve(root.transpose(0, 2, 1), white)[..., 0]
