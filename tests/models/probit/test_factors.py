"""Samplers of one observation against enumeration and quadrature; rows, flips, trajectories.

Rows are independent chains, all with the same entries, in groups; a z-score is the error of a mean over its
Monte-Carlo standard error from the groups. |z| < 6 with 40 groups (Student's t, 39 degrees of freedom:
5e-7 a comparison, 5e-5 over all the comparisons of this file) never alarms by chance in practice, and seeds
are fixed.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import special

from factorflow.kernels.random import Step
from factorflow.kernels.scalar.normal import overrelaxed_tail, positive_normal
from factorflow.models.probit.kernels.blocks import sweep_block
from factorflow.models.probit.kernels.samplers import (
    BINARY,
    COLLAPSED,
    GIBBS,
    HMC,
    NONNEGATIVE,
    SPIKE_SLAB,
    STOPPED,
    TRAJECTORIES,
)
from factorflow.models.probit.kernels.tables import FactorTables
from factorflow.models.probit.kernels.trajectory import CROSSINGS, ENERGY_ERROR, SWITCHES, WALLS

PAIRS = [
    (BINARY, GIBBS), (BINARY, COLLAPSED), (BINARY, HMC),
    (SPIKE_SLAB, GIBBS), (SPIKE_SLAB, HMC),
    (NONNEGATIVE, GIBBS), (NONNEGATIVE, HMC),
]  # fmt: skip

LOADINGS = np.array([[1.2, -0.8, 0.5, 0.9], [-0.6, 1.1, 0.0, 0.7]])
OFFSET = np.array([0.3, -0.4, 0.2, 0.0])
ACTIVITY = np.array([0.3, 0.6])
ENTRIES = np.array([1, 0, 1, -1], np.int8)


def tables(kind: int, sampler: int, travel: float = 2.5 * np.pi, limit: int = 10_000, **changes: Any) -> Any:
    z, o = changes.get("loadings", LOADINGS), changes.get("offset", OFFSET)
    a = changes.get("activity", ACTIVITY)
    return FactorTables(z, o, z @ z.T, a / (1 - a), kind, sampler, travel, limit)


def exact_moments(kind: int, x: Any, z: Any, o: Any, a: Any) -> Any:
    """Return E s, E f, E f^2, E f_0 f_1, E y of two factors by enumeration of s and quadrature over v."""
    if kind == BINARY:
        grid, weight = np.array([1.0]), np.array([1.0])
    else:
        nodes, weight = np.polynomial.legendre.leggauss(200)
        low = 0.0 if kind == NONNEGATIVE else -9.0
        grid = low + (9.0 - low) * (nodes + 1) / 2
        weight = weight * np.exp(-(grid**2) / 2)
        weight = weight / weight.sum()
    seen, sign = x >= 0, np.where(x == 0, -1.0, 1.0)
    total, moments = 0.0, 0.0
    for s in product((0, 1), repeat=2):
        axes = [(grid, weight) if on else (np.array([0.0]), np.array([1.0])) for on in s]
        f = np.stack(np.meshgrid(axes[0][0], axes[1][0], indexing="ij"), -1)
        w = axes[0][1][:, None] * axes[1][1][None, :] * np.prod(np.where(s, a, 1 - a))
        m = sign * (o + f @ z)
        w = w * np.prod(np.where(seen, special.ndtr(m), 1.0), -1)
        y = m + np.exp(-(m**2) / 2 - special.log_ndtr(m)) / np.sqrt(2 * np.pi)
        parts = [np.full(f.shape[:2], v) for v in s]
        parts += [f[..., 0], f[..., 1], f[..., 0] ** 2, f[..., 1] ** 2, f[..., 0] * f[..., 1]]
        parts += [y[..., n] for n in np.flatnonzero(seen)]
        moments = moments + np.array([(w * part).sum() for part in parts])
        total += w.sum()
    return moments / total


def sampled_moments(kind: int, sampler: int, x: Any, groups: int = 40, rows: int = 50, **changes: Any) -> Any:
    """Return the same moments from chains started at the prior, one estimate a group."""
    burn, keep = (40, 160) if sampler != HMC else (10, 40)
    block = np.tile(x, (rows, 1))
    table = tables(kind, sampler, **changes)
    seen, sign = x >= 0, np.where(x == 0, -1.0, 1.0)
    out = []
    for group in range(groups):
        f, total = np.zeros((rows, 2), np.float32), 0.0
        for i in range(burn + keep):
            f, _, sums = sweep_block(block, group * rows, f, table, Step(5, 0, i))
            if i >= burn:
                moments = [*(f != 0).mean(0), *f.mean(0), *(f**2).mean(0), (f[:, 0] * f[:, 1]).mean()]
                total = total + np.array([*moments, *(sums.cross[:, -1] * sign / rows)[seen]])
        out.append(total / keep)
    return np.array(out)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "sampler"), PAIRS)
def test_moments_match_enumeration_and_quadrature(kind: int, sampler: int) -> None:
    expected = exact_moments(kind, ENTRIES, LOADINGS, OFFSET, ACTIVITY)
    drawn = sampled_moments(kind, sampler, ENTRIES)
    error = drawn.mean(0) - expected
    spread = drawn.std(0, ddof=1) / np.sqrt(len(drawn))
    z = error / np.where(spread > 0, spread, 1.0)
    assert np.abs(z).max() < 6, (z, expected)
    assert np.sqrt((z**2).mean()) < 2.2


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "sampler"), PAIRS)
def test_nothing_observed_gives_the_prior(kind: int, sampler: int) -> None:
    drawn = sampled_moments(kind, sampler, np.full(4, -1, np.int8), rows=100)
    second = ACTIVITY
    z = (drawn[:, :2].mean(0) - second) / (drawn[:, :2].std(0, ddof=1) / np.sqrt(len(drawn)))
    assert np.abs(z).max() < 6
    if kind != BINARY:
        z = (drawn[:, 4:6].mean(0) - second) / (drawn[:, 4:6].std(0, ddof=1) / np.sqrt(len(drawn)))
        assert np.abs(z).max() < 6


@pytest.mark.parametrize("mean", [-60.0, -30.0, -3.0, -0.1, 0.0, 2.0, 8.0])
def test_a_positive_value_is_mirrored_in_probability(mean: float) -> None:
    """Without noise, the value after has the probability above it that the value before has below it."""
    for u in (1e-6, 0.02, 0.5, 0.9, 1 - 1e-6):
        before = positive_normal(mean, u)
        assert overrelaxed_tail(mean, before, 0.5) == pytest.approx(1.0 - u, rel=1e-5, abs=1e-9)
    for noise in (1e-9, 1 - 1e-9):  # folded back where it leaves (0, 1)
        assert 0.0 < overrelaxed_tail(mean, positive_normal(mean, 1e-9), noise) < 1.0
        assert 0.0 < overrelaxed_tail(mean, positive_normal(mean, 1 - 1e-9), noise) < 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("travel", [0.5 * np.pi, 4.0, 23.0])
@pytest.mark.parametrize("kind", [BINARY, NONNEGATIVE])
def test_any_travel_time_samples_the_same(kind: int, travel: float) -> None:
    expected = exact_moments(kind, ENTRIES, LOADINGS, OFFSET, ACTIVITY)
    block, table = np.tile(ENTRIES, (4000, 1)), tables(kind, HMC, travel)
    f, means = np.zeros((4000, 2), np.float32), []
    for i in range(40):
        f, _, _ = sweep_block(block, 0, f, table, Step(9, 0, i))
        if i >= 15:
            means.append(f)
    values = np.mean(means, 0)  # one mean a chain: 4000 independent estimates
    z = (values.mean(0) - expected[2:4]) / (values.std(0, ddof=1) / np.sqrt(4000))
    assert np.abs(z).max() < 6


@pytest.mark.parametrize(("kind", "sampler"), PAIRS)
def test_any_cut_of_the_rows_gives_the_same_bits(kind: int, sampler: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-1, 2, (41, 7)).astype(np.int8)
    z = rng.normal(size=(3, 7))
    table = tables(kind, sampler, loadings=z, offset=rng.normal(size=7), activity=np.array([0.2, 0.5, 0.7]))
    size = 1.0 if kind == BINARY else rng.random((41, 3))
    start = ((rng.random((41, 3)) < 0.5) * size).astype(np.float32)
    step = Step(2**63 + 1, 3, 7)
    whole, chances, _ = sweep_block(x, 1000, start, table, step, chances=True)
    for cut in (1, 8, 40):
        left = sweep_block(x[:cut], 1000, start[:cut], table, step, chances=True)
        right = sweep_block(x[cut:], 1000 + cut, start[cut:], table, step, chances=True)
        np.testing.assert_array_equal(np.concatenate([left[0], right[0]]), whole)
        np.testing.assert_array_equal(np.concatenate([left[1], right[1]]), chances)


def test_the_binary_model_has_a_flip_symmetry() -> None:
    """s -> 1 - s, z -> -z, o -> o + z, a -> 1 - a leaves p(x | s) p(s | a) as it was."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 2, (60, 5)).astype(np.int8)
    z, o, a = rng.normal(size=(2, 5)), rng.normal(size=5), np.array([0.3, 0.6])
    s = (rng.random((60, 2)) < 0.5).astype(np.float32)
    flipped = np.array([-1.0, 1.0])[:, None] * z
    one = tables(BINARY, GIBBS, loadings=z, offset=o, activity=a)
    two = tables(BINARY, GIBBS, loadings=flipped, offset=o + z[0], activity=np.array([0.7, 0.6]))
    other = np.stack([1 - s[:, 0], s[:, 1]], 1)
    # the density leaves out sum_k log(1 - a_k)
    first = sweep_block(x, 0, s, one, Step(1))[2].density + 60 * np.log(1 - a).sum()
    second = sweep_block(x, 0, other, two, Step(1))[2].density + 60 * np.log([0.3, 0.4]).sum()
    np.testing.assert_allclose(first, second, rtol=1e-12)


