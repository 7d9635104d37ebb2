"""Private attributes of Dask: they save time only, and are skipped where a version of Dask lacks them.

Dask collects messages for 2 ms on a worker and for 5 ms on the scheduler, for clusters with many small tasks.
A round of a run is a chain of few tasks, each of which waits for the messages about the one before it. On a
cluster of our own they are sent at once; on others nothing is changed.

To be filed with dask/distributed: "Make the intervals of BatchedSend configurable. The intervals of
Worker.batched_stream (2 ms), Scheduler.stream_comms (5 ms) and client_comms (2 ms) are literals. In iterative
algorithms, whose graphs are chains of few tasks, they are up to 9 ms of each dependency between workers.
Proposal: distributed.comm.batched-send.interval, one value for each of the three, with the defaults of now."
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed import SchedulerPlugin, WorkerPlugin

if TYPE_CHECKING:
    from distributed import Client, Scheduler, Worker


def disable_batching(client: Client) -> None:
    """Disable the batching of messages in a cluster that this process started."""
    client.register_plugin(WorkerSends(), name="factorflow-worker-sends")
    client.register_plugin(SchedulerSends(), name="factorflow-scheduler-sends")


def _disable_batching(stream: Any) -> None:
    if hasattr(stream, "interval"):
        stream.interval = 0.0


class WorkerSends(WorkerPlugin):
    """Sets the stream of a worker to the scheduler."""

    def setup(self, worker: Worker) -> None:
        """Set it; called on every worker, also on those that join later."""
        _disable_batching(getattr(worker, "batched_stream", None))


class SchedulerSends(SchedulerPlugin):
    """Sets the streams of the scheduler to workers and clients."""

    async def start(self, scheduler: Scheduler) -> None:
        """Set those that are there."""
        for name in ("stream_comms", "client_comms"):
            for stream in getattr(scheduler, name, {}).values():
                _disable_batching(stream)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Set that of a worker that joins."""
        _disable_batching(getattr(scheduler, "stream_comms", {}).get(worker))
