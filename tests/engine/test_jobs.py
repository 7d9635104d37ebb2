"""What the jobs of queues ask for: dask-jobqueue writes their scripts without the queue being there."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

from factorflow.engine.executors import clusters
from factorflow.settings.clusters import BatchCluster


@pytest.mark.parametrize(
    ("kind", "lines", "directives"),
    [
        ("slurm", ["-n 1", "--mem=8G", "--cpus-per-task=4", "-t 02:00:00", "-p long", "-A lab"], []),
        ("pbs", ["-l walltime=02:00:00", "-q long", "-A lab", "-l select=1:ncpus=4:mem=8192MB"], []),
        ("lsf", ["-W 02:00", "-q long", '-P "lab"', "-n 4", "-M 8589935"], []),  # KB
        ("sge", ["-l h_rt=02:00:00", "-q long", "-P lab"], ["-pe smp 4", "-l h_vmem=2G"]),
    ],
)
def test_the_script_of_a_job(kind: Any, lines: list[str], directives: list[str]) -> None:
    """As dask-jobqueue writes it; nothing is submitted before workers are asked for."""
    pytest.importorskip("dask_jobqueue")
    setting = BatchCluster(
        kind=kind, workers=8, workers_per_job=4, memory="2GiB", walltime="2h", queue="long", account="lab",
        directives=["--qos=low", *directives], prologue=["module load python"], environment={"A": "b c"},
        python="/opt/python", interface="lo",
    )  # fmt: skip
    with clusters._jobs(setting) as cluster:
        script = cluster.job_script()
    sign = {"slurm": "#SBATCH", "pbs": "#PBS", "lsf": "#BSUB", "sge": "#$"}[kind]
    wanted = [f"{sign} {line}" for line in [*lines, *directives, "--qos=low"]]
    wanted += ["module load python", "export A='b c'", "export OMP_NUM_THREADS=1"]
    wanted += ["/opt/python -m distributed.cli.dask_worker", "--nthreads 1", "--nworkers 4"]
    wanted += ["--memory-limit 2.00GiB"]
    wanted += ["--lifetime 6900s --lifetime-stagger 150s"]  # they leave in order, before their time is over
    for text in wanted:
        assert f"{text}\n" in script or f"{text} " in script, (text, script)


@pytest.mark.parametrize(
    ("given", "workers", "missing"),
    [
        ([], 4, "its 4 cores, such as '-pe smp 4' and its memory"),
        (["-pe orte 4"], 4, "for its memory"),
        (["-l mem_free=4G"], 4, "'-pe smp 4', of each job"),
        ([], 1, "for its memory"),
        (["-l mem_free=4G"], 1, ""),
    ],
)
def test_what_sge_is_not_asked_for(given: list[str], workers: int, missing: str) -> None:
    """dask-jobqueue asks it for neither cores nor memory: who forgets them takes those of others."""
    setting = BatchCluster(
        kind="sge", workers=8, workers_per_job=workers, memory="4GB", walltime="2h", directives=given
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        clusters._check_sge(setting)
    assert len(said) == bool(missing)
    assert all(re.search(missing, str(each.message)) for each in said)
