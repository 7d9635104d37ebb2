"""Counts by the curvature at q(x): formulas against SciPy, differences and draws; factors at any mean."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

from factorflow import fit, write_dataset
from factorflow.errors import InputError
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.kernels import entry_counts as entry
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.pseudo import Given, expected_scores, variance_of_predictor

COUNTS = (0.0, 1.0, 8.0, 9.0, 40.0, 500.0)
DISPERSIONS = (1e-4, 0.01, 0.3, 5.0)
STEP = 1e-4


@pytest.mark.parametrize("y", [*COUNTS, 1e5])
@pytest.mark.parametrize("dispersion", [1e-6, *DISPERSIONS])
def test_sums_over_the_counts_below(y, dispersion):
    j = np.arange(int(y))
    b = 1.0 + dispersion * j
    exact = (np.log(b).sum(), (j / b).sum(), -((j / b) ** 2).sum())
    np.testing.assert_allclose(entry.rising(y, dispersion), exact, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("y", COUNTS)
@pytest.mark.parametrize("x", [-4.0, 0.3, 5.0])
def test_terms_of_negative_binomial_counts(y, x):
    for d in DISPERSIONS:
        value, slope, curvature, expected = entry.negative_binomial_terms(y, x, d)
        rate = np.exp(x)
        known = stats.nbinom.logpmf(y, 1.0 / d, 1.0 / (1.0 + d * rate))
        assert value + entry.rising(y, d)[0] - gammaln(y + 1.0) == pytest.approx(known, rel=1e-8, abs=1e-8)
        up, down = (entry.negative_binomial_terms(y, x + s * STEP, d) for s in (1, -1))
        assert slope == pytest.approx(-(up[0] - down[0]) / (2 * STEP), rel=1e-5, abs=1e-6)
        assert curvature == pytest.approx((up[1] - down[1]) / (2 * STEP), rel=1e-6, abs=1e-9)
        assert expected == pytest.approx(rate / (1.0 + d * rate))
        first, second = entry.dispersion_terms(y, x, d)
        h = STEP * d
        more, less = (entry.negative_binomial_terms(y, x, d + s * h)[0] for s in (1, -1))
        assert first == pytest.approx((more - less) / (2 * h), rel=1e-3, abs=1e-5 * max(1.0, rate**2))
        more, less = (entry.dispersion_terms(y, x, d + s * h)[0] for s in (1, -1))
        assert second == pytest.approx((more - less) / (2 * h), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("y", COUNTS)
@pytest.mark.parametrize("x", [-4.0, 0.3, 5.0, 480.0])
def test_terms_of_poisson_counts(y, x):
    value, slope, curvature, expected = entry.poisson_terms(y, x)
    rate = np.logaddexp(0.0, x)
    assert value - gammaln(y + 1.0) == pytest.approx(stats.poisson.logpmf(y, rate), rel=1e-9, abs=1e-9)
    up, down = (entry.poisson_terms(y, x + s * STEP) for s in (1, -1))
    assert slope == pytest.approx(-(up[0] - down[0]) / (2 * STEP), rel=1e-5, abs=1e-5)
    assert curvature == pytest.approx((up[1] - down[1]) / (2 * STEP), rel=1e-5, abs=1e-9)
    assert expected == pytest.approx((-np.expm1(-rate)) ** 2 / rate)
    many = np.arange(2000.0)
    mean = sum(stats.poisson.pmf(n, rate) * entry.poisson_terms(n, x)[2] for n in many)
    assert expected == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("dispersion", [None, 0.4])
@pytest.mark.parametrize(("mean", "sd"), [(-1.0, 0.7), (1.5, 0.3), (4.0, 0.5)])
def test_expectations_are_those_of_draws(mean, sd, dispersion):
    """Value, slope and curvature of the tangent at q(x), within 4 standard errors of a Monte Carlo mean."""
    rng = np.random.default_rng(0)
    x = mean + sd * rng.standard_normal(20_000)
    y = np.floor(np.exp(mean)) + 1.0  # near the mode, where the curvature alone counts
    if dispersion is None:
        terms = np.array([entry.poisson_terms(y, v) for v in x])
    else:
        terms = np.array([entry.negative_binomial_terms(y, v, dispersion) for v in x])
    spread = None if dispersion is None else np.array([dispersion])
    at = (np.array([[mean]]), np.array([[sd**2]]))
    u, weighted, free, reached = gfa.pseudo_counts(np.array([[y]]), *at, spread)
    u, slope = float(u[0, 0]), float(u[0, 0]) * mean - float(weighted[0, 0])
    errors = 4.0 * terms.std(axis=0) / np.sqrt(len(x))
    found = np.array([reached, slope, u])
    assert (np.abs(found - terms[:, :3].mean(axis=0)) < errors[:3]).all()
    tangent = free + float(weighted[0, 0]) * mean - 0.5 * u * (mean**2 + sd**2)
    assert tangent == pytest.approx(reached, abs=1e-9)
    if dispersion is not None:
        constant, slopes = gfa.dispersion_derivatives(np.array([[y]]), *at, spread)
        drawn = np.array([entry.dispersion_terms(y, v, dispersion) for v in x])
        own = np.array(entry.rising(y, dispersion))
        assert constant == pytest.approx(own[0])
        errors = 4.0 * drawn.std(axis=0) / np.sqrt(len(x))
        assert (np.abs(slopes[0] - own[1:] - drawn.mean(axis=0)) < errors).all()


def test_no_step_goes_far_beyond_the_mode():
    """Where x < 0 a count of 500 has hardly any curvature: Newton's step alone would be of 1e4 and more."""
    for dispersion, mode in ((None, 500.0), (np.array([0.1]), np.log(500.0))):
        at = (np.array([[-12.0]]), np.array([[0.01]]))
        u, weighted, *_ = gfa.pseudo_counts(np.array([[500.0]]), *at, dispersion)
        target = float(weighted[0, 0] / u[0, 0])
        assert mode < target < mode + 400.0


