"""A cluster of our own on this machine: worker processes, and what their environment is."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client, LocalCluster, Nanny, SchedulerPlugin, Status, WorkerPlugin

from factorflow.engine.executors.environment import ONE_THREAD

if TYPE_CHECKING:
    from distributed import Scheduler, Worker

__all__ = ["dashboard_address", "local_cluster"]

HEAP_IS_REUSED = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
"""Environment of a worker of our own (glibc): what one block needed serves the next.

By default the kernel maps and zeroes every array of a megabyte anew, page by page; one heap for all threads
does not fragment either, since blocks are of one size.
"""

UNHINDERED = {f"distributed.worker.memory.{what}": False for what in ("target", "spill", "pause")}
"""A worker of our own is not paused and spills nothing: what a run takes is known before it starts."""

SELDOM = {"distributed.worker.profile.interval": "100ms", "distributed.admin.tick.interval": "200ms"}
"""How often a worker of our own looks at itself, for the dashboard.

As often as Dask does by itself (10 and 20 ms), it takes 3 % of a core from the compute.
"""


def local_cluster(
    n_workers: int, memory_limit: str | int | None = None, threads: int = 1
) -> tuple[Client, tuple[Any, ...]]:
    """Start a cluster of worker processes on this machine, single-threaded by default, with its dashboard."""
    with warnings.catch_warnings():
        # Of two that start at once one finds the port free and then taken: where its dashboard is, it says.
        warnings.filterwarnings("ignore", r"\s*Port \d+ is already in use", UserWarning)
        cluster = LocalCluster(
            n_workers=n_workers,
            worker_class=OwnNanny,
            threads_per_worker=threads,
            memory_limit=memory_limit or "auto",
            dashboard_address=dashboard_address(),
        )
    client = Client(cluster)
    client.register_plugin(OwnGroup(), name="factorflow-own-group")
    client.register_plugin(WorkersTellAtOnce(), name="factorflow-workers-tell-at-once")
    client.register_plugin(SchedulerTellsAtOnce(), name="factorflow-scheduler-tells-at-once")
    return client, (client, cluster)


class OwnNanny(Nanny):
    """Starts a worker, at first and whenever it was lost, that does not import the program of this process.

    Workers do not need it: it would load Prefect into each of them, and run a script again that lacks
    ``if __name__ == "__main__"``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        environ = {**dask.config.get("distributed.nanny.pre-spawn-environ"), **ONE_THREAD, **HEAP_IS_REUSED}
        # Before the process is spawned, also of a worker that joins later: glibc reads its settings once.
        with dask.config.set({"distributed.nanny.pre-spawn-environ": environ, **UNHINDERED, **SELDOM}):
            # Merged: a deep copy, since what is set is taken back in place.
            kwargs["config"] = dask.config.merge(dask.config.config, kwargs.get("config") or {})
            super().__init__(*args, **kwargs)

    async def instantiate(self) -> Status:
        """Start the worker process."""
        with _spawning(self.pre_spawn_env):
            return await super().instantiate()


_hidden: dict[str, Any] = {}
_before: dict[str, str | None] = {}
_spawned = 0
_lock = threading.Lock()


@contextmanager
def _spawning(environ: Iterable[str]) -> Iterator[None]:
    """Keep processes that are spawned meanwhile from importing the main module; may overlap with itself.

    Dask hands them their environment in that of this process: what it was is put back, or else all that this
    process starts later would have one thread.
    """
    global _spawned
    main = sys.modules["__main__"]
    found = main.__dict__
    with _lock:
        if not _spawned:
            _hidden.update({name: found.pop(name) for name in ("__spec__", "__file__") if name in found})
            main.__spec__ = None
        for name in environ:
            _before.setdefault(name, os.environ.get(name))
        _spawned += 1
    try:
        yield
    finally:
        with _lock:
            _spawned -= 1
            if not _spawned:
                found.update(_hidden)
                _hidden.clear()
                for name, value in _before.items():
                    os.environ.pop(name, None)
                    if value is not None:
                        os.environ[name] = value
                _before.clear()


class OwnGroup(WorkerPlugin):
    """Takes a worker out of the process group of its client: who ends a run signals the whole group.

    That is Ctrl-C in a terminal, and Prefect, which waits 30 seconds for the end of the run: workers that
    are lost at that moment would be started again for its last iteration.
    """

    def setup(self, worker: Worker) -> None:
        """Say so to the operating system, where it knows groups."""
        if hasattr(os, "setpgrp"):
            os.setpgrp()


class WorkersTellAtOnce(WorkerPlugin):
    """Lets a worker tell the scheduler at once what it has done.

    Dask collects messages for 2 ms there and for 5 ms on the way back, for clusters with many small tasks: a
    round here is a few tasks one after the other, each of which would wait for its predecessor's.
    """

    def setup(self, worker: Worker) -> None:
        """Send what is to be sent; called on every worker, also on those that join later."""
        worker.batched_stream.interval = 0.0


class SchedulerTellsAtOnce(SchedulerPlugin):
    """Lets the scheduler tell workers and clients at once what comes next (`WorkersTellAtOnce`)."""

    async def start(self, scheduler: Scheduler) -> None:
        """Send what is to be sent, to those that are there."""
        for streams in (scheduler.stream_comms, scheduler.client_comms):
            for stream in streams.values():
                stream.interval = 0.0

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Send what is to be sent, to one that joins later."""
        scheduler.stream_comms[worker].interval = 0.0


def dashboard_address(host: str = "127.0.0.1") -> str:
    """Return where the dashboard of a cluster of our own listens: this machine alone, unless asked otherwise.

    Whoever reaches it sees names of tasks, logs and parts of the code.
    """
    asked: str | None = dask.config.get("factorflow.dashboard-address", None)
    return asked or f"{host}:{8787 if _is_free(8787) else 0}"


def _is_free(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
