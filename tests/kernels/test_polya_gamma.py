"""Polya-Gamma draws: the distribution and its quantiles against quadrature, draws against these."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from factorflow.kernels import jacobi
from factorflow.kernels.compile import compile_scalar
from factorflow.kernels.polya_gamma import draw_weights
from factorflow.kernels.random import Step


def density(t: float, z: float) -> float:
    return float(jacobi.distribution(t, z)[2])


@pytest.mark.parametrize("z", [0.0, 0.3, 1.4, 5.0, 15.9])
def test_distribution(z: float) -> None:
    """Its Laplace transform is that of J*(1, z), its probabilities are integrals of the density."""
    edges = np.array([0.0, 0.03, jacobi.CUT, 0.3, 1.0, 3.0, 40.0])
    for s in (0.0, 0.5, 4.0, 60.0):  # E exp(-s J) = cosh(z) / cosh((z^2 + 2 s)^1/2)

        def tilted(t: float, s: float = s) -> float:
            return float(np.exp(-s * t)) * density(t, z) if t > 0.0 else 0.0

        parts = [integrate.quad(tilted, *pair, epsabs=0.0)[0] for pair in zip(edges, edges[1:], strict=False)]
        assert np.isclose(sum(parts), np.cosh(z) / np.cosh(np.sqrt(z**2 + 2.0 * s)), rtol=1e-10)
        if s == 0.0:
            for edge, below, above in zip(
                edges[1:5], np.cumsum(parts), np.cumsum(parts[:0:-1])[::-1], strict=False
            ):
                assert np.allclose(jacobi.distribution(edge, z)[:2], (below, above), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_quantiles_have_their_probabilities(side: str) -> None:
    """In all parts of the table, down to the smallest probability that noise can have."""
    quantile, table, rng = compile_scalar(jacobi.quantile), jacobi.table(), np.random.default_rng(0)
    exponents = np.concatenate([np.repeat(np.arange(2, 54), 8), np.full(200, 2)])
    p = np.ldexp(np.ceil(np.ldexp(1.0 + rng.random(len(exponents)), 53 - exponents)), -53)  # 1 - p is exact
    for place in (0, 1, 2, 7, 30, len(table) - 1):
        z = place * jacobi.STEP
        for share in p[p < 0.5]:
            upper = side == "upper"
            t = quantile(1.0 - share if upper else share, place, table)
            found = jacobi.distribution(t, z)[int(upper)]
            assert abs(found / share - 1.0) < 1e-10 + (1e-14 / share if t < jacobi.CUT and upper else 0.0)


@pytest.mark.parametrize("x", [0.0, 0.7, 3.0, -12.0, 31.9, 80.0])
def test_moments(x: float) -> None:
    n = 40_000
    drawn, half, loglikelihood = draw_weights(
        np.ones((n, 1), np.int8), np.full((n, 1), x), np.arange(n), (1, 0), Step(1), 2
    )
    size = abs(x)
    mean = 0.25 if x == 0 else np.tanh(size / 2) / (2 * size)
    variance = 1 / 24 if x == 0 else (np.sinh(size) - size) / (4 * size**3 * np.cosh(size / 2) ** 2)
    assert abs(drawn.mean() - mean) < 4.5 * np.sqrt(variance / n)
    assert abs(drawn.var() / variance - 1) < 0.12
    for t in (0.5, 4.0):  # E exp(-omega t) = cosh(x / 2) / cosh((x^2 / 4 + t / 2)^1/2)
        known = np.cosh(x / 2) / np.cosh(np.sqrt(x**2 / 4 + t / 2))
        made = np.exp(-t * drawn)
        assert abs(made.mean() - known) < 4.5 * made.std() / np.sqrt(n)
    assert (half == 0.5).all()
    assert np.isclose(loglikelihood, n * -np.log1p(np.exp(-x)))


@pytest.mark.parametrize("z", [0.0, 0.24, 0.26, 1.1, 4.9, 15.99])
def test_draws_have_the_distribution(z: float) -> None:
    """At places of the table and between them, at its start and its end."""
    n = 20_000
    drawn, _, _ = draw_weights(np.ones((n, 1)), np.full((n, 1), 2.0 * z), np.arange(n), (1, 0), Step(8), 3)
    assert stats.kstest(4.0 * drawn[:, 0], np.vectorize(lambda t: below(t, z))).pvalue > 1e-3


@pytest.mark.parametrize("z", [0.249, 1.249, 4.99])
def test_means_of_many_draws(z: float) -> None:
    """Just below a place of the table, where most first tries are refused."""
    n, d = 40_000, 100
    x = np.full((n, d), 2.0 * z)
    drawn, _, _ = draw_weights(np.ones((n, d)), x, np.arange(n), (d, 0), Step(2), 3)
    variance = (np.sinh(2.0 * z) - 2.0 * z) / (32.0 * z**3 * np.cosh(z) ** 2)
    assert abs(drawn.mean() - np.tanh(z) / (4.0 * z)) < 4.5 * np.sqrt(variance / (n * d))


def below(t: float, z: float) -> float:
    return float(jacobi.distribution(t, z)[0])


@pytest.mark.parametrize("x", [32.0, 90.0, -1e4])
def test_draws_beyond_the_table(x: float) -> None:
    """An inverse Gaussian of mean 1 / z and shape 1."""
    n, z = 20_000, abs(x) / 2.0
    drawn, _, _ = draw_weights(np.ones((n, 1)), np.full((n, 1), x), np.arange(n), (1, 0), Step(8), 3)
    assert stats.kstest(4.0 * drawn[:, 0], stats.invgauss(1.0 / z, scale=1.0).cdf).pvalue > 1e-3
    assert np.isfinite(drawn).all()


def test_log_likelihood_of_many_entries() -> None:
    """Of rows whose product of 1 + exp(-|x|) is beyond what a double holds, and without what is missing."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(size=(2, 1800)) * 1e-3, rng.normal(size=(2, 1800)) * 9.0])
    y = rng.integers(-1, 2, x.shape).astype(np.int8)
    expected = np.where(y < 0, 0.0, y * x - np.logaddexp(0.0, x)).sum()
    found = draw_weights(y, x, np.arange(4), (1800, 0), Step(1), 2)[2]
    assert np.isclose(found, expected, rtol=1e-13)


def test_predictors_that_are_not_finite_stay_so() -> None:
    x = np.array([[np.nan, np.inf, 0.5]])
    drawn = draw_weights(np.ones((1, 3)), x, np.arange(1), (3, 0), Step(1), 2)[0][0]
    assert not np.isfinite(drawn[0])
    assert drawn[1] >= 0.0 or np.isnan(drawn[1])
    assert np.isfinite(drawn[2])


def test_draws_are_keyed_by_the_entry() -> None:
    values, x = np.ones((6, 5), np.int8), np.linspace(-3, 3, 30).reshape(6, 5)
    whole = draw_weights(values, x, np.arange(6), (7, 2), Step(1), 2)[0]
    part = draw_weights(values[4:], x[4:], np.arange(4, 6), (7, 2), Step(1), 2)[0]
    assert np.array_equal(whole[4:], part)
    values[1, 2] = -1
    precision, half, _ = draw_weights(values, x, np.arange(6), (7, 2), Step(1), 2)
    assert precision[1, 2] == half[1, 2] == 0.0
    assert (np.delete(precision, 7) == np.delete(whole, 7)).all()
