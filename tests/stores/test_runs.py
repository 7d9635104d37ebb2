"""Runs whose posterior goes to an object store: it is that of a disk, and nothing found is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import assert_same_bits

import factorflow
from factorflow.errors import InputError, RunError
from factorflow.storage.remote import RemotePath

CONFIG = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 8, "drop": 0}


@pytest.fixture
def data(tmp_path: Path) -> Any:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((120, 2)) @ rng.standard_normal((2, 6)) + rng.standard_normal((120, 6))
    return factorflow.write_dataset(tmp_path / "d.zarr", {"y": y.astype(np.float32)}, block_rows=32)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the runs."""
    monkeypatch.setenv("FACTORFLOW_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def left(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir())


class Stop:
    """Ends a run in its third iteration, and counts."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error, self.iterations = error, 0

    def __call__(self, event: Any) -> None:
        if type(event).__name__ != "IterationDone":
            return
        self.iterations += 1
        if self.error is not None and self.iterations == 3:
            raise self.error


def fit(data: Any, out: Any = None, **options: Any) -> Any:
    return factorflow.fit(data, CONFIG, out=out, **({"progress": False, "checkpoint_every": 2} | options))


@pytest.mark.thorough
def test_the_posterior_is_that_of_a_disk(data: Any, bucket: Any, runs: Path, tmp_path: Path) -> None:
    url, local = bucket.url("fits/p.zarr"), fit(data, tmp_path / "p.zarr")
    found = fit(data, url)
    assert found.path == url
    found.verify()
    assert_same_bits(found, local)
    names = {str(file.relative_to(local.path)) for file in Path(local.path).rglob("*") if file.is_file()}
    assert set(bucket.keys()) == {f"fits/p.zarr/{name}" for name in names}
    assert left(runs) == []
    with pytest.raises(InputError, match="overwrite=True"):
        fit(data, url)
    assert factorflow.resume(url).path == url
    again = Stop()
    assert_same_bits(fit(data, url, resume="auto", on_event=again), local)
    assert again.iterations == 0


@pytest.mark.thorough
def test_other_ways_to_write_a_posterior(data: Any, bucket: Any, runs: Path, tmp_path: Path) -> None:
    url, local = bucket.url("p.zarr"), fit(data, tmp_path / "p.zarr")
    fit(data, url)
    other = fit(data, url, seed=1, overwrite=True)
    assert other.run["seed"] == 1
    other.save(bucket.url("copy.zarr"))
    assert_same_bits(factorflow.open_posterior(bucket.url("copy.zarr")), other)
    with pytest.raises(InputError, match="the fit would be replaced"):
        other.project(data, out=url, overwrite=True)
    projected = local.project(data, out=bucket.url("new.zarr"), progress=False)
    assert_same_bits(projected, local.project(data, progress=False))


@pytest.mark.thorough
def test_an_interrupted_run_goes_on(data: Any, bucket: Any, runs: Path) -> None:
    url = bucket.url("p.zarr")
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(data, url, on_event=Stop(KeyboardInterrupt()))
    (folder,) = left(runs)
    assert folder.startswith("p.zarr-")
    notes = " ".join(caught.value.__notes__)
    assert f"{runs / folder}, the partial posterior is {url}" in notes
    assert f"factorflow resume {url}" in notes
    assert factorflow.open_posterior(url).run["status"] == "partial"
    with pytest.raises(InputError, match="Use overwrite=True or another path"):
        fit(data, url)
    assert_same_bits(factorflow.resume(url, progress=False), fit(data))
    assert left(runs) == []


@pytest.mark.thorough
def test_a_run_that_failed_goes_on(
    data: Any, bucket: Any, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.url("p.zarr")
    with pytest.raises(RunError, match=r"The last checkpoint is in \S+p\.zarr-"):
        fit(data, url, on_event=Stop(ValueError("stop")))
    assert all(key.startswith("p.zarr.run/") for key in bucket.keys())
    with monkeypatch.context() as patch:
        patch.setenv("FACTORFLOW_RUNS", str(tmp_path))
        with pytest.raises(InputError, match=r"q\.zarr-\S+ or s3:\S+ to be there.*set FACTORFLOW_RUNS"):
            factorflow.resume(bucket.url("q.zarr"))
    with pytest.raises(InputError, match="Use resume=True"):
        fit(data, url)
    assert_same_bits(fit(data, url, resume=True), fit(data))


@pytest.mark.thorough
def test_a_run_that_is_killed_goes_on(data: Any, bucket: Any, runs: Path) -> None:
    url = bucket.url("p.zarr")
    code = f"""
import factorflow, os, signal
def watch(event):
    if type(event).__name__ == "IterationDone" and event.iteration == 5:
        os.kill(os.getpid(), signal.SIGKILL)
factorflow.fit({str(data.path)!r}, {CONFIG!r}, out={url!r}, checkpoint_every=2, on_event=watch)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == -9
    assert all(key.startswith("p.zarr.run/") for key in bucket.keys())
    command = [sys.executable, "-m", "factorflow", "resume", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"posterior  {url}" in done.stdout
    assert_same_bits(factorflow.open_posterior(url), fit(data))
    assert left(runs) == []


@pytest.mark.thorough
def test_workers_read_there_and_the_result_goes_there(data: Any, bucket: Any, runs: Path) -> None:
    config = {**CONFIG, "n_draws": 4, "n_burn_in": 2, "chains": 2}
    url = bucket.copy(data.path, "d.zarr")
    found = factorflow.fit(url, config, out=bucket.url("p.zarr"), executor="dask", workers=2, progress=False)
    found.verify()
    assert_same_bits(found, factorflow.fit(data, config, progress=False))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            (400, "ExpiredToken"),
            r"credentials for s3://\S+ = refused \(ExpiredToken\).*the rights to the bucket",
        ),
        ((501, "NotImplemented"), r"store s3://\S+ = an error \(NotImplemented\)"),
    ],
)
def test_credentials_that_expire_during_a_run(
    refusal: Any, said: str, data: Any, bucket: Any, runs: Path, proxy: Any
) -> None:
    proxy.room, proxy.refusal = 2, refusal
    with pytest.raises(RunError, match=said) as caught:
        fit(data, bucket.url("p.zarr"), checkpoint_every=100)
    assert "finished.zarr" in str(caught.value)
    assert "as-sent" not in str(caught.value)
    proxy.room = 10**6
    factorflow.resume(bucket.url("p.zarr")).verify()


