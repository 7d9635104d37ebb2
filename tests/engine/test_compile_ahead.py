"""Workers compile the loops of a family before the first round, each beginning with another."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, get_worker

import factorflow
from factorflow.engine import compile_ahead
from factorflow.engine.executors.local_cluster import local_cluster
from factorflow.models import ProbitFactors

SECONDS = 60.0


def wait_for(path: Path, pattern: str, count: int) -> list[str]:
    """Return the names of files once there are so many."""
    end = time.monotonic() + SECONDS
    while len(found := [file.name for file in path.rglob(pattern)]) < count and time.monotonic() < end:
        time.sleep(0.05)
    return sorted(found)


@pytest.mark.thorough
def test_each_worker_is_asked_before_the_first_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a run does not mind what becomes of it."""
    folder = str(tmp_path)

    def note(model: Any, loops: Any, number: int, n_beside: int) -> None:
        name = f"{number} of {n_beside} {loops[0].name} {get_worker().name}.asked"
        Path(folder, name).touch()
        raise ValueError("nothing that a run reads")

    monkeypatch.setattr(compile_ahead, "compile_loops", note)
    found: list[str] = []

    def listen(event: Any) -> None:
        if type(event).__name__ == "RunStarted":  # nothing of the first round was submitted
            found.extend(wait_for(tmp_path, "*.asked", 2))

    data = factorflow.simulate("probit", tmp_path / "d.zarr", 20, n_features=6, seed=1)
    config = ProbitFactors(n_factors=2, n_burn_in=1, n_draws=2)
    with Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0", set_as_default=False
    ) as client:
        names = {worker["name"] for worker in client.scheduler_info()["workers"].values()}
        factorflow.fit(data, config, executor=client, on_event=listen)
    assert {name.rpartition(" ")[0] for name in found} == {f"{i} of 2 loop_features" for i in range(2)}
    assert {name.rpartition(" ")[2] for name in found} == {f"{name}.asked" for name in names}


@pytest.mark.parametrize(
    ("number", "n_beside", "order"), [(0, 3, "t"), (1, 3, "abcdt"), (2, 3, "cdabt"), (1, 2, "abcdt")]
)
def test_workers_of_a_machine_begin_with_other_loops(
    number: int, n_beside: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(compile_ahead, "measure", lambda model: done.append(model))
    loops: Any = [
        SimpleNamespace(compiled=lambda name=name: (SimpleNamespace(compile=done.append), name))
        for name in "abcd"
    ]
    compile_ahead.compile_loops("t", loops, number, n_beside)  # type: ignore[arg-type]
    assert "".join(done) == order


@pytest.mark.thorough
def test_workers_have_compiled_all_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many loops as a fit of this process compiles."""
    data = factorflow.simulate("probit", tmp_path / "d.zarr", 20, n_features=6, seed=1)
    config = ProbitFactors(n_factors=2, n_burn_in=1, n_draws=2)
    with monkeypatch.context() as of_workers:
        of_workers.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
        client, owned = local_cluster(2, "1GiB")
    before: list[str] = []

    def listen(event: Any) -> None:
        if type(event).__name__ == "RunStarted":
            before.extend(wait_for(tmp_path / "cache", "*.nbc", 2))

    try:
        factorflow.fit(data, config, executor=client, on_event=listen)
    finally:
        for part in owned:
            part.close()
    assert before == wait_for(tmp_path / "cache", "*.nbc", 2)
    assert len(before) == 2
