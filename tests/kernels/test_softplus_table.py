"""E log(1 + e^x) and its derivatives from a table, against sums over many nodes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from factorflow.kernels.softplus_table import expected_softplus

T, WEIGHTS = np.polynomial.hermite_e.hermegauss(101)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def reference(m: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    x = m[:, None] + np.sqrt(v)[:, None] * T
    p = expit(x)
    return [f @ WEIGHTS for f in (np.logaddexp(0.0, x), p, p * (1.0 - p))]


def points(n: int, m: float, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.uniform(-m, m, n), rng.uniform(low, high, n)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 4e-6), (np.float32, 5e-6)])
def test_within_the_table(dtype: type[np.floating], tolerance: float) -> None:
    m, v = (a.astype(dtype) for a in points(20_000, 12.0, 0.0, 8.0))
    found = expected_softplus(m, v)
    for a, b in zip(found, reference(m.astype(float), v.astype(float)), strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def test_beyond_the_table() -> None:
    """Far from 0 by E e^x, wide ones by nodes; every number is finite."""
    m, v = points(2000, 40.0, 0.0, 1.0)
    for a, b in zip(expected_softplus(m, v), reference(m, v), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)
    m, v = points(2000, 40.0, 8.0, 30.0)
    for a, b in zip(expected_softplus(m, v), reference(m, v), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=0.02)


def test_small_probabilities_have_a_small_relative_error() -> None:
    m, v = points(5000, 6.0, 0.0, 1.0)
    m -= 14.0
    value, slope, curvature = expected_softplus(m, v)
    for a, b in zip((value, slope, curvature), reference(m, v), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4)
    np.testing.assert_allclose(1.0 - expected_softplus(-m, v)[1], slope, rtol=0, atol=1e-15)


def test_slope_and_curvature_are_the_derivatives() -> None:
    m, v = points(2000, 11.0, 0.2, 7.5)
    h = 0.05
    up, down = expected_softplus(m + h, v)[0], expected_softplus(m - h, v)[0]
    _, slope, curvature = expected_softplus(m, v)
    np.testing.assert_allclose((up - down) / (2 * h), slope, atol=1e-4)
    wider, narrower = expected_softplus(m, v + h)[0], expected_softplus(m, v - h)[0]
    np.testing.assert_allclose((wider - narrower) / h, curvature, atol=1e-4)


def test_an_entry_does_not_depend_on_its_place() -> None:
    m, v = points(37, 15.0, 0.0, 9.0)
    whole = expected_softplus(m, v)
    for i in range(37):
        alone = expected_softplus(m[i : i + 1], v[i : i + 1])
        assert [a[0] for a in alone] == [a[i] for a in whole]
