"""The tilted bound of one binary entry: below the exact expectation, tight, with its tangent's slopes."""

import numpy as np
import pytest

from factorflow.models.sparse_gfa.kernels import products as gfa

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(60)


def _exact(y, mean, variance):
    x = mean + np.sqrt(variance) * _NODES
    return float((_WEIGHTS / _WEIGHTS.sum()) @ (y * x - np.logaddexp(0.0, x)))


def _best(mean, variance):
    """Return a = sigma(mean + (1/2 - a) variance) by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        a = 0.5 * (low + high)
        low, high = (a, high) if a < 1.0 / (1.0 + np.exp(-mean - (0.5 - a) * variance)) else (low, a)
    return a


def _one(y, mean, variance):
    values = np.array([[y]], np.float64)
    precision, weighted, free, reached = gfa.pseudo_tilted(
        values, np.array([[mean]]), np.array([[variance + mean**2]])
    )
    u, linear = float(precision[0, 0]), float(weighted[0, 0])
    tangent = free + linear * mean - 0.5 * u * (mean**2 + variance)
    assert tangent == pytest.approx(reached, abs=1e-9)
    return u, linear, reached


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.parametrize("mean", [-6.0, -4.0, -0.5, 0.0, 2.0, 7.0])
@pytest.mark.parametrize("variance", [1e-4, 0.1, 1.0, 9.0])
def test_below_the_expectation(y, mean, variance):
    assert _one(y, mean, variance)[2] <= _exact(y, mean, variance) + 1e-9


@pytest.mark.parametrize("mean", [-6.0, -4.0, 7.0])
@pytest.mark.parametrize("variance", [0.1, 1.0, 9.0])
def test_above_jaakkola_far_from_zero(mean, variance):
    y = float(mean > 0)
    bound = _one(y, mean, variance)[2]
    second = np.array([[variance + mean**2]])
    u, weighted, free = gfa.pseudo_jaakkola(np.array([[y]]), second)
    looser = free + float(weighted[0, 0]) * mean - 0.5 * float(u[0, 0]) * float(second[0, 0])
    assert bound >= looser


@pytest.mark.parametrize("mean", [-5.0, -1.0, 0.3, 3.0])
@pytest.mark.parametrize("variance", [0.05, 2.0])
def test_tangent_touches_with_the_slopes_of_the_bound(mean, variance):
    u, weighted, bound = _one(1.0, mean, variance)
    a = _best(mean, variance)
    exact = mean - 0.5 * a * a * variance - np.logaddexp(0.0, mean + (0.5 - a) * variance)
    assert bound == pytest.approx(exact, abs=1e-9)
    step = 1e-5
    slope = (_one(1.0, mean + step, variance)[2] - _one(1.0, mean - step, variance)[2]) / (2 * step)
    assert weighted - u * mean == pytest.approx(slope, abs=1e-5)
    slope = (_one(1.0, mean, variance + step)[2] - _one(1.0, mean, variance - step)[2]) / (2 * step)
    assert -0.5 * u == pytest.approx(slope, abs=1e-5)


def test_missing_entries_weigh_nothing():
    precision, weighted, free, reached = gfa.pseudo_tilted(
        np.array([[-1]], np.int8), np.array([[0.4]]), np.array([[1.0]])
    )
    assert (float(precision[0, 0]), float(weighted[0, 0]), free, reached) == (0.0,) * 4
