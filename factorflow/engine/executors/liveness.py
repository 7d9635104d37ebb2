"""Detection of stalled runs on a cluster, and recovery.

Dask pins a task to a worker; ``allow_other_workers`` lets it go elsewhere when that one is gone. But a task
that became runnable while no worker was there, or all were paused, waits for the one it was pinned to for
ever. Tasks that wait for no other are pinned to none, and all others come behind one of them, so that this is
rare; where nothing is computed all the same, the futures are cancelled, and the run goes on from what is on
disk.

To be filed with dask/distributed: "Tasks with allow_other_workers=True stay in no-worker state after all
workers were replaced. When a worker joins, SchedulerState.bulk_schedule_unrunnable_after_adding_worker looks
for tasks that it may run, and ignores loose_restrictions. To reproduce: close all workers, submit f with
workers=[one of them], allow_other_workers=True, start a worker: f never runs."
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import dask
from distributed import CancelledError, wait

from factorflow.engine.executors.local import Handle, StalledError
from factorflow.engine.executors.timeouts import within, workers_of
from factorflow.engine.executors.worker_info import job_lines
from factorflow.engine.memory_limits import REMEDY
from factorflow.errors import RunError

if TYPE_CHECKING:
    from distributed import Client

LOOK_SECONDS = 5.0
"""A result that takes longer makes the client look what is going on."""

STILL_SECONDS = 30.0
"""After so long without work a run goes on from what is on disk, or warns where there is no worker for it."""

RESTARTS = "worker-restart-memory"
"""Topic of the events of nannies that restart a worker for its memory (public since Dask 2023.4)."""

MOST_RESTARTS = 2
"""Restarts of a worker for memory that end a run: what does not fit twice will not."""

LIMIT = "factorflow.no-workers-timeout"
"""Setting of Dask's configuration: so long without work ends the run (10 minutes)."""


class Watch:
    """Waits for results of a run; a stalled run is an error."""

    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address
        self.limit = dask.utils.parse_timedelta(dask.config.get(LIMIT, "10 minutes"))
        self._still_since: float | None = None
        self._warned = self._restarted = False
        self._workers: dict[str, tuple[str, int]] = {}
        self._n_before: int | None = None

    def wait(self, handle: Handle, run: str) -> None:
        """Return when a future, or each of a list of them, has a result, or will never have one.

        Parameters
        ----------
        run : str
            What is in the keys of all tasks of the run, and of no others.

        Raises
        ------
        Stalled
            If there are workers, and none of them has had a task of the run for `STILL_SECONDS`.
        RunError
            If that lasts for too long.
        """
        while not self._is_done(handle):
            busy, why, can_work = self._look(run)
            self.refuse_restarts()
            if busy:
                self._still_since, self._warned, self._restarted = None, False, False
                continue
            now = time.monotonic()
            self._still_since = self._still_since or now
            still = now - self._still_since
            what = f"nothing was computed for {still:.0f} s: {why}"
            if still >= self.limit:
                raise RunError(what)
            if still < min(STILL_SECONDS, self.limit / 2):
                continue
            if can_work and not self._restarted:
                self._restarted = True
                raise StalledError(what)
            if not self._warned:
                self._warned = True
                left = self.limit - still
                text = f"{what}. The run goes on when that changes, and ends in {left:.0f} s if it does not"
                warnings.warn(text, RuntimeWarning, stacklevel=4)
        self._still_since = None

    def know(self, workers: Mapping[str, Any]) -> None:
        """Note which nanny a worker has, and its limit: when it was restarted the scheduler has forgotten.

        What was restarted before the first time is not of this run.
        """
        if self._n_before is None:
            self._n_before = len(self._restarts())
        for address, worker in workers.items():
            self._workers[address] = worker.get("nanny") or address, int(worker["memory_limit"] or 0)

    def refuse_restarts(self, most: int = MOST_RESTARTS) -> None:
        """End a run of which a worker was restarted for its memory so often."""
        counts: dict[str, int] = {}
        shared = max((limit for _, limit in self._workers.values()), default=0)
        for event in self._restarts()[self._n_before :]:
            # One that was lost before it was looked at is told from others by its host, and has their limit.
            unseen = event["worker"].rpartition(":")[0], shared
            nanny, limit = self._workers.get(event["worker"], unseen)
            counts[nanny] = counts.get(nanny, 0) + 1
            if counts[nanny] >= most:
                of = f", of {limit / 2**20:.0f} MiB that it may take" if limit else ""
                times = "once" if counts[nanny] == 1 else f"{counts[nanny]} times"
                raise RunError(
                    f"Dask restarted worker {event['worker']} for its memory ({times}): it took "
                    f"{event['rss'] / 2**20:.0f} MiB{of}. {REMEDY}"
                )

    def _restarts(self) -> list[dict[str, Any]]:
        try:
            return [event for _, event in within(LOOK_SECONDS, lambda: self._client.get_events(RESTARTS))]
        except (OSError, TimeoutError):
            return []

    def _is_done(self, handle: Handle) -> bool:
        try:
            with self._client.as_current(), suppress(CancelledError):  # whoever reads it is told why
                wait(handle, timeout=LOOK_SECONDS)
        except TimeoutError:
            return False
        return True

    def _look(self, run: str) -> tuple[bool, str, bool]:
        """Return whether a worker has a task of the run, else why not, and whether one could have."""
        try:
            records, processing = within(
                LOOK_SECONDS, lambda: (workers_of(self._client), self._client.processing())
            )
        except (OSError, TimeoutError):
            return False, f"the Dask scheduler at {self._address} does not answer", False
        self.know(records)
        workers = records.values()
        running = sum(worker["status"] == "running" for worker in workers)
        if not workers:
            return False, f"no worker is left{job_lines(self._client.cluster)}", False
        has_task = any(run in str(key) for keys in processing.values() for key in keys)
        if has_task or not running:
            return bool(running), f"all {len(workers)} workers are paused, or about to close", False
        return False, f"none of the {running} workers takes a task of it", True
