"""A killed worker makes no difference; a killed scheduler or client is resumed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract_tools import assert_same_bits
from processes import Processes, python

import factorflow
from factorflow.errors import RunError
from factorflow.models.registry import registered_models

FIT = """
import sys, conftest, factorflow
from factorflow.models import configure
if __name__ == "__main__":
    dataset, config, address, out, slow = sys.argv[1:]
    import time
    def watch(event):
        print(type(event).__name__, flush=True)
        time.sleep(float(slow))
    factorflow.fit(dataset, configure(__import__("json").loads(config)), seed=3, holdout=0.1,
                   executor=address, out=out, checkpoint_every=2, on_event=watch)
"""

OFTEN: dict[str, dict[tuple[str, str], Any]] = {
    "killed worker": {
        ("probit:nonnegative", "on disk"): (),
        ("identity_attribute:frame_then_chain", "in memory"): pytest.mark.slow,
        ("stochastic_factors:parts", "in memory"): pytest.mark.thorough,
    },
    "all workers lost": {("molten_poisson:default", ""): pytest.mark.thorough},
    "killed scheduler": {("sparse_gfa:gaussian", ""): pytest.mark.thorough},
    "killed client": {("identity_attribute:default", ""): ()},
}
"""One case for each shape of a family, and whether it is run always or by CI; the others are slow tests."""


def cases(what: str, *where: str) -> Any:
    """Return the parameters of a test: every case of every family."""
    found = [
        pytest.param(*pair[: 1 + any(where)], marks=OFTEN[what].get(pair, pytest.mark.slow))
        for name, kind in registered_models().items()
        for word in kind.examples()
        for pair in ((f"{name}:{word}", place) for place in where or ("",))
    ]
    return pytest.mark.parametrize("case, local" if any(where) else "case", found)


@pytest.fixture
def two_workers() -> Iterator[Any]:
    """A cluster of its own: what is killed may come back, or not."""
    from factorflow.engine.executors.local_cluster import local_cluster

    client, owned = local_cluster(2, "1GiB")
    yield client
    for thing in owned:
        thing.close()


@pytest.mark.thorough
@cases("killed worker", "in memory", "on disk")
def test_killed_worker(
    case: str, local: str, serial: Any, two_workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from factorflow.engine.executors.dask import DaskExecutor

    if local == "on disk":
        monkeypatch.setattr("factorflow.engine.memory_limits.KEPT_SHARE", 0.0)
    else:
        monkeypatch.setattr("factorflow.engine.run.sends_local", lambda *_: False)
    dataset, config, expected = serial(case)
    two_workers.wait_for_workers(2, timeout=60)
    killed: list[int] = []

    def kill_one(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == 3:
            pid = sorted(two_workers.run(os.getpid).values())[0]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    posterior = factorflow.fit(
        dataset, config, seed=3, holdout=0.1, out=tmp_path / "p.zarr",
        executor=DaskExecutor(two_workers), checkpoint_every=2, on_event=kill_one,
    )  # fmt: skip
    assert killed
    assert_same_bits(posterior, expected)


@pytest.fixture
def serial(datasets: Any, kept: dict[str, Any]) -> Any:
    """Give dataset and configuration of a case, and what a serial run finds."""
    from conftest import example

    def find(case: str) -> tuple[Any, Any, Any]:
        dataset, config = datasets(case), example(case).config
        if f"{case} posterior" not in kept:
            kept[f"{case} posterior"] = factorflow.fit(dataset, config, seed=3, holdout=0.1)
        return dataset, config, kept[f"{case} posterior"]

    return find


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as found:
        yield found


def begin(tmp_path: Path, dataset: Any, config: Any, address: str, seconds: float) -> Any:
    """Start a run in a process of its own, and wait for its first checkpoint."""
    script = tmp_path / "fit.py"
    script.write_text(FIT)
    out = tmp_path / "p.zarr"
    given = [str(dataset.path), config.model_dump_json(), address, str(out), str(seconds)]
    run = python(script, *given)
    assert run.stdout is not None
    for line in run.stdout:
        if "CheckpointWritten" in line:
            break
    return run, out


@cases("all workers lost")
def test_all_workers_lost_and_others_come(
    case: str, serial: Any, tmp_path: Path, processes: Processes
) -> None:
    """At the same address or another: nobody starts them again but who replaces the machine."""
    dataset, config, expected = serial(case)
    killed: list[int] = []

    def replace_all(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == 3:
            killed.extend([processes.lose(0), processes.lose(0)])
            time.sleep(1.0)
            processes.workers.extend([processes.worker(), processes.worker()])

    found = factorflow.fit(
        dataset, config, seed=3, holdout=0.1, out=tmp_path / "p.zarr",
        executor=processes.address, checkpoint_every=2, on_event=replace_all,
    )  # fmt: skip
    assert len(killed) == 2
    assert_same_bits(found, expected)


@cases("all workers lost")
def test_all_workers_lost_and_none_comes(
    case: str, serial: Any, tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run says so, and ends: it can be resumed elsewhere."""
    import dask

    monkeypatch.setattr("factorflow.engine.executors.liveness.LOOK_SECONDS", 0.5)
    dataset, config, expected = serial(case)
    out = tmp_path / "p.zarr"

    def kill_all(event: Any) -> None:
        if type(event).__name__ == "CheckpointWritten":
            while processes.workers:
                processes.lose(0)

    with (
        dask.config.set({"factorflow.no-workers-timeout": "6s"}),
        pytest.warns(RuntimeWarning, match=r"nothing was computed for \d+ s: no worker is left"),
        pytest.raises(RunError, match=r"no worker is left.*resume=True"),
    ):
        factorflow.fit(
            dataset, config, seed=3, holdout=0.1, out=out,
            executor=processes.address, checkpoint_every=2, on_event=kill_all,
        )  # fmt: skip
    assert_same_bits(factorflow.resume(out), expected)


@cases("killed scheduler")
def test_killed_scheduler_and_resume(case: str, serial: Any, tmp_path: Path, processes: Processes) -> None:
    dataset, config, expected = serial(case)
    run, out = begin(tmp_path, dataset, config, processes.address, 0.2)
    processes.scheduler.kill()
    _, error = run.communicate(timeout=120)
    assert run.returncode != 0
    assert "resume" in error
    assert not out.exists()
    assert_same_bits(factorflow.resume(out), expected)


@pytest.mark.thorough
@cases("killed client")
def test_killed_client_and_resume(case: str, serial: Any, tmp_path: Path) -> None:
    dataset, config, expected = serial(case)
    run, out = begin(tmp_path, dataset, config, "local", 0.2)
    time.sleep(0.3)
    run.kill()
    run.communicate()
    assert not out.exists()
    assert_same_bits(factorflow.resume(out, executor="threads", workers=2), expected)
