"""Jobs that were lost are asked for anew.

Dask forgets a worker that was lost, and starts another one in its place only when the number asked for
changes: of a fixed number of jobs those that were cancelled, or whose time was over, would stay away.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any

import dask
from tornado.ioloop import PeriodicCallback

__all__ = ["Keeper"]

LOOK_SECONDS = 5.0
"""Between two looks at which workers are there."""


class Keeper:
    """Looks at a cluster for as long as it is open.

    Parameters
    ----------
    cluster : distributed.SpecCluster
        Started. A worker (or a job of several) that was there and is gone for as long as Dask waits for one
        to come back (``distributed.deploy.lost-worker-timeout``; the nanny of a job may start it anew) is
        replaced. One that has never come is left to the queue.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._patience = dask.utils.parse_timedelta(dask.config.get("distributed.deploy.lost-worker-timeout"))
        self._seen: set[Hashable] = set()
        self._gone: dict[Hashable, float] = {}
        looking = PeriodicCallback(self.look, LOOK_SECONDS * 1000)
        cluster.periodic_callbacks["factorflow-keep"] = looking  # stopped when the cluster is closed
        cluster.loop.add_callback(looking.start)

    async def look(self) -> None:
        """Replace what is gone for too long."""
        there = {worker["name"] for worker in self._cluster.scheduler_info["workers"].values()}
        asked = {name: _members(name, spec) for name, spec in self._cluster.worker_spec.items()}
        present = {name for name, members in asked.items() if members & there}
        self._seen = (self._seen | present) & asked.keys()
        now = time.monotonic()
        self._gone = {name: self._gone.get(name, now) for name in self._seen - present}
        lost = [name for name, since in self._gone.items() if now - since >= self._patience]
        for name in lost:
            self._seen.remove(name)
            del self._gone[name]
            job = self._cluster.workers.pop(name, None)
            if job is not None:  # Dask has not closed it by itself
                await job.close()
        if lost:
            self._cluster.scale(len(self._cluster.plan))  # as many as before: starts those that are missing


def _members(name: Hashable, spec: dict[str, Any]) -> set[Hashable]:
    """Return the names of the workers of one job."""
    return {f"{name}{suffix}" for suffix in spec["group"]} if "group" in spec else {name}
