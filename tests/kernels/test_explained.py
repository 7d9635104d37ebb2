"""Shares of variance: missing where nothing was measured, 0 where nothing varies, and right far from 0."""

from __future__ import annotations

import numpy as np
import pytest

from factorflow.kernels.explained import explained_share, total_squares


def sums(values: list[np.ndarray], shift: np.ndarray | float = 0.0) -> list[np.ndarray]:
    """Return number, sum and sum of squares by group, less a constant of each feature."""
    parts = []
    for part in values:
        about = np.where(np.isnan(part), 0.0, part - shift)
        parts.append([(~np.isnan(part)).sum(0).astype(float), about.sum(0), (about**2).sum(0)])
    return [np.stack(column) for column in zip(*parts, strict=True)]


def test_total_squares() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 4)) + 5.0, rng.normal(size=(20, 4)) + 3.0
    b[:, 0] = np.nan  # not measured in this group
    a[:, 1], b[:, 1] = 0.1, 0.1  # constant
    a[:, 2] -= a[:, 2].mean()
    b[:, 2] = 0.0  # constant here, at the mean
    found = total_squares(*sums([a, b]))
    mean = np.nanmean(np.concatenate([a, b]), axis=0)
    np.testing.assert_allclose(found[:, 3], [((part[:, 3] - mean[3]) ** 2).sum() for part in (a, b)])
    assert found[0, 0] == pytest.approx(((a[:, 0] - mean[0]) ** 2).sum())
    assert np.isnan(found[1, 0])
    assert found[:, 1].tolist() == [0.0, 0.0]
    assert found[0, 2] > 0
    assert found[1, 2] == 0.0


def test_one_entry_has_no_variance() -> None:
    assert np.isnan(total_squares(*sums([np.ones((1, 2))]))).all()


def test_far_from_zero() -> None:
    """Less a constant, squares tell the variance of features with means of any size."""
    values = np.random.default_rng(0).normal(size=(50, 2)) + 1e9
    found = total_squares(*sums([values], values[0]))
    np.testing.assert_allclose(found[0], 50 * values.var(axis=0), rtol=1e-6)


def test_explained_share() -> None:
    total = np.array([4.0, 0.0, np.nan])
    np.testing.assert_array_equal(explained_share(total, np.array([1.0, 2.0, 0.0])), [0.75, 0.0, np.nan])
