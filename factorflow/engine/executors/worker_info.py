"""Information about the workers of a Dask cluster, for `factorflow doctor`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorflow.errors import FactorflowError

if TYPE_CHECKING:
    from distributed import Worker

JOB_NUMBERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
"""Variables in which SLURM, PBS, LSF and SGE tell a job its number."""


@dataclass(frozen=True)
class WorkerInfo:
    """Information about a worker.

    Parameters
    ----------
    job : str
        Number of its job, where a queue started it: each job has memory of its own. Empty: none.
    memory_limit : int
        In bytes; 0: none.
    machine_memory : int
        Memory of its machine, of its control group or of its job, in bytes.
    pauses_at : float
        Share of the limit above which it takes no more tasks; 0: never.
    keeps_heap : bool
        Whether glibc keeps for the next block what one block needed (``MALLOC_MMAP_MAX_=0``).
    sees : mapping of str to str
        By path that was asked about: the content of a file, or the fingerprint of a dataset; empty where it
        is not there, or cannot be read.
    """

    host: str
    job: str
    threads: int
    memory_limit: int
    machine_memory: int
    pauses_at: float
    keeps_heap: bool
    sees: Mapping[str, str]


def worker_info(files: tuple[str, ...], datasets: tuple[str, ...], dask_worker: Worker) -> WorkerInfo:
    """Return information about this worker, and whether it sees some files and datasets."""
    import socket

    from factorflow.engine.executors.local import available_memory

    memory = dask_worker.memory_manager
    return WorkerInfo(
        host=socket.gethostname(),
        job=next((os.environ[name] for name in JOB_NUMBERS if name in os.environ), ""),
        threads=dask_worker.state.nthreads,
        memory_limit=int(memory.memory_limit or 0),
        machine_memory=available_memory(),
        pauses_at=float(memory.memory_pause_fraction or 0.0),
        keeps_heap=os.environ.get("MALLOC_MMAP_MAX_") == "0",
        sees={**{path: _content(path) for path in files}, **{path: _fingerprint(path) for path in datasets}},
    )


def usable_share(dask_worker: Worker) -> float:
    """Return the share of its memory limit up to which a worker is neither paused nor restarted."""
    import dask

    memory = dask_worker.memory_manager
    if not memory.memory_limit:
        return 1.0
    terminates = dask.config.get("distributed.worker.memory.terminate")  # that of its nanny
    return float(min(memory.memory_pause_fraction or 1.0, terminates or 1.0))


def missing_paths(paths: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return the host of the worker that this runs on, and the paths that it does not see."""
    import socket

    return socket.gethostname(), [path for path in paths if not os.path.exists(path)]


def job_lines(cluster: Any) -> str:
    """Return the last lines that a job of a queue wrote, as a sentence; nothing where there is none."""
    for job in getattr(cluster, "workers", {}).values():
        folder, number = getattr(job, "log_directory", None) or ".", getattr(job, "job_id", None)
        for path in sorted(Path(folder).glob(f"*{number}*")) if number else ():
            if path.is_file() and (lines := path.read_text(errors="replace").strip().splitlines()[-5:]):
                return f" Job {number} wrote: {' | '.join(lines)}"
    return ""


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _fingerprint(path: str) -> str:
    from factorflow.data import open_dataset

    try:
        return open_dataset(path).fingerprint
    except (FactorflowError, OSError):
        return ""
