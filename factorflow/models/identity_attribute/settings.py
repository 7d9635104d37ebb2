"""What an identity/attribute model knows of its dataset, its own choices, and where frames stand in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float64, Int

from factorflow.shape import Array, Block, ViewMeta

__all__ = ["Choices", "Observed", "Settings"]

Pair = tuple[float, float]


@dataclass(frozen=True)
class Choices:
    """The model's own choices; those of `IdentityAttribute` by other names.

    Parameters
    ----------
    n_identities, n_attributes : int
        P and Q.
    start : {"ica", "random"}
        Where loadings come from.
    start_frames : int
        Frames of which independent components are found, about.
    center : bool
        Subtract the mean of every feature.
    initial : float
        pi_0: probability of being present in the first frame of a sequence.
    variance : float
        sigma_a^2: variance of attributes in the first frame of a sequence.
    transition : pair of pairs
        Dirichlet parameters u of the rows of T.
    dynamics : (float, float, float, float)
        eta, f, g, h of the prior of lambda.
    noise : (float, float)
        d, e of the prior of rho.
    """

    n_identities: int
    n_attributes: int
    start: Literal["ica", "random"] = "ica"
    start_frames: int = 20_000
    center: bool = True
    initial: float = 0.5
    variance: float = 1.0
    transition: tuple[Pair, Pair] = ((1.0, 1.0), (1.0, 1.0))
    dynamics: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    noise: Pair = (1e-3, 1e-3)

    @property
    def n_columns(self) -> int:
        """Columns of the loadings, K = P Q."""
        return self.n_identities * self.n_attributes

    @property
    def start_odds(self) -> float:
        """Log odds of being present in the first frame of a sequence."""
        return float(np.log(self.initial) - np.log1p(-self.initial))

    @property
    def dynamics_prior(self) -> Float64[np.ndarray, "4 K"]:
        """eta, f, g, h of every attribute."""
        return np.repeat(np.array(self.dynamics)[:, None], self.n_columns, axis=1)


@dataclass(frozen=True)
class Observed:
    """The values of a block, views side by side: centred, scaled, 0 where they are missing.

    Parameters
    ----------
    y : array
        Values; D features of all views.
    seen : array or None
        1.0 where there is one; None: everywhere.
    whole : array or None
        Whether all entries of a row are there; None: of all rows.
    """

    y: Float64[np.ndarray, "B D"]
    seen: Float64[np.ndarray, "B D"] | None
    whole: Bool[np.ndarray, " B"] | None


@dataclass(frozen=True)
class Settings:
    """A configuration joined with the shape of a dataset.

    Parameters
    ----------
    views : tuple of ViewMeta
        The Gaussian views.
    n_rows, block_rows : int
        Frames; in a block.
    in_sequences : bool
        Whether the dataset has sequences; else all rows are one.
    choices : Choices
        The model's own.
    """

    views: tuple[ViewMeta, ...]
    n_rows: int
    block_rows: int
    in_sequences: bool
    choices: Choices

    @cached_property
    def n_features(self) -> int:
        """Features of all views (D)."""
        return sum(view.n_features for view in self.views)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where the features of each view are among those of all."""
        ends = np.cumsum([0] + [view.n_features for view in self.views])
        return {v.name: slice(int(a), int(b)) for v, a, b in zip(self.views, ends, ends[1:], strict=False)}

    def numbers(self, view: str) -> range:
        """Return the numbers of the features of a view among those of all views: keys of their noise."""
        part = self.slices[view]
        return range(part.start, part.stop)

    @property
    def complete(self) -> bool:
        """Whether no entry is missing anywhere."""
        return all(view.missing == "none" for view in self.views)

    def joined(self, by_view: dict[str, Array]) -> Array:
        """Return arrays of the views' features side by side, (D, ...)."""
        return np.concatenate([by_view[view.name] for view in self.views])

    def first(self, block: Block) -> Bool[np.ndarray, " B"]:
        """Return which frames are the first of their sequence."""
        return np.asarray(block.columns["time"] == 0) if self.in_sequences else block.rows == 0

    def last(self, block: Block) -> Bool[np.ndarray, " B"]:
        """Return which frames are the last of their sequence."""
        if not self.in_sequences:
            return np.asarray(block.rows == self.n_rows - 1)
        return np.append(self.first(block)[1:], not block.into_next)

    def place(self, block: Block) -> Int[np.ndarray, " B"]:
        """Return 1 for first frames, 2 for last ones, 3 for those that are both, 0 for all others."""
        return self.first(block) + 2 * self.last(block).astype(np.int64)

    def parity(self, block: Block, parity: int) -> Int[np.ndarray, " n"]:
        """Return the rows of a block that are even (0) or odd (1) frames of their sequences."""
        time = block.columns["time"] if self.in_sequences else block.rows
        return np.flatnonzero(time % 2 == parity)

    def observed(self, block: Block, location: Array, scale: Array) -> Observed:
        """Return the values of a block, less a location and divided by a scale, (D,) each."""
        return block.once("observed", (location, scale), lambda: self._observed(block, location, scale))

    def _observed(self, block: Block, location: Array, scale: Array) -> Observed:
        y, some_missing = np.empty((block.n_rows, self.n_features)), False
        for view in self.views:
            y[:, self.slices[view.name]] = block.data[view.name]
            some_missing |= view.missing != "none"
        y -= location
        y /= scale
        if not some_missing:
            return Observed(y, None, None)
        there = np.isfinite(y)
        y[~there] = 0.0
        return Observed(y, there.astype(np.float64), np.asarray(there.all(axis=1)))
