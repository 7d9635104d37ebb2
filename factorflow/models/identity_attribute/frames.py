"""Sweeps over frames one by one: a posterior factorised over frames and identities (equations 20 to 51).

Even frames are updated given the odd ones beside them, then odd ones given even ones: neighbours are never
updated at once, so that every update is exact, and all frames of one parity are independent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from factorflow.models.contract import Block, Gather, Info, Step
from factorflow.models.identity_attribute.frame_statistics import compute_statistics
from factorflow.models.identity_attribute.frame_updates import (
    gather_edge,
    initialize_frames,
    place_frames,
    update_half,
)
from factorflow.models.identity_attribute.learning import Learning, TableSweep
from factorflow.models.identity_attribute.state import Globals, Halves, Stats
from factorflow.models.identity_attribute.tables import Tables


@dataclass(frozen=True)
class Edges:
    """Statistics of a sweep over even frames."""

    edges: Gather


@dataclass(frozen=True)
class FirstFrames(TableSweep[Halves, Edges]):
    """Initial q(b, a) of all frames, and the edges of blocks: results do not depend on where blocks end."""

    name: ClassVar[str] = "first sight"

    def map(self, block: Block, local: Halves | None, globals_: Tables, step: Step) -> tuple[Halves, Edges]:
        """Initialize the frames."""
        frames = initialize_frames(self.settings, block, globals_)
        return frames, Edges(gather_edge(self.settings, block, frames, globals_))

    def update(self, globals_: Globals, stats: Edges, step: Step) -> tuple[Globals, Info]:
        """Put the edges into the globals."""
        return replace(globals_, edges=stats.edges), {}


@dataclass(frozen=True)
class EvenFrames(TableSweep[Halves, Edges]):
    """q(b, a) of even frames."""

    name: ClassVar[str] = "even frames"
    neighbours: ClassVar[bool] = True

    def map(self, block: Block, local: Halves | None, globals_: Tables, step: Step) -> tuple[Halves, Edges]:
        """Update even frames."""
        settings = self.settings
        frames = update_half(settings, block, place_frames(settings, block, local, globals_), globals_, 0)
        return frames, Edges(gather_edge(settings, block, frames, globals_))

    def carry(self, globals_: Globals, stats: Edges, step: Step) -> Globals:
        """Put the edges into the globals."""
        return replace(globals_, edges=stats.edges)


@dataclass(frozen=True)
class OddFrames(Learning[Halves]):
    """q(b, a) of odd frames, then the M-step."""

    name: ClassVar[str] = "odd frames"

    def map(self, block: Block, local: Halves | None, globals_: Tables, step: Step) -> tuple[Halves, Stats]:
        """Update odd frames and sum the statistics of all frames."""
        settings = self.settings
        frames = update_half(settings, block, place_frames(settings, block, local, globals_), globals_, 1)
        return frames, compute_statistics(settings, block, frames, globals_)


@dataclass(frozen=True)
class AllFrames(Learning[Halves]):
    """Even frames, then odd ones, then the M-step: a dataset of one block has no edges to exchange."""

    name: ClassVar[str] = "frames"

    def map(self, block: Block, local: Halves | None, globals_: Tables, step: Step) -> tuple[Halves, Stats]:
        """Update all frames and sum their statistics."""
        settings = self.settings
        frames = update_half(settings, block, place_frames(settings, block, local, globals_), globals_, 0)
        frames = update_half(settings, block, frames, globals_, 1)
        return frames, compute_statistics(settings, block, frames, globals_)
