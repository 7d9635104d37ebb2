"""Frames one by one: the posterior that is factorised over frames and identities (equations 20 to 51).

Even frames are updated given the odd ones beside them, then odd ones given even ones: neighbours are never
updated at once, so that every update is exact, and all frames of one parity are independent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from threading import local as of_thread
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Int

from factorflow.kernels import device
from factorflow.models.contract import Array, Block, Gather, Info, Step, Sweep
from factorflow.models.identity_attribute.kernels import loops_for
from factorflow.models.identity_attribute.kernels.beside import NOBODY, OUTSIDE
from factorflow.models.identity_attribute.learning import Learning
from factorflow.models.identity_attribute.settings import Observed, Settings, placed
from factorflow.models.identity_attribute.state import Edge, Frames, Globals, Halves, Stats
from factorflow.models.identity_attribute.sums import by_view, from_bands, moments_of
from factorflow.models.identity_attribute.tables import FIRST, LAST, Tables, tables_of

__all__ = ["AllFrames", "EvenFrames", "FirstFrames", "OddFrames", "in_unit", "starting"]


@dataclass(frozen=True)
class Edges:
    """Statistics of a sweep over even frames."""

    edges: Gather


@dataclass(frozen=True)
class FirstFrames(Sweep[Globals, Halves, Edges]):
    """Frames at first sight, and what their neighbours see of them: without it, a cut would be felt."""

    settings: Settings
    name: ClassVar[str] = "first sight"

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables of the globals."""
        return tables_of(self.settings, globals_)

    def map(self, block: Block, local: Halves | None, globals_: Tables, step: Step) -> tuple[Halves, Edges]:
        """Start the frames."""
        now = starting(self.settings, block, globals_)
        return now, Edges(_edge(self.settings, block, now, globals_))

    def update(self, globals_: Globals, stats: Edges, step: Step) -> tuple[Globals, Info]:
        """Hand the edges on."""
        return replace(globals_, edges=stats.edges), {}


