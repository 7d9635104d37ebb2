"""Every command of the deployment files, run as a process with addresses of this machine."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

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
    worker: list[str]
    setup: list[str]

    def launch(self, **parameters: Any) -> list[str]:
        """Return the command that runs the deployment `fit/fit`."""
        arguments = [f"--param={name}={json.dumps(value)}" for name, value in parameters.items()]
        return ["prefect", "deployment", "run", "fit/fit", *arguments]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, tools: Any) -> Iterator[Deployed]:
    with compose(tmp_path_factory.mktemp("compose"), tools) as found:
        yield found


SERVER_PASSWORD, PASSWORD = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"


def filled(value: str) -> str:
    """Return a value of the compose file, with a password, and defaults where nothing is set."""
    value = re.sub(r"\$\{\w+:\?[^}]*\}", "chosen", value)
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


@contextmanager
def compose(folder: Path, tools: Any, **environment: str) -> Iterator[Deployed]:
    """Start the services of docker-compose.yml but for the store, with more in the environment of all."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ports = {number: tools.free_port() for number in ("4200", "8786", "8787")}
    api = f"http://127.0.0.1:{ports['4200']}/api"
    assert services["prefect-worker"]["environment"]["PREFECT_API_URL"] == "http://prefect-server:4200/api"
    always = {name: s for name, s in services.items() if "profiles" not in s}
    commands = {name: adapted(s["command"], ports) for name, s in always.items() if "command" in s}
    assert set(commands) == {
        "prefect-server",
        "prefect-setup",
        "prefect-worker",
        "dask-scheduler",
        "dask-worker",
    }
    with tools.started(folder) as processes:
        processes.environment |= {"PREFECT_API_URL": api, **environment}
        given = {name: services[name]["environment"] for name in ("prefect-server", "prefect-worker")}
        password = {name: filled(given["prefect-server"][name]) for name in (SERVER_PASSWORD,)}
        database = tools.database(processes)  # that of the file, where there is PostgreSQL; else SQLite
        processes.start(commands["prefect-server"], **database, **password)
        processes.environment |= {
            name: filled(given["prefect-worker"][name])
            for name in (PASSWORD, "DASK_DISTRIBUTED__DASHBOARD__LINK", "DASK_FACTORFLOW__SHARE")
        }
        processes.start(commands["dask-scheduler"])
        processes.start(commands["dask-worker"])
        tools.wait_for(lambda: tools.answers(f"{api}/health"), "the Prefect server")
        processes.run(commands["prefect-setup"])
        processes.start(commands["prefect-worker"])
        dashboard = f"http://127.0.0.1:{ports['8787']}/status"
        yield Deployed(processes, dashboard, commands["dask-worker"], commands["prefect-setup"])


@pytest.mark.thorough
def test_nothing_is_open_to_other_machines() -> None:
    """Ports are published on this machine alone, no password is known to all, nothing runs as root."""
    text = (ROOT / "docker-compose.yml").read_text()
    services = yaml.safe_load(text)["services"]
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    for name, uses in (("POSTGRES_PASSWORD", 2), ("PREFECT_PASSWORD", 2)):
        passwords = [line for line in text.splitlines() if name in line and "$" in line]
        assert len(passwords) == uses
        assert all(f"${{{name}:?" in line for line in passwords)
        assert f"\n{name}=\n" in (ROOT / "deploy" / "compose.env").read_text()
    ours = [line for line in (ROOT / "deploy" / "Dockerfile").read_text().splitlines() if "USER " in line]
    assert ours == ["USER 1000"]
    pods = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "cluster.yaml").read_text())["spec"]
    for part in ("worker", "scheduler"):
        assert pods[part]["spec"]["securityContext"] == {"runAsNonRoot": True, "fsGroup": 1000}
    assert services["postgres"]["user"] == "postgres"


