"""Trials of a selection at the same time: the same results, reports of their own, an end in order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import assert_same_bits

import factorflow
from factorflow.engine.executors.dask import DaskExecutor
from factorflow.engine.executors.launch import open_executor, shared_cluster
from factorflow.errors import InputError
from factorflow.settings import SelectOptions, TrialOptions
from factorflow.workflow import select as selecting
from factorflow.workflow.parallel import Stop, run_in_parallel
from factorflow.workflow.select import select

CONFIG = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 8, "drop": 0}


def test_results_come_in_the_order_of_the_items() -> None:
    meet = threading.Barrier(3, timeout=20)

    def run(item: int, _: Any) -> int:
        meet.wait()  # three at a time
        return 2 * item

    assert run_in_parallel(run, range(6), 3) == [0, 2, 4, 6, 8, 10]


def test_a_failure_ends_the_others_in_order() -> None:
    begun, ended = threading.Event(), list[int]()

    def run(item: int, on_event: Any) -> int:
        if item == 0:
            assert begun.wait(20)
            raise ValueError("of the first")
        begun.set()
        try:
            while True:
                on_event(None)
                threading.Event().wait(0.01)
        except KeyboardInterrupt:
            ended.append(item)
            raise

    with pytest.raises(ValueError, match="of the first"):
        run_in_parallel(run, range(5), 2)
    assert ended == [1]


def test_stop_passes_events_on() -> None:
    heard: list[Any] = []
    stop = Stop()
    listen = stop.listener(heard.append)
    listen("event")
    stop.request()
    with pytest.raises(KeyboardInterrupt):
        listen("last")
    assert heard == ["event", "last"]


@pytest.mark.parametrize("parallel", [0, -1, True, 1.5])
def test_numbers_that_mean_nothing(parallel: Any) -> None:
    with pytest.raises(InputError, match="parallel = .*expected (a number|an integer)"):
        SelectOptions(parallel=parallel)


def test_where_nothing_is_to_be_shared() -> None:
    for options, said in (
        (TrialOptions(executor="threads"), "1 in one process"),
        (TrialOptions(executor="dask", metrics="9400"), "a port serves one run at a time"),
    ):
        with pytest.raises(InputError, match=said), shared_cluster(options, 2):
            pass


@pytest.mark.thorough
def test_a_share_of_the_memory_and_other_workers_first() -> None:
    own = TrialOptions(executor="dask", workers=2, memory_limit="400MB")
    with shared_cluster(own, 2) as shared:
        assert shared.cluster is not None
        both: list[Any] = [open_executor(shared.cluster) for _ in range(2)]
        with shared_cluster(shared) as single:
            assert single.cluster is not None
            alone: Any = open_executor(single.cluster)
            assert isinstance(alone, DaskExecutor)
            assert alone.memory_bytes == pytest.approx(0.95 * 400e6, rel=1e-3)  # one thread a worker
            assert alone.cache_bytes == pytest.approx(0.2 * 400e6, rel=1e-3)
            for one in both:
                assert one.memory_bytes == alone.memory_bytes // 2
                assert one.cache_bytes == alone.cache_bytes // 2
                assert len(one.cut(1)) == 1
            assert both[0]._addresses != both[1]._addresses
            for one in (*both, alone):
                one.close()


@pytest.mark.slow
def test_trials_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of trials one after the other, and a report of each."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((120, 2)) @ rng.standard_normal((2, 6)) + rng.standard_normal((120, 6))
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"y": y.astype(np.float32)}, block_rows=32)
    together, real = threading.Barrier(2, timeout=60), selecting.run_trial

    def run_trial(*given: Any, **more: Any) -> Any:
        together.wait()
        return real(*given, **more)

    expected = select(data, CONFIG, {"n_factors": [1, 2]}, out=tmp_path / "a")
    monkeypatch.setattr(selecting, "run_trial", run_trial)
    report = str(tmp_path / "report.html")
    options = SelectOptions(executor="dask", workers=2, holdout=0.1, performance_report=report, parallel=2)
    found = select(data, CONFIG, {"n_factors": [1, 2]}, out=tmp_path / "b", options=options)
    drop = ("posterior",)
    assert [{k: v for k, v in row.items() if k not in drop} for row in found.table] == [
        {k: v for k, v in row.items() if k not in drop} for row in expected.table
    ]
    names = sorted(path.name for path in (tmp_path / "b").glob("*.zarr"))
    assert names == sorted(path.name for path in (tmp_path / "a").glob("*.zarr"))
    for name in names:
        assert_same_bits(
            factorflow.open_posterior(tmp_path / "b" / name), factorflow.open_posterior(tmp_path / "a" / name)
        )
    reports = sorted(path.name for path in tmp_path.glob("report*"))
    assert reports == sorted(f"report-{name.removesuffix('.zarr')}.html" for name in names)
    assert all((tmp_path / report).stat().st_size > 10_000 for report in reports)
