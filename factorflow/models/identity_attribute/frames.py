"""Frames one by one: the posterior that is factorised over frames and identities (equations 20 to 51).

Even frames are updated given the odd ones beside them, then odd ones given even ones: neighbours are never
updated at once, so that every update is exact, and all frames of one parity are independent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float64, Int

from factorflow.models.contract import Block, Gather, Info, Step, Sweep
from factorflow.models.identity_attribute.learning import Learning
from factorflow.models.identity_attribute.settings import Observed, Settings
from factorflow.models.identity_attribute.state import Edge, Frames, Globals, Stats
from factorflow.models.identity_attribute.sums import by_view, from_bands, moments_of
from factorflow.models.identity_attribute.tables import FIRST, LAST, Tables, tables_of

__all__ = ["EvenFrames", "FirstFrames", "OddFrames", "starting"]


@dataclass(frozen=True)
class Edges:
    """Statistics of a sweep over even frames."""

    edges: Gather


@dataclass(frozen=True)
class FirstFrames(Sweep[Globals, Frames, Edges]):
    """Frames at first sight, and what their neighbours see of them: without it, a cut would be felt."""

    settings: Settings
    name: ClassVar[str] = "first sight"

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables of the globals."""
        return tables_of(self.settings, globals_)

    def map(self, block: Block, local: Frames | None, globals_: Tables, step: Step) -> tuple[Frames, Edges]:
        """Start the frames."""
        now = starting(self.settings, block, globals_)
        return now, Edges(_edge(block, now))

    def update(self, globals_: Globals, stats: Edges, step: Step) -> tuple[Globals, Info]:
        """Hand the edges on."""
        return replace(globals_, edges=stats.edges), {}


