"""A local cluster: Dask's scheduler in this process, and a `dask worker` subprocess for each worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

from factorflow.engine.executors.dask_private import disable_batching
from factorflow.engine.executors.environment import ONE_THREAD
from factorflow.errors import InputError, RunError

START_SECONDS = 120.0
"""Time that workers have to start: an import from a cold network disk takes half a minute."""

WORKER_VARIABLES = {
    **ONE_THREAD,
    # glibc keeps for the next block what one block needed: by default the kernel maps and zeroes every
    # array of a megabyte anew. One heap does not fragment either, since blocks are of one size.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    # Neither paused nor spilled: what a run takes is known before it starts.
    **{f"DASK_DISTRIBUTED__WORKER__MEMORY__{what}": "False" for what in ("TARGET", "SPILL", "PAUSE")},
    # Dask's own 10 and 20 ms take 3 % of a core from the compute.
    "DASK_DISTRIBUTED__WORKER__PROFILE__INTERVAL": "100ms",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "200ms",
}


def local_cluster(n_workers: int, memory_limit: str | int | None = None) -> tuple[Client, tuple[Any, ...]]:
    """Start a cluster on this machine; return its client, and what is to be closed, in this order.

    The dashboard listens at this machine alone, unless Dask's setting ``factorflow.dashboard-address`` says
    another place: whoever reaches it sees names of tasks, logs and parts of the code.

    Raises
    ------
    InputError
        If Dask's folder for temporary files cannot be used.
    RunError
        If a worker does not start, with its last lines.
    """
    parent = dask.config.get("temporary-directory", None)
    try:
        folder = tempfile.TemporaryDirectory(prefix="factorflow-workers-", dir=parent)
    except OSError as error:
        value = str(parent or tempfile.gettempdir())
        expected = f"a folder that can be written ({error.strerror})"
        remedy = "Correct it in Dask's configuration (DASK_TEMPORARY_DIRECTORY, ~/.config/dask), or TMPDIR."
        raise InputError("temporary-directory", value, expected, remedy) from error
    address = dask.config.get("factorflow.dashboard-address", None) or _free_dashboard()
    cluster = LocalCluster(n_workers=0, dashboard_address=address)
    client = Client(cluster, set_as_default=False)
    disable_batching(client)
    workers = WorkerProcesses(folder, cluster.scheduler_address, n_workers, memory_limit or "auto")
    owned = client, cluster, workers
    try:
        workers.wait(client)
    except BaseException:
        for part in owned:
            part.close()
        raise
    return client, owned


class WorkerProcesses:
    """Subprocesses with a nanny and its worker each, which starts another one where that is lost.

    They are sessions of their own: a signal to the process group of this process (Ctrl-C in a terminal, or
    Prefect, which waits 30 s for the end of the run) does not reach them. They end when the scheduler does.
    """

    def __init__(
        self,
        folder: tempfile.TemporaryDirectory[str],
        address: str,
        n_workers: int,
        memory_limit: str | int,
    ) -> None:
        self._folder = folder
        # As a process that Dask spawns itself has them: the configuration and the path of this process.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        config = dask.config.serialize(dask.config.config)
        inherited = {"PYTHONPATH": path, "DASK_INTERNAL_INHERIT_CONFIG": config}
        command = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", address]
        command += ["--host", "127.0.0.1", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        command += ["--nthreads", "1", "--memory-limit", str(memory_limit)]
        command += ["--local-directory", folder.name]
        self._processes = []
        for number in range(n_workers):
            with self._log(number).open("wb") as log:
                process = subprocess.Popen(
                    [*command, "--name", str(number)],
                    env={**os.environ, **inherited, **WORKER_VARIABLES},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._processes.append(process)

    def wait(self, client: Client) -> None:
        """Return when all workers are there."""
        end = time.monotonic() + START_SECONDS
        while True:
            with suppress(TimeoutError):
                client.wait_for_workers(len(self._processes), timeout=1)
                return
            ended = [n for n, process in enumerate(self._processes) if process.poll() is not None]
            if ended or time.monotonic() > end:
                number = ended[0] if ended else 0
                what = "ended at its start" if ended else f"did not start within {START_SECONDS:.0f} s"
                lines = self._log(number).read_text(errors="replace").strip().splitlines()[-5:]
                raise RunError(f"worker {number} of the local cluster {what}: {' | '.join(lines)}")

    def _log(self, number: int) -> Path:
        return Path(self._folder.name, f"worker-{number}.log")

    def close(self) -> None:
        """End the processes at once: workers take seconds to close, and have nothing to save."""
        for process in self._processes:
            with suppress(ProcessLookupError):  # its worker, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._folder.cleanup()


def _free_dashboard() -> str:
    """Return Dask's own port, or another one if that is taken."""
    import socket

    with socket.socket() as probe:
        return f"127.0.0.1:{8787 if probe.connect_ex(('127.0.0.1', 8787)) else 0}"
