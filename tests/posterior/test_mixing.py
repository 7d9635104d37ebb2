"""Normal scores of ranks, against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from factorflow.posterior.mixing import effective_sizes, normal_scores, rank_rhat


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_normal_scores_are_those_of_mean_ranks(dtype: type) -> None:
    draws = np.random.default_rng(0).normal(size=(2, 20, 3)).astype(dtype)
    draws[:, ::3, 0], draws[..., 2] = 0.0, 1.0  # some alike, all alike
    halves = np.concatenate([draws[:, :10], draws[:, 10:]])
    ranks = stats.rankdata(halves.reshape(40, 3).astype(np.float64), axis=0)  # newer ones keep float32
    expected = special.ndtri((ranks - 0.375) / 40.25).reshape(4, 10, 3)
    np.testing.assert_allclose(normal_scores(draws), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("n_chains", "n_draws"), [(2, 1000), (4, 600)])
def test_r_hat_and_effective_sizes_are_those_of_arviz(n_chains: int, n_draws: int) -> None:
    """Of chains that mix, that do not, and whose spread differs."""
    from arviz_stats.base import array_stats

    rng = np.random.default_rng(1)
    draws = rng.normal(size=(n_chains, n_draws, 4))
    draws[:, 1:, 1] += 0.8 * draws[:, :-1, 1]
    draws[..., 2] += 1.5 * np.arange(n_chains)[:, None] + np.linspace(0.0, 2.0, n_draws)
    draws[..., 3] *= 1.0 + 2.0 * np.arange(n_chains)[:, None]
    at = {"chain_axis": 0, "draw_axis": 1}
    expected = array_stats.rhat(draws, **at, method="rank"), array_stats.ess(draws, **at, method="bulk")
    np.testing.assert_allclose(rank_rhat(draws), expected[0], rtol=1e-10)
    np.testing.assert_allclose(effective_sizes(draws)[[0, 1, 3]], expected[1][[0, 1, 3]], rtol=0.03)


def test_halves_of_an_odd_number_of_draws_are_its_ends() -> None:
    draws = np.random.default_rng(2).normal(size=(3, 21, 2))
    ends = np.delete(draws, 10, axis=1)
    np.testing.assert_array_equal(normal_scores(draws), normal_scores(ends))
    np.testing.assert_array_equal(effective_sizes(draws), effective_sizes(ends))
