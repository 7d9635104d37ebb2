"""Updates of the chains of identities in one block: the steps of an iteration (equation 19).

In an iteration the identities are updated one after the other. `compute_evidence` subtracts from the data
what all other identities explain; `smooth_attribute_chain` and `smooth_presence_chain` update one identity,
in this order: where presence is likely but not certain, attributes fitted under it are evidence for or
against it; attributes of an absent identity are wide, and evidence against it. Where chains go on in other
blocks, messages that summarise this block are computed first.
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
from factorflow.models.identity_attribute.settings import Runs, Settings, move_to_device
from factorflow.models.identity_attribute.state import Chains, Halves, Track
from factorflow.models.identity_attribute.tables import Tables

LoopArguments = tuple[tuple[int, ...], Runs, Float64[Array, "n Q Q"], int]


def initialize_chains(
    settings: Settings, block: Block, local: Chains | Halves | None, tables: Tables, halfway: bool = True
) -> Chains:
    """Return the chains of a block at the beginning of an iteration, given new loadings.

    Without ``halfway`` marginals of an identity are not read before it was smoothed, and not rescaled to the
    unit of the last M-step.
    """
    observed = settings.observed(block, tables.location, tables.scale)
    if local is None:
        local = initialize_frames(settings, block, tables)
    y, size = observed.y, settings.hyper.n_attributes
    xp = device.namespace(y)
    if isinstance(local, Chains):
        local = move_to_device(local, y)
        activity = local.activity * (device.move_beside(tables.unit, y) / local.unit)
        tracks = (rescale_chains(local, tables) if halfway else local).tracks
    else:
        tracks = move_to_device(_chains_of_frames(settings, block, local, tables), y)
        activity = xp.concat([t.present[:, None] * t.mean for t in tracks], axis=1)
    if observed.seen is None:
        residual = y @ device.move_beside(tables.weighted, y) - device.move_beside(tables.pull, y)
    else:
        explained = activity @ device.move_beside(tables.weights.T, y) + device.move_beside(tables.shift, y)
        residual = y - explained * observed.seen
    evidence = device.move_beside(np.zeros((block.n_rows, size)), y)
    return Chains(tracks, activity, residual, evidence, device.move_beside(tables.unit, y))


def rescale_chains(local: Chains, tables: Tables) -> Chains:
    """Return the marginals of chains in the unit of attributes that the last M-step chose."""
    unit = device.move_beside(tables.unit, local.activity)
    ratios, size, tracks = unit / local.unit, local.evidence.shape[1], []
    xp = device.namespace(ratios)
    for p, t in enumerate(local.tracks):
        ratio = ratios[p * size : (p + 1) * size]
        covariance = t.covariance * (ratio[:, None] * ratio[None, :])
        entropy = t.mean_entropy + xp.sum(xp.log(ratio))
        tracks.append(
            replace(
                t, mean=t.mean * ratio, covariance=covariance, cross=t.cross * ratio**2, mean_entropy=entropy
            )
        )
    return replace(local, tracks=tuple(tracks), unit=unit)


def place_chains(settings: Settings, block: Block, local: Chains | Halves | None, tables: Tables) -> Chains:
    """Return the chains of a block in the middle of an iteration; at its beginning where there are none.

    Their activity is a copy, to be written to.
    """
    if not isinstance(local, Chains):
        return initialize_chains(settings, block, local, tables)
    chains = move_to_device(local, settings.observed(block, tables.location, tables.scale).y)
    return replace(chains, activity=device.namespace(chains.activity).asarray(chains.activity, copy=True))


def _chains_of_frames(settings: Settings, block: Block, local: Halves, tables: Tables) -> tuple[Track, ...]:
    """Return chains with the marginals of factorised frames."""
    observed = settings.observed(block, tables.location, tables.scale)
    y, place = observed.y, settings.place(block)
    xp, conditional = device.namespace(y), conditional_covariances(observed, place, tables)
    frames = rescale_frames(settings, block, move_to_device(local, y), tables)
    a, size = compute_means(frames)[1], settings.hyper.n_attributes
    absent_variance, which = (
        device.move_beside((1.0 / tables.precision)[place], y),
        device.move_beside(conditional.which, y),
    )
    diagonal = device.move_beside(np.eye(size), y)
    tracks = []
    for p in range(settings.hyper.n_identities):
        columns = _columns(settings, p)
        b, difference = frames.present[:, p, None], frames.on[:, columns] - frames.off[:, columns]
        covariance = b[:, :, None] * conditional.inverse[which, p]
        covariance += (b * (1.0 - b))[:, :, None] * difference[:, :, None] * difference[:, None, :]
        covariance += ((1.0 - b) * absent_variance[:, columns])[:, :, None] * diagonal
        zeros = xp.zeros_like(a[:, 0])
        present, mean = (xp.asarray(part, copy=True) for part in (frames.present[:, p], a[:, columns]))
        tracks.append(Track(present, zeros, zeros, zeros, zeros, mean, covariance, xp.zeros_like(mean)))
    return tuple(tracks)


def compute_evidence(settings: Settings, block: Block, chains: Chains, p: int, tables: Tables) -> Chains:
    """Return chains with the evidence for one identity: the data less what all others explain."""
    columns = _columns(settings, p)
    if settings.complete:
        between = device.move_beside(np.ascontiguousarray(tables.between[:, columns]), chains.activity)
        return replace(chains, evidence=chains.residual[:, columns] - chains.activity @ between)
    residual = chains.residual + _explained_part(settings, block, chains, p, tables)
    weighted = device.move_beside(tables.weighted[:, columns], residual)
    return replace(chains, residual=residual, evidence=residual @ weighted)


def compute_presence_message(
    settings: Settings, block: Block, chains: Chains, p: int, tables: Tables
) -> Float64[np.ndarray, "2 2"]:
    """Return the message of a block on b before it and on its last b."""
    track, out = chains.tracks[p], np.empty((2, 2))
    each, runs, gram, gaps = _loop_arguments(settings, block, p, tables)
    loops_for(chains.evidence).presence_message(
        each, runs.starts, runs.stops, runs.first, chains.evidence, gram, gaps, track.mean, track.covariance,
        tables.log_transition, settings.hyper.start_odds, device.namespace(track.mean).empty(block.n_rows),
        out,
    )  # fmt: skip
    return out


def smooth_presence_chain(
    settings: Settings,
    block: Block,
    chains: Chains,
    p: int,
    tables: Tables,
    boundary: tuple[float, float] = (0.0, 0.0),
) -> Chains:
    """Return chains with q(b) of one identity updated, and its part in the data as that has it.

    ``boundary`` are the messages of the blocks before and after. The activity is written to.
    """
    arguments = _loop_arguments(settings, block, p, tables)
    return _replace_track(
        settings, block, chains, p, _update_presence(settings, chains, p, tables, arguments, boundary), tables
    )


def smooth_all_chains(settings: Settings, block: Block, chains: Chains, tables: Tables) -> Chains:
    """Return chains with all identities updated one after the other; none goes on in another block."""
    c, n, xp = settings.hyper, block.n_rows, device.namespace(chains.activity)
    if not settings.complete:
        for p in range(c.n_identities):
            chains = compute_evidence(settings, block, chains, p, tables)
            arguments = _loop_arguments(settings, block, p, tables)
            track = _update_attributes(settings, chains, p, tables, arguments, None)
            track = _update_presence(settings, chains, p, tables, arguments, (0.0, 0.0), track)
            chains = _replace_track(settings, block, chains, p, track, tables)
        return chains
    runs, shape = settings.runs(block), (c.n_identities, n, c.n_attributes)
    present = xp.stack([t.present for t in chains.tracks])
    joint, earlier, present_entropy, mean_entropy = xp.empty((4, c.n_identities, n))
    mean, covariance, cross = xp.empty(shape), xp.empty((*shape, c.n_attributes)), xp.empty(shape)
    loops_for(chains.activity).smooth_all(
        (0,) * c.n_attributes, runs.starts, runs.stops, runs.first, runs.last, chains.residual,
        tables.between, tables.own, tables.moments, c.variance, tables.log_transition, c.start_odds,
        chains.activity, present, joint, earlier, present_entropy, mean, covariance, cross, mean_entropy,
    )  # fmt: skip
    parts = present, joint, earlier, present_entropy, mean_entropy, mean, covariance, cross
    return replace(chains, tracks=tuple(Track(*fields) for fields in zip(*parts, strict=True)))


def _update_presence(
    settings: Settings,
    chains: Chains,
    p: int,
    tables: Tables,
    arguments: LoopArguments,
    boundary: tuple[float, float],
    track: Track | None = None,
) -> Track:
    """Return one identity with q(b) updated."""
    track = track or chains.tracks[p]
    present, joint, earlier, entropy = device.namespace(track.mean).empty((4, len(track.mean)))
    each, runs, gram, gaps = arguments
    loops_for(chains.evidence).smooth_presence(
        each, runs.starts, runs.stops, runs.first, runs.last, chains.evidence, gram, gaps, track.mean,
        track.covariance, tables.log_transition, settings.hyper.start_odds, *boundary, present, joint,
        earlier, entropy,
    )  # fmt: skip
    return replace(track, present=present, joint=joint, earlier=earlier, present_entropy=entropy)


def compute_attribute_message(
    settings: Settings, block: Block, chains: Chains, p: int, tables: Tables
) -> tuple[Float64[np.ndarray, "U U"], Float64[np.ndarray, " U"]]:
    """Return the message of a block on a before it and on its last a."""
    size = settings.hyper.n_attributes
    matrix, vector = np.empty((2 * size, 2 * size)), np.empty(2 * size)
    each, runs, gram, gaps = _loop_arguments(settings, block, p, tables)
    loops_for(chains.evidence).attribute_message(
        each, runs.starts, runs.stops, runs.first, chains.tracks[p].present, chains.evidence, gram, gaps,
        np.ascontiguousarray(tables.moments[:, _columns(settings, p)]), settings.hyper.variance, matrix,
        vector,
    )  # fmt: skip
    return matrix, vector


def smooth_attribute_chain(
    settings: Settings, block: Block, chains: Chains, p: int, tables: Tables, boundary: Any = None
) -> Chains:
    """Return chains with q(a) of one identity updated; ``boundary``: the messages of other blocks."""
    track = _update_attributes(
        settings, chains, p, tables, _loop_arguments(settings, block, p, tables), boundary
    )
    return replace(chains, tracks=(*chains.tracks[:p], track, *chains.tracks[p + 1 :]))


def _update_attributes(
    settings: Settings, chains: Chains, p: int, tables: Tables, arguments: LoopArguments, boundary: Any
) -> Track:
    """Return one identity with q(a) updated."""
    track, xp = chains.tracks[p], device.namespace(chains.evidence)
    n, size = chains.evidence.shape
    mean, covariance = xp.empty((n, size)), xp.empty((n, size, size))
    cross, entropy = xp.empty((n, size)), xp.empty(n)
    no_message = np.zeros((size + 1, size))
    each, runs, gram, gaps = arguments
    loops_for(chains.evidence).smooth_attributes(
        each, runs.starts, runs.stops, runs.first, runs.last, track.present, chains.evidence, gram, gaps,
        np.ascontiguousarray(tables.moments[:, _columns(settings, p)]), settings.hyper.variance,
        no_message if boundary is None else boundary.before,
        no_message if boundary is None else boundary.behind, mean, covariance, cross, entropy,
    )  # fmt: skip
    return replace(track, mean=mean, covariance=covariance, cross=cross, mean_entropy=entropy)


def product_moments(tracks: tuple[Track, ...]) -> tuple[Float64[Array, "B K"], Float64[Array, "B P Q Q"]]:
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
    size = settings.hyper.n_attributes
    return slice(p * size, (p + 1) * size)


def _replace_track(
    settings: Settings, block: Block, chains: Chains, p: int, track: Track, tables: Tables
) -> Chains:
    """Return chains with one identity replaced, and its part in the data; the activity is written to."""
    chains.activity[:, _columns(settings, p)] = track.present[:, None] * track.mean
    chains = replace(chains, tracks=(*chains.tracks[:p], track, *chains.tracks[p + 1 :]))
    if settings.complete:
        return chains
    return replace(chains, residual=chains.residual - _explained_part(settings, block, chains, p, tables))


def _explained_part(
    settings: Settings, block: Block, chains: Chains, p: int, tables: Tables
) -> Float64[Array, "B D"]:
    """Return what an identity explains of the observed entries."""
    columns = _columns(settings, p)
    weights = device.move_beside(np.ascontiguousarray(tables.weights[:, columns].T), chains.activity)
    mask = settings.observed(block, tables.location, tables.scale).seen
    return (chains.activity[:, columns] @ weights) * mask


def _loop_arguments(settings: Settings, block: Block, p: int, tables: Tables) -> LoopArguments:
    """Return arguments of loops: (0,) * Q, runs, E W_p' rho W_p, 1 where each frame has one of its own."""
    size, runs = settings.hyper.n_attributes, settings.runs(block)
    if settings.complete:
        return (0,) * size, runs, tables.own[p : p + 1], 0
    observed = settings.observed(block, tables.location, tables.scale)
    assert observed.seen is not None
    assert tables.products is not None
    columns = slice(p * size**2, (p + 1) * size**2)
    products = device.move_beside(np.ascontiguousarray(tables.products[:, columns]), observed.y)
    own = device.namespace(observed.y).reshape(observed.seen @ products, (-1, size, size))
    return (0,) * size, runs, own, 1
