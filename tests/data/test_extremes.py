"""A single entry far from all others of its feature is named at ingest; heavy tails are not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorflow.core.records import from_record
from factorflow.data import DataWarning, open_dataset, write_dataset
from factorflow.data.store.extremes import Extremes
from factorflow.data.store.moments import Survey


def measurements(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(60, 2)) @ rng.normal(size=(2, 30)) + 0.5 * rng.normal(size=(60, 30))


def with_value(values: Any, row: int, column: int, value: float) -> Any:
    values = values.copy()
    values[row, column] = value
    return values


def rare(seed: int = 0) -> Any:
    """Return counts of which one gene has a single large one, as large as those of other genes."""
    counts = np.random.default_rng(seed).negative_binomial(0.5, 0.001, (80, 20))
    counts[:, 4] = 0
    return with_value(counts, 7, 4, 900)


ALONE = {
    "measurement": (with_value(measurements(), 3, 2, 1e4), 3, 2, 1e4),
    "negative": (with_value(measurements(), 59, 0, -2e4), 59, 0, -2e4),
    "far from zero": (with_value(1e4 + measurements(), 8, 29, 1e6), 8, 29, 1e6),
    "missing entries": (
        with_value(np.where(measurements(1) > 1.0, np.nan, measurements()), 5, 5, 1e5),
        5,
        5,
        1e5,
    ),
    "count": (with_value(np.random.default_rng(0).poisson(3, (60, 10)), 3, 4, 4_000_000_000), 3, 4, 4e9),
    "dispersed count": (
        with_value(np.random.default_rng(1).negative_binomial(0.3, 0.01, (60, 10)), 3, 4, 10**7),
        3,
        4,
        1e7,
    ),
    "count of a rare gene": (with_value(rare(), 7, 4, 10**8), 7, 4, 1e8),
}


@pytest.mark.parametrize("block_rows", [32, 64])
@pytest.mark.parametrize("case", ALONE)
def test_named(case: str, block_rows: int, tmp_path: Path) -> None:
    values, row, column, value = ALONE[case]
    place = f"{value:.10g} of sample 'sample{row}', feature 'feature{column}'"
    with pytest.warns(DataWarning, match=f"as far off as all others.*{place}"):
        dataset = write_dataset(tmp_path / "d", {"y": values}, block_rows=block_rows)
    (outlier,) = open_dataset(tmp_path / "d").manifest.views[0].outliers
    assert (outlier.sample, outlier.feature, outlier.value) == (f"sample{row}", f"feature{column}", value)
    others = np.delete(values[:, column], row)
    assert outlier.low == pytest.approx(np.nanmin(others))
    assert outlier.high == pytest.approx(np.nanmax(others))
    assert place in str(dataset)
    assert dataset.describe()["views"][0]["outliers"][0]["value"] == value


RIGHT = {
    "normal": measurements(),
    "log-normal": np.random.default_rng(0).lognormal(0.0, 1.5, (60, 300)),
    "rare gene": rare(),
    "rare species, as shares": (lambda counts: counts / counts.sum(axis=1, keepdims=True))(rare()),
    "sparse counts": np.random.default_rng(0).negative_binomial(0.01, 0.001, (200, 300)),
    "two of them": with_value(with_value(measurements(), 3, 2, 999.0), 9, 2, 999.0),
    "constant": np.where(np.arange(30) == 4, 5.0, measurements()),
    "few samples": np.where(np.arange(3)[:, None] == 1, 1e6, np.random.default_rng(0).normal(size=(3, 5))),
    "binary": (measurements() > 4.0).astype(float),
}


@pytest.mark.parametrize("case", RIGHT)
def test_not_named(case: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = write_dataset(tmp_path / "d", {"y": RIGHT[case]}, drop_empty_features=True)
    assert not [w for w in caught if "far off" in str(w.message)]
    assert dataset.manifest.views[0].outliers == ()


def test_manifest_of_before(tmp_path: Path) -> None:
    from factorflow.data.store.layout import ViewEntry

    dataset = write_dataset(tmp_path / "d", {"y": measurements()})
    record = {key: value for key, value in vars(dataset.manifest.views[0]).items() if key != "outliers"}
    assert from_record(ViewEntry, record) == dataset.manifest.views[0]


@pytest.mark.parametrize("size", [1, 7, 200])
def test_any_cut_finds_the_same(size: int) -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(200, 8))
    values[rng.random(values.shape) < 0.2] = np.nan
    values[11, 3], values[150, 6] = 1e6, -1e6
    survey = Survey(8)
    for start in range(0, 200, size):
        survey.update(values[start : start + size])
    found = survey.alone()
    assert [(row, feature, value) for row, feature, value, *_ in found] == [(11, 3, 1e6), (150, 6, -1e6)]
    for row, feature, _, low, high in found:
        others = np.delete(values[:, feature], row)
        assert (low, high) == (np.nanmin(others), np.nanmax(others))


def test_of_nothing() -> None:
    extremes = Extremes(3)
    assert extremes.alone(np.zeros(3, np.int64), np.zeros(3, np.int64)) == []
