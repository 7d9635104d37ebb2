"""The bound: equal to a direct evaluation, never falling at a single update, equal to Monte Carlo."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

VIEWS = {
    "gaussian": ("gaussian",),
    "two": ("gaussian", "gaussian"),
    "binary": ("bernoulli",),
    "counts": ("poisson",),
    "mixed": ("gaussian", "bernoulli", "poisson"),
}
OPTIONS = {
    "collapsed": {},
    "hat": {"spike": "hat"},
    "factorised": {"scores_posterior": "factorised"},
    "no intercepts": {"intercepts": False},
    "no ard": {"ard": False},
    "features scaled": {"scale_features": True},
    "boehning": {"bernoulli": "boehning"},
    "sample noise": {"noise": "sample"},
    "both noises": {"noise": "both"},
}
GROUPED = {
    "ard": {"scores_prior": "ard"},
    "spike": {"scores_prior": "spike"},
    "noise": {"grouped_noise": True},
    "both noises by group": {"grouped_noise": True, "noise": "both"},
    "noise, ard, hat": {"grouped_noise": True, "scores_prior": "ard", "spike": "hat"},
}
CASES = [
    pytest.param(v, m, 0, o, id=f"{v}-{m}-{o}")
    for v in VIEWS
    for m in ("none", "samples", "scattered")
    for o in OPTIONS
    if (m == "scattered" or o in {"collapsed", "hat"}) and ("noise" not in o or "gaussian" in VIEWS[v])
] + [
    pytest.param(v, m, 2, o, id=f"{v}-{m}-groups-{o}")
    for v in ("two", "mixed")
    for m in ("none", "scattered")
    for o in GROUPED
]


def single_updates(problem, before, after_local, after):
    """Yield the states that one iteration passes through, one changed variable at a time."""
    start = problem.globals_
    yield "scores", after_local, replace(start, transform=None)
    weights, views = dict(start.weights), dict(start.views)

    def state():
        return replace(start, weights=dict(weights), views=dict(views), transform=None)

    for view in problem.settings.views:
        old, new = start.weights[view.name], after.weights[view.name]
        if new.inclusion is None or old.inclusion is None:
            weights[view.name] = replace(old, mean=new.mean, variance=new.variance, inclusion=new.inclusion)
            if new.inclusion is not None and problem.settings.spike == "hat":
                views[view.name] = replace(views[view.name], off_variance=after.views[view.name].off_variance)
            if new.inclusion is None:
                yield f"weights of {view.name}", after_local, state()
        else:
            if problem.settings.spike == "hat":
                views[view.name] = replace(views[view.name], off_variance=after.views[view.name].off_variance)
                yield f"off variance of {view.name}", after_local, state()
            for k in range(new.mean.shape[1]):
                done = np.arange(new.mean.shape[1]) <= k
                weights[view.name] = replace(
                    old,
                    mean=np.where(done, new.mean, old.mean),
                    variance=np.where(done, new.variance, old.variance),
                    inclusion=np.where(done, new.inclusion, old.inclusion),
                )
                yield f"weights {k} of {view.name}", after_local, state()
        for names in (("intercept", "intercept_variance"), ("noise_shape", "noise_rate")):
            weights[view.name] = replace(weights[view.name], **{n: getattr(new, n) for n in names})
            yield f"{names[0]} of {view.name}", after_local, state()
    for view in problem.settings.views:
        for names in (
            ("intercept_mean", "intercept_mean_variance"),
            ("intercept_shape", "intercept_rate"),
            ("alpha_shape", "alpha_rate"),
            ("theta_on", "theta_off"),
        ):
            values = {n: getattr(after.views[view.name], n) for n in names}
            views[view.name] = replace(views[view.name], **values)
            yield f"{names[0]} of {view.name}", after_local, state()
    yield "prior of scores", after_local, replace(after, transform=None)


@pytest.mark.parametrize(("views", "missing", "groups", "option"), CASES)
def test_no_single_update_lowers_the_bound(tools, views, missing, groups, option):
    """Each variable alone, in warm-up and sparse stage: relative 1e-10 with double precision."""
    problem = tools.Problem(VIEWS[views], missing, groups, **(OPTIONS | GROUPED)[option])
    previous = None
    for iteration in range(11):
        if iteration == 5:
            problem.enter_sparse()
        phase = problem.phase
        before, local, stats = problem.map()
        after, info = problem.update(stats)
        moved = after.transform is not None
        source = (before if before is not None else local, replace(problem.globals_, transform=None))
        end = local if not moved else problem_local(problem, local, after)
        gaussian = all(view.bound == "gaussian" for view in problem.settings.views)
        if not moved:
            expected = problem.bound(end, after, None if gaussian else source)
            assert info["objective"] == pytest.approx(expected, rel=1e-9), phase
        fixed = (
            source
            if not moved
            else (problem_local(problem, source[0], after), replace(after, transform=None))
        )
        if phase == "update":
            last = problem.bound(before if before is not None else previous, source[1])  # xi, zeta updated
            steps = (
                single_updates(problem, before, local, after)
                if not moved
                else [("all", end, replace(after, transform=None))]
            )
            for name, changed_local, changed in steps:
                value = problem.bound(changed_local, changed, None if gaussian else fixed)
                assert value >= last - 1e-10 * abs(last), (iteration, name)
                last = value
        problem.globals_, problem.local, previous = after, local, end
        problem.count += 1


def problem_local(problem, local, after):
    from factorflow.models.sparse_gfa.samples import apply_transform

    return apply_transform(local, after)
