"""Identities as chains: the posterior that keeps the correlations between frames (equation 19).

One identity after the other: q(b_1:T,p) by forward and backward recursions, then q(a_1:T,p) by a smoother in
information form with expected natural parameters. A block sums up what it says of the frame before it and of
its last one; one scan over the summaries of all blocks then tells each what lies on both sides of it. So an
iteration takes two sweeps for each identity, and one that ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Array, Block, Gather, Info, Step, Sweep
from factorflow.models.identity_attribute.frames import conditional, means, starting
from factorflow.models.identity_attribute.learning import Learning
from factorflow.models.identity_attribute.settings import Settings
from factorflow.models.identity_attribute.state import Chains, Edge, Frames, Globals, Stats, Track
from factorflow.models.identity_attribute.sums import by_view, moments_of, transitions
from factorflow.models.identity_attribute.tables import Tables, tables_of

__all__ = ["AttributeSweep", "ChainEnd", "PresenceSweep", "products_of"]

State = Chains | Frames


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
    """Sum up what a block says of the presence of an identity; before that, smooth the one before."""

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
        """Take the identity out of the residual, and sum up."""
        from factorflow.models.identity_attribute.kernels import chains as kernels

        s, p, tables = self.settings, self.identity, globals_
        now = _begun(s, block, local, tables) if p == 0 else _at_hand(s, block, local, tables)
        if p > 0:
            now = _smoothed(s, block, now, p - 1, tables)
        columns, track = _columns(s, p), now.tracks[p]
        residual = now.residual + _part(s, block, track, tables, columns)
        now = replace(now, residual=residual, evidence=residual @ tables.weighted[:, columns])
        span = np.empty((2, 2))
        evidence = _log_odds(s, block, now, p, tables)
        kernels.span_presence(evidence, s.first(block), tables.log_transition, s.choices.start_odds, span)
        return now, PresenceSpan(Gather.of(block, span))

    def carry(self, globals_: Globals, stats: PresenceSpan, step: Step) -> Globals:
        """Scan over all blocks."""
        from factorflow.models.identity_attribute.kernels import chains as kernels

        spans = np.ascontiguousarray(stats.spans.values)
        before, behind = np.empty(len(spans)), np.empty(len(spans))
        kernels.scan_presence(spans, before, behind)
        return replace(globals_, sides=Gather(stats.spans.numbers, Sides(before, behind)))

    def update(self, globals_: Globals, stats: PresenceSpan, step: Step) -> tuple[Globals, Info]:
        """Learn nothing."""
        return globals_, {}


@dataclass(frozen=True)
class AttributeSweep(Sweep[Globals, State, AttributeSpan]):
    """Smooth the presence of an identity, and sum up what a block says of its attributes."""

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
        """Smooth and sum up."""
        from factorflow.models.identity_attribute.kernels import chains as kernels

        s, p, tables = self.settings, self.identity, globals_
        first, sides = s.first(block), tables.sides.own(block)
        now = _at_hand(s, block, local, tables)
        present, joint, earlier, entropy = (np.empty(block.n_rows) for _ in range(4))
        kernels.smooth_presence(
            _log_odds(s, block, now, p, tables),
            first,
            s.last(block),
            tables.log_transition,
            s.choices.start_odds,
            float(sides.before),
            float(sides.behind),
            present,
            joint,
            earlier,
            entropy,
        )
        old = now.tracks[p]
        both = np.column_stack([entropy, old.entropy[:, 1]])
        now = _with(now, p, replace(old, present=present, joint=joint, earlier=earlier, entropy=both))
        size = s.choices.n_attributes
        matrix, vector = np.empty((2 * size, 2 * size)), np.empty(2 * size)
        precision, information = _data(s, block, now, p, tables)
        kernels.span_attributes(
            precision,
            information,
            first,
            np.ascontiguousarray(tables.moments[:, _columns(s, p)]),
            s.choices.variance,
            matrix,
            vector,
        )
        span = Quadratic(matrix, vector, float(not first[0]))
        return now, AttributeSpan(Gather.of(block, span))

    def carry(self, globals_: Globals, stats: AttributeSpan, step: Step) -> Globals:
        """Scan over all blocks."""
        from factorflow.models.identity_attribute.kernels import chains as kernels

        spans, size = stats.spans.values, self.settings.choices.n_attributes
        count = len(stats.spans.numbers)
        before, behind = np.empty((count, size + 1, size)), np.empty((count, size + 1, size))
        kernels.scan_attributes(
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
    """Smooth the attributes of the last identity, then the M-step."""

    name: ClassVar[str] = "chains"

    def map(self, block: Block, local: State | None, globals_: Tables, step: Step) -> tuple[Chains, Stats]:
        """Smooth, and add up what all frames say of the globals."""
        settings = self.settings
        now = _at_hand(settings, block, local, globals_)
        now = _smoothed(settings, block, now, settings.choices.n_identities - 1, globals_)
        return now, _statistics(settings, block, now, globals_)


def _columns(settings: Settings, p: int) -> slice:
    """Return the columns of the loadings of an identity."""
    size = settings.choices.n_attributes
    return slice(p * size, (p + 1) * size)


def _with(local: Chains, p: int, track: Track) -> Chains:
    """Return chains with those of one identity replaced."""
    return replace(local, tracks=(*local.tracks[:p], track, *local.tracks[p + 1 :]))


def _begun(settings: Settings, block: Block, local: State | None, tables: Tables) -> Chains:
    """Return the chains of a block at the beginning of an iteration: with the residual of new loadings."""
    observed = settings.observed(block, tables.location, tables.scale)
    if local is None:
        local = starting(settings, block, tables)
    tracks = local.tracks if isinstance(local, Chains) else _of_frames(settings, block, local, tables)
    x = np.concatenate([t.present[:, None] * t.mean for t in tracks], axis=1)
    fitted = x @ tables.weights.T
    if observed.seen is not None:
        fitted *= observed.seen
    size = settings.choices.n_attributes
    return Chains(tracks, observed.y - fitted, np.zeros((block.n_rows, size)))


def _at_hand(settings: Settings, block: Block, local: State | None, tables: Tables) -> Chains:
    """Return the chains of a block in the middle of an iteration; at its beginning where there are none."""
    return local if isinstance(local, Chains) else _begun(settings, block, local, tables)


def _of_frames(settings: Settings, block: Block, local: Frames, tables: Tables) -> tuple[Track, ...]:
    """Return chains with the marginals of frames that were factorised."""
    observed = settings.observed(block, tables.location, tables.scale)
    place = settings.place(block)
    given = conditional(observed, place, tables)
    a, size, n = means(local)[1], settings.choices.n_attributes, block.n_rows
    alone = 1.0 / tables.precision[place]
    tracks = []
    for p in range(settings.choices.n_identities):
        columns = _columns(settings, p)
        b, apart = local.present[:, p, None], local.on[:, columns] - local.off[:, columns]
        covariance = b[:, :, None] * given.inverse[given.which, p]
        covariance += (b * (1.0 - b))[:, :, None] * apart[:, :, None] * apart[:, None, :]
        covariance[:, np.arange(size), np.arange(size)] += (1.0 - b) * alone[:, columns]
        none = np.zeros(n)
        tracks.append(
            Track(
                np.ascontiguousarray(local.present[:, p]),
                none,
                none,
                np.zeros((n, 2)),
                np.ascontiguousarray(a[:, columns]),
                covariance,
                np.zeros((n, size)),
            )
        )
    return tuple(tracks)


def _part(
    settings: Settings, block: Block, track: Track, tables: Tables, columns: slice
) -> Float64[np.ndarray, "B D"]:
    """Return the part of an identity in the observed entries."""
    part = (track.present[:, None] * track.mean) @ tables.weights[:, columns].T
    observed = settings.observed(block, tables.location, tables.scale)
    return np.asarray(part if observed.seen is None else part * observed.seen)


def _own(settings: Settings, block: Block, p: int, tables: Tables) -> Float64[np.ndarray, "n Q Q"]:
    """Return E W_p' rho W_p over the observed entries of every frame; one for all where all are."""
    observed = settings.observed(block, tables.location, tables.scale)
    if observed.seen is None:
        return tables.own[p : p + 1]
    assert tables.products is not None
    size = settings.choices.n_attributes
    columns = slice(p * size**2, (p + 1) * size**2)
    return np.asarray((observed.seen @ tables.products[:, columns]).reshape(-1, size, size))


