"""Predictive distributions made of mean and standard deviation, against those of SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from factorflow.posterior.predictive import interval, log_density, tails, two_sided

MEANS, SDS = np.array([0.4, 3.0, 60.0]), np.array([0.7, 4.0, 30.0])


def counts_of(mean: float, sd: float) -> Any:
    return stats.nbinom(mean**2 / (sd**2 - mean), mean / sd**2) if sd**2 > mean else stats.poisson(mean)


@pytest.mark.parametrize("sds", [SDS, 0.9 * np.sqrt(MEANS)], ids=["dispersed", "poisson"])
def test_counts(sds: np.ndarray) -> None:
    """The smallest and the largest count beyond which less than a tail of the probability lies."""
    y = np.array([0.0, 5.0, 71.0])
    low, high = interval("poisson", 0.9, MEANS, sds)
    found = log_density("poisson", y, MEANS, sds, {})
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


def test_probability_below_and_at_a_value() -> None:
    """Of SciPy's distributions, missing values staying missing."""
    y = np.array([[0.0], [2.0], [55.0]])
    for sds in (SDS, 0.9 * np.sqrt(MEANS)):
        first, _, at = tails("poisson", y, MEANS, sds)
        for i, (mean, sd) in enumerate(zip(MEANS, sds, strict=True)):
            of = counts_of(mean, sd)
            np.testing.assert_allclose(first[:, i], of.cdf(y[:, 0] - 1), rtol=1e-9)
            np.testing.assert_allclose(at[:, i], of.pmf(y[:, 0]), rtol=1e-9)
    first, _, at = tails("gaussian", y, MEANS, SDS)
    np.testing.assert_allclose(first, stats.norm.cdf(y, MEANS, SDS))
    assert not at.any()
    p = np.array([0.1, 0.8])
    first, _, at = tails("bernoulli", np.array([[0.0], [1.0]]), p, np.sqrt(p * (1 - p)))
    np.testing.assert_allclose(first, [[0.0, 0.0], [0.9, 0.2]])
    np.testing.assert_allclose(at, [[0.9, 0.2], [0.1, 0.8]])
    for likelihood in ("gaussian", "bernoulli", "poisson"):
        gone = tails(likelihood, np.array([np.nan]), np.array([0.5]), np.array([1.0]))  # type: ignore[arg-type]
        assert np.isnan(gone).all()


def test_surprise_counts_both_sides_and_half_of_what_is_equal() -> None:
    y = np.array([-3.0, 0.4, 5.0, 9.0, -8.2])
    expected = 2 * stats.norm.sf(np.abs(y - 0.4) / 0.7)
    found = two_sided(*tails("gaussian", y, np.full(5, 0.4), np.full(5, 0.7)))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert 0 < found[3] == pytest.approx(found[4], rel=1e-9)  # as far above as below
    far = two_sided(*tails("poisson", np.array([60.0, 90.0]), np.full(2, 3.0), np.full(2, 1.5)))
    assert far[0] > far[1] > 0
    for value in range(12):
        of = counts_of(3.0, 4.0)
        lower = of.cdf(value - 1) + 0.5 * of.pmf(value)
        found = two_sided(*tails("poisson", np.array([float(value)]), np.array([3.0]), np.array([4.0])))
        assert found[0] == pytest.approx(2 * min(lower, 1 - lower))
    found = two_sided(*tails("bernoulli", np.array([0.0, 1.0]), np.array([0.02, 0.02]), np.ones(2)))
    np.testing.assert_allclose(found, [0.98, 0.02])  # twice half of each probability, but for rounding


def test_density_of_a_measurement_and_of_counts() -> None:
    y = np.array([0.0, 4.0, 70.0])
    np.testing.assert_allclose(log_density("gaussian", y, MEANS, SDS, {}), stats.norm.logpdf(y, MEANS, SDS))
    found = log_density("poisson", y, MEANS, SDS, {})
    np.testing.assert_allclose(
        found, [counts_of(m, s).logpmf(k) for k, m, s in zip(y, MEANS, SDS, strict=True)]
    )
    ends = log_density("bernoulli", np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.ones(2), {})
    assert np.isfinite(ends).all()
    assert (ends < -30).all()


def test_intervals_of_binary_values_leave_out_what_a_tail_holds() -> None:
    """A value is outside where its probability is at most a tail: 0.05 of 0.9, 0.25 of 0.5."""
    mean = np.array([0.04, 0.06, 0.2, 0.3, 0.7, 0.8, 0.94, 0.96])
    for share in (0.9, 0.5):
        tail = 0.5 * (1 - share)
        low, high = interval("bernoulli", share, mean, np.ones(8))
        np.testing.assert_array_equal(high, mean > tail)
        np.testing.assert_array_equal(low, 1 - mean <= tail)
    few = np.array([1.0])  # Student's t has a standard deviation above two degrees of freedom only
    low, high = interval("gaussian", 0.8, np.zeros(1), np.ones(1), few)
    reach = stats.t.ppf(0.9, 2.01) * np.sqrt(0.01 / 2.01)
    np.testing.assert_allclose([low[0], high[0]], [-reach, reach])
