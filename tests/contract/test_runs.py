"""Whole runs: the same bits whatever the executor, the cut, the crashes and the resumptions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import Cut, arrays, assert_same_bits

import factorflow
from factorflow.engine.kept import SUPERSEDED
from factorflow.engine.memory import measure
from factorflow.errors import InputError, RunError
from factorflow.models.contract import Block

CUTS = [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)]


@pytest.fixture
def dataset(family: str, datasets: Any) -> Any:
    return datasets(family)


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    """Serial runs, one a family."""
    return {}


@pytest.fixture
def reference(family: str, config: Any, dataset: Any, references: dict[str, Any]) -> Any:
    if family not in references:
        references[family] = factorflow.fit(dataset, config, seed=3, holdout=0.1)
    return references[family]


def fit(dataset: Any, config: Any, **kwargs: Any) -> Any:
    return factorflow.fit(dataset, config, seed=3, holdout=0.1, **kwargs)


@pytest.mark.parametrize("cut", CUTS)
def test_any_cut(cut: tuple[int, ...], dataset: Any, config: Any, reference: Any) -> None:
    assert dataset.n_blocks == 4
    assert_same_bits(fit(dataset, config, executor=Cut(*cut)), reference)


@pytest.mark.parametrize("look_ahead", [1, 3, 7])
def test_look_ahead(look_ahead: int, dataset: Any, config: Any, reference: Any) -> None:
    assert_same_bits(fit(dataset, config, executor=Cut(2, look_ahead=look_ahead)), reference)


@pytest.mark.parametrize("feature_tasks", [1, 2])
def test_feature_tasks(feature_tasks: int, dataset: Any, config: Any, reference: Any) -> None:
    executor = Cut(1, 2, look_ahead=1, feature_tasks=feature_tasks)
    assert_same_bits(fit(dataset, config, executor=executor), reference)


def test_narrow_runs_of_features(dataset: Any, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With runs shorter than a view the features are cut; sharing them out changes nothing."""
    monkeypatch.setattr("factorflow.engine.tasks.FEATURE_RUN", 3)
    alone = fit(dataset, config)
    assert_same_bits(fit(dataset, config, executor=Cut(1, 3, look_ahead=2, feature_tasks=3)), alone)


def test_threads(dataset: Any, config: Any, reference: Any) -> None:
    assert_same_bits(fit(dataset, config, executor="threads", workers=3), reference)


def test_written_equals_kept_in_memory(dataset: Any, config: Any, reference: Any, tmp_path: Path) -> None:
    posterior = fit(dataset, config, out=tmp_path / "p.zarr")
    assert_same_bits(posterior, reference)
    assert_same_bits(factorflow.open_posterior(tmp_path / "p.zarr"), reference)
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_dask(workers: int, cluster: Any, dataset: Any, config: Any, reference: Any, tmp_path: Path) -> None:
    posterior = fit(
        dataset, config, executor=_on(cluster, workers), out=tmp_path / "p.zarr", checkpoint_every=5
    )
    assert_same_bits(posterior, reference)


def test_dask_with_feature_tasks(cluster: Any, dataset: Any, config: Any, reference: Any) -> None:
    executor = _on(cluster, 2)
    executor.n_feature_tasks = 2
    assert_same_bits(fit(dataset, config, executor=executor), reference)


@pytest.mark.parametrize("cut", [(), (1, 3)])
def test_resume_equals_uninterrupted(
    cut: tuple[int, ...], dataset: Any, config: Any, reference: Any, tmp_path: Path
) -> None:
    out = tmp_path / "p.zarr"
    with pytest.raises(RunError):
        fit(
            dataset,
            config,
            out=out,
            checkpoint_every=3,
            executor=Cut(2),
            on_event=_crash_after("IterationDone", 8),
        )
    assert not out.exists()
    assert (tmp_path / "p.zarr.run" / "manifest.json").exists()
    resumed = fit(dataset, config, out=out, resume=True, checkpoint_every=4, executor=Cut(*cut))
    assert_same_bits(resumed, reference)
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


