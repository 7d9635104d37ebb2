"""Workers that Dask restarts for their memory: a run ends with the numbers instead of going on for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import KilledWorker

from factorflow.engine.executors import liveness
from factorflow.engine.executors.dask import DaskExecutor
from factorflow.engine.executors.local_cluster import local_cluster
from factorflow.errors import RunError


@pytest.fixture
def executor() -> Iterator[DaskExecutor]:
    client, owned = local_cluster(1, "400MiB")
    found = DaskExecutor(client, owned)
    yield found
    found.close()


@pytest.mark.thorough
def test_a_worker_that_is_restarted_twice_ends_the_run(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 1.0)
    handle = executor.submit("too much", np.ones, 1 << 27)  # a gibibyte
    # Once, where Dask gives the task up before the second time is told.
    with pytest.raises(
        RunError, match=r"restarted worker tcp:\S+ for its memory \((once|\d times)\)"
    ) as ended:
        executor.result(handle)
    for part in (" MiB, of 400 MiB that it may take", "Give workers more memory, or use more workers"):
        assert part in str(ended.value)


def test_a_task_that_is_given_up_is_told_with_the_numbers(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask does so after some workers that were lost: where one was restarted for memory, that is why."""
    event = {"worker": next(iter(executor.worker_info())), "pid": 1, "rss": 390 << 20}
    monkeypatch.setattr(executor._watch, "_restarts", lambda: [event])

    def kill(*_: Any) -> None:
        raise KilledWorker("task", None, 3)

    monkeypatch.setattr(executor._watch, "wait", kill)
    with pytest.raises(RunError, match=r"\(once\): it took 390 MiB, of 400 MiB"):
        executor.result(None)


@pytest.mark.thorough
def test_a_worker_that_was_lost_before_it_was_looked_at_has_the_limit_of_the_others(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [{"worker": f"tcp://127.0.0.1:{port}", "pid": port, "rss": 390 << 20} for port in (1, 2)]
    monkeypatch.setattr(executor._watch, "_restarts", lambda: events)
    with pytest.raises(RunError, match=r"\(2 times\): it took 390 MiB, of 400 MiB that it may take"):
        executor._watch.refuse_restarts()


@pytest.mark.thorough
@pytest.mark.parametrize("scheduler", ["answers", "closed", "tried again"])
def test_a_scheduler_whose_loss_the_client_has_not_noticed(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    """A call fails first; an error of a task, with a scheduler that answers, stays what it is."""
    answers = scheduler == "answers"
    raised = OSError if answers else RunError

    def closed(*_: Any) -> None:
        raise OSError("closed")

    def try_again() -> None:
        executor._client.status = "connecting"
        raise TimeoutError

    monkeypatch.setattr(executor._client, "gather", closed)
    if not answers:
        monkeypatch.setattr(executor._client, "status", executor._client.status)  # as it was, in the end
        monkeypatch.setattr(executor._client, "nthreads", closed if scheduler == "closed" else try_again)
    handle = executor.submit("sum", np.ones, 2)
    with pytest.raises(raised, match="closed" if answers else f"at {executor.address} was lost"):
        executor.result(handle)


@pytest.mark.thorough
def test_what_a_worker_may_use_ends_where_dask_pauses_or_restarts_it(executor: DaskExecutor) -> None:
    """Of the engine's own workers, that are not paused: where they are restarted."""
    assert executor.memory_bytes == int(0.95 * (400 << 20))
    assert executor.memory_note == " (95% of 400 MiB, beyond which Dask pauses or restarts it)"
