"""Kernels written against the array-API standard run on its strict implementation, and equal NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

from factorflow.kernels import linalg, special

RNG = np.random.default_rng(3)
FACTOR = RNG.normal(size=(5, 4, 4))
SYMMETRIC = FACTOR @ np.swapaxes(FACTOR, -1, -2) + np.eye(4)
MANY = RNG.normal(size=(300, 1, 1)) * SYMMETRIC[0] + np.eye(4)
TALL = RNG.normal(size=(30, 4)) * (RNG.random((30, 4)) < 0.5)
POSITIVE = RNG.random(40) * 9 + 0.1

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "pack": (linalg.pack, (SYMMETRIC,)),
    "unpack": (lambda x: linalg.unpack(x, 4), (linalg.pack(SYMMETRIC),)),
    "congruence": (linalg.congruence, (linalg.pack(SYMMETRIC), RNG.normal(size=(3, 4)))),
    "congruence of many": (linalg.congruence, (linalg.pack(MANY), RNG.normal(size=(3, 4)))),
    "symmetric_power": (lambda x: linalg.symmetric_power(x, -0.5), (SYMMETRIC[0],)),
    "orthonormal": (lambda x: linalg.orthonormal(x) @ linalg.orthonormal(x).T, (TALL,)),
    "whitening": (linalg.whitening, (SYMMETRIC[1],)),
    "varimax": (linalg.varimax, (TALL,)),
    "digamma": (special.digamma, (POSITIVE,)),
    "gammaln": (special.gammaln, (POSITIVE,)),
    "softplus": (special.softplus, (POSITIVE - 5,)),
    "gamma_term": (lambda a, b: special.gamma_term(a, b, 0.5, 2.0), (POSITIVE, POSITIVE[::-1].copy())),
    "beta_term": (lambda a, b: special.beta_term(a, b, 1.0, 2.0), (POSITIVE, POSITIVE[::-1].copy())),
}


@pytest.mark.parametrize("name", CASES)
def test_strict_namespace_equals_numpy(name: str) -> None:
    function, arguments = CASES[name]
    expected = function(*arguments)
    found = function(*(strict.asarray(a) for a in arguments))
    assert type(found).__module__.startswith("array_api_strict")
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12, atol=1e-12)


def test_pack_and_unpack_are_inverse() -> None:
    packed = linalg.pack(SYMMETRIC)
    assert packed.shape == (5, linalg.n_pairs(4))
    np.testing.assert_array_equal(linalg.unpack(packed, 4), SYMMETRIC)
    np.testing.assert_array_equal(packed[:, 4], SYMMETRIC[:, 2, 1])


@pytest.mark.parametrize(("n", "after", "before"), [(299, 3, 4), (300, 3, 4), (400, 5, 4), (300, 1, 27)])
def test_congruence_is_that_of_each_matrix(n: int, after: int, before: int) -> None:
    """However many: few are unpacked, many small ones are taken there packed."""
    half, transform = RNG.normal(size=(n, before, before)), RNG.normal(size=(after, before))
    full = half + np.swapaxes(half, -1, -2)
    found = linalg.congruence(linalg.pack(full), transform)
    np.testing.assert_allclose(found, linalg.pack(transform @ full @ transform.T), rtol=1e-10, atol=1e-10)


def test_powers_and_varimax_do_what_they_say() -> None:
    root = linalg.symmetric_power(SYMMETRIC[0], 0.5)
    np.testing.assert_allclose(root @ root, SYMMETRIC[0], rtol=1e-12)
    rotation = linalg.varimax(TALL)
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(4), atol=1e-12)
    simple = RNG.normal(size=(60, 3)) * np.repeat(np.eye(3), 20, axis=0)
    turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
    found = np.abs(simple @ turn @ linalg.varimax(simple @ turn))
    assert (np.sort(found, axis=1)[:, :2] < 1e-3).all()


def test_gaussian_draws_have_mean_and_covariance() -> None:
    """Linear in the noise: the mean is P^-1 m, and its derivatives J have J J' = P^-1."""
    precision, moment = SYMMETRIC @ SYMMETRIC + np.eye(4), RNG.normal(size=(len(SYMMETRIC), 4))
    mean = linalg.gaussian(precision, moment, np.zeros_like(moment))
    np.testing.assert_allclose(np.einsum("nkl,nl->nk", precision, mean), moment, atol=1e-10)
    jacobian = np.stack(
        [linalg.gaussian(precision, moment, np.tile(unit, (len(moment), 1))) - mean for unit in np.eye(4)], -1
    )
    np.testing.assert_allclose(jacobian @ jacobian.swapaxes(1, 2), np.linalg.inv(precision), atol=1e-10)
