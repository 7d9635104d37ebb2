"""Kernels of sparse group factor analysis against plain NumPy; namespace kernels on array-api-strict."""

from __future__ import annotations

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special as scipy_special

from factorflow.kernels import linalg, special
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.kernels.rotation import best_rotation, best_scale


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def spd(rng, n, k):
    x = rng.standard_normal((n, k, k + 3))
    return x @ x.transpose(0, 2, 1)


@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.floats(0, 1),
    st.sampled_from([np.float32, np.float64, np.int8]),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_sums_over_observed_entries(n_rows, n_features, fraction, dtype, seed):
    """Dense sums less the missing share equal sums over the observed entries, by row and by column."""
    rng = np.random.default_rng(seed)
    hidden = rng.random((n_rows, n_features)) < fraction
    hidden[0] = True
    values = rng.integers(0, 2, hidden.shape).astype(dtype)
    values[hidden] = -1 if dtype == np.int8 else np.nan
    found = gfa.gaps(values)
    table, pairs = rng.random((n_features, 6)), rng.random((n_rows, 6))
    by_row = gfa.pairs_by_row(table, found, table.sum(axis=0))
    np.testing.assert_allclose(by_row, ~hidden @ table, atol=1e-12)
    by_column = gfa.pairs_by_column(pairs, found, pairs[found.complement].sum(axis=0))
    np.testing.assert_allclose(by_column, (~hidden).T @ pairs, atol=1e-12)
    assert found.complete == (not hidden.any())
    np.testing.assert_array_equal(found.present, ~hidden.all(axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_centred(rng, dtype):
    values = rng.standard_normal((7, 5)).astype(dtype)
    values[2, 3] = np.nan
    reference, inverse = rng.standard_normal(5), rng.random(5) + 0.5
    expected = np.nan_to_num((values - reference) * inverse)
    np.testing.assert_allclose(gfa.centred(values, reference, inverse, np.dtype(dtype)), expected, rtol=1e-5)


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("given", [1, 3])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_expected_pairs_and_quadratic(rng, diagonal, k, given):
    """E[x x'] and E[x' P x] - 2 E[x]' c of Gaussian vectors with given columns, which may be known."""
    n = 9
    mean, b, weight = rng.standard_normal((n, k)), rng.random((n, given)), rng.random(n)
    vb = spd(rng, n, given)
    covariance = spd(rng, n, k)
    if diagonal:
        spread = rng.random((n, k))
        covariance = np.stack([np.diag(s) for s in spread])
    else:
        spread = linalg.pack(covariance)
    extended = np.concatenate([mean, b], axis=1)
    known = extended[:, :, None] * extended[:, None, :]
    known[:, :k, :k] += covariance
    full = known.copy()
    full[:, k:, k:] += vb
    p, c = spd(rng, n, k + given), rng.standard_normal((n, k + given))
    for second, others in ((full, linalg.pack(vb)), (known, None)):
        packed = gfa.expected_pairs(mean, spread, b, others, weight, np.dtype(np.float64))
        np.testing.assert_allclose(packed, linalg.pack(second * weight[:, None, None]), atol=1e-12)
        found = gfa.sum_pairs(mean, spread, b, others, weight)
        np.testing.assert_allclose(found, packed.sum(axis=0), atol=1e-12)
        expected = np.einsum("nij,nij->n", p, second) - 2 * (c * extended).sum(axis=1)
        found = gfa.quadratic(c, linalg.pack(p), mean, spread, b, others)
        np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 130])
