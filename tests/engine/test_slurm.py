"""A SLURM of one node, started here: workers as jobs, some of them cancelled, and the script of deploy/.

It needs Debian's packages slurm-wlm and munge (or others with the same programs), root, and dask-jobqueue.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from contract_tools import assert_same_bits

import factorflow
from factorflow.cli import doctor
from factorflow.engine.events import IterationDone
from factorflow.models import SparseGFA
from factorflow.settings import ResumeOptions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo")


def jobs(folder: Path) -> dict[str, Any]:
    """Return the setting of two jobs whose logs go to a folder."""
    arguments: dict[str, Any] = {"cores": 1, "memory": "1GB", "walltime": "00:10:00", "interface": "lo"}
    arguments["scheduler_options"] = {"dashboard_address": ":0"}
    return {
        "class": "dask_jobqueue.SLURMCluster",
        "kwargs": {**arguments, "log_directory": str(folder)},
        "adapt": {"minimum": 2, "maximum": 2},
    }


MODEL = SparseGFA(n_factors=3, warmup_iter=5, max_iter=25)

CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
MpiDefault=none
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=16000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Neither control groups nor a database; more processors than there may be, so that jobs need not wait."""


def start(folder: Path) -> None:
    """Start the daemons, each of which writes its number into a file and goes to the background."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    text = CONFIGURATION.format(host=socket.gethostname(), ports=ports, folder=folder)
    (folder / "slurm.conf").write_text(text)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    ends = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    files = [f"--{option}={folder}/munge.{end}" for option, end in ends.items()]
    for command in (["munged", "--force", *files], ["slurmctld", "-i"], ["slurmd"]):
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    wait_for(lambda: "idle" in said("sinfo", "-h", "-o", "%T"), "a node that is idle")


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


def running() -> list[str]:
    return said("squeue", "-h", "-t", "R", "-o", "%i").split()


def wait_for(condition: Any, what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no {what} within {seconds} s"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    pytest.importorskip("dask_jobqueue")
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing or PROGRAMS)}")
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))  # names of sockets are short
    folder.chmod(0o755)
    patch = pytest.MonkeyPatch()
    patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    try:
        start(folder)
        yield folder
    finally:
        said("scancel", "--user=root")
        for name in ("slurmd", "slurmctld", "munge"):
            pid = folder / f"{name}.pid"
            if pid.exists():
                os.kill(int(pid.read_text()), signal.SIGTERM)
                wait_for(lambda pid=pid: not pid.exists(), f"end of {name}")
        patch.undo()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.zarr"
    factorflow.simulate(
        "sparse_gfa", path, n_samples=600, block_rows=64, seed=7, views={"a": ("gaussian", 20)}
    )
    return path


def test_jobs_that_are_cancelled(slurm: Path, data: Path, tmp_path: Path) -> None:
    """One of the jobs, then both: the run goes on with those that come instead, with equal bits."""
    cancelled: list[str] = []

    def cancel(event: Any) -> None:
        if isinstance(event, IterationDone) and event.iteration in {4, 8}:
            wait_for(lambda: len(running()) == 2, "two jobs")
            jobs = running()[: event.iteration // 4]
            cancelled.extend(jobs)
            subprocess.run(["scancel", *jobs], check=True, timeout=60)
            wait_for(lambda: not set(jobs) & set(running()), "end of the jobs")

    setting = jobs(tmp_path / "logs")
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}):
        there = factorflow.fit(
            data, MODEL, seed=3, executor=setting, on_event=cancel, out=tmp_path / "p.zarr"
        )
    assert len(set(cancelled)) == 3
    assert_same_bits(there, factorflow.fit(data, MODEL, seed=3))
    wait_for(lambda: not running(), "end of the jobs of the run")
    assert len(list((tmp_path / "logs").iterdir())) >= 5


def test_doctor_looks_at_jobs(slurm: Path, data: Path, tmp_path: Path) -> None:
    """Both jobs are on one machine; the memory that they see is that of each of them."""
    setting = ResumeOptions(cluster=jobs(tmp_path)).cluster
    found = {check.name: check for check in doctor.examine(setting, tmp_path, data)}
    for name in ("cluster", "worker threads", "worker memory", "worker pauses", "results", "dataset"):
        assert found[name].ok, found[name]


def test_the_script(slurm: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    settings = [f"--set={name}={getattr(MODEL, name)}" for name in ("n_factors", "warmup_iter", "max_iter")]
    out, log = tmp_path / "out.zarr", tmp_path / "log"
    asked = ["sbatch", "--wait", "--ntasks=2", "--mem-per-cpu=1G", f"--output={log}"]
    script = [str(ROOT / "deploy/slurm/fit.sbatch"), str(data), str(out), *settings, "--seed", "3"]
    done = subprocess.run([*asked, *script], check=False, timeout=300)
    assert done.returncode == 0, log.read_text()
    assert_same_bits(factorflow.open_posterior(out), factorflow.fit(data, MODEL, seed=3))
    assert not Path(f"{out}.slurm").exists()
