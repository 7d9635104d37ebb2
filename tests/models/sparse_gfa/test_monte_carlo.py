"""The bound equals a Monte Carlo average of log p - log q over draws from q."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import betaln, expit, gammaln

from factorflow.models.sparse_gfa.pseudo import expected_scores

N_DRAWS = 1500


def _log_normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)


def _log_gamma(x, shape, rate):
    return np.sum(shape * np.log(rate) - gammaln(shape) + (shape - 1) * np.log(x) - rate * x)


def _log_beta(x, on, off):
    return np.sum((on - 1) * np.log(x) + (off - 1) * np.log1p(-x) - betaln(on, off))


def _normal(rng, mean, covariance):
    """Draw rows of N(mean_i, covariance_i), with log densities."""
    factor = np.linalg.cholesky(covariance)
    noise = rng.standard_normal(mean.shape)
    draw = mean + np.einsum("nij,nj->ni", factor, noise)
    logdet = 2 * np.log(np.einsum("nii->ni", factor)).sum(axis=1)
    return draw, -0.5 * (noise**2).sum() - 0.5 * logdet.sum() - 0.5 * mean.size * np.log(2 * np.pi)


def _gamma(rng, shape, rate):
    draw = rng.gamma(shape) / rate
    return draw, _log_gamma(draw, shape, rate)


def _log_prior_gamma(x, prior):
    return _log_gamma(x, *prior)


def _one_draw(rng, problem, local, globals_, full):
    """Return log p - log q at one draw."""
    settings, data = problem.settings, problem.block.data
    z, s = expected_scores(local)
    scores, log_q = _normal(rng, z, full(z, s))
    total = -0.5 * (scores**2).sum() - 0.5 * scores.size * np.log(2 * np.pi) - log_q
    for view in settings.views:
        weights, shared = globals_.weights[view.name], globals_.views[view.name]
        total += _draw_view(rng, settings, view, data[view.name], scores, weights, shared, globals_, full)
    return total


def _draw_view(rng, settings, view, values, scores, weights, shared, globals_, full):
    priors, fixed = settings.priors, globals_.fixed[view.name]
    alpha, log_q = _gamma(rng, shared.alpha_shape, shared.alpha_rate)
    total = _log_prior_gamma(alpha, view.alpha_prior) - log_q
    if weights.inclusion is None:
        w, log_q = _normal(rng, weights.mean, full(weights.mean, weights.variance))
        total += np.sum(_log_normal(w, 0, 1 / np.sqrt(alpha))) - log_q
    else:
        theta = rng.beta(shared.theta_on, shared.theta_off)
        total += _log_beta(theta, *priors.theta)
        total -= _log_beta(theta, shared.theta_on, shared.theta_off)
        on = rng.random(weights.mean.shape) < weights.inclusion
        slab = weights.mean + np.sqrt(weights.variance) * rng.standard_normal(weights.mean.shape)
        w = on * slab
        g = np.clip(weights.inclusion, 1e-300, 1 - 1e-16)
        total += np.sum(np.where(on, np.log(theta) - np.log(g), np.log1p(-theta) - np.log1p(-g)))
        slab_terms = _log_normal(slab, 0, 1 / np.sqrt(alpha))
        slab_terms -= _log_normal(slab, weights.mean, np.sqrt(weights.variance))
        total += np.sum(on * slab_terms)
    m = shared.intercept_mean + np.sqrt(shared.intercept_mean_variance) * rng.standard_normal()
    total += _log_normal(m, 0, 1 / np.sqrt(priors.intercept_mean))
    total -= _log_normal(m, shared.intercept_mean, np.sqrt(shared.intercept_mean_variance))
    precision, log_q = _gamma(rng, shared.intercept_shape, shared.intercept_rate)
    total += _log_prior_gamma(precision, priors.intercept) - log_q
    level = weights.intercept + fixed.reference / fixed.scale
    b = level + np.sqrt(weights.intercept_variance) * rng.standard_normal(len(level))
    total += np.sum(_log_normal(b, m, 1 / np.sqrt(precision)))
    total -= np.sum(_log_normal(b, level, np.sqrt(weights.intercept_variance)))
    x = b + scores @ w.T
    values = values.astype(float)
    observed = ~np.isnan(values)
    tau, log_q = _gamma(rng, weights.noise_shape[:, 0], weights.noise_rate[:, 0])
    total += _log_prior_gamma(tau, priors.noise) - log_q
    entry = _log_normal(values / fixed.scale, x, 1 / np.sqrt(tau)) - np.log(fixed.scale)
    return total + np.where(observed, entry, 0).sum()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("missing", ["none", "scattered"])
def test_bound_equals_monte_carlo(tools, missing, sparse):
    """Gaussian views: within 4 standard errors (false alarms: 6e-5 a case)."""
    problem = tools.Problem(("gaussian", "gaussian"), missing)
    for _ in range(5):
        objective = problem.iterate()
    if sparse:
        problem.enter_sparse()
        for _ in range(5):
            objective = problem.iterate()
    from factorflow.kernels.linalg import unpack

    def full(mean, spread):
        k = mean.shape[1]
        if spread.shape[1] == k:
            return np.stack([np.diag(row) for row in np.broadcast_to(spread, mean.shape)])
        return unpack(np.ascontiguousarray(np.broadcast_to(spread, (len(mean), spread.shape[1]))), k)

    rng = np.random.default_rng(1)
    draws = np.array([_one_draw(rng, problem, problem.local, problem.globals_, full) for _ in range(N_DRAWS)])
    error = draws.std() / np.sqrt(N_DRAWS)
    assert abs(draws.mean() - objective) < 4 * error


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson"])
@pytest.mark.parametrize("bernoulli", ["jaakkola", "boehning"])
def test_likelihood_bounds_lie_below_the_expected_log_likelihood(tools, likelihood, bernoulli):
    """E_q[log p(y | x)] by quadrature over q(x), which is not Gaussian but has the moments used here."""
    if likelihood == "poisson" and bernoulli == "boehning":
        pytest.skip("the option is about binary views")
    rng = np.random.default_rng(0)
    nodes, quadrature = np.polynomial.hermite_e.hermegauss(80)
    quadrature = quadrature / quadrature.sum()
    mean, sd = rng.normal(0, 3, (20, 30)), rng.uniform(0.05, 2, (20, 30))
    x = mean[..., None] + sd[..., None] * nodes
    from factorflow.models.sparse_gfa.kernels import products as gfa

    if likelihood == "bernoulli":
        y = (rng.random(mean.shape) < 0.5).astype(np.int8)
        exact = (np.where(y[..., None] > 0, -np.logaddexp(0, -x), -np.logaddexp(0, x)) * quadrature).sum()
        if bernoulli == "jaakkola":
            u, r, free = gfa.pseudo_jaakkola(y, mean**2 + sd**2)
            bound = free + (r * mean - 0.5 * u * (mean**2 + sd**2)).sum()
        else:
            pseudo, free = gfa.pseudo_boehning(y, mean)
            bound = free + (0.25 * pseudo * mean - 0.125 * (mean**2 + sd**2)).sum()
    else:
        y = rng.poisson(np.logaddexp(0, mean)).astype(float)
        rate = np.logaddexp(0, x)
        exact = ((y[..., None] * np.log(rate) - rate) * quadrature).sum()
        u, r, free = gfa.pseudo_poisson(y, mean)
        bound = free + (r * mean - 0.5 * u * (mean**2 + sd**2)).sum()
    assert bound < exact
    assert bound > exact - 0.35 * mean.size * 4


def test_softplus_curvature_bound():
    """kappa = 1/4 + 0.17 y bounds the curvature of -log p(y | x) everywhere."""
    x = np.linspace(-30, 30, 200_001)
    s, rate = expit(x), np.logaddexp(0, x)
    second = s * (1 - s)
    log_rate_second = second / rate - (s / rate) ** 2
    assert second.max() <= 0.25
    assert (-log_rate_second).max() < 0.17
    assert gammaln(1.0) == 0.0
