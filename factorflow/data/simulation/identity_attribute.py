"""Sequences of frames in which identities come and go, with attributes that change slowly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS
from factorflow.data.ingest.align import number_names
from factorflow.data.simulation.noise import Noise, Simulation, check_count, share_of
from factorflow.data.simulation.sequence import (
    WINDOW,
    Cuts,
    autoregressive,
    evenly_spaced,
    random_cuts,
    windows_before,
)
from factorflow.data.store.rows import ReadCodes
from factorflow.data.store.view_source import ViewSource
from factorflow.data.store.writer import RowTruth, Truth
from factorflow.errors import InputError
from factorflow.kernels.sites import SIMULATORS

PARAMETERS, PRESENCE = SIMULATORS[1], SIMULATORS[4]
"""Purposes of noise (attributes have that of `autoregressive`)."""

FIRST_VIEW = 5
"""From this number on each view has two: values and gaps."""

FloatArray = NDArray[np.float64]


def identity_attribute(
    n_samples: int,
    draws: Noise,
    n_sequences: int = 8,
    n_features: int = 10,
    n_identities: int = 3,
    n_attributes: int = 2,
    n_views: int = 1,
    dynamics: tuple[float, float] = (0.6, 0.97),
    transition: tuple[tuple[float, float], tuple[float, float]] = ((0.95, 0.05), (0.10, 0.90)),
    precision: tuple[float, float] = (4.0, 10.0),
    equal_lengths: bool = False,
    missing: float | Mapping[str, float] = 0.0,
) -> Simulation:
    """Simulate sequences of frames ``y_t = sum_p W_p a_tp b_tp + noise``.

    Identities are Markov chains that begin with probability 1/2, ``b_t ~ T[b_(t-1)]``; attributes begin as
    N(0, 1) and go on as ``a_t = l a_(t-1) + sqrt(1 - l^2) e_t``; loadings are N(0, 1). One gaussian view
    ``y``, or ``y1``, ``y2``, ... side by side.

    Parameters
    ----------
    n_samples : int
        Frames of all sequences together (N).
    n_identities, n_attributes : int
        P and Q.
    dynamics : (float, float)
        Smallest and largest l; the attributes lie evenly between them, those of an identity far apart.
    transition : pair of pairs
        T, rows of sum 1: from absent, from present.
    precision : (float, float)
        Smallest and largest precision of the noise of a feature.
    equal_lengths : bool
        Sequences of one length (but the last one) instead of random ones of one frame at least.
    missing : float, or mapping of view to float
        Share of the entries that are missing.
    """
    for what, value in {
        "n_features": n_features,
        "n_identities": n_identities,
        "n_attributes": n_attributes,
        "n_views": n_views,
        "n_sequences": n_sequences,
    }.items():
        check_count(what, value)
    chances = _transition_probabilities(transition)
    if not 0.0 < precision[0] <= precision[1]:
        raise InputError("precision", precision, "two positive numbers, the smaller first", "Correct it.")
    draws = replace(draws, tile_rows=WINDOW)
    k = n_identities * n_attributes
    spaced = evenly_spaced("dynamics", dynamics, k)
    decay = spaced.reshape(n_attributes, n_identities).T.reshape(-1)
    generator = draws.generator(PARAMETERS)
    cuts = random_cuts(generator, n_samples, n_sequences)
    if equal_lengths:
        length = -(-n_samples // n_sequences)
        cuts = Cuts(np.diff(np.append(np.arange(0, n_samples, length), n_samples)))

    world = _FrameModel(draws, n_samples, cuts, decay, n_identities, chances)
    arrays: dict[str, Any] = {
        "transition": (("state", "next_state"), np.array(transition, dtype=np.float64)),
        "dynamics": (("identity", "attribute"), decay.reshape(n_identities, n_attributes)),
        "lengths": (("sequence",), cuts.lengths),
    }
    views = []
    for number in range(n_views):
        name = "y" if n_views == 1 else f"y{number + 1}"
        loadings = generator.standard_normal((n_features, k))
        rho = generator.uniform(*precision, n_features)
        feature = f"feature_{name}"
        by_identity = loadings.reshape(n_features, n_identities, n_attributes)
        arrays[f"loadings_{name}"] = ((feature, "identity", "attribute"), by_identity)
        arrays[f"precision_{name}"] = ((feature,), rho)
        view = _View(world, number, loadings, rho, share_of("missing", missing, name))
        views.append(ViewSource(name, number_names("feature", n_features), view.read, KINDS["gaussian"]))
    rows = {
        "present": RowTruth("identity", n_identities, world.present),
        "attributes": RowTruth("component", k, world.attributes),
    }
    codes: dict[str, ReadCodes] = {"sequence": cuts.number, "time": cuts.time}
    return Simulation(views, Truth(arrays, rows), codes, n_sequences=len(cuts.lengths))


@dataclass(frozen=True)
class _FrameModel:
    """The latent states of frames: rows from ``start`` to ``stop`` (B of them).

    Parameters
    ----------
    n_samples : int
        Frames (N).
    decay : (P Q,) array
        l of each attribute, identity by identity.
    n_identities : int
        P.
    chances : (2,) array
        Probability of presence after absence and after presence.
    """

    draws: Noise
    n_samples: int
    cuts: Cuts
    decay: FloatArray
    n_identities: int
    chances: FloatArray

    def attributes(self, start: int, stop: int) -> FloatArray:
        """Return a, (B, P Q)."""
        return _windows(
            lambda w: autoregressive(self.draws, w, self.n_samples, self.cuts, self.decay), start, stop
        )

    def present(self, start: int, stop: int) -> FloatArray:
        """Return b, (B, P)."""
        return _windows(self._present, start, stop)

    def _present(self, window: int) -> FloatArray:
        """Return the presence of identities in the rows of one window, (rows, P).

        A chain is driven by one uniform a frame, so that it forgets where it began: the state at the
        beginning of the window before has no influence left.
        """
        low, first, high = windows_before(window, self.n_samples)
        uniform = self.draws.rows(PRESENCE, low, high, self.n_identities, "uniform")
        fresh = self.cuts.time(low, high) == 0
        out = np.empty((high - low, self.n_identities))
        now = np.zeros(self.n_identities, dtype=np.int64)
        for t in range(high - low):
            now = np.where(uniform[t] < (0.5 if fresh[t] else self.chances[now]), 1, 0)
            out[t] = now
        return out[first - low :]


@dataclass(frozen=True)
class _View:
    """A view of the frames: loadings (D, P Q), precisions rho (D,), and a share of missing entries."""

    world: _FrameModel
    number: int
    loadings: FloatArray
    rho: FloatArray
    missing: float

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the entries, (B, D), NaN where they are missing."""
        world, (n_features, k) = self.world, self.loadings.shape
        values, gaps = (SIMULATORS[FIRST_VIEW + 2 * self.number + i] for i in range(2))
        y = world.draws.rows(values, start, stop, n_features) / np.sqrt(self.rho)
        present = np.repeat(world.present(start, stop), k // world.n_identities, axis=1)
        x = world.attributes(start, stop) * present
        for column in range(k):  # no matrix product: its bits depend on the number of rows
            y += x[:, column : column + 1] * self.loadings[:, column]
        if self.missing:
            y[world.draws.rows(gaps, start, stop, n_features, "uniform") < self.missing] = np.nan
        return y.astype(np.float32)


def _windows(make: Callable[[int], FloatArray], start: int, stop: int) -> FloatArray:
    """Return some rows of what is made window by window."""
    first, last = start // WINDOW, -(-stop // WINDOW)
    rows = np.concatenate([make(window) for window in range(first, last)])
    return rows[start - first * WINDOW : stop - first * WINDOW]


def _transition_probabilities(transition: Any) -> FloatArray:
    """Return the probabilities of presence after absence and after presence."""
    table = np.asarray(transition, dtype=np.float64)
    if table.shape != (2, 2) or (table <= 0).any() or not np.allclose(table.sum(axis=1), 1.0):
        raise InputError(
            "transition",
            transition,
            "two rows of two positive probabilities of sum 1",
            "For example ((0.95, 0.05), (0.1, 0.9)).",
        )
    if abs(table[1, 1] - table[0, 1]) > 0.98:
        raise InputError(
            "transition",
            transition,
            "probabilities of presence that differ by at most 0.98",
            "Chains that hardly ever change are not forgotten within a window.",
        )
    return np.asarray(table[:, 1])
