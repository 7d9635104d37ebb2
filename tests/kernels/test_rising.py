"""Rising factorials of counts, and what a dispersion follows from."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln

from factorflow.kernels.rising import derivatives, log_rising
from factorflow.likelihoods.negative_binomial import NegativeBinomial


def exact(y: np.ndarray, log_r: np.ndarray) -> np.ndarray:
    r = np.exp(log_r)
    return np.asarray(gammaln(y + r) - gammaln(r) - gammaln(y + 1.0))


@pytest.mark.parametrize("most", [4, 60, 10_000])
@pytest.mark.parametrize("shape", [(), (40,), (1, 40), (50, 1), (50, 40)])
def test_logarithms(most: int, shape: tuple[int, ...]) -> None:
    """Of small counts, multiplied out, and of large ones; of zeros exactly none."""
    rng = np.random.default_rng(0)
    y, log_r = rng.integers(0, most, (50, 40)).astype(np.float64), rng.uniform(-4.0, 6.0, shape)
    out = log_rising(y, log_r)
    np.testing.assert_allclose(out, exact(y, log_r), rtol=1e-9, atol=1e-9)
    assert (out[y == 0.0] == 0.0).all()
    assert log_rising(np.zeros(0), np.zeros(0)).shape == (0,)
    assert np.isnan(log_rising(np.array([np.nan, 1.0]), np.zeros(2))).tolist() == [True, False]


@pytest.mark.parametrize("most", [4, 60, 10_000])
def test_derivatives_are_those_of_the_expected_log_likelihood(most: int) -> None:
    rng = np.random.default_rng(1)
    y, step = rng.integers(0, most, (30, 20)).astype(np.float64), 1e-3
    m, v = rng.normal(0.0, 1.0, y.shape), rng.uniform(0.01, 1.0, y.shape)
    phi, density = rng.uniform(-1.0, 2.0, (1, 20)), NegativeBinomial()

    def slope(moved: np.ndarray) -> np.ndarray:
        return np.asarray(density.phi_derivatives(y, m, v, moved)[0])

    def value(moved: np.ndarray) -> np.ndarray:
        return np.asarray(density.terms(y, m, v, moved).value + density.log_factor(y, moved))

    first, second = density.phi_derivatives(y, m, v, phi)
    of_value = (value(phi + 0.05) - value(phi - 0.05)) / 0.1  # the table has six digits
    of_slope = (slope(phi + step) - slope(phi - step)) / (2.0 * step)
    scale = 1.0 + np.abs(y)
    assert (np.abs(first - of_value) / scale).max() < 2e-3
    assert (np.abs(second - of_slope) / scale).max() < 5e-3


def test_missing_entries_stay_missing() -> None:
    y, parts = np.array([[np.nan, 0.0, 2.0]]), (np.ones((1, 3)),) * 3
    assert np.isnan(derivatives(y, np.zeros(3), parts)[:, 0]).tolist() == [[True, False, False]] * 3
