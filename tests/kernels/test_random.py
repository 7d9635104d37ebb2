"""The counter-based generator: published vectors, distribution, keys."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from factorflow.kernels.random import Step, entry_uniform, philox4x32

# Known answers of the Random123 distribution (file kat_vectors, philox4x32 10).
VECTORS = [
    ((0, 0, 0, 0), 0, ("6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8")),
    ((0xFFFFFFFF,) * 4, 0xFFFFFFFFFFFFFFFF, ("408f276d", "41c83b0e", "a20bc7c6", "6d5451fd")),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        ("d16cfe09", "94fdcceb", "5001e420", "24126ea1"),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors(counter: tuple[int, ...], key: int, expected: tuple[str, ...]) -> None:
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    assert tuple(f"{int(word):08x}" for word in philox4x32((c0, c1, c2, c3), key)) == expected


def test_uniforms_are_uniform_and_in_the_open_interval() -> None:
    # Kolmogorov-Smirnov at 1e-4: one false alarm in 10^4 seeds; the seed is fixed.
    values = Step(7, 1, 3).uniform(2, np.arange(20_000), 5)
    assert values.min() > 0.0
    assert values.max() < 1.0
    for column in values.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4
    assert stats.kstest(Step(7).normal(2, np.arange(20_000), 1)[:, 0], "norm").pvalue > 1e-4


def test_gammas_have_their_shape() -> None:
    index = np.arange(20_000)
    for shape in (0.5, 7.0):
        assert stats.kstest(Step(7).gamma(2, index, shape), "gamma", args=(shape,)).pvalue > 1e-4
    shapes = np.where(index % 2, 0.5, 7.0)
    both = Step(7).gamma(2, index, shapes)
    np.testing.assert_array_equal(both[::2], Step(7).gamma(2, index[::2], 7.0))
    assert abs(np.corrcoef(both[::2], both[1::2])[0, 1]) < 0.05


@given(
    start=st.integers(0, 2**48 - 64),
    words=st.integers(1, 9),
    cut=st.integers(0, 20),
    seed=st.integers(0, 2**64 - 1),
)
def test_an_index_has_its_own_noise_in_any_cut(start: int, words: int, cut: int, seed: int) -> None:
    step = Step(seed, chain=2, iteration=5)
    index = start + np.arange(20)
    whole = step.uniform(1, index, words)
    parts = np.concatenate([step.uniform(1, index[:cut], words), step.uniform(1, index[cut:], words)])
    np.testing.assert_array_equal(whole, parts)
    np.testing.assert_array_equal(whole, step.uniform(1, index, words + 3)[:, :words])


def test_keys_do_not_collide() -> None:
    index = np.arange(50)
    draws = [
        Step(seed, chain, iteration).uniform(site, index, 4)
        for seed in (0, 1, 2**32)
        for chain in (0, 1)
        for iteration in (0, 1)
        for site in (0, 1)
    ]
    draws.append(entry_uniform(0, 900, index[:, None], np.arange(100_000, 100_004)))
    values = np.concatenate([draw.ravel() for draw in draws])
    assert np.unique(values).size == values.size


def test_entries_are_keyed_by_row_and_column() -> None:
    whole = entry_uniform(3, 900, np.arange(40)[:, None], np.arange(70_000, 70_030))
    part = entry_uniform(3, 900, np.arange(10, 20)[:, None], np.arange(70_005, 70_010))
    np.testing.assert_array_equal(whole[10:20, 5:10], part)


def test_import_is_light() -> None:
    code = "import sys, factorflow.kernels.random; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_scalar_functions_draw_the_same_uniforms() -> None:
    from factorflow.kernels.compile import compile_scalar
    from factorflow.kernels.scalar.philox import philox_pair

    pair = compile_scalar(philox_pair)
    seed, row, iteration, site, chain = 2**63 + 5, 2**40 + 17, 11, 3, 2
    expected = Step(seed, chain, iteration).uniform(site, np.array([row]), 4)[0]
    place = np.uint64(site | chain << 16)
    key, words = (np.uint64(seed), np.uint64(row)), (np.uint64(0), np.uint64(1))
    drawn = [pair(*key, word, np.uint64(iteration), place) for word in words]
    np.testing.assert_array_equal(np.array(drawn).ravel(), expected)
