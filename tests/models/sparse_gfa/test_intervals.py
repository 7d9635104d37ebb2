"""Loadings under the likelihood itself: against a direct maximisation, and what intervals leave open."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from factorflow import fit, write_dataset
from factorflow.kernels.linalg import pack, unpack
from factorflow.models.contract import Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.debias import DebiasSweep, Spread, _common, _variance
from factorflow.models.sparse_gfa.kernels import binary
from factorflow.models.sparse_gfa.pseudo import expected_scores
from factorflow.models.sparse_gfa.samples import stored
from factorflow.trees import restrict

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(30)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def debiased(problem: Any, passes: int) -> Any:
    """Return the globals after some passes."""
    sweep, globals_ = DebiasSweep(problem.settings), problem.globals_
    for count in range(passes):
        step = Step(0, 0, 0, "debiasing", count)
        local, stats = sweep.map(problem.block, problem.local, sweep.prepare(globals_), step)
        assert local is problem.local
        parts = {}
        for name, size in sweep.axes().items():
            mine = restrict(stats, name, slice(0, size))
            parts[name], _ = sweep.features(name, range(size), globals_, mine, step)
        globals_, _ = sweep.assemble(globals_, stats, parts, {}, step)
    return globals_


def expected_log_likelihood(likelihood: str, y: Any, mean: Any, variance: Any) -> float:
    x = mean + np.sqrt(variance) * NODES[:, None]
    if likelihood == "bernoulli":
        value = y * x - np.logaddexp(0.0, x)
    else:
        rate = np.logaddexp(0.0, x)
        value = y * np.log(rate) - rate
    return float((WEIGHTS @ value).sum())


@pytest.mark.parametrize("sd", [0.05, 0.35, 0.4, 0.75, 0.8, 1.0, 1.1])
def test_the_table_is_as_good_as_many_nodes(sd: float) -> None:
    """Slope and curvature of narrow and wide entries side by side."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(101)
    mean, variance = np.tile(np.linspace(-9.0, 9.0, 301), (2, 1)), np.full((2, 301), sd**2)
    variance[:, 1::2] *= 0.2
    spread = 1.0 / (1.0 + np.exp(-mean - np.sqrt(variance) * nodes[:, None, None]))
    rate, curvature = (
        np.tensordot(weights / weights.sum(), part, 1) for part in (spread, spread - spread**2)
    )
    found, response = np.empty(mean.shape), np.empty(mean.shape)
    y = np.where(np.arange(301) % 3, 1.0, 0.0) * np.ones((2, 1))
    binary.local(y, mean, variance, found, response)
    np.testing.assert_allclose(found, curvature, rtol=2e-4)
    np.testing.assert_allclose(found * mean + y - response, rate, atol=1.2e-5)
    binary.local(np.full((2, 301), -1.0), mean, variance, found, response)
    assert not found.any()
    assert not response.any()


