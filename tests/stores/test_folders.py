"""Folders of results in an object store: a history with one writer, its pointer, a selection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import assert_same_bits

import factorflow
from factorflow.errors import InputError
from factorflow.settings import RefreshOptions, RunOptions
from factorflow.storage.location import Location
from factorflow.storage.publish import claim, write_file
from factorflow.storage.remote import RemotePath
from factorflow.workflow import pipeline
from factorflow.workflow.folder import Folder
from factorflow.workflow.history import History
from factorflow.workflow.refresh import RefreshResult, refresh
from factorflow.workflow.select import select

CONFIG = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 8, "drop": 0}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORFLOW_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their figures take longer than all the rest."""

    def publish(folder: Folder) -> Location:
        write_file(folder.report, folder.name)
        return folder.report

    monkeypatch.setattr(pipeline, "publish", publish)


def table(n: int) -> bytes:
    rng = np.random.default_rng(1)
    y = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 6)) + 0.5 * rng.standard_normal((200, 6))
    lines = [",".join(["sample", *(f"g{d}" for d in range(6))])]
    lines += [",".join([f"s{i}", *(f"{value:.6f}" for value in y[i])]) for i in range(n)]
    return ("\n".join(lines) + "\n").encode()


def again(source: str, out: str | Path, **rule: Any) -> RefreshResult:
    return refresh(source, Folder.at(out), CONFIG, RunOptions(holdout=0.1), RefreshOptions(**rule))


@pytest.mark.slow
def test_a_history_grows_and_is_pruned(bucket: Any, no_report: None, tmp_path: Path) -> None:
    """Fit, nothing, projected, fitted, pruned: as on a disk, from a source in the bucket."""
    bucket.put("y.csv", table(100))
    source, out = bucket.url("y.csv"), bucket.url("runs/cohort")
    rule = {"refit_growth": 0.2, "keep": 1}
    first = again(source, out, **rule)
    assert first.describe()["done"] == "ingested, fitted"
    assert str(first.folder.posterior) == f"{out}/0001.zarr"
    assert again(source, out, **rule).describe()["done"] == "nothing to do"
    bucket.put("y.csv", table(110))
    second = again(source, out, **rule)
    assert second.describe()["done"] == "ingested, projected"
    assert second.entry is not None
    assert second.entry.start == "0001.zarr"
    assert second.entry.comparison["data"][0]["rows_before"] == 100
    bucket.put("y.csv", table(140))
    third = again(source, out, **rule)
    assert third.describe()["done"] == "ingested, fitted"
    assert json.loads(bucket.get("runs/cohort/latest.json"))["posterior"] == "0003.zarr"
    assert [entry.name for entry in History(RemotePath(out)).entries()] == ["0003.zarr"]
    assert not [key for key in bucket.keys("runs/cohort") if "/0001." in key or "/0002." in key]
    assert not [key for key in bucket.keys() if key.endswith(".writing")]

    local = tmp_path / "local"
    for n in (100, 140):  # the projection between them is no start
        (tmp_path / "y.csv").write_bytes(table(n))
        expected = again(str(tmp_path / "y.csv"), local, **rule)
    found = factorflow.open_posterior(str(third.folder.posterior))
    assert_same_bits(found, factorflow.open_posterior(expected.folder.posterior))


@pytest.mark.slow
def test_a_fit_before_it_is_where_a_history_begins(bucket: Any, no_report: None) -> None:
    bucket.put("y.csv", table(100))
    source, out = bucket.url("y.csv"), bucket.url("out")
    folder = Folder.at(out)
    dataset, _ = pipeline.ingest(source, folder)
    pipeline.fit(dataset, folder, CONFIG, RunOptions(holdout=0.1))
    assert again(source, out).describe()["done"] == "nothing to do"


