"""Whether anything of a run is still being computed on a cluster, and what to do if not.

Dask pins a task to a worker; ``allow_other_workers`` lets it go elsewhere when that one is gone. But a task
that became runnable while there was no worker at all waits for the worker it was pinned to for ever: when
others join, Dask looks for tasks that those may run and does not look at ``allow_other_workers``
(`SchedulerState.bulk_schedule_unrunnable_after_adding_worker`).
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import dask
from distributed import CancelledError
from distributed.client import _wait

from factorflow.engine.executors.local import Handle
from factorflow.errors import RunError

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler

__all__ = ["Watch"]

LOOK_SECONDS = 5.0
"""A result that takes longer makes the client look what is going on."""

SPEAK_SECONDS = 30.0
"""Standing still for so long is said aloud."""

LIMIT = "factorflow.no-workers-timeout"
"""Setting of Dask's configuration: standing still for so long ends the run (10 minutes)."""


class Watch:
    """Waits for results of a run; what stands still for ever is an error.

    Parameters
    ----------
    client : distributed.Client
        Of the run.
    run : str
        What is in the names of all tasks of the run, and of no others.
    """

    def __init__(self, client: Client, run: str) -> None:
        self._client, self._run = client, run
        self.limit = dask.utils.parse_timedelta(dask.config.get(LIMIT, "10 minutes"))
        self._address = str(client.scheduler.address) if client.scheduler is not None else ""
        self._still_since: float | None = None
        self._spoken = False

    def wait(self, handle: Handle) -> None:
        """Return when a future, or each of a list of them, has a result, or will never have one.

        Raises
        ------
        RunError
            If nothing of the run was computed for too long.
        """
        self._still_since = None
        while not self._is_settled(handle):
            found = self._look()
            if found["busy"]:
                self._still_since, self._spoken = None, False
                continue
            now = time.monotonic()
            self._still_since = self._still_since or now
            still = now - self._still_since
            what = f"nothing was computed for {still:.0f} s: {_reason(found, self._address)}"
            if still >= self.limit:
                raise RunError(what)
            if still >= min(SPEAK_SECONDS, self.limit / 2) and not self._spoken:
                self._spoken = True
                left = self.limit - still
                warnings.warn(
                    f"{what}. The run goes on when that changes, and ends in {left:.0f} s if it does not",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def _is_settled(self, handle: Handle) -> bool:
        try:
            self._client.sync(_wait, handle, timeout=LOOK_SECONDS)
        except TimeoutError:
            return False
        except CancelledError:  # whoever reads it is told why
            pass
        return True

    def _look(self) -> dict[str, int]:
        try:
            found: dict[str, int] = self._client.sync(
                self._client._run_on_scheduler, freed, self._run, callback_timeout=LOOK_SECONDS
            )
        except (OSError, TimeoutError):
            return {"workers": -1, "running": 0, "busy": 0}
        return found


def freed(run: str, dask_scheduler: Scheduler) -> dict[str, int]:
    """Free tasks that wait for workers that are gone, on the scheduler; return how many workers do what."""
    waiting = [ts for ts in dask_scheduler.unrunnable if run in str(ts.key) and ts.loose_restrictions]
    stuck = [ts for ts in waiting if dask_scheduler.running and dask_scheduler.valid_workers(ts) == set()]
    for ts in stuck:
        ts.worker_restrictions = None
    stuck.sort(key=lambda ts: ts.priority or (), reverse=True)  # the last recommendation is followed first
    dask_scheduler.transitions({ts.key: "processing" for ts in stuck}, f"factorflow-freed-{time.time()}")
    running = list(dask_scheduler.running)
    busy = sum(run in str(ts.key) for worker in running for ts in worker.processing)
    return {"workers": len(dask_scheduler.workers), "running": len(running), "busy": busy}


def _reason(found: dict[str, Any], scheduler: str) -> str:
    if found["workers"] < 0:
        return f"the Dask scheduler at {scheduler} does not answer"
    if not found["workers"]:
        return "no worker is left"
    if not found["running"]:
        return f"all {found['workers']} workers are paused, or about to close"
    return f"none of the {found['running']} workers takes a task of it"
