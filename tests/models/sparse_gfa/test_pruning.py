"""Which factors are dropped, when, and what of the others stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import factorflow
from factorflow.kernels.linalg import diagonal
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.pseudo_data import expected_scores
from factorflow.models.sparse_gfa.start.sparse_stage import _best, initialize_sparse
from factorflow.models.sparse_gfa.state import replace_part
from factorflow.models.sparse_gfa.weights import expected_weights

SETTLED = 10  # sparse passes during which nothing is dropped


def problem_at(tools: Any, sparse_passes: int, drop: float) -> Any:
    """Return a problem after 5 passes of warm-up and some sparse ones, all of which know ``drop``."""
    problem = tools.Problem(("gaussian", "bernoulli"), "scattered")
    for _ in range(5):
        problem.iterate()
    problem.initialize_sparse()
    problem.settings = replace(problem.settings, drop=drop)
    for _ in range(sparse_passes):
        problem.iterate()
    return problem


@pytest.mark.parametrize("sparse_passes", [0, 4])
def test_strength_is_the_share_of_a_views_sum_of_squares(tools: Any, sparse_passes: int) -> None:
    """Of Gaussian views; of others, of log(1 + information x signal) of all factors and 1 for each entry."""
    problem = tools.Problem(("gaussian", "bernoulli", "poisson"), "scattered")
    for _ in range(4):
        problem.iterate()
    if sparse_passes:
        problem.initialize_sparse()
        for _ in range(sparse_passes):
            problem.iterate()
    mean, spread = expected_scores(problem.local)
    z2 = (mean**2 + diagonal(spread, 3)).mean(axis=0)  # the fourth pass changes no basis
    for m, view in enumerate(problem.settings.views):
        w = expected_weights(problem.globals_.weights[view.name])[0]
        y = problem.block.data[view.name].astype(float)
        seen = ~np.isnan(y) if view.kind != "bernoulli" else y >= 0
        signal = sum(w[d] ** 2 * z2 for _, d in np.argwhere(seen))
        if view.is_gaussian:
            fixed = problem.globals_.fixed[view.name]
            total = np.nansum(((y - np.nanmean(y, axis=0)) / fixed.scale) ** 2)
        else:
            b = problem.globals_.weights[view.name].intercept
            known = expit(b) * expit(-b) if view.kind == "bernoulli" else np.exp(b)
            signal = sum(np.log1p(known[d] * w[d] ** 2 * z2) for _, d in np.argwhere(seen))
            total = signal.sum() + seen.sum()
        np.testing.assert_allclose(problem.globals_.factors.strength[m], signal / total, rtol=1e-6)


def test_a_factor_is_dropped_where_no_view_needs_it(tools: Any) -> None:
    """The rule looks at the best view of each factor, and a factor at the threshold stays."""
    whole = problem_at(tools, SETTLED + 1, 0.0)
    best = whole.globals_.factors.strength.max(axis=0)
    weakest = int(best.argmin())
    assert whole.globals_.n_factors == 3
    same = problem_at(tools, SETTLED + 1, float(best.min()))
    assert same.globals_.n_factors == 3
    fewer = problem_at(tools, SETTLED + 1, float(np.nextafter(best.min(), 1.0)))
    kept = np.delete(np.arange(3), weakest)
    assert fewer.globals_.n_factors == 2
    for name, weights in whole.globals_.weights.items():
        left = fewer.globals_.weights[name]
        for field in ("mean", "variance", "inclusion"):
            np.testing.assert_array_equal(getattr(left, field), getattr(weights, field)[:, kept])
        for field in ("alpha_shape", "alpha_rate", "theta_on", "theta_off"):
            one, two = (getattr(p.globals_.views[name], field) for p in (whole, fewer))
            np.testing.assert_array_equal(two, one[kept])
    np.testing.assert_array_equal(
        fewer.globals_.scores.second, whole.globals_.scores.second[np.ix_(kept, kept)]
    )
    np.testing.assert_array_equal(fewer.globals_.factors.strength, whole.globals_.factors.strength[:, kept])


def test_the_bound_goes_on_from_what_is_left(tools: Any) -> None:
    best = problem_at(tools, SETTLED + 1, 0.0).globals_.factors.strength.max(axis=0)
    problem = problem_at(tools, SETTLED + 1, float(np.nextafter(best.min(), 1.0)))
    before, local, stats = problem.map()
    assert local.mean.shape[1] == 2
    after, info = problem.update(stats)
    assert info["n_factors"] == 2
    fixed = (before, replace_part(problem.globals_, "change", transform=None))
    if after.change.transform is None:
        assert info["objective"] == pytest.approx(problem.bound(local, after, fixed), rel=1e-9)


def test_nothing_is_dropped_before_the_sparse_stage_has_settled(tools: Any) -> None:
    """A factor can be weak for a while and come back."""
    problem = problem_at(tools, SETTLED, 0.999)
    assert problem.globals_.n_factors == 3
    problem.iterate()
    assert problem.globals_.n_factors == 1  # the strongest stays, however weak
    whole = problem_at(tools, SETTLED + 1, 0.0).globals_
    kept = whole.factors.strength.max(axis=0).argmax()
    left = problem.globals_.weights["v0"]
    np.testing.assert_array_equal(left.mean[:, 0], whole.weights["v0"].mean[:, kept])


def test_the_sparse_stage_begins_with_the_factors_of_the_warm_up_that_count(tools: Any) -> None:
    problem = tools.Problem(("gaussian", "bernoulli"), "scattered")
    for _ in range(5):
        problem.iterate()
    best = np.sort(problem.globals_.factors.strength.max(axis=0))
    for drop, left in ((best[0], 3), (np.nextafter(best[0], 1), 2), (np.nextafter(best[1], 1), 1), (0.99, 1)):
        entered = initialize_sparse(replace(problem.settings, drop=float(drop)), problem.globals_)
        assert entered.n_factors == left


def test_of_more_factors_than_were_asked_for_those_that_explain_most_go_on(tools: Any) -> None:
    """Not one that is one feature, whose scores cost what it explains; missing entries explain nothing."""
    problem = tools.Problem(("gaussian", "bernoulli"), n_factors=3)
    sizes = {view.name: view.n_features for view in problem.settings.views}
    gaussian, binary = sizes
    signal = {name: np.zeros((size, 3)) for name, size in sizes.items()}  # f w^2, factor by factor
    signal[gaussian][0, 0] = 100.0  # log 101 - log 101
    signal[gaussian][1:4, 1] = 1.0  # 3 log 2 - log 4
    signal[binary][:3, 2] = 0.4  # 1.2 - log 2.2
    weights, fixed = {}, {}
    for view in problem.settings.views:
        old, known = problem.globals_.weights[view.name], problem.globals_.fixed[view.name]
        precision = problem.settings.information(view.name, old)
        weights[view.name] = replace(old, mean=np.sqrt(signal[view.name] / precision[:, None]))
        fixed[view.name] = replace(known, count=np.full_like(known.count, problem.settings.n_rows))

    def left(number: int, **other: Any) -> list[int]:
        of = replace(problem.globals_, weights=weights, fixed={**fixed, **other})
        kept = _best(replace(problem.settings, n_factors=number), of)
        assert kept.n_factors == number
        assert kept.factors.strength.shape == (2, number)
        w = np.concatenate([expected_weights(kept.weights[name])[0] for name in sizes])
        every = np.concatenate([expected_weights(weights[name])[0] for name in sizes])
        return [int(np.flatnonzero((every == column[:, None]).all(axis=0))[0]) for column in w.T]

    assert left(3) == [0, 1, 2]
    assert left(2) == [1, 2]
    assert left(1) == [1]
    few = replace(fixed[gaussian], count=0.81 * fixed[gaussian].count)  # 2.43 log 2 - log 4
    assert left(1, **{gaussian: few}) == [2]


@pytest.mark.thorough
def test_dropping_in_a_run(tmp_path: Any) -> None:
    """Two factors of which one is of a twentieth of the variance: the threshold decides."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((80, 2))
    w = rng.standard_normal((12, 2)) * [1.0, 0.25]
    y = z @ w.T + 0.2 * rng.standard_normal((80, 12))
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": y}, {"v": "gaussian"})

    def sizes(drop: float) -> Any:
        posterior = factorflow.fit(data, SparseGFA(n_factors=4, drop=drop, max_iter=60, warmup_iter=10))
        return posterior.trace["n_factors"].values, posterior

    every, _ = sizes(0.0)
    assert (every == 4).all()
    found, two = sizes(1e-3)
    assert found[0] == 4  # two are counted, two to spare
    assert found[-1] == two.scores().shape[1] == 2
    share = (two.loadings("v").values ** 2).sum(0) * (two.scores().values ** 2).mean(0)
    share = 80 * share / ((y - y.mean(0)) ** 2).sum()
    assert share[0] > 0.5 > 0.15 > share[1] > 0.01
    assert sizes(0.2)[1].scores().shape[1] == 1
    assert two.factors == ["Factor1", "Factor2"]
