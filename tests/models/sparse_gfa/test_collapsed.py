"""Draws of sparse GFA with intercepts and noise precisions integrated out: against quadrature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from joint import VARIANCES, D, N, observe, prior, settings_of
from scipy import special, stats

from factorflow.core.block import Block
from factorflow.kernels.random import Step
from factorflow.models.sparse_gfa.kernels.draws import draw_gammas
from factorflow.models.sparse_gfa.sampler import pooled
from factorflow.models.sparse_gfa.sampler.collapsed import NOISE_SITE, draw_collapsed, draw_level
from factorflow.models.sparse_gfa.sampler.gibbs import GibbsSweep
from factorflow.models.sparse_gfa.sampler.gibbs_state import DrawnView, ResidualSums
from factorflow.models.sparse_gfa.settings import Priors


def _agree(found: Any, expected: Any) -> None:
    """Means over 30 batches of a chain are within 4.5 standard errors of what they should be."""
    batches = np.array(found, float).reshape(30, -1, len(expected)).mean(axis=1)
    score = (batches.mean(axis=0) - expected) / (batches.std(axis=0, ddof=1) / np.sqrt(30))
    assert np.abs(score).max() < 4.5, score


def test_levels_match_quadrature() -> None:
    """m and lambda given what entries say of the intercepts, one of which has no entries."""
    told = ResidualSums(np.array([4.0, 9.0, 0.0, 2.0]), np.array([3.0, -6.0, 0.0, 2.5]), np.zeros(4))
    tau, b, priors = (
        np.array([0.7, 2.0, 1.0, 1.5]),
        np.array([0.5, 1.0, -2.0, 0.1]),
        Priors(intercept=(2.0, 3.0), intercept_mean=0.4),
    )
    seen = told.count > 0.0
    said = (b + told.slope / np.maximum(told.count, 1.0))[seen]
    lam, m = np.geomspace(1e-4, 60.0, 1500)[:, None, None], np.linspace(-7.0, 7.0, 801)[:, None]
    spread = np.sqrt(1.0 / lam + 1.0 / (tau * told.count)[seen])
    log = stats.norm.logpdf(said, m, spread).sum(axis=2) - 0.5 * 0.4 * m[:, 0] ** 2
    density = special.softmax(log + 2.0 * np.log(lam[:, :, 0]) - 3.0 * lam[:, :, 0])
    of_lam, of_m = density.sum(axis=1), density.sum(axis=0)
    logs = np.log(lam[:, 0, 0])
    expected = [
        of_lam @ logs,
        of_lam @ logs**2,
        of_m @ m[:, 0],
        of_m @ m[:, 0] ** 2,
        logs @ density @ m[:, 0],
    ]
    rng, now, found = np.random.default_rng(1), DrawnView(np.ones(1), np.ones(1), 3.0, 0.2, None), []
    for _ in range(6000):
        now = draw_level(told, b, tau, now, priors, rng.random(1 + 2 * pooled.N_TRIES))
        log_lam, mean = np.log(now.intercept_precision), now.intercept_mean
        found.append([log_lam, log_lam**2, mean, mean**2, log_lam * mean])
    _agree(found, expected)


@pytest.mark.thorough
def test_prior_of_noise_matches_quadrature_over_precisions() -> None:
    """a, gamma and s given residuals, whatever the noise precisions, against sums over tau itself."""
    variances, level = np.array([0.03, 0.5, 0.2]), 2.0
    halves, rates = np.array([1.5, 4.0, 4.0]), np.array([0.6, 9.0, 3.0])
    s, log_tau = np.geomspace(1e-4, 15.0, 400)[:, None, None], np.linspace(-9.0, 6.0, 500)
    log = np.empty((len(pooled.ALIKE), len(pooled.POWERS), len(s)))
    for i, a in enumerate(pooled.ALIKE):
        for j, power in enumerate(pooled.POWERS):
            rate = a * s * level * (variances[:, None] / level) ** power
            inside = a * np.log(rate) - special.gammaln(a) + (a + halves[:, None]) * log_tau
            inside = special.logsumexp(inside - (rate + rates[:, None]) * np.exp(log_tau), axis=2)
            log[i, j] = inside.sum(axis=1) - s[:, 0, 0] + np.log(s[:, 0, 0])
    density, logs = special.softmax(log), np.log(s[:, 0, 0])
    of_s = density.sum(axis=(0, 1))
    expected = [density.sum(axis=(1, 2)) @ np.log(pooled.ALIKE), density.sum(axis=(0, 2)) @ pooled.POWERS]
    expected += [of_s @ logs, of_s @ logs**2, density.sum(axis=0)[2] @ logs]
    rng, now, found = np.random.default_rng(2), pooled.NoisePrior(1.0, 0.1, 0.0, level), []
    for _ in range(6000):
        uniform = rng.random(1 + 2 * pooled.N_TRIES)
        now = pooled.redrawn_noise_prior(halves, rates, variances, now, uniform)
        log_s = np.log(now.mean)
        found.append([np.log(now.shape), now.power, log_s, log_s**2, log_s * (now.power == 1.0)])
    _agree(found, expected)


def test_prior_of_slabs_matches_quadrature_over_precisions() -> None:
    """c and t given loadings, whatever alpha: a marginal t distribution of each factor's loadings."""
    halves, rates = np.array([1.0, 0.0, 4.5]), np.array([0.4, 0.0, 6.0])
    t, c = np.geomspace(1e-4, 15.0, 4000), pooled.ALIKE[:, None]
    log = -t + np.log(t) + np.zeros((len(c), 1))
    for half, rate in zip(halves, rates, strict=True):  # Lomax: E exp(-rate alpha) alpha^half
        log = log + special.gammaln(c + half) - special.gammaln(c)
        log = log + c * np.log(c * t) - (c + half) * np.log(c * t + rate)
    density = special.softmax(log)
    logs, of_t = np.log(t), density.sum(axis=0)
    expected = [density.sum(axis=1) @ np.log(pooled.ALIKE), of_t @ logs, of_t @ logs**2]
    rng, now, found = np.random.default_rng(3), pooled.SlabPrior(1.0, 1.0), []
    for _ in range(6000):
        now = pooled.redrawn_slab_prior(halves, rates, now, rng.random(1 + 2 * pooled.N_TRIES))
        found.append([np.log(now.shape), np.log(now.mean), np.log(now.mean) ** 2])
    _agree(found, expected)


