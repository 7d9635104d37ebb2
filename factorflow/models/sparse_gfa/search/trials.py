"""Smaller models under trial: when they are looked for, judged, and take over; see `surplus`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.kernels.linalg import n_pairs, unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.search.attempts import (
    MOST_LOOKS,
    attempted,
    chosen,
    continued,
    hopeful,
    only_about,
    promising,
    settles_late,
    takes_passes,
)
from factorflow.models.sparse_gfa.search.models import Loose, Smaller, Trial
from factorflow.models.sparse_gfa.search.proposals import in_bulk, judged_later, propose, searches
from factorflow.models.sparse_gfa.search.surplus import (
    fewer_scores,
    hidden_by_average,
    leaders,
    looked_at,
    of_one_feature,
    reliability,
    stats_of_samples,
    turned_trial,
)
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.shared import Moves, bound_of, update_shared
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.sums import FeatureSums, Stats
from factorflow.trees import replace

__all__ = ["checked", "judged", "tried"]

_LOOSE: Mapping[str, float] = {"jaakkola": 0.4, "tilted": 0.4, "boehning": 0.5, "local": 0.2}
"""By what share likelihoods that are not Gaussian lose too little, about: loadings shrink by half of it."""
_ROOM = 1.5
"""What a factor of binary entries would explain besides, in units of what Jaakkola's bound loses of it.

