"""New samples are shown with the views, features and levels that the model was fitted to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from factorflow.data import Dataset, write_dataset
from factorflow.data.aligned_dataset import AlignedDataset
from factorflow.errors import InputError

KINDS = {"y": "poisson", "site": "categorical", "effort": "covariate"}


def made(path: Path, sites: list[str], columns: list[str], seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    n = 40
    views = {
        "y": rng.poisson(3.0, (n, 1)),
        "site": np.array(sites * n)[:n],
        "effort": rng.random((n, len(columns))) + 1.0,
    }
    given = {name: KINDS[name] for name in ("site", "effort")}
    return write_dataset(
        path, views, {"y": "poisson"}, inputs=given, features={"effort": columns}, block_rows=16
    )


def test_levels_and_covariates_are_matched_by_name(tmp_path: Path) -> None:
    fitted = made(tmp_path / "a", ["b", "d", "c"], ["hours", "traps"], 0)
    new = made(tmp_path / "b", ["d", "a", "b"], ["traps", "nights"], 1)
    meta = fitted.meta()
    aligned = AlignedDataset(new, meta, {view.name: fitted.features(view.name) for view in meta.views})
    kinds = {view.name: (view.n_features, view.missing) for view in aligned.meta.views}
    assert kinds == {"y": (1, "none"), "site": (3, "scattered"), "effort": (2, "scattered")}
    for number in range(new.n_blocks):
        block, truth = aligned.read(number, list(KINDS))
        assert truth == {}
        was = new.block(number)
        names = new.features("site")[was.data["site"]]
        wanted = [{"b": 0, "c": 1, "d": 2}.get(name, -1) for name in names.tolist()]
        assert block.data["site"].tolist() == wanted
        assert block.data["site"].dtype == np.int32
        assert np.isnan(block.data["effort"][:, 0]).all()  # nobody counted hours
        np.testing.assert_array_equal(block.data["effort"][:, 1], was.data["effort"][:, 0])
        np.testing.assert_array_equal(block.data["y"], was.data["y"])


def test_samples_with_no_known_feature_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fitted = write_dataset(tmp_path / "a", {"y": rng.random((40, 3))}, features={"y": ["a", "b", "c"]})
    new = write_dataset(tmp_path / "b", {"y": rng.random((40, 3))}, features={"y": ["d", "e", "f"]})
    aligned = AlignedDataset(new, fitted.meta(), {"y": fitted.features("y")})
    with pytest.raises(InputError, match="features of view y such as d: expected names .* such as a"):
        aligned.meta  # noqa: B018


def test_missing_codes_stay_missing(tmp_path: Path) -> None:
    fitted = made(tmp_path / "a", ["b", "d", "c"], ["hours"], 0)
    new = made(tmp_path / "b", ["d", "", "c"], ["hours"], 1)
    meta = fitted.meta()
    aligned = AlignedDataset(new, meta, {view.name: fitted.features(view.name) for view in meta.views})
    block, _ = aligned.read(0, list(KINDS))
    assert block.data["site"].tolist() == ([2, -1, 1] * 6)[:16]
    without = AlignedDataset(
        new, fitted.meta(["y", "effort"]), {"y": fitted.features("y"), "effort": np.array(["hours"])}
    )
    assert set(without.read(0, ["y", "effort"])[0].data) == {"y", "effort"}


def test_groups_and_moments_of_new_samples(tmp_path: Path) -> None:
    """A group that the fit has not is -1, no other's; of features that they lack there are no moments."""
    rng = np.random.default_rng(0)
    fitted = write_dataset(
        tmp_path / "a", {"y": rng.random((40, 3))}, features={"y": ["a", "b", "c"]}, groups=["u", "v"] * 20
    )
    values, groups = rng.random((30, 3)), np.array(["v", "w", "u"] * 10)
    values[:4, 2] = np.nan
    new = write_dataset(tmp_path / "b", {"y": values}, features={"y": ["c", "d", "a"]}, groups=groups)
    aligned = AlignedDataset(new, fitted.meta(), {"y": fitted.features("y")})
    codes = np.concatenate([aligned.block(i).columns["group"] for i in range(aligned.n_blocks)])
    assert codes.tolist() == [{"u": 0, "v": 1}.get(name, -1) for name in groups.tolist()]
    found = aligned.moments("y", "mean", "n_observed")
    np.testing.assert_allclose(
        found["mean"], [np.nanmean(values[:, 2]), np.nan, values[:, 0].mean()], rtol=1e-6
    )
    assert found["n_observed"].tolist() == [26, 0, 30]