@pytest.mark.thorough
@pytest.mark.parametrize("error", [OSError("cut"), KeyboardInterrupt()])
@pytest.mark.parametrize("how", ["resume", "fit"])
def test_an_upload_that_failed_is_made_up_for(
    how: str, error: BaseException, data: Any, bucket: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, put = bucket.url("p.zarr"), RemotePath.put

    def cut(self: RemotePath, content: bytes, **how: Any) -> None:
        if self.url.endswith("scores/c/0/0"):
            raise error
        put(self, content, **how)

    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "put", cut)
        with pytest.raises((RunError, KeyboardInterrupt)) as caught:
            fit(data, url, checkpoint_every=100)
    said = str(caught.value) + " ".join(getattr(caught.value, "__notes__", ()))
    assert "finished.zarr" in said
    assert f"factorflow resume {url}" in said
    assert "nothing was kept" not in said
    assert bucket.keys() == ["p.zarr.run/owner"]
    with pytest.raises(InputError, match="Use resume=True"):
        fit(data, url)
    again = Stop()
    if how == "resume":
        found = factorflow.resume(url, on_event=again)
    else:
        found = fit(data, url, resume=True, checkpoint_every=100, on_event=again)
    assert again.iterations == 0
    assert_same_bits(found, fit(data))
    assert left(runs) == []


