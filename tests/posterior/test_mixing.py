"""Normal scores of ranks, against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from factorflow.posterior.mixing import normal_scores


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_normal_scores_are_those_of_mean_ranks(dtype: type) -> None:
    draws = np.random.default_rng(0).normal(size=(2, 20, 3)).astype(dtype)
    draws[:, ::3, 0], draws[..., 2] = 0.0, 1.0  # some alike, all alike
    halves = np.concatenate([draws[:, :10], draws[:, 10:]])
    ranks = stats.rankdata(halves.reshape(40, 3).astype(np.float64), axis=0)  # newer ones keep float32
    expected = special.ndtri((ranks - 0.375) / 40.25).reshape(4, 10, 3)
    np.testing.assert_allclose(normal_scores(draws), expected, rtol=1e-12, atol=1e-15)