def test_no_step_leaves_where_there_is_no_curvature_for_where_there_is():
    """A count of 0 says nothing of x far below 0, and much of x as far above it."""
    for x in (-40.0, -1e4):
        at = (np.array([[x]]), np.array([[0.01]]))
        u, weighted, *_ = gfa.pseudo_counts(np.array([[0.0]]), *at, None)
        assert float(u[0, 0]) == pytest.approx(0.25 / -x)
        assert float(weighted[0, 0] / u[0, 0]) == pytest.approx(x, rel=1e-6)
    u, *_ = gfa.pseudo_counts(np.array([[0.0]]), np.array([[-20.0]]), np.array([[0.01]]), None)
    assert float(u[0, 0]) < 1e-8  # within what rates there are, the curvature is as it is


def test_missing_counts_weigh_nothing():
    at = (np.array([[0.4]]), np.array([[1.0]]))
    u, weighted, free, reached = gfa.pseudo_counts(np.array([[np.nan]]), *at, None)
    assert (float(u[0, 0]), float(weighted[0, 0]), free, reached) == (0.0,) * 4


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("posterior", ["full", "factorised"])
def test_variance_of_the_predictor(tools, sparse, posterior):
    """Equal to the direct evaluation, which the bound of other views is checked with."""
    problem = tools.Problem(
        ("poisson", "gaussian"), "scattered", count_bound="local", scores_posterior=posterior
    )
    for _ in range(4):
        problem.iterate()
    if sparse:
        problem.enter_sparse()
        for _ in range(4):
            problem.iterate()
    given = Given(problem.settings, problem.globals_)
    (table, _) = given.tables(0, problem.block.data["v0"]).values()
    full = problem.settings.full_scores
    found = variance_of_predictor(*expected_scores(problem.local), table.spread, full=full)
    _, exact = tools.predictor(problem.settings, "v0", problem.local, problem.globals_)
    np.testing.assert_allclose(found, exact, rtol=1e-10)


