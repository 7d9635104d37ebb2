"""q(lambda): its expectations against fine panels, from no data to 1e8 frames."""

from __future__ import annotations

import numpy as np
import pytest
from frames_in_memory import panels

from factorflow.models.identity_attribute.dynamics import density, expectations, is_proper, quantiles


def _of(length: float, lam: float) -> list[float]:
    n = (length - 1) / 2
    return [n, -n, 2 * n * lam, -n]


CASES = [_of(n, lam) for n in (2, 30, 1e4, 1e8) for lam in (0.5, -0.9, 0.999999)]
CASES += [[50.0, -1.0, 0.0, -1.0], [50.0, -1.0, 0.02, -1.0], [0.5, -0.3, 0.1, -0.2], [3.0, -0.1, 0.0, -0.1]]


@pytest.mark.thorough
def test_expectations_against_panels() -> None:
    """Also with one mode at each end, and with very different parameters side by side."""
    parameters = np.array(CASES).T
    found = expectations(parameters)
    for k in range(len(CASES)):
        expected, log_normaliser = panels(parameters[:, k])
        got = np.array([*found.moments[:, k], found.log[k], found.mean[k]])
        np.testing.assert_allclose(got, expected, rtol=2e-9, atol=1e-10, err_msg=str(CASES[k]))
        assert found.log_normaliser[k] == pytest.approx(log_normaliser, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("case", [1, 6, 9, 12])
def test_some_expectations_against_panels(case: int) -> None:
    """Of 2 frames to 1e8, and of two modes: each is integrated as far as its own width tells."""
    found = expectations(np.array(CASES[case : case + 1]).T)
    expected, log_normaliser = panels(np.array(CASES[case]))
    np.testing.assert_allclose([*found.moments[:, 0], found.log[0]], expected[:-1], rtol=2e-9, atol=1e-10)
    assert found.log_normaliser[0] == pytest.approx(log_normaliser, rel=1e-12, abs=1e-9)


def test_symmetric_densities_have_no_odd_moments() -> None:
    found = expectations(np.array([[50.0, -1.0, 0.0, -1.0], _of(1e8, 0.0), [0.0] * 4]).T)
    np.testing.assert_allclose(found.mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.moments[1, :2], 0.0, atol=1e-10)


def test_no_data_are_uniform() -> None:
    """eta = f = g = h = 0: the density is 1/2, of variance 1/3."""
    found = expectations(np.zeros((4, 1)))
    assert found.log_normaliser[0] == pytest.approx(np.log(2.0), rel=1e-12)
    assert found.variance[0] == pytest.approx(1 / 3, rel=1e-12)
    assert found.log[0] == pytest.approx(2 * np.log(2.0) - 2, rel=1e-12)


def test_density_and_quantiles_agree() -> None:
    """Equation 13, integrated up to the quantiles."""
    parameters = np.array([_of(50, 0.7), [50.0, -1.0, 0.02, -1.0]]).T
    shares = np.array([0.1, 0.5, 0.9])
    lam = np.tanh(np.linspace(-9, 9, 400_001))
    mass = density(parameters, lam)
    below = np.cumsum(0.5 * (mass[:, 1:] + mass[:, :-1]) * np.diff(lam), axis=1)
    np.testing.assert_allclose(below[:, -1], 1.0, rtol=1e-6)
    found = quantiles(parameters, shares)
    for k in range(2):
        np.testing.assert_allclose(np.interp(found[k], lam[1:], below[k]), shares, atol=1e-3)


def test_what_can_be_normalised() -> None:
    assert is_proper(np.array([[0.0] * 4, [0.9, -1.0, 1.0, 0.0], [5.0, -1.0, 0.5, 0.0]]).T)
    assert not is_proper(np.array([[1.0, 0.0, 0.0, 0.0]]).T)
    assert not is_proper(np.array([[0.0, -1.0, 1.5, 0.0]]).T)
