"""Settings of an identity/attribute model: sizes of the dataset, constants, and positions of frames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Float64, Int

from factorflow.core.block import Array, Block, ViewMeta
from factorflow.core.trees import map_leaves
from factorflow.kernels import device

Pair = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True)
class Hyperparameters:
    """Sizes, start and priors of the model: options of `IdentityAttribute` by other names.

    Parameters
    ----------
    n_identities, n_attributes : int
        P and Q.
    start : {"ica", "random"}
        Where loadings come from.
    start_frames : int
        Frames of which independent components are found, about.
    center : bool
        Learn the value of every feature where no identity is present.
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
class ObservedBlock:
    """The values of a block, views side by side: centred, scaled, 0 where they are missing.

    Parameters
    ----------
    y : array
        Values; D features of all views.
    seen : array or None
        1.0 where there is one; None: everywhere.
    whole : array or None
        Whether all entries of a row are there; None: of all rows.
    n, total, squares : array
        Observed entries, sums of y and of y^2. These and ``whole`` are on the host, wherever the others lie.
    """

    y: Float64[Array, "B D"]
    seen: Float64[Array, "B D"] | None
    whole: Bool[np.ndarray, " B"] | None
    n: Float64[np.ndarray, " D"]
    total: Float64[np.ndarray, " D"]
    squares: Float64[np.ndarray, " D"]


@dataclass(frozen=True)
class Runs:
    """Runs of frames of one sequence in a block (R of them).

    Parameters
    ----------
    starts, stops : array
        First frame of each, and the one behind its last.
    first, last : array
        Whether a sequence begins or ends at a frame.
    """

    starts: Int[np.ndarray, " R"]
    stops: Int[np.ndarray, " R"]
    first: Bool[np.ndarray, " B"]
    last: Bool[np.ndarray, " B"]


@dataclass(frozen=True)
class Settings:
    """A configuration joined with the shape of a dataset.

    Parameters
    ----------
    n_rows, block_rows : int
        Frames; in a block.
    in_sequences : bool
        Whether the dataset has sequences; else all rows are one.
    """

    views: tuple[ViewMeta, ...]
    n_rows: int
    block_rows: int
    in_sequences: bool
    hyper: Hyperparameters

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

    def concatenate_views(self, by_view: dict[str, Array]) -> Array:
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
        return block.once("place", (), lambda: self.first(block) + 2 * self.last(block).astype(np.int64))

    @property
    def one_block(self) -> bool:
        """Whether all frames are in one block: none has a neighbour in another one."""
        return self.n_rows <= self.block_rows

    def runs(self, block: Block) -> Runs:
        """Return the runs of frames of one sequence in a block."""
        return block.once("runs", (), lambda: self._runs(block))

    def _runs(self, block: Block) -> Runs:
        first = self.first(block)
        starts = np.flatnonzero(first | (np.arange(block.n_rows) == 0))
        return Runs(starts, np.append(starts[1:], block.n_rows), first, self.last(block))

    def parity(self, block: Block, parity: int) -> Int[np.ndarray, " n"]:
        """Return the rows of a block that are even (0) or odd (1) frames of their sequences."""
        time = block.columns["time"] if self.in_sequences else block.rows
        return np.flatnonzero(time % 2 == parity)

    def observed(self, block: Block, location: Array, scale: Array) -> ObservedBlock:
        """Return the values of a block, less a location and divided by a scale, (D,) each."""
        where = "observed", device.on_device(block.data[self.views[0].name])
        return block.once(where, (location, scale), lambda: self._observe(block, location, scale))

    def _observe(self, block: Block, location: Array, scale: Array) -> ObservedBlock:
        views = [block.data[view.name] for view in self.views]
        xp, other = device.namespace(views[0]), views[0]
        y = xp.concat([xp.astype(values, np.float64) for values in views], axis=1)
        y -= device.move_beside(location, other)
        y /= device.move_beside(scale, other)
        observed = whole = None
        n = np.full(self.n_features, float(block.n_rows))
        if not self.complete:
            there = xp.isfinite(y)
            y, observed = xp.where(there, y, 0.0), xp.astype(there, np.float64)
            whole, n = (
                np.asarray(device.on_host(xp.all(there, axis=1))),
                device.on_host(xp.sum(observed, axis=0)),
            )
        total, squares = (device.on_host(xp.sum(part, axis=0)) for part in (y, y * y))
        return ObservedBlock(y, observed, whole, n, total, squares)


def move_to_device(state: T, other: Array) -> T:
    """Return the state of a block where ``other`` lies: what a checkpoint had comes from the host."""
    if not device.on_device(other):
        return state
    return map_leaves(lambda leaf: device.move_beside(leaf, other), state)  # type: ignore[no-any-return]