@pytest.mark.parametrize("kind", [BINARY, SPIKE_SLAB, NONNEGATIVE])
def test_density_is_that_of_entries_and_factors(kind: int) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(-1, 2, (30, 4)).astype(np.int8)
    f = (rng.random((30, 2)) < 0.5) * (1.0 if kind == BINARY else np.abs(rng.normal(size=(30, 2))))
    f = f.astype(np.float32).astype(float)
    m = np.where(x == 0, -1, 1) * (OFFSET + f @ LOADINGS)
    expected = special.log_ndtr(m)[x >= 0].sum() + ((f != 0) * np.log(ACTIVITY / (1 - ACTIVITY))).sum()
    if kind != BINARY:
        expected += ((f != 0) * (-(f**2) / 2 - 0.5 * np.log(2 * np.pi))).sum()
    if kind == NONNEGATIVE:
        expected += (f != 0).sum() * np.log(2.0)
    found = sweep_block(x, 0, f, tables(kind, GIBBS), Step(1))[2].density
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_statistics_are_those_of_the_observed_samples() -> None:
    """Q_n = total_gram - missing_gram_n, for rows with few and with many missing entries."""
    rng = np.random.default_rng(5)
    x = np.where(rng.random((50, 4)) < rng.random((50, 1)), -1, rng.integers(0, 2, (50, 4))).astype(np.int8)
    x[0] = -1
    f, _, sums = sweep_block(x, 0, np.ones((50, 2)), tables(SPIKE_SLAB, GIBBS), Step(1))
    full = np.column_stack([f.astype(float), np.ones(50)])
    rows, columns = np.triu_indices(3)
    for n in range(4):
        seen = full[x[:, n] >= 0]
        gram = sums.total_gram - sums.missing_gram[n]
        np.testing.assert_allclose(gram, (seen.T @ seen)[rows, columns], atol=1e-11)


