"""What a sweep over a block of samples takes and gives, on any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BlockSums", "FactorTables"]

Array = Any


@dataclass(frozen=True)
class FactorTables:
    """What every sample needs of the globals, laid out for the loops.

    Parameters
    ----------
    loadings : (K, N) array
        z, transposed.
    offset : (N,) array
        z_n(K+1).
    gram : (K, K) array
        z'z over all features.
    odds : (K,) array
        a / (1 - a).
    kind, sampler : int
        Constants of `factorflow.models.probit.kernels.samplers`.
    travel : float
        Travel time of a trajectory.
    limit : int
        Events allowed in a trajectory.
    """

    loadings: Array
    offset: Array
    gram: Array
    odds: Array
    kind: int
    sampler: int
    travel: float
    limit: int


@dataclass(frozen=True)
class BlockSums:
    """What a block of samples adds to the statistics.

    Parameters
    ----------
    whole : (P,) array
        Sum of f f', packed by rows of the upper triangle, P = (K + 1)(K + 2) / 2; the last entry of f is 1.
    lacking : (N, P) array
        What of it is not seen by a feature: Q_n = whole - lacking_n.
    cross : (N, K + 1) array
        Sum of x_n y_n f.
    squares : (N,) array
        Sum of y_n^2.
    density : float
        Log joint density of entries and factors (see `sample_step`).
    counts : (6,) array
        Diagnostics of trajectories.
    """

    whole: Array
    lacking: Array
    cross: Array
    squares: Array
    density: float
    counts: Array
