"""The objective equals a Monte Carlo average of log p - log q over draws from q."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import betaln, gammaln

from factorflow.models.sparse_gfa.pseudo_data import expected_scores
from factorflow.models.sparse_gfa.stored_scores import apply_transform

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


def _one_draw(rng, problem, local, globals_, tools):
    """Return log p - log q at one draw."""
    settings, data = problem.settings, problem.block.data
    z, s = expected_scores(local)
    scores, log_q = _normal(rng, z, tools.full(z, s))
    total = -0.5 * (scores**2).sum() - 0.5 * scores.size * np.log(2 * np.pi) - log_q
    for view in settings.views:
        weights, shared = globals_.weights[view.name], globals_.views[view.name]
        total += _draw_view(rng, settings, view, data[view.name], scores, weights, shared, globals_, tools)
    return total


def _draw_view(rng, settings, view, values, scores, weights, shared, globals_, tools):
    priors, fixed = settings.priors, globals_.fixed[view.name]
    alpha, log_q = _gamma(rng, shared.alpha_shape, shared.alpha_rate)
    total = _log_prior_gamma(alpha, view.alpha_prior) - log_q
    if weights.inclusion is None:
        w, log_q = _normal(rng, weights.mean, tools.full(weights.mean, weights.variance))
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
    if not view.is_gaussian:
        seen = ~np.isnan(values) if view.is_scaled else values >= 0
        values = values / fixed.scale
        total -= (seen * np.log(fixed.scale)).sum()
        phi = weights.phi.T
        total -= 0.5 * ((phi - view.density.phi_mean) ** 2).sum() / view.density.phi_sd**2
        return (
            total
            + np.where(seen, tools.log_density(view.likelihood, np.where(seen, values, 0.0), x, phi), 0).sum()
        )
    observed = ~np.isnan(values)
    tau, log_q = _gamma(rng, weights.noise_shape[:, 0], weights.noise_rate[:, 0])
    total += _log_prior_gamma(tau, priors.noise) - log_q
    entry = _log_normal(values / fixed.scale, x, 1 / np.sqrt(tau)) - np.log(fixed.scale)
    return total + np.where(observed, entry, 0).sum()


CASES = {
    "gaussian": (("gaussian", "gaussian"), {}, 0.0),
    "binary": (("gaussian", "bernoulli"), {"bound": False}, 1e-3),
    "poisson": (("gaussian", "poisson"), {}, 3e-3),
    "negative binomial": (
        ("gaussian", "poisson"),
        {"likelihoods": "negative_binomial", "bound": False},
        3e-3,
    ),
    "binomial": (("gaussian", "poisson"), {"likelihoods": "binomial(trials=60)", "bound": False}, 3e-3),
}
"""Views, options, and by how much of the objective what q(x) = N(m, v) takes for normal may differ."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("missing", "sparse"),
    [
        ("none", False),
        ("scattered", True),
        pytest.param("none", True, marks=pytest.mark.slow),
        pytest.param("scattered", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_objective_equals_monte_carlo(tools, case, missing, sparse):
    """Within 4 standard errors (false alarms: 6e-5 a case), and what the distribution of x makes of it."""
    likelihoods, options, share = CASES[case]
    problem = tools.Problem(likelihoods, missing, **options)
    for _ in range(16):
        objective = problem.iterate()
    if sparse:
        problem.initialize_sparse()
        for _ in range(8):
            objective = problem.iterate()
    local, globals_ = apply_transform(problem.local, problem.globals_), problem.globals_
    rng = np.random.default_rng(1)
    draws = np.array([_one_draw(rng, problem, local, globals_, tools) for _ in range(N_DRAWS)])
    error = draws.std() / np.sqrt(N_DRAWS)
    assert abs(draws.mean() - objective) < 4 * error + share * abs(objective)
    assert 4 * error < 3e-3 * abs(objective)
