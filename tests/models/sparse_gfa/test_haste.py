"""Passes that are taken further: the bound has the last word, and they end sooner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from factorflow.models.sparse_gfa.haste import settled

LIKELIHOODS = ("gaussian", "gaussian")


def begun(tools, *, hasty, sparse=5):
    """Return a problem in its sparse stage."""
    problem = tools.Problem(LIKELIHOODS)
    problem.hasty = hasty
    for _ in range(sparse):
        problem.iterate()
    problem.enter_sparse()
    return problem


def test_the_recorded_bound_is_that_of_the_state_before_a_step_and_never_falls(tools):
    problem, last, longer = begun(tools, hasty=True), -np.inf, 0
    for _ in range(40):
        _, local, stats = problem.map()
        after, info = problem.update(stats)
        kept = settled(after)
        assert info["objective"] >= last - 1e-10 * abs(last)
        if kept.transform is None and not after.restored:
            assert info["objective"] == pytest.approx(problem.bound(local, kept), rel=1e-9)
        longer += after.bar is not None
        last, problem.globals_ = info["objective"], after
        problem.local, problem.count = local, problem.count + 1
    assert longer >= 5


def test_what_lowers_the_bound_is_taken_back(tools):
    problem = begun(tools, hasty=True)
    while problem.globals_.bar is None:
        problem.iterate()
    before = problem.globals_
    wrong = {name: replace(w, mean=w.mean + 3.0) for name, w in before.weights.items()}
    problem.globals_ = replace(before, weights=wrong)
    objective = problem.iterate()
    after, kept = problem.globals_, settled(before)
    assert objective == before.bar
    assert after.restored
    assert after.bar is None
    assert after.haste < before.haste
    for name, weights in kept.weights.items():
        np.testing.assert_array_equal(after.weights[name].mean, weights.mean)


def test_it_gets_further_in_as_many_passes(tools):
    plain, hasty = begun(tools, hasty=False), begun(tools, hasty=True)
    bounds = [[p.iterate() for _ in range(60)] for p in (plain, hasty)]
    gap = [max(bounds[0][-1], bounds[1][-1]) - b[20] for b in bounds]
    assert gap[1] < 0.5 * gap[0]
