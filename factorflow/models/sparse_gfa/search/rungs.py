"""Other numbers of factors than the one a run finds, where binary entries are few.

A factor that is deleted on the way looks better or worse than it is, since those that are left take many
passes, and other rotations, to make up for it; from many factors nearly all may go. With fewer than `FEW`
observed entries another fit costs little. So after the run as it is, which ends with some number of factors,
come up to `RUNGS` fits that begin anew and keep all of theirs to their end: of one fewer than the best so
far, or of one more, whichever is the first that is not known yet, until both are. One more is known, too, if
the run gave it up on the way, and none or one besides: not if nearly all had gone. Where a fit ends, `enough`
says. The best of all makes a pass or some more, without the factors that explain nothing.

**A look** comes before a fit of one factor fewer: a pass of the fit in hand without its weakest factor. Its
score is close to that of such a fit, or lower by what other rotations would make up for. Where it is lower by
more than that, the number counts as known (`HOPELESS`), as it mostly is: the fit in hand goes on from where
it was.

**The score** of a fit is its bound plus `PREDICTIVE` times the log probability of each entry given all
others, summed over the entries. The bound alone gives factors up that predict: a posterior of independent
scores, loadings and choices takes what they know of each other for lost. The predictions alone keep factors
that are none, since q is too sure of what it learned from the entry itself. A fit without factors is
given `NOTHING` besides. With x ~ N(m, v) in the posterior an entry is left out by the weight 1 / p(y given
x), and no integral is left::

    p(y | others) = 1 / E[1 / p(y | x)] = 1 / (1 + e^(-s m + v / 2)),   s = 2 y - 1

References
----------
Gelfand, Dey and Chang (1992), Bayesian Statistics 4, 147-167 (that identity). Vehtari, Gelman and Gabry
(2017), Statistics and Computing 27, 1413-1432.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.kernels import device
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.sparse_gfa.final import final_scores
from factorflow.models.sparse_gfa.pseudo import Given, expected_scores, sent, variance_of_predictor
from factorflow.models.sparse_gfa.root import select_factors, without_weak_factors
from factorflow.models.sparse_gfa.samples import stored
from factorflow.models.sparse_gfa.search.models import Rung
from factorflow.models.sparse_gfa.settings import FEW, Settings
from factorflow.models.sparse_gfa.start.components import begun
from factorflow.models.sparse_gfa.state import Globals, Local
from factorflow.trees import replace

__all__ = [
    "RUNGS",
    "ForetellSweep",
    "best_rung",
    "first_rung",
    "foretold",
    "keeping_all",
    "look_at_fewer",
    "many",
    "next_number",
    "next_rung",
    "sees_none",
    "settled",
    "skipped",
]

RUNGS = 6
"""Fits of other numbers of factors, at most."""
NOTHING = 5.0
"""Nats by which the score of a fit with factors must be higher than that of none: of all directions of noise
one is the best, and such data have factors at all or not."""
SPARE = 2
"""Factors above those kept of which a fit knows that it gave them up."""
_AROUND = (-1, 1)
"""Which numbers are tried, from the best one: first that of which a look may say enough."""
HOPELESS = 1.75
"""By how much, times the fourth root of the observed entries, the score of a look may be lower than that of
the fit in hand: 16 nats with 7000 entries, 31 with 100 000. Chosen on simulated sets; in how many of others
one factor fewer predicts better all the same is counted by ``benchmarks/sparse_gfa_few_binary.py``."""
PREDICTIVE = 0.55
"""Weight of the predictions beside the bound; chosen on simulated sets and one real one."""


def keeping_all(settings: Settings) -> Settings:
    """Return the settings of a fit that keeps all its factors."""
    return replace(settings, drop=0.0, tries_fewer=False)


def foretold(
    values: Float64[Array, "B D"], mean: Float64[Array, "B D"], variance: Float64[Array, "B D"]
) -> float:
    """Return the log probability of each binary entry given all others, summed over those observed.

    Parameters
    ----------
    values : array
        0 or 1, another value where an entry is missing.
    mean, variance : array
        Of x, in the posterior given all entries.
    """
    shown = np.flatnonzero((values == 0.0) | (values == 1.0))  # several times faster than a mask
    y, m, v = (np.take(table, shown) for table in (values, mean, variance))
    return -float(np.logaddexp(0.0, 0.5 * v - (2.0 * y - 1.0) * m).sum())


@dataclass(frozen=True)
class Foretold:
    """What blocks add up: see `foretold`."""

    total: float


@dataclass(frozen=True)
class ForetellSweep(Sweep[Globals, Local, Foretold]):
    """One pass that finds how well each entry is predicted from the others; q stays as it is."""

    settings: Settings
    name: ClassVar[str] = "judging"

    def send(self, globals_: Globals) -> Globals:
        """Return the globals with the moments of the weights alone; see `sent`."""
        return sent(self.settings, globals_)

    def prepare(self, globals_: Globals) -> tuple[Given, Given]:
        """Return the globals with tables that all blocks read, also those of the variance of x."""
        views = tuple(replace(view, bound="local") for view in self.settings.views)
        return Given(self.settings, globals_), Given(replace(self.settings, views=views), globals_)

    def map(
        self, block: Block, local: Local | None, givens: tuple[Given, Given], step: Step
    ) -> tuple[Local | None, Foretold]:
        """Add up what the entries of a block have."""
        fit, given = givens
        scores = stored(local, fit.globals_)
        if scores is None:
            scores = final_scores(self.settings, block, None, fit)
        mean, spread = expected_scores(scores)
        total, k = 0.0, fit.globals_.n_factors
        extended = np.concatenate([mean, np.ones((len(mean), 1))], axis=1)
        for name, table in given.tables(0, next(iter(block.data.values()))).items():
            assert table.spread is not None
            loadings, spread_of_w = (device.on_host(a) for a in (table.loadings, table.spread))
            x = extended @ loadings[:, : k + 1].T
            variance = variance_of_predictor(mean, spread, spread_of_w, full=self.settings.full_scores)
            values = device.on_host(block.data[name]).astype(np.float64)
            total += foretold(values, x, variance.astype(np.float64))
        return local, Foretold(total)

    def update(self, globals_: Globals, stats: Foretold, step: Step) -> tuple[Globals, Info]:
        """Keep the sum; of a look, what it says of the fit that is over."""
        new, fit = replace(globals_, foretold=stats.total), globals_.looked
        return (new if fit is None else _back(self.settings, new, fit)), {}


def next_number(tried: Collection[int], best: int, most: int) -> int | None:
    """Return the number of factors, up to ``most``, to try next; None where those around are known."""
    wanted = (best + by for by in _AROUND)
    return next((k for k in wanted if 0 <= k <= most and k not in tried), None)


def many(globals_: Globals) -> bool:
    """Whether so many entries are observed that a run ends with the number that it finds."""
    return globals_.observed >= FEW


def settled(settings: Settings, globals_: Globals) -> bool:
    """Whether a fit that is over is the last: no number is left to try."""
    return many(globals_) or _left(settings, globals_) is None


def skipped(globals_: Globals) -> bool:
    """Whether a fit is over, so that no other was begun: its stages are left out."""
    return globals_.foretold is not None or many(globals_)


def _left(settings: Settings, globals_: Globals) -> int | None:
    """Return the number to try after the fit in hand."""
    done = _with(settings, globals_)
    known = {n for rung in done for n in (rung.kept, rung.n_factors)}
    known |= {rung.kept + 1 for rung in done if rung.kept < rung.begun <= rung.kept + SPARE}
    return next_number(known, _best(done).n_factors, settings.n_factors)


def first_rung(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals that the run begins with: fits of other numbers begin with the same components."""
    if not globals_.basis:
        return globals_
    return replace(globals_, components=globals_.basis, begun=globals_.n_factors)


