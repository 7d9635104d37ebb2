"""Coordinate updates of many independent spike-and-slab vectors."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.core.block import Array
from factorflow.kernels.linalg import diagonal, n_pairs
from factorflow.models.sparse_gfa.kernels.arrays import contiguous, runs

Rows = Float64[Array, "#N K"]


def coordinate_updates(
    pairs: Float64[Array, "#N Q"],
    linear: Float64[Array, "N K"],
    scale: Float64[Array, " #N"],
    prior: Rows,
    before: tuple[Float64[Array, "N K"], Float64[Array, "N K"], Float64[Array, "N K"]],
    odds: tuple[Rows, Rows] | None = None,
    step: float | Rows = 1.0,
) -> tuple[Float64[Array, "N K"], Float64[Array, "N K"], Float64[Array, "N K"], Float64[Array, " N"]]:
    """One pass of coordinate updates over k of N independent spike-and-slab (or Gaussian) vectors.

    With A = scale P, l = h_k - sum_{j != k} A_kj <x_j> and p = A_kk + prior_k: slab N(l / p, 1 / p),
    logit gamma = log odds_k + (log prior_k + l^2 / p - log p) / 2.

    Parameters
    ----------
    pairs, linear, scale, prior
        As in `factorflow.models.sparse_gfa.kernels.products.solve_normals`.
    before : three arrays
        Slab means and variances, and inclusion probabilities to start from.
    odds : two arrays or None
        Log prior odds of inclusion, and E[log prior]; None: no spike.
    step : float or (N, 1) array
        Share of the way that the natural parameters move (a stochastic update:
        log q = s (eta_0 + eta_1 w - eta_2 w^2 / 2) + constant).

    Returns
    -------
    mean, variance, inclusion : array
        Slab means and variances, and inclusion probabilities.
    entropy : array
        sum_k gamma (1 + log variance) / 2 - gamma log gamma - (1 - gamma) log (1 - gamma) of each vector.
    """
    from factorflow.models.sparse_gfa.kernels import lanes

    n_rows, n_factors = linear.shape
    mean, variance, inclusion = (np.empty((n_rows, n_factors)) for _ in range(3))
    entropy = np.empty(n_rows)
    packed, scale = contiguous(pairs), contiguous(scale)
    work = np.empty((n_pairs(n_factors) + 6 * n_factors, lanes.LANES))
    for run in runs(linear):
        mine, factor = _of_run(packed, run), _of_run(scale, run)
        vectors = np.empty((5, len(linear[run]), n_factors))
        h, v, logit, m, gamma = vectors
        h[:], m[:], gamma[:] = linear[run], before[0][run], before[2][run]
        logit[:] = 0.0 if odds is None else _of_run(odds[0], run) + 0.5 * _of_run(odds[1], run)
        precision = factor[:, None] * diagonal(mine[:, : n_pairs(n_factors)], n_factors) + _of_run(prior, run)
        if np.min(step) < 1.0:
            old, share = 1.0 / before[1][run], _of_run(np.reshape(step, (-1, 1)), run)
            h[:] = (1.0 - share) * old * m + share * h
            logit[:] = (1.0 - share) * _own_odds(m, old, gamma) + share * logit
            precision, factor = (1.0 - share) * old + share * precision, contiguous(share[:, 0] * factor)
        log_precision = np.log(precision)
        logit -= 0.5 * log_precision
        v[:] = 1.0 / precision
        lanes.update_coordinates(mine, factor, vectors, odds is not None, work)
        mean[run], variance[run], inclusion[run] = m, v, gamma
        terms = 0.5 * gamma * (1.0 - log_precision)
        if odds is not None:
            size = np.minimum(np.abs(logit), 500.0)
            e = np.exp(-size)
            terms += np.log1p(e) + size * (e / (1.0 + e))
        entropy[run] = np.einsum("nk->n", terms)
    return mean, variance, inclusion, entropy


def _of_run(array: Float64[Array, "#N *rest"], run: slice) -> Float64[Array, "#n *rest"]:
    """Return the rows of a run; one row serves all."""
    return array if len(array) == 1 else array[run]


def _own_odds(
    mean: Float64[Array, "n K"], precision: Float64[Array, "n K"], inclusion: Float64[Array, "n K"]
) -> Float64[Array, "n K"]:
    """Return the constant of log q: logit gamma + (log p - p m^2) / 2, gamma kept 1e-16 away from 0 and 1."""
    p = np.clip(inclusion, 1e-16, 1.0 - 1e-16)
    return np.log(p) - np.log1p(-p) + 0.5 * (np.log(precision) - mean * mean * precision)