def test_images_carry_the_version_that_is_built() -> None:
    """Builds of two commits differ in version and tag: the build itself sees no git."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    built = [service for service in services.values() if "build" in service]
    assert built
    for service in built:
        assert service["build"]["args"]["VERSION"] == "${FACTORFLOW_VERSION:-}"
        assert service["image"].endswith(":${FACTORFLOW_VERSION:-latest}")
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"]["raw-options"]
    assert options["dist_name"] == "factorflow"  # else the variable below, of this name, is not read
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    install = (
        next(line for line in lines if "pip install" in line).removeprefix("RUN ").partition(" python")[0]
    )
    for version, expected in (("1.2.3", "1.2.3\n"), ("", "none\n")):
        shown = f"{install} sh -c 'echo \"${{SETUPTOOLS_SCM_PRETEND_VERSION_FOR_FACTORFLOW:-none}}\"'"
        answer = subprocess.run(
            ["sh", "-c", shown], env={**os.environ, "VERSION": version}, capture_output=True
        )
        assert answer.stdout.decode() == expected


def test_healthy_runs_are_not_marked_as_crashed() -> None:
    """The automation waits for several heartbeats, as often as Prefect sends them unless told otherwise."""
    from prefect.events.schemas.automations import AutomationCore
    from prefect.settings.models.flows import FlowsSettings

    rule = AutomationCore.model_validate(yaml.safe_load((ROOT / "deploy" / "zombie-runs.yaml").read_text()))
    heartbeat = FlowsSettings.model_fields["heartbeat_frequency"].default
    assert heartbeat
    assert rule.trigger.within.total_seconds() >= 3 * heartbeat  # type: ignore[union-attr]
    assert "prefect.flow-run.heartbeat" in rule.trigger.expect  # type: ignore[union-attr]


@pytest.mark.thorough
def test_compose_runs_a_deployment(deployed: Deployed, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = deployed.launch(source=str(source), out=str(out), model={"model": "sparse_gfa", "n_factors": 2})
    shown = deployed.processes.run([*run, "--watch", "--watch-timeout=300"])
    assert (out / "report.html").exists(), f"{shown}\n{deployed.processes.logs()}"
    assert "Dask dashboard: http://localhost:8787/status" in deployed.processes.logs()
    with urlopen(deployed.dashboard, timeout=30) as answer:
        assert "Bokeh" in answer.read().decode()
    api = deployed.processes.environment["PREFECT_API_URL"]
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"{api}/admin/version", timeout=30)


@pytest.mark.slow
def test_a_server_is_put_back(deployed: Deployed) -> None:
    """`deploy/setup.sh` run again: to what `deploy/prefect.yaml` declares."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    known = deployed.processes.environment
    settings = {PREFECT_API_URL: known["PREFECT_API_URL"], PREFECT_API_AUTH_STRING: known[PASSWORD]}
    with temporary_settings(settings):
        check_setup(lambda: deployed.processes.run(deployed.setup))


def check_setup(setup: Callable[[], str]) -> None:
    """Change what is on a server that is set up, set it up again, and compare."""
    from prefect.client.orchestration import get_client

    names = ["fit/fit", "refresh/nightly", "refresh/hourly"]

    def state() -> list[Any]:
        with get_client(sync_client=True) as client:
            found = [client.read_deployment_by_name(name) for name in names]
            pool = client.read_work_pool("factorflow")
        kept = {"parameters", "paused", "description", "tags", "enforce_parameter_schema", "job_variables"}
        known = [one.model_dump(mode="json", include=kept) for one in found]
        for one, deployment in zip(known, found, strict=True):
            one["schedules"] = [(s.slug, s.active, s.schedule) for s in deployment.schedules]
        return [pool.is_paused, *known]

    before = state()
    with get_client(sync_client=True) as client:
        fit, nightly, hourly = (client.read_deployment_by_name(name) for name in names)
        edited = {"parameters": {"source": "mine.csv"}, "description": "x", "enforce_parameter_schema": False}
        client.request("PATCH", "/deployments/{id}", path_params={"id": nightly.id}, json=edited)
        for deployment, active in ((nightly, False), (hourly, True)):
            client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=active)
        for deployment in (fit, nightly):
            added = [{"active": True, "schedule": {"cron": "0 6 * * *"}}]
            path = {"id": deployment.id}
            client.request("POST", "/deployments/{id}/schedules", path_params=path, json=added)
        client.pause_deployment(nightly.id)
    assert state() != before
    said = setup()
    assert state() == before
    for line in (
        "refresh/nightly was paused",
        "refresh/nightly: source was mine.csv, is examples/multiple_features.npz",
        "refresh/nightly: schedule nightly was off, is on",
        "refresh/hourly: schedule hourly was on, is off",
        "fit/fit: schedule without a slug (0 6 * * * UTC) is not declared: deleted",
    ):
        assert line in said


@pytest.mark.slow
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