def test_one_writer(bucket: Any) -> None:
    """The claim of a killed process of this machine is taken over; that of another machine is not."""
    place = RemotePath(bucket.url("out"))
    with History(place).locked():
        assert bucket.keys() == ["out/refresh.writing"]
        with pytest.raises(InputError, match=f"process {os.getpid()} on .* does"), History(place).locked():
            pass
    assert bucket.keys() == []
    script = (
        "import os, sys\nfrom factorflow.storage.remote import RemotePath\n"
        "from factorflow.workflow.history import History\n"
        "with History(RemotePath(sys.argv[1])).locked(): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(place)], timeout=60, check=True)
    left = json.loads(bucket.get("out/refresh.writing"))
    with History(place).locked():
        assert json.loads(bucket.get("out/refresh.writing"))["process"] == os.getpid()
    assert bucket.keys() == []
    bucket.put("out/refresh.writing", json.dumps(left | {"machine": "another"}).encode())
    with (
        pytest.raises(InputError, match=r"remove the object \S+out/refresh\.writing\."),
        History(place).locked(),
    ):
        pass


def test_of_two_that_take_over_one_does(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = RemotePath(bucket.url("out"))
    monkeypatch.setattr("factorflow.storage.publish._has_ended", lambda who: who.get("host") == "gone")
    bucket.put("out.writing", b'{"host": "gone", "process": 7, "since": "then"}')
    put = RemotePath.put

    def late(self: RemotePath, content: bytes, **how: Any) -> None:
        if how.get("replaces"):
            bucket.put("out.writing", b'{"host": "other", "process": 8, "since": "now"}')
        put(self, content, **how)

    monkeypatch.setattr(RemotePath, "put", late)
    with pytest.raises(InputError, match="a name without another writer"), claim(place):
        pass
    assert json.loads(bucket.get("out.writing"))["host"] == "other"


def test_what_is_no_folder_is_refused(bucket: Any) -> None:
    bucket.put("file", b"")
    bucket.put("store/zarr.json", b"{}")
    with pytest.raises(InputError, match="It is a file"):
        Folder.at(bucket.url("file"))
    with pytest.raises(InputError, match="It is a dataset or a posterior"):
        Folder.at(bucket.url("store"))
    with pytest.raises(InputError, match="as text"):
        Folder.at(Path("s3://bucket/folder"))


@pytest.mark.thorough
def test_a_selection(bucket: Any, tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_bytes(table(60))
    data = factorflow.write_dataset(bucket.url("d.zarr"), tmp_path / "y.csv")
    grid = {"n_factors": [1, 2]}
    found = select(data, CONFIG, grid, out=bucket.url("selected"))
    expected = select(data, CONFIG, grid, out=tmp_path / "selected")
    assert found.posterior == bucket.url("selected/best.zarr")
    assert [row["log_likelihood"] for row in found.table] == [r["log_likelihood"] for r in expected.table]
    assert json.loads(bucket.get("selected/selection.json"))["best"]["n_factors"] == found.best["n_factors"]
    assert bucket.get("selected/selection.png")[:4] == b"\x89PNG"


@pytest.mark.slow
def test_reports_and_tables(bucket: Any, tmp_path: Path) -> None:
    """By the commands: each file is what it is on a disk."""
    (tmp_path / "y.csv").write_bytes(table(60))
    data = factorflow.write_dataset(tmp_path / "d.zarr", tmp_path / "y.csv")
    factorflow.fit(data, CONFIG, out=bucket.url("p.zarr"), progress=False)
    for command in (
        ["report", bucket.url("p.zarr"), "--out", bucket.url("r.html")],
        ["anomalies", bucket.url("p.zarr"), "--out", bucket.url("t.csv")],
        ["predict", bucket.url("p.zarr"), "y", "--out", bucket.url("y.csv")],
        ["export", bucket.url("p.zarr"), "--out", bucket.url("m.hdf5"), "--format", "mofa"],
    ):
        line = [sys.executable, "-m", "factorflow", *command]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    again = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert (again.returncode, "a file that does not exist yet" in again.stderr) == (2, True)
    assert b"</html>" in bucket.get("r.html")
    assert len(bucket.get("y.csv").splitlines()) == 61
    assert bucket.get("m.hdf5")[1:4] == b"HDF"
