"""Rows by their entries are the dense ones, whatever is hidden, missing or in another order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factorflow import write_dataset
from factorflow.core.kinds import KINDS
from factorflow.data.aligned_dataset import AlignedDataset
from factorflow.data.holdout import Holdout
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.size_factors import level_sums, log_size_factors

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

COUNTS = KINDS["poisson"]
N, D = 70, 12


def counts() -> pd.DataFrame:
    values = np.random.default_rng(0).poisson(0.3, (N, D)).astype(float)
    return pd.DataFrame(values, index=[f"s{i}" for i in range(N)], columns=[f"g{i}" for i in range(D)])


def views() -> dict[str, Any]:
    """Complete rows, rows that are absent, features that a file lacks, and single gaps."""
    absent, gaps = counts(), counts()
    absent.iloc[3:9] = np.nan
    gaps.iloc[5, 2] = gaps.iloc[40, 7] = np.nan
    gaps.iloc[11] = np.nan
    return {
        "whole": counts(),
        "absent": absent,
        "files": [counts().iloc[:30, :9], counts().iloc[30:, 4:]],
        "gaps": gaps,
    }


@pytest.mark.parametrize("name", views())
@pytest.mark.parametrize("unit", [None, "entry", "row", "count"])
def test_they_are_the_dense_ones(tmp_path: Path, name: str, unit: Any) -> None:
    layouts = ("dense",) if name == "gaps" else ("dense", "sparse")
    holdout = None if unit is None else Holdout(0.3, 5, unit)
    for layout in layouts:
        dataset = write_dataset(
            tmp_path / layout,
            {"x": views()[name]},
            layout={"x": layout},
            likelihoods={"x": "poisson"},
            block_rows=32,
        )
        for number in range(dataset.n_blocks):
            block, truth = dataset.read(number, ["x"], holdout)
            found, same = dataset.read(number, ["x"], holdout, sparse=["x"])
            rows = found.data["x"]
            assert isinstance(rows, SparseRows)
            np.testing.assert_array_equal(rows.dense(COUNTS), block.data["x"])
            np.testing.assert_array_equal(rows.observed(), ~np.isnan(block.data["x"]))
            np.testing.assert_array_equal(rows.part(3, 6).dense(COUNTS), block.data["x"][3:6])
            np.testing.assert_array_equal(rows.totals, np.nansum(block.data["x"], axis=1))
            np.testing.assert_array_equal(rows.n_observed(), (~np.isnan(block.data["x"])).sum(axis=0))
            assert not rows.columns.flags.writeable
            average = np.linspace(0.1, 0.5, rows.n_features)
            for method in ("total", "median"):
                np.testing.assert_allclose(
                    level_sums(method, rows), level_sums(method, block.data["x"]), rtol=1e-12, atol=1e-12
                )
                np.testing.assert_allclose(
                    log_size_factors(method, average, rows),
                    log_size_factors(method, average, block.data["x"]),
                    rtol=1e-12,
                    atol=1e-12,
                )
            if holdout is not None:
                np.testing.assert_array_equal(same["x"], truth["x"])
                assert truth["x"].size
                for here, there in zip(found.hidden["x"], block.hidden["x"], strict=True):
                    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("name", views())
@pytest.mark.parametrize("lacks", [False, True])
def test_features_in_another_order(tmp_path: Path, name: str, lacks: bool) -> None:
    """As new samples are aligned with a model: what they lack is missing, what it does not know left out."""
    dataset = write_dataset(tmp_path / "d", {"x": views()[name]}, likelihoods={"x": "poisson"}, block_rows=32)
    wanted = dataset.features("x")[::-1][:9] if name == "files" else dataset.features("x")[::-1]
    if lacks:
        wanted = np.insert(wanted, 2, "unknown")[1:]
    fitted = dataset.meta()
    view = fitted.views[0].__class__("x", "poisson", len(wanted), "none")
    meta = fitted.__class__(N, 3, 32, (view,), sparse_views=(view.name,))
    aligned = AlignedDataset(dataset, meta, {"x": wanted})
    assert aligned.meta.sparse_views
    for number in range(3):
        rows = aligned.read(number, sparse=["x"])[0].data["x"]
        np.testing.assert_array_equal(rows.dense(COUNTS), aligned.block(number).data["x"])
        assert (np.diff(np.repeat(np.arange(rows.counts.size), rows.counts) * 99 + rows.columns) > 0).all()


def test_a_view_that_new_samples_lack(tmp_path: Path) -> None:
    dataset = write_dataset(
        tmp_path / "d", {"x": counts(), "y": counts()}, likelihoods={"x": "poisson", "y": "poisson"}
    )
    other = write_dataset(tmp_path / "o", {"x": counts()}, likelihoods={"x": "poisson"})
    features = {name: dataset.features(name) for name in "xy"}
    meta = dataset.meta()
    block, _ = AlignedDataset(other, meta, features).read(0, sparse=["x", "y"])
    assert block.data["y"].absent.all()
    assert np.isnan(block.data["y"].dense(COUNTS)).all()


def test_memory_of_blocks_is_that_of_their_entries(tmp_path: Path) -> None:
    """The fullest block takes what a model that gets entries is told that rows take; not of dense ones."""
    values = np.random.default_rng(0).poisson(0.1, (256, 400))
    values[64:128] *= 3
    dataset = write_dataset(
        tmp_path / "d", {"x": values}, likelihoods={"x": "poisson"}, layout={"x": "sparse"}, block_rows=64
    )
    meta = dataset.meta()
    sparse = meta.__class__(**{**vars(meta), "sparse_views": ("x",)})
    assert meta.row_bytes == 4 * 400
    fullest = max(dataset.read(i, sparse=["x"])[0].data["x"].nbytes for i in range(4))
    assert fullest <= 64 * sparse.row_bytes <= 1.05 * fullest + 64