@pytest.mark.parametrize("kind", [BINARY, SPIKE_SLAB, NONNEGATIVE])
def test_energy_is_conserved(kind: int) -> None:
    rng = np.random.default_rng(6)
    x = rng.integers(-1, 2, (200, 30)).astype(np.int8)
    table = tables(kind, HMC, 23.0, loadings=rng.normal(size=(4, 30)) * 1.5, offset=rng.normal(size=30),
                   activity=np.full(4, 0.4))  # fmt: skip
    f = np.zeros((200, 4), np.float32)
    for i in range(3):
        for row in range(200):
            moved, _, sums = sweep_block(x[row : row + 1], row, f[row : row + 1], table, Step(1, 0, i))
            f[row] = moved[0]
            assert sums.counts[ENERGY_ERROR] < 1e-9
            assert sums.counts[STOPPED] == 0
            assert sums.counts[TRAJECTORIES] == 1
    assert (f >= 0).all() or kind == SPIKE_SLAB


def test_visits_to_the_walls_of_d_keep_their_timetable() -> None:
    """Every d_k comes to its wall 23 / pi = 7.32 times on average, whether it crosses or not."""
    rng = np.random.default_rng(7)
    x = rng.integers(0, 2, (4000, 5)).astype(np.int8)
    for kind in (BINARY, SPIKE_SLAB, NONNEGATIVE):
        table = tables(kind, HMC, 23.0, loadings=rng.normal(size=(2, 5)), offset=np.zeros(5))
        _, _, sums = sweep_block(x, 0, np.zeros((4000, 2)), table, Step(2))
        visits = sums.counts[SWITCHES] / 8000  # 7 or 8 each: standard error 0.005
        assert abs(visits - 23 / np.pi) < 0.03
        assert 0 < sums.counts[CROSSINGS] < sums.counts[SWITCHES]
        assert sums.counts[WALLS] > 0


