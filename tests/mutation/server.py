"""Runs pytest in forks of a process that has the slow imports behind it: one line of JSON a job, and back.

Only packages of others are loaded beforehand, so that each fork imports the package of its own tree.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
from threading import Timer
from time import process_time
from typing import Any

LOADED = (
    "arviz_base", "arviz_stats", "dask.array", "distributed", "h5py", "matplotlib.pyplot", "numba",
    "numcodecs.zstd", "pandas", "pydantic", "pytest", "scipy.optimize", "scipy.stats", "typer.testing",
    "xarray", "yaml", "zarr",
)  # fmt: skip
"""No plugins of pytest among them: it wants to rewrite those first."""


def main() -> None:
    """Answer jobs until there are no more."""
    for name in LOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Run ``options`` of pytest in ``tree``, and return exit status (None: out of time) and seconds.

    Processor time, so that a busy machine kills nobody; a program that waits for ever is given ten times as
    long by the clock, and five minutes.
    """
    child = os.fork()
    if child == 0:
        _become(job)
        import pytest

        os._exit(int(pytest.main(job["options"], plugins=[Budget(job["budget"])])))
    timer = Timer(10 * job["limit"] + 300, os.killpg, (child, signal.SIGKILL))
    timer.start()
    _, status, usage = os.wait4(child, 0)
    timer.cancel()
    code: int | None = os.waitstatus_to_exitcode(status)
    if code in {-signal.SIGKILL, -signal.SIGXCPU}:
        code = None
    return {"code": code, "seconds": round(usage.ru_utime + usage.ru_stime, 1)}


class Budget:
    """A plugin of pytest: no test begins after so many seconds of processor time, and that is no failure."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.spent = seconds, False

    def pytest_runtest_logfinish(self) -> None:
        """Skip what is left, when time is up."""
        self.spent = self.seconds is not None and process_time() > self.seconds

    def pytest_runtest_setup(self) -> None:
        """Skip a test for which there is no time."""
        if self.spent:
            import pytest

            pytest.skip("the budget is spent")


def _become(job: dict[str, Any]) -> None:
    """Turn this fork into a fresh process in the job's tree, what it prints going into a file."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(job["limit"]), int(job["limit"]) + 5))
    shown = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(shown, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["tree"])
    os.environ.update(job["environment"])
    sys.path[0] = job["tree"]
    sys.dont_write_bytecode = True


if __name__ == "__main__":
    main()
