"""Sequences of unequal length with factors that change slowly from row to row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS
from factorflow.data.ingest.align import number_names
from factorflow.data.simulation.noise import Noise, Simulation, check_count, share_of
from factorflow.data.store.view_source import ViewSource
from factorflow.data.store.writer import RowTruth, Truth
from factorflow.errors import InputError
from factorflow.kernels.sites import SIMULATORS

SCORES, PARAMETERS, VALUES, GAPS = (SIMULATORS[i] for i in range(4))
"""Purposes of noise."""

WINDOW = 1024
"""Rows whose factors are computed together, from the beginning of the window before (or of the sequence) on:
what came earlier has no share left that float32 could hold."""

LARGEST = 0.98
"""Largest autocorrelation; 0.98 to the power of the window is 1e-9."""

VIEW = "y"

FloatArray = NDArray[np.float64]


def sequence(
    n_samples: int,
    draws: Noise,
    n_sequences: int = 8,
    n_features: int = 10,
    n_factors: int = 3,
    autocorrelation: tuple[float, float] = (0.5, 0.95),
    noise: float = 0.5,
    missing: float | Mapping[str, float] = 0.0,
) -> Simulation:
    """Simulate sequences of a factor model whose factors are autoregressive.

    ``z_1 ~ N(0, 1)``, ``z_tk = a_k z_(t-1)k + sqrt(1 - a_k^2) e_tk`` in each sequence, and
    ``y_t = b + W z_t + noise``: one gaussian view ``y``. Sequences begin and end anywhere.

    Parameters
    ----------
    n_samples : int
        Rows of all sequences together (N).
    n_sequences : int
        Sequences; their lengths are random, one row at least.
    n_features, n_factors : int
        Shape of the loadings.
    autocorrelation : (float, float)
        Smallest and largest a_k; the factors lie evenly between them.
    noise : float
        Standard deviation of the noise.
    missing : float, or mapping of view to float
        Share of the entries that are missing.
    """
    check_count("n_features", n_features)
    check_count("n_factors", n_factors)
    if not noise > 0:
        raise InputError("noise", noise, "a positive number", "Correct it.")
    share = share_of("missing", missing, VIEW)
    draws = replace(draws, tile_rows=WINDOW)
    decay = evenly_spaced("autocorrelation", autocorrelation, n_factors)
    generator = draws.generator(PARAMETERS)
    loadings = generator.standard_normal((n_features, n_factors))
    intercept = generator.standard_normal(n_features)
    cuts = random_cuts(generator, n_samples, n_sequences)

    def scores(start: int, stop: int) -> FloatArray:
        first, last = start // WINDOW, -(-stop // WINDOW)
        parts = [autoregressive(draws, window, n_samples, cuts, decay) for window in range(first, last)]
        return np.concatenate(parts)[start - first * WINDOW : stop - first * WINDOW]

    def read(start: int, stop: int) -> NDArray[np.float32]:
        y, z = intercept + noise * draws.rows(VALUES, start, stop, n_features), scores(start, stop)
        for k in range(n_factors):  # no matrix product: its bits depend on the number of rows
            y += z[:, k : k + 1] * loadings[:, k]
        if share:
            y[draws.rows(GAPS, start, stop, n_features, "uniform") < share] = np.nan
        return y.astype(np.float32)

    feature = f"feature_{VIEW}"
    arrays = {
        f"loadings_{VIEW}": ((feature, "factor"), loadings),
        f"intercept_{VIEW}": ((feature,), intercept),
        f"noise_deviation_{VIEW}": ((feature,), np.full(n_features, noise)),
        "autocorrelation": (("factor",), decay),
        "lengths": (("sequence",), cuts.lengths),
    }
    truth = Truth(arrays, {"scores": RowTruth("factor", n_factors, scores)})
    view = ViewSource(VIEW, number_names("feature", n_features), read, KINDS["gaussian"])
    return Simulation([view], truth, {"sequence": cuts.number, "time": cuts.time}, n_sequences=n_sequences)


@dataclass(frozen=True)
class Cuts:
    """Where sequences begin among the rows.

    Parameters
    ----------
    lengths : (n_sequences,) array
        Rows of each.
    """

    lengths: NDArray[np.int64]

    @property
    def begins(self) -> NDArray[np.int64]:
        """First rows."""
        return np.cumsum(self.lengths) - self.lengths

    def number(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the sequences of some rows."""
        index = np.searchsorted(self.begins, np.arange(start, stop), side="right") - 1
        return np.asarray(index, dtype=np.int32)

    def time(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the places of some rows in their sequences."""
        return np.asarray(np.arange(start, stop) - self.begins[self.number(start, stop)], dtype=np.int32)


def random_cuts(generator: np.random.Generator, n_samples: int, n_sequences: int) -> Cuts:
    """Return sequences of random lengths, of one row at least."""
    check_count("n_sequences", n_sequences)
    if n_sequences > n_samples:
        raise InputError("n_sequences", n_sequences, f"at most n_samples = {n_samples}", "Ask for fewer.")
    weight = generator.gamma(0.7, size=n_sequences)
    return Cuts(1 + generator.multinomial(n_samples - n_sequences, weight / weight.sum()))


def windows_before(window: int, n_samples: int) -> tuple[int, int, int]:
    """Return where the noise of a window begins, and first row and end of the window itself."""
    first = window * WINDOW
    return max(0, first - WINDOW), first, min(first + WINDOW, n_samples)


def autoregressive(draws: Noise, window: int, n_samples: int, cuts: Cuts, decay: FloatArray) -> FloatArray:
    """Return stationary autoregressive factors of the rows of one window, (rows, K).

    Parameters
    ----------
    draws : Noise
        With tiles of `WINDOW` rows.
    n_samples : int
        Rows of all.
    decay : (K,) array
        Autocorrelations.
    """
    from scipy.signal import lfilter

    low, first, high = windows_before(window, n_samples)
    begins = cuts.begins
    spread = np.sqrt(1.0 - decay**2)
    shock = draws.rows(SCORES, low, high, decay.size).astype(np.float64)
    inside = begins[(begins >= low) & (begins < high)]
    shock[inside - low] /= spread  # the first row of a sequence has the variance of all others
    edges = np.unique([low, *inside.tolist(), high]) - low
    out = np.empty_like(shock)
    for start, stop in zip(edges[:-1], edges[1:], strict=True):
        if stop + low > first:
            for k, a in enumerate(decay):
                out[start:stop, k] = lfilter([spread[k]], [1.0, -a], shock[start:stop, k])
    return out[first - low :]


def evenly_spaced(name: str, autocorrelation: tuple[float, float], n_factors: int) -> FloatArray:
    """Return autocorrelations evenly between two, refusing those that the windows are too short for."""
    low, high = autocorrelation
    if not 0.0 <= low <= high <= LARGEST:
        raise InputError(
            name,
            autocorrelation,
            f"two numbers from 0 to {LARGEST}, the smaller first",
            "For example (0.5, 0.95).",
        )
    return np.linspace(low, high, n_factors)
