"""Identities as chains: the posterior that keeps the correlations between frames (equation 19).

One identity after the other: q(a_1:T,p) by a smoother in information form with expected natural parameters,
then q(b_1:T,p) by forward and backward recursions. A block sums up what it says of the frame before it and of
its last one; one scan over the summaries of all blocks then tells each what lies on both sides of it. So an
iteration takes two sweeps for each identity, and one that ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from factorflow.kernels import device
from factorflow.models.contract import Array, Block, Gather, Info, Step, Sweep
from factorflow.models.identity_attribute.kernels import loops_for
from factorflow.models.identity_attribute.learning import Learning
from factorflow.models.identity_attribute.settings import Settings
from factorflow.models.identity_attribute.state import Chains, Edge, Globals, Halves, Moments, Stats
from factorflow.models.identity_attribute.sums import by_view
from factorflow.models.identity_attribute.tables import Tables, tables_of
from factorflow.models.identity_attribute.tracks import (
    all_smoothed,
    at_hand,
    attributes_smoothed,
    attributes_span,
    begun,
    faced,
    presence_smoothed,
    presence_span,
    products_of,
)

__all__ = ["AllChains", "AttributeSweep", "ChainEnd", "PresenceSweep"]

State = Chains | Halves


@dataclass(frozen=True)
class PresenceSpan:
    """What blocks say of b before them and of their last one; see `kernels.chains`."""

    spans: Gather


@dataclass(frozen=True)
class AttributeSpan:
    """What blocks say of a before them and of their last one; see `kernels.chains`."""

    spans: Gather


@dataclass(frozen=True)
class Quadratic:
    """exp(-u'Mu / 2 + v'u) of u = (a before a block, its last a); whether its first frame goes on."""

    matrix: Array
    vector: Array
    joined: Array


@dataclass(frozen=True)
class Sides:
    """What lies before and behind a block says of b or a there."""

    before: Array
    behind: Array


@dataclass(frozen=True)
class PresenceSweep(Sweep[Globals, State, PresenceSpan]):
    """Smooth the attributes of an identity, and sum up what a block says of its presence."""

    settings: Settings
    identity: int
    name: ClassVar[str] = "presence"
    neighbours: ClassVar[bool] = True

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables of the globals."""
        return tables_of(self.settings, globals_)

    def map(
        self, block: Block, local: State | None, globals_: Tables, step: Step
    ) -> tuple[Chains, PresenceSpan]:
        """Smooth and sum up."""
        s, p, tables = self.settings, self.identity, globals_
        now = at_hand(s, block, local, tables)
        now = attributes_smoothed(s, block, now, p, tables, tables.sides.own(block))
        return now, PresenceSpan(Gather.of(block, presence_span(s, block, now, p, tables)))

    def carry(self, globals_: Globals, stats: PresenceSpan, step: Step) -> Globals:
        """Scan over all blocks."""
        from factorflow.models.identity_attribute.kernels.presence import scan_presence

        spans = np.ascontiguousarray(stats.spans.values)
        before, behind = np.empty(len(spans)), np.empty(len(spans))
        scan_presence(spans, before, behind)
        return replace(globals_, sides=Gather(stats.spans.numbers, Sides(before, behind)))

    def update(self, globals_: Globals, stats: PresenceSpan, step: Step) -> tuple[Globals, Info]:
        """Learn nothing."""
        return globals_, {}


