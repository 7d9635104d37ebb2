"""Workers that are there and compute nothing of a run: it goes on from disk, with the same bits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bayesian_pca
import dask
import pytest
from contract_tools import assert_same_bits
from distributed import LocalCluster

import factorflow
from factorflow.engine.executors import liveness
from factorflow.engine.executors.launch import open_executor
from factorflow.engine.executors.local import StalledError
from factorflow.errors import RunError


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, **options) as found:
        yield found


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(liveness, "STILL_SECONDS", 0.5)


def pinned_to_nobody(executor: Any, cluster: LocalCluster) -> Any:
    """Submit a task that is pinned to a worker which is gone, while there is none; another one joins."""
    cluster.scale(0)
    while cluster.scheduler.workers:
        time.sleep(0.01)
    where = {"workers": executor._addresses[:1], "allow_other_workers": True}
    pinned = executor._client.submit(int, 1, key=f"pinned-{executor._run}", **where)
    executor._futures.add(pinned)
    while not cluster.scheduler.unrunnable:
        time.sleep(0.01)
    cluster.scale(1)
    return pinned


def test_a_task_that_waits_for_no_other_is_pinned_to_no_worker(cluster: LocalCluster) -> None:
    """Nor is one of which nothing but None and lists of them is an argument."""
    executor: Any = open_executor(cluster)
    try:
        cluster.scale(0)
        while cluster.scheduler.workers:
            time.sleep(0.01)
        plan = executor.submit("plan", int, 1)
        free = [executor.submit("save", str, None, group=0), executor.submit("save", len, [None], group=0)]
        behind = executor.submit("behind", str, plan, group=0)
        with executor.together():
            at_once = executor.submit("save", str, None, group=0)
        while len(cluster.scheduler.tasks) < 5:
            time.sleep(0.01)
        cluster.scale(1)
        assert executor.result([*free, behind, at_once]) == ["None", 1, "1", "None"]
    finally:
        executor.close()


def test_a_task_that_waits_for_a_worker_that_is_gone(cluster: LocalCluster) -> None:
    """Dask runs it nowhere; what is submitted after the restart has keys and workers of its own."""
    executor: Any = open_executor(cluster)
    try:
        pinned = pinned_to_nobody(executor, cluster)
        with pytest.raises(StalledError, match=r"none of the 1 workers takes a task of it"):
            executor.result(pinned)
        executor.restart()
        one = executor.submit("one", int, 1)
        assert executor.result(executor.submit("pinned", int, one, group=0)) == 1
        assert pinned.key not in cluster.scheduler.tasks
    finally:
        executor.close()


@pytest.mark.thorough
def test_a_run_that_stalls_twice_ends(cluster: LocalCluster) -> None:
    """Where nothing is done between the two: what is wrong is something else."""
    with dask.config.set({"factorflow.no-workers-timeout": "2s"}):
        executor: Any = open_executor(cluster)
    try:
        pinned = pinned_to_nobody(executor, cluster)
        with pytest.raises(StalledError):
            executor.result(pinned)
        with (
            pytest.warns(RuntimeWarning, match=r"nothing was computed for \d+ s"),
            pytest.raises(RunError, match="none of the 1 workers takes a task of it"),
        ):
            executor.result(pinned)
    finally:
        executor.close()


@pytest.mark.thorough
@pytest.mark.parametrize("every", [3, 100])
def test_the_run_goes_on(
    cluster: LocalCluster, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its checkpoint or, without one, from the start; each iteration is told once."""
    case = bayesian_pca.BayesianPCA.examples()["default"]
    data = factorflow.simulate(
        case.simulator, tmp_path / "d.zarr", n_samples=200, block_rows=32, seed=7, **case.data
    )
    told: list[int] = []
    stalls = [8]

    def stall(event: Any) -> None:
        if type(event).__name__ == "IterationDone":
            told.append(event.iteration)

    wait = liveness.Watch.wait

    def wait_or_stall(self: Any, *given: Any) -> None:
        wait(self, *given)
        if stalls and told and told[-1] >= stalls[0]:
            stalls.clear()
            raise StalledError("nothing was computed for 30 s")

    monkeypatch.setattr(liveness.Watch, "wait", wait_or_stall)
    with pytest.warns(RuntimeWarning, match="The run resumes from the last checkpoint, or from the start"):
        there = factorflow.fit(
            data, case.config, seed=3, executor=cluster, out=tmp_path / "p.zarr",
            checkpoint_every=every, on_event=stall,
        )  # fmt: skip
    assert not stalls
    assert told == list(range(1, len(told) + 1))
    assert_same_bits(there, factorflow.fit(data, case.config, seed=3))
