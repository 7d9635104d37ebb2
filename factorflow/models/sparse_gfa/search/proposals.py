"""Which smaller models are proposed: factors that explain less than they cost, about, are left out or joined.

A model W B begins with the scores that the loadings W B give, at the precisions of noise at hand::

    S'^-1 = B' (S^-1 - beta) B + beta',  E z' = S' B' S^-1 E z

Where samples are many, a factor may have come to stand for the noise of one feature. The precision of that
feature is huge then, and would tie the factors that are left to it in its place. So there the precision f of
each Gaussian feature is first set to what would be left unexplained. With t = P' z for the scores that stay
(B' P = 1) and M = E zz' of all samples, the loadings are regressed on t and their noise has the rest::

    w* = (P'MP)^-1 P'M w,   1 / f* = 1 / f + w' (M - M P (P'MP)^-1 P'M) w

Both replace B'w and f in what the feature says of the scores, in S'^-1 and, since y is known by its
regression on E z alone, in E z' by w* f* (E[y | E z]).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.kernels.linalg import n_pairs, unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.search.models import Smaller, Trial
from factorflow.models.sparse_gfa.search.surplus import (
    average_covariance,
    average_prior,
    fewer_view,
    inverse_spread,
    of_one_feature,
)
from factorflow.models.sparse_gfa.settings import FEW, Settings
from factorflow.models.sparse_gfa.state import Globals, expected_weights
from factorflow.models.sparse_gfa.sums import Stats
from factorflow.trees import replace

__all__ = ["in_bulk", "judged_later", "propose", "searches"]

_ROUND = 3
"""Passes from one search for surplus factors to the next."""
_RARELY = 4
"""How often the time between two searches grows while none finds any: twice as long with many samples, ..."""
_RARER = 3
"""... and so many times as long elsewhere, where a search costs more than a pass."""
_AT_ONCE = 6
"""Proposals of a round."""
_FEATURES_A_LOOK = 2.0
"""How much more than a factor costs (log N / 2 a loading) it may seem to bring, and still be looked at."""
_IN_COMMON = (1.0, 0.5, 0.25)
"""Variances of a direction of the correlations, which has that of so many features, that may be signal."""
_ALIKE = 0.3
"""Correlation of scores from which two factors are not proposed to go together."""


def in_bulk(settings: Settings, *, sparse: bool) -> bool:
    """Return whether the search only saves time, as what it leaves is judged later: in such a warm-up."""
    return not sparse and settings.spike != "none" and not settings.many_samples


def judged_later(settings: Settings, globals_: Globals) -> bool:
    """Whether the end of the fit is looked at without a factor, which says more than a search; see `rungs`.

    So what is not better at once is left to that, and the first search that finds nothing is the last.
    """
    return settings.has_rungs and globals_.observed < FEW


def searches(settings: Settings, before: Globals, count: int, *, sparse: bool) -> bool:
    """Return whether a pass ends with a search for surplus factors: every few do, while none is under trial.

    ``count``: passes of the stage before this one. What a search reads of the features costs a tenth of a
    pass.
    """
    if before.trial is not None or before.bar is not None or not settings.finds_surplus(sparse=sparse):
        return False
    if before.refused and judged_later(settings, before):
        return False
    longer = 2 if settings.many_samples else _RARER
    every = _ROUND * settings.n_parts * longer ** min(before.refused, _RARELY)
    return count > 0 and count % every == 0


def propose(
    settings: Settings,
    globals_: Globals,
    stats: Stats,
    alone: Float64[Array, " K"],
    included: Float64[Array, " K"],
    common: Float64[Array, "K K"] | None,
    *,
    sparse: bool,
) -> Trial | None:
    """Return which factors to judge next: those that explain less than they cost, about.

    What a factor explains alone, less what its scores cost (log |S^-1_kk| / 2 a sample), is set against what
    its loadings cost (log N / 2 each). With many samples a surplus factor is seldom one of the basis: the
    signal is spread over all of them. While there are no spikes, the largest directions of what features have
    in ``common`` are proposed, too.

    Binary entries say so little of each score that factors of noise are hardly larger than weak ones in what
    features have in common, but explain less than they cost; those that explain more are not looked at. In a
    warm-up as many directions stay as there are of these, and one: after it, a weak factor can be told.
    """
    k, n_rows = globals_.n_factors, float(stats.rows.sum())
    if k == 0:
        return None
    covariance, prior = average_covariance(stats, k), average_prior(settings, globals_, stats)
    precision = np.linalg.inv(covariance)
    scores = 0.5 * n_rows * np.log(np.maximum(np.diag(precision) / prior, 1.0))
    net = alone - scores - _FEATURES_A_LOOK * 0.5 * np.log(n_rows) * (included + 1.0)
    order = np.argsort(net, kind="stable")
    few, binary = settings.many_samples, settings.many_binary
    noisy = _may_be_noise(settings, globals_) if sparse and not few else np.zeros(k, bool)
    weak = [int(i) for i in order if (few and not binary) or net[i] < 0.0 or noisy[i]]
    if not weak:
        return None
    if in_bulk(settings, sparse=sparse):
        if globals_.strength[:, weak].max() < settings.drop:  # they go after the warm-up as it is
            return None
        gone = sorted({(len(weak) + 1) // 2, len(weak)})
        return Trial(tuple(_smaller(globals_, precision, prior, _without(k, weak[:n])) for n in gone))
    moments = unpack(stats.moments, k + 1)[:-1, :-1] / n_rows - covariance
    size = np.sqrt(np.maximum(np.diag(moments), 1e-12))
    alike = np.abs(moments / np.outer(size, size))
    again = globals_.refused > 0 and not few  # all has been looked at before
    picks = [_without(k, [i]) for i in weak[: 1 if again else _AT_ONCE - 3]]
    apart: list[int] = []
    for i in weak:
        if all(alike[i, j] < _ALIKE for j in apart):
            apart.append(i)
    for number in sorted({(len(apart) + 1) // 2} if again else {2, (len(apart) + 1) // 2, len(apart)}):
        if 2 <= number <= len(apart):
            picks.append(_without(k, apart[:number]))
    joined = _join(k, weak, alike, precision - np.diag(prior))
    if few and common is not None and settings.scores_prior == "normal" and globals_.numbers is None:
        second = unpack(stats.moments[: n_pairs(k)], k) / n_rows
        picks += _principal(second, common, k - len(weak) + 1 if binary else None)
    models = tuple(_smaller(globals_, precision, prior, pick) for pick in (*picks, *joined))
    if (few or noisy.any()) and globals_.held is None:  # strips keep their loadings
        known = inverse_spread(moments)
        models = tuple(_noisier(settings, globals_, moments + covariance, known, m) for m in models)
    return Trial(models)


def _may_be_noise(settings: Settings, globals_: Globals) -> Bool[Array, " K"]:
    """Return which factors may stand for the noise of Gaussian features: of one, or of those of a small view.

    Such a factor explains nearly all of a feature, and costs nearly as much: which is more, a look says. As
    many as a view has features, or nearly, share its noise in any basis.
    """
    if not settings.feature_noise or globals_.held is not None:
        return np.zeros(globals_.n_factors, bool)
    told = {
        name: (settings.information(name, weights)[:, None] * expected_weights(weights)[0] ** 2).sum(axis=0)
        for name, weights in globals_.weights.items()
    }
    of_small = sum((told[name] for name in settings.small_views), np.zeros(globals_.n_factors))
    return np.asarray(of_one_feature(settings, globals_) | (2.0 * of_small > sum(told.values())))


def _principal(
    second: Float64[Array, "K K"], common: Float64[Array, "K K"], number: int | None = None
) -> list[Float64[Array, "K fewer"]]:
    """Return the proposals of the directions that features have in common, as many as are larger than.

    Or so many of them, if a number is given.

    With scores of variance 1 these are the principal directions of the correlations: what stands for the
    noise of one feature has a variance of 1 at most there, however well it explains it.
    """
    values, vectors = np.linalg.eigh(second)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    shares, turned = np.linalg.eigh(root @ common @ root)
    basis = root @ turned[:, ::-1]
    numbers = [number] if number is not None else sorted({int((shares > s).sum()) for s in _IN_COMMON})
    return [np.ascontiguousarray(basis[:, :r]) for r in numbers if r < len(second)]


def _smaller(
    globals_: Globals,
    precision: Float64[Array, "K K"],
    prior: Float64[Array, " K"],
    pick: Float64[Array, "K fewer"],
) -> Smaller:
    """Return the model of the factors W B before it was looked at."""
    views = {name: fewer_view(view, pick) for name, view in globals_.views.items()}
    evidence = pick.T @ (precision - np.diag(prior)) @ pick
    return Smaller(pick, pick.T @ precision, evidence, views)


def _noisier(
    settings: Settings,
    globals_: Globals,
    second: Float64[Array, "K K"],
    known: Float64[Array, "K K"],
    model: Smaller,
) -> Smaller:
    """Return a smaller model whose Gaussian features take for noise what is left unexplained.

    Parameters
    ----------
    settings, globals_ : Settings, Globals
        Of the run; before the pass.
    second, known : array
        M = E[zz'], and the inverse of sum_n E z E z' / N.
    model : Smaller
        As the loadings and precisions of noise at hand have it.
    """
    pick, stay = model.pick, np.linalg.pinv(model.pick).T
    back = second @ stay @ np.linalg.inv(stay.T @ second @ stay)
    left = second - back @ stay.T @ second
    evidence, reading = model.evidence, model.reading
    for view in settings.views:
        if view.bound != "gaussian":
            continue
        weights = globals_.weights[view.name]
        mean, spread = expected_weights(weights)
        shown = globals_.fixed[view.name].count.sum(axis=1) / settings.n_rows
        before = settings.precision(view.name, weights).mean(axis=1)
        after = shown / (1.0 / before + np.einsum("dk,kl,dl->d", mean, left, mean))
        before, old, new = shown * before, mean @ pick, mean @ back
        added = (after - before) @ spread
        full = np.diag(added) if len(added) == len(pick) else unpack(added, len(pick))
        evidence = evidence + (after * new.T) @ new - (before * old.T) @ old + pick.T @ full @ pick
        reading = reading + (after * new.T - before * old.T) @ mean @ second @ known
    return replace(model, evidence=evidence, reading=reading)


def _without(k: int, gone: list[int]) -> Float64[Array, "K fewer"]:
    return np.ascontiguousarray(np.delete(np.eye(k), gone, axis=1))


def _join(
    k: int, weak: list[int], alike: Float64[Array, "K K"], evidence: Float64[Array, "K K"]
) -> list[Float64[Array, "K fewer"]]:
    """Return the proposal to join the weak factor and the other whose scores are most alike."""
    off = alike - 2.0 * np.eye(k)
    i = max(weak, key=lambda n: float(off[n].max()))
    j = int(off[i].argmax())
    if k < 2 or off[i, j] < _ALIKE:
        return []
    pair = [min(i, j), max(i, j)]
    vector = np.linalg.eigh(evidence[np.ix_(pair, pair)])[1][:, -1]
    pick = _without(k, [pair[1]])
    pick[pair, pair[0]] = vector if vector[0] >= 0.0 else -vector
    return [pick]
