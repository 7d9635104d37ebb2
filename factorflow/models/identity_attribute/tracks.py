"""Chains of identities in one block: what each step of an iteration does to them (equation 19).

In an iteration the identities take turns: `faced` tells what the data and all others leave to one of them,
`attributes_smoothed` and `presence_smoothed` update it, in this order: where presence is likely but not sure,
attributes that were fitted with it tell whether it is; attributes of an absence are wide, and say no. Where
chains go on in other blocks, a span sums up what this one says of them first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from factorflow.kernels import device
from factorflow.models.contract import Array, Block
from factorflow.models.identity_attribute.frame_statistics import conditional_covariances
from factorflow.models.identity_attribute.frame_updates import (
    compute_means,
    initialize_frames,
    rescale_frames,
)
from factorflow.models.identity_attribute.kernels import loops_for
from factorflow.models.identity_attribute.settings import Runs, Settings, placed
from factorflow.models.identity_attribute.state import Chains, Halves, Track
from factorflow.models.identity_attribute.tables import Tables

__all__ = [
    "all_smoothed",
    "at_hand",
    "attributes_smoothed",
    "attributes_span",
    "begun",
    "rescale_chains",
    "faced",
    "presence_smoothed",
    "presence_span",
    "products_of",
]

Given = tuple[tuple[int, ...], Runs, Float64[Array, "n Q Q"], int]


def begun(
    settings: Settings, block: Block, local: Chains | Halves | None, tables: Tables, halfway: bool = True
) -> Chains:
    """Return the chains of a block at the beginning of an iteration, as new loadings see them.

    Without ``halfway`` those of an identity are not to be looked at before it was smoothed: their unit may be
    the one before.
    """
    observed = settings.observed(block, tables.location, tables.scale)
    if local is None:
        local = initialize_frames(settings, block, tables)
    y, size = observed.y, settings.choices.n_attributes
    xp = device.namespace(y)
    if isinstance(local, Chains):
        local = placed(local, y)
        activity = local.activity * (device.beside(tables.unit, y) / local.unit)
        tracks = (rescale_chains(local, tables) if halfway else local).tracks
    else:
        tracks = placed(_of_frames(settings, block, local, tables), y)
        activity = xp.concat([t.present[:, None] * t.mean for t in tracks], axis=1)
    if observed.seen is None:
        residual = y @ device.beside(tables.weighted, y) - device.beside(tables.pull, y)
    else:
        explained = activity @ device.beside(tables.weights.T, y) + device.beside(tables.shift, y)
        residual = y - explained * observed.seen
    evidence = device.beside(np.zeros((block.n_rows, size)), y)
    return Chains(tracks, activity, residual, evidence, device.beside(tables.unit, y))


def rescale_chains(local: Chains, tables: Tables) -> Chains:
    """Return the marginals of chains in the unit of attributes that the last M-step chose."""
    unit = device.beside(tables.unit, local.activity)
    by, size, tracks = unit / local.unit, local.evidence.shape[1], []
    xp = device.namespace(by)
    for p, t in enumerate(local.tracks):
        own = by[p * size : (p + 1) * size]
        covariance = t.covariance * (own[:, None] * own[None, :])
        entropy = t.mean_entropy + xp.sum(xp.log(own))
        tracks.append(
            replace(t, mean=t.mean * own, covariance=covariance, cross=t.cross * own**2, mean_entropy=entropy)
        )
    return replace(local, tracks=tuple(tracks), unit=unit)


def at_hand(settings: Settings, block: Block, local: Chains | Halves | None, tables: Tables) -> Chains:
    """Return the chains of a block in the middle of an iteration; at its beginning where there are none.

    Their activity is a copy, to be written to.
    """
    if not isinstance(local, Chains):
        return begun(settings, block, local, tables)
    now = placed(local, settings.observed(block, tables.location, tables.scale).y)
    return replace(now, activity=device.namespace(now.activity).asarray(now.activity, copy=True))


def _of_frames(settings: Settings, block: Block, local: Halves, tables: Tables) -> tuple[Track, ...]:
    """Return chains with the marginals of frames that were factorised."""
    observed = settings.observed(block, tables.location, tables.scale)
    y, place = observed.y, settings.place(block)
    xp, given = device.namespace(y), conditional_covariances(observed, place, tables)
    frames = rescale_frames(settings, block, placed(local, y), tables)
    a, size = compute_means(frames)[1], settings.choices.n_attributes
    alone, which = device.beside((1.0 / tables.precision)[place], y), device.beside(given.which, y)
    diagonal = device.beside(np.eye(size), y)
    tracks = []
    for p in range(settings.choices.n_identities):
        columns = _columns(settings, p)
        b, apart = frames.present[:, p, None], frames.on[:, columns] - frames.off[:, columns]
        covariance = b[:, :, None] * given.inverse[which, p]
        covariance += (b * (1.0 - b))[:, :, None] * apart[:, :, None] * apart[:, None, :]
        covariance += ((1.0 - b) * alone[:, columns])[:, :, None] * diagonal
        none = xp.zeros_like(a[:, 0])
        present, mean = (xp.asarray(part, copy=True) for part in (frames.present[:, p], a[:, columns]))
        tracks.append(Track(present, none, none, none, none, mean, covariance, xp.zeros_like(mean)))
    return tuple(tracks)


def faced(settings: Settings, block: Block, now: Chains, p: int, tables: Tables) -> Chains:
    """Return chains with what the data and all other identities leave to one."""
    columns = _columns(settings, p)
    if settings.complete:
        between = device.beside(np.ascontiguousarray(tables.between[:, columns]), now.activity)
        return replace(now, evidence=now.residual[:, columns] - now.activity @ between)
    residual = now.residual + _part(settings, block, now, p, tables)
    weighted = device.beside(tables.weighted[:, columns], residual)
    return replace(now, residual=residual, evidence=residual @ weighted)


def presence_span(
    settings: Settings, block: Block, now: Chains, p: int, tables: Tables
) -> Float64[np.ndarray, "2 2"]:
    """Return what a block says of b before it and of its last b."""
    track, out = now.tracks[p], np.empty((2, 2))
    each, runs, own, gaps = _given(settings, block, p, tables)
    loops_for(now.evidence).span_presence(
        each,
        runs.starts,
        runs.stops,
        runs.first,
        now.evidence,
        own,
        gaps,
        track.mean,
        track.covariance,
        tables.log_transition,
        settings.choices.start_odds,
        device.namespace(track.mean).empty(block.n_rows),
        out,
    )
    return out


def presence_smoothed(
    settings: Settings,
    block: Block,
    now: Chains,
    p: int,
    tables: Tables,
    sides: tuple[float, float] = (0.0, 0.0),
) -> Chains:
    """Return chains with q(b) of one identity updated, and its part in the data as that has it.

    ``sides`` is what lies around the block says. The activity is written to.
    """
    given = _given(settings, block, p, tables)
    return _with(settings, block, now, p, _presence_of(settings, now, p, tables, given, sides), tables)


def all_smoothed(settings: Settings, block: Block, now: Chains, tables: Tables) -> Chains:
    """Return chains with all identities updated in turn; none goes on in another block."""
    c, n, xp = settings.choices, block.n_rows, device.namespace(now.activity)
    if not settings.complete:
        for p in range(c.n_identities):
            now = faced(settings, block, now, p, tables)
            given = _given(settings, block, p, tables)
            track = _attributes_of(settings, now, p, tables, given, None)
            track = _presence_of(settings, now, p, tables, given, (0.0, 0.0), track)
            now = _with(settings, block, now, p, track, tables)
        return now
    runs, shape = settings.runs(block), (c.n_identities, n, c.n_attributes)
    present = xp.stack([t.present for t in now.tracks])
    joint, earlier, present_entropy, mean_entropy = xp.empty((4, c.n_identities, n))
    mean, covariance, cross = xp.empty(shape), xp.empty((*shape, c.n_attributes)), xp.empty(shape)
    loops_for(now.activity).smooth_all(
        (0,) * c.n_attributes,
        runs.starts,
        runs.stops,
        runs.first,
        runs.last,
        now.residual,
        tables.between,
        tables.own,
        tables.moments,
        c.variance,
        tables.log_transition,
        c.start_odds,
        now.activity,
        present,
        joint,
        earlier,
        present_entropy,
        mean,
        covariance,
        cross,
        mean_entropy,
    )
    parts = present, joint, earlier, present_entropy, mean_entropy, mean, covariance, cross
    return replace(now, tracks=tuple(Track(*own) for own in zip(*parts, strict=True)))


def _presence_of(
    settings: Settings,
    now: Chains,
    p: int,
    tables: Tables,
    given: Given,
    sides: tuple[float, float],
    track: Track | None = None,
) -> Track:
    """Return one identity with q(b) updated."""
    track = track or now.tracks[p]
    present, joint, earlier, entropy = device.namespace(track.mean).empty((4, len(track.mean)))
    each, runs, own, gaps = given
    loops_for(now.evidence).smooth_presence(
        each,
        runs.starts,
        runs.stops,
        runs.first,
        runs.last,
        now.evidence,
        own,
        gaps,
        track.mean,
        track.covariance,
        tables.log_transition,
        settings.choices.start_odds,
        *sides,
        present,
        joint,
        earlier,
        entropy,
    )
    return replace(track, present=present, joint=joint, earlier=earlier, present_entropy=entropy)


def attributes_span(
    settings: Settings, block: Block, now: Chains, p: int, tables: Tables
) -> tuple[Float64[np.ndarray, "U U"], Float64[np.ndarray, " U"]]:
    """Return what a block says of a before it and of its last a."""
    size = settings.choices.n_attributes
    matrix, vector = np.empty((2 * size, 2 * size)), np.empty(2 * size)
    each, runs, own, gaps = _given(settings, block, p, tables)
    loops_for(now.evidence).span_attributes(
        each,
        runs.starts,
        runs.stops,
        runs.first,
        now.tracks[p].present,
        now.evidence,
        own,
        gaps,
        np.ascontiguousarray(tables.moments[:, _columns(settings, p)]),
        settings.choices.variance,
        matrix,
        vector,
    )
    return matrix, vector


def attributes_smoothed(
    settings: Settings, block: Block, now: Chains, p: int, tables: Tables, sides: Any = None
) -> Chains:
    """Return chains with q(a) of one identity updated; ``sides``: what lies around the block says."""
    track = _attributes_of(settings, now, p, tables, _given(settings, block, p, tables), sides)
    return replace(now, tracks=(*now.tracks[:p], track, *now.tracks[p + 1 :]))


def _attributes_of(
    settings: Settings, now: Chains, p: int, tables: Tables, given: Given, sides: Any
) -> Track:
    """Return one identity with q(a) updated."""
    track, xp = now.tracks[p], device.namespace(now.evidence)
    n, size = now.evidence.shape
    mean, covariance = xp.empty((n, size)), xp.empty((n, size, size))
    cross, entropy = xp.empty((n, size)), xp.empty(n)
    nothing = np.zeros((size + 1, size))
    each, runs, own, gaps = given
    loops_for(now.evidence).smooth_attributes(
        each,
        runs.starts,
        runs.stops,
        runs.first,
        runs.last,
        track.present,
        now.evidence,
        own,
        gaps,
        np.ascontiguousarray(tables.moments[:, _columns(settings, p)]),
        settings.choices.variance,
        nothing if sides is None else sides.before,
        nothing if sides is None else sides.behind,
        mean,
        covariance,
        cross,
        entropy,
    )
    return replace(track, mean=mean, covariance=covariance, cross=cross, mean_entropy=entropy)


def products_of(
    tracks: tuple[Track, ...],
) -> tuple[Float64[Array, "B K"], Float64[Array, "B P Q Q"]]:
    """Return mean of x = a b, and its covariance within each identity."""
    xp = device.namespace(tracks[0].mean)
    x = xp.concat([t.present[:, None] * t.mean for t in tracks], axis=1)
    b, a, covariance = (
        xp.stack([getattr(t, name) for t in tracks], axis=1) for name in ("present", "mean", "covariance")
    )
    b = b[:, :, None, None]
    return x, b * (covariance + (1.0 - b) * a[:, :, :, None] * a[:, :, None, :])


def _columns(settings: Settings, p: int) -> slice:
    """Return the columns of the loadings of an identity."""
    size = settings.choices.n_attributes
    return slice(p * size, (p + 1) * size)


def _with(settings: Settings, block: Block, now: Chains, p: int, track: Track, tables: Tables) -> Chains:
    """Return chains with one identity replaced, and its part in the data; the activity is written to."""
    now.activity[:, _columns(settings, p)] = track.present[:, None] * track.mean
    now = replace(now, tracks=(*now.tracks[:p], track, *now.tracks[p + 1 :]))
    if settings.complete:
        return now
    return replace(now, residual=now.residual - _part(settings, block, now, p, tables))


def _part(settings: Settings, block: Block, now: Chains, p: int, tables: Tables) -> Float64[Array, "B D"]:
    """Return the part of an identity in the observed entries."""
    columns = _columns(settings, p)
    weights = device.beside(np.ascontiguousarray(tables.weights[:, columns].T), now.activity)
    seen = settings.observed(block, tables.location, tables.scale).seen
    return (now.activity[:, columns] @ weights) * seen


def _given(settings: Settings, block: Block, p: int, tables: Tables) -> Given:
    """Return what loops over chains take: (0,) * Q, runs, E W_p' rho W_p, 1 where frames have their own."""
    size, runs = settings.choices.n_attributes, settings.runs(block)
    if settings.complete:
        return (0,) * size, runs, tables.own[p : p + 1], 0
    observed = settings.observed(block, tables.location, tables.scale)
    assert observed.seen is not None
    assert tables.products is not None
    columns = slice(p * size**2, (p + 1) * size**2)
    products = device.beside(np.ascontiguousarray(tables.products[:, columns]), observed.y)
    own = device.namespace(observed.y).reshape(observed.seen @ products, (-1, size, size))
    return (0,) * size, runs, own, 1
