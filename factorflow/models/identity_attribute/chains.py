"""Identities as chains: the posterior that keeps the correlations between frames (equation 19).

One identity after the other: q(a_1:T,p) by a smoother in information form with expected natural parameters,
then q(b_1:T,p) by forward and backward recursions. Each block computes a message on the frame before it and
on its last one; one scan over the messages of all blocks gives each block those of both sides. So an
iteration takes two sweeps for each identity, and a last one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from factorflow.kernels import device
from factorflow.models.contract import Array, Block, Gather, Step
from factorflow.models.identity_attribute.chain_updates import (
    compute_attribute_message,
    compute_evidence,
    compute_presence_message,
    initialize_chains,
    place_chains,
    product_moments,
    smooth_all_chains,
    smooth_attribute_chain,
    smooth_presence_chain,
)
from factorflow.models.identity_attribute.kernels import loops_for
from factorflow.models.identity_attribute.learning import Learning, TableSweep
from factorflow.models.identity_attribute.settings import Settings
from factorflow.models.identity_attribute.state import Chains, Edge, Globals, Halves, Moments, Stats
from factorflow.models.identity_attribute.sums import sums_by_view
from factorflow.models.identity_attribute.tables import Tables

State = Chains | Halves


@dataclass(frozen=True)
class Messages:
    """Messages of blocks on b (`kernels.presence`) or a (`kernels.attribute_messages`) at their ends."""

    messages: Gather


@dataclass(frozen=True)
class Quadratic:
    """exp(-u'Mu / 2 + v'u) of u = (a before a block, its last a); whether its first frame goes on."""

    matrix: Array
    vector: Array
    joined: Array


@dataclass(frozen=True)
class BoundaryMessages:
    """Messages on b or a at the ends of a block, from all blocks before it and all after it."""

    before: Array
    behind: Array


@dataclass(frozen=True)
class PresenceSweep(TableSweep[State, Messages]):
    """Smooth the attributes of an identity, and compute the message of a block on its presence."""

    identity: int
    name: ClassVar[str] = "presence"
    neighbours: ClassVar[bool] = True

    def map(self, block: Block, local: State | None, globals_: Tables, step: Step) -> tuple[Chains, Messages]:
        """Smooth the attributes and compute the message."""
        s, p, tables = self.settings, self.identity, globals_
        chains = place_chains(s, block, local, tables)
        chains = smooth_attribute_chain(s, block, chains, p, tables, tables.boundary.own(block))
        return chains, Messages(Gather.of(block, compute_presence_message(s, block, chains, p, tables)))

    def carry(self, globals_: Globals, stats: Messages, step: Step) -> Globals:
        """Scan the messages of all blocks."""
        from factorflow.models.identity_attribute.kernels.presence import scan_presence

        messages = np.ascontiguousarray(stats.messages.values)
        before, behind = np.empty(len(messages)), np.empty(len(messages))
        scan_presence(messages, before, behind)
        return replace(globals_, boundary=Gather(stats.messages.numbers, BoundaryMessages(before, behind)))


@dataclass(frozen=True)
class AttributeSweep(TableSweep[State, Messages]):
    """Smooth the previous identity, and compute the message of a block on the attributes of the next."""

    identity: int
    name: ClassVar[str] = "attributes"
    neighbours: ClassVar[bool] = True

    def map(self, block: Block, local: State | None, globals_: Tables, step: Step) -> tuple[Chains, Messages]:
        """Smooth the previous identity, subtract all others from the data, and compute the message."""
        s, p = self.settings, self.identity
        chains = (
            initialize_chains(s, block, local, globals_)
            if p == 0
            else place_chains(s, block, local, globals_)
        )
        if p > 0:
            chains = smooth_presence_chain(s, block, chains, p - 1, globals_, _boundary_odds(globals_, block))
        chains = compute_evidence(s, block, chains, p, globals_)
        matrix, vector = compute_attribute_message(s, block, chains, p, globals_)
        message = Quadratic(matrix, vector, float(not s.first(block)[0]))
        return chains, Messages(Gather.of(block, message))

    def carry(self, globals_: Globals, stats: Messages, step: Step) -> Globals:
        """Scan the messages of all blocks."""
        from factorflow.models.identity_attribute.kernels.attribute_messages import scan_attributes

        messages, size = stats.messages.values, self.settings.hyper.n_attributes
        count = len(stats.messages.numbers)
        before, behind = np.empty((count, size + 1, size)), np.empty((count, size + 1, size))
        scan_attributes(
            (0,) * size,
            np.ascontiguousarray(messages.matrix),
            np.ascontiguousarray(messages.vector),
            np.ascontiguousarray(messages.joined, dtype=np.float64),
            before,
            behind,
        )
        return replace(globals_, boundary=Gather(stats.messages.numbers, BoundaryMessages(before, behind)))


@dataclass(frozen=True)
class ChainEnd(Learning[State]):
    """Smooth the presence of the last identity, then the M-step."""

    name: ClassVar[str] = "chains"

    def map(self, block: Block, local: State | None, globals_: Tables, step: Step) -> tuple[Chains, Stats]:
        """Smooth, and sum the statistics of all frames."""
        settings, last = self.settings, self.settings.hyper.n_identities - 1
        chains = place_chains(settings, block, local, globals_)
        chains = smooth_presence_chain(
            settings, block, chains, last, globals_, _boundary_odds(globals_, block)
        )
        return chains, _statistics(settings, block, chains, globals_)


@dataclass(frozen=True)
class AllChains(Learning[State]):
    """All identities one after the other, then the M-step, for a dataset of one block."""

    name: ClassVar[str] = "chains"

    def map(self, block: Block, local: State | None, globals_: Tables, step: Step) -> tuple[Chains, Stats]:
        """Smooth, and sum the statistics of all frames."""
        settings = self.settings
        chains = initialize_chains(settings, block, local, globals_, halfway=False)
        chains = smooth_all_chains(settings, block, chains, globals_)
        return chains, _statistics(settings, block, chains, globals_)


def _boundary_odds(tables: Tables, block: Block) -> tuple[float, float]:
    """Return the log odds of b at both ends of a block, by the messages of the other blocks."""
    boundary = tables.boundary.own(block)
    return float(boundary.before), float(boundary.behind)


def _statistics(settings: Settings, block: Block, local: Chains, tables: Tables) -> Stats:
    """Return the sums over the frames of a block."""
    observed = settings.observed(block, tables.location, tables.scale)
    runs = settings.runs(block)
    tracks, xp, c = local.tracks, device.namespace(observed.y), settings.hyper
    chances, moments = np.zeros((c.n_identities, 5)), np.zeros((4, c.n_columns))
    spread = np.zeros((c.n_identities, c.n_attributes, c.n_attributes))
    for p, t in enumerate(tracks):
        columns = slice(p * c.n_attributes, (p + 1) * c.n_attributes)
        loops_for(t.mean).sum_chain_statistics(
            (0,) * c.n_attributes, runs.first, runs.last, t.present, t.joint, t.earlier, t.present_entropy,
            t.mean_entropy, t.mean, t.covariance, t.cross, chances[p], moments[:, columns], spread[p],
        )  # fmt: skip
    covariance = None if settings.complete else product_moments(tracks)[1]
    active = device.on_host(device.namespace(local.activity).sum(local.activity, axis=0))
    views, second = sums_by_view(settings, observed, local.activity, active, covariance, spread)
    both, n_earlier, n_later, n_present_first, entropy = (float(total) for total in chances.sum(axis=0))
    n_first = int(runs.first.sum())
    n_pairs = block.n_rows - n_first
    n = n_pairs * c.n_identities
    sums = Moments(
        pairs=np.array([[n - n_earlier - n_later + both, n_later - both], [n_earlier - both, both]]),
        starts=np.array([n_first * c.n_identities - n_present_first, n_present_first]),
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
