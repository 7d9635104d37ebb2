"""At the root of sparse group factor analysis: shared parameters, the bound, rotation, scale, pruning."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from factorflow.core.trees import replace
from factorflow.kernels.linalg import n_pairs, unpack
from factorflow.models.contract import Step
from factorflow.models.sparse_gfa.change_of_basis import rescale, rotate, select_factors, shift_scores
from factorflow.models.sparse_gfa.elbo import Moves, bound_of, check_finite, shared_by_features, update_shared
from factorflow.models.sparse_gfa.hyperparameters import optimize_hyperparameters
from factorflow.models.sparse_gfa.m_step import loading_sums
from factorflow.models.sparse_gfa.n_factors import least_worth, variance_shares, worth
from factorflow.models.sparse_gfa.naming import assign_names, is_early, naming_is_due
from factorflow.models.sparse_gfa.settings import EARLY_TOLERANCE, PARAMETER_TOL, Settings
from factorflow.models.sparse_gfa.smooth.courses import (
    noise_moves,
    update_noise,
)
from factorflow.models.sparse_gfa.squarem import (
    judge_snapshot,
    needs_longer_step,
    next_step_length,
    squarem_step,
)
from factorflow.models.sparse_gfa.start.guided import is_guided
from factorflow.models.sparse_gfa.state import Change, Globals, Snapshot, replace_part
from factorflow.models.sparse_gfa.statistics import FeatureSums, Stats
from factorflow.models.sparse_gfa.weights import Weights

SETTLED = 10
"""Sparse passes before a factor goes for what it explains: at first one can be weak and come back."""


def finish_iteration(
    settings: Settings,
    globals_: Globals,
    stats: Stats,
    parts: Mapping[str, Weights],
    sums: Mapping[str, FeatureSums],
    step: Step,
    *,
    settles: bool = True,
) -> tuple[Globals, dict[str, float]]:
    """Update what all features share, given updated features; return the new globals and the bound.

    ``settles``: whether the stage is the last of its kind: it ends only when shares of noise no longer move.
    """
    new, moves = _join_features(settings, globals_, stats, parts, sums, step)
    new = update_shared(settings, new, moves, sums, stats)
    objective = bound_of(settings, new, moves, sums, stats)
    if globals_.progress.snapshot is not None and not np.isfinite(objective):  # the step went too far
        new, objective = replace_part(new, "progress", score=-np.inf), -np.inf
    else:
        check_finite(new, objective)
        new = _learn_shared(settings, globals_, new, moves, sums, stats, objective)
    rounding = 1e-7 * abs(objective) if settings.precision_bits == 32 else 0.0
    step_length = next_step_length(globals_, new, objective, rounding) if settings.tangent else 1.0
    new = replace_part(new, "progress", step_length=step_length)
    new, objective = judge_snapshot(settings, globals_, new, objective)
    renamed = (
        not settings.dense and settings.sets is not None and new.factors.sets is None
    )  # still to be named
    if (
        not settings.dense
        and new.progress.snapshot is None
        and not new.change.restored
        and naming_is_due(settings, step.count)
    ):
        new, renamed = assign_names(settings, new)
    info = {
        "objective": objective,
        "observed": new.observed,
        "parameters": float(sum((v.n_features * (new.n_factors + 1)) for v in settings.views)),
        "rounding": rounding,
        "pending": float(
            new.progress.snapshot is not None
            or step_length < globals_.progress.step_length  # the objective fell
            or (settings.deletes and not _number_is_settled(settings, new))
            or needs_longer_step(globals_, step.count)
            or renamed
            or (settles and noise_moves(globals_.courses, new.courses))
        ),
    }
    least = _least_gain(settings, info) * (1.0 if settles else EARLY_TOLERANCE)
    new = _extrapolate(settings, globals_, new, objective, least, step.count)
    info["n_factors"] = float(new.n_factors)
    return replace_part(new, "progress", objective=objective), info


def _join_features(
    settings: Settings,
    globals_: Globals,
    stats: Stats,
    parts: Mapping[str, Weights],
    sums: Mapping[str, FeatureSums],
    step: Step,
) -> tuple[Globals, Moves]:
    """Return the globals with the updated features, in the basis of the next pass."""
    k = globals_.n_factors
    new = replace(
        globals_,
        weights=dict(parts),
        views={name: replace(view, pairs=sums[name].pairs) for name, view in globals_.views.items()},
        scores=replace(
            globals_.scores,
            second=unpack(stats.moments[: n_pairs(k)], k) / settings.n_rows,
            mean=unpack(stats.moments, k + globals_.n_given)[k, :k] / settings.n_rows
            if settings.nonnegative or settings.tangent
            else None,
        ),
        change=Change(),
        progress=replace(globals_.progress, snapshot=None),
        basis={},
    )
    moves = Moves(
        loadings={name: s.loadings for name, s in sums.items()},
        second=stats.second,
        entropy=stats.entropy + sum(s.entropy for s in sums.values()),
    )
    if globals_.courses is None and settings.changes_basis(step.count):
        if settings.dense and settings.full_scores and settings.scores_prior == "normal":
            new, moves = rotate(settings, new, moves, sums)
        else:
            new, moves = rescale(settings, new, moves, stats.number)
    return new, moves


def _learn_shared(
    settings: Settings,
    globals_: Globals,
    new: Globals,
    moves: Moves,
    sums: Mapping[str, FeatureSums],
    stats: Stats,
    objective: float,
) -> Globals:
    """Return the globals with strength and worth of the factors, and hyperparameters for the next pass."""
    new = replace_part(new, "factors", strength=variance_shares(settings, new))
    if settings.deletes:
        worths, gap = worth(settings, new, moves, sums, stats)
        worths = np.asarray(np.where(is_guided(settings, new), np.maximum(worths, 0.0), worths))
        new = replace_part(replace_part(new, "factors", worth=worths), "progress", score=objective + gap)
    if new.courses is not None:
        assert stats.courses is not None
        new = replace(new, courses=update_noise(new.courses, stats.courses))
    if globals_.progress.step_length == 1.0:  # loadings that went a part of the way have no messages
        new = optimize_hyperparameters(settings, globals_, new)
    return new


def _extrapolate(
    settings: Settings,
    globals_: Globals,
    new: Globals,
    objective: float,
    least: float,
    count: int,
) -> Globals:
    """Delete a factor, begin a trial without one, or take a SQUAREM step, where this is due.

    ``least``: nats below which a pass gains little.
    """
    is_accepted = new.progress.snapshot is None and not new.change.restored
    if is_accepted and not settings.dense and not is_early(settings, count):
        new = _delete_factor(settings, globals_, new, count)
        gain = objective - globals_.progress.objective
        little = count > 0 and abs(gain) < least  # of the first it is not known
        new = _start_trial(settings, globals_, new, objective, little=little)
    if not new.change.restored and new.progress.snapshot is None and settings.changes_basis(count):
        new = shift_scores(settings, new)
    if not new.change.restored and (new.progress.snapshot is None or not new.progress.snapshot.trial):
        new = squarem_step(settings, new, objective, count)
    return new


def _number_is_settled(settings: Settings, globals_: Globals) -> bool:
    """Return whether each factor is known to be worth more than nothing, the least by a trial."""
    if globals_.factors.worth is None or (globals_.factors.worth < 0.0).any():
        return False
    return (
        globals_.progress.trial_failed
        or globals_.courses is not None
        or bool(is_guided(settings, globals_).all())  # or there is none
    )


def _least_gain(settings: Settings, info: Mapping[str, float]) -> float:
    """Return the nats below which a pass gains little, as the engine has it for the sparse stage."""
    of_parameters = max(PARAMETER_TOL * info["parameters"], info["rounding"])
    return min(settings.tol * info["observed"], of_parameters)


def _start_trial(
    settings: Settings, before: Globals, new: Globals, objective: float, *, little: bool
) -> Globals:
    """Return the globals without the factor of least worth, on trial, if passes gain little."""
    # After a pass that was judged itself blocks still keep the scores of before it.
    same = (
        new.n_factors == before.n_factors
        and new.factors.worth is not None
        and before.progress.snapshot is None
    )
    same = same and new.courses is None  # they would have to be learned anew
    if not (little and settings.deletes and same and np.isfinite(objective)) or _number_is_settled(
        settings, new
    ):
        return new
    assert new.factors.worth is not None
    if (new.factors.worth < 0.0).any():
        return new
    least = int(np.where(is_guided(settings, new), np.inf, new.factors.worth).argmin())
    fewer = select_factors(new, np.delete(np.arange(new.n_factors), least))
    back = replace_part(new, "progress", iterates=(), objective=objective)
    return replace_part(fewer, "progress", snapshot=Snapshot(back, objective, trial=True))


def _delete_factor(settings: Settings, before: Globals, new: Globals, count: int) -> Globals:
    """Return the globals without a factor worth less than nothing, or without those that explain little."""
    deleted = None if new.factors.worth is None else least_worth(new.factors.worth, before.factors.worth)
    if deleted is not None:
        return select_factors(new, np.delete(np.arange(new.n_factors), deleted))
    return without_weak_factors(settings, new) if count >= SETTLED else new


def without_weak_factors(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals of the factors that explain `Settings.drop` of a view or more; of one at least."""
    largest = globals_.factors.strength.max(axis=0)
    factors = np.flatnonzero((largest >= settings.drop) | is_guided(settings, globals_))
    return select_factors(globals_, factors if len(factors) or not len(largest) else largest.argmax()[None])


def follow_loadings(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals with what the features of each view share as it follows from their loadings.

    That is what the bound of the last pass had, and what is recorded: while a fit goes on, it is ahead of
    them (`hyperparameters`).
    """
    if not any(w.inclusion is not None or w.entropies is not None for w in globals_.weights.values()):
        settings = settings.warm_up
    sums = {
        name: loading_sums(settings, name, weights, globals_.fixed[name])
        for name, weights in globals_.weights.items()
    }
    moves = Moves(
        loadings={name: s.loadings for name, s in sums.items()},
        second=np.zeros((1, globals_.n_factors)),
        entropy=0.0,
    )
    return replace(globals_, views=shared_by_features(settings, globals_, moves, sums))