@dataclass(frozen=True)
class EvenFrames(Sweep[Globals, Frames, Edges]):
    """q(b, a) of even frames."""

    settings: Settings
    name: ClassVar[str] = "even frames"
    neighbours: ClassVar[bool] = True

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables of the globals."""
        return tables_of(self.settings, globals_)

    def map(self, block: Block, local: Frames | None, globals_: Tables, step: Step) -> tuple[Frames, Edges]:
        """Update even frames."""
        now = updated(self.settings, block, local or starting(self.settings, block, globals_), globals_, 0)
        return now, Edges(_edge(block, now))

    def carry(self, globals_: Globals, stats: Edges, step: Step) -> Globals:
        """Hand the edges on."""
        return replace(globals_, edges=stats.edges)

    def update(self, globals_: Globals, stats: Edges, step: Step) -> tuple[Globals, Info]:
        """Learn nothing yet."""
        return globals_, {}


@dataclass(frozen=True)
class OddFrames(Learning[Frames]):
    """q(b, a) of odd frames, then the M-step."""

    name: ClassVar[str] = "odd frames"

    def map(self, block: Block, local: Frames | None, globals_: Tables, step: Step) -> tuple[Frames, Stats]:
        """Update odd frames and add up what all frames say of the globals."""
        settings = self.settings
        now = updated(settings, block, local or starting(settings, block, globals_), globals_, 1)
        return now, _statistics(settings, block, now, globals_)


def starting(settings: Settings, block: Block, tables: Tables) -> Frames:
    """Return frames at first sight: attributes by ridge regression, presence by their energy."""
    c = settings.choices
    x = settings.observed(block, tables.location, tables.scale).y @ tables.start
    energy = (x.reshape(-1, c.n_identities, c.n_attributes) ** 2).mean(axis=2)
    present = np.clip(energy / (energy + 0.2), 0.05, 0.95)
    return Frames(present, x, np.zeros_like(x))


def updated(settings: Settings, block: Block, local: Frames, tables: Tables, parity: int) -> Frames:
    """Return the frames of a block with those of one parity updated, all identities in turn."""
    rows = settings.parity(block, parity)
    place = settings.place(block)[rows]
    observed = settings.observed(block, tables.location, tables.scale)
    out = Frames(local.present.copy(), local.on.copy(), local.off.copy())
    whole = np.ones(len(rows), bool) if observed.whole is None else observed.whole[rows]
    _update_complete(settings, block, observed.y, rows, place, whole, out, tables)
    if not whole.all():
        gaps = np.flatnonzero(~whole)
        _update_gaps(settings, block, observed, rows[gaps], place[gaps], local, out, tables)
    return out


def means(local: Frames) -> tuple[Float64[np.ndarray, "B K"], Float64[np.ndarray, "B K"]]:
    """Return E a b and E a of all frames."""
    from factorflow.models.identity_attribute.kernels import frames as kernels

    x, a = np.empty_like(local.on), np.empty_like(local.on)
    kernels.means(local.present, local.on, local.off, x, a)
    return x, a


def _by_neighbours(
    settings: Settings,
    block: Block,
    local: Frames,
    a: Float64[np.ndarray, "B K"],
    tables: Tables,
    rows: Int[np.ndarray, " n"],
    place: Int[np.ndarray, " n"],
) -> tuple[Float64[np.ndarray, "n K"], Float64[np.ndarray, "n P"]]:
    """Return what neighbouring frames say: precision times mean of a (29), log odds of b (24)."""
    before, behind = _beside(block, local.present, a, tables.edges, rows)
    inner = (place & FIRST == 0)[:, None], (place & LAST == 0)[:, None]
    prior = tables.moments[1] * (before[1] * inner[0] + behind[1] * inner[1])
    ahead, back = _log_odds(tables)
    odds = np.where(inner[0], ahead[0] + before[0] * (ahead[1] - ahead[0]), settings.choices.start_odds)
    return prior, odds + inner[1] * (back[0] + behind[0] * (back[1] - back[0]))


def _log_odds(tables: Tables) -> tuple[Float64[np.ndarray, " M"], Float64[np.ndarray, " M"]]:
    """Return the log odds of b where b before is 0 and where it is 1, and by b behind."""
    log_t = tables.log_transition
    return log_t[:, 1] - log_t[:, 0], log_t[1] - log_t[0]


def _outside(
    block: Block, edges: Gather, n_identities: int, n_columns: int
) -> tuple[Float64[np.ndarray, "2 P"], Float64[np.ndarray, "2 K"]]:
    """Return Q(b = 1) and E a of the frames before and behind a block; 1/2 and 0 where none was seen yet."""
    left, right = edges.before(block), edges.after(block)
    present, a = np.full((2, n_identities), 0.5), np.zeros((2, n_columns))
    if left is not None:
        present[0], a[0] = left.last_present, left.last_mean
    if right is not None:
        present[1], a[1] = right.first_present, right.first_mean
    return present, a


Beside = tuple[Float64[np.ndarray, "n P"], Float64[np.ndarray, "n K"]]


def _beside(
    block: Block,
    present: Float64[np.ndarray, "B P"],
    a: Float64[np.ndarray, "B K"],
    edges: Gather,
    rows: Int[np.ndarray, " n"],
) -> tuple[Beside, Beside]:
    """Return Q(b = 1) and E a in the rows before and behind some rows, whatever sequence those belong to.

    Where no sweep has seen them yet, 1/2 and 0.
    """
    there, means_there = _outside(block, edges, present.shape[1], a.shape[1])
    early, late = np.maximum(rows - 1, 0), np.minimum(rows + 1, block.n_rows - 1)
    before, behind = (present[early], a[early]), (present[late], a[late])
    if len(rows) and rows[0] == 0:
        before[0][0], before[1][0] = there[0], means_there[0]
    if len(rows) and rows[-1] == block.n_rows - 1:
        behind[0][-1], behind[1][-1] = there[1], means_there[1]
    return before, behind


def _update_complete(
    settings: Settings,
    block: Block,
    y: Float64[np.ndarray, "B D"],
    rows: Int[np.ndarray, " n"],
    place: Int[np.ndarray, " n"],
    whole: Bool[np.ndarray, " n"],
    out: Frames,
    tables: Tables,
) -> None:
    """Update those rows in place that are complete, at each place of sequences on its own."""
    from factorflow.models.identity_attribute.kernels import frames as kernels

    data = y[_evenly(rows)] @ tables.weighted
    offset = tables.half_on - tables.half_off
    beside = _outside(block, tables.edges, out.present.shape[1], out.on.shape[1])
    ahead, back = _log_odds(tables)
    for where in range(len(offset)):
        before, behind = not where & FIRST, not where & LAST
        start = ahead[0] if before else settings.choices.start_odds
        turn = before * (ahead[1] - ahead[0]), behind * (back[1] - back[0])
        odds = np.array([start + behind * back[0], *turn])
        kernels.update_complete(
            rows,
            np.flatnonzero(whole & (place == where)),
            data,
            tables.between,
            np.multiply.outer([float(before), float(behind)], tables.moments[1]),
            odds,
            tables.precision[where],
            tables.inverse[where],
            offset[where],
            *beside,
            out.present,
            out.on,
            out.off,
        )


def _evenly(rows: Int[np.ndarray, " n"]) -> slice | Int[np.ndarray, " n"]:
    """Return rows as a slice, which copies nothing, where they are as far from each other all over."""
    steps = np.diff(rows)
    if not len(steps) or (steps != steps[0]).any():
        return rows
    return slice(int(rows[0]), int(rows[-1]) + 1, int(steps[0]))


def _update_gaps(
    settings: Settings,
    block: Block,
    observed: Observed,
    rows: Int[np.ndarray, " n"],
    place: Int[np.ndarray, " n"],
    local: Frames,
    out: Frames,
    tables: Tables,
) -> None:
    """Update rows with missing entries in place."""
    from factorflow.models.identity_attribute.kernels import frames as kernels

    assert observed.seen is not None
    seen = observed.seen[rows]
    inverse, half_on = _of_gaps(seen, place, tables)
    x, a = means(local)
    prior, odds = _by_neighbours(settings, block, local, a, tables, rows, place)
    x, new = x[rows], Frames(local.present[rows], local.on[rows], local.off[rows])
    kernels.update_gaps(
        place,
        observed.y[rows] - seen * (x @ tables.weights.T),
        seen,
        np.ascontiguousarray(tables.weights.T),
        np.ascontiguousarray(tables.weighted.T),
        prior,
        tables.precision,
        inverse,
        half_on - tables.half_off[place],
        odds,
        x,
        new.present,
        new.on,
        new.off,
    )
    out.present[rows], out.on[rows], out.off[rows] = new.present, new.on, new.off


def _of_gaps(
    seen: Float64[np.ndarray, "n D"], place: Int[np.ndarray, " n"], tables: Tables
) -> tuple[Float64[np.ndarray, "n P Q Q"], Float64[np.ndarray, "n P"]]:
    """Return S1 of frames with missing entries, and log|S1| / 2."""
    from factorflow.models.identity_attribute.kernels.small import invert_all

    gram = (seen @ tables.products).reshape(len(seen), *tables.own.shape)
    inverse, log_det = np.empty_like(gram), np.empty(gram.shape[:2])
    invert_all(tables.precision[place], gram, inverse, log_det)
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
    inverse: Float64[np.ndarray, "M P Q Q"]
    half_on: Float64[np.ndarray, "M P"]


def conditional(observed: Observed, place: Int[np.ndarray, " B"], tables: Tables) -> Conditional:
    """Return S1 of the frames of a block."""
    if observed.whole is None or observed.whole.all():
        return Conditional(place, tables.inverse, tables.half_on)
    assert observed.seen is not None
    gaps = np.flatnonzero(~observed.whole)
    inverse, half_on = _of_gaps(observed.seen[gaps], place[gaps], tables)
    which = place.copy()
    which[gaps] = len(tables.inverse) + np.arange(len(gaps))
    return Conditional(
        which, np.concatenate([tables.inverse, inverse]), np.concatenate([tables.half_on, half_on])
    )


def spread_of(local: Frames, given: Conditional) -> Float64[np.ndarray, "B P Q Q"]:
    """Return the covariance of a b of every frame and identity."""
    from factorflow.models.identity_attribute.kernels import frames as kernels

    out = np.empty((*local.present.shape, *given.inverse.shape[2:]))
    kernels.covariances(local.present, local.on, given.which, given.inverse, out)
    return out


def _statistics(settings: Settings, block: Block, local: Frames, tables: Tables) -> Stats:
    """Return the sums over the frames of a block."""
    from factorflow.models.identity_attribute.kernels import frames as kernels

    observed = settings.observed(block, tables.location, tables.scale)
    place = settings.place(block)
    given = conditional(observed, place, tables)
    x, a = means(local)
    squares, spread = _second_moments(local, x, a, place, given, tables)
    covariance = None if observed.seen is None else spread_of(local, given)
    views, second = by_view(settings, observed, x, covariance, spread)
    entropy = kernels.entropies(local.present, given.which, given.half_on, place, tables.half_off)
    entropy += 0.5 * a.size * (1.0 + np.log(2.0 * np.pi))
    moments = moments_of(settings, block, place, squares, local.present, entropy)
    pairs, cross, n_pairs = _pairs(settings, block, local.present, a, place, tables.edges)
    moments = replace(moments, pairs=pairs, cross=cross, n_pairs=n_pairs)
    return Stats(views, second, moments, _edge(block, local, a))


def _second_moments(
    local: Frames,
    x: Float64[np.ndarray, "B K"],
    a: Float64[np.ndarray, "B K"],
    place: Int[np.ndarray, " B"],
    given: Conditional,
    tables: Tables,
) -> tuple[Float64[np.ndarray, "4 K"], Float64[np.ndarray, "P Q Q"]]:
    """Return sums of E a^2 by place of the frames (51), and of the covariances of a b."""
    from factorflow.models.identity_attribute.kernels import frames as kernels

    n_identities, size = tables.own.shape[:2]
    squares, spread = np.zeros((4, a.shape[1])), np.zeros(tables.own.shape)
    chances, numbers, bands = np.zeros((2, 4, n_identities)), np.zeros(4), np.zeros((size, a.shape[1]))
    kernels.tally(
        local.present, local.on, local.off, x, a, place, given.which, given.inverse,
        squares, bands, spread, chances, numbers,
    )  # fmt: skip
    complete, every = chances
    spread += from_bands(bands)
    spread += np.einsum("mp,mpij->pij", complete, tables.inverse)
    variances = np.einsum("mpii->mpi", tables.inverse).reshape(4, -1)
    squares += np.repeat(complete, size, axis=1) * variances
    squares += np.repeat(numbers[:, None] - every, size, axis=1) / tables.precision
    return squares, spread


def _pairs(
    settings: Settings,
    block: Block,
    present: Float64[np.ndarray, "B P"],
    a: Float64[np.ndarray, "B K"],
    place: Int[np.ndarray, " B"],
    edges: Gather,
) -> tuple[Float64[np.ndarray, "2 2"], Float64[np.ndarray, " K"], float]:
    """Return transitions (59), sum of E a_t E a_t-1 (65) and number of the pairs of neighbouring frames.

    Every pair has one odd frame, and belongs to the block of that one: even frames moved a sweep ago, so that
    all blocks know them.
    """
    from factorflow.models.identity_attribute.kernels import frames as kernels

    rows = settings.parity(block, 1)
    goes_on = (place[rows] & LAST == 0).astype(float)
    beside, cross = _outside(block, edges, present.shape[1], a.shape[1]), np.zeros(a.shape[1])
    both, came, went = kernels.pairs(rows, goes_on, present, a, *beside, cross)
    n_pairs = float(len(rows) + goes_on.sum())
    n = n_pairs * present.shape[1]
    return np.array([[n - came - went + both, went - both], [came - both, both]]), cross, n_pairs


def _edge(block: Block, local: Frames, a: Float64[np.ndarray, "B K"] | None = None) -> Gather:
    """Return the frames of a block that its neighbours see."""
    if a is None:
        ends = [0, -1]
        part = Frames(local.present[ends], local.on[ends], local.off[ends])
        a = means(part)[1]
    return Gather.of(block, Edge(local.present[0], local.present[-1], a[0], a[-1]))