@pytest.mark.parametrize(
    ("likelihood", "options"),
    [
        ("bernoulli", {"ard_prior": (10.0, 10.0)}),
        ("bernoulli", {"bernoulli": "boehning", "ard_prior": (10.0, 10.0)}),
        ("poisson", {"count_bound": "bouchard", "ard_prior": (10.0, 10.0)}),
    ],
)
def test_loadings_maximise_what_they_should(
    tools: SimpleNamespace, likelihood: str, options: dict[str, Any]
) -> None:
    """Each feature's Gaussian r(w) r(b), for the factors it has, by a general optimiser."""
    problem = tools.Problem([likelihood], "scattered", **options)
    for _ in range(8):
        problem.iterate()
    weights = problem.globals_.weights["v0"]
    inclusion = np.where(np.random.default_rng(0).random(weights.mean.shape) < 0.7, 0.9, 0.1)
    problem.globals_ = replace(
        problem.globals_, weights={"v0": replace(weights, inclusion=inclusion)}, transform=None
    )
    globals_ = debiased(problem, 25)
    found, view, before = globals_.corrected["v0"], globals_.views["v0"], problem.globals_.weights["v0"]
    assert globals_.weights is problem.globals_.weights
    z, spread = expected_scores(stored(problem.local, problem.globals_))
    covariance = unpack(np.broadcast_to(spread, (len(z), spread.shape[1])), 3)
    values = np.asarray(problem.block.data["v0"], float)
    lam, m = view.intercept_shape / view.intercept_rate, view.intercept_mean
    checked = 0
    for d in range(values.shape[1]):
        on = before.inclusion[d] > 0.5
        assert (found.mean[d][~on] == 0).all()
        k, seen = int(on.sum()), np.isfinite(values[:, d]) & (values[:, d] >= 0)
        if not k:
            continue
        y, e, s = values[seen, d], z[seen][:, on], covariance[seen][:, on][:, :, on]
        low = np.tril_indices(k)

        def loss(
            p: Any, y: Any = y, e: Any = e, s: Any = s, on: Any = on, k: int = k, low: Any = low
        ) -> float:
            w, b, root = p[:k], p[k], np.zeros((k, k))
            root[low] = p[k + 2 :]
            c, v = root @ root.T, np.exp(p[k + 1])
            x = e @ w + b
            variance = np.einsum("nij,ij->n", s + e[:, :, None] * e[:, None, :], c)
            variance = variance + np.einsum("i,nij,j->n", w, s, w) + v
            prior = -0.5 * view.alpha[on] @ (w**2 + np.diag(c)) - 0.5 * lam * ((b - m) ** 2 + v)
            entropy = np.log(np.abs(np.diag(root))).sum() + 0.5 * p[k + 1]
            return -(expected_log_likelihood(likelihood, y, x, variance) + prior + float(entropy))

        start = np.concatenate([before.mean[d][on], [before.intercept[d], -1.0], 0.3 * np.eye(k)[low]])
        best = minimize(loss, start, method="BFGS", options={"gtol": 1e-7})
        root = np.zeros((k, k))
        root[low] = best.x[k + 2 :]
        np.testing.assert_allclose(found.mean[d][on], best.x[:k], atol=2e-3)
        assert found.intercept[d] == pytest.approx(best.x[k], abs=2e-3)
        own = unpack(found.covariance[d : d + 1], 3)[0][np.ix_(on, on)]
        np.testing.assert_allclose(own, root @ root.T, rtol=0.02, atol=1e-3)
        checked += 1
    assert checked > 2
    on = before.inclusion > 0.5
    assert np.abs(found.mean - before.mean)[on].max() > 0.05


def test_four_passes_suffice(tools: SimpleNamespace) -> None:
    problem = tools.Problem(["bernoulli"], ard_prior=(10.0, 10.0))
    for _ in range(8):
        problem.iterate()
    few, many = (debiased(problem, passes).corrected["v0"] for passes in (4, 20))
    assert (np.abs(few.mean - many.mean) < 0.05 * np.sqrt(many.variance)).all()


def test_scores_of_one_entry_are_integrated_out() -> None:
    """A Gaussian feature beside known ones: the information of its own marginal likelihood."""
    rng, n, k = np.random.default_rng(1), 4000, 2
    others, tau = rng.normal(size=(8, k)), 2.0
    left = np.linalg.inv(np.eye(k) + others.T @ others)  # Cov z given the others
    w = np.array([0.9, -0.6])
    means = rng.multivariate_normal(np.zeros(k), np.eye(k) - left, n)
    cov = np.linalg.inv(np.linalg.inv(left) + tau * np.outer(w, w))  # ... and given the feature too
    level = 1.0 / tau + w @ left @ w
    y = means @ w + np.sqrt(level) * rng.normal(size=n)
    scores = means + np.outer((y - means @ w) / level, left @ w)
    second = np.zeros((k + 1, k + 1))
    second[:k, :k] = scores.T @ scores + n * cov
    second[k, :k] = second[:k, k] = scores.sum(axis=0)
    second[k, k] = n
    spread = Spread(pack(second), pack(n * cov), float(n), k)
    prior, on = np.full(k + 1, 1e-6), np.ones((1, k + 1), bool)
    found = _variance(tau * second[None], prior, on, w[None], np.array([float(n)]), spread)[0]
    grid, h = [], 1e-3  # minus the log-likelihood of y given the others, its second derivatives

    def loss(w: Any) -> float:
        v = 1.0 / tau + w @ left @ w
        return float(0.5 * n * np.log(v) + 0.5 * ((y - means @ w) ** 2).sum() / v)

    for i in range(k):
        for j in range(k):
            a, b = h * np.eye(k)[i], h * np.eye(k)[j]
            grid.append((loss(w + a + b) - loss(w + a - b) - loss(w - a + b) + loss(w - a - b)) / (4 * h * h))
    exact = np.diag(np.linalg.inv(np.reshape(grid, (k, k))))
    plain = np.diag(np.linalg.inv(tau * second[:k, :k]))
    np.testing.assert_allclose(found, exact, rtol=0.12)
    assert (plain < 0.8 * exact).all()