def simulate(seed, mean, dispersion=0.0, n_rows=200, n_features=40):
    """Return scores (N, 3) and counts (N, D): three factors with a quarter of the variance."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, 3))
    signal = scores @ (rng.standard_normal((n_features, 3)) * (rng.random((n_features, 3)) < 0.5)).T
    spread = np.sqrt((mean + dispersion * mean**2) / 3.0) / -np.expm1(-mean)
    rate = np.logaddexp(0.0, np.log(np.expm1(mean)) + spread * signal / signal.std())
    if dispersion:
        rate = rate * rng.gamma(1.0 / dispersion, dispersion, rate.shape)
    return scores, rng.poisson(rate).astype(np.float32)


def fitted(folder, values, kind="poisson", **options):
    data = write_dataset(folder / f"{kind}.zarr", {"v": values}, {"v": kind}, overwrite=True)
    return fit(data, SparseGFA(n_factors=6, **options))


def matched(posterior, scores):
    """Return the mean over true factors of the highest correlation with one that was found."""
    found = posterior.scores().to_numpy()
    together = np.corrcoef(found.T, scores.T)[: found.shape[1], found.shape[1] :]
    return float(np.abs(together).max(axis=0).mean())


@pytest.mark.parametrize("mean", [0.5, 8.0, 500.0])
def test_factors_of_counts_of_any_size(tmp_path, mean):
    """Found as well as by a Gaussian fit of the variance-stabilised counts."""
    scores, counts = simulate(0, mean)
    found = matched(fitted(tmp_path, counts), scores)
    root = matched(fitted(tmp_path, 2.0 * np.sqrt(counts + np.float32(0.375)), "gaussian"), scores)
    assert found > root - 0.005
    assert found > 0.75


@pytest.mark.filterwarnings("ignore:.*hundreds of times as far off as all others")
@pytest.mark.parametrize("count", [2000.0, 1e6])
def test_a_count_far_above_all_others_hides_no_factor(tmp_path, count):
    """It is nearly all of the variance of x, and has a factor of its own, of a loading of its size."""
    scores, counts = simulate(0, 5.0)
    without = matched(fitted(tmp_path, counts), scores)
    counts[17, 5] = count
    posterior = fitted(tmp_path, counts)
    assert matched(posterior, scores) > without - 0.015
    assert {"one sample", "one feature"} & {finding.kind for finding in posterior.findings}


@pytest.mark.parametrize("mean", [pytest.param(100.0, marks=pytest.mark.slow), 500.0])
def test_counts_without_dispersion_lose_no_factor_to_it(tmp_path, mean):
    """Intercepts taken for uncertain at first fell, and a factor that was constant stood in for them."""
    scores, counts = simulate(1, mean)
    posterior = fitted(tmp_path, counts, counts="negative_binomial")
    assert len(posterior.factors) == 3
    assert matched(posterior, scores) > matched(fitted(tmp_path, counts), scores) - 0.03


@pytest.mark.parametrize(
    ("mean", "dispersion"), [pytest.param(500.0, 0.1, marks=pytest.mark.slow), (20.0, 0.5)]
)
def test_negative_binomial_counts(tmp_path, mean, dispersion):
    """Dispersion is learned, factors are found, hidden counts lie within 90 % intervals, Poisson's warns."""
    scores, counts = simulate(1, mean, dispersion)
    hidden = np.random.default_rng(2).random(counts.shape) < 0.1
    shown = np.where(hidden, np.nan, counts).astype(np.float32)
    posterior = fitted(tmp_path, shown, counts="negative_binomial")
    assert matched(posterior, scores) > 0.8
    learned = posterior.variable("dispersion_v").values
    assert np.median(learned) == pytest.approx(dispersion, rel=0.25)
    predicted = posterior.predict("v", interval=0.9)
    low, high = (predicted[end].to_numpy()[hidden] for end in ("lower", "upper"))
    inside = np.mean((counts[hidden] >= low) & (counts[hidden] <= high))
    assert inside == pytest.approx(0.9, abs=0.04)
    of_poisson = fitted(tmp_path, shown, max_iter=5, warmup_iter=5)
    assert any("negative_binomial" in finding.remedy for finding in of_poisson.findings)
    assert not any(finding.kind == "overdispersion" for finding in posterior.findings)


@pytest.mark.parametrize(
    ("ratio", "said"), [(1.4, None), (2.34, "vary 2.3 times"), (3.4e80, "vary 3e+80 times")]
)
def test_how_much_counts_vary_is_said_in_few_digits(tmp_path, monkeypatch, ratio, said):
    monkeypatch.setattr("factorflow.posterior.data_findings._mean", lambda *_: ratio)
    monkeypatch.setattr("factorflow.posterior.data_findings._dispersed", lambda *_: [])
    posterior = fitted(tmp_path, simulate(3, 5.0)[1], max_iter=2, warmup_iter=2)
    found = [finding.message for finding in posterior.findings if finding.kind == "overdispersion"]
    assert found == [] if said is None else said in found[0]


def test_poisson_counts_are_not_warned_of(tmp_path):
    posterior = fitted(tmp_path, simulate(3, 5.0)[1], max_iter=5, warmup_iter=5)
    assert not any(finding.kind == "overdispersion" for finding in posterior.findings)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"inference": "incremental", "count_bound": "local"}, "inference"),
        ({"inference": "incremental", "counts": "negative_binomial"}, "counts"),
        ({"count_bound": "bouchard", "counts": "negative_binomial"}, "counts"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, options, name):
    with pytest.raises(InputError, match=name):
        fitted(tmp_path, simulate(0, 5.0, n_rows=20, n_features=8)[1], **options)
