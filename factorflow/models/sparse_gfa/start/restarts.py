"""Several starts of a run, one after the other: the best is kept, and how far the others found its factors.

The bound has many optima, in which some factors differ. Starts share the moments of the data. The first is
the run as it is without others: from the components that were counted. The others begin with other sketches
of as many, from other random numbers.
Where the first kept all factors that were asked for, they also begin with `SPARE` more, unless weights have
no spikes: the sparse factors that there are need not lie in as many principal components. Those that explain
most go on to the sparse stage (`turn`).

The globals of the best go on until no pass gains much; in the closing pass the scores of the other starts are
computed once more, and each of its factors is correlated with all of theirs.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.pseudo_data import strip_for_workers
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start.components import initial_globals
from factorflow.models.sparse_gfa.start.count import MARGIN, first_number
from factorflow.models.sparse_gfa.state import Change, Globals, Start, replace_part

SPARE = 8
"""Factors besides those asked for that other starts than the first have until the sparse stage. What comes of
it is counted by ``benchmarks/sparse_gfa_seeds.py``."""


def next_start(settings: Settings, globals_: Globals, *, spare: int) -> Globals:
    """Return the globals that another start begins with, the one that is over put aside.

    Only the best of those can still be kept: of the others remains what their scores follow from. With
    ``spare`` factors besides those asked for, if the first start has kept all of these.
    """
    done = (*globals_.starts, _over(globals_))
    best = _best(done)
    slim = tuple(s if i == best else _slim(settings, s) for i, s in enumerate(done))
    first, number = done[0].globals_, settings.n_factors
    if first is not None and first.n_factors == number:
        size = min(settings.n_rows, sum(view.n_features for view in settings.views))
        number = min(number + min(spare, MARGIN), size)
    elif globals_.factors.n_counted is not None:
        number = first_number(settings, globals_.factors.n_counted)
    new = initial_globals(replace(settings, n_factors=number), globals_.fixed)
    return replace_part(replace(new, starts=slim), "factors", n_counted=globals_.factors.n_counted)


def best_start(settings: Settings, globals_: Globals, *, over: bool) -> Globals:
    """Return the globals of the start with the highest bound; themselves where that is decided.

    Parameters
    ----------
    settings, globals_ : Settings, Globals
        Of the run.
    over : bool
        Whether the start in hand is over, so that it counts: always if it is the first.
    """
    if any(start.kept for start in globals_.starts):
        return globals_
    fixed, last = globals_.fixed, over or not globals_.starts
    done = (*globals_.starts, _over(globals_)) if last else globals_.starts
    best = _best(done)
    mine = done[best].globals_
    assert mine is not None
    others = tuple(
        Start(s.objective, None, kept=True) if i == best else _slim(settings, s) for i, s in enumerate(done)
    )
    regained = not last or best < len(done) - 1 or globals_.progress.snapshot is not None
    if regained:
        mine = replace(replace_part(mine, "progress", step_length=1.0), change=Change(regained=True))
    return replace(mine, fixed=fixed, starts=others)


def _over(globals_: Globals) -> Start:
    """Return a start that ends with these globals, or those before a longer step."""
    best, objective = globals_, globals_.progress.objective
    if globals_.progress.snapshot is not None:
        best, objective = globals_.progress.snapshot.back(), globals_.progress.snapshot.objective
    best = replace_part(best, "progress", snapshot=None, iterates=())
    return Start(objective, replace(best, fixed={}, starts=()))


def _best(done: tuple[Start, ...]) -> int:
    """Return the start of the highest bound; of those that rounding sets apart, the first."""
    bounds = np.nan_to_num([start.objective for start in done], nan=-np.inf)
    highest = bounds.max()
    if not np.isfinite(highest):
        return 0
    return int(np.argmax(bounds >= highest - 1e-9 * abs(highest)))


def _slim(settings: Settings, start: Start) -> Start:
    if start.globals_ is None:
        return start
    return replace(start, globals_=strip_for_workers(settings, replace(start.globals_, basis={})))


def other_starts(globals_: Globals) -> tuple[Globals, ...]:
    """Return what the starts that were not kept learned, as far as their scores follow from it."""
    return tuple(
        replace(s.globals_, fixed=globals_.fixed, change=Change(regained=True))
        for s in globals_.starts
        if s.globals_ is not None
    )


def start_similarity(globals_: Globals, products: Float64[Array, "L L"] | None) -> Float64[Array, "starts K"]:
    """Return the largest absolute correlation of each factor's scores with those of any factor of each start.

    Parameters
    ----------
    globals_ : Globals
        Of the start that was kept; with itself it is 1.
    products : array or None
        Sums over the samples of the products of all scores: of the K factors kept, then of those of each
        other start in turn, then of a constant 1. None: there are no others.
    """
    if products is None:
        return np.ones((len(globals_.starts), globals_.n_factors))
    k, n_rows = globals_.n_factors, products[-1, -1]
    mean = products[-1] / n_rows
    covariance = products / n_rows - np.outer(mean, mean)
    size = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    size = np.where(np.diag(covariance) > 1e-12 * np.diag(products) / n_rows, size, np.inf)
    correlation = np.minimum(np.abs(covariance / np.outer(size, size)), 1.0)
    similarity, first = np.ones((len(globals_.starts), k)), k
    for i, start in enumerate(globals_.starts):
        if start.globals_ is None:
            continue
        last = first + start.globals_.n_factors
        similarity[i] = correlation[:k, first:last].max(axis=1, initial=0.0)
        first = last
    return similarity