def test_what_all_features_share() -> None:
    """Scale of a factor, and mixtures of two, against the inverse of their precision."""
    n, second = 50.0, np.array([1.0, 4.0])
    w = np.array([[1.0, 0.0], [0.5, 0.3], [0.0, -0.7]])
    alpha, u = np.array([2.0, 0.5]), np.array([0.7, 1.1, 0.2])
    moments = pack(np.diag([*(n * second), n]))
    spread = Spread(moments, np.zeros(3), n, 2)
    globals_: Any = SimpleNamespace(views={"v": SimpleNamespace(alpha=alpha)})
    found = _common(None, globals_, {"v": w != 0}, {"v": w}, {"v": u}, spread)["v"]  # type: ignore[arg-type]
    v, a = w * np.sqrt(second), alpha / second  # where scores have variance 1
    q = np.zeros((2, 2))
    for d in range(3):
        for j, k in ((0, 1), (1, 0)):
            q[j, k] += v[d, j] ** 2 * (a[k] / n if w[d, k] else u[d])
    open_ = np.linalg.inv(n * np.array([[1 + q[0, 1], 1.0], [1.0, 1 + q[1, 0]]]))
    expected = 0.5 / n * v**2
    expected[:, 1] += v[:, 0] ** 2 * open_[0, 0]
    expected[:, 0] += v[:, 1] ** 2 * open_[1, 1]
    np.testing.assert_allclose(found, np.where(w, expected, 0.0) / second, rtol=1e-12)


def test_intervals_of_binary_loadings(tmp_path: Any) -> None:
    """Of one set: shrinkage gone, and true loadings inside twice as often as they were outside."""
    rng = np.random.default_rng(3)
    z, w = rng.normal(size=(250, 2)), (rng.random((120, 2)) < 0.5) * rng.normal(size=(120, 2))
    y = (rng.random((250, 120)) < 1 / (1 + np.exp(-z @ w.T))).astype(np.int8)
    data = write_dataset(tmp_path / "d.zarr", {"v": y}, {"v": "bernoulli"})
    found = fit(data, SparseGFA(n_factors=2), seed=1, progress=False)
    r = np.corrcoef(z.T, found.variable("scores").values.T)[:2, 2:]
    order = np.abs(r).argmax(axis=1)
    truth = w * np.sign(r[[0, 1], order])
    sure = found.variable("inclusion_v").values[:, order] > 0.95
    parts = {}
    for prefix in ("", "corrected_"):
        mean = found.variable(f"{prefix}loadings_v").values[:, order]
        name = "corrected_loadings_sd_v" if prefix else "loadings_variance_v"
        sd = found.variable(name).values[:, order] ** (1.0 if prefix else 0.5)
        slope = (truth * mean)[sure].sum() / (mean[sure] ** 2).sum()
        parts[prefix] = slope, (np.abs(truth - mean) < 1.96 * sd)[sure].mean()
    assert parts[""][0] > 1.05
    assert abs(parts["corrected_"][0] - 1.0) < 0.05
    assert parts["corrected_"][1] > 0.9 > parts[""][1]
