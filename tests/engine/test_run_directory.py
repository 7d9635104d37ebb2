"""Where a run writes: one writer, nothing of others touched, nothing lost by a kill or on a full disk."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bayesian_pca
import numpy as np
import pytest
from contract_tools import assert_same_bits

import factorflow
from factorflow.core.garbage import THRESHOLD
from factorflow.engine.checkpoint import CHECKPOINT_VERSION
from factorflow.engine.loop import Loop
from factorflow.engine.run_directory import _is_empty
from factorflow.errors import InputError, RunError
from factorflow.posterior.record import RunRecord
from factorflow.storage.checksums import signature

FIT = """
import sys, bayesian_pca, factorflow
def watch(event):
    print(type(event).__name__, flush=True)
    if type(event).__name__ == "IterationDone" and event.iteration == 3:
        sys.stdin.read()
factorflow.fit(sys.argv[1], {"model": "bayesian_pca"}, seed=3, out=sys.argv[2], on_event=watch)
"""


def signed(manifest: dict[str, Any]) -> str:
    """Return the text of a manifest as a checkpoint would have written it."""
    manifest.pop("signature", None)
    return json.dumps({**manifest, "signature": signature(manifest)})


class Died(BaseException):
    """The process is gone."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    case = bayesian_pca.BayesianPCA.examples()["default"]
    path = tmp_path_factory.mktemp("data") / "data.zarr"
    return factorflow.simulate(case.simulator, path, n_samples=97, block_rows=32, seed=7, **case.data)


@pytest.fixture
def config() -> Any:
    return bayesian_pca.BayesianPCA.examples()["default"].config


@pytest.fixture
def fit(data: Any, config: Any, tmp_path: Path) -> Callable[..., Any]:
    """Fit with given options; the posterior goes to ``p.zarr``."""

    def fitted(**options: Any) -> Any:
        return factorflow.fit(data, config, **{"out": tmp_path / "p.zarr", "seed": 3, **options})

    return fitted


