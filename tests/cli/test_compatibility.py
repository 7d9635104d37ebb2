"""`factorflow doctor FOLDER`: which interrupted runs a version goes on with, and what it reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import factorflow
from factorflow.cli import app
from factorflow.cli.compatibility import examine_folder
from factorflow.engine.events import CheckpointWritten
from factorflow.engine.executors import environment
from factorflow.errors import InputError
from factorflow.storage.local import Lock


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, a posterior of it, and in a folder below a run that was interrupted."""
    folder = tmp_path_factory.mktemp("results")
    data = folder / "d.zarr"
    factorflow.write_dataset(data, views={"x": np.random.default_rng(0).normal(size=(40, 5))})
    model = factorflow.models.SparseGFA(n_factors=1, max_iter=4)
    factorflow.fit(data, model, out=folder / "p.zarr", progress=False)
    (folder / "below").mkdir()

    def interrupt(event: Any) -> None:
        if isinstance(event, CheckpointWritten):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(data, model, out=folder / "below/q.zarr", checkpoint_every=1, on_event=interrupt)
    return folder


@pytest.fixture
def copy(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to be changed; its runs name their dataset by the path of the first."""
    shutil.copytree(results, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install another version, as far as runs can tell."""
    now = environment.environment()

    def upgrade(**changes: str) -> None:
        for module in ("factorflow.engine.executors.environment", "factorflow.engine.run"):
            monkeypatch.setattr(f"{module}.environment", lambda: {**now, **changes})

    return upgrade


def found(folder: Path) -> dict[str, tuple[bool, str, str]]:
    return {check.name: (check.ok, check.found, check.remedy) for check in examine_folder(folder)}


@pytest.mark.thorough
def test_all_is_well(results: Path) -> None:
    checks = found(results)
    assert checks == {
        f"run {results / 'below/q.zarr'}": (True, "goes on", ""),
        "posteriors": (True, "1 posterior can be read", ""),
        "datasets": (True, "1 dataset can be read", ""),
    }
    assert examine_folder(results / "d.zarr")[0].found == "none"


def test_a_run_of_another_version_does_not_go_on(copy: Path, upgraded: Callable[..., None]) -> None:
    """As `resume` says, too."""
    before = environment.environment()["factorflow"]
    upgraded(factorflow="99.0")
    checks = found(copy)
    ok, said, remedy = checks[f"run {copy / 'below/q.zarr'}"]
    assert not ok
    assert said == f"begun with factorflow {before}: 99.0 does not go on with it"
    assert f"End it with factorflow {before}" in remedy
    ok, said, remedy = checks["posteriors"]
    assert ok
    assert said == f"1 posterior can be read; not made by 99.0, but by {before}"
    assert "make them anew" in remedy
    with pytest.raises(InputError, match=r"a checkpoint with factorflow = .99\.0"):
        factorflow.resume(copy / "below/q.zarr", progress=False)


def test_another_build_goes_on(copy: Path, upgraded: Callable[..., None]) -> None:
    upgraded(numpy="99.0")
    ok, said, _ = found(copy)[f"run {copy / 'below/q.zarr'}"]
    assert ok
    assert said.startswith("goes on; last bits may differ: numpy ")
    with pytest.warns(RuntimeWarning, match=r"numpy .* -> 99\.0"):
        assert factorflow.resume(copy / "below/q.zarr", progress=False).run["status"] == "complete"


def test_what_else_ends_a_run(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, manifest = f"run {copy / 'below/q.zarr'}", copy / "below/q.zarr.run/manifest.json"
    whole = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**whole, "checkpoint_version": 1}))
    ok, said, _ = found(copy)[name]
    assert not ok
    assert "version 1" in said
    manifest.write_text("{")
    assert not found(copy)[name][0]
    monkeypatch.setattr("factorflow.engine.checkpoint.signature", lambda _: whole["signature"])
    whole["run"]["dataset"] = str(copy / "d.zarr")
    manifest.write_text(json.dumps(whole))
    assert found(copy)[name][0]
    factorflow.write_dataset(
        copy / "d.zarr", views={"x": np.random.default_rng(1).normal(size=(40, 5))}, overwrite=True
    )
    assert found(copy)[name][1] == f"another dataset is at {copy / 'd.zarr'}"
    shutil.rmtree(copy / "d.zarr")
    assert "expected the path of a factorflow dataset" in found(copy)[name][1]
    whole["run"]["identity"]["config"]["spike"] = True  # an option that is no more
    manifest.write_text(json.dumps(whole))
    assert found(copy)[name][1].startswith("spike = True: expected an option of factorflow.models.SparseGFA")


def test_a_run_without_manifest_is_named(copy: Path) -> None:
    """With what can be done; one that is at work, and what is of somebody else, is not."""
    place = copy / "below/q.zarr.run"
    name, manifest = f"run {copy / 'below/q.zarr'}", (place / "manifest.json").read_bytes()
    (place / "manifest.json").unlink()
    ok, said, remedy = found(copy)[name]
    assert not ok
    assert said == "manifest.json is lost: checkpoint-000002 cannot be resumed"
    assert f"Restore {place}/manifest.json from a backup. Begin it anew with --overwrite" in remedy
    (place / "lock").unlink()
    assert found(copy)[name][1] == said
    (place / "lock").touch()
    shutil.rmtree(place / "checkpoint-000002")
    assert found(copy)[name][:2] == (
        False,
        "was ended before its first checkpoint: there is nothing to go on with",
    )
    with closing(Lock(place / "lock", place)):
        assert examine_folder(copy)[0].found == "none"
    shutil.copytree(copy / "p.zarr", copy / "below/q.zarr")
    assert found(copy)[name][0]
    (place / "replaces").touch()
    assert not found(copy)[name][0]
    (place / "lock").unlink()
    (place / "manifest.json").write_bytes(manifest)
    assert "manifest" not in found(copy)[name][1]
    (copy / "other.run/inner").mkdir(parents=True)
    shutil.copytree(copy / "p.zarr", copy / "other.run/inner/p.zarr")
    assert f"run {copy / 'other'}" not in found(copy)
    assert found(copy)["posteriors"][1] == "3 posteriors can be read"


def test_a_store_without_root_is_named(copy: Path) -> None:
    for store in ("p.zarr", "d.zarr"):
        (copy / store / "zarr.json").unlink()
        ok, said, remedy = found(copy)[f"store {copy / store}"]
        assert (ok, said) == (False, "its zarr.json is lost: nothing opens it")
        assert "Restore that file" in remedy


@pytest.mark.parametrize(("store", "kind"), [("p.zarr", "posterior"), ("d.zarr", "dataset")])
def test_stores_of_other_versions(copy: Path, store: str, kind: str) -> None:
    root = json.loads((copy / store / "zarr.json").read_text())
    root["attributes"]["schema_version"] = 1
    (copy / store / "zarr.json").write_text(json.dumps(root))
    ok, said, remedy = found(copy)[f"{kind} {copy / store}"]
    assert not ok
    assert "schema version" in said
    assert remedy


def test_the_command(results: Path, upgraded: Callable[..., None]) -> None:
    upgraded(factorflow="99.0")
    answer = CliRunner().invoke(app, ["doctor", str(results), "--json"])
    assert answer.exit_code == 1
    (row,) = (r for r in json.loads(answer.stdout)["checks"] if r["check"].startswith("run "))
    assert row["ok"] == "NO"
    answer = CliRunner().invoke(app, ["doctor", "s3://bucket/runs", "--json"])
    assert answer.exit_code == 2
    assert "FACTORFLOW_RUNS" in answer.stdout
