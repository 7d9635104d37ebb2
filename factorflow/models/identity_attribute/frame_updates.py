"""Updates of q(b, a) of one half of the frames of a block, given the other half (equations 20 to 51)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from threading import local as of_thread

import numpy as np
from jaxtyping import Float64, Int

from factorflow.kernels import device
from factorflow.models.contract import Array, Block, Gather
from factorflow.models.identity_attribute.kernels import loops_for
from factorflow.models.identity_attribute.kernels.neighbours import NOBODY, OUTSIDE
from factorflow.models.identity_attribute.settings import ObservedBlock, Settings, move_to_device
from factorflow.models.identity_attribute.state import Edge, Frames, Halves
from factorflow.models.identity_attribute.tables import FIRST, LAST, Tables


@dataclass(frozen=True)
class ParityRows:
    """The rows of a block that are even, or odd, and the indices of their neighbours (n of B).

    Parameters
    ----------
    rows : array
        Indices in the block, in order.
    place : array
        Places in their sequences, `FIRST` and `LAST` or 0.
    earlier, later : array
        Indices of the previous and the next frame among rows of the other parity; `OUTSIDE` in another block,
        `NOBODY` at the end of a sequence.
    """

    rows: Int[np.ndarray, " n"]
    place: Int[np.ndarray, " n"]
    earlier: Int[np.ndarray, " n"]
    later: Int[np.ndarray, " n"]


def find_parity_rows(settings: Settings, block: Block, parity: int) -> ParityRows:
    """Return the even (0) or odd (1) frames of a block."""
    return block.once(("turn", parity), (), lambda: _find_parity_rows(settings, block, parity))


def _find_parity_rows(settings: Settings, block: Block, parity: int) -> ParityRows:
    rows, other_rows = settings.parity(block, parity), settings.parity(block, 1 - parity)
    index, place = np.full(block.n_rows + 2, OUTSIDE), settings.place(block)[rows]
    index[other_rows + 1] = np.arange(len(other_rows))
    earlier = np.where(place & FIRST, NOBODY, index[rows])
    return ParityRows(rows, place, earlier, np.where(place & LAST, NOBODY, index[rows + 2]))


def locate_rows(settings: Settings, block: Block) -> tuple[Int[np.ndarray, " B"], Int[np.ndarray, " B"]]:
    """Return whether each frame of a block is odd, and its index among the frames of its parity."""
    return block.once("order", (), lambda: _locate_rows(settings, block))


def _locate_rows(settings: Settings, block: Block) -> tuple[Int[np.ndarray, " B"], Int[np.ndarray, " B"]]:
    is_odd, index = np.zeros(block.n_rows, int), np.zeros(block.n_rows, int)
    for parity in (0, 1):
        rows = settings.parity(block, parity)
        is_odd[rows], index[rows] = parity, np.arange(len(rows))
    return is_odd, index


def initialize_frames(settings: Settings, block: Block, tables: Tables) -> Halves:
    """Return the initial frames: attributes by ridge regression, presence by their energy."""
    c = settings.hyper
    observed = settings.observed(block, tables.location, tables.scale)
    y, shift = observed.y, device.move_beside(tables.shift, observed.y)
    xp, unit = device.namespace(y), device.move_beside(tables.unit, y)
    x = (y - (shift if observed.seen is None else observed.seen * shift)) @ device.move_beside(
        tables.start, y
    )
    energy = xp.mean(xp.reshape(x, (-1, c.n_identities, c.n_attributes)) ** 2, axis=2)
    present = xp.minimum(xp.maximum(energy / (energy + 0.2), 0.05), 0.95)
    halves = []
    for parity in (0, 1):
        rows = device.move_beside(find_parity_rows(settings, block, parity).rows, y)
        zeros = xp.zeros_like(x[rows])
        halves.append(Frames(present[rows], x[rows], zeros, xp.sum(zeros, axis=1), unit))
    return Halves(*halves)


def rescale_frames(settings: Settings, block: Block, local: Halves, tables: Tables) -> Frames:
    """Return all frames of a block, in the unit of attributes that the last M-step chose."""
    xp, unit = device.namespace(local.even.on), device.move_beside(tables.unit, local.even.on)
    is_odd, index = locate_rows(settings, block)
    order = device.move_beside(index + is_odd * len(local.even.on), unit)
    (even, even_ratio), (odd, odd_ratio) = ((half, unit / half.unit) for half in (local.even, local.odd))
    return Frames(
        xp.concat([even.present, odd.present])[order],
        xp.concat([even.on * even_ratio, odd.on * odd_ratio])[order],
        xp.concat([even.off * even_ratio, odd.off * odd_ratio])[order],
        xp.concat([even.entropy, odd.entropy])[order],
        unit,
    )


def place_frames(settings: Settings, block: Block, local: Halves | None, tables: Tables) -> Halves:
    """Return the frames of a block on its device: initial ones where there are none."""
    if local is None:
        return initialize_frames(settings, block, tables)
    return move_to_device(local, settings.observed(block, tables.location, tables.scale).y)


def update_half(settings: Settings, block: Block, local: Halves, tables: Tables, parity: int) -> Halves:
    """Return the frames of a block with those of one parity updated, one identity after the other."""
    observed = settings.observed(block, tables.location, tables.scale)
    half = find_parity_rows(settings, block, parity)
    whole = None if observed.whole is None else observed.whole[half.rows]
    kind = half.place if whole is None else np.where(whole, half.place, -1)
    old, other = (local.odd, local.even) if parity else (local.even, local.odd)
    updated = _update_complete(block, observed.y, half, kind, old, other, tables)
    if whole is not None and not whole.all():
        gaps = np.flatnonzero(~whole)
        frames = rescale_frames(settings, block, local, tables)
        _update_incomplete(block, observed, half, gaps, frames, updated, tables)
    return replace(local, **{("even", "odd")[parity]: updated})


def compute_means(local: Frames) -> tuple[Float64[Array, "B K"], Float64[Array, "B K"]]:
    """Return E a b and E a of all frames."""
    xp = device.namespace(local.on)
    x, a = xp.empty_like(local.on), xp.empty_like(local.on)
    loops_for(local.on).write_means(local.present, local.on, local.off, x, a)
    return x, a


_buffers = of_thread()


def allocate_scratch(name: str, shape: tuple[int, ...], other: Array) -> Float64[Array, ...]:
    """Return scratch memory of this thread, on the device of ``other``.

    The kernel hands out new memory page by page, zeroed, which takes longer than what is done with it. What
    the next frames need is the same, or smaller.
    """
    if device.on_device(other):
        return device.namespace(other).empty(shape)
    size = prod(shape)
    memory = _buffers.__dict__.get(name)
    if memory is None or memory.size < size:
        memory = _buffers.__dict__[name] = np.empty(size)
    return memory[:size].reshape(shape)


def _neighbour_terms(
    block: Block,
    local: Frames,
    a: Float64[Array, "B K"],
    tables: Tables,
    rows: Int[np.ndarray, " n"],
    place: Int[np.ndarray, " n"],
) -> tuple[Float64[Array, "n K"], Float64[Array, "n P"]]:
    """Return the messages of neighbouring frames: precision times mean of a (29), log odds of b (24)."""
    neighbours = _neighbour_states(block, local.present, a, tables.edges, rows)
    xp, hold, odds = device.namespace(a), tables.hold[place], tables.odds[place]
    prior, total = xp.zeros_like(neighbours[0][1]), device.move_beside(odds[:, :1], a)
    for end, (present, mean) in enumerate(neighbours):
        prior = prior + device.move_beside(hold[:, end], a) * mean
        total = total + device.move_beside(odds[:, end + 1, None], a) * present
    return prior, total


def edge_states(
    block: Block, edges: Gather, n_identities: int, n_columns: int
) -> tuple[Float64[Array, "2 P"], Float64[Array, "2 K"]]:
    """Return Q(b = 1) and E a of the frames before and after a block; 1/2 and 0 before the first sweep."""
    left, right = edges.before(block), edges.after(block)
    present, a = np.full((2, n_identities), 0.5), np.zeros((2, n_columns))
    if left is not None:
        present[0], a[0] = left.last_present, left.last_mean
    if right is not None:
        present[1], a[1] = right.first_present, right.first_mean
    return present, a


NeighbourStates = tuple[Float64[Array, "n P"], Float64[Array, "n K"]]


def _neighbour_states(
    block: Block,
    present: Float64[Array, "B P"],
    a: Float64[Array, "B K"],
    edges: Gather,
    rows: Int[np.ndarray, " n"],
) -> tuple[NeighbourStates, NeighbourStates]:
    """Return Q(b = 1) and E a of the rows before and after each of ``rows``, of whatever sequence.

    1/2 and 0 in another block that no sweep has visited.
    """
    edge_present, edge_mean = edge_states(block, edges, present.shape[1], a.shape[1])
    edge_present, edge_mean = device.move_beside(edge_present, a), device.move_beside(edge_mean, a)
    earlier, later = np.maximum(rows - 1, 0), np.minimum(rows + 1, block.n_rows - 1)
    earlier, later = device.move_beside(earlier, a), device.move_beside(later, a)
    previous, following = (present[earlier], a[earlier]), (present[later], a[later])
    if len(rows) and rows[0] == 0:
        previous[0][0], previous[1][0] = edge_present[0], edge_mean[0]
    if len(rows) and rows[-1] == block.n_rows - 1:
        following[0][-1], following[1][-1] = edge_present[1], edge_mean[1]
    return previous, following


def _update_complete(
    block: Block,
    y: Float64[Array, "B D"],
    half: ParityRows,
    kind: Int[np.ndarray, " n"],
    old: Frames,
    other: Frames,
    tables: Tables,
) -> Frames:
    """Return one half of the frames of a block with those of a ``kind``, a place in sequences, updated.

    Others are not written.
    """
    xp, loops, weighted = device.namespace(y), loops_for(y), device.move_beside(tables.weighted, y)
    unit, rows = device.move_beside(tables.unit, y), half.rows
    present, on, off, entropy = (xp.empty_like(x) for x in (old.present, old.on, old.off, old.entropy))
    priors = tables.hold, tables.odds, tables.alone, tables.inverse, tables.offset
    edges = edge_states(block, tables.edges, tables.own.shape[0], len(tables.unit))
    halves = unit / other.unit, other.present, other.on, other.off, unit / old.unit, old.present, old.on
    observations, n, k = y[_as_slice(rows, y)], len(rows), len(tables.unit)
    data = allocate_scratch("data", (k, n + 8), y)  # 8 more: rows 2^m apart would share sets of the cache
    xp.matmul(weighted.T, observations.T, out=data[:, :n])
    loops.update_complete(
        kind, half.earlier, half.later, data, tables.pull, tables.between, *priors, *edges, *halves,
        present, on, off, entropy,
    )  # fmt: skip
    return Frames(present, on, off, entropy, unit)


def _as_slice(rows: Int[np.ndarray, " n"], other: Array) -> slice | Int[Array, " n"]:
    """Return rows as a slice, which copies nothing, where they are evenly spaced."""
    steps = np.diff(rows)
    if not len(steps) or (steps != steps[0]).any():
        return device.move_beside(rows, other)
    return slice(int(rows[0]), int(rows[-1]) + 1, int(steps[0]))


def _update_incomplete(
    block: Block,
    observed: ObservedBlock,
    half: ParityRows,
    gaps: Int[np.ndarray, " n"],
    local: Frames,
    out: Frames,
    tables: Tables,
) -> None:
    """Write the frames with missing entries of one half, given all frames of the block."""
    assert observed.seen is not None
    y, rows, place = observed.y, half.rows[gaps], half.place[gaps]
    in_block, in_half = device.move_beside(rows, y), device.move_beside(gaps, y)
    mask = observed.seen[in_block]
    inverse, half_on = invert_incomplete(mask, place, tables)
    x, a = compute_means(local)
    prior, odds = _neighbour_terms(block, local, a, tables, rows, place)
    x, present, on, off = x[in_block], local.present[in_block], local.on[in_block], local.off[in_block]
    loops_for(y).update_gaps(
        place,
        y[in_block]
        - mask * (x @ device.move_beside(tables.weights.T, y) + device.move_beside(tables.shift, y)),
        mask,
        np.ascontiguousarray(tables.weights.T),
        np.ascontiguousarray(tables.weighted.T),
        prior,
        tables.precision,
        inverse,
        half_on - device.move_beside(tables.half_off[place], y),
        odds,
        x,
        present,
        on,
        off,
    )
    xp = device.namespace(y)
    absent = 1.0 - present
    entropy = present * xp.log(xp.maximum(present, 1e-300)) + absent * xp.log(xp.maximum(absent, 1e-300))
    out.present[in_half], out.on[in_half], out.off[in_half] = present, on, off
    out.entropy[in_half] = -xp.sum(entropy, axis=1)


def invert_incomplete(
    mask: Float64[Array, "n D"], place: Int[np.ndarray, " n"], tables: Tables
) -> tuple[Float64[Array, "n P Q Q"], Float64[Array, "n P"]]:
    """Return S1 of frames with missing entries, and log|S1| / 2."""
    xp = device.namespace(mask)
    gram = xp.reshape(mask @ device.move_beside(tables.products, mask), (len(mask), *tables.own.shape))
    inverse, log_det = xp.empty_like(gram), xp.empty(gram.shape[:2])
    loops_for(mask).invert_all(tables.precision[place], gram, inverse, log_det)
    return inverse, -0.5 * log_det


def gather_edge(settings: Settings, block: Block, local: Halves, tables: Tables) -> Gather:
    """Return the first and last frame of a block, which the blocks beside it read."""
    is_odd, index = locate_rows(settings, block)
    ends = []
    for end in (0, -1):
        half, m = (local.even, local.odd)[is_odd[end]], int(index[end])
        b, on, off, unit = (
            device.on_host(part) for part in (half.present[m], half.on[m], half.off[m], half.unit)
        )
        present = np.repeat(b, len(on) // len(b))
        mean = (present * on + (1.0 - present) * off) * (tables.unit / unit)
        ends.append((b.copy(), mean))  # a view would keep the whole block
    (first, first_mean), (last, last_mean) = ends
    return Gather.of(block, Edge(first, last, first_mean, last_mean))
