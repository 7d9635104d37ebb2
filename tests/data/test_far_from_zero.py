"""Measurements far from 0 keep their differences on disk: single precision where it holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factorflow.data import open_dataset, write_dataset
from factorflow.data.ingest.append import append_rows
from factorflow.data.store.moments import Survey

Y = np.round(np.random.default_rng(3).standard_normal((100, 4)) * 1024) / 1024
FAR = Y + np.array([0.0, 1e7, -1e9, 1e12])


def as_csv(folder: Path, values: Any) -> Path:
    path = folder / "y.csv"
    pd.DataFrame(values, [f"s{i}" for i in range(100)], list("abcd")).to_csv(path)
    return path


def as_parquet(folder: Path, values: Any) -> Path:
    path = folder / "y.parquet"
    pd.DataFrame(values, [f"s{i}" for i in range(100)], list("abcd")).to_parquet(path)
    return path


SOURCES = {
    "array": lambda folder, values: values,
    "frame": lambda folder, values: pd.DataFrame(values),
    "csv": as_csv,
    "parquet": as_parquet,
    "list": lambda folder, values: values.tolist(),
}


@pytest.mark.parametrize("likelihoods", [None, {"y": "gaussian"}])
@pytest.mark.parametrize("source", SOURCES)
def test_read_as_they_are(source: str, likelihoods: Any, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", {"y": SOURCES[source](tmp_path, FAR)}, likelihoods, block_rows=32)
    (entry,) = dataset.manifest.views
    assert entry.dtype == "float64"
    np.testing.assert_allclose(dataset.values("y"), FAR, rtol=1e-15)
    assert entry.location[0] == 0.0
    np.testing.assert_allclose(entry.location[1:], FAR[:, 1:].mean(axis=0))
    assert open_dataset(tmp_path / "d").meta().views[0].location == entry.location
    np.testing.assert_allclose(dataset.moments("y")["variance"], FAR.var(axis=0), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:view 'y'.*constant")
@pytest.mark.parametrize(
    "values",
    [Y, Y + 100.0, np.where(np.arange(4) == 1, 0.1, Y), np.where(np.arange(4) == 1, 1e9, Y)],
    ids=["near", "one hundred", "constant", "constant far away"],
)
def test_others_are_stored_in_single_precision(values: Any, tmp_path: Path) -> None:
    (entry,) = write_dataset(tmp_path / "d", {"y": values}).manifest.views
    assert entry.dtype == "float32"
    assert entry.location == ()


def test_a_need_that_shows_late(tmp_path: Path) -> None:
    """The first, middle and last block are looked at before; the feature is observed in another alone."""
    values = np.tile(Y, (2, 1))
    values[:, 2] = np.nan
    values[40:60, 2] = FAR[40:60, 2]
    dataset = write_dataset(tmp_path / "d", {"y": values}, {"y": "gaussian"}, block_rows=32)
    assert dataset.manifest.views[0].dtype == "float64"
    np.testing.assert_array_equal(dataset.values("y"), values)
    dataset.verify()


def test_appended(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", {"y": FAR})
    grown = append_rows(dataset.path, {"y": FAR})
    np.testing.assert_array_equal(grown.values("y"), np.concatenate([FAR, FAR]))


def test_large_counts_are_exact(tmp_path: Path) -> None:
    counts = np.array([[16_777_217, 3], [1, 2**32 - 1]])
    dataset = write_dataset(tmp_path / "d", {"y": counts})
    stored = dataset.tree["y"]["values"].values
    np.testing.assert_array_equal(stored, counts)


@pytest.mark.parametrize(("spread", "double"), [(10.0, True), (20.0, True), (70.0, False), (1000.0, False)])
def test_how_much_of_the_spread_may_be_rounded_off(spread: float, double: bool) -> None:
    """About 2^20 single precision has steps of 1/8, errors of 0.036: a thousandth of 36."""
    survey = Survey(2)
    noise = np.random.default_rng(0).normal(size=(400, 2))
    for block in np.split(2.0**20 + 1e5 + spread * noise * [1.0, 1e4], 4):
        survey.update(block)
    assert survey.needs_double is double


def test_moments_of_blocks_are_those_of_all_rows() -> None:
    """Of few rows too: squared deviations are divided by the number of entries."""
    survey, values = Survey(3), np.random.default_rng(0).normal(5.0, 2.0, (11, 3))
    values[2, 1], values[:, 2] = np.nan, [np.nan] * 10 + [4.0]
    for block in np.split(values, [3, 4, 9]):
        survey.update(block)
    assert survey.n_observed.tolist() == [11, 10, 1]
    np.testing.assert_allclose(survey.mean, np.nanmean(values, axis=0), rtol=1e-12)
    np.testing.assert_allclose(survey.variance, np.nanvar(values, axis=0), rtol=1e-12)
    assert (survey.n_missing, survey.n_absent, survey.missing) == (11, 0, "scattered")
