"""State of a probit factor model: settings, globals, local state, statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from factorflow.kernels.random import Step
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Block, wide
from factorflow.models.probit.kernels.samplers import BINARY, NONNEGATIVE

START_SITE, LOADINGS_SITE = MODELS[3], MODELS[4]
"""Noise: factors at the first sight of a block; loadings before any data (1 and 2 are the kernels')."""


@dataclass(frozen=True)
class Settings:
    """Settings of the sweeps, from configuration and dataset.

    Parameters
    ----------
    n_features, n_factors : int
        N and K.
    scattered : bool
        Whether entries of a row may be missing one by one.
    kind, sampler : int
        Codes of `factorflow.models.probit.kernels.samplers`.
    travel_time : float
        tau_max of a trajectory.
    step_limit : int
        Events allowed in a trajectory.
    activity_prior, density_prior, variance_prior : tuple of (float, float)
        Beta of a_k, Beta of b, inverse gamma of tau^2.
    keep_all : bool
        Whether predictive probabilities are averaged for all entries.
    """

    view: str
    n_features: int
    n_factors: int
    scattered: bool
    kind: int
    sampler: int
    travel_time: float
    step_limit: int
    activity_prior: tuple[float, float]
    density_prior: tuple[float, float]
    variance_prior: tuple[float, float]
    keep_all: bool
    keep_held_out: bool
    keep_means: bool


@dataclass(frozen=True)
class Globals:
    """Globals of one chain.

    Parameters
    ----------
    loadings : dict of str to array
        z of the view, the offset o last; 0 where c = 0.
    activity : array
        a.
    density, variance : float
        b and tau^2.
    """

    loadings: dict[str, Float64[np.ndarray, "N K1"]] = field(metadata=wide())
    activity: Float64[np.ndarray, " K"]
    density: float
    variance: float


@dataclass(frozen=True)
class Local:
    """Factors of a block of B rows, and what is averaged over draws.

    Parameters
    ----------
    on : array
        s, eight factors a byte.
    values : array or None
        f where s = 1, row by row; None for binary factors.
    sum_on, sum_values : array or None
        Sums of s and f.
    sum_chances : array or None
        Sum of Phi(z_n . f), of a 1.
    sum_held_out : array or None
        The same of the held-out entries.
    """

    on: UInt8[np.ndarray, "B bytes"]
    values: Float32[np.ndarray, " A"] | None
    n_kept: int = 0
    sum_on: Float32[np.ndarray, "B K"] | None = None
    sum_values: Float32[np.ndarray, "B K"] | None = None
    sum_chances: Float64[np.ndarray, "B N"] | None = None
    sum_held_out: Float64[np.ndarray, " H"] | None = None

    def factors(self, n_factors: int) -> Float64[np.ndarray, "B K"]:
        """Return f."""
        mask = np.unpackbits(self.on, axis=1, count=n_factors).astype(bool)
        out = np.zeros(mask.shape)
        out[mask] = 1.0 if self.values is None else self.values
        return out


class PackedFactors(TypedDict):
    """The fields of `Local` that hold the factors."""

    on: UInt8[np.ndarray, "B bytes"]
    values: Float32[np.ndarray, " A"] | None


class DrawSums(TypedDict, total=False):
    """The fields of `Local` that sum over draws."""

    n_kept: int
    sum_on: Float32[np.ndarray, "B K"]
    sum_values: Float32[np.ndarray, "B K"]
    sum_chances: Float64[np.ndarray, "B N"]
    sum_held_out: Float64[np.ndarray, " H"]


@dataclass(frozen=True)
class FeatureStats:
    """Statistics per feature.

    Parameters
    ----------
    missing_gram : array or None
        Q_n = total_gram - missing_gram_n; None where all features see the same rows.
    cross, squares : array
        j_n, and the sum of y_n^2.
    """

    missing_gram: Float64[np.ndarray, "N P"] | None
    cross: Float64[np.ndarray, "N K1"]
    squares: Float64[np.ndarray, " N"]


@dataclass(frozen=True)
class Stats:
    """Statistics of all samples.

    Parameters
    ----------
    total_gram : array
        Sum of f f', packed, f_(K + 1) = 1.
    active : array
        |s_k+| after the move.
    n_rows, observed : float
        Rows and observed entries.
    density : float
        log p(x | f) + log p(s, v | a) at the factors the utilities were drawn from, less the part that
        `Globals.activity` alone gives.
    """

    features: dict[str, FeatureStats] = field(metadata=wide())
    total_gram: Float64[np.ndarray, " P"]
    active: Float64[np.ndarray, " K"]
    n_rows: float
    observed: float
    density: float
    counts: Float64[np.ndarray, " 6"]


@dataclass(frozen=True)
class FeatureSums:
    """Sums over a run of features.

    Parameters
    ----------
    included, entries : float
        |c+| and the number of loadings, offsets among them, after the update.
    square : float
        ||Z||^2.
    log_prior : float
        log p(z, c | tau^2, b) before the update.
    """

    included: float
    entries: float
    square: float
    log_prior: float


def initial_factors(settings: Settings, block: Block, step: Step) -> Float64[np.ndarray, "B K"]:
    """Return factors drawn from their prior with a_k = 1/2."""
    from scipy.special import ndtri

    noise = step.uniform(START_SITE, block.rows, 2 * settings.n_factors)
    on = noise[:, ::2] < 0.5
    if settings.kind == BINARY:
        return np.asarray(on, dtype=np.float64)
    v = ndtri(noise[:, 1::2])
    return np.asarray(np.where(on, np.abs(v) if settings.kind == NONNEGATIVE else v, 0.0))


def pack(settings: Settings, factors: Float[np.ndarray, "B K"]) -> PackedFactors:
    """Return the fields of `Local` that hold the factors."""
    mask = factors != 0.0
    values = None if settings.kind == BINARY else factors[mask].astype(np.float32)
    return PackedFactors(on=np.packbits(mask, axis=1), values=values)
