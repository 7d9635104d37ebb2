"""Predictive distributions made of mean and standard deviation, against those of SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from factorflow.posterior.predictive import interval, log_count

MEANS, SDS = np.array([0.4, 3.0, 60.0]), np.array([0.7, 4.0, 30.0])


def counts_of(mean: float, sd: float) -> Any:
    return stats.nbinom(mean**2 / (sd**2 - mean), mean / sd**2) if sd**2 > mean else stats.poisson(mean)


@pytest.mark.parametrize("sds", [SDS, 0.9 * np.sqrt(MEANS)], ids=["dispersed", "poisson"])
def test_counts(sds: np.ndarray) -> None:
    """The smallest and the largest count beyond which less than a tail of the probability lies."""
    y = np.array([0.0, 5.0, 71.0])
    low, high = interval("poisson", 0.9, MEANS, sds)
    found = log_count(y, MEANS, sds)
    for i, (mean, sd) in enumerate(zip(MEANS, sds, strict=True)):
        of = counts_of(mean, sd)
        np.testing.assert_allclose([of.mean(), of.std()], [mean, max(sd, np.sqrt(mean))])
        assert found[i] == pytest.approx(of.logpmf(y[i]))
        assert of.cdf(low[i] - 1) < 0.05 <= of.cdf(low[i])
        assert of.cdf(high[i] - 1) < 0.95 <= of.cdf(high[i])


def test_measurements() -> None:
    """The standard deviation is that of the variable, also of Student's t."""
    low, high = interval("gaussian", 0.8, MEANS, SDS)
    np.testing.assert_allclose([stats.norm.cdf(low, MEANS, SDS), stats.norm.sf(high, MEANS, SDS)], 0.1)
    degrees = np.array([3.0, 8.0, 200.0])
    low, high = interval("gaussian", 0.8, MEANS, SDS, degrees)
    for i in range(3):
        of = stats.t(degrees[i], MEANS[i], SDS[i] / stats.t(degrees[i]).std())
        assert of.std() == pytest.approx(SDS[i])
        assert (of.cdf(low[i]), of.sf(high[i])) == pytest.approx((0.1, 0.1))


def test_binary_values() -> None:
    low, high = interval("bernoulli", 0.9, np.array([0.01, 0.5, 0.99]), np.ones(3))
    assert (low.tolist(), high.tolist()) == ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0])
