"""Gamma factors of all levels at once: against SciPy, and the learned shape of their prior."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import digamma, gammaln

from factorflow.kernels import gammas
from factorflow.models import MoltenPoisson
from factorflow.models.molten.factors import complete_levels
from factorflow.models.molten.rows import CACHE_LINE, zeros
from factorflow.models.molten.scales import SHAPES, prior_bound, update_shape
from factorflow.models.molten.state import Levels


def test_logarithms_and_entropies_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    shape = np.concatenate([10.0 ** rng.uniform(-6, 13, 3000), rng.uniform(0.01, 5.0, 2000)])
    rate = 10.0 ** rng.uniform(-3, 6, shape.size)
    logs, entropies = np.empty(shape.size), np.empty(shape.size)
    gammas.logs_and_entropies(shape, rate, logs, entropies)
    np.testing.assert_allclose(logs, digamma(shape) - np.log(rate), rtol=1e-13, atol=1e-13)
    parts = np.array([shape - np.log(rate), gammaln(shape), (1.0 - shape) * digamma(shape)])
    size = np.abs(parts).sum(axis=0)
    np.testing.assert_allclose(entropies / size, parts.sum(axis=0) / size, atol=1e-14)


def test_sums_count_learned_factors_and_levels_with_rows() -> None:
    rng = np.random.default_rng(1)
    one, two = rng.uniform(0.5, 4.0, (2, 6, 2, 3))
    free = np.ones((6, 3), dtype=bool)
    free[-1, 1] = False
    one[-1, :, 1] = two[-1, :, 1] = 1.0
    seen = np.array([1.0, 0.0, 3.0, 2.0, 0.0, 1.0])
    levels, totals = complete_levels(Levels(one, two, None, seen), free)
    learned = np.broadcast_to(free[:, None, :], one.shape)
    logs = np.where(learned, digamma(one) - np.log(two), 0.0)
    mean = np.where(learned, one / two, 0.0)
    assert levels.log is not None
    np.testing.assert_allclose(levels.log, logs, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(totals.mean, mean.sum(axis=0))
    np.testing.assert_allclose(totals.seen_mean, mean[seen > 0].sum(axis=0))
    np.testing.assert_allclose(totals.log, logs.sum(axis=0))
    entropy = one - np.log(two) + gammaln(one) + (1.0 - one) * digamma(one)
    np.testing.assert_allclose(totals.entropy, np.where(learned, entropy, 0.0).sum(axis=0))
    assert totals.size.tolist() == [6.0, 5.0, 6.0]
    assert totals.n_seen.tolist() == [4.0, 3.0, 4.0]


@pytest.mark.parametrize("mean", [0.3, 1.0, 50.0])
def test_learned_shape_is_at_the_maximum_of_the_bound(mean: float, tools: Any) -> None:
    config = MoltenPoisson(n_components=2, n_starts=1, shape_mean=mean)
    rng = np.random.default_rng(2)
    codes = np.column_stack([rng.integers(0, 5, 60), rng.integers(0, 4, 60)])
    meta, blocks = tools.table(codes, rng.poisson(4.0, 60), "poisson")
    settings = config.build(meta).settings
    *_, (globals_, _) = tools.rounds(config, meta, blocks, 3)
    best = update_shape(settings, globals_)
    assert best.shape is not None
    assert SHAPES[0] < best.shape[0] < SHAPES[1]
    top = prior_bound(settings, best)[0]
    for factor in (0.8, 0.99, 1.01, 1.25):
        assert prior_bound(settings, replace(best, shape=best.shape * factor))[0] < top
    given = MoltenPoisson(n_components=2, n_starts=1, shape=0.5).build(meta).settings  # its prior is no part
    prior = top - prior_bound(given, best)[0]
    assert prior == pytest.approx(stats.expon(scale=mean).logpdf(best.shape[0]), rel=1e-9)


@pytest.mark.parametrize("bits", [32, 64])
def test_tables_begin_with_a_cache_line(bits: int) -> None:
    for n in (1, 7, 1001):
        table = zeros((2, n, 8), bits)
        assert table.ctypes.data % CACHE_LINE == 0
        assert table.dtype.itemsize * 8 == bits
        assert not table.any()