@pytest.fixture
def swept() -> tuple[Any, Any, Any, Any, Any, Any]:
    """Return settings, globals, entries, scores, weights and sums of a sweep, with entries missing."""
    settings, rng = (
        settings_of(("gaussian", "bernoulli"), groups=False),
        np.random.default_rng(6),
    )
    sweep, (z, g) = GibbsSweep(settings, keep=False), prior(rng, settings)
    data, g = observe(rng, settings, z, g, rng.random((N, D)) < 0.2)
    step = Step(5, 0, 3)
    local, stats = sweep.map(Block(0, 0, N, 1, data), None, sweep.prepare(g), step)
    found = {name: sweep.features(name, range(D), g, stats, step) for name in data}
    parts, sums = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
    return settings, g, data, local.values, parts, sums


@pytest.mark.thorough
def test_what_entries_say_is_theirs(swept: Any) -> None:
    """Counts, residuals and their squares, and what becomes of them when intercepts move."""
    _, _, data, z, parts, _ = swept
    part, moved = parts["v0"], np.array([0.3, -1.0, 0.0, 2.0])
    left = data["v0"] - z @ part.loadings.T - part.coefficients[:, 0]
    for told, shift in ((part.residual_sums, 0.0), (part.residual_sums.shifted(moved), moved)):
        np.testing.assert_allclose(told.count, np.isfinite(left).sum(axis=0))
        np.testing.assert_allclose(told.slope, np.nansum(left - shift, axis=0), atol=1e-9)
        np.testing.assert_allclose(told.squares, np.nansum((left - shift) ** 2, axis=0), atol=1e-9)
    assert not parts["v1"].residual_sums.squares.any()


def test_intercepts_are_drawn_on_the_scale_of_the_model(swept: Any) -> None:
    """Whatever they are stored relative to; sums go with what was drawn, and every feature has its noise."""
    settings, g, data, z, parts, sums = swept
    shared, step = g.shared, Step(5, 0, 3)
    weights, summed, views = draw_collapsed(settings, g, parts, shared, step)
    place = np.array([3.0, -1.0, 0.5, 40.0])
    fixed, moved = dict(g.fixed), dict(parts)
    for name, part in parts.items():
        fixed[name] = replace(g.fixed[name], reference=2.0 * place, scale=np.full(D, 2.0))
        coefficients = part.coefficients.copy()
        coefficients[:, 0] -= place
        moved[name] = replace(part, coefficients=coefficients)
    others = draw_collapsed(settings, replace(g, fixed=fixed), moved, shared, step)
    for name, mine in weights.items():
        theirs, w, b = others[0][name], mine.loadings, mine.coefficients[:, 0]
        np.testing.assert_allclose(theirs.coefficients[:, 0] + place, b)
        np.testing.assert_array_equal(w, parts[name].loadings)
        assert np.abs(b - parts[name].coefficients[:, 0]).min() > 1e-6
        found = summed[name].coefficients[0], summed[name].coefficient_squares[0]
        np.testing.assert_allclose(found, (b.sum(), (b**2).sum()))
        np.testing.assert_allclose(summed[name].reading[0], b @ w)
    noise = pooled.NoiseSums.of(weights["v0"].precision[:, 0], VARIANCES, views.views["v0"].noise)
    np.testing.assert_allclose(summed["v0"].noise.precisions, noise.precisions)
    assert np.abs(weights["v0"].precision - parts["v0"].precision).min() > 1e-6
    left = data["v0"] - z @ weights["v0"].loadings.T - weights["v0"].coefficients[:, 0]
    halves, rates = np.isfinite(left).sum(axis=0) / 2.0, np.nansum(left**2, axis=0) / 2.0
    rates += views.views["v0"].noise.rates(VARIANCES)  # residuals of the intercepts that were just drawn
    drawn = draw_gammas(step, NOISE_SITE, np.arange(D), views.views["v0"].noise.shape + halves)
    np.testing.assert_allclose(weights["v0"].precision[:, 0], drawn / rates)
