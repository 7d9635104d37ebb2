"""How far passes go: SQUAREM, what three of them did, extrapolated; shorter ones after a fall.

Scores and loadings settle slowly along directions that the likelihood hardly sees: shears z -> T z,
w -> T'^-1 w among factors, and precisions of priors that follow many weights of little information. Passes
are a map of (w, b, alpha, theta, m, lambda) onto itself. With h_0, h_1, h_2 before, between and after two,
r = h_1 - h_0 and v = h_2 - 2 h_1 + h_0, what is reached is put at::

    h_0 + 2 s r + s^2 v,   s = |r| / |v|

(Varadhan and Roland 2008; s = 1 is h_2), with one s for slab means of all views, scaled by inclusion and the
precision of the noise, one for the coefficients of each view, and one for each precision, odds and share
(their logarithm). Changes of basis come before h_0. The pass that follows has the last word
(`judge_snapshot`): where its objective is lower than what was recorded, all is as it was, and steps get
shorter. With tangents the second pass has to be the better one, too, and no predictor moves by more than
`REACH`.

Of entries that are not Gaussian a pass maximises tangents, which have value and slope of the expected
log-likelihood at the state that it begins with. The objective that is recorded is their value behind the
pass: what the likelihood itself has there, but for third powers of the step. Where steps are too long for
that, the next tangents lie lower, and passes go a part of the way (`next_step_length`).

References
----------
Varadhan and Roland (2008), Scandinavian Journal of Statistics 35, 335-353.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.n_factors import EVIDENCE, falls_behind
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, Iterate, Snapshot, replace_part
from factorflow.models.sparse_gfa.weights import sum_pairs

FIRST = 4
"""Passes of a stage before the first that is taken further: those change too much."""
LONGER, SHORTER = 2.0, 4.0
"""How much longer steps get after one that raised the bound, and shorter after others, ..."""
LEAST, MOST = 1.5, 1e3
"""... within these."""
REACH = 1.0
"""Units of x (a logarithm or a logit) that a longer step may move the predictor of a feature by, and a pass
that of a logarithm, where there is a tangent: it says little of what is further."""
SLOW = 40
"""Passes of a stage from which it settles so slowly that passes alone do not show what is left to gain."""
SLOWEST, FASTER = 0.125, 1.1
"""Share of the way that a pass goes at least, and how much longer it gets with every rise of the bound."""


def squarem_step(settings: Settings, globals_: Globals, objective: float, count: int) -> Globals:
    """Return the globals that the next pass begins with.

    Parameters
    ----------
    settings, globals_ : Settings, Globals
        Of the run; after a pass.
    objective : float
        What was recorded of it.
    count : int
        Passes of the stage before it.
    """
    if not globals_.n_factors:
        return globals_
    now = Iterate({name: (w.mean, w.coefficients) for name, w in globals_.weights.items()}, globals_.views)
    iterates = globals_.progress.iterates if count % 3 != 2 else ()
    if len(iterates) < 2 or count < FIRST or globals_.progress.snapshot is not None:
        return replace_part(globals_, "progress", iterates=(*iterates, now)[-2:])
    new = _further(settings, globals_, (iterates[0], iterates[1], now))
    back = Snapshot(replace_part(globals_, "progress", iterates=()), objective)
    return replace_part(new, "progress", iterates=(), snapshot=back)


def needs_longer_step(before: Globals, count: int) -> bool:
    """Return whether a stage may not end with a pass, however little it gains.

    One that settles slowly ends with a pass from where others were taken further: a longer step often gains
    what many passes would.

    Parameters
    ----------
    before : Globals
        Before the pass.
    count : int
        Passes of the stage before it.
    """
    slow = count >= SLOW and before.courses is None
    return slow and before.n_factors > 0 and before.progress.snapshot is None


def judge_snapshot(
    settings: Settings, before: Globals, new: Globals, objective: float
) -> tuple[Globals, float]:
    """Return the globals to go on with after a pass, and what is recorded: after a longer step, the better.

    Until what follows is known to be the better one, what was before is recorded. With tangents the second
    pass after a step has to be the better one, too.

    Parameters
    ----------
    settings, before, new : Settings, Globals
        Of the run; before and after the pass.
    objective : float
        What the pass found.
    """
    snapshot = before.progress.snapshot
    if snapshot is None:
        return new, objective
    old = snapshot.back()
    is_known = snapshot.is_lower or not settings.tangent
    waiting = None if is_known else replace(snapshot, is_lower=True)
    back = replace_part(old, "change", restored=True)
    followed = replace_part(new, "progress", snapshot=waiting)
    if snapshot.trial:
        if new.progress.score > old.progress.score + EVIDENCE:
            return followed, objective if is_known else snapshot.objective
        if snapshot.is_lower or falls_behind(new.progress.score, before.progress.score, old.progress.score):
            return replace_part(back, "progress", trial_failed=True), snapshot.objective
        return replace_part(new, "progress", snapshot=snapshot), snapshot.objective
    if objective >= snapshot.objective:
        limit = before.progress.step_limit
        limit = limit if snapshot.is_lower else min(LONGER * limit, MOST)
        new = replace_part(followed, "progress", step_limit=limit)
        return new, objective if is_known else snapshot.objective
    limit = max(old.progress.step_limit / SHORTER, LEAST)
    return replace_part(back, "progress", step_limit=limit), snapshot.objective


def next_step_length(before: Globals, new: Globals, objective: float, rounding: float) -> float:
    """Return how far the next pass may move: half as far after a fall of the objective.

    With every rise it is a tenth more again, up to the whole way. Objectives are not compared across numbers
    of factors, or with those before a longer step.

    Parameters
    ----------
    before, new : Globals
        Before and after the pass.
    objective, rounding : float
        What the pass found; by how much that may be wrong.
    """
    comparable = new.n_factors == before.n_factors and before.progress.snapshot is None
    if comparable and objective < before.progress.objective - rounding:
        return max(0.5 * before.progress.step_length, SLOWEST)
    return min(1.0, FASTER * before.progress.step_length)


def discard_unverified_step(globals_: Globals) -> Globals:
    """Return the globals to go on with when a stage is over: none whose bound no pass has shown.

    What the last passes left is of no use from here on.
    """
    if globals_.progress.snapshot is None:
        return replace_part(globals_, "progress", iterates=())
    return replace_part(globals_.progress.snapshot.back(), "change", restored=True)


def _further(settings: Settings, globals_: Globals, path: tuple[Iterate, Iterate, Iterate]) -> Globals:
    most = globals_.progress.step_limit
    weights, moves, lengths = dict(globals_.weights), {}, np.zeros(2)
    for name, mine in weights.items():
        size = np.sqrt(settings.precision(name, mine).mean(axis=1))[:, None]
        size = size if mine.inclusion is None else size * mine.inclusion
        r, v = _differences([p.weights[name][0] for p in path])
        moves[name] = r, v
        lengths += np.sum((size * r) ** 2), np.sum((size * v) ** 2)
    step = _length(float(lengths[0] ** 0.5), float(lengths[1] ** 0.5), most)
    tangents = [view.name for view in settings.views if view.tangent]
    while step > 1.0 and _reach(globals_, path, moves, tangents, step) > REACH:
        step = max(1.0, 0.5 * step)
    views = {}
    for name, mine in weights.items():
        (r, v), start = moves[name], path[0]
        change, bend = _differences([p.weights[name][1] for p in path])
        length = _length(float(np.linalg.norm(change)), float(np.linalg.norm(bend)), most)
        coefficients = start.weights[name][1] + 2.0 * length * change + length**2 * bend
        mean = start.weights[name][0] + 2.0 * step * r + step**2 * v
        if mine.inclusion is not None and not settings.view(name).prior.signed:
            mean = np.maximum(mean, 0.0)
        if name in tangents:
            coefficients = np.clip(coefficients, mine.coefficients - REACH, mine.coefficients + REACH)
        weights[name] = replace(mine, mean=mean, coefficients=coefficients)
        third = path[-1].views[name]
        odds = _forward([np.log(p.views[name].theta_on / p.views[name].theta_off) for p in path], most)
        total, share = third.theta_on + third.theta_off, 1.0 / (1.0 + np.exp(-odds))
        least_on, least_off = settings.priors.theta  # what loadings add is not below 0
        alpha = _forward([np.log(p.views[name].alpha) for p in path], most)
        spread = _forward(
            [np.log([p.views[name].intercept_shape / p.views[name].intercept_rate]) for p in path], most
        )
        of_terms = _forward(
            [np.log(p.views[name].coefficient_shape / p.views[name].coefficient_rate) for p in path], most
        )
        views[name] = replace(
            third,
            counts=_counts([p.views[name].counts for p in path], most),
            theta_on=np.maximum(total * share, least_on),
            theta_off=np.maximum(total * (1.0 - share), least_off),
            alpha_rate=third.alpha_shape / np.exp(alpha),
            intercept_rate=float(third.intercept_shape / np.exp(spread[0])),
            coefficient_rate=third.coefficient_shape / np.exp(of_terms),
            pairs=sum_pairs(weights[name], settings.precision(name, weights[name])),
        )
    return replace(globals_, weights=weights, views=views)


def _counts(path: Sequence[Float64[Array, "P K"] | None], most: float) -> Float64[Array, "P K"] | None:
    """Return where the shares of each factor go, their counts in all as they are."""
    counts_of_path = [counts for counts in path if counts is not None]
    if len(counts_of_path) < len(path):
        return path[-1]
    extrapolated = np.exp(_forward([np.log(counts) for counts in counts_of_path], most))
    return np.asarray(extrapolated * (counts_of_path[-1].sum(axis=0) / extrapolated.sum(axis=0)))


def _reach(
    globals_: Globals, path: Sequence[Iterate], moves: Mapping[str, Any], names: list[str], step: float
) -> float:
    """Return how far a step moves x of any feature of some views: the root of its mean square by sample."""
    largest = 0.0
    for name in names:
        r, v = moves[name]
        w = path[0].weights[name][0] + 2.0 * step * r + step**2 * v - path[-1].weights[name][0]
        squares = np.einsum("dj,jk,dk->d", w, globals_.scores.second, w)
        largest = max(largest, float(squares.max(initial=0.0)))
    return float(np.sqrt(largest))


def _differences(
    path: Sequence[Float64[Array, "*shape"]],
) -> tuple[Float64[Array, "*shape"], Float64[Array, "*shape"]]:
    first, second, third = path
    r = second - first
    return r, (third - second) - r


def _length(change: float, bend: float, most: float) -> float:
    return float(np.clip(change / max(bend, 1e-300), 1.0, most))


def _forward(path: Sequence[Float64[Array, "*n"]], most: float) -> Float64[Array, "*n"]:
    """Return where each number goes: further only if it slows down."""
    r, v = _differences(path)
    length = np.where(r * v < 0.0, np.clip(np.abs(r) / np.maximum(np.abs(v), 1e-300), 1.0, most), 1.0)
    return np.asarray(path[0] + 2.0 * length * r + length**2 * v)
