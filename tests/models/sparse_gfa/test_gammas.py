"""Gamma variables of the sampler: their distribution, and what data say with them integrated out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, special, stats

from factorflow.kernels.random import Step
from factorflow.models.sparse_gfa.kernels.draws import draw_gammas, gamma_marginals


@pytest.mark.parametrize("shape", [0.5, 0.97, 1.0, 1.6, 30.0, 2000.0])
def test_draws(shape: float) -> None:
    n = 1_000_000
    drawn = draw_gammas(Step(3), 5, np.arange(n), np.full(n, shape))
    assert stats.kstest(drawn, stats.gamma(shape).cdf).pvalue > 1e-3
    assert abs(drawn.mean() - shape) < 4.5 * np.sqrt(shape / n)


def test_draws_are_those_of_their_numbers() -> None:
    shapes = np.linspace(0.3, 40.0, 50)
    whole = draw_gammas(Step(3), 5, np.arange(50), shapes)
    assert np.array_equal(whole[20:30], draw_gammas(Step(3), 5, np.arange(20, 30), shapes[20:30]))
    for other in (Step(4), Step(3, 1), Step(3, 0, 1)):
        assert not (whole == draw_gammas(other, 5, np.arange(50), shapes)).any()
    assert not (whole == draw_gammas(Step(3), 6, np.arange(50), shapes)).any()


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "apart"])
def test_marginals_are_integrals(alike: bool) -> None:
    """p of x^h exp(-r x), x ~ Ga(a, a s u), by quadrature; log Gammas are left out."""
    halves, rates = np.array([2.0, 2.0, 2.0 if alike else 3.5]), np.array([0.4, 3.0, 1.2])
    shapes, scales = np.array([0.5, 7.0]), np.array([0.3, 2.0])
    units = np.array([[1.0, 1.0, 1.0], [0.2, 3.0, 1.1]])
    found = gamma_marginals(halves, rates, shapes, scales, units, np.log(units).sum(axis=1))
    for i, p in np.ndindex(2, 2):
        (a, s), expected = (shapes[i], scales[p]), 0.0
        for h, r, u in zip(halves, rates, units[p], strict=True):
            prior = stats.gamma(a, scale=1.0 / (a * s * u))

            def integrand(x: float, h: float = h, r: float = r, prior: object = prior) -> float:
                return float(x**h * np.exp(-r * x) * prior.pdf(x))  # type: ignore[attr-defined]

            expected += np.log(integrate.quad(integrand, 0.0, np.inf)[0])
            expected -= special.gammaln(a + h) - special.gammaln(a)
        assert found[i, p] == pytest.approx(expected)


@pytest.mark.parametrize(("n", "alike"), [(0, 5), (1, 5), (5000, 5), (5000, 5000)])
def test_marginals_of_many_features(n: int, alike: int) -> None:
    """More than a product of doubles holds, alike and not, of rates from tiny to huge."""
    rng = np.random.default_rng(1)
    halves = np.repeat(rng.integers(1, 90, n // alike + 1) / 2.0, alike)[:n]
    rates = np.exp(9.0 * rng.normal(size=n))
    units, shapes, scales = np.exp(rng.normal(size=(2, n))), np.array([0.5, 3.0, 128.0]), np.array([0.1, 4.0])
    prior = shapes[:, None, None] * (scales[:, None] * units)
    expected = -(halves * np.log(prior + rates) + shapes[:, None, None] * np.log1p(rates / prior)).sum(axis=2)
    np.testing.assert_allclose(
        gamma_marginals(halves, rates, shapes, scales, units, np.log(units).sum(axis=1)), expected, rtol=1e-11
    )
