"""The cluster that a run starts for itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from distributed import Client

import factorflow
from factorflow.engine.executors.dask import DaskExecutor
from factorflow.engine.executors.local_cluster import local_cluster
from factorflow.engine.executors.timeouts import dashboard_of
from factorflow.errors import InputError

KILL_ONE = """
import os, signal, sys, time
print("the script runs", flush=True)
import factorflow
from factorflow.engine.executors.dask import DaskExecutor
from factorflow.engine.executors.local_cluster import local_cluster

data = factorflow.simulate("sparse_gfa", sys.argv[1], n_samples=300, block_rows=32, seed=1)
def loaded():
    return "prefect" in sys.modules

import prefect
client, owned = local_cluster(2, "1GiB")
before = set(client.run(os.getpid).values())

def kill_one(event):
    if type(event).__name__ == "IterationDone" and event.iteration == 4:
        os.kill(min(before), signal.SIGKILL)

model = factorflow.models.SparseGFA(n_factors=3, tol=1e-12, max_iter=30)
factorflow.fit(data, model, executor=DaskExecutor(client), on_event=kill_one)
client.wait_for_workers(2, timeout=60)
after = set(client.run(os.getpid).values())
print("another worker:", len(after - before) == 1, "program:", os.path.basename(__file__), flush=True)
print("loaded:", sorted(client.run(loaded).values()), flush=True)
for thing in owned:
    thing.close()
"""


def run_script(path: Path, text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run(
        [sys.executable, path, *(str(argument) for argument in arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.thorough
def test_workers_do_not_import_the_script(tmp_path: Path) -> None:
    """Without ``if __name__ == "__main__"``; nor does one that is started again, long after the cluster."""
    done = run_script(tmp_path / "script.py", KILL_ONE, tmp_path / "data.zarr")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the script runs") == 1, done.stdout
    assert "another worker: True program: script.py" in done.stdout, done.stdout + done.stderr
    assert "loaded: [False, False]" in done.stdout, done.stdout + done.stderr


def intervals(client: Client) -> set[float]:
    """Return the times for which the workers of a cluster, and its scheduler, collect messages."""

    def of_scheduler(dask_scheduler: Any) -> list[float]:
        streams = *dask_scheduler.stream_comms.values(), *dask_scheduler.client_comms.values()
        return [stream.interval for stream in streams]

    of_workers = client.run(lambda dask_worker: dask_worker.batched_stream.interval)
    return {*of_workers.values(), *client.run_on_scheduler(of_scheduler)}


@pytest.mark.thorough
@pytest.mark.parametrize("asked", [None, pytest.param("0.0.0.0:0", marks=pytest.mark.thorough)])
def test_nothing_listens_to_other_machines(asked: str | None) -> None:
    """Scheduler, workers and dashboard are reached from this machine alone, unless asked otherwise."""
    with dask.config.set({"factorflow.dashboard-address": asked} if asked else {}):
        names = ("OMP_NUM_THREADS", "MALLOC_MMAP_MAX_", "PYTHONHASHSEED")
        before = [os.getenv(name) for name in names]
        client, owned = local_cluster(1, "1GiB")
    assert [os.getenv(name) for name in names] == before
    assert client.submit(os.getenv, "MALLOC_MMAP_MAX_").result() == "0"
    assert client.submit(os.getpgrp).result() != os.getpgrp()
    timers = client.run(
        lambda dask_worker: {k: pc.callback_time for k, pc in dask_worker.periodic_callbacks.items()}
    )
    assert [(each["profile"], each["tick"]) for each in timers.values()] == [(100.0, 200.0)]
    assert intervals(client) == {0.0}
    me = psutil.Process()
    listening = {
        connection.laddr.ip
        for process in (me, *me.children(recursive=True))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    for thing in owned:
        thing.close()
    assert listening == {"127.0.0.1"} | ({"0.0.0.0"} if asked else set())


@pytest.mark.thorough
def test_a_damaged_chunk_is_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error reaches the caller; the workers, started by us or not, do not log it with a traceback."""
    data = factorflow.simulate("sparse_gfa", tmp_path / "d.zarr", n_samples=300, block_rows=32, seed=1)
    chunk = sorted((tmp_path / "d.zarr").glob("*/values/c/*/0"))[4]
    values = bytearray(chunk.read_bytes())
    values[10] ^= 255
    chunk.write_bytes(values)
    with pytest.raises(InputError, match="checksum") as caught:
        factorflow.fit(
            data,
            factorflow.models.SparseGFA(n_factors=3),
            executor="dask",
            workers=2,
            out=tmp_path / "p.zarr",
        )
    assert str(chunk) in str(caught.value)
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    assert "Compute Failed" not in out + err
    assert not list(tmp_path.glob("p.zarr*"))


@pytest.mark.thorough
def test_urgent_tasks_and_those_of_earlier_rounds_come_first() -> None:
    """Of those that wait for a worker: the record of a round goes before the next, however long that is."""
    client, owned = local_cluster(1, "1GiB")
    executor = DaskExecutor(client)

    def now(_: Any) -> float:
        time.sleep(0.05)
        return time.time()

    begun = executor.submit("before", time.sleep, 0.5, group=0)
    plain = [executor.submit("plain", now, begun, group=0) for _ in range(4)]
    urgent = executor.submit("urgent", now, begun, group=0, urgent=True)
    assert executor.result(urgent) < min(executor.result(plain))
    with executor.together():
        state = executor.submit("state", time.sleep, 0.5, group=0)
        more = executor.submit("more", now, state, group=0)
        record = executor.submit("record", now, more, group=0)
    with executor.together():
        later = executor.submit("update_samples", now, more, group=0)
    assert executor.result(record) < executor.result(later)
    for thing in owned:
        thing.close()


def test_regular_looks_of_a_client_hide_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have none, and may come between the question of a caller and its answer."""
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        refresh = Client._update_scheduler_info

        async def refresh_twice(self: Client, n_workers: int = 0) -> None:
            await refresh(self, n_workers)
            await refresh(self)

        monkeypatch.setattr(Client, "_update_scheduler_info", refresh_twice)
        assert not client.scheduler_info()["workers"]
        assert DaskExecutor(client).result(DaskExecutor(client).submit("one", abs, -1, group=0)) == 1


def test_a_template_of_dashboards_with_an_unknown_name_ends_no_run() -> None:
    """Nor one without a dashboard: the address is for reading only."""
    with Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    ) as client:
        assert (dashboard_of(client) or "").startswith("http://")
        for template in ("https://hub/{NO_SUCH_NAME}/{port}", "https://hub/{", "https://hub/{0}"):
            with dask.config.set({"distributed.dashboard.link": template}):
                assert DaskExecutor(client).dashboard is None
