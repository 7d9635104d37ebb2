"""Intervals of loadings: what scores and other loadings leave open, against likelihoods and simulations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from factorflow import fit, write_dataset
from factorflow.kernels.linalg import pack, unpack
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.intervals import Spread, _common, _variance, corrected_moments
from factorflow.models.sparse_gfa.stored_scores import apply_transform


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
    found = _common(globals_, {"v": w != 0}, {"v": w}, {"v": u}, spread)["v"]
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


def test_the_information_of_features_is_read_off_q(tools: Any) -> None:
    """That of each entry times E z z', with no pass over the data; loadings that are likely 0 are q's own."""
    problem = tools.Problem(("gaussian", "gaussian"), ard_prior=(100.0, 10.0))  # not beside nothing
    for passes in (10, 90):
        for _ in range(passes):
            problem.iterate()
        if passes == 10:
            problem.initialize_sparse()
    globals_, local = problem.globals_, apply_transform(problem.local, problem.globals_)
    n, k = local.mean.shape
    covariance = unpack(np.broadcast_to(local.variance, (n, 6)), 3)
    z = np.concatenate([local.mean, np.ones((n, 1))], axis=1)
    second = z.T @ z
    second[:k, :k] += covariance.sum(axis=0)
    spread = Spread(pack(second), pack(covariance.sum(axis=0)), float(n), k)
    found = corrected_moments(problem.settings, globals_, spread)
    on, mean, average, own = {}, {}, {}, {}
    for name, weights in globals_.weights.items():
        tau, view = (weights.noise_shape / weights.noise_rate)[:, 0], globals_.views[name]
        on[name] = weights.inclusion > 0.5
        mean[name], average[name] = np.where(on[name], weights.mean, 0.0), tau
        prior = np.append(view.alpha, view.intercept_shape / view.intercept_rate)
        active, count = np.append(on[name], np.ones((len(tau), 1), bool), axis=1), np.full(len(tau), float(n))
        own[name] = _variance(tau[:, None, None] * second, prior, active, mean[name], count, spread)
    common = _common(globals_, on, mean, average, spread)
    for name, weights in globals_.weights.items():
        gamma = weights.inclusion
        mixed = gamma * (own[name] + common[name]) + gamma * (1.0 - gamma) * mean[name] ** 2
        usual = gamma * weights.variance + gamma * (1.0 - gamma) * weights.mean**2
        assert 0 < on[name].sum() < on[name].size
        np.testing.assert_allclose(found[name].mean, gamma * weights.mean, rtol=1e-12)
        np.testing.assert_allclose(found[name].variance, np.where(on[name], mixed, usual), rtol=0.02)
        assert (found[name].variance >= usual * (1.0 - 1e-9))[on[name]].all()


def test_intervals_of_binary_loadings(tmp_path: Any) -> None:
    """Of one set: no shrinkage, and true loadings are inside more often than in the intervals of q."""
    rng = np.random.default_rng(3)
    z, w = rng.normal(size=(250, 2)), (rng.random((120, 2)) < 0.5) * rng.normal(size=(120, 2))
    y = (rng.random((250, 120)) < 1 / (1 + np.exp(-z @ w.T))).astype(np.int8)
    data = write_dataset(tmp_path / "d.zarr", {"v": y}, {"v": "bernoulli"})
    parts = {}
    for bound in (False, True):
        found = fit(data, SparseGFA(n_factors=2, bound=bound), seed=1, progress=False)
        r = np.corrcoef(z.T, found.variable("scores").values.T)[:2, 2:]
        order = np.abs(r).argmax(axis=1)
        truth = w * np.sign(r[[0, 1], order])
        sure = found.variable("inclusion_v").values[:, order] > 0.95
        for prefix in ("", "corrected_"):
            mean = found.variable(f"{prefix}loadings_v").values[:, order]
            name = "corrected_loadings_sd_v" if prefix else "loadings_variance_v"
            sd = found.variable(name).values[:, order] ** (1.0 if prefix else 0.5)
            slope = (truth * mean)[sure].sum() / (mean[sure] ** 2).sum()
            parts[bound, prefix] = slope, (np.abs(truth - mean) < 1.96 * sd)[sure].mean()
    assert abs(parts[False, ""][0] - 1.0) < 0.04
    assert abs(parts[False, "corrected_"][0] - 1.0) < 0.04
    assert parts[True, ""][0] > 1.05  # a bound makes them smaller
    assert parts[False, "corrected_"][1] > 0.93
    assert parts[True, "corrected_"][1] > parts[True, ""][1] + 0.03  # q takes scores for known
