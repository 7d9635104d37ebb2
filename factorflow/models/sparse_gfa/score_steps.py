"""How far q(z) goes in a pass towards what the tangents of the entries say."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels.linalg import triangle, unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.learned_sizes import log_sizes_on_the_way
from factorflow.models.sparse_gfa.messages import TILE
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, Local
from factorflow.models.sparse_gfa.weights import expected_weights

MAX_RISE = 3.0
"""Largest rise of the logarithm of any rate that new scores make in a pass (nats)."""


def step_fraction(
    settings: Settings, globals_: Globals, before: Local, after: Local
) -> float | Float64[Array, "B 1"]:
    """Return how far scores may move: as the pass may, and no logarithm of a rate up by more than `MAX_RISE`.

    That is E x + Var x / 2. An entry of next to no rate has next to no curvature: others move it without
    limit, and a row of such entries takes the covariance of the prior, with which their rates are far higher.
    Where a stage begins with fewer factors, the others would explain at once what those that left did.
    """
    length, k = globals_.progress.step_length, globals_.n_factors
    logs = [view.name for view in settings.views if view.density.log_link]
    moved, packed = after.mean - before.mean, _is_packed(settings, before, after)
    if not logs or not moved.size:
        return length
    loadings = np.concatenate([expected_weights(globals_.weights[name])[0] for name in logs])
    rows, columns = triangle(k)
    twice = np.where(rows == columns, 1.0, 2.0)
    change = 0.5 * twice * (after.variance - before.variance) if packed else np.zeros((1, len(rows)))
    largest = np.abs(loadings).max(axis=0)
    at_most = np.abs(moved) @ largest + np.abs(change) @ (largest[rows] * largest[columns])
    far = np.flatnonzero(at_most > MAX_RISE)
    share = np.full((len(moved), 1), length)
    products = loadings[:, rows] * loadings[:, columns] if len(far) else loadings
    change = np.broadcast_to(change, (len(moved), len(rows)))
    for begin in range(0, len(far), max(1, TILE // len(loadings))):
        some = far[begin : begin + max(1, TILE // len(loadings))]
        rise = (moved[some] @ loadings.T + change[some] @ products.T).max(axis=1)
        share[some, 0] = np.minimum(length, MAX_RISE / np.maximum(rise, 1e-300))
    return share if len(far) else length


def _is_packed(settings: Settings, before: Local, after: Local) -> bool:
    """Return whether both have covariances."""
    both = before.variance.shape[1] == after.variance.shape[1]
    return both and settings.full_scores and not settings.scores_spike


def interpolate_scores(
    settings: Settings, before: Local, after: Local, entropy: float, length: float | Float64[Array, "B 1"]
) -> tuple[Local, float]:
    """Return q(z) on the straight line from one to the next, means and (co)variances, and its entropy.

    Of scores with spikes, or independent ones, the means alone.
    """
    mean = before.mean + length * (after.mean - before.mean)
    after = log_sizes_on_the_way(before, after, length)
    if not _is_packed(settings, before, after):
        return replace(after, mean=mean), entropy
    covariance = before.variance + length * (after.variance - before.variance)
    logdet = np.linalg.slogdet(unpack(covariance, mean.shape[1]))[1]
    if len(logdet) == 1:
        logdet = np.broadcast_to(logdet, len(mean))
    return replace(after, mean=mean, variance=covariance), 0.5 * float(logdet.sum() + mean.size)
