"""A scheduler that dies, stops answering, or was never there: an error with its address, and how to go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from processes import Processes

import factorflow
from factorflow.errors import InputError, RunError

ENDLESS = ["--set=model=probit", "--set=n_factors=2", "--set=n_burn_in=0", "--set=n_draws=100000"]
"""Options of a run that does not end before it is told to."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("data") / "data.zarr"
    return factorflow.simulate("binary", path, n_samples=200, block_rows=64, seed=1)


@pytest.mark.thorough
def test_an_address_where_nobody_answers(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that takes connections and says nothing: Dask's own timeout does not end that."""
    monkeypatch.setattr("factorflow.engine.executors.clusters.CONNECT_SECONDS", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(InputError, match=rf"{address}.*dask scheduler"):
            factorflow.fit(data, {"model": "probit", "n_factors": 2}, executor=address)
    assert time.monotonic() - begun < 20


@pytest.mark.thorough
def test_a_scheduler_that_freezes_during_a_run(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine is there, and nothing answers: the run ends after the time that workers have to come."""
    monkeypatch.setattr("factorflow.engine.executors.liveness.LOOK_SECONDS", 0.5)
    monkeypatch.setattr("factorflow.engine.executors.dask.FOLLOW_SECONDS", 0.1)
    monkeypatch.setattr("factorflow.engine.executors.dask.LOOK_SECONDS", 0.5)
    model = {"model": "probit", "n_factors": 2, "n_burn_in": 0, "n_draws": 10**5, "chains": 1}
    with Processes(tmp_path, 1) as cluster:

        def freeze(event: Any) -> None:
            if type(event).__name__ == "CheckpointWritten":
                cluster.scheduler.send_signal(signal.SIGSTOP)

        with (
            dask.config.set({"factorflow.no-workers-timeout": "4s"}),
            pytest.warns(RuntimeWarning, match=f"scheduler at {cluster.address} does not answer"),
            pytest.raises(RunError, match=f"scheduler at {cluster.address} does not answer") as caught,
        ):
            factorflow.fit(
                data, model, out=tmp_path / "p.zarr", executor=cluster.address,
                checkpoint_every=2, on_event=freeze,
            )  # fmt: skip
    assert f"factorflow resume {tmp_path / 'p.zarr'}" in caught.value.__notes__[-1]


@pytest.mark.thorough
def test_a_scheduler_that_is_killed_during_a_command(data: Any, tmp_path: Path) -> None:
    """Exit code 1, no traceback; what it says to type goes on with the run."""
    out = tmp_path / "p.zarr"
    with Processes(tmp_path, 1) as cluster:
        command = [sys.executable, "-c", "from factorflow.cli import main; main()", "fit", str(data.path)]
        options = ["--out", str(out), "--executor", cluster.address, "--checkpoint-every=2", *ENDLESS]
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        ) as run:
            limit = time.monotonic() + 120
            while not (tmp_path / "p.zarr.run" / "manifest.json").exists():
                assert time.monotonic() < limit
                time.sleep(0.1)
            cluster.scheduler.kill()
            error = run.communicate(timeout=120)[1]
    assert run.returncode == 1, error
    assert "Traceback" not in error
    assert f"the Dask scheduler at {cluster.address} was lost" in error, error
    assert f"To go on: factorflow resume {out} --executor {cluster.address}" in error
    assert factorflow.resume(out, max_minutes=0.001).run["status"] == "partial"
