"""A worker with other versions that joins during a run computes nothing of it, and the run says which."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bayesian_pca
import pytest
from contract_tools import assert_same_bits
from processes import Processes, _environment

import factorflow
from factorflow.errors import InputError

PRETEND = """
import sys
from factorflow.engine.executors import environment
known = environment._version
environment._version = lambda name: "0.0.1" if name == sys.argv[1] else known(name)
from distributed.cli.dask_worker import main
main([sys.argv[2], "--nthreads", "1", "--no-dashboard", "--no-nanny"])
"""
"""A worker that says that it has another version of a package."""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path, 1) as found:
        yield found


def pretender(cluster: Processes, package: str) -> subprocess.Popen[bytes]:
    """Let such a worker join, and wait until it is there."""
    from distributed import Client

    command = [sys.executable, "-c", PRETEND, package, cluster.address]
    worker = subprocess.Popen(command, env=_environment(), cwd=cluster.folder, stderr=subprocess.DEVNULL)
    cluster.workers.append(worker)
    with Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    return worker


@pytest.fixture
def case(tmp_path: Path) -> Any:
    example = bayesian_pca.BayesianPCA.examples()["default"]
    path = tmp_path / "data.zarr"
    data = factorflow.simulate(example.simulator, path, n_samples=200, block_rows=32, seed=7, **example.data)
    return data, example.config


@pytest.mark.thorough
@pytest.mark.parametrize("package", [pytest.param("numba", marks=pytest.mark.slow), "factorflow"])
def test_it_is_refused_with_its_first_task(
    package: str, case: Any, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself: the client, that looks every 5 seconds, is kept from looking. No checkpoint has its bits."""
    monkeypatch.setattr("factorflow.engine.executors.dask.FOLLOW_SECONDS", 1e9)
    data, config = case
    out = tmp_path / "p.zarr"

    def join(event: Any) -> None:
        if type(event).__name__ == "CheckpointWritten" and len(processes.workers) == 1:
            pretender(processes, package)
            processes.lose(0)  # what is left to compute goes to the other one

    with pytest.raises(InputError, match=rf"{package} 0\.0\.1 on tcp://127\.0\.0\.1:\d+, \S+ here") as caught:
        factorflow.fit(
            data, config, seed=3, out=out, executor=processes.address, checkpoint_every=2, on_event=join
        )
    assert "factorflow doctor" in caught.value.remedy
    assert any(f"factorflow resume {out}" in note for note in caught.value.__notes__)
    assert_same_bits(factorflow.resume(out), factorflow.fit(data, config, seed=3))


@pytest.mark.thorough
def test_it_ends_a_run_that_gives_it_nothing_to_do(
    case: Any, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client looks who is there, whoever has work."""
    monkeypatch.setattr("factorflow.engine.executors.dask.FOLLOW_SECONDS", 0.0)
    data, config = case

    def join(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == 3:
            pretender(processes, "numpy")
            time.sleep(0.1)

    with pytest.raises(InputError, match=r"numpy 0\.0\.1 on tcp://127\.0\.0\.1:\d+, \S+ here"):
        factorflow.fit(data, config, seed=3, executor=processes.address, on_event=join)