def dies_at(patch: pytest.MonkeyPatch, name: str, when: Callable[..., bool]) -> None:
    """Let the process die before it does something to the disk; nothing is done to the disk after that."""
    dead: list[bool] = []
    for step in ("rename", "replace", "unlink", "rmdir", "mkdir"):
        original = getattr(os, step)

        def do(*args: Any, _step: str = step, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            if dead or (_step == name and when(*args)):
                dead.append(True)
                raise Died
            return _original(*args, **kwargs)

        patch.setattr(os, step, do)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "moment",
    ["between", *(pytest.param(moment, marks=pytest.mark.thorough) for moment in ("before", "after"))],
)
def test_killed_while_an_old_posterior_is_replaced(
    moment: str, fit: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "p.zarr"
    old = fit().load()
    new = fit(seed=4, out=None)
    with pytest.MonkeyPatch.context() as patch:
        if moment == "before":  # the workshop of the two renames is about to be made
            dies_at(patch, "mkdir", lambda path, *_: str(path) == f"{out}.partial")
        elif moment == "between":
            dies_at(patch, "rename", lambda _, goal: goal == out)
        else:
            dies_at(patch, "unlink", lambda path, **_: str(path).endswith(".run/manifest.json"))
        with pytest.raises(Died):
            fit(seed=4, overwrite=True, checkpoint_every=2)
    assert out.exists() is (moment != "between")
    found = factorflow.open_posterior(out)
    assert_same_bits(found, new if moment == "after" else old)
    if (tmp_path / "p.zarr.run" / "manifest.json").exists():
        assert_same_bits(factorflow.resume(out), new)
    else:
        assert_same_bits(fit(seed=4, overwrite=True), new)
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


@pytest.mark.thorough
def test_a_second_run_to_the_same_path_is_refused(data: Any, fit: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FIT, str(data.path), str(out)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        while b"IterationDone" not in first.stdout.readline():
            pass
        for options in ({}, {"overwrite": True}, {"resume": "auto"}):
            with pytest.raises(InputError, match="no other process writes") as caught:
                fit(**options)
            assert str(out) in str(caught.value)
        first.kill()
    fit()
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


def test_a_path_taken_meanwhile_is_not_replaced(
    fit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run to the same path has ended between the look at it and the lock."""
    from factorflow.engine import run

    opened = run.open_executor

    def after_another(*args: Any) -> Any:
        monkeypatch.setattr(run, "open_executor", opened)
        fit(seed=5)
        return opened(*args)

    monkeypatch.setattr(run, "open_executor", after_another)
    with pytest.raises(InputError, match="no other run writes"):
        fit()
    assert factorflow.open_posterior(tmp_path / "p.zarr").run["seed"] == 5


def test_garbage_is_collected_rarely_while_a_run_is_planned_and_written(
    fit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is imported there lives on; in iterations it is collected as before."""
    from factorflow.engine import run

    thresholds: dict[str, int] = {}

    def note(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def noted(*args: Any, **options: Any) -> Any:
            thresholds[name] = gc.get_threshold()[0]
            return function(*args, **options)

        monkeypatch.setattr(owner, name, noted)

    note(run, "measure")
    note(run, "publish")
    note(Loop, "run")
    usual = gc.get_threshold()[0]
    fit()
    assert thresholds == {"measure": THRESHOLD, "run": usual, "publish": THRESHOLD}


def test_folders_of_others_are_left_alone(fit: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "p.zarr.run"
    folder.mkdir()
    (folder / "letter").write_text("dear")
    for options in ({}, {"overwrite": True}, {"resume": "auto"}):
        with pytest.raises(InputError, match="something else"):
            fit(**options)
    assert (folder / "letter").read_text() == "dear"
    shutil.rmtree(folder)
    (tmp_path / "p.zarr").mkdir()
    (tmp_path / "p.zarr" / "letter").write_text("dear")
    with pytest.raises(InputError, match="not a factorflow result"):
        fit(overwrite=True)
    assert (tmp_path / "p.zarr" / "letter").read_text() == "dear"


def test_what_a_kill_left_is_cleared(fit: Callable[..., Any], tmp_path: Path) -> None:
    """A run was killed before its first checkpoint: its folder has the mark, and whatever it had written."""
    folder = tmp_path / "p.zarr.run"
    (folder / "posterior.zarr").mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "checkpoint-000001").mkdir()
    fit()
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


@pytest.mark.thorough
@pytest.mark.parametrize("left", [["checkpoint-000001", "lock"], ["lock"], []], ids=str)
def test_what_a_kill_left_beside_a_result_is_cleared(
    left: list[str], fit: Callable[..., Any], tmp_path: Path
) -> None:
    """A run was killed while it removed its folder, whose manifest goes first: trying again ends that too."""
    fit()
    folder = tmp_path / "p.zarr.run"
    for again in (lambda: fit(resume="auto"), lambda: factorflow.resume(tmp_path / "p.zarr")):
        folder.mkdir()
        for name in left:
            (folder / name).touch()
        (tmp_path / "p.zarr.partial").mkdir()
        again()
        assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["blocks", "manifest", "draws"])
def test_a_full_disk_at_a_checkpoint(
    which: str, fit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the path; the checkpoint before stays whole, and nothing of the new one is left."""
    reference = fit(out=None)
    fsync, full = os.fsync, OSError(errno.ENOSPC, "No space left on device")

    def fails(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        of_draws = "posterior.zarr" in name and os.path.isdir(name)
        late = {"blocks": "checkpoint-000002" in name, "manifest": "manifest" in name, "draws": of_draws}
        if late[which] and (tries or which == "blocks"):
            raise full
        tries.extend([name] if "manifest.json.partial/" in name else [])
        fsync(descriptor)

    tries: list[str] = []
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(RunError, match="No space left") as caught:
        fit(checkpoint_every=2)
    assert str(tmp_path / "p.zarr.run") in str(caught.value)
    monkeypatch.undo()
    left = [p.name for p in (tmp_path / "p.zarr.run").glob("checkpoint-*")]
    assert left == [
        "checkpoint-000002" if which == "draws" else "checkpoint-000001"
    ]  # the second has no draws yet
    assert_same_bits(factorflow.resume(tmp_path / "p.zarr"), reference)


def test_a_full_disk_while_the_result_is_written(
    fit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("factorflow.posterior.chunks.atomic_write", fails)
    with pytest.raises(RunError, match=r"p\.zarr.*No space left"):
        fit()
    assert not (tmp_path / "p.zarr").exists()


@pytest.mark.thorough
def test_another_budget_is_another_result(fit: Callable[..., Any]) -> None:
    def run_anew(**options: Any) -> bool:
        events: list[Any] = []
        fit(resume="auto", overwrite=True, on_event=events.append, **options)
        return bool(events)

    assert run_anew(max_iter=4)
    assert not run_anew(max_iter=4, executor="threads", workers=2, checkpoint_every=3)
    assert run_anew(max_iter=6)
    assert run_anew()
    assert not run_anew()


def test_the_record_is_that_of_the_run(data: Any, config: Any, fit: Callable[..., Any]) -> None:
    posterior = fit(max_iter=4, holdout=0.1, executor="threads", workers=2)
    record = posterior.record
    assert record == RunRecord.of_attributes(posterior.tree.attrs)
    assert record.identity.config == config.model_dump(mode="json")
    assert record.identity.fingerprint == data.fingerprint
    assert (record.status, record.n_iterations, record.dataset) == ("complete", 4, str(data.path))
    assert (record.options.executor, record.options.workers, record.options.max_iter) == ("threads", 2, 4)
    run = posterior.run  # by name, as ever
    assert (run["seed"], run["holdout"], run["device"], run["max_iter"]) == (3, 0.1, "cpu", 4)
    assert (run["dataset"], run["fingerprint"]) == (str(data.path), data.fingerprint)
    assert run["config"]["model"] == "bayesian_pca"
    assert run["environment"]["numpy"] == record.environment["numpy"]


@pytest.mark.thorough
def test_going_on_in_another_environment_warns(fit: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"

    def crash(event: Any) -> None:
        if type(event).__name__ == "CheckpointWritten":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint_every=2, on_event=crash)
    manifest = tmp_path / "p.zarr.run" / "manifest.json"
    text = json.loads(manifest.read_text())
    now = text["run"]["environment"]["numpy"]
    text["run"]["environment"]["numpy"] = "1.0"
    manifest.write_text(signed(text))
    with pytest.warns(RuntimeWarning, match=rf"numpy 1\.0 -> {now}"):
        factorflow.resume(out)


@pytest.mark.thorough
def test_a_projection_is_not_resumed_as_a_fit(data: Any, fit: Callable[..., Any], tmp_path: Path) -> None:
    fitted = fit()
    projected = fitted.project(data, out=tmp_path / "new.zarr")
    assert projected.record.status == "projected"
    assert projected.record.identity.holdout == 0.0
    folder = tmp_path / "other.zarr.run"
    folder.mkdir()
    record = projected.record.model_dump(mode="json")
    (folder / "manifest.json").write_text(signed({"checkpoint_version": CHECKPOINT_VERSION, "run": record}))
    with pytest.raises(InputError, match='run = "projection": expected a checkpoint with run = "fit"'):
        fit(out=tmp_path / "other.zarr", resume=True, warm_start=None)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["resume", "project", "auto", "overwrite"])
def test_a_killed_projection_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """From its checkpoint, by each of the ways that the refusal names, with equal bits."""
    model = {"model": "probit", "n_factors": 1, "n_burn_in": 2, "n_draws": 6, "chains": 1}
    binary = factorflow.simulate("binary", tmp_path / "d.zarr", 40, n_features=4, n_factors=1)
    fitted = factorflow.fit(binary, model, out=tmp_path / "fit.zarr")
    out, where = tmp_path / "new.zarr", {"out": tmp_path / "new.zarr", "iterations": 10}

    def dies(event: Any) -> None:
        if type(event).__name__ == "CheckpointWritten":
            raise Died

    def dead(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_finish_early", dead)
        with pytest.raises(Died):
            fitted.project(binary, on_event=dies, **where)
    with pytest.raises(InputError, match="resume=True to go on with it, or overwrite=True"):
        fitted.project(binary, **where)
    with pytest.raises(InputError, match="iterations = 10: expected a checkpoint with iterations = 9"):
        fitted.project(binary, out=out, iterations=9, resume=True)
    heard: list[Any] = []
    if way == "resume":
        found = factorflow.resume(out, on_event=heard.append)
    else:
        given: Any = "auto" if way == "auto" else way == "project"
        option = {"resume": given, "overwrite": way == "overwrite"}
        found = fitted.project(binary, on_event=heard.append, **option, **where)
    assert heard[0].resumed_from == (None if way == "overwrite" else 50)
    assert_same_bits(found, fitted.project(binary, iterations=10))
    assert not (tmp_path / "new.zarr.run").exists()
    assert factorflow.resume(out).run["status"] == "projected"


def test_a_path_within_a_dataset_is_refused_before_the_run(data: Any, config: Any) -> None:
    told: list[Any] = []
    inside = Path(str(data.path)) / "p.zarr"
    with pytest.raises(InputError, match="not within") as caught:
        factorflow.fit(data, config, out=inside, on_event=told.append)
    assert caught.value.parameter == "out"
    assert not told
    assert not inside.exists()


def test_a_folder_that_vanishes_while_it_is_looked_at_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may end, and remove its folder, between two looks."""
    monkeypatch.setattr(Path, "is_dir", lambda path: True)
    assert not _is_empty(tmp_path / "gone")
    (tmp_path / "file").touch()
    assert not _is_empty(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    assert _is_empty(tmp_path / "folder")
    (tmp_path / "folder" / "one").touch()
    assert not _is_empty(tmp_path / "folder")


@pytest.mark.parametrize("work", ["fit", "write"])
def test_the_limit_of_processes_is_explained(
    fit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Instead of what Python says of a thread that cannot be started."""

    def start(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)

    def write() -> None:
        factorflow.write_dataset(tmp_path / "d.zarr", {"a": np.eye(8) + 0.5})

    with pytest.raises(RunError, match=r"no more threads can be started.*ulimit -u") as caught:
        fit(executor="threads", workers=2, out=None) if work == "fit" else write()
    assert str(caught.value).count("can't start") == 0
    assert not (tmp_path / "d.zarr").exists()


def test_the_newest_checkpoint_alone_is_kept(fit: Callable[..., Any], tmp_path: Path) -> None:
    """A run of many checkpoints does not fill the disk."""
    seen: list[list[str]] = []

    def watch(event: Any) -> None:
        if type(event).__name__ == "CheckpointWritten":
            seen.append([path.name for path in (tmp_path / "p.zarr.run").glob("checkpoint-*")])

    fit(checkpoint_every=1, max_iter=4, on_event=watch)
    assert len(seen) >= 3
    assert [len(names) for names in seen] == [1] * len(seen)
    assert len({names[0] for names in seen}) == len(seen)