@pytest.mark.parametrize("kind", [BINARY, SPIKE_SLAB, NONNEGATIVE])
def test_a_trajectory_over_the_limit_is_counted_and_turned_back(kind: int) -> None:
    rng = np.random.default_rng(8)
    x = rng.integers(0, 2, (100, 6)).astype(np.int8)
    table = tables(kind, HMC, 23.0, 3, loadings=rng.normal(size=(2, 6)), offset=np.zeros(6))
    before = ((rng.random((100, 2)) < 0.5) * 1.0).astype(np.float32)
    after, _, sums = sweep_block(x, 0, before, table, Step(3))
    assert sums.counts[STOPPED] == 100
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(("kind", "sampler"), PAIRS)
def test_extreme_loadings_stay_in_the_support(kind: int, sampler: int) -> None:
    rng = np.random.default_rng(9)
    x = rng.integers(-1, 2, (50, 8)).astype(np.int8)
    z = rng.normal(size=(3, 8)) * np.array([1e-8, 1.0, 300.0])[:, None]
    activity = np.array([1e-12, 0.5, 1 - 1e-12])
    table = tables(kind, sampler, loadings=z, offset=rng.normal(size=8) * 50, activity=activity)
    f = (np.ones((50, 3))).astype(np.float32)
    for i in range(5):
        f, _, sums = sweep_block(x, 0, f, table, Step(4, 0, i))
        assert np.isfinite(f).all()
        assert np.isfinite(sums.cross).all()
        assert np.isfinite(sums.squares).all()
        assert np.isfinite(sums.density)
        if kind == BINARY:
            assert set(np.unique(f)) <= {0.0, 1.0}
        if kind == NONNEGATIVE:
            assert (f >= 0).all()
