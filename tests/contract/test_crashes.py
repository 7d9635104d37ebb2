"""A killed worker makes no difference; a killed scheduler or client is resumed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract_tools import assert_same_bits

import factorflow

FIT = """
import sys, bayesian_pca, factorflow
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


@pytest.fixture
def serial(family: str, config: Any, datasets: Any) -> Any:
    return factorflow.fit(datasets(family), config, seed=3, holdout=0.1)


@pytest.mark.parametrize("local", ["in memory", "on disk"])
def test_killed_worker(
    local: str,
    family: str,
    config: Any,
    datasets: Any,
    serial: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from factorflow.engine.executors.dask import DaskExecutor, local_cluster

    if local == "on disk":
        monkeypatch.setattr("factorflow.engine.memory.KEPT_SHARE", 0.0)
    client, owned = local_cluster(2, "1GiB")
    killed: list[int] = []

    def kill_one(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == 7:
            pid = sorted(client.run(os.getpid).values())[0]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    try:
        posterior = factorflow.fit(
            datasets(family), config, seed=3, holdout=0.1, out=tmp_path / "p.zarr",
            executor=DaskExecutor(client), checkpoint_every=5, on_event=kill_one,
        )  # fmt: skip
    finally:
        for thing in owned:
            thing.close()
    assert killed
    assert_same_bits(posterior, serial)


@pytest.fixture
def cluster_of_processes(tmp_path: Path) -> Iterator[tuple[str, list[Any]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    address = f"tcp://127.0.0.1:{port}"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--no-dashboard"]
    work = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    processes = [
        subprocess.Popen([*dask, "--port", str(port)], env=env, cwd=tmp_path, stderr=subprocess.DEVNULL)
    ]
    processes += [subprocess.Popen(work, env=env, cwd=tmp_path, stderr=subprocess.DEVNULL) for _ in range(2)]
    yield address, processes
    for process in processes:
        process.kill()
        process.wait()


def test_killed_scheduler_and_resume(
    family: str, config: Any, datasets: Any, serial: Any, tmp_path: Path, cluster_of_processes: Any
) -> None:
    address, processes = cluster_of_processes
    out, dataset = tmp_path / "p.zarr", datasets(family)
    script = tmp_path / "fit.py"
    script.write_text(FIT)
    run = subprocess.Popen(
        [sys.executable, str(script), str(dataset.path), config.model_dump_json(), address, str(out), "0.05"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout is not None
    for line in run.stdout:
        if "CheckpointWritten" in line:
            break
    processes[0].kill()
    _, error = run.communicate(timeout=120)
    assert run.returncode != 0
    assert "resume" in error
    assert not out.exists()
    assert_same_bits(factorflow.resume(out), serial)


def test_killed_client_and_resume(
    family: str, config: Any, datasets: Any, serial: Any, tmp_path: Path
) -> None:
    out, dataset = tmp_path / "p.zarr", datasets(family)
    script = tmp_path / "fit.py"
    script.write_text(FIT)
    run = subprocess.Popen(
        [sys.executable, str(script), str(dataset.path), config.model_dump_json(), "local", str(out), "0.2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout is not None
    for line in run.stdout:
        if "CheckpointWritten" in line:
            break
    time.sleep(0.3)
    run.kill()
    run.communicate()
    assert not out.exists()
    assert_same_bits(factorflow.resume(out, executor="threads", workers=2), serial)