def test_solve_normals(rng, n):
    k = 4
    p, h, scale, prior = spd(rng, n, k), rng.standard_normal((n, k)), rng.random(n) + 0.5, rng.random((1, k))
    inverse = np.linalg.inv(p * scale[:, None, None] + np.diag(prior[0]))
    mean, covariance, logdet = gfa.solve_normals(linalg.pack(p), h, scale, prior)
    np.testing.assert_allclose(mean, np.einsum("nij,nj->ni", inverse, h), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(covariance, linalg.pack(inverse), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(logdet, np.linalg.slogdet(inverse)[1], rtol=1e-9)


def test_solve_normals_with_one_precision(rng):
    p, h, prior = spd(rng, 1, 3), rng.standard_normal((20, 3)), rng.random((1, 3))
    mean, covariance, _ = gfa.solve_normals(linalg.pack(p), h, np.ones(1), prior)
    assert covariance.shape == (1, 6)
    np.testing.assert_allclose(mean, h @ np.linalg.inv(p[0] + np.diag(prior[0])), rtol=1e-9)


def test_coordinate_updates_end_at_the_joint_means(rng):
    """Without a spike, sweeping to convergence solves the normal equations; variances are 1 / diagonal."""
    n, k = 70, 4
    p, h, prior = spd(rng, n, k), rng.standard_normal((n, k)), rng.random((1, k)) + 0.1
    state = (np.zeros((n, k)), np.ones((n, k)), np.ones((n, k)))
    for _ in range(3000):
        *state, _ = gfa.coordinate_updates(linalg.pack(p), h, np.ones(1), prior, tuple(state))
    full = p + np.diag(prior[0])
    np.testing.assert_allclose(state[0], np.linalg.solve(full, h[..., None])[..., 0], atol=1e-6)
    np.testing.assert_allclose(state[1], 1 / np.einsum("nii->ni", full), rtol=1e-12)


def test_one_spike_and_slab_weight_is_exact(rng):
    """K = 1: the posterior of a weight under a Gaussian likelihood is a spike and a slab; by quadrature."""
    p, h, alpha, theta = 7.0, 3.0, 2.0, 0.3
    odds = (np.full((1, 1), np.log(theta / (1 - theta))), np.full((1, 1), np.log(alpha)))
    state = (np.zeros((1, 1)), np.ones((1, 1)), np.ones((1, 1)))
    found = gfa.coordinate_updates(
        np.full((1, 1), p), np.full((1, 1), h), np.ones(1), np.full((1, 1), alpha), state, odds
    )
    w = np.linspace(-20, 20, 400_001)
    slab = np.exp(h * w - 0.5 * p * w**2) * np.sqrt(alpha / (2 * np.pi)) * np.exp(-0.5 * alpha * w**2)
    evidence = slab.sum() * (w[1] - w[0])
    assert found[2][0, 0] == pytest.approx(theta * evidence / (theta * evidence + 1 - theta), rel=1e-9)
    assert found[0][0, 0] == pytest.approx((w * slab).sum() / slab.sum(), rel=1e-9)


def test_a_stochastic_step_of_one_is_the_exact_update(rng):
    n, k = 20, 3
    p, h, prior = linalg.pack(spd(rng, n, k)), rng.standard_normal((n, k)), np.ones((1, k))
    state = (rng.standard_normal((n, k)), np.ones((n, k)), rng.random((n, k)))
    odds = (np.zeros((1, k)), np.zeros((1, k)))
    exact = gfa.coordinate_updates(p, h, np.ones(1), prior, state, odds)
    nearly = gfa.coordinate_updates(p, h, np.ones(1), prior, state, odds, 1 - 1e-12)
    none = gfa.coordinate_updates(p, h, np.ones(1), prior, state, odds, 1e-14)
    for a, b, c, d in zip(exact[:3], nearly[:3], none[:3], state, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-9)
        np.testing.assert_allclose(c, d, atol=1e-9)


def test_rotation_raises_the_bound(rng):
    """At the optimum no small change of basis helps; the stated function is the one that is raised."""
    from factorflow.models.sparse_gfa.kernels.rotation import _rotation_objective

    moments, grams, sizes = 50 * spd(rng, 1, 4)[0], [spd(rng, 1, 4)[0], 3 * spd(rng, 1, 4)[0]], [30.0, 20.0]
    arguments = (moments, grams, 200, sizes, [(1e-3, 1e-3), (10.0, 5.0)])
    rotation = best_rotation(*arguments, max_iter=500)
    best = _rotation_objective(rotation, *arguments)[0]
    assert best > _rotation_objective(np.eye(4), *arguments)[0]
    for _ in range(50):
        other = rotation @ (np.eye(4) + 1e-3 * rng.standard_normal((4, 4)))
        assert _rotation_objective(other, *arguments)[0] <= best + 1e-6 * abs(best)
    value, gradient = _rotation_objective(rotation + 0.1, *arguments)
    step = 1e-6 * rng.standard_normal((4, 4))
    change = _rotation_objective(rotation + 0.1 + step, *arguments)[0] - value
    assert change == pytest.approx((gradient * step).sum(), rel=1e-3)


@pytest.mark.parametrize("scores", [None, (1e-3, 1e-3)])
def test_scale_is_the_maximum(rng, scores):
    """Of scores of variance 1, and of those whose groups have precisions of their own."""
    number = np.array([[80.0]]) if scores is None else np.array([[50.0], [30.0]])
    second = 100 * rng.random((len(number), 3))
    squares, included = [rng.random(3), 5 * rng.random(3)], [np.full(3, 4.0), np.full(3, 9.0)]
    priors = [(1e-3, 1e-3), (10.0, 5.0)] if scores is None else [(0.5, 0.005), (0.5, 0.5)]

    def bound(r):
        total = (80 - sum(included)) * np.log(r)
        if scores is None:
            total = total - 0.5 * r**2 * second[0]
        else:
            logs = np.log(scores[1] + 0.5 * r**2 * second)
            total = total - ((scores[0] + 0.5 * number) * logs).sum(axis=0)
        for t, c, (a, b) in zip(squares, included, priors, strict=True):
            total = total - (a + 0.5 * c) * np.log(b + 0.5 * t / r**2)
        return total

    r = best_scale(second, number, squares, included, priors, scores)
    for factor in (0.5, 0.99, 0.999, 1.001, 1.01, 2.0):
        assert (bound(r * factor) < bound(r)).all()


def test_varimax_finds_simple_structure(rng):
    simple = rng.standard_normal((300, 4)) * np.eye(4)[rng.integers(0, 4, 300)] + 0.01 * rng.standard_normal(
        (300, 4)
    )
    rotation, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    found = linalg.varimax(simple @ rotation)
    table = np.abs(rotation @ found)
    np.testing.assert_allclose(np.sort(table, axis=None)[-4:], 1.0, atol=1e-3)
    np.testing.assert_allclose(found @ found.T, np.eye(4), atol=1e-10)


def test_namespace_kernels_run_on_array_api_strict(rng):
    """No function outside the standard: the same numbers as NumPy."""
    full, transform = spd(rng, 6, 3), rng.standard_normal((2, 3))
    packed = linalg.pack(full)
    for function, arguments in (
        (linalg.pack, (full,)),
        (lambda x: linalg.unpack(x, 3), (packed,)),
        (linalg.congruence, (packed, transform)),
        (lambda x: linalg.pad_columns(x, x.dtype), (full[0],)),
        (lambda x: linalg.symmetric_power(x, -0.5), (full[0],)),
        (linalg.varimax, (rng.standard_normal((20, 3)),)),
        (special.digamma, (rng.random(5) + 1,)),
        (special.gammaln, (rng.random(5) + 1,)),
        (special.softplus, (rng.standard_normal(5),)),
        (gfa.sum_pairs, (full[0], full[1], full[2, :, :1], full[3, :, :1] ** 2, rng.random(3))),
    ):
        expected = function(*arguments)
        found = function(*(strict.asarray(a) for a in arguments))
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-10, atol=1e-12)


def test_terms_of_gamma_and_beta(rng):
    """E_q[log p - log q] of Gamma and Beta variables, against numerical integration."""
    shape, rate = np.array([3.2]), np.array([1.7])
    x = np.linspace(1e-6, 30, 400_001)
    log_q = shape * np.log(rate) - scipy_special.gammaln(shape) + (shape - 1) * np.log(x) - rate * x
    log_p = 2.0 * np.log(0.5) - scipy_special.gammaln(2.0) + np.log(x) - 0.5 * x
    expected = (np.exp(log_q) * (log_p - log_q)).sum() * (x[1] - x[0])
    assert special.gamma_term(shape, rate, 2.0, 0.5)[0] == pytest.approx(expected, abs=1e-5)
    on, off = np.array([2.5]), np.array([4.0])
    x = np.linspace(1e-7, 1 - 1e-7, 400_001)
    log_q = (on - 1) * np.log(x) + (off - 1) * np.log1p(-x) - scipy_special.betaln(on, off)
    log_p = np.log1p(-x) - scipy_special.betaln(1.0, 2.0)
    expected = (np.exp(log_q) * (log_p - log_q)).sum() * (x[1] - x[0])
    assert special.beta_term(on, off, 1.0, 2.0)[0] == pytest.approx(expected, abs=1e-5)


def test_loops_are_compiled_for_one_type(rng):
    """Whether an array can be written, or lies in order, makes no loop compile again."""
    from factorflow.models.sparse_gfa.kernels import lanes, loops

    n, k = 6, 3
    values = rng.standard_normal((n, 5)).astype(np.float32)
    values[2, 1] = np.nan
    found = gfa.gaps(values)
    pairs, h, prior = linalg.pack(spd(rng, n, k + 1)), rng.standard_normal((n, k)), np.ones((n, k))
    for write in (True, False):
        for array in (pairs, h, prior):
            array.flags.writeable = write
        for order in "CF":
            p, x, a = (np.asarray(array, order=order) for array in (pairs, h, prior))
            ones = np.ones(n)
            gfa.solve_normals(p, x, ones, a)
            gfa.coordinate_updates(p, x, ones, a, (x, a, a), (x, x))
            gfa.coordinate_updates(p, x, ones, a, (x, a, a), (x, x), 0.5)
            gfa.quadratic(p[:, :4], p, x, a, ones[:, None], ones[:, None])
            gfa.expected_pairs(x, a, ones[:, None], ones[:, None], ones, np.dtype(np.float64))
            gfa.pairs_by_row(p[:5], found, p[0])
            gfa.pairs_by_column(p, found, p[0])
    for loop in (lanes.solve, lanes.update_coordinates, loops.quadratic_forms):
        assert len(loop.signatures) == 1
    for loop in (loops.multiply_pairs, loops.add_listed):  # and single precision, of other tests
        assert len({str(s) for s in loop.signatures if "float32" not in str(s)}) == 1


def test_entries_beside_do_not_change_bits(rng):
    """A vector has the same bits alone and among a thousand: runs of rows end anywhere."""
    n, k = 1000, 9
    x = rng.standard_normal((n, k + 1, k + 4))
    pairs, h, prior = linalg.pack(x @ x.transpose(0, 2, 1)), rng.standard_normal((n, k)), np.ones((1, k))
    state = (rng.standard_normal((n, k)), np.ones((n, k)), rng.random((n, k)))
    ones = np.ones(n)
    whole = gfa.coordinate_updates(pairs, h, ones, prior, state, (prior, prior))
    fit = gfa.quadratic(h @ np.ones((k, k + 1)), pairs, h, state[1], ones[:, None], ones[:, None])
    for i in (0, 63, 500, 999):
        one = slice(i, i + 1)
        mine = tuple(part[one] for part in state)
        alone = gfa.coordinate_updates(pairs[one], h[one], ones[one], prior, mine, (prior, prior))
        for a, b in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(a, b[one])
        of_one = gfa.quadratic(
            (h @ np.ones((k, k + 1)))[one], pairs[one], h[one], state[1][one], *(ones[one, None],) * 2
        )
        np.testing.assert_allclose(of_one, fit[one], rtol=1e-12)


def test_moments_about_a_place_far_from_0() -> None:
    """Number, sum and squares of what is left: about 0 the squares would lose their last digits."""
    rng = np.random.default_rng(21700)
    near = rng.standard_normal((300, 3)).round(3)
    near[rng.random(near.shape) < 0.2] = np.nan
    place = np.array([0.0, 2.0**30, -(2.0**30)])
    count, total, squares = gfa.column_moments(near + place, place)
    np.testing.assert_array_equal(count, np.isfinite(near).sum(axis=0))
    np.testing.assert_allclose(total, np.nansum(near, axis=0), atol=1e-4)
    np.testing.assert_allclose(squares, np.nansum(near**2, axis=0), rtol=1e-6)
