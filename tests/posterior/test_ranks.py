"""Scores by order equal those of all pairs, one by one, and of scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from factorflow.posterior.ranks import concordance, rank_correlation


def by_pairs(time: np.ndarray, event: np.ndarray, risk: np.ndarray) -> float:
    right = pairs = 0.0
    for i in np.flatnonzero(event):
        later = (time > time[i]) | ((time == time[i]) & ~event)
        pairs += later.sum()
        right += (risk[i] > risk[later]).sum() + 0.5 * (risk[i] == risk[later]).sum()
    return right / pairs


@pytest.mark.parametrize("levels", [3, 12, 10_000])
@pytest.mark.parametrize("n", [2, 7, 300])
def test_concordance_is_that_of_all_pairs(n: int, levels: int) -> None:
    """With many ties of times and risks, and without."""
    rng = np.random.default_rng(n + levels)
    time, risk = rng.integers(0, levels, n).astype(float), rng.integers(0, levels, n) / 7.0
    event = rng.random(n) < 0.6
    event[time.argmin()] = True
    time[time.argmax()] += 1.0
    assert concordance(time, event, risk) == pytest.approx(by_pairs(time, event, risk), abs=1e-12)
    assert concordance(time, event, -time - 0.5 * ~event) == 1.0


def test_nothing_to_compare_is_nan() -> None:
    time = np.array([1.0, 1.0])
    assert np.isnan(concordance(time, np.array([True, True]), time))
    assert np.isnan(concordance(time, np.array([False, False]), time))
    assert np.isnan(rank_correlation(time, np.arange(2.0)))


def test_rank_correlation_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 200).astype(float)
    predicted = y + rng.standard_normal(200)
    assert rank_correlation(y, predicted) == pytest.approx(spearmanr(y, predicted).statistic, abs=1e-12)
