"""Sums over the frames of a block, and the covariances they need: what the M-step reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int

from factorflow.kernels import device
from factorflow.kernels.compile import read_only_view
from factorflow.models.contract import Array, Block
from factorflow.models.identity_attribute.frame_updates import (
    allocate_scratch,
    edge_states,
    find_parity_rows,
    gather_edge,
    invert_incomplete,
    locate_rows,
    rescale_frames,
)
from factorflow.models.identity_attribute.kernels import loops_for
from factorflow.models.identity_attribute.settings import ObservedBlock, Settings
from factorflow.models.identity_attribute.state import Frames, Halves, Stats
from factorflow.models.identity_attribute.sums import state_moments, sums_by_view, unpack_bands
from factorflow.models.identity_attribute.tables import FIRST, LAST, Tables


@dataclass(frozen=True)
class ConditionalCovariances:
    """The distinct covariances S1 of the frames of a block, and the index of each frame's.

    Parameters
    ----------
    which : array
        Index of each frame's S1.
    inverse : array
        S1.
    half_on : array
        log|S1| / 2.
    """

    which: Int[np.ndarray, " B"]
    inverse: Float64[Array, "M P Q Q"]
    half_on: Float64[Array, "M P"]


def conditional_covariances(
    observed: ObservedBlock, place: Int[np.ndarray, " B"], tables: Tables
) -> ConditionalCovariances:
    """Return S1 of the frames of a block."""
    y, complete = observed.y, (tables.inverse, tables.half_on)
    if observed.whole is None or observed.whole.all():
        return ConditionalCovariances(place, *(device.move_beside(part, y) for part in complete))
    assert observed.seen is not None
    gaps = np.flatnonzero(~observed.whole)
    incomplete = invert_incomplete(observed.seen[device.move_beside(gaps, y)], place[gaps], tables)
    which = place.copy()
    which[gaps] = len(tables.inverse) + np.arange(len(gaps))
    pairs = zip(complete, incomplete, strict=True)
    joined = (device.namespace(y).concat([device.move_beside(shared, y), each]) for shared, each in pairs)
    return ConditionalCovariances(which, *joined)


def compute_covariances(local: Frames, conditional: ConditionalCovariances) -> Float64[Array, "B P Q Q"]:
    """Return the covariance of a b of every frame and identity."""
    out = device.namespace(local.on).empty((*local.present.shape, *conditional.inverse.shape[2:]))
    loops_for(local.on).covariances(local.present, local.on, conditional.which, conditional.inverse, out)
    return out


def compute_statistics(settings: Settings, block: Block, local: Halves, tables: Tables) -> Stats:
    """Return the sums over the frames of a block.

    Every pair of neighbouring frames has one odd frame, and belongs to the block of that one: even frames
    were updated in the sweep before, and all blocks have them.
    """
    observed, place = settings.observed(block, tables.location, tables.scale), settings.place(block)
    conditional, y = conditional_covariances(observed, place, tables), observed.y
    (p, q), k = tables.own.shape[:2], len(tables.unit)
    active, cross, bands, squares = np.zeros(k), np.zeros(k), np.zeros((q, k)), np.zeros((4, k))
    spread, chances, numbers, pairs = np.zeros((p, q, q)), np.zeros((2, 4, p)), np.zeros(4), np.zeros((3, p))
    halves, x = (local.even, local.odd), allocate_scratch("x", (block.n_rows, k), y)
    linked = block.once("linked", (), lambda: _mark_pairs(settings, block))
    states = (read_only_view(part) for half in halves for part in (half.present, half.on, half.off))
    entropy = loops_for(y).sum_statistics(
        *locate_rows(settings, block), *states, place, conditional.which, conditional.inverse,
        conditional.half_on, linked, *edge_states(block, tables.edges, p, k), x, active, cross, bands,
        squares, spread, chances, numbers, pairs,
    )  # fmt: skip
    absent = numbers[:, None] - chances[1]
    squares += np.repeat(chances[0], q, axis=1) * np.diagonal(tables.inverse, axis1=2, axis2=3).reshape(4, k)
    squares += np.repeat(absent, q, axis=1) * tables.alone
    spread += unpack_bands(bands) + (chances[0][:, :, None, None] * tables.inverse).sum(axis=0)
    entropy += sum(float(half.entropy.sum()) for half in halves)
    entropy += float((chances[0] * tables.half_on + absent * tables.half_off).sum())
    entropy += 0.5 * block.n_rows * k * (1.0 + np.log(2.0 * np.pi))
    covariance = None
    if observed.seen is not None:
        covariance = compute_covariances(rescale_frames(settings, block, local, tables), conditional)
    views, second = sums_by_view(settings, observed, x, active, covariance, spread)
    first = device.move_beside(np.flatnonzero(find_parity_rows(settings, block, 0).place & FIRST), y)
    moments = state_moments(settings, squares, device.on_host(local.even.present[first]), entropy)
    both, n_earlier, n_later = pairs.sum(axis=1)
    n_pairs = float(linked.sum())
    n = n_pairs * p
    transitions = np.array([[n - n_earlier - n_later + both, n_later - both], [n_earlier - both, both]])
    moments = replace(moments, pairs=transitions, cross=cross, n_pairs=n_pairs)
    return Stats(views, second, moments, gather_edge(settings, block, local, tables))


def _mark_pairs(settings: Settings, block: Block) -> Float64[np.ndarray, " C"]:
    """Return 1 where a frame of the block, or the first one after it, makes a pair with the previous one."""
    place = settings.place(block)
    linked = np.append(place & FIRST == 0, place[-1] & LAST == 0).astype(float)
    odd = settings.parity(block, 1)
    if not len(odd) or odd[0] > 0:
        linked[0] = 0.0
    if not len(odd) or odd[-1] < block.n_rows - 1:
        linked[-1] = 0.0
    return linked
