"""State of Poisson factors: globals of one or several starts, gammas of the rows, statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Float64

from factorflow.models.contract import Array


@dataclass(frozen=True)
class Gamma:
    """Gamma distributions of any shape: q, with mean shape / rate."""

    shape: Float[np.ndarray, ...]
    rate: Float[np.ndarray, ...]

    @property
    def mean(self) -> Float64[np.ndarray, ...]:
        """E x."""
        return np.asarray(np.asarray(self.shape, np.float64) / self.rate)

    @property
    def variance(self) -> Float64[np.ndarray, ...]:
        """Variance of x."""
        return np.asarray(self.mean / self.rate)

    def logs_and_entropies(self) -> tuple[Float64[np.ndarray, ...], Float64[np.ndarray, ...]]:
        """Return E log x, and the entropies."""
        from factorflow.kernels.gammas import logs_and_entropies

        shape, rate = (np.array(part, np.float64).reshape(-1) for part in (self.shape, self.rate))
        logs, entropies = np.empty(shape.size), np.empty(shape.size)
        logs_and_entropies(shape, rate, logs, entropies)
        return logs.reshape(np.shape(self.shape)), entropies.reshape(np.shape(self.shape))

    def divergence(self, shape: Array, rate: Array, log_rate: Array) -> float:
        """Return KL of q to Gamma(shape, rate), summed; ``log_rate`` is E log rate.

        Parameters
        ----------
        shape, rate, log_rate : arrays
            They broadcast with q.
        """
        from scipy.special import gammaln

        logs, entropies = self.logs_and_entropies()
        expected = (shape - 1.0) * logs + shape * log_rate - rate * self.mean - gammaln(shape)
        return -float((entropies + expected).sum())

    def scaled(self, by: Array) -> Gamma:
        """Return the distributions of multiples of x."""
        return replace(self, rate=self.rate / by)


@dataclass(frozen=True)
class Programs:
    """Globals of one start.

    Parameters
    ----------
    loadings : dict of str to Gamma
        beta by view, (D, K).
    logs : dict of str to array
        E log beta by view, (D, K).
    feature_rates : dict of str to Gamma
        eta by view, (D,).
    batches : dict of str to Gamma
        gamma by view, (batches, D).
    score_rates : Gamma
        b, (K,).
    score_shape : array
        a, (K,).
    loading_shape : float
        c.
    stretch : array
        What the rows have to multiply their theta with, (K,): the last scale step.
    share : array
        Expected counts of each program by view, (views, K).
    objective : float
        Bound of the state before.
    """

    loadings: dict[str, Gamma]
    logs: dict[str, Float64[np.ndarray, "_D K"]]
    feature_rates: dict[str, Gamma]
    batches: dict[str, Gamma]
    score_rates: Gamma
    score_shape: Float64[np.ndarray, " K"]
    loading_shape: float
    stretch: Float64[np.ndarray, " K"]
    share: Float64[np.ndarray, "V K"]
    objective: float = -np.inf


@dataclass(frozen=True)
class Data:
    """Sums over the data, from the first pass.

    Parameters
    ----------
    counts : dict of str to array
        Sums of observed counts by view, (codes of batches, D).
    n_observed : dict of str to array
        Rows in which features are observed, (D,).
    average : dict of str to array
        Averages that size factors are relative to, (D,).
    constant : float
        - sum log y!.
    """

    counts: dict[str, Float64[np.ndarray, "C _D"]]
    n_observed: dict[str, Float64[np.ndarray, " _D"]]
    average: dict[str, Float64[np.ndarray, " _D"]]
    constant: float


@dataclass(frozen=True)
class Globals:
    """Globals: the programs of all starts, and records of the starts.

    Parameters
    ----------
    programs : dict of str to Programs
        By start: "0", "1", ...; of one that began with the consensus of all, "consensus".
    data : Data or None
        None before the data have been read.
    start_loadings : dict of str to array
        E beta of each start by view, (starts, D, K); empty where there is one start.
    objectives : array
        Bound that each start reached, (starts,).
    others : Programs or None
        The features that the model was not fitted to, once they have been visited.
    other_data : Data or None
        What is known of these.
    """

    programs: dict[str, Programs]
    data: Data | None
    start_loadings: dict[str, Float64[np.ndarray, "S _D K"]]
    objectives: Float64[np.ndarray, " S"]
    others: Programs | None = None
    other_data: Data | None = None

    @property
    def best(self) -> Programs:
        """The start with the highest bound."""
        return max(self.programs.values(), key=lambda programs: programs.objective)


Local = dict[str, Gamma]
"""theta of the rows of a block by start, (B, K) of single precision."""


@dataclass(frozen=True)
class ProgramStats:
    """Sums over the rows, of one start.

    Parameters
    ----------
    counts : dict of str to array
        sum y / R exp E log theta, up to a factor of each feature, by view, (D, K).
    exposure : dict of str to array
        sum s E theta over the rows that a view has, (codes of batches, K).
    missing : dict of str to array
        The same over the rows in which a feature is missing, (codes of batches, D, K).
    scores, logs : arrays
        sum E theta, sum E log theta, (K,); the last 0 where shapes are not learned.
    value : float
        What the rows add to the bound of the state before.
    """

    counts: dict[str, Float64[np.ndarray, "_D K"]]
    exposure: dict[str, Float64[np.ndarray, "C K"]]
    missing: dict[str, Float64[np.ndarray, "C _D K"]]
    scores: Float64[np.ndarray, " K"]
    logs: Float64[np.ndarray, " K"]
    value: float


@dataclass(frozen=True)
class Stats:
    """Sums over the rows, by start."""

    programs: dict[str, ProgramStats]