@dataclass(frozen=True)
class AttributeSweep(Sweep[Globals, State, AttributeSpan]):
    """Sum up what a block says of the attributes of an identity; before that, finish the one before."""

    settings: Settings
    identity: int
    name: ClassVar[str] = "attributes"
    neighbours: ClassVar[bool] = True

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables of the globals."""
        return tables_of(self.settings, globals_)

    def map(
        self, block: Block, local: State | None, globals_: Tables, step: Step
    ) -> tuple[Chains, AttributeSpan]:
        """Take the identity out of what explains the data, and sum up."""
        s, p = self.settings, self.identity
        now = begun(s, block, local, globals_) if p == 0 else at_hand(s, block, local, globals_)
        if p > 0:
            now = presence_smoothed(s, block, now, p - 1, globals_, _odds_beside(globals_, block))
        now = faced(s, block, now, p, globals_)
        matrix, vector = attributes_span(s, block, now, p, globals_)
        span = Quadratic(matrix, vector, float(not s.first(block)[0]))
        return now, AttributeSpan(Gather.of(block, span))

    def carry(self, globals_: Globals, stats: AttributeSpan, step: Step) -> Globals:
        """Scan over all blocks."""
        from factorflow.models.identity_attribute.kernels.spans import scan_attributes

        spans, size = stats.spans.values, self.settings.choices.n_attributes
        count = len(stats.spans.numbers)
        before, behind = np.empty((count, size + 1, size)), np.empty((count, size + 1, size))
        scan_attributes(
            (0,) * size,
            np.ascontiguousarray(spans.matrix),
            np.ascontiguousarray(spans.vector),
            np.ascontiguousarray(spans.joined, dtype=np.float64),
            before,
            behind,
        )
        return replace(globals_, sides=Gather(stats.spans.numbers, Sides(before, behind)))

    def update(self, globals_: Globals, stats: AttributeSpan, step: Step) -> tuple[Globals, Info]:
        """Learn nothing."""
        return globals_, {}


@dataclass(frozen=True)
class ChainEnd(Learning[State]):
    """Smooth the presence of the last identity, then the M-step."""

    name: ClassVar[str] = "chains"

    def map(self, block: Block, local: State | None, globals_: Tables, step: Step) -> tuple[Chains, Stats]:
        """Smooth, and add up what all frames say of the globals."""
        settings, last = self.settings, self.settings.choices.n_identities - 1
        now = at_hand(settings, block, local, globals_)
        now = presence_smoothed(settings, block, now, last, globals_, _odds_beside(globals_, block))
        return now, _statistics(settings, block, now, globals_)


@dataclass(frozen=True)
class AllChains(Learning[State]):
    """All identities in turn, then the M-step: in a dataset of one block no chain goes on elsewhere."""

    name: ClassVar[str] = "chains"

    def map(self, block: Block, local: State | None, globals_: Tables, step: Step) -> tuple[Chains, Stats]:
        """Smooth, and add up what all frames say of the globals."""
        settings = self.settings
        now = begun(settings, block, local, globals_, halfway=False)
        now = all_smoothed(settings, block, now, globals_)
        return now, _statistics(settings, block, now, globals_)


def _odds_beside(tables: Tables, block: Block) -> tuple[float, float]:
    """Return the log odds of b that what lies before and behind a block says."""
    sides = tables.sides.own(block)
    return float(sides.before), float(sides.behind)


def _statistics(settings: Settings, block: Block, local: Chains, tables: Tables) -> Stats:
    """Return the sums over the frames of a block."""
    observed = settings.observed(block, tables.location, tables.scale)
    runs = settings.runs(block)
    tracks, xp, c = local.tracks, device.namespace(observed.y), settings.choices
    chances, moments = np.zeros((c.n_identities, 5)), np.zeros((4, c.n_columns))
    spread = np.zeros((c.n_identities, c.n_attributes, c.n_attributes))
    for p, t in enumerate(tracks):
        own = slice(p * c.n_attributes, (p + 1) * c.n_attributes)
        loops_for(t.mean).tally_chain(
            (0,) * c.n_attributes, runs.first, runs.last, t.present, t.joint, t.earlier, t.present_entropy,
            t.mean_entropy, t.mean, t.covariance, t.cross, chances[p], moments[:, own], spread[p],
        )  # fmt: skip
    covariance = None if settings.complete else products_of(tracks)[1]
    active = device.on_host(device.namespace(local.activity).sum(local.activity, axis=0))
    views, second = by_view(settings, observed, local.activity, active, covariance, spread)
    both, came, went, begun_with, entropy = (float(total) for total in chances.sum(axis=0))
    n_first = int(runs.first.sum())
    n_pairs = block.n_rows - n_first
    n = n_pairs * c.n_identities
    sums = Moments(
        pairs=np.array([[n - came - went + both, went - both], [came - both, both]]),
        starts=np.array([n_first * c.n_identities - begun_with, begun_with]),
        first=moments[0],
        current=moments[1],
        previous=moments[2],
        cross=moments[3],
        n_first=float(n_first),
        n_pairs=float(n_pairs),
        entropy=entropy,
    )
    ends = slice(None, None, max(1, block.n_rows - 1))
    present = device.on_host(xp.stack([t.present[ends] for t in tracks], axis=1))
    a = device.on_host(xp.concat([t.mean[ends] for t in tracks], axis=1))
    return Stats(views, second, sums, Gather.of(block, Edge(present[0], present[-1], a[0], a[-1])))
