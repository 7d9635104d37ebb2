"""Passes that are taken further: the bound has the last word, and they end sooner."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from factorflow.models.sparse_gfa.squarem import (
    _forward,
    _length,
    discard_unverified_step,
    judge_snapshot,
    squarem_step,
)
from factorflow.models.sparse_gfa.state import Iterate, Snapshot, replace_part

LIKELIHOODS = ("gaussian", "gaussian")


def sparse_problem(tools, *, hasty, sparse=5, seed=0):
    """Return a problem in its sparse stage."""
    problem = tools.Problem(LIKELIHOODS, seed=seed)
    problem.hasty = hasty
    for _ in range(sparse):
        problem.iterate()
    problem.initialize_sparse()
    return problem


def test_the_recorded_bound_is_that_of_the_state_before_a_step_and_never_falls(tools):
    problem, last, longer = sparse_problem(tools, hasty=True), -np.inf, 0
    for _ in range(40):
        _, local, stats = problem.map()
        after, info = problem.update(stats)
        kept = discard_unverified_step(after)
        assert info["objective"] >= last - 1e-10 * abs(last)
        if kept.change.transform is None and not after.change.restored:
            assert info["objective"] == pytest.approx(problem.bound(local, kept), rel=1e-9)
        longer += after.progress.snapshot is not None
        last, problem.globals_ = info["objective"], after
        problem.local, problem.count = local, problem.count + 1
    assert longer >= 5


def test_what_lowers_the_bound_is_taken_back(tools):
    problem = sparse_problem(tools, hasty=True)
    while problem.globals_.progress.snapshot is None:
        problem.iterate()
    before = problem.globals_
    wrong = {name: replace(w, mean=w.mean + 3.0) for name, w in before.weights.items()}
    problem.globals_ = replace(before, weights=wrong)
    objective = problem.iterate()
    after, kept = problem.globals_, discard_unverified_step(before)
    assert objective == before.progress.snapshot.objective
    assert after.change.restored
    assert after.progress.snapshot is None
    assert after.progress.step_limit < before.progress.step_limit
    for name, weights in kept.weights.items():
        np.testing.assert_array_equal(after.weights[name].mean, weights.mean)


def test_it_gets_further_in_as_many_passes(tools):
    plain, hasty = sparse_problem(tools, hasty=False, seed=3), sparse_problem(tools, hasty=True, seed=3)
    bounds = [[p.iterate() for _ in range(60)] for p in (plain, hasty)]
    gap = [max(bounds[0][-1], bounds[1][-1]) - b[20] for b in bounds]
    assert gap[1] < 0.5 * gap[0]


def test_what_settles_by_a_constant_share_is_taken_to_its_end():
    """x_t = x + c a^t: with a length of 1 / (1 - a), within what is allowed; as it is, what gets faster."""
    end, start, share = np.array([2.0, -1.0, 0.5]), np.array([1.0, -3.0, 2.0]), np.array([0.3, 0.6, 0.9])
    path = [end + start * share**t for t in range(3)]
    np.testing.assert_allclose(_forward(path, 100.0), end, rtol=1e-9)
    np.testing.assert_allclose(_forward(path, 4.0)[:2], end[:2], rtol=1e-9)
    assert abs(_forward(path, 4.0)[2] - end[2]) > 0.1
    np.testing.assert_allclose(_forward(path[::-1], 100.0), path[0], rtol=1e-9)


def test_lengths_of_steps():
    assert _length(3.0, 2.0, 10.0) == 1.5
    assert _length(1.0, 2.0, 10.0) == 1.0
    assert _length(50.0, 2.0, 10.0) == _length(1.0, 0.0, 10.0) == 10.0


def test_shares_of_loadings_keep_what_their_prior_adds(tools):
    """Odds that grow from pass to pass would end where no loading can be 0: the bound was NaN."""
    problem = sparse_problem(tools, hasty=True)
    globals_ = replace_part(problem.globals_, "progress", snapshot=None, step_limit=1e3)
    path = []
    for odds in (2.0, 5.0, 7.9):
        on = 42.0 / (1.0 + np.exp(-odds))
        views = {name: replace(v, theta_on=0 * v.theta_on + on) for name, v in globals_.views.items()}
        weights = {name: (w.mean, w.coefficients) for name, w in globals_.weights.items()}
        path.append(Iterate(weights, {n: replace(v, theta_off=42.0 - v.theta_on) for n, v in views.items()}))
    globals_ = replace_part(replace(globals_, views=path[-1].views), "progress", iterates=tuple(path[:2]))
    further = squarem_step(problem.settings, globals_, -1.0, 7)
    least = problem.settings.priors.theta
    for view in further.views.values():
        assert (view.theta_on == 42.0).all()  # what was seen is 41.98
        assert (view.theta_off >= least[1]).all()
    problem.globals_ = further
    problem.update(problem.map()[2])


def test_behind_a_long_step_a_tangent_has_to_keep_its_promise(tools):
    """A bound decides with one pass; with tangents the second has to be higher, too. Of trials as well."""
    old = replace_part(
        tools.Problem(("bernoulli",), bound=False).globals_, "progress", objective=-10.0, score=-9.0
    )
    for trial in (False, True):
        before = replace_part(old, "progress", snapshot=Snapshot(old, -10.0, trial))
        higher = replace_part(old, "progress", score=-4.0)
        assert (
            judge_snapshot(SimpleNamespace(tangent=False), before, higher, -5.0)[0].progress.snapshot is None
        )
        tangent = SimpleNamespace(tangent=True)
        waiting, recorded = judge_snapshot(tangent, before, higher, -5.0)
        assert (waiting.progress.snapshot.is_lower, recorded) == (True, -10.0)
        kept, recorded = judge_snapshot(tangent, waiting, higher, -6.0)
        assert (kept.progress.snapshot, kept.change.restored, recorded) == (None, False, -6.0)
        back, recorded = judge_snapshot(tangent, waiting, replace_part(old, "progress", score=-11.0), -11.0)
        assert (back.progress.snapshot, back.change.restored, back.progress.trial_failed, recorded) == (
            None,
            True,
            trial,
            -10.0,
        )


def test_a_step_that_no_pass_has_shown_is_given_up_with_its_scores(tools):
    old = tools.Problem(("gaussian",)).globals_
    for trial in (False, True):
        ended = discard_unverified_step(replace_part(old, "progress", snapshot=Snapshot(old, -1.0, trial)))
        assert (ended.progress.snapshot, ended.change.restored) == (None, True)
    assert not discard_unverified_step(old).change.restored


def test_a_step_behind_which_the_bound_is_no_number_is_taken_back(tools):
    """Rates can overflow where a step went. Without a state to go back to it is an error, as ever."""
    problem = sparse_problem(tools, hasty=True)
    while problem.globals_.progress.snapshot is None:
        problem.iterate()
    before = problem.globals_
    stats = problem.map()[2]
    lost = replace(stats, entropy=np.nan)
    after, info = problem.update(lost)
    assert info["objective"] == before.progress.snapshot.objective
    assert after.change.restored
    assert after.progress.step_limit < before.progress.step_limit
    problem.globals_ = discard_unverified_step(before)
    with pytest.raises(FloatingPointError, match="the bound is nan"):
        problem.update(lost)
