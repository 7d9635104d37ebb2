"""Hyperparameters of a view: at the optimum of the bound, the messages of the entries fixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import digamma, expit

import factorflow
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa import hyperparameters
from factorflow.models.sparse_gfa.settings import Priors
from factorflow.models.sparse_gfa.state import Change, Fixed, Scores, View
from factorflow.models.sparse_gfa.weights import Weights

D, K = 60, 3


def view(**values: Any) -> View:
    ones = np.ones(K)
    return View(ones, ones, ones, ones, 0.3, 0.1, 2.0, 4.0, np.zeros((1, 10)), 1e-3, 1e-3, **values)


def weights(rng: np.random.Generator, counts: Any = 50.0) -> Weights:
    """Return loadings of which the first half is near 0, intercepts, and noise of few entries a feature."""
    mean = rng.normal(0.0, 0.5, (D, K)) * (np.arange(D) >= D // 2)[:, None]
    variance = 1.0 / rng.uniform(20.0, 60.0, (D, K))
    intercept, known = rng.normal(2.0, 1.5, D), 1.0 / rng.uniform(1.0, 40.0, D)
    shape = np.full((D, 1), 1e-3) + 0.5 * np.broadcast_to(counts, (D, 1))
    true = stats.gamma(4.0, scale=0.5).rvs((D, 1), random_state=rng)
    rate = 1e-3 + 0.5 * stats.chi2(np.maximum(2 * shape - 2e-3, 1e-9)).rvs(random_state=rng) / true
    phi = np.empty((D, 0))
    return Weights(mean, variance, np.full((D, K), 0.5), intercept[:, None], known[:, None], shape, rate, phi)


def fixed(rng: np.random.Generator, counts: float = 50.0) -> Fixed:
    ones, count = np.ones(D), np.full((D, 1), counts)
    return Fixed(ones, ones, ones, count, count * rng.uniform(0.5, 2.0, (D, 1)), count)


def at_optimum(tools: Any, mine: Weights, known: Fixed, old: View) -> View:
    problem = tools.Problem(("gaussian",), "none")
    settings = replace(problem.settings, n_factors=K)
    settings = replace(settings, views=(replace(settings.views[0], n_features=D, alpha_prior=(0.5, 0.005)),))
    name = settings.views[0].name
    before = replace(problem.globals_, views={name: old}, weights={name: mine}, fixed={name: known})
    ones = np.ones((1, K))
    before = replace(before, scores=Scores(ones, ones, ones, ones, np.eye(K)), change=Change())
    found: View = hyperparameters.optimize_hyperparameters(settings, before, before).views[name]
    return found


def test_alpha_and_theta_are_where_iterations_end(tools: Any) -> None:
    rng = np.random.default_rng(0)
    mine, old = weights(rng), view()
    found = at_optimum(tools, mine, fixed(rng), old)
    p, linear = 1.0 / mine.variance - old.alpha, mine.mean / mine.variance
    a, b, t, u = old.alpha_shape, old.alpha_rate, old.theta_on, old.theta_off
    for _ in range(5000):
        total = p + a / b
        odds = digamma(t) - digamma(u) + 0.5 * (digamma(a) - np.log(b) - np.log(total) + linear**2 / total)
        gamma = expit(odds)
        squares = (gamma * ((linear / total) ** 2 + 1.0 / total)).sum(axis=0)
        a, b = 0.5 + 0.5 * gamma.sum(axis=0), 0.005 + 0.5 * squares
        t, u = 1.0 + gamma.sum(axis=0), 1.0 + D - gamma.sum(axis=0)
    np.testing.assert_allclose(np.log(found.alpha), np.log(a / b), atol=0.01)
    np.testing.assert_allclose(np.log(found.theta_on / found.theta_off), np.log(t / u), atol=0.02)
    np.testing.assert_allclose(found.theta_on + found.theta_off, D + 2.0)


def test_level_and_spread_of_intercepts_are_where_iterations_end(tools: Any) -> None:
    rng = np.random.default_rng(1)
    mine, known, old = weights(rng), fixed(rng), view()
    found = at_optimum(tools, mine, known, old)
    used, priors = old.intercept_shape / old.intercept_rate, Priors()
    p = 1.0 / mine.intercept_variance - used
    linear = (mine.intercept + known.reference) / mine.intercept_variance - used * old.intercept_mean
    precision, mean = 1.0, 0.0
    for _ in range(5000):
        level = (precision * mean + linear) / (precision + p)
        mean = precision * level.sum() / (priors.intercept_mean + D * precision)
        squares = ((level - mean) ** 2 + 1.0 / (precision + p)).sum()
        squares += D / (priors.intercept_mean + D * precision)  # the variance of m
        precision = (priors.intercept[0] + 0.5 * D) / (priors.intercept[1] + 0.5 * squares)
    assert found.intercept_mean == pytest.approx(mean, rel=1e-5)
    assert found.intercept_shape / found.intercept_rate == pytest.approx(precision, rel=1e-5)


def test_precisions_of_coefficients_end_at_what_they_may_be(tools: Any) -> None:
    """Of loadings that overflowed the optimum is beyond any number: the step that led there is taken back."""
    rng = np.random.default_rng(1)
    far = replace(weights(rng), coefficients=np.full((D, 1), 1e80) * rng.normal(size=(D, 1)))
    found = at_optimum(tools, far, fixed(rng), view())
    assert found.intercept_shape / found.intercept_rate == pytest.approx(np.exp(hyperparameters.LOGS[0]))


@pytest.mark.parametrize("by_variance", [False, True])
def test_prior_of_the_noise_is_the_one_of_most_evidence(tools: Any, by_variance: bool) -> None:
    """Evidence: the density of each residual sum of squares, the precision integrated out numerically."""
    rng = np.random.default_rng(2)
    mine, known, old = weights(rng), fixed(rng), view()
    unit = known.squares / known.count
    if by_variance:
        mine = replace(mine, noise_rate=1e-3 + (mine.noise_rate - 1e-3) * unit)
    found = at_optimum(tools, mine, known, old)
    assert found.noise_by_variance == by_variance
    x = ((mine.noise_rate - 1e-3) / (unit if by_variance else 1.0)).ravel()

    def evidence(log_shape: float, log_rate: float) -> float:
        prior = stats.gamma(np.exp(log_shape), scale=np.exp(-log_rate))
        grid = np.exp(np.linspace(-12.0, 12.0, 4001))
        density = prior.pdf(grid) * grid
        with np.errstate(divide="ignore"):
            likelihood = np.exp(25.0 * np.log(grid)[:, None] - grid[:, None] * x + 25.0 * np.log(x))
        return float(np.log((density[:, None] * likelihood).sum(axis=0)).sum())

    best = optimize.minimize(lambda at: -evidence(*at), np.log([4.0, 2.0]), method="Nelder-Mead")
    given = evidence(np.log(found.noise_shape), np.log(found.noise_rate))
    assert given > -best.fun - 1.0  # shapes on a grid
    assert -best.fun > evidence(np.log(found.noise_shape), np.log(1.5 * found.noise_rate)) + 1.0


def test_constants_and_empty_features_say_nothing_of_the_noise(tools: Any) -> None:
    rng = np.random.default_rng(3)
    mine, known, old = weights(rng), fixed(rng), view()
    found = at_optimum(tools, mine, known, old)
    silent = np.array([0, 1])
    rate, shape, squares = mine.noise_rate.copy(), mine.noise_shape.copy(), known.squares.copy()
    rate[0], squares[0] = 1e-3, 0.0  # a constant
    rate[1], shape[1] = 1e-3, 1e-3  # never observed
    without = at_optimum(
        tools, replace(mine, noise_rate=rate, noise_shape=shape), replace(known, squares=squares), old
    )
    assert np.delete(rate, silent).min() > 0.1
    assert without.noise_shape == found.noise_shape
    assert without.noise_rate == pytest.approx(found.noise_rate, rel=0.2)


def test_a_feature_alone_keeps_some_noise(tmp_path: Any) -> None:
    """A factor of its own could explain all of it, and the precision of its noise grow without end."""
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(200, 2))
    wide = scores @ rng.normal(size=(2, 40)) + rng.normal(size=(200, 40))
    views = {"wide": wide, "alone": scores[:, :1] + 1e-3 * rng.normal(size=(200, 1))}
    dataset = factorflow.write_dataset(tmp_path / "d", views)
    posterior = factorflow.fit(dataset, SparseGFA(n_factors=5, drop=0.0), progress=False)
    assert posterior.variance_explained_total().sel(view="alone").item() > 0.8
    variance = 1.0 / posterior.variable("noise_precision_alone").values
    assert variance.min() > 0.099 * views["alone"].var()


def test_a_fit_settles_where_two_priors_of_the_noise_are_each_best(tmp_path: Any) -> None:
    """Shapes 4.6 and 14 are each best given the residuals that they leave: a pass may not mix them.

    Loadings learned by the precisions of the prior of the pass before went from one to the other for ever.
    """
    views = {"a": ("gaussian", 40), "b": ("gaussian", 30)}
    factorflow.simulate("sparse_gfa", tmp_path / "data.zarr", 200, seed=1, views=views)
    fit = factorflow.fit(tmp_path / "data.zarr", {"model": "sparse_gfa", "n_factors": 5}, progress=False)
    assert fit.run["reason"] == "converged"
    assert fit.trace.sizes["iteration"] < 60