@pytest.mark.parametrize("cut", [(), (1, 3)])
def test_local_state_on_disk_changes_nothing(
    cut: tuple[int, ...],
    dataset: Any,
    config: Any,
    reference: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does a crash while it is there; files that are superseded go at once."""
    monkeypatch.setattr("factorflow.engine.memory.KEPT_SHARE", 0.0)
    out, most, crash = tmp_path / "p.zarr", 0, _crash_after("IterationDone", 8)

    def count(event: Any) -> None:
        nonlocal most
        most = max(most, len(list((tmp_path / "p.zarr.run" / "kept").glob("local-*"))))
        crash(event)

    with pytest.raises(RunError):
        fit(dataset, config, out=out, checkpoint_every=3, executor=Cut(2), on_event=count)
    stateful = measure(config.build(dataset.meta())).local_per_row > 0
    assert (most > 0) == stateful
    assert most <= dataset.n_blocks * SUPERSEDED
    resumed = fit(dataset, config, out=out, resume=True, executor=Cut(*cut))
    assert_same_bits(resumed, reference)
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


def test_killed_in_the_middle_of_a_checkpoint(
    dataset: Any, config: Any, reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second checkpoint dies with its files written and its manifest not: the first one counts."""
    out = tmp_path / "p.zarr"
    replace_file, calls = os.replace, []

    def dies(source: Any, target: Any) -> None:
        if str(target).endswith("manifest.json"):
            calls.append(target)
            if len(calls) == 2:
                raise _Crash
        replace_file(source, target)

    monkeypatch.setattr("factorflow.files.os.replace", dies)
    with pytest.raises(RunError):
        fit(dataset, config, out=out, checkpoint_every=3, executor=Cut(1))
    monkeypatch.undo()
    assert len(list((tmp_path / "p.zarr.run").glob("checkpoint-*"))) == 2
    assert_same_bits(fit(dataset, config, out=out, resume=True), reference)


def test_interrupt_keeps_a_partial_posterior_and_a_checkpoint(
    dataset: Any, config: Any, reference: Any, tmp_path: Path
) -> None:
    out = tmp_path / "p.zarr"
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(dataset, config, out=out, on_event=_crash_after("IterationDone", 7, KeyboardInterrupt))
    left, command = caught.value.__notes__
    assert left == f"The checkpoint is in {out}.run, the partial posterior is {out}."
    assert command == f"To go on: factorflow resume {out}"
    partial = factorflow.open_posterior(out)
    assert partial.run["status"] == "partial"
    ended = fit(dataset, config, max_iter=int(partial.trace["iteration"][-1]))
    left, right = arrays(partial), arrays(ended)
    assert left.keys() == right.keys()
    assert all(left[name].tobytes() == right[name].tobytes() for name in left if left[name].dtype != object)
    assert_same_bits(fit(dataset, config, out=out, resume=True), reference)


def test_interrupt_before_the_first_iteration_leaves_nothing(
    dataset: Any, config: Any, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(
            dataset,
            config,
            out=tmp_path / "p.zarr",
            on_event=_crash_after("RunStarted", 1, KeyboardInterrupt),
        )
    assert caught.value.__notes__ == ["No iteration was complete: nothing was kept."]
    assert list(tmp_path.iterdir()) == []


def test_time_budget_equals_that_many_iterations(dataset: Any, config: Any, tmp_path: Path) -> None:
    posterior = fit(dataset, config, max_minutes=1e-9)
    assert_same_bits(posterior, fit(dataset, config, max_iter=int(posterior.trace["iteration"][-1])))


@pytest.mark.parametrize("n_samples", [1, 31, 32, 33])
def test_number_of_rows(n_samples: int, family: str, config: Any, datasets: Any) -> None:
    """Any number of rows runs the same in one group and in one group a block, or is refused by name."""
    if n_samples < 2:
        with pytest.raises(InputError, match="several samples"):
            datasets(family, n_samples=n_samples)
        return
    dataset = datasets(family, n_samples=n_samples)
    whole = fit(dataset, config, max_iter=4)
    assert_same_bits(fit(dataset, config, max_iter=4, executor=Cut(1)), whole)


def test_noise_does_not_depend_on_the_block_size(family: str, config: Any, datasets: Any) -> None:
    """Noise keyed by the row within a block would show here, and in no test that only moves the cuts.

    Sums over other blocks round differently, so after a few iterations the results are close, not equal.
    """
    small = datasets(family, block_rows=16)
    stages = config.build(small.meta(config.views)).stages()
    until = 2 + sum(s.max_iter for s in stages if s.counts and not s.keep) * any(s.keep for s in stages)
    small = fit(small, config, max_iter=until)
    large = fit(datasets(family, block_rows=64), config, max_iter=until)
    left, right = arrays(small), arrays(large)
    for name in left:
        if left[name].dtype.kind == "f" and "loadings" in name:
            assert left[name].size
            scale = np.abs(left[name]).max()
            np.testing.assert_allclose(left[name], right[name], atol=2e-3 * scale, err_msg=name)


def test_a_map_that_raises_names_the_cause(
    dataset: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.zarr"
    calls = []

    def fails(self: Any, number: int, *args: Any) -> Block:
        calls.append(number)
        if len(calls) > 3 * dataset.n_blocks:
            raise OSError("disk on fire")
        return read(self, number, *args)

    read = type(dataset).block
    monkeypatch.setattr("factorflow.engine.source._kept", lambda source: _Nothing())
    monkeypatch.setattr(type(dataset), "block", fails)
    with pytest.raises(RunError, match="disk on fire"):
        fit(dataset, config, out=out)
    assert not out.exists()


def test_refusals(dataset: Any, config: Any, tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    out.mkdir()
    with pytest.raises(InputError, match="overwrite"):
        fit(dataset, config, out=out)
    with pytest.raises(InputError, match="resume"):
        fit(dataset, config, out=tmp_path / "q.zarr", resume=True)
    with pytest.raises(InputError, match="executor"):
        fit(dataset, config, executor="tcp://127.0.0.1:1")
    with pytest.raises(InputError, match="memory_limit"):
        fit(dataset, config, executor="threads", workers=2, memory_limit="100MiB")
    with pytest.raises(InputError, match="device"):
        fit(dataset, config, device="cuda")
    for bad in ({"holdout": 1.0}, {"seed": -1}, {"max_iter": 0}, {"workers": 0}, {"max_minutes": 0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            factorflow.fit(dataset, config, **bad)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.zarr"]


def test_checkpoint_of_another_run_is_refused(dataset: Any, config: Any, tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    with pytest.raises(RunError):
        fit(dataset, config, out=out, checkpoint_every=2, on_event=_crash_after("IterationDone", 4))
    with pytest.raises(InputError, match="seed"):
        factorflow.fit(dataset, config, seed=4, holdout=0.1, out=out, resume=True)
    with pytest.raises(InputError, match="interrupted run"):
        fit(dataset, config, out=out)
    manifest = tmp_path / "p.zarr.run" / "manifest.json"
    text = json.loads(manifest.read_text())
    state = manifest.parent / text["folder"] / text["state"]["file"]
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(InputError, match="checksum"):
        fit(dataset, config, out=out, resume=True)
    manifest.write_text(json.dumps({**text, "checkpoint_version": 99}))
    with pytest.raises(InputError, match="version"):
        fit(dataset, config, out=out, resume=True)
    assert manifest.parent.exists()


def test_tasks_a_sweep(cluster: Any, dataset: Any, config: Any) -> None:
    """2 G tasks a sweep and one record: counted, not per block."""
    executor = _on(cluster, 2)
    names: list[str] = []
    submit = executor.submit
    executor.submit = lambda name, *args, **kw: (names.append(name), submit(name, *args, **kw))[1]
    posterior = fit(dataset, config, executor=executor, max_iter=6)
    assert len(posterior.trace["iteration"]) == 6
    rounds = names.count("merge")
    assert names.count("update_samples") == 2 * rounds
    assert names.count("statistics") == rounds
    assert names.count("record") == rounds


class _Crash(Exception):
    """An error in the middle of a run: nothing is written on the way out."""


class _Nothing:
    def get(self, number: int) -> None:
        return None

    def offer(self, block: Any) -> None: ...


def _crash_after(event: str, count: int, error: type[BaseException] = _Crash) -> Any:
    seen = []

    def watch(happened: Any) -> None:
        if type(happened).__name__ == event:
            seen.append(happened)
            if len(seen) == count:
                raise error

    return watch


def _on(cluster: Any, workers: int) -> Any:
    from factorflow.engine.executors.dask import DaskExecutor

    executor = DaskExecutor(cluster)
    executor._slots = executor._slots[:workers]
    return executor


def test_stopped_before_the_first_draw(dataset: Any, config: Any) -> None:
    """A sampler that ends in its burn-in says so; it predicts nothing."""
    counted = [stage for stage in config.build(dataset.meta()).stages() if stage.counts]
    if counted[0].keep or not any(stage.keep for stage in counted):
        pytest.skip("no burn-in")
    posterior = fit(dataset, config, max_iter=1)
    assert posterior.n_draws == 0
    assert "no draws yet" in repr(posterior)
    with pytest.raises(InputError, match="burn-in"):
        posterior.predict(posterior.views[0])
    with pytest.raises(InputError, match="burn-in"):
        posterior.loadings(posterior.views[0])
