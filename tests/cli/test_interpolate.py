"""`factorflow interpolate`, `predict --new-obs`: tables at places, and of samples known by metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import factorflow as ff
from factorflow.cli import app
from factorflow.data.ingest.checks import DataWarning


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit of two groups over time, whose passes are few: what it found does not matter."""
    folder = tmp_path_factory.mktemp("interpolate")
    settings: dict[str, Any] = {"views": {"a": ("gaussian", 30)}, "n_factors": 2, "smooth": 2, "r2": 0.7}
    data = ff.simulate("sparse_gfa", folder / "data.zarr", n_samples=80, groups=2, seed=3, **settings)
    model = ff.models.SparseGFA(n_factors=3, smooth_covariates="time", max_iter=12)
    ff.fit(data, model, out=folder / "fit.zarr", progress=False)
    return folder / "fit.zarr"


@pytest.fixture(scope="module")
def places(fitted: Path) -> Path:
    """The first column is text, which is not taken for names of samples."""
    path = fitted.with_name("places.csv")
    path.write_text("group,time\ngroup1,0.25\ngroup0,0.5\ngroup1,0.75\n")
    return path


def run(*words: object, code: int = 0, command: str = "interpolate") -> Any:
    done = CliRunner().invoke(app, [command, *map(str, words), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_courses_by_place_and_factor(fitted: Path, places: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"c.{suffix}"
    said = run(fitted, "--at", places, "--out", out, "--interval", 0.5)
    posterior = ff.open_posterior(fitted)
    n = len(posterior.factors)
    assert said == {"written": str(out), "n_points": 3, "n_rows": 3 * n}
    table = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out, sep=None, engine="python")
    values = [f"{word}_{key}" for word in "fz" for key in ("mean", "sd", "lower", "upper")]
    assert list(table.columns) == ["time", "group", "factor", *values]
    assert table["factor"].tolist() == posterior.factors * 3
    assert table["group"].tolist() == ["group1"] * n + ["group0"] * n + ["group1"] * n
    frame = pd.DataFrame({"time": [0.25, 0.5, 0.75], "group": ["group1", "group0", "group1"]})
    wanted = posterior.interpolate(frame, interval=0.5)
    for name in values:
        np.testing.assert_allclose(table[name], wanted[name].values.ravel(), rtol=1e-12)


def test_data_of_a_view(fitted: Path, places: Path, tmp_path: Path) -> None:
    run(fitted, "--at", places, "--out", tmp_path / "a.csv", "--view", "a", "--group", "group0")
    table = pd.read_csv(tmp_path / "a.csv")
    assert list(table.columns) == ["time", "group", "feature_a", "mean", "sd", "lower", "upper"]
    wanted = ff.open_posterior(fitted).interpolate([0.25, 0.5, 0.75], groups="group0", view="a")
    np.testing.assert_allclose(table["upper"], wanted["upper"].values.ravel(), rtol=1e-12)
    assert set(table["group"]) == {"group0"}


def test_all_groups_of_a_column_alone(fitted: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time\n0.5\n0.6\n")
    assert run(fitted, "--at", tmp_path / "t.csv", "--out", tmp_path / "c.csv")["n_points"] == 4


@pytest.mark.thorough
def test_what_is_refused(fitted: Path, places: Path, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("tme,group\n0.5,group0\n")
    out, at = tmp_path / "c.csv", ["--at", places]
    for words, told in (
        (["--at", tmp_path / "other.csv", "--out", out], "--at no time"),
        (["--at", tmp_path / "none.csv", "--out", out], "none.csv"),
        ([*at, "--out", tmp_path / "c.xlsx"], "ends in .csv"),
        ([*at, "--out", places], "does not exist"),
        ([*at, "--out", out, "--group", "group9"], "--group group9"),
        ([*at, "--out", out, "--view", "b"], "b"),
        ([*at, "--out", out, "--interval", 90], "--interval 90"),
    ):
        assert told in run(fitted, *words, code=2)["error"]["message"]
    assert not out.exists()
    plain = ff.fit(fitted.with_name("data.zarr"), n_factors=2, max_iter=2, progress=False)
    plain.save(tmp_path / "plain.zarr")
    assert "smooth" in run(tmp_path / "plain.zarr", *at, "--out", out, code=2)["error"]["message"]


def test_samples_known_by_metadata_alone(fitted: Path, tmp_path: Path) -> None:
    """`predict --new-obs` writes what `predict(new_obs=)` returns; wrong tables are refused by name."""
    opened = ff.open_posterior(fitted)
    view, table = opened.views[0], tmp_path / "new.csv"
    new = pd.DataFrame({"time": [0.2, 0.8], "group": ["group0", "group1"]}, index=["one", "two"])
    new.to_csv(table)
    out = tmp_path / "new-view.csv"
    run(fitted, view, "--new-obs", table, "--out", out, command="predict")
    written = pd.read_csv(out, index_col=0)
    expected = opened.predict(view, new_obs=new)["mean"].to_pandas()
    np.testing.assert_allclose(written.to_numpy(), expected.to_numpy(), rtol=1e-9)
    assert written.index.tolist() == ["one", "two"]
    with pytest.warns(DataWarning, match="new_obs: time says nothing of samples without a group"):
        nobody = opened.predict(view, new_obs=new.drop(columns="group"))
    np.testing.assert_allclose(nobody["mean"].values[0], nobody["mean"].values[1], rtol=1e-12)
    assert np.mean(nobody["sd"].values) > 1.02 * np.mean(opened.predict(view, new_obs=new)["sd"].values)
    (tmp_path / "wrong.csv").write_text("sample,tme\na,1\n")
    for options, text in (
        (["--new-obs", tmp_path / "wrong.csv"], "no column time"),
        (["--new-obs", table, "--factor", "1"], "left out beside these"),
        (["--new-obs", table, "--start", "3"], "left out beside new_obs"),
    ):
        error = run(fitted, view, *options, "--out", tmp_path / "x.csv", code=2, command="predict")
        assert text in error["error"]["message"]
    assert not (tmp_path / "x.csv").exists()