def _log_odds(
    settings: Settings, block: Block, now: Chains, p: int, tables: Tables
) -> Float64[np.ndarray, " B"]:
    """Return the log odds of b by the frames' own data."""
    track = now.tracks[p]
    second = track.covariance + track.mean[:, :, None] * track.mean[:, None, :]
    own = _own(settings, block, p, tables)
    evidence = (now.evidence * track.mean).sum(axis=1) - 0.5 * (own * second).sum(axis=(1, 2))
    return np.asarray(evidence)


def _data(
    settings: Settings, block: Block, now: Chains, p: int, tables: Tables
) -> tuple[Float64[np.ndarray, "B Q Q"], Float64[np.ndarray, "B Q"]]:
    """Return what the frames' own data say of a: precision, and precision times mean."""
    present = now.tracks[p].present
    own = _own(settings, block, p, tables)
    return present[:, None, None] * own, present[:, None] * now.evidence


def _smoothed(settings: Settings, block: Block, local: Chains, p: int, tables: Tables) -> Chains:
    """Return chains with the attributes of an identity smoothed, and its part back in the residual."""
    from factorflow.models.identity_attribute.kernels import chains as kernels

    size, n, columns = settings.choices.n_attributes, block.n_rows, _columns(settings, p)
    mean, covariance = np.empty((n, size)), np.empty((n, size, size))
    cross, entropy = np.empty((n, size)), np.empty(n)
    sides = tables.sides.own(block)
    precision, information = _data(settings, block, local, p, tables)
    kernels.smooth_attributes(
        precision,
        information,
        settings.first(block),
        settings.last(block),
        np.ascontiguousarray(tables.moments[:, columns]),
        settings.choices.variance,
        sides.before,
        sides.behind,
        mean,
        covariance,
        cross,
        entropy,
    )
    old = local.tracks[p]
    both = np.column_stack([old.entropy[:, 0], entropy])
    track = replace(old, mean=mean, covariance=covariance, cross=cross, entropy=both)
    residual = local.residual - _part(settings, block, track, tables, columns)
    return replace(_with(local, p, track), residual=residual)


