"""Inputs and outputs of a sweep over a block of samples, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64


@dataclass(frozen=True)
class FactorTables:
    """Tables of the globals that every sample uses, laid out for the loops.

    Parameters
    ----------
    loadings : array
        z, transposed.
    offset : array
        z_n(K+1).
    gram : array
        z'z over all features.
    odds : array
        a / (1 - a).
    kind, sampler : int
        Constants of `factorflow.models.probit.kernels.samplers`.
    travel : float
        Travel time of a trajectory.
    limit : int
        Events allowed in a trajectory.
    """

    loadings: Float64[np.ndarray, "K N"]
    offset: Float64[np.ndarray, " N"]
    gram: Float64[np.ndarray, "K K"]
    odds: Float64[np.ndarray, " K"]
    kind: int
    sampler: int
    travel: float
    limit: int


@dataclass(frozen=True)
class BlockSums:
    """Statistics of a block of samples.

    Parameters
    ----------
    total_gram : array
        Sum of f f', packed by rows of the upper triangle, P = (K + 1)(K + 2) / 2; the last entry of f is 1.
    missing_gram : array
        The part of rows in which a feature is missing: Q_n = total_gram - missing_gram_n.
    cross : array
        Sum of x_n y_n f.
    squares : array
        Sum of y_n^2.
    density : float
        Log joint density of entries and factors (see `sample_step`).
    """

    total_gram: Float64[np.ndarray, " P"]
    missing_gram: Float64[np.ndarray, "N P"]
    cross: Float64[np.ndarray, "N K1"]
    squares: Float64[np.ndarray, " N"]
    density: float
    counts: Float64[np.ndarray, " 6"]
