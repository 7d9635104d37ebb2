"""A Dask cluster of processes that nobody starts again when they are lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["Processes", "python"]


def _environment() -> dict[str, str]:
    """Return the environment of a process that finds the families of the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}


class Processes:
    """A scheduler and workers of one thread.

    Parameters
    ----------
    folder : Path
        Where they work.
    n_workers : int
        Workers to begin with.
    """

    def __init__(self, folder: Path, n_workers: int = 2) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        options = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        self.scheduler = self._start("scheduler", *options)
        self.workers = [self.worker() for _ in range(n_workers)]

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker, at an address that it finds itself."""
        return self._start("worker", self.address, "--nthreads", "1", "--no-dashboard", "--no-nanny")

    def _start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *options]
        return subprocess.Popen(command, env=_environment(), cwd=self.folder, stderr=subprocess.DEVNULL)

    def lose(self, index: int) -> int:
        """Kill a worker; return its number."""
        lost = self.workers.pop(index)
        lost.kill()
        lost.wait()
        return lost.pid

    def close(self) -> None:
        """End all of it."""
        for process in (self.scheduler, *self.workers):
            process.kill()
            process.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def python(script: Path, *given: str) -> subprocess.Popen[str]:
    """Start a script in a process of its own."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, str(script), *given], env=_environment(), **pipes)
