"""Kernels of sparse GFA on CUDA: the formulas both share, and PTX; whole passes are in tests/models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit

from factorflow.models.sparse_gfa.kernels import entry_bounds as bounds
from factorflow.models.sparse_gfa.kernels import products as gfa

X = np.array([-700.0, -50.0, -30.0, -1.0, -1e-6, 0.0, 1e-6, 0.3, 2.0, 40.0, 700.0])


def by_entry(formula, values, x):
    """Run a formula of one entry as plain Python: (weight, response, free) of every entry."""
    return np.array([[formula(v, a) for a in x] for v in values]).transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("formula", "pseudo", "values", "x"),
    [
        (bounds.jaakkola, gfa.pseudo_jaakkola, np.array([-1, 0, 1], np.int8), X**2),
        (bounds.poisson, gfa.pseudo_poisson, np.array([np.nan, 0, 1, 30]), X),
        (bounds.boehning, gfa.pseudo_boehning, np.array([-1, 0, 1], np.int8), X),
    ],
)
def test_the_cpu_runs_the_formulas_of_the_device(formula, pseudo, values, x) -> None:
    weight, response, free = by_entry(formula, values, x)
    *found, total = pseudo(
        np.repeat(values[:, None], x.size, axis=1), np.repeat(x[None], values.size, axis=0)
    )
    for array, expected in zip(found[::-1], (response, weight), strict=False):
        np.testing.assert_allclose(array, expected, rtol=1e-13, atol=1e-13)
    assert (weight[0] == 0).all()
    assert (response[0] == 0).all()
    assert (free[0] == 0).all()
    np.testing.assert_allclose(total, free.sum(), rtol=1e-13)


def test_bounds_touch_the_likelihood() -> None:
    """At the point they are made for, with no variance, bounds are the log-likelihood itself."""
    x = X[2:-1]
    for y in (0, 1):
        likelihood = y * x - np.logaddexp(0.0, x)
        u, r, free = by_entry(bounds.jaakkola, [y], x**2)[:, 0]
        np.testing.assert_allclose(free + r * x - 0.5 * u * x**2, likelihood, atol=1e-9)
        _, pseudo, free = by_entry(bounds.boehning, [y], x)[:, 0]
        np.testing.assert_allclose(free + 0.25 * (pseudo * x - 0.5 * x**2), likelihood, atol=1e-9)
    for y in (0, 3):
        rate = np.logaddexp(0.0, x)
        u, r, free = by_entry(bounds.poisson, [y], x)[:, 0]
        np.testing.assert_allclose(free + r * x - 0.5 * u * x**2, y * np.log(rate) - rate, atol=1e-8)


def test_squared_errors_on_the_scale_of_the_data() -> None:
    for link, mean in enumerate((0.7, expit(0.7), np.logaddexp(0.0, 0.7))):
        assert bounds.squared_error(2.0, 0.7, link) == pytest.approx((2.0 - mean) ** 2)


TO_PTX = """
from factorflow.models.sparse_gfa.kernels.cuda import bound_kernel, error_kernel
from factorflow.models.sparse_gfa.kernels import entry_bounds as bounds
double = types.float64[::1]
for x in (types.float32[::1], double):
    kernels.append((bound_kernel(bounds.jaakkola), (types.int8[::1], x, x, x, double)))
    kernels.append((bound_kernel(bounds.boehning), (types.int8[::1], x, x, x, double)))
    kernels.append((bound_kernel(bounds.poisson), (types.float32[::1], x, x, x, double)))
for y in (types.int8[::1], types.float32[::1], double):
    kernels.append((error_kernel(), (y, double, double, types.float64, types.int64, double)))
"""


@pytest.mark.thorough
def test_kernels_compile_to_ptx(compile_to_ptx: Callable[[str], int]) -> None:
    assert compile_to_ptx(TO_PTX) == 9