def products_of(
    tracks: tuple[Track, ...],
) -> tuple[Float64[np.ndarray, "B K"], Float64[np.ndarray, "B P Q Q"]]:
    """Return mean of x = a b, and its covariance within each identity."""
    x = np.concatenate([t.present[:, None] * t.mean for t in tracks], axis=1)
    parts = []
    for t in tracks:
        b = t.present[:, None, None]
        parts.append(b * (t.covariance + (1.0 - b) * t.mean[:, :, None] * t.mean[:, None, :]))
    return x, np.stack(parts, axis=1)


def _statistics(settings: Settings, block: Block, local: Chains, tables: Tables) -> Stats:
    """Return the sums over the frames of a block."""
    observed = settings.observed(block, tables.location, tables.scale)
    place, first = settings.place(block), settings.first(block)
    tracks = local.tracks
    x, covariance = products_of(tracks)
    views, second = by_view(settings, observed, x, covariance, covariance.sum(axis=0))
    present, joint, earlier = (
        np.stack([getattr(t, name) for t in tracks], axis=1) for name in ("present", "joint", "earlier")
    )
    a = np.concatenate([t.mean for t in tracks], axis=1)
    square = a**2 + np.concatenate([np.einsum("tqq->tq", t.covariance) for t in tracks], axis=1)
    squares = np.stack([square[place == which].sum(axis=0) for which in range(4)])
    entropy = float(sum(t.entropy.sum() for t in tracks))
    moments = moments_of(settings, block, place, squares, present, entropy)
    moments = replace(
        moments,
        pairs=transitions(earlier, present, joint, ~first),
        cross=np.concatenate([t.cross.sum(axis=0) for t in tracks]),
        n_pairs=float((~first).sum()),
    )
    edge = Edge(present[0], present[-1], a[0], a[-1])
    return Stats(views, second, moments, Gather.of(block, edge))
