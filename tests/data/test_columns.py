"""Columns of sample metadata keep names and content, whatever they are called; older stores are read."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.data import Dataset, DataWarning
from factorflow.data.store.names import node_names
from factorflow.errors import InputError

N = 24
IDS = [f"s{i:02d}" for i in range(N)]
NAMES = [
    "dose mg/kg",
    "dose mg_kg",
    "Dose mg_kg",
    "",
    ".",
    "..",
    "x/",
    "__x",
    "zarr.json",
    "obs",
    "x",
    "y",
    "a" * 300,
    "é",
    "e\u0301",
]


def written(path: Path, obs: Any, **options: Any) -> Dataset:
    values = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 4)), index=IDS)
    return ff.write_dataset(path / "d.zarr", {"x": values}, obs=obs, overwrite=True, **options)


@pytest.mark.thorough
def test_names_that_no_store_can_have(tmp_path: Path) -> None:
    obs = pd.DataFrame({name: np.arange(N) + i for i, name in enumerate(NAMES)}, index=IDS)
    data = written(tmp_path, obs)
    pd.testing.assert_frame_equal(data.obs, obs.rename_axis("obs"))
    posterior = ff.fit(data, ff.models.SparseGFA(n_factors=1, max_iter=2, warmup_iter=1), progress=False)
    out = tmp_path / "p.zarr"
    stored = ff.fit(
        data, ff.models.SparseGFA(n_factors=1, max_iter=2, warmup_iter=1), out=out, progress=False
    )
    for found in (posterior, stored, ff.open_posterior(out)):
        pd.testing.assert_frame_equal(found.sample_metadata(), obs.rename_axis("obs"))


def test_nodes_differ_in_more_than_case() -> None:
    found = node_names(NAMES, reserved=["obs"])
    assert found["dose mg_kg"] != "dose mg_kg"  # the first that needs a name has it
    assert found["x"] == "x"
    assert len({name.casefold() for name in found.values()}) == len(NAMES)
    for name in found.values():
        assert name.strip(" .") == name != ""
        assert not name.startswith("__")
        assert "/" not in name
        assert len(name.encode()) < 255


@pytest.mark.parametrize("given", ["site", None])
def test_a_column_called_group_beside_groups(tmp_path: Path, given: str | None) -> None:
    """Both are kept: the column under its name, the groups under another; what decides is the groups."""
    obs = pd.DataFrame(
        {"site": ["A"] * 12 + ["B"] * 12, "group": [*"BA"] * 12, "time": np.arange(N) * 0.5}, IDS
    )
    groups = given or list(obs["site"])
    with pytest.warns(DataWarning, match="column 'group' of its own: the groups are in the column 'group_'"):
        data = written(tmp_path, obs, groups=groups)
    assert data.obs["group"].tolist() == obs["group"].tolist()
    assert data.obs["group_"].tolist() == obs["site"].tolist()
    assert data.manifest.group_sizes == (12, 12)
    with pytest.warns(DataWarning, match="'time'.* are in the column 'time_'"):
        data = written(tmp_path, obs.drop(columns="group"), sequences="site")
    assert data.obs["time"].tolist() == obs["time"].tolist()
    assert data.obs["time_"].tolist() == [*range(12)] * 2


def test_a_column_that_says_the_same_is_no_other(tmp_path: Path) -> None:
    obs = pd.DataFrame({"group": [1] * 12 + [2] * 12, "sequence": ["u"] * 6 + ["v"] * 18}, IDS)
    data = written(tmp_path, obs, groups="group", sequences="sequence")
    assert list(data.obs) == ["group", "sequence", "time"]
    assert data.groups == ("1", "2")
    assert data.obs["group"].dtype == np.int64


def test_names_that_are_one_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every name once"):
        written(tmp_path, pd.DataFrame({1: np.arange(N), "1": np.arange(N)}, index=IDS))


def test_a_changed_column_has_another_digest(tmp_path: Path) -> None:
    """The fingerprint is that of the values; a run that reads a column can tell from its digest."""
    obs = pd.DataFrame({"age": np.arange(N), "site": ["A", "B"] * 12}, IDS)
    first = written(tmp_path, obs).manifest
    same = written(tmp_path, obs).manifest
    other = written(tmp_path, obs.assign(age=obs["age"] + (obs.index == "s03"))).manifest
    assert first.obs_digests == same.obs_digests
    assert first.fingerprint == other.fingerprint
    assert first.obs_digests["age"] != other.obs_digests["age"]
    assert first.obs_digests["site"] == other.obs_digests["site"]


def test_metadata_are_in_a_group_of_their_own(tmp_path: Path) -> None:
    data = written(tmp_path, {"x": np.arange(N)})
    assert data.manifest.obs_columns == {"x": "metadata/x"}
    assert data.tree["metadata/x"].values.tolist() == [*range(N)]
    data.verify()


@pytest.fixture
def three(tmp_path: Path) -> Dataset:
    """A dataset that a version with schema 3 wrote: metadata in the root group."""
    with zipfile.ZipFile(Path(__file__).with_name("schema_3.zip")) as archive:
        archive.extractall(tmp_path)
    assert json.loads((tmp_path / "three.zarr/zarr.json").read_text())["attributes"]["schema_version"] == 3
    return ff.open_dataset(tmp_path / "three.zarr")


def test_schema_3_is_read(three: Dataset, tmp_path: Path) -> None:
    three.verify()
    obs = pd.DataFrame(
        {
            "group": ["A"] * 12 + ["B"] * 12,
            "site": ["A"] * 12 + ["B"] * 12,
            "age": np.arange(24) + 40,
            "dose mg/kg": np.linspace(0, 1, 24).round(3),
            "dose mg_kg": np.arange(24.0),
            "smoker": [True, False] * 12,
            "note": ["", "a", "b"] * 8,
        },
        index=pd.Index(IDS, name="obs"),
    )
    pd.testing.assert_frame_equal(three.obs, obs)
    assert three.fingerprint == "118ddc7c8fad542c24cffc3835eda53b54cca269472c4c87552f4ff1bd7fbce6"
    values = three.block(0).data
    again = ff.write_dataset(
        tmp_path / "four.zarr",
        {name: pd.DataFrame(values[name], IDS, three.features(name)) for name in three.views},
        {"y": "poisson"},
        obs=obs.drop(columns="group"),
        groups="site",
    )
    assert again.fingerprint == three.fingerprint
    pd.testing.assert_frame_equal(again.obs, obs)
    posterior = ff.fit(three, ff.models.SparseGFA(n_factors=1, max_iter=2, warmup_iter=1), progress=False)
    pd.testing.assert_frame_equal(posterior.sample_metadata(), obs)


def test_what_a_later_version_says_of_a_view_is_left_alone(three: Dataset) -> None:
    from factorflow.data.store.layout import Manifest

    attributes = three.manifest.attributes()
    attributes["views"][0]["limits"] = "later"
    attributes["another"] = 1
    assert Manifest.from_attributes(attributes) == three.manifest