@pytest.mark.thorough
def test_a_kill_after_the_last_request(
    data: Any, bucket: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's folder is still there, and so is the posterior: nothing is uploaded again."""
    url = bucket.url("p.zarr")
    with monkeypatch.context() as patch:
        patch.setattr("factorflow.engine.run_directory.RunDirectory.delete", lambda *_: None)
        first = fit(data, url, checkpoint_every=100)
    (folder,) = left(runs)
    monkeypatch.setattr("factorflow.storage.publish.upload", None)
    assert_same_bits(factorflow.resume(url), first)
    assert left(runs) == []


@pytest.mark.thorough
def test_what_was_to_be_replaced_is_replaced_later(
    data: Any, bucket: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.url("p.zarr")
    fit(data, url)

    def away(*_: Any, **__: Any) -> None:
        raise RunError("the store is away.")

    with monkeypatch.context() as patch:
        patch.setattr("factorflow.storage.publish.upload", away)
        with pytest.raises(RunError, match=r"the store is away. The posterior is complete in \S+finished"):
            fit(data, url, seed=1, overwrite=True)
    assert factorflow.open_posterior(url).run["seed"] == 0
    assert factorflow.resume(url).run["seed"] == 1


@pytest.mark.thorough
def test_what_another_put_there_meanwhile_stays(data: Any, bucket: Any, runs: Path) -> None:
    url, other = bucket.url("p.zarr"), bucket.url("other.zarr")
    fit(data, other, seed=5)

    def watch(event: Any) -> None:
        if type(event).__name__ == "RunStarted":
            for key in bucket.keys("other.zarr"):
                bucket.put(key.replace("other", "p"), bucket.get(key))

    with pytest.raises(RunError, match=r"a name that does not exist.*finished\.zarr"):
        fit(data, url, on_event=watch)
    assert factorflow.open_posterior(url).run["seed"] == 5
    bucket.delete(*bucket.keys("p.zarr"))
    assert factorflow.resume(url).run["seed"] == 0


def test_a_place_that_cannot_be_written_is_refused_first(
    data: Any, bucket: Any, runs: Path, proxy: Any
) -> None:
    events = Stop()
    bucket.asks_for_rights("0")
    try:
        with pytest.raises(InputError, match="credentials for"):
            fit(data, bucket.url("p.zarr"), on_event=events)
        with pytest.raises(InputError, match="credentials for"):
            factorflow.resume(bucket.url("p.zarr"))
    finally:
        bucket.asks_for_rights("inf")
    proxy.refused, proxy.room, proxy.refusal = {"POST", "DELETE"}, 0, (403, "AccessDenied")
    with pytest.raises(InputError, match=r"some that may delete .*\(s3:DeleteObject\)"):
        fit(data, bucket.url("p.zarr"), on_event=events)
    assert bucket.keys() == []
    proxy.room = 10**6
    bucket.put("p.zarr.writing", b'{"host": "h", "process": 7, "since": "then"}')
    with pytest.raises(InputError, match="process 7 on h does"):
        fit(data, bucket.url("p.zarr"), on_event=events)
    bucket.put("mine/notes.txt", b"keep me")
    with pytest.raises(InputError, match="a posterior to overwrite"):
        fit(data, bucket.url("mine"), overwrite=True)
    assert events.iterations == 0
    assert not runs.exists() or left(runs) == []


@pytest.mark.thorough
def test_a_full_bucket_keeps_the_posterior_on_the_disk(
    data: Any, bucket: Any, runs: Path, proxy: Any
) -> None:
    proxy.room = 5
    with pytest.raises(RunError, match=r"is full \(XMinioStorageFull\).*finished\.zarr"):
        fit(data, bucket.url("p.zarr"), checkpoint_every=100)
    assert bucket.keys() == ["p.zarr.run/owner"]
    proxy.room = 10**6
    factorflow.resume(bucket.url("p.zarr")).verify()