@dataclass(frozen=True)
class EvenFrames(Sweep[Globals, Halves, Edges]):
    """q(b, a) of even frames."""

    settings: Settings
    name: ClassVar[str] = "even frames"
    neighbours: ClassVar[bool] = True

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables of the globals."""
        return tables_of(self.settings, globals_)

    def map(self, block: Block, local: Halves | None, globals_: Tables, step: Step) -> tuple[Halves, Edges]:
        """Update even frames."""
        now = update(self.settings, block, _begun(self.settings, block, local, globals_), globals_, 0)
        return now, Edges(_edge(self.settings, block, now, globals_))

    def carry(self, globals_: Globals, stats: Edges, step: Step) -> Globals:
        """Hand the edges on."""
        return replace(globals_, edges=stats.edges)

    def update(self, globals_: Globals, stats: Edges, step: Step) -> tuple[Globals, Info]:
        """Learn nothing yet."""
        return globals_, {}


@dataclass(frozen=True)
class OddFrames(Learning[Halves]):
    """q(b, a) of odd frames, then the M-step."""

    name: ClassVar[str] = "odd frames"

    def map(self, block: Block, local: Halves | None, globals_: Tables, step: Step) -> tuple[Halves, Stats]:
        """Update odd frames and add up what all frames say of the globals."""
        settings = self.settings
        now = update(settings, block, _begun(settings, block, local, globals_), globals_, 1)
        return now, _statistics(settings, block, now, globals_)


@dataclass(frozen=True)
class AllFrames(Learning[Halves]):
    """Even frames, then odd ones, then the M-step: a dataset of one block has no edges to exchange."""

    name: ClassVar[str] = "frames"

    def map(self, block: Block, local: Halves | None, globals_: Tables, step: Step) -> tuple[Halves, Stats]:
        """Update all frames and add up what they say of the globals."""
        settings = self.settings
        now = update(settings, block, _begun(settings, block, local, globals_), globals_, 0)
        now = update(settings, block, now, globals_, 1)
        return now, _statistics(settings, block, now, globals_)


@dataclass(frozen=True)
class Turn:
    """The half of the frames of a block that a sweep changes (n of B).

    Parameters
    ----------
    rows : array
        In the block, in order.
    place : array
        In their sequences.
    earlier, later : array
        Where the frames before and behind them are in the other half; `OUTSIDE` in another block, `NOBODY`.
    """

    rows: Int[np.ndarray, " n"]
    place: Int[np.ndarray, " n"]
    earlier: Int[np.ndarray, " n"]
    later: Int[np.ndarray, " n"]


def turn_of(settings: Settings, block: Block, parity: int) -> Turn:
    """Return the even (0) or odd (1) frames of a block."""
    return block.once(("turn", parity), (), lambda: _turn(settings, block, parity))


def _turn(settings: Settings, block: Block, parity: int) -> Turn:
    rows, others = settings.parity(block, parity), settings.parity(block, 1 - parity)
    at, place = np.full(block.n_rows + 2, OUTSIDE), settings.place(block)[rows]
    at[others + 1] = np.arange(len(others))
    earlier = np.where(place & FIRST, NOBODY, at[rows])
    return Turn(rows, place, earlier, np.where(place & LAST, NOBODY, at[rows + 2]))


def _order(settings: Settings, block: Block) -> tuple[Int[np.ndarray, " B"], Int[np.ndarray, " B"]]:
    """Return the half that each frame of a block is in, and where in it."""
    return block.once("order", (), lambda: _in_halves(settings, block))


def _in_halves(settings: Settings, block: Block) -> tuple[Int[np.ndarray, " B"], Int[np.ndarray, " B"]]:
    odd, at = np.zeros(block.n_rows, int), np.zeros(block.n_rows, int)
    for parity in (0, 1):
        rows = settings.parity(block, parity)
        odd[rows], at[rows] = parity, np.arange(len(rows))
    return odd, at


def starting(settings: Settings, block: Block, tables: Tables) -> Halves:
    """Return frames at first sight: attributes by ridge regression, presence by their energy."""
    c = settings.choices
    observed = settings.observed(block, tables.location, tables.scale)
    y, shift = observed.y, device.beside(tables.shift, observed.y)
    xp, unit = device.namespace(y), device.beside(tables.unit, y)
    x = (y - (shift if observed.seen is None else observed.seen * shift)) @ device.beside(tables.start, y)
    energy = xp.mean(xp.reshape(x, (-1, c.n_identities, c.n_attributes)) ** 2, axis=2)
    present = xp.minimum(xp.maximum(energy / (energy + 0.2), 0.05), 0.95)
    halves = []
    for parity in (0, 1):
        rows = device.beside(turn_of(settings, block, parity).rows, y)
        nothing = xp.zeros_like(x[rows])
        halves.append(Frames(present[rows], x[rows], nothing, xp.sum(nothing, axis=1), unit))
    return Halves(*halves)


def in_unit(settings: Settings, block: Block, local: Halves, tables: Tables) -> Frames:
    """Return all frames of a block, in the unit of attributes that the last M-step chose."""
    xp, unit = device.namespace(local.even.on), device.beside(tables.unit, local.even.on)
    odd, at = _order(settings, block)
    order = device.beside(at + odd * len(local.even.on), unit)
    (even, by), (other, other_by) = ((half, unit / half.unit) for half in _pair(local))
    return Frames(
        xp.concat([even.present, other.present])[order],
        xp.concat([even.on * by, other.on * other_by])[order],
        xp.concat([even.off * by, other.off * other_by])[order],
        xp.concat([even.entropy, other.entropy])[order],
        unit,
    )


def _pair(local: Halves) -> tuple[Frames, Frames]:
    return local.even, local.odd


def _begun(settings: Settings, block: Block, local: Halves | None, tables: Tables) -> Halves:
    """Return the frames of a block."""
    if local is None:
        return starting(settings, block, tables)
    return placed(local, settings.observed(block, tables.location, tables.scale).y)


def update(settings: Settings, block: Block, local: Halves, tables: Tables, parity: int) -> Halves:
    """Return the frames of a block with those of one parity updated, all identities in turn."""
    observed, turn = settings.observed(block, tables.location, tables.scale), turn_of(settings, block, parity)
    whole = None if observed.whole is None else observed.whole[turn.rows]
    kind = turn.place if whole is None else np.where(whole, turn.place, -1)
    old, other = (local.odd, local.even) if parity else (local.even, local.odd)
    now = _update_complete(settings, block, observed.y, turn, kind, old, other, tables)
    if whole is not None and not whole.all():
        gaps = np.flatnonzero(~whole)
        frames = in_unit(settings, block, local, tables)
        _update_gaps(settings, block, observed, turn, gaps, frames, now, tables)
    return replace(local, **{("even", "odd")[parity]: now})


def means(local: Frames) -> tuple[Float64[Array, "B K"], Float64[Array, "B K"]]:
    """Return E a b and E a of all frames."""
    xp = device.namespace(local.on)
    x, a = xp.empty_like(local.on), xp.empty_like(local.on)
    loops_for(local.on).means(local.present, local.on, local.off, x, a)
    return x, a


_kept = of_thread()


def _scratch(name: str, shape: tuple[int, ...], other: Array) -> Float64[Array, ...]:
    """Return memory of this thread to work in, where ``other`` lies.

    The kernel hands out new memory page by page, zeroed, which takes longer than what is done with it. What
    the next frames need is the same, or smaller.
    """
    if device.on_device(other):
        return device.namespace(other).empty(shape)
    size = prod(shape)
    memory = _kept.__dict__.get(name)
    if memory is None or memory.size < size:
        memory = _kept.__dict__[name] = np.empty(size)
    return memory[:size].reshape(shape)


def _by_neighbours(
    settings: Settings,
    block: Block,
    local: Frames,
    a: Float64[Array, "B K"],
    tables: Tables,
    rows: Int[np.ndarray, " n"],
    place: Int[np.ndarray, " n"],
) -> tuple[Float64[Array, "n K"], Float64[Array, "n P"]]:
    """Return what neighbouring frames say: precision times mean of a (29), log odds of b (24)."""
    before, behind = _beside(block, local.present, a, tables.edges, rows)
    xp, hold, odds = device.namespace(a), tables.hold[place], tables.odds[place]
    prior, total = xp.zeros_like(before[1]), device.beside(odds[:, :1], a)
    for end, (there, mean) in enumerate((before, behind)):
        prior = prior + device.beside(hold[:, end], a) * mean
        total = total + device.beside(odds[:, end + 1, None], a) * there
    return prior, total


def _outside(
    block: Block, edges: Gather, n_identities: int, n_columns: int
) -> tuple[Float64[Array, "2 P"], Float64[Array, "2 K"]]:
    """Return Q(b = 1) and E a of the frames before and behind a block; 1/2 and 0 where none was seen yet."""
    left, right = edges.before(block), edges.after(block)
    present, a = np.full((2, n_identities), 0.5), np.zeros((2, n_columns))
    if left is not None:
        present[0], a[0] = left.last_present, left.last_mean
    if right is not None:
        present[1], a[1] = right.first_present, right.first_mean
    return present, a


Beside = tuple[Float64[Array, "n P"], Float64[Array, "n K"]]


def _beside(
    block: Block,
    present: Float64[Array, "B P"],
    a: Float64[Array, "B K"],
    edges: Gather,
    rows: Int[np.ndarray, " n"],
) -> tuple[Beside, Beside]:
    """Return Q(b = 1) and E a in the rows before and behind some rows, whatever sequence those belong to.

    Where no sweep has seen them yet, 1/2 and 0.
    """
    there, means_there = _outside(block, edges, present.shape[1], a.shape[1])
    there, means_there = device.beside(there, a), device.beside(means_there, a)
    early, late = np.maximum(rows - 1, 0), np.minimum(rows + 1, block.n_rows - 1)
    early, late = device.beside(early, a), device.beside(late, a)
    before, behind = (present[early], a[early]), (present[late], a[late])
    if len(rows) and rows[0] == 0:
        before[0][0], before[1][0] = there[0], means_there[0]
    if len(rows) and rows[-1] == block.n_rows - 1:
        behind[0][-1], behind[1][-1] = there[1], means_there[1]
    return before, behind


def _update_complete(
    settings: Settings,
    block: Block,
    y: Float64[Array, "B D"],
    turn: Turn,
    kind: Int[np.ndarray, " n"],
    old: Frames,
    other: Frames,
    tables: Tables,
) -> Frames:
    """Return one half of the frames of a block with those of a ``kind``, a place in sequences, updated.

    Others are not written.
    """
    xp, loops, weighted = device.namespace(y), loops_for(y), device.beside(tables.weighted, y)
    unit, rows = device.beside(tables.unit, y), turn.rows
    present, on, off, entropy = (xp.empty_like(x) for x in (old.present, old.on, old.off, old.entropy))
    given = tables.pull, tables.between, tables.hold, tables.odds, tables.alone, tables.inverse, tables.offset
    outside = _outside(block, tables.edges, tables.own.shape[0], len(tables.unit))
    halves = unit / other.unit, other.present, other.on, other.off, unit / old.unit, old.present, old.on
    taken, n, k = y[_evenly(rows, y)], len(rows), len(tables.unit)
    data = _scratch("data", (k, n + 8), y)  # 8 more: rows that are 2^m apart would share sets of the cache
    xp.matmul(weighted.T, taken.T, out=data[:, :n])
    loops.update_complete(
        kind, turn.earlier, turn.later, data, *given, *outside, *halves, present, on, off, entropy
    )
    return Frames(present, on, off, entropy, unit)


def _evenly(rows: Int[np.ndarray, " n"], other: Array) -> slice | Int[Array, " n"]:
    """Return rows as a slice, which copies nothing, where they are as far from each other all over."""
    steps = np.diff(rows)
    if not len(steps) or (steps != steps[0]).any():
        return device.beside(rows, other)
    return slice(int(rows[0]), int(rows[-1]) + 1, int(steps[0]))


def _update_gaps(
    settings: Settings,
    block: Block,
    observed: Observed,
    turn: Turn,
    gaps: Int[np.ndarray, " n"],
    local: Frames,
    out: Frames,
    tables: Tables,
) -> None:
    """Write the frames with missing entries of one half, given all frames of the block."""
    assert observed.seen is not None
    y, rows, place = observed.y, turn.rows[gaps], turn.place[gaps]
    taken, there = device.beside(rows, y), device.beside(gaps, y)
    seen = observed.seen[taken]
    inverse, half_on = _of_gaps(seen, place, tables)
    x, a = means(local)
    prior, odds = _by_neighbours(settings, block, local, a, tables, rows, place)
    x, present, on, off = x[taken], local.present[taken], local.on[taken], local.off[taken]
    loops_for(y).update_gaps(
        place,
        y[taken] - seen * (x @ device.beside(tables.weights.T, y) + device.beside(tables.shift, y)),
        seen,
        np.ascontiguousarray(tables.weights.T),
        np.ascontiguousarray(tables.weighted.T),
        prior,
        tables.precision,
        inverse,
        half_on - device.beside(tables.half_off[place], y),
        odds,
        x,
        present,
        on,
        off,
    )
    xp = device.namespace(y)
    absent = 1.0 - present
    entropy = present * xp.log(xp.maximum(present, 1e-300)) + absent * xp.log(xp.maximum(absent, 1e-300))
    out.present[there], out.on[there], out.off[there] = present, on, off
    out.entropy[there] = -xp.sum(entropy, axis=1)


def _of_gaps(
    seen: Float64[Array, "n D"], place: Int[np.ndarray, " n"], tables: Tables
) -> tuple[Float64[Array, "n P Q Q"], Float64[Array, "n P"]]:
    """Return S1 of frames with missing entries, and log|S1| / 2."""
    xp = device.namespace(seen)
    gram = xp.reshape(seen @ device.beside(tables.products, seen), (len(seen), *tables.own.shape))
    inverse, log_det = xp.empty_like(gram), xp.empty(gram.shape[:2])
    loops_for(seen).invert_all(tables.precision[place], gram, inverse, log_det)
    return inverse, -0.5 * log_det


@dataclass(frozen=True)
class Conditional:
    """S1 of the frames of a block: the different ones, and which of them is a frame's.

    Parameters
    ----------
    which : array
        Of each frame.
    inverse : array
        S1.
    half_on : array
        log|S1| / 2.
    """

    which: Int[np.ndarray, " B"]
    inverse: Float64[Array, "M P Q Q"]
    half_on: Float64[Array, "M P"]


def conditional(observed: Observed, place: Int[np.ndarray, " B"], tables: Tables) -> Conditional:
    """Return S1 of the frames of a block."""
    y, known = observed.y, (tables.inverse, tables.half_on)
    if observed.whole is None or observed.whole.all():
        return Conditional(place, *(device.beside(part, y) for part in known))
    assert observed.seen is not None
    gaps = np.flatnonzero(~observed.whole)
    found = _of_gaps(observed.seen[device.beside(gaps, y)], place[gaps], tables)
    which = place.copy()
    which[gaps] = len(tables.inverse) + np.arange(len(gaps))
    both = zip(known, found, strict=True)
    return Conditional(
        which, *(device.namespace(y).concat([device.beside(all_, y), own]) for all_, own in both)
    )


def spread_of(local: Frames, given: Conditional) -> Float64[Array, "B P Q Q"]:
    """Return the covariance of a b of every frame and identity."""
    out = device.namespace(local.on).empty((*local.present.shape, *given.inverse.shape[2:]))
    loops_for(local.on).covariances(local.present, local.on, given.which, given.inverse, out)
    return out


def _statistics(settings: Settings, block: Block, local: Halves, tables: Tables) -> Stats:
    """Return the sums over the frames of a block.

    Every pair of neighbouring frames has one odd frame, and belongs to the block of that one: even frames
    moved a sweep ago, so that all blocks know them.
    """
    observed, place = settings.observed(block, tables.location, tables.scale), settings.place(block)
    given, y, loops = conditional(observed, place, tables), observed.y, loops_for(observed.y)
    (p, q), k = tables.own.shape[:2], len(tables.unit)
    active, cross, bands, squares = np.zeros(k), np.zeros(k), np.zeros((q, k)), np.zeros((4, k))
    spread, chances, numbers, pairs = np.zeros((p, q, q)), np.zeros((2, 4, p)), np.zeros(4), np.zeros((3, p))
    linked, x = (
        block.once("linked", (), lambda: _linked(settings, block)),
        _scratch("x", (block.n_rows, k), y),
    )
    states = (part for half in _pair(local) for part in (half.present, half.on, half.off))
    entropy = loops.tally(
        *_order(settings, block), *states, place, given.which, given.inverse, given.half_on, linked,
        *_outside(block, tables.edges, p, k), x, active, cross, bands, squares, spread,
        chances, numbers, pairs,
    )  # fmt: skip
    absent = numbers[:, None] - chances[1]
    squares += np.repeat(chances[0], q, axis=1) * np.diagonal(tables.inverse, axis1=2, axis2=3).reshape(4, k)
    squares += np.repeat(absent, q, axis=1) * tables.alone
    spread += from_bands(bands) + (chances[0][:, :, None, None] * tables.inverse).sum(axis=0)
    entropy += sum(float(half.entropy.sum()) for half in _pair(local))
    entropy += float((chances[0] * tables.half_on + absent * tables.half_off).sum())
    entropy += 0.5 * block.n_rows * k * (1.0 + np.log(2.0 * np.pi))
    covariance = None
    if observed.seen is not None:
        covariance = spread_of(in_unit(settings, block, local, tables), given)
    views, second = by_view(settings, observed, x, active, covariance, spread)
    begun = device.beside(np.flatnonzero(turn_of(settings, block, 0).place & FIRST), y)
    moments = moments_of(settings, squares, device.on_host(local.even.present[begun]), entropy)
    both, came, went = pairs.sum(axis=1)
    n_pairs = float(linked.sum())
    n = n_pairs * p
    transitions = np.array([[n - came - went + both, went - both], [came - both, both]])
    moments = replace(moments, pairs=transitions, cross=cross, n_pairs=n_pairs)
    return Stats(views, second, moments, _edge(settings, block, local, tables))


def _linked(settings: Settings, block: Block) -> Float64[np.ndarray, " C"]:
    """Return 1 for each frame of a block that makes a pair of it with the one before; then that behind it."""
    place = settings.place(block)
    linked = np.append(place & FIRST == 0, place[-1] & LAST == 0).astype(float)
    odd = settings.parity(block, 1)
    if not len(odd) or odd[0] > 0:
        linked[0] = 0.0
    if not len(odd) or odd[-1] < block.n_rows - 1:
        linked[-1] = 0.0
    return linked


def _edge(settings: Settings, block: Block, local: Halves, tables: Tables) -> Gather:
    """Return the frames of a block that its neighbours see."""
    odd, at = _order(settings, block)
    ends = []
    for end in (0, -1):
        half, m = _pair(local)[odd[end]], int(at[end])
        b, on, off, unit = (
            device.on_host(part) for part in (half.present[m], half.on[m], half.off[m], half.unit)
        )
        there = np.repeat(b, len(on) // len(b))
        ends.append(
            (b.copy(), (there * on + (1.0 - there) * off) * (tables.unit / unit))
        )  # not the whole block
    (first, first_mean), (last, last_mean) = ends
    return Gather.of(block, Edge(first, last, first_mean, last_mean))
