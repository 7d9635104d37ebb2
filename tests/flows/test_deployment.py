"""Every command of the deployment files, run as a process with addresses of this machine."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(900)


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


@dataclass
class Deployed:
    """The services of docker-compose.yml, running."""

    processes: Any
    dashboard: str

    def launch(self, **parameters: Any) -> list[str]:
        """Return the command that runs the deployment `fit/fit`."""
        arguments = [f"--param={name}={json.dumps(value)}" for name, value in parameters.items()]
        return ["prefect", "deployment", "run", "fit/fit", *arguments]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, tools: Any) -> Iterator[Deployed]:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ports = {number: tools.free_port() for number in ("4200", "8786", "8787")}
    api = f"http://127.0.0.1:{ports['4200']}/api"
    assert services["prefect-worker"]["environment"]["PREFECT_API_URL"] == "http://prefect-server:4200/api"
    commands = {name: adapted(s["command"], ports) for name, s in services.items() if "command" in s}
    assert set(commands) == {
        "prefect-server",
        "prefect-setup",
        "prefect-worker",
        "dask-scheduler",
        "dask-worker",
    }
    with tools.started(tmp_path_factory.mktemp("compose")) as processes:
        processes.environment["PREFECT_API_URL"] = api
        processes.start(commands["prefect-server"])  # on SQLite: there is no PostgreSQL here
        processes.start(commands["dask-scheduler"])
        processes.start(commands["dask-worker"])
        tools.wait_for(lambda: tools.answers(f"{api}/health"), "the Prefect server")
        processes.run(commands["prefect-setup"])
        processes.start(commands["prefect-worker"])
        yield Deployed(processes, f"http://127.0.0.1:{ports['8787']}/status")


@pytest.mark.thorough
def test_nothing_is_open_to_other_machines() -> None:
    """Ports are published on this machine alone, no password is known to all, nothing runs as root."""
    text = (ROOT / "docker-compose.yml").read_text()
    services = yaml.safe_load(text)["services"]
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    passwords = [line for line in text.splitlines() if "POSTGRES_PASSWORD" in line and "$" in line]
    assert passwords
    assert all("${POSTGRES_PASSWORD:?" in line for line in passwords)
    ours = [line for line in (ROOT / "deploy" / "Dockerfile").read_text().splitlines() if "USER " in line]
    assert ours == ["USER factorflow"]
    assert services["postgres"]["user"] == "postgres"


@pytest.mark.thorough
def test_compose_runs_a_deployment(deployed: Deployed, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = deployed.launch(source=str(source), out=str(out), model={"model": "sparse_gfa", "n_factors": 2})
    shown = deployed.processes.run([*run, "--watch", "--watch-timeout=300"])
    assert (out / "report.html").exists(), f"{shown}\n{deployed.processes.logs()}"
    with urlopen(deployed.dashboard, timeout=30) as answer:
        assert "Bokeh" in answer.read().decode()


@pytest.mark.thorough
def test_cancelling_ends_in_order(deployed: Deployed, tmp_path: Path, tools: Any) -> None:
    processes = deployed.processes
    data, out = tmp_path / "data.zarr", tmp_path / "out"
    processes.run(["factorflow", "simulate", "binary", "--out", str(data), "--set", "n_samples=5000"])
    endless = {"model": "probit", "n_factors": 3, "n_burn_in": 0, "n_draws": 10**5, "chains": 1}
    options = {"executor": "local", "checkpoint_every": 1}
    processes.run(deployed.launch(source=str(data), out=str(out), model=endless, run=options))
    tools.wait_for((out / "posterior.zarr.run" / "manifest.json").exists, "a checkpoint")
    newest = ["prefect", "flow-run", "ls", "--flow-name", "fit", "--limit", "1", "--output", "json"]
    processes.run(["prefect", "flow-run", "cancel", json.loads(processes.run(newest))[0]["id"]])
    tools.wait_for((out / "posterior.zarr").exists, "the partial posterior")
    summary = processes.run(["factorflow", "summary", str(out / "posterior.zarr"), "--json"])
    assert json.loads(summary)["status"] == "partial"
    assert (out / "posterior.zarr.run" / "manifest.json").exists()


@pytest.mark.thorough
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


@pytest.mark.slow
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
