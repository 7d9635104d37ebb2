"""Entries that are not Gaussian: what a block makes of their messages, and of their residuals; options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import expit

from factorflow.errors import InputError
from factorflow.likelihoods import get_likelihood
from factorflow.likelihoods.base import REACH
from factorflow.likelihoods.newton import MOST
from factorflow.models.sparse_gfa import SparseGFA, variance_explained
from factorflow.models.sparse_gfa.messages import message_data
from factorflow.models.sparse_gfa.pseudo_data import (
    PreparedGlobals,
    expected_scores,
    pseudo_data,
    variance_of_predictor,
)
from factorflow.models.sparse_gfa.state import replace_part
from factorflow.models.sparse_gfa.weights import Weights, expected_weights

ALL = ("gaussian", "bernoulli", "poisson")
NONE = np.empty(0, np.intp)


def is_seen(values: Any) -> Any:
    return values >= 0 if values.dtype == np.int8 else ~np.isnan(values)


@pytest.mark.thorough
@pytest.mark.parametrize("tile", [1, 17, 10**6])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("likelihood", "bound"),
    [
        ("bernoulli", False),
        ("bernoulli", True),
        ("poisson", False),
        ("negative_binomial", False),
        ("negative_binomial", True),
        ("student_t", True),
    ],
)
def test_messages_of_a_block_are_those_of_its_entries(
    tools: Any, monkeypatch: pytest.MonkeyPatch, likelihood: str, bound: bool, dtype: Any, tile: int
) -> None:
    """One entry at a time; missing ones (-1, NaN) add nothing; whatever rows are taken together."""
    monkeypatch.setattr("factorflow.models.sparse_gfa.messages.TILE", tile)
    rng = np.random.default_rng(0)
    kind = get_likelihood(likelihood).kinds[0]
    options: dict[str, Any] = {"bound": bound}
    if likelihood in {"negative_binomial", "student_t"}:
        options["likelihoods"] = likelihood
    problem = tools.Problem((kind,), **options)
    view, fixed = problem.settings.views[0], problem.globals_.fixed["v0"]
    values = tools.make_views((kind,), "scattered", dtype=dtype)["v0"]
    if view.is_scaled:
        values = values - np.asarray(5.0, dtype)  # on both sides of 0
    mean, variance = rng.normal(0.3, 0.7, values.shape), rng.uniform(0.05, 0.8, values.shape)
    phi = rng.normal(0.5, 0.4, (view.density.n_phi, view.n_features))
    found = message_data(view, fixed, values, mean.astype(dtype), variance.astype(dtype), phi, NONE)
    density = get_likelihood(likelihood)
    weight, response = np.zeros(values.shape), np.zeros(values.shape)
    free = 0.0
    of_phi = np.zeros((view.n_features, 2))
    seen = ~np.isnan(values) if view.is_scaled else is_seen(values)
    y = (values - fixed.reference) / fixed.scale if view.is_scaled else values
    for i, d in np.argwhere(seen):
        at = (np.array([float(y[i, d])]), mean[i, d, None], variance[i, d, None], phi[:, d, None])
        e, g, u = (float(part[0]) for part in (density.bound if bound else density.terms)(*at))
        u = u if bound else max(u, abs(g) / REACH)
        if view.density.n_phi:
            e += float(density.log_factor(at[0], at[3])[0])
            of_phi[d] += density.phi_derivatives(*at, bounded=bound)[:, 0]
        weight[i, d], response[i, d] = u, u * mean[i, d] + g
        free += e - g * mean[i, d] + 0.5 * u * (variance[i, d] - mean[i, d] ** 2)
    near = {"rtol": 1e-9, "atol": 1e-9} if dtype == np.float64 else {"rtol": 2e-3, "atol": 2e-4}
    np.testing.assert_allclose(found.weight, weight, **near)
    np.testing.assert_allclose(found.response, response, **near)
    assert found.weight.dtype == found.response.dtype == dtype
    assert found.free == pytest.approx(free, rel=1e-10 if dtype == np.float64 else 1e-4)
    if view.density.n_phi:
        np.testing.assert_allclose(found.phi, of_phi, **near)
    else:
        assert found.phi is None


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("posterior", ["full", "factorised"])
def test_messages_are_taken_at_q_of_the_predictor(tools: Any, posterior: str, sparse: bool) -> None:
    """Its mean and variance are those of a direct evaluation."""
    problem = tools.Problem(("poisson", "gaussian"), "scattered", scores_posterior=posterior)
    for _ in range(4):
        problem.iterate()
    if sparse:
        problem.initialize_sparse()
        for _ in range(4):
            problem.iterate()
    given, local = PreparedGlobals(problem.settings, problem.globals_), problem.local
    table = given.tables(0, problem.block.data["v0"])["v0"]
    variance = variance_of_predictor(
        *expected_scores(local),
        problem.settings.design(problem.block),
        table.spread,
        full=problem.settings.full_scores,
    )
    mean, exact = tools.predictor(problem.settings, "v0", local, problem.globals_)
    np.testing.assert_allclose(variance, exact, rtol=1e-10)
    view, phi = problem.settings.view("v0"), problem.globals_.weights["v0"].phi.T
    found = pseudo_data(problem.settings, "v0", problem.block, local, problem.globals_, table)
    fixed = problem.globals_.fixed["v0"]
    expected = message_data(view, fixed, problem.block.data["v0"], mean, exact, phi, NONE)
    np.testing.assert_allclose(found.response, expected.response, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bound", [False, True])
def test_phi_ends_where_the_expected_log_likelihood_and_its_prior_are_highest(bound: bool) -> None:
    """Or a bound of it. No step from afar is longer than `MOST`, or goes downhill where all is convex."""
    rng = np.random.default_rng(0)
    density = get_likelihood("negative_binomial")
    form = density.bound if bound else density.terms
    truth = np.array([np.log(0.5), np.log(3.0), np.log(40.0)])
    m, v = rng.normal(1.0, 0.5, (400, 3)), np.full((400, 3), 0.1)
    y = rng.poisson(np.exp(m) * rng.gamma(np.exp(truth), np.exp(-truth), m.shape)).astype(float)
    rest = np.zeros((3, 1)), np.zeros((3, 1)), None, np.zeros((3, 1)), np.zeros((3, 1)), None, None

    def objective(phi: float, d: int) -> float:
        at = np.array([[phi]])
        value = form(y[:, d], m[:, d], v[:, d], at).value + density.log_factor(y[:, d], at)
        return float(value.sum()) - 0.5 * (phi - density.phi_mean) ** 2 / density.phi_sd**2

    best = np.array(
        [minimize_scalar(lambda p, d=d: -objective(p, d), bounds=(-4.0, 8.0)).x for d in range(3)]
    )
    for start in (-3.0, 7.0):
        weights = Weights(*rest, phi=np.full((3, 1), start))
        before = None
        for _ in range(40):
            values = np.array([objective(float(p), d) for d, p in enumerate(weights.phi[:, 0])])
            if before is not None:
                assert (values >= before - 1e-4 * np.abs(before)).all()
            before, last = values, weights.phi
            derivatives = density.phi_derivatives(y, m, v, weights.phi.T, bounded=bound).sum(axis=1).T
            weights = replace(weights, phi=density.update_phi(weights.phi, derivatives))
            assert np.abs(weights.phi - last).max() <= MOST
        np.testing.assert_allclose(weights.phi[:, 0], best, atol=0.02)


@pytest.mark.parametrize("tile", [1, 40, 10**6])
@pytest.mark.parametrize("counts", ["poisson", "negative_binomial"])
def test_residual_squares_are_those_of_single_entries(
    tools: Any, monkeypatch: pytest.MonkeyPatch, counts: str, tile: int
) -> None:
    """About predictions of all factors, of each alone, and of none, on the scale of the data."""
    monkeypatch.setattr(variance_explained, "TILE", tile)
    problem = tools.Problem(ALL, "scattered", likelihoods=counts, bound=False)
    for _ in range(4):
        problem.iterate()
    scores, _ = expected_scores(problem.local)
    for view in problem.settings.views:
        values = problem.block.data[view.name]
        weights, fixed = problem.globals_.weights[view.name], problem.globals_.fixed[view.name]
        w, expected = expected_weights(weights)[0], np.zeros(5)
        for i, d in np.argwhere(is_seen(values)):
            parts = scores[i] * w[d]
            for k, signal in enumerate([parts.sum(), *parts, 0.0]):
                x = weights.intercept[d] + signal
                if view.kind == "gaussian":
                    centre = fixed.reference[d] + fixed.scale[d] * x
                else:
                    centre = expit(x) if view.kind == "bernoulli" else np.exp(x)
                expected[k] += (float(values[i, d]) - centre) ** 2
        design = np.ones((len(scores), 1))
        found = variance_explained._residuals(
            problem.settings, view.name, values, scores, design, problem.globals_
        )
        np.testing.assert_allclose(np.roll(found, -1), expected, rtol=1e-9)


def test_steps_are_shorter_after_a_fall_and_grow_again(tools: Any) -> None:
    """Where the objective is that of a tangent; with a bound every step goes all the way."""
    problem = tools.Problem(("poisson",))
    for _ in range(2):
        problem.iterate()
    assert problem.globals_.progress.step_length == 1.0
    problem.globals_ = replace_part(
        problem.globals_, "progress", objective=np.inf
    )  # whatever comes is a fall
    problem.iterate()
    assert problem.globals_.progress.step_length == 0.5
    problem.iterate()
    assert problem.globals_.progress.step_length == pytest.approx(0.55)
    assert not tools.Problem(("bernoulli",), bound=True).settings.tangent
    problem.globals_ = replace_part(
        problem.globals_, "progress", step_length=1.0
    )  # of a pass that ends without a rotation
    before, whole, _ = problem.map()
    problem.globals_ = replace_part(problem.globals_, "progress", step_length=0.5)
    _, half, stats = problem.map()
    np.testing.assert_allclose(half.mean, 0.5 * (before.mean + whole.mean), rtol=1e-9, atol=1e-12)
    half = problem.update(stats)[0].weights["v0"].mean
    problem.globals_ = replace_part(problem.globals_, "progress", step_length=1.0)
    whole, start = problem.update(stats)[0].weights["v0"].mean, problem.globals_.weights["v0"].mean
    np.testing.assert_allclose(half, 0.5 * (start + whole), rtol=1e-9, atol=1e-12)


def test_bounds_are_for_likelihoods_that_have_one(tools: Any) -> None:
    """Refused for Poisson's."""

    def views(*likelihoods: str, **options: Any) -> list[bool]:
        values = tools.make_views(likelihoods)
        meta = tools.make_meta(values, likelihoods, block_rows=8)
        return [view.bounded for view in SparseGFA(n_factors=2, **options).build(meta).settings.views]

    with pytest.raises(InputError, match=r"bound = True: expected False where a view is poisson \(view v1\)"):
        views("bernoulli", "poisson", bound=True)
    assert views(*ALL, bound=True, likelihoods="negative_binomial") == [False, True, True]
    assert views(*ALL) == [False, False, False]


def test_shared_parameters_after_a_step_of_a_share_of_the_way(tools: Any) -> None:
    """Messages are then not what is left of q without its prior: no optimum of lambda was found."""
    problem = tools.Problem(("poisson", "gaussian"))
    for _ in range(3):
        problem.iterate()
    views = {name: replace(view, intercept_rate=1e-6) for name, view in problem.globals_.views.items()}
    problem.globals_, problem.at_optimum = replace(problem.globals_, views=views), True
    problem.globals_ = replace_part(problem.globals_, "progress", step_length=0.5)
    problem.iterate()
    for view in problem.globals_.views.values():
        assert np.isfinite([view.intercept_mean, view.intercept_rate]).all()
