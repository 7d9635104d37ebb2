"""q(z) that a pass begins with: as stored, gone back to, in the basis of now, or blank."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels.linalg import congruence
from factorflow.models.contract import Array, Block, Step
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, Local

START_VARIANCE = 0.1
"""Variance of the scores that a stage begins with."""


def scores_or_blank(settings: Settings, block: Block, local: Local | None, globals_: Globals) -> Local | None:
    """Return the scores of rows; of new samples, seen by no iteration before, what a stage starts with."""
    if local is None and settings.stateful:
        return blank_scores(settings, np.zeros((block.n_rows, globals_.n_factors)))
    return local


def scores_before(local: Local | None, globals_: Globals) -> Local | None:
    """Return the scores to go back to, of before a longer step; None where there is none."""
    if local is None or globals_.progress.snapshot is None:
        return None
    return local if local.before is None else local.before


def rotated_scores(local: Local | None, globals_: Globals) -> Local | None:
    """Return the scores that globals go with, see `scores_of`, after the last change of basis."""
    return apply_transform(scores_of(local, globals_), globals_)


def scores_of(local: Local | None, globals_: Globals) -> Local | None:
    """Return the scores that globals go with, as they are stored.

    After a longer step was given up, those of before it; None where they are of another start.
    """
    if local is None or globals_.change.regained:
        return None
    if globals_.change.restored and local.before is not None:
        return local.before
    return replace(local, before=None)


def apply_transform(local: Local | None, globals_: Globals) -> Local | None:
    """Apply the last change of basis to scores that were stored before it."""
    t = globals_.change.transform
    if local is None or t is None or local.mean.shape[1] != t.shape[1]:
        return local
    mean = local.mean @ t.T
    if globals_.change.shift is not None:
        mean = mean + globals_.change.shift
    if local.variance.shape[1] != local.mean.shape[1]:
        return replace(local, mean=mean, variance=congruence(local.variance, t))
    inclusion = None if local.inclusion is None else local.inclusion @ (t != 0).T.astype(np.float64)
    return replace(local, mean=mean, variance=local.variance @ (t**2).T, inclusion=inclusion)


def starting_scores_of(settings: Settings, block: Block, globals_: Globals, step: Step) -> Local:
    """Return the q(z) that the run starts from."""
    from factorflow.models.sparse_gfa.start.components import starting_scores

    mean = starting_scores(settings, block, globals_, step)
    return blank_scores(settings, mean)


def blank_scores(settings: Settings, mean: Float64[Array, "B K"]) -> Local:
    """Return q(z) with given means and the variance that a stage starts with."""
    shape = (len(mean), len(settings.views))
    noise = np.ones(shape) if settings.sample_noise else None
    inclusion = np.ones(mean.shape) if settings.scores_spike else None
    return Local(mean, np.full(mean.shape, START_VARIANCE), inclusion, noise, noise)


def blank_entropy(mean: Float64[Array, "B K"]) -> float:
    """Return the entropy of `blank_scores`, without its constant."""
    return 0.5 * float(mean.size) * (1.0 + float(np.log(START_VARIANCE)))


def blank_precision(mean: Float64[Array, "B K"]) -> Float64[Array, " K"]:
    """Return `UpdatedRows.precision` of `blank_scores`."""
    return np.full(mean.shape[1], -len(mean) * np.log(START_VARIANCE))
