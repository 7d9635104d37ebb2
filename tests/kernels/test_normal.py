"""The scalar functions of the standard normal distribution against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from factorflow.kernels.scalar import normal

FROM_0 = np.concatenate([np.linspace(0.0, 8.0, 400), np.geomspace(8.0, 1e8, 100)])


def test_scaled_tail_is_exact_to_rounding() -> None:
    found = [normal.scaled_tail(a) for a in FROM_0]
    np.testing.assert_allclose(found, 0.5 * special.erfcx(FROM_0 / np.sqrt(2.0)), rtol=2e-15)


def test_exponential_is_exact_to_rounding() -> None:
    x = np.linspace(-700.0, 700.0, 1001)
    np.testing.assert_allclose([normal.fast_exp(v) for v in x], np.exp(x), rtol=1e-15)
    assert normal.fast_exp(1e4) == normal.fast_exp(708.0)
    assert normal.fast_exp(-1e4) == normal.fast_exp(-708.0)


def test_distribution_function() -> None:
    """Relative errors in the tail are those of x^2 / 2, rounded."""
    x = np.linspace(-37.0, 37.0, 501)
    error = 1e-15 + 5e-16 * x**2
    for found, expected in ((normal.ndtr, special.ndtr(x)), (normal.log_ndtr, special.log_ndtr(x))):
        off = np.abs(np.array([found(v) for v in x]) / expected - 1.0)
        assert (off <= error).all()


def test_quantiles() -> None:
    p = np.concatenate([np.geomspace(1e-300, 0.5, 200), 1.0 - np.geomspace(1e-12, 0.5, 200)])
    np.testing.assert_allclose([normal.ndtri(v) for v in p], special.ndtri(p), rtol=2e-15, atol=2e-16)


@pytest.mark.parametrize("mean", [-1e6, -200.0, -30.0, -8.0, -5.0, -1.0, 0.0, 0.4, 2.0, 6.0])
def test_truncated_normals_invert_the_tail(mean: float) -> None:
    """P(y' > y) = u: log Phi(mean - y) - log Phi(mean) = log u."""
    for u in np.concatenate([np.geomspace(1e-9, 0.5, 12), 1.0 - np.geomspace(1e-6, 0.5, 12)]):
        y = normal.positive_normal(mean, u)
        assert y >= 0.0
        if mean < -100.0:  # u = exp(-y (a + y / 2)) up to terms in 1 / a^2; the logarithms are equal there
            a = -mean
            logs = np.log(normal.scaled_tail(a + y) / normal.scaled_tail(a)) - y * (a + 0.5 * y)
        else:
            logs = special.log_ndtr(mean - y) - special.log_ndtr(mean)
        assert logs == pytest.approx(np.log(u), rel=1e-8, abs=1e-10)
