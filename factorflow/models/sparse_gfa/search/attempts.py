"""Smaller models that take passes of their own, where statistics cannot tell what they would come to.

Where entries are missing, samples know their scores to different degrees, and what `surplus` says of a
smaller model holds of one whose samples all have the average covariance. With many samples for each feature
that is wrong by more than a factor costs. So there, instead of looks from the statistics of passes that go
on meanwhile, a smaller model takes the place of the one at hand for some passes over the data. It begins with
what the loadings that stay explain, the rest taken for noise::

    w' = B'w,   1 / f' = 1 / f + w' (1 - P B') M (1 - P B')' w,   B'P = 1, M = E zz'

and has to get beyond the bound of the model at hand, and beyond what that would have gained in as many
passes (its last gain, smaller by a third from one to the next). Then, or if it falls behind, the next one is
tried, which has to get beyond the best so far. That goes on in the end; if there is none, all is as it was.
What is recorded meanwhile is the bound of the model at hand. After one that goes on, or was given up only
for what the model at hand would have gained, a stage does not end before the next search.

What Jaakkola's bound loses by the factors that go (`Stats.lost`) counts against a smaller model: a loose
bound takes the predictor for less certain than it is, and so explains less by a factor. It does not for
several factors of a warm-up, which have to settle first: of binary entries those that explain more than they
cost stay there, and one besides.

So do models that a look leaves in question where pseudo-data are a tangent, which holds near the scores and
loadings at hand only (see `only_about`), and those without a factor of one feature that searches of many
samples have refused again and again (see `settles_late`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.features import precision_pairs
from factorflow.models.sparse_gfa.search.models import Attempt, Loose, Smaller, Trial
from factorflow.models.sparse_gfa.search.proposals import judged_later
from factorflow.models.sparse_gfa.search.surplus import fewer_view, fewer_weights, leaders
from factorflow.models.sparse_gfa.settings import FEW, Settings
from factorflow.models.sparse_gfa.state import Globals, expected_weights, transformed_weights
from factorflow.trees import replace

__all__ = [
    "attempted",
    "chosen",
    "continued",
    "hopeful",
    "only_about",
    "promising",
    "settles_late",
    "takes_passes",
]

LOOKS = 3
"""Looks in which smaller models may show that they are better, if twice `MOST_LOOKS` would do, ..."""
MOST_LOOKS = 8
"""... and in which they may if they are so fast that this many would do; twice as many with many samples."""
_TRIED = 3
"""Models tried one after the other."""
_SLOW = 1.0
"""Nats that a model gains by a pass when it has settled, about."""


def hopeful(looks: int, gained: float, short: float, most: int) -> bool:
    """Return whether a model that falls short may be better after some more looks, ``most`` at most.

    What looks gain shrinks by a third from one to the next, about: after `MOST_LOOKS` of them those left
    gain no more than `LOOKS` times what the last one did.

    Parameters
    ----------
    looks : int
        Looks before this one; after the first nothing is known of what looks gain.
    gained, short : float
        By how much less than a look before a model falls short, and by how much it still does.
    most : int
        See above.
    """
    if not np.isfinite(short):
        return False
    if not looks:
        return True
    if looks < LOOKS - 1:
        return short < 2 * MOST_LOOKS * gained
    return looks < most and short < (MOST_LOOKS if looks < MOST_LOOKS else LOOKS) * gained


def takes_passes(settings: Settings, globals_: Globals) -> bool:
    """Return whether smaller models take passes: with many samples, at least for a view, that are not alike.

    Entries are missing, or samples have noise of their own. If some are binary, judging them from statistics
    is close, and costs less: there after a search that found no smaller model.
    """
    if not _noise_is_learned(settings, globals_):
        return False
    bounds = {view.bound for view in settings.views}
    counts = [fixed.count.sum(axis=1) for fixed in globals_.fixed.values()]
    if bounds == {"jaakkola"} and sum(count.sum() for count in counts) < FEW:  # other numbers are tried anew
        return False
    differ = settings.sample_noise or any(bool((count < settings.n_rows).any()) for count in counts)
    return differ or ("jaakkola" in bounds and globals_.refused > 0)


def settles_late(settings: Settings, globals_: Globals) -> bool:
    """Return whether models without factors of one feature take passes, though statistics tell of them.

    The noise of a feature that a factor has come to stand for gains little in a look, and for hundreds of
    passes, if samples are many: what three searches have refused may still be better.
    """
    gaussian = any(view.bound == "gaussian" for view in settings.views)
    return gaussian and globals_.refused > 2 and _noise_is_learned(settings, globals_)


def _noise_is_learned(settings: Settings, globals_: Globals) -> bool:
    """Return whether passes of smaller models can begin with what they leave unexplained as noise."""
    if settings.samples_parts or globals_.held is not None:
        return False
    if not settings.many_samples and not settings.small_views:
        return False
    exact = all(view.bound in {"gaussian", "jaakkola"} for view in settings.views)
    return exact and settings.feature_noise


def only_about(settings: Settings, globals_: Globals) -> bool:
    """Return whether statistics tell of smaller models only about, and passes take what a look finds better.

    Where pseudo-data are a tangent, they say nothing of scores far from those at hand: a second look, at
    loadings and scores that the first one has moved, may be wrong by more than there is to find. So it may of
    binary entries, if samples are not so many that most models take passes in any case.
    """
    binary = settings.only_binary and not settings.many_samples and not judged_later(settings, globals_)
    return (settings.tangent or binary) and settings.n_parts == 1 and globals_.held is None


def promising(trial: Trial, short: Sequence[float], hidden: Sequence[float]) -> tuple[Smaller, ...]:
    """Return which models under trial take passes, the best first.

    Those that are better, if there are any; else those that fall least short for each factor less.

    Parameters
    ----------
    trial : Trial
        Models that were looked at.
    short : sequence of float
        By how much each falls short.
    hidden : sequence of float
        By how much each may seem to, and be better.
    """
    better = sorted((i for i in range(len(short)) if short[i] < 0.0), key=lambda i: short[i])
    less = [model.pick.shape[0] - model.pick.shape[1] for model in trial.models]
    others = (i for i in range(len(short)) if short[i] < hidden[i])
    found = better or sorted(others, key=lambda i: short[i] / less[i])
    return tuple(trial.models[i] for i in found[:_TRIED])


def chosen(trial: Trial, refused: int) -> list[Float64[Array, "K fewer"]]:
    """Return which of the models that were proposed are tried: those of fewest factors first.

    Of those with one factor less only one is, in turn: the weakest factor is left out, after a search that
    found none the second. Where directions that features have in common are among them, proposed last of
    their number, none of fewer factors is tried.
    """
    k = len(trial.models[0].pick)
    by_number = {m.pick.shape[1]: m.pick for m in trial.models if m.pick.shape[1] < k - 1}
    one_less = [m.pick for m in trial.models if m.pick.shape[1] == k - 1]
    common = [m.pick.shape[1] for m in trial.models if not np.isin(m.pick, (0.0, 1.0)).all()]
    least = min((number for number in common if number < k - 1), default=1)
    several = [by_number[number] for number in sorted(by_number) if number >= least]
    return [*several[: _TRIED - 1], *([one_less[refused % len(one_less)]] if one_less else [])]


def attempted(
    settings: Settings,
    globals_: Globals,
    objective: float,
    pace: float,
    picks: Sequence[Float64[Array, "K fewer"]],
    spared: Float64[Array, " K"],
    loose: Loose,
) -> Globals:
    """Return the globals of the first of some smaller models, which the next passes are to judge.

    Parameters
    ----------
    settings, globals_ : Settings, Globals
        Of the run; after a pass.
    objective, pace : float
        What is recorded of it, and what the model at hand is taken to gain by the next pass, about.
    picks : sequence of array
        B of each model.
    spared : array
        What the loadings of each factor may cost less later.
    loose : Loose
        What there is to be said of its loose bounds.
    """
    if not np.isfinite(objective) or not np.isfinite(pace):
        return globals_
    margins = tuple(float(spared.sum() - spared[leaders(pick)].sum()) for pick in picks)
    attempt = Attempt(tuple(picks), margins, objective, max(pace, 0.0), loose)
    return _next(settings, replace(globals_, past=()), objective, attempt)


def _next(settings: Settings, globals_: Globals, objective: float, attempt: Attempt) -> Globals:
    smaller = _smaller(settings, globals_, attempt.picks[0])
    return replace(smaller, earlier=globals_, bar=objective, attempt=attempt)


def continued(
    settings: Settings, before: Globals, new: Globals, objective: float, likelihood: float, lost: float
) -> tuple[Globals, float]:
    """Return the globals to go on with after a pass of a smaller model, and what is recorded.

    Parameters
    ----------
    settings, before, new : Settings, Globals
        Of the run; before and after the pass.
    objective : float
        The bound that the pass found.
    likelihood, lost : float
        See `Loose`; after the pass.
    """
    attempt, old, bar = before.attempt, before.earlier, before.bar
    assert attempt is not None
    assert old is not None
    assert bar is not None
    if not np.isfinite(objective):  # known a pass later
        return replace(new, earlier=old, bar=bar, attempt=attempt), bar
    looks = len(attempt.behind)
    known = float(
        attempt.loose.known[np.setdiff1d(np.arange(old.n_factors), leaders(attempt.picks[0]))].max()
    )
    slack = max(attempt.margins[0], known * max(attempt.loose.likelihood - likelihood, 0.0))
    if attempt.margins[0] == 0.0 or attempt.picks[0].shape[1] == old.n_factors - 1:
        slack += max(attempt.loose.lost - lost, 0.0)
    reached = objective - slack
    lag = attempt.least - reached
    gained = attempt.behind[-1] - lag if looks else float("inf")
    short = lag + attempt.pace * LOOKS * (1.0 - (1.0 - 1.0 / LOOKS) ** (looks + 1))
    ahead = short <= 0.0
    # Where the bound is known late, it had two passes; where a look was better, one is enough.
    waits = _moves(looks, gained) and not settings.tangent and not only_about(settings, old)
    if waits if ahead else hopeful(looks, gained, short, 2 * MOST_LOOKS):
        attempt = replace(attempt, behind=(*attempt.behind, lag))
        return replace(new, earlier=old, bar=bar, attempt=attempt), bar
    close = attempt.close or (lag < 0.0 and not ahead)
    rest = replace(attempt, picks=attempt.picks[1:], margins=attempt.margins[1:], behind=(), close=close)
    if ahead:
        rest = replace(rest, best=replace(new, objective=objective), least=reached, pace=0.0)
    # Scores of one that is ahead would be lost; one that is nearly so is tried again soon.
    ends = (ahead and settings.stateful) or (close and settings.tangent)
    if rest.picks and not ends:
        return replace(_next(settings, old, bar, rest), restored=True), bar
    if rest.best is not None:
        return replace(rest.best, refused=0, restored=not ahead, owed=True), rest.best.objective
    return replace(old, refused=old.refused + (not close), restored=True, owed=close), bar


def _moves(looks: int, gained: float) -> bool:
    """Return whether a model that is ahead gains so much that others are not yet to be held against it."""
    return looks < 2 * MOST_LOOKS and gained > _SLOW


def _smaller(settings: Settings, globals_: Globals, pick: Float64[Array, "K fewer"]) -> Globals:
    """Return the globals of the factors W B, with what they leave unexplained taken for noise."""
    second, stay, lead = globals_.second, np.linalg.pinv(pick).T, leaders(pick)
    lost = np.eye(len(pick)) - stay @ pick.T
    lost = lost @ second @ lost.T
    weights, views = {}, {}
    for name, mine in globals_.weights.items():
        fewer = fewer_weights(mine, pick) if mine.inclusion is not None else transformed_weights(mine, pick.T)
        if mine.noise_shape is not None and mine.noise_rate is not None:
            mean = expected_weights(mine)[0]
            variance = np.einsum("dk,kl,dl->d", mean, lost, mean)
            fewer = replace(fewer, noise_rate=mine.noise_rate + mine.noise_shape * variance[:, None])
        weights[name] = fewer
        view = fewer_view(globals_.views[name], pick)
        views[name] = replace(view, pairs=precision_pairs(settings, name, fewer))
    by_factor = ("beta_shape", "beta_rate", "psi_on", "psi_off", "strength")
    return replace(
        globals_,
        weights=weights,
        views=views,
        second=stay.T @ second @ stay,
        basis={},
        transform=stay.T if globals_.transform is None else stay.T @ globals_.transform,
        numbers=None if globals_.numbers is None else globals_.numbers[lead],
        past=(),
        rest=None,
        reached=None,
        **{name: getattr(globals_, name)[:, lead] for name in by_factor},
    )