@pytest.mark.slow
def test_from_nothing_to_a_refresh(tmp_path: Path, tools: Any) -> None:
    """All of compose, a server of S3 in place of its store: scheduled runs, new rows, cancelled, resumed."""
    obstore = pytest.importorskip("obstore")
    pytest.importorskip("moto")
    port = tools.free_port()
    access = {
        "AWS_ACCESS_KEY_ID": "factorflow",
        "AWS_SECRET_ACCESS_KEY": "chosen",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "FACTORFLOW_RUNS": str(tmp_path / "runs"),
    }
    with compose(tmp_path, tools, **access) as deployed:
        processes = deployed.processes
        processes.start(["python", "-m", "moto.server", "-p", str(port)])
        tools.wait_for(lambda: tools.answers(f"http://127.0.0.1:{port}/moto-api/"), "the server of S3")
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request"}
        bucket = f"http://127.0.0.1:{port}/factorflow"
        urlopen(Request(bucket, b"", signed, method="PUT"), timeout=10).close()
        store = obstore.store.S3Store(
            "factorflow",
            endpoint=access["AWS_ENDPOINT_URL"],
            access_key_id="factorflow",
            secret_access_key="chosen",
            region="us-east-1",
            client_options={"allow_http": True},
        )

        def keys() -> set[str]:
            return {found["path"] for part in obstore.list(store) for found in part}

        def put_rows(n: int) -> None:
            rng = np.random.default_rng(0)
            y = rng.standard_normal((80, 2)) @ rng.standard_normal((2, 8)) + rng.standard_normal((80, 8))
            lines = [",".join(["sample", *(f"f{i}" for i in range(8))])]
            lines += [",".join([f"s{row}", *(f"{v:.4f}" for v in y[row])]) for row in range(n)]
            obstore.put(store, "raw/rna.csv", "\n".join([*lines, ""]).encode())

        put_rows(60)
        scheduler = next(word for word in deployed.worker if word.startswith("tcp://"))
        run = {"executor": scheduler, "checkpoint_every": 1}
        model = {"model": "sparse_gfa", "n_factors": 2}
        parameters = {"source": "s3://factorflow/raw/rna.csv", "out": "s3://factorflow/cohort", "run": run}
        deploy = ["prefect", "--no-prompt", "deploy", "flows/refresh.py:refresh", "-n", "often"]
        deploy += [
            "-p",
            "factorflow",
            "--interval",
            "20",
            "--params",
            json.dumps(parameters | {"model": model}),
        ]
        processes.run(deploy)
        tools.wait_for(lambda: "cohort/latest.json" in keys(), "a run of the schedule", 300)
        first = json.loads(bytes(obstore.get(store, "cohort/latest.json").bytes()))
        put_rows(80)

        def latest() -> Any:
            return json.loads(bytes(obstore.get(store, "cohort/latest.json").bytes()))

        tools.wait_for(lambda: latest() != first, "a run that finds the new rows", 300)
        posterior = "s3://factorflow/cohort/0002.zarr"
        facts = json.loads(processes.run(["factorflow", "summary", posterior, "--json"]))
        assert facts["status"] == "complete"
        processes.run(["factorflow", "inspect", "--verify", posterior])

        data, out = "s3://factorflow/data.zarr", "s3://factorflow/long"
        simulate = ["factorflow", "simulate", "binary", "--out", data, "--set", "n_samples=5000"]
        processes.run(simulate)
        endless = {"model": "probit", "n_factors": 3, "n_burn_in": 0, "n_draws": 10**5, "chains": 1}
        processes.run(deployed.launch(source=data, out=out, model=endless, run=run))
        mirrored = "long/posterior.zarr.run/manifest.json"
        tools.wait_for(lambda: mirrored in keys(), "a checkpoint in the store", 300)
        newest = ["prefect", "flow-run", "ls", "--flow-name", "fit", "--limit", "1", "--output", "json"]
        processes.run(["prefect", "flow-run", "cancel", json.loads(processes.run(newest))[0]["id"]])
        tools.wait_for(lambda: "long/posterior.zarr/zarr.json" in keys(), "the partial posterior", 300)
        facts = json.loads(processes.run(["factorflow", "summary", f"{out}/posterior.zarr", "--json"]))
        assert facts["status"] == "partial"
        again = [
            "factorflow",
            "resume",
            f"{out}/posterior.zarr",
            "--max-iter",
            str(facts["n_iterations"] + 2),
        ]
        processes.run(again, FACTORFLOW_RUNS=str(tmp_path / "elsewhere"))
        after = json.loads(processes.run(["factorflow", "summary", f"{out}/posterior.zarr", "--json"]))
        assert after["n_iterations"] == facts["n_iterations"] + 2