Two features of correlation r, whose loadings the likelihood puts at a^2 = r, have a^2 = 0.6 r by the bound: N
(a^2 r - a^4 / 2 - a^4 / 3), the last term the loss. The likelihood is 1.7 times that loss above, less than
1.9 with a fifth of the entries missing; and the loss is taken for a tenth more than it is.
"""
_HASTY = 0.125
"""Share of what all loadings cost that the model at hand may gain by a pass while others are tried."""
LONGER, SHORTER = 2.0, 4.0
"""How much longer steps beyond a pass get after one that raised the bound, and shorter after others, ..."""
LEAST, MOST = 1.5, 1e3
"""... within these."""
_NEXT = 3
"""Passes for which a model that gains more is waited for."""
_SAME = 1.0
"""Nats to be gained after a search that found none, as another would look at the same models before."""
_AHEAD = 2
"""Models that go on from the first look to the second, by what they fall short for each factor less."""


def tried(
    settings: Settings,
    before: Globals,
    now: tuple[Globals, float, float],
    sums: Mapping[str, FeatureSums],
    stats: Stats,
    count: int,
    *,
    sparse: bool,
) -> Globals:
    """Judge the smaller models under trial, take the one that is better, or choose what to try next.

    Models are looked at first, all of a round; the best is worked out once more in the next pass, from its
    statistics, and takes over if its bound is still the higher one. Then `checked` has the last word.

    Parameters
    ----------
    settings, before : Settings, Globals
        Of the run; before the pass.
    now : tuple
        The globals after the pass, their bound, and what is recorded of it.
    sums, stats : mapping of view to FeatureSums, Stats
        Of the pass.
    count : int
        Passes of the stage before this one.
    sparse : bool
        Whether weights have spikes.
    """
    new, bound, objective = now
    trial, weights = before.trial, new.weights
    new = replace(new, weights={name: replace(w, fewer=None) for name, w in weights.items()}, trial=None)
    if searches(settings, before, count, sparse=sparse):
        new, pace = replace(new, owed=False), objective - before.objective
        if before.refused and objective < before.sought and not _by_passes(settings, before):
            return replace(new, refused=before.refused + 1)  # the same looks would find the same
        if takes_passes(settings, before) and pace > _HASTY * _cost(settings, before.n_factors):
            return new
        trial = _proposed(settings, before, stats, sums, sparse=sparse)
        proposed = _with_trial(new, trial)
        picks = _at_once(settings, before, trial, proposed.trial)
        if not picks:
            return proposed
        return _passes(settings, before, (new, objective, pace), sums, stats, picks)
    if trial is None:
        return new
    with np.errstate(invalid="ignore", divide="ignore"):  # a bound that is no number is never the higher one
        found = [judged(settings, before, stats, sums, i, sparse=sparse) for i in range(len(trial.models))]
    spared, known = _spared(settings, sums, before.n_factors), reliability(settings, before, stats)
    short = [
        bound - one[1] + _against(settings, sums, one[2], model, spared, known)
        for one, model in zip(found, trial.models, strict=True)
    ]
    short = [value if np.isfinite(value) else float("inf") for value in short]
    if only_about(settings, before):
        return _promising(settings, before, (new, objective), sums, stats, short)
    noise = 0.0 if sparse or settings.spike == "none" else _of_noise(settings)
    best = min(range(len(found)), key=lambda i: short[i])
    better = short[best] < 0.0
    weighed = [value + noise * model.pick.shape[1] for value, model in zip(short, trial.models, strict=True)]
    if better:  # of those that are, the one of more factors only if each explains more than of noise
        best = min((i for i in range(len(found)) if short[i] < 0.0), key=lambda i: weighed[i])
    if trial.final and better:
        smaller = {name: w.fewer for name, w in weights.items() if w.fewer is not None}
        held = before.held and replace(before.held, adopted=True)
        bar = objective if np.isfinite(objective) else float("-inf")
        return replace(found[best][0], weights=smaller, held=held, earlier=new, bar=bar)
    ahead = _ahead(settings, trial, short)
    if not better and (in_bulk(settings, sparse=sparse) or judged_later(settings, before)):
        ahead = []
    most = MOST_LOOKS * (2 if settings.many_samples else 1)
    on = [i for i in ahead if i == best and better or _hopeful(trial, i, short[i], most)]
    if better and not _overtaken(trial, short, weighed, best):
        on = [best]
    if on:
        models = tuple(
            looked_at(stats, replace(trial.models[i], short=short[i]), found[i][0].views, found[i][2])
            for i in on
        )
        new = _with_trial(new, Trial(models, trial.looks + 1, final=better and len(on) == 1))
    else:
        sought = objective + _gain_awaited(settings, short[best])
        new = replace(new, refused=before.refused + 1, sought=sought)
    return new


def _by_passes(settings: Settings, before: Globals) -> bool:
    """Return whether searches go on with passes of some models in turn: each search with others."""
    return takes_passes(settings, before) or settles_late(settings, before) or only_about(settings, before)


def _gain_awaited(settings: Settings, short: float) -> float:
    """Return how much is to be gained before another search, if the best of this one falls so much ``short``.

    A factor that turns out to be surplus makes room for others meanwhile. Where many samples tell of a view's
    features, one that stands for noise may stay as it is.
    """
    tells = np.isfinite(short) and not settings.many_samples and not settings.small_views
    return max(_SAME, short) if tells else _SAME


def _at_once(
    settings: Settings, before: Globals, trial: Trial | None, turned: Trial | None
) -> list[Float64[Array, "K fewer"]]:
    """Return B of the models that take passes without a look, of those proposed before a change of basis.

    Of factors that stand for one feature one is left out, in turn.
    """
    if trial is None or turned is None:
        return []
    if takes_passes(settings, before):
        return chosen(turned, before.refused)
    if not settles_late(settings, before):
        return []
    single, models = of_one_feature(settings, before), zip(trial.models, turned.models, strict=True)
    gone = [(_gone(model), after.pick) for model, after in models]
    picks = [pick for factors, pick in gone if len(factors) == 1 and single[factors[0]]]
    return [picks[before.refused % len(picks)]] if picks else []


def _promising(
    settings: Settings,
    before: Globals,
    now: tuple[Globals, float],
    sums: Mapping[str, FeatureSums],
    stats: Stats,
    short: list[float],
) -> Globals:
    """Let the models take passes that a look, which tells of them only about, leaves in question.

    One that is better takes over unless its bound is lower then; of others that of the model at hand counts
    with what it would have gained.
    """
    (new, objective), better = now, min(short) < 0.0
    assert before.trial is not None
    hidden, single = hidden_by_average(stats, before.n_factors), of_one_feature(settings, before)
    may = [float("inf") if single[_gone(model)].all() else hidden for model in before.trial.models]
    models = promising(before.trial, short, may)
    if not models:
        return replace(new, refused=before.refused + 1)
    pace = 0.0 if better else objective - before.objective
    turned = _with_trial(new, Trial(models)).trial
    assert turned is not None
    return _passes(settings, before, (new, objective, pace), sums, stats, [m.pick for m in turned.models])


def _passes(
    settings: Settings,
    before: Globals,
    now: tuple[Globals, float, float],
    sums: Mapping[str, FeatureSums],
    stats: Stats,
    picks: Sequence[Float64[Array, "K fewer"]],
) -> Globals:
    """Return the globals of the first of some smaller models that are to take passes; see `attempts`.

    ``now``: the globals after the pass, what is recorded of it, and what the next may gain.
    """
    (new, objective, pace), spared = now, _spared(settings, sums, before.n_factors)
    loose = Loose(*_loose(settings, sums, stats), reliability(settings, before, stats))
    return attempted(settings, new, objective, pace, picks, spared, loose)


def checked(
    settings: Settings,
    before: Globals,
    new: Globals,
    objective: float,
    sums: Mapping[str, FeatureSums],
    stats: Stats,
) -> tuple[Globals, float]:
    """Return the globals to go on with after a pass of a smaller model that took over, and what is recorded.

    Where entries are missing or not Gaussian a smaller model is judged about. Here the bound that a pass over
    the data has given it is set against what was recorded before: if it is lower, all is as it was again. The
    bound of a view with a tangent is known a pass later: the decision waits.
    """
    assert before.bar is not None
    if before.attempt is not None:
        return continued(settings, before, new, objective, *_loose(settings, sums, stats))
    if not np.isfinite(objective):
        return replace(new, earlier=before.earlier, bar=before.bar), objective
    old = before.earlier
    assert old is not None
    longer = old.n_factors == before.n_factors  # not a smaller model: the same, taken further
    if objective >= before.bar:
        if longer:
            return replace(new, earlier=None, bar=None, haste=min(LONGER * old.haste, MOST)), objective
        owed = not judged_later(settings, before)
        return replace(new, earlier=None, bar=None, refused=0, owed=owed), objective
    if longer:
        return replace(old, haste=max(old.haste / SHORTER, LEAST), restored=True), before.bar
    held = old.held and replace(old.held, restored=True)
    return replace(old, held=held, refused=before.refused + 1, restored=True), before.bar


def _spared(settings: Settings, sums: Mapping[str, FeatureSums], n_factors: int) -> Float64[Array, " K"]:
    """Return what the loadings of each factor may cost less, later: in a warm-up, all that they cost.

    Which of them spikes will spare is not known there: factors are not turned to simple structure. So a
    factor must be worth nothing even if its loadings were free; the sparse stage judges the others. Where
    samples are many it must be worth more than one of noise, which has free loadings, too: the correlations
    of N samples of D independent features have a largest direction of variance 1 + l, l = 2 sqrt(D / N) and
    a little, that explains N / 2 (l - log(1 + l)), D nats nearly.
    """
    found = [one.cost for one in sums.values() if one.cost is not None]
    cost = np.sum(found, axis=0) + np.zeros(n_factors)
    return np.asarray(np.maximum(cost - _of_noise(settings), 0.0))


def _cost(settings: Settings, n_factors: int) -> float:
    """Return what the loadings of all factors cost, about: no smaller model is better by much more.

    While the model at hand still gains as much, none gets beyond what that would come to.
    """
    n_features = sum(view.n_features for view in settings.views)
    return float(0.5 * np.log(settings.n_rows) * n_features * n_factors)


def _of_noise(settings: Settings) -> float:
    """Return what a factor of a warm-up explains of noise alone, in nats; see `_spared`."""
    if not settings.many_samples or any(view.bound in _LOOSE for view in settings.views):
        return 0.0
    largest = 2.0 * np.sqrt(sum(view.n_features for view in settings.views) / settings.n_rows)
    return float(0.5 * settings.n_rows * (largest - np.log1p(largest)))


def _loose(settings: Settings, sums: Mapping[str, FeatureSums], stats: Stats) -> tuple[float, float]:
    """Return the likelihood of views with a loose bound, each times the share that it loses too little.

    That of views with a tangent is known of all of them together, at the state that a pass begins with.
    Jaakkola's bound of many samples is not among them: what it loses is known, and comes second (`_ROOM`).
    """
    known = {"jaakkola"} if settings.many_samples else set()
    loose = [view for view in settings.views if view.bound in _LOOSE.keys() - known]
    shares = ((_LOOSE[view.bound], view.name) for view in loose if not view.tangent)
    of_tangents = max((_LOOSE[view.bound] for view in loose if view.tangent), default=0.0)
    likelihood = float(sum(share * sums[name].likelihood for share, name in shares))
    return likelihood + of_tangents * stats.reached, _ROOM * stats.lost


def _gone(model: Smaller) -> Integer[Array, " gone"]:
    """Return the factors that a smaller model does without."""
    return np.setdiff1d(np.arange(len(model.pick)), leaders(model.pick))


def _against(
    settings: Settings,
    sums: Mapping[str, FeatureSums],
    fewer: Mapping[str, FeatureSums],
    model: Smaller,
    spared: Float64[Array, " K"],
    known: Float64[Array, " K"],
) -> float:
    """Return by how much the bound of a smaller model must be higher: what loose bounds and spikes hide."""
    later = float(spared.sum() - spared[leaders(model.pick)].sum())
    return max(_slack(settings, sums, fewer, known[_gone(model)]), later)


def _slack(
    settings: Settings,
    sums: Mapping[str, FeatureSums],
    fewer: Mapping[str, FeatureSums],
    known: Float64[Array, " gone"],
) -> float:
    """Return by how much the bound is too fond of a smaller model: what loose bounds hide of its loss.

    The tangents of a bound on a binary likelihood bend more than the likelihood does, and a posterior of
    independent scores and weights shrinks the loadings of counts: what a factor explains goes with their
    square. A factor of signal s = sum_d f_d w_d^2 a sample explains N / 2 (s - log(1 + s)): N / 2 s of the
    likelihood less what its scores cost. With signal (1 + e) s that is e N / 2 s times s / (1 + s) more, the
    reliability of its scores. So noise, whose scores are hardly known, gets little.

    Parameters
    ----------
    settings : Settings
        Of the run.
    sums, fewer : mapping of view to FeatureSums
        With all factors, and of the smaller model.
    known : array
        Reliability of the factors that go (see `reliability`); the largest counts.
    """
    loss = sum(
        _LOOSE[view.bound] * max(sums[view.name].likelihood - fewer[view.name].likelihood, 0.0)
        for view in settings.views
        if view.bound in _LOOSE
    )
    return float(known.max(initial=0.0)) * loss


def _hopeful(trial: Trial, number: int, short: float, most: int) -> bool:
    """Return whether a model that falls short is worth another look; see `hopeful`."""
    return hopeful(trial.looks, trial.models[number].short - short, short, most)


def _ahead(settings: Settings, trial: Trial, short: list[float]) -> list[int]:
    """Return which models are worth another look at all: after the first look, the few that come nearest.

    A look costs as much as a pass or more, but where samples are many, and what a model falls short of at
    first says little: there all go on.
    """
    if trial.looks or settings.many_samples:
        return list(range(len(short)))
    fewer = [model.pick.shape[0] - model.pick.shape[1] for model in trial.models]
    order = sorted(range(len(short)), key=lambda i: short[i] / fewer[i])
    best = min(range(len(short)), key=lambda i: short[i])
    return sorted({best, *order[:_AHEAD]})


def _overtaken(trial: Trial, short: list[float], weighed: list[float], best: int) -> bool:
    """Return whether another model is going to be better than the best one: it is worth waiting for.

    ``weighed``: what models fall short of, with what is held against each factor besides.
    """
    if trial.looks >= MOST_LOOKS:
        return False
    gained = [model.short - value for model, value in zip(trial.models, short, strict=True)]
    return any(
        np.isfinite(gained[i]) and value - _NEXT * gained[i] < weighed[best] - _NEXT * gained[best]
        for i, value in enumerate(weighed)
        if i != best
    )


def _with_trial(globals_: Globals, trial: Trial | None) -> Globals:
    """Return globals with models under trial that were found before their last change of basis."""
    if globals_.transform is not None:
        trial = turned_trial(trial, np.linalg.inv(globals_.transform).T)
    return replace(globals_, trial=trial)


def judged(
    settings: Settings,
    before: Globals,
    stats: Stats,
    sums: Mapping[str, FeatureSums],
    number: int,
    *,
    sparse: bool,
) -> tuple[Globals, float, Mapping[str, FeatureSums]]:
    """Return the globals of a smaller model, its bound, and the sums over its features."""
    assert before.trial is not None
    model = before.trial.models[number]
    mine = {name: s.fewer[number] for name, s in sums.items()}
    scores = fewer_scores(settings, before, stats, model)
    left = stats_of_samples(stats, scores)
    k, lead = model.pick.shape[1], leaders(model.pick)
    globals_ = replace(
        before,
        views={name: replace(view, pairs=mine[name].pairs) for name, view in model.views.items()},
        **{
            f: getattr(before, f)[:, lead]
            for f in ("beta_shape", "beta_rate", "psi_on", "psi_off", "strength")
        },
        second=unpack(left.moments[: n_pairs(k)], k) / settings.n_rows,
        basis={},
        transform=scores.image,
        trial=None,
        rest=None,
        reached=None,
        numbers=None if before.numbers is None else before.numbers[lead],
        past=(),
    )
    moves = Moves(
        squares={name: s.squares for name, s in mine.items()},
        included={name: s.included for name, s in mine.items()},
        second=left.second,
        entropy=left.entropy + sum(s.entropy for s in mine.values()),
    )
    globals_ = update_shared(settings, globals_, moves, mine, left, sparse=sparse)
    return globals_, bound_of(settings, globals_, moves, mine, left, sparse=sparse), mine


def _proposed(
    settings: Settings,
    before: Globals,
    stats: Stats,
    sums: Mapping[str, FeatureSums],
    *,
    sparse: bool,
) -> Trial | None:
    """Return what to try next."""
    parts = [s.common for s in sums.values() if s.common is not None]
    common = np.sum(parts, axis=0) if parts else None
    alone, included = (np.sum([getattr(s, f) for s in sums.values()], axis=0) for f in ("alone", "included"))
    included = included if sparse else 0.0 * included
    return propose(settings, before, stats, alone, included, common, sparse=sparse)
