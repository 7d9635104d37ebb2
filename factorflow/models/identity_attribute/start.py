"""Initialisation: location of the values, then loadings from independent components of sampled frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.kernels import device
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Block, Gather, Info, Step, Sweep, wide
from factorflow.models.identity_attribute.dynamics import expectations
from factorflow.models.identity_attribute.ica import energy_groups, fast_ica, separate_in_time, whiten
from factorflow.models.identity_attribute.settings import Settings
from factorflow.models.identity_attribute.state import Globals, Standardisation, Weights

SITE_SAMPLE, SITE_ROTATION, SITE_LOADINGS = MODELS[0], MODELS[1], MODELS[2]

MOST_ENTRIES = 1 << 23
"""Entries of the sample of frames, and of those beside them, at most: it is held by one process."""

PRESENCE = 0.5
"""Share of the frames in which an identity is taken to be present at first."""

LEAST_NOISE = 0.05
"""Share of the variance of a feature that is taken for noise at least, at first."""

PERSISTENCE = np.array([[18.0, 2.0], [2.0, 18.0]])
"""Dirichlet parameters of T at first."""

SMOOTHNESS = np.array([10.0, -10.0, 14.0, -10.0])
"""eta, f, g, h of lambda at first: as of 20 pairs of frames with autocorrelation 0.7."""


def empty_globals(settings: Settings) -> Globals:
    """Return globals before any data are seen."""
    k = settings.hyper.n_columns
    dynamics = np.repeat(SMOOTHNESS[:, None], k, axis=1)
    fixed, weights = {}, {}
    for view in settings.views:
        one = np.ones(view.n_features)
        fixed[view.name] = Standardisation(0.0 * one, one)
        weights[view.name] = _weights(np.zeros((view.n_features, k)), one)
    return Globals(
        fixed,
        weights,
        np.ones(k),
        PERSISTENCE.copy(),
        dynamics,
        expectations(dynamics),
        Gather.empty(),
        Gather.empty(),
        np.ones(k),
        np.zeros(k),
    )


def _weights(mean: Float64[np.ndarray, "D K"], precision: Float64[np.ndarray, " D"]) -> Weights:
    one = np.ones_like(precision)
    return Weights(mean, np.full_like(mean, 1e-3), precision, one, 0.0 * one)


@dataclass(frozen=True)
class Extent:
    """Observed entries of the features of a view, their sum, and that of their squares."""

    n: Float64[np.ndarray, " D"]
    total: Float64[np.ndarray, " D"]
    squares: Float64[np.ndarray, " D"]


@dataclass(frozen=True)
class ExtentStats:
    """Statistics of the first pass."""

    views: Mapping[str, Extent] = field(metadata=wide())


@dataclass(frozen=True)
class LocationSweep(Sweep[Globals, None, ExtentStats]):
    """Where each feature lies and how far a view spreads."""

    settings: Settings
    name: ClassVar[str] = "location"

    def map(self, block: Block, local: None, globals_: Globals, step: Step) -> tuple[None, ExtentStats]:
        """Add up moments of the block."""
        block, views = device.block_on_host(block), {}
        for view in self.settings.views:
            y, observed = view.kind.fill_missing(block.data[view.name] - view.about())
            views[view.name] = Extent(observed.sum(axis=0), y.sum(axis=0), (y**2).sum(axis=0))
        return None, ExtentStats(views)

    def update(self, globals_: Globals, stats: ExtentStats, step: Step) -> tuple[Globals, Info]:
        """Fix location and scale; loadings at random where they are to start so."""
        c = self.settings.hyper
        fixed, weights = {}, {}
        for view in self.settings.views:
            own = stats.views[view.name]
            count = np.maximum(own.n, 1.0)
            mean = own.total / count if c.center else np.zeros(view.n_features) - view.about()
            spread = np.maximum(own.squares - 2.0 * mean * own.total + own.n * mean**2, 0.0)
            scale = float(np.sqrt(spread.sum() / max(own.n.sum(), 1.0)))
            place = mean + view.about()
            fixed[view.name] = Standardisation(place, np.full(view.n_features, scale if scale > 0 else 1.0))
            variance = spread / count / (scale**2 if scale > 0 else 1.0)
            numbers = np.array(self.settings.numbers(view.name))
            random = step.normal(SITE_LOADINGS, numbers, c.n_columns) / np.sqrt(PRESENCE * c.n_columns)
            weights[view.name] = _weights(random, 2.0 / np.maximum(variance, LEAST_NOISE))
        return replace(globals_, fixed=fixed, weights=weights), {}


@dataclass(frozen=True)
class SampleStats:
    """Frames of a sample and one beside each, block by block; NaN where there are none."""

    frames: Gather


@dataclass(frozen=True)
class SampleSweep(Sweep[Globals, None, SampleStats]):
    """Loadings from independent components of a bounded sample of frames."""

    settings: Settings
    name: ClassVar[str] = "independent components"

    @property
    def stride(self) -> int:
        """One of so many neighbouring frames is taken."""
        s = self.settings
        most = max(1, min(s.hyper.start_frames, MOST_ENTRIES // (2 * s.n_features)))
        return -(-s.n_rows // most)

    def map(self, block: Block, local: None, globals_: Globals, step: Step) -> tuple[None, SampleStats]:
        """Pick frames, one at random of each run of neighbours: the same under any cut into blocks."""
        s, block = self.settings, device.block_on_host(block)
        location, scale = (
            s.concatenate_views({v: getattr(f, name) for v, f in globals_.fixed.items()})
            for name in ("location", "scale")
        )
        observed = s.observed(block, location, scale)
        windows = np.arange(block.start // self.stride, (block.start + block.n_rows - 1) // self.stride + 1)
        within = np.floor(step.uniform(SITE_SAMPLE, windows)[:, 0] * self.stride).astype(np.int64)
        rows = windows * self.stride + within - block.start
        rows = rows[(rows >= 0) & (rows < block.n_rows)]
        if observed.seen is not None:
            rows = rows[observed.seen[rows].any(axis=1)]
        most = max(s.block_rows, block.n_rows)  # the made-up rows of a trial may be more
        out = np.full((-(-most // self.stride) + 1, 2, s.n_features), np.nan)
        out[: len(rows), 0] = observed.y[rows]
        even = (rows + block.start) % 2 == 0  # the one behind, else the one before: both in any block
        has_one = np.where(even, ~s.last(block)[rows] & (rows + 1 < block.n_rows), ~s.first(block)[rows])
        beside = np.flatnonzero(has_one & (even | (rows > 0)))
        out[beside, 1] = observed.y[rows[beside] + np.where(even[beside], 1, -1)]
        return None, SampleStats(Gather.of(block, out))

    def update(self, globals_: Globals, stats: SampleStats, step: Step) -> tuple[Globals, Info]:
        """Find components, pair them, and turn them into loadings."""
        s = self.settings
        both = np.ascontiguousarray(stats.frames.values).reshape(-1, 2, s.n_features)
        both = both[np.isfinite(both[:, 0, 0])]
        frames = np.ascontiguousarray(both[:, 0])
        mixing = np.zeros((s.n_features, s.hyper.n_columns))
        variance = (frames**2).mean(axis=0) if len(frames) else np.ones(s.n_features)
        if len(frames) > 1 and variance.any():
            mixing = self._mixing(both, step)
        residual_variance = np.maximum(
            variance - (mixing**2).sum(axis=1), np.maximum(LEAST_NOISE * variance, 1e-3)
        )
        weights = {}
        for view in s.views:
            own, part = globals_.weights[view.name], s.slices[view.name]
            mean = mixing[part] / np.sqrt(PRESENCE)
            none = ~mixing.any(axis=0)  # components beyond the rank of the data: a little of the random ones
            mean[:, none] = 0.01 * own.mean[:, none]
            weights[view.name] = _weights(mean, 1.0 / residual_variance[part])
        return replace(globals_, weights=weights), {}

    def _mixing(self, both: Float64[np.ndarray, "n 2 D"], step: Step) -> Float64[np.ndarray, "D K"]:
        """Return what maps independent components of variance 1 to frames; 0 beyond their rank."""
        k, size = self.settings.hyper.n_columns, self.settings.hyper.n_attributes
        centre = both[:, 0].mean(axis=0)
        white, basis = whiten(np.ascontiguousarray(both[:, 0] - centre), k)
        rank = basis.shape[1]
        turn = fast_ica(white, step.normal(SITE_ROTATION, np.arange(rank), rank))
        turn = np.ascontiguousarray(turn[:, energy_groups(white @ turn, size)])
        there = np.isfinite(both[:, 1, 0])
        beside = (both[there, 1] - centre) @ (basis / (basis**2).sum(axis=0)) @ turn
        turn = turn @ separate_in_time(white[there] @ turn, beside, size)
        mixing = np.zeros((len(basis), k))
        mixing[:, :rank] = basis @ turn
        return mixing