def _begun(
    settings: Settings, globals_: Globals, components: Mapping[str, Float64[Array, "D L"]], number: int
) -> Globals:
    """Return the globals that a fit begins with, the components at hand."""
    new = begun(replace(settings, n_factors=number), globals_.fixed)
    n_counted = globals_.n_counted
    return replace(new, basis=components, components=components, begun=number, n_counted=n_counted)


def next_rung(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals that a fit of another number of factors begins with, the one that is over kept."""
    done, number = _with(settings, globals_), _left(settings, globals_) or 0
    best = _best(done)
    slim = tuple(rung if rung is best else replace(rung, globals_=None) for rung in done)
    return replace(_begun(settings, globals_, globals_.components, number), rungs=slim)


def sees_none(settings: Settings, globals_: Globals) -> bool:
    """Whether there is no look at the number to try next: it is not one fewer than in hand, or it is 0."""
    done = _with(settings, globals_)
    fewer = _best(done).n_factors - 1
    return many(globals_) or not _in_hand(done, globals_) or fewer < 1 or _left(settings, globals_) != fewer


def look_at_fewer(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals of the fit in hand without its weakest factor; the fit itself is kept beside."""
    fit = replace(globals_, rungs=_with(settings, globals_))
    some = without_weak_factors(settings, fit)
    fewer = select_factors(some, np.delete(np.arange(some.n_factors), some.strength.max(axis=0).argmin()))
    return replace(fewer, foretold=None, begun=0, looked=fit)


def _back(settings: Settings, globals_: Globals, fit: Globals) -> Globals:
    """Return the globals of the fit that was looked at, with the number of the look if that is hopeless."""
    seen = _with(settings, replace(globals_, rungs=()))[0]
    least = _best(fit.rungs).score - HOPELESS * fit.observed**0.25
    known = (replace(seen, globals_=None),) if seen.score < least else ()
    return replace(fit, rungs=(*fit.rungs, *known), restored=True)


def best_rung(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals of the fit with the highest score; themselves where that is decided.

    The fit in hand counts if it is over; where the run is cut short, it is not.
    """
    over = globals_.foretold is not None
    first = over and not globals_.rungs  # no other number was left to try
    if not first and all(rung.globals_ is None for rung in globals_.rungs):
        return globals_
    done = _with(settings, globals_) if over else globals_.rungs
    known = tuple(replace(rung, globals_=None) for rung in done)
    if over and _in_hand(done, globals_):
        some = replace(without_weak_factors(settings, globals_), past=(), rungs=known)
        if some.n_factors == globals_.n_factors:
            return some
        return replace(some, objective=float("nan"), weighed=float("nan"))  # what it comes to is to be seen
    found: Globals | None = _best(done).globals_
    assert found is not None
    clean = replace(found, transform=None, rest=None, reached=None)
    return replace(clean, fixed=globals_.fixed, rungs=known, regained=True)


def _in_hand(done: tuple[Rung, ...], globals_: Globals) -> bool:
    """Whether the best of all is the fit in hand, which is over: the scores that are stored are its own."""
    over = globals_.foretold is not None and globals_.snapshot is None
    return over and _best(done).kept == globals_.n_factors


def _with(settings: Settings, globals_: Globals) -> tuple[Rung, ...]:
    """Return the fits that are over with that of these globals, unless one of its number was before."""
    found, objective = globals_, globals_.objective
    if globals_.snapshot is not None:  # of the longer step nothing is known yet
        found, objective = globals_.snapshot.back(), globals_.snapshot.objective
    if any(rung.kept == found.n_factors for rung in globals_.rungs):
        return globals_.rungs
    predicted = float("nan") if globals_.foretold is None else globals_.foretold
    score = objective + PREDICTIVE * predicted + (0.0 if found.n_factors else NOTHING)
    some = without_weak_factors(settings, found)
    slim = replace(some, fixed={}, components={}, snapshot=None, past=(), rungs=())
    numbers = globals_.begun, found.n_factors, some.n_factors
    return (*globals_.rungs, Rung(*numbers, objective, score, slim))


def _best(done: tuple[Rung, ...]) -> Rung:
    return max(done, key=lambda rung: np.nan_to_num(rung.score, nan=-np.inf))
