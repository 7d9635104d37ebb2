"""Every command of the deployment files, run as a process with addresses of this machine."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two views of 60 samples with 2 factors, as one file."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((60, 2))
    views = {
        f"Y_{name}": scores @ rng.standard_normal((2, 10)) + rng.standard_normal((60, 10)) for name in "ab"
    }
    path = tmp_path / "source.npz"
    np.savez(path, view_names=["a", "b"], likelihoods=["gaussian", "gaussian"], **views)
    return path


def adapted(command: list[str], ports: dict[str, int]) -> list[str]:
    """Return a command with the hosts and ports of containers replaced by those of this machine."""
    words = []
    for word in command:
        for host in ("0.0.0.0", "prefect-server", "dask-scheduler"):
            word = word.replace(host, "127.0.0.1")
        for container, port in ports.items():
            word = word.replace(container, str(port))
        words.append(word)
    return words


def test_compose(processes: Any, source: Path, tmp_path: Path, tools: Any) -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ports = {number: tools.free_port() for number in ("4200", "8786", "8787")}
    api = f"http://127.0.0.1:{ports['4200']}/api"
    assert services["prefect-worker"]["environment"]["PREFECT_API_URL"] == "http://prefect-server:4200/api"
    processes.environment["PREFECT_API_URL"] = api
    commands = {name: adapted(s["command"], ports) for name, s in services.items() if "command" in s}
    assert set(commands) == {
        "prefect-server",
        "prefect-setup",
        "prefect-worker",
        "dask-scheduler",
        "dask-worker",
    }

    processes.start(commands["prefect-server"])  # on SQLite: there is no PostgreSQL here
    processes.start(commands["dask-scheduler"])
    processes.start(commands["dask-worker"])
    tools.wait_for(lambda: tools.answers(f"{api}/health"), "the Prefect server")
    processes.run(commands["prefect-setup"])
    processes.start(commands["prefect-worker"])

    out = tmp_path / "out"
    parameters = {"source": str(source), "out": str(out), "model": {"model": "sparse_gfa", "n_factors": 2}}
    arguments = [f"--param={name}={json.dumps(value)}" for name, value in parameters.items()]
    shown = processes.run(
        ["prefect", "deployment", "run", "fit/fit", *arguments, "--watch", "--watch-timeout=300"]
    )
    assert (out / "report.html").exists(), f"{shown}\n{processes.logs()}"
    page = f"http://127.0.0.1:{ports['8787']}/status"
    assert (
        "bokeh"
        in subprocess.run(["curl", "-s", page], capture_output=True, text=True, check=True).stdout.lower()
    )


def test_kubernetes(processes: Any, tools: Any) -> None:
    spec = yaml.safe_load((ROOT / "deploy/kubernetes/cluster.yaml").read_text())["spec"]
    ports = {number: tools.free_port() for number in ("8786", "8787")}
    containers = {part: spec[part]["spec"]["containers"][0] for part in ("scheduler", "worker")}
    address = f"tcp://127.0.0.1:{ports['8786']}"
    processes.start(adapted(containers["scheduler"]["args"], ports))
    tools.wait_for(lambda: tools.answers(f"http://127.0.0.1:{ports['8787']}/health"), "the Dask scheduler")
    worker = [word.replace("$(DASK_WORKER_NAME)", "worker-0") for word in containers["worker"]["args"]]
    processes.start(worker, DASK_SCHEDULER_ADDRESS=address)  # the operator sets it
    found = json.loads(processes.run(["factorflow", "doctor", "--executor", address, "--json"]))
    assert found["ok"]


def test_slurm(processes: Any, source: Path, tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    srun = bin_ / "srun"
    srun.write_text('#!/bin/sh\n"$@" & "$@" & wait\n')  # two tasks
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    path = f"{bin_}{os.pathsep}{processes.env()['PATH']}"
    dataset, out = tmp_path / "data.zarr", tmp_path / "out.zarr"
    processes.run(["factorflow", "ingest", str(source), "--out", str(dataset)])
    options = ["--set", "n_factors=2", "--max-iter", "10", "--json"]
    script = ["bash", "deploy/slurm/fit.sbatch", str(dataset), str(out), *options]
    processes.run(script, PATH=path, TMPDIR=str(tmp_path), SLURM_MEM_PER_CPU="1024")
    assert (out / "zarr.json").exists()
    assert not (tmp_path / "out.zarr.slurm").exists()
