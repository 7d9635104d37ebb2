"""Whole runs: the same bits whatever the executor, the cut, the crashes and the resumptions."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import (
    Crash,
    Cut,
    arrays,
    assert_same_bits,
    assert_same_found,
    fails_after,
    on_workers,
    plan_of,
    run_loop,
    run_plan,
)

import factorflow
from factorflow.data import Holdout
from factorflow.engine.memory import measure
from factorflow.engine.spill import SUPERSEDED
from factorflow.errors import InputError, RunError
from factorflow.models.contract import Block
from factorflow.posterior import store
from factorflow.storage.local import delete


def fit(dataset: Any, config: Any, **kwargs: Any) -> Any:
    return factorflow.fit(dataset, config, seed=3, holdout=0.1, **kwargs)


def n_iterations(reference: Any) -> int:
    """Return the iterations that a run reports."""
    return int(reference.trace["iteration"][-1])


# Executors of this process


@pytest.mark.once
def test_any_cut(plan: Any, alone: dict[str, Any]) -> None:
    """All statistics are merged alike, by the engine; tests below cut each case, with more beside it."""
    assert plan.model.meta.n_blocks == 4
    for cut in ((1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)):
        assert_same_found(run_plan(plan, Cut(*cut)), alone, cut)


def test_merges_of_neighbours(plan: Any, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps, on the workers: what the root is left with it merges to the same bits."""
    monkeypatch.setattr("factorflow.engine.tree.FAN_IN", 2)
    for tasks, travels, every in ((0, True, 1), (2, False, 1), (0, False, 3)):
        executor = Noting(1, 2, 3, feature_tasks=tasks)
        changed = replace(plan, sends_local=travels, keep_every=every)
        assert_same_found(run_plan(changed, executor), alone, (tasks, every))
        names = [name for name, _ in executor.noted]
        assert names.count("merge_nodes") == 2 * (1 + tasks) * names.count("merge")
        # of two groups of four: not beside a merge, and not sent with the statistics; and at the end
        sent = {stage.sends for stage in plan.stages}
        if every == 1 or "each" not in sent or sent == {"each"}:  # what each gets for itself is soon left
            kept = -(-names.count("merge") // (1 if "each" in sent else every))
            assert names.count("keep") == 2 * (plan.stateful and not travels) * kept


def test_look_ahead(plan: Any, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one round: `test_groups_that_change`."""
    monkeypatch.setattr("factorflow.engine.loop.AT_ONCE_SECONDS", 60.0)
    for cut, look_ahead, at_once in ((2, 7, 1), (2, 2, 4), (4, 2, 3)):
        executor = Cut(cut, look_ahead=look_ahead, at_once=at_once)  # cut at 4 blocks: one group
        assert_same_found(run_plan(plan, executor), alone, (cut, look_ahead, at_once))


@pytest.mark.once
def test_rounds_at_once_without_look_ahead(
    plan: Any, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.engine.loop.AT_ONCE_SECONDS", 60.0)
    assert_same_found(run_plan(plan, Cut(2, at_once=3)), alone)


def test_groups_that_change(plan: Any, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Into one and back, between rounds, also where rounds of the cut before are not read yet."""
    monkeypatch.setattr("factorflow.engine.group_trial.SHORT_SECONDS", 60.0)
    for name in ("SKIPPED", "REREAD", "TIMED"):
        monkeypatch.setattr(f"factorflow.engine.group_trial.{name}", 1)
    for slower_alone, n_changes in ((0.5, 1), (2.0, 2)):
        times = iter((1.0, slower_alone))
        monkeypatch.setattr("factorflow.engine.group_trial.median", lambda _, times=times: next(times))
        executor = Noting(1, 3, look_ahead=1)
        executor.joins_groups = True
        found = run_plan(replace(plan, may_join=True), executor)
        assert_same_found(found, alone, slower_alone)
        names = [name for name, _ in executor.noted]
        assert names.count("regroup") == (1 if n_changes == 1 else 4)


class Noting(Cut):
    """Notes what is submitted: names, and whether it is urgent."""

    def __init__(self, *edges: int, **options: int) -> None:
        super().__init__(*edges, **options)
        self.noted: list[tuple[str, bool]] = []

    def submit(self, name: str, *args: Any, urgent: bool = False, **options: Any) -> Any:
        self.noted.append((name, urgent))
        return super().submit(name, *args, urgent=urgent, **options)


@pytest.mark.once
def test_what_groups_need_is_handed_out_before_any_is_updated(plan: Any) -> None:
    """Or all others would wait until the one beside the root has been updated."""
    executor = Noting(1, 2)
    run_plan(replace(plan, max_iter=2), executor)
    updates = [i for i, (name, _) in enumerate(executor.noted) if name == "update_samples"]
    assert len(updates) % 3 == 0
    for first in updates[::3]:
        assert [name for name, _ in executor.noted[first : first + 3]] == ["update_samples"] * 3
    handed = [urgent for name, urgent in executor.noted if name == "hand_out"]
    assert all(handed)
    check_handed(plan, len(handed), len(updates) // 3, 2)


def check_handed(plan: Any, found: int, rounds: int, others: int) -> None:
    """Where stages need it: once a round what all need, to each of the other groups what it alone does."""
    sends = [stage.sends for stage in plan.stages]
    most = rounds * (others if "each" in sends else 1)
    assert found <= most
    assert (found > 0) == (set(sends) != {"whole"})
    assert found < most or "whole" not in sends


@pytest.mark.once
def test_the_state_is_relayed(plan: Any, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """From group to group, where that is worth it: to the same bits."""
    monkeypatch.setattr("factorflow.engine.rounds.relay_parents", lambda n, n_bytes: list(range(n - 1)))
    executor = Noting(1, 2, 3)
    assert_same_found(run_plan(plan, executor), alone, "relayed")
    relays = [urgent for name, urgent in executor.noted if name == "relay"]
    assert all(relays)
    assert bool(relays) == any(stage.sends != "each" for stage in plan.stages)


def test_feature_tasks(plan: Any, alone: dict[str, Any]) -> None:
    """Of several: `test_merges_of_neighbours`, `test_narrow_runs_of_features`."""
    assert_same_found(run_plan(plan, Cut(1, 2, look_ahead=1, feature_tasks=1)), alone)


def test_narrow_runs_of_features(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With runs shorter than a view the features are cut; sharing them out changes nothing."""
    monkeypatch.setattr("factorflow.engine.feature_runs.FEATURE_RUN", 3)
    narrow = run_plan(plan)
    assert_same_found(run_plan(plan, Cut(1, 3, look_ahead=2, feature_tasks=3)), narrow)


@pytest.mark.parametrize("n_samples", [1, pytest.param(31, marks=pytest.mark.slow), 32, 33])
def test_number_of_rows(n_samples: int, config: Any, family: str, datasets: Any) -> None:
    """Any number of rows runs, several blocks the same in one group and in one each, or is refused."""
    if n_samples < 2:
        with pytest.raises(InputError, match="several samples"):
            datasets(family, n_samples=n_samples)
        return
    plan = plan_of(datasets(family, n_samples=n_samples), config, Holdout(0.1, 3), max_iter=4)
    found = run_plan(plan, Cut(1))
    if plan.model.meta.n_blocks > 1:
        assert_same_found(run_plan(plan), found)


def test_noise_does_not_depend_on_the_block_size(config: Any, family: str, datasets: Any) -> None:
    """Noise keyed by the row within a block would show here, and in no test that only moves the cuts.

    Sums over other blocks round differently, so after a few iterations the results are close, not equal,
    and a component that a fit begins with may have either sign: then scores that may not be negative, and
    what is corrected by them, are others.
    """
    small, large = (plan_of(datasets(family, block_rows=rows), config, Holdout(0.1, 3)) for rows in (16, 64))
    if any(stage.n_parts(plan.model.meta) > 1 for plan in (small, large) for stage in plan.stages):
        pytest.skip("parts are of whole blocks")
    stages = small.stages
    until = 2 + sum(s.max_iter for s in stages if s.counts and not s.keep) * any(s.keep for s in stages)
    records = []
    for plan in (small, large):
        loop = run_loop(replace(plan, max_iter=until))
        records.append(plan.model.record(loop.state.globals_[0]))
    has_flipped = False
    for name, values in records[0].items():
        if "loadings" in name and not (has_flipped and name.startswith("corrected")):
            assert values.size
            scale, others = np.abs(values).max(), records[1][name]
            if values.ndim > 1:
                signs = np.where((values * others).sum(axis=-2, keepdims=True) < 0.0, -1.0, 1.0)
                has_flipped, others = has_flipped or bool((signs < 0.0).any()), others * signs
            np.testing.assert_allclose(values, others, atol=2e-3 * scale, err_msg=name)


@pytest.mark.once
def test_sparse_views_change_no_bits(sparse: Any, config: Any, family: str, datasets: Any) -> None:
    dense = datasets(family, missing=0.0)
    assert dense.fingerprint == sparse.fingerprint
    found = run_plan(plan_of(dense, config))
    for executor in (Cut(), Cut(1, 2)):
        assert_same_found(run_plan(plan_of(sparse, config), executor), found)


@pytest.mark.thorough
@pytest.mark.once("sparse_gfa:counts")
def test_sparse_views_on_workers(cluster: Any, sparse: Any, config: Any, family: str, datasets: Any) -> None:
    found = run_plan(plan_of(datasets(family, missing=0.0), config))
    for workers in (1, 3):
        assert_same_found(run_plan(plan_of(sparse, config), on_workers(cluster, workers)), found)


@pytest.mark.once
def test_time_budget_equals_that_many_iterations(plan: Any) -> None:
    begun = run_loop(plan, max_minutes=1e-9)
    assert begun.counted >= 1
    whole = run_plan(replace(plan, max_iter=begun.counted))
    budget = run_plan(plan, max_minutes=1e-9)
    assert {budget.pop("reason"), whole.pop("reason")} == {"max_minutes", "max_iter"}
    assert_same_found(budget, whole)


# With a posterior at the end


@pytest.mark.few
def test_threads(dataset: Any, config: Any, reference: Any) -> None:
    assert_same_bits(fit(dataset, config, executor="threads", workers=3), reference)


@pytest.mark.few
def test_kept_in_memory_equals_written(dataset: Any, config: Any, stored: Any, reference: Any) -> None:
    assert_same_bits(fit(dataset, config), reference)
    assert [p.name for p in Path(stored[0].path).parent.iterdir()] == ["p.zarr"]


@pytest.mark.thorough
@pytest.mark.once
def test_dask(cluster: Any, dataset: Any, config: Any, reference: Any, tmp_path: Path) -> None:
    """Two workers, features shared out, checkpoints on the way."""
    executor, out = on_workers(cluster, 2), tmp_path / "p.zarr"
    executor.n_feature_tasks = 2
    assert_same_bits(fit(dataset, config, executor=executor, out=out, checkpoint_every=5), reference)


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_any_number_of_workers(
    workers: int, cluster: Any, dataset: Any, config: Any, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of them merge in a tree of two."""
    monkeypatch.setattr("factorflow.engine.tree.FAN_IN", 2)
    assert_same_bits(fit(dataset, config, executor=on_workers(cluster, workers)), reference)


def count_updates() -> None:
    """Count, in a worker, how often samples are updated from now on."""
    from factorflow.engine import tasks

    update = tasks.update_samples

    def counting(*args: Any) -> Any:
        counting.calls += 1
        return update(*args)

    counting.calls, counting.update = 0, update
    tasks.update_samples = counting


def counted_updates() -> int:
    """Return how often that was, and count no more."""
    from factorflow.engine import tasks

    counting = tasks.update_samples
    tasks.update_samples = counting.update
    return counting.calls


@pytest.mark.once
def test_tasks_a_sweep(cluster: Any, plan: Any) -> None:
    """2 G tasks a sweep, one record a submission, and what neighbours need: counted, not per block.

    Nothing is computed twice: what stays of a group is found where it was left.
    """
    executor = on_workers(cluster, 2)
    names: list[str] = []
    submit = executor.submit
    executor.submit = lambda name, *args, **kw: (names.append(name), submit(name, *args, **kw))[1]
    cluster.run(count_updates)
    loop = run_loop(replace(plan, max_iter=6), executor)
    assert loop.counted == 6
    executor.result([loop.state, *(local for local in loop.locals if local is not None)])
    rounds = names.count("merge")
    assert sum(cluster.run(counted_updates).values()) == names.count("update_samples")
    assert names.count("update_samples") == 2 * rounds
    assert names.count("keep") == plan.stateful * rounds  # of each group but that beside the root
    assert names.count("record") == loop._submission <= rounds
    check_handed(plan, names.count("hand_out"), rounds, 1)  # the group beside the root needs none


# Stopped on the way


@pytest.mark.few
def test_resume_equals_uninterrupted(dataset: Any, config: Any, reference: Any, tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    with pytest.raises(RunError, match="Crash"):
        fit(
            dataset,
            config,
            out=out,
            checkpoint_every=2,
            executor=Cut(2, look_ahead=1),
            on_event=fails_after("IterationDone", n_iterations(reference) - 2),
        )
    assert not out.exists()
    assert (tmp_path / "p.zarr.run" / "manifest.json").exists()
    resumed = fit(dataset, config, out=out, resume=True, checkpoint_every=4, executor=Cut(1, 3))
    assert_same_bits(resumed, reference)
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


@pytest.mark.thorough
@pytest.mark.few
def test_state_on_disk_changes_nothing(
    plan: Any, dataset: Any, config: Any, reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a crash while it is there; files that are superseded go at once."""
    monkeypatch.setattr("factorflow.engine.memory_limits.KEPT_SHARE", 0.0)
    out, most = tmp_path / "p.zarr", 0
    crash = fails_after("IterationDone", n_iterations(reference) - 2)

    def count(event: Any) -> None:
        nonlocal most
        most = max(most, len(list((tmp_path / "p.zarr.run" / "kept").glob("local-*"))))
        crash(event)

    with pytest.raises(RunError, match="Crash"):
        fit(dataset, config, out=out, checkpoint_every=2, executor=Cut(2), on_event=count)
    stateful = measure(plan.model).local_per_row > 0
    assert (most > 0) == stateful
    assert most <= dataset.n_blocks * SUPERSEDED
    resumed = fit(dataset, config, out=out, resume=True, executor=Cut(1, 3))
    assert_same_bits(resumed, reference)
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


@pytest.mark.once
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
                raise Crash
        replace_file(source, target)

    monkeypatch.setattr("factorflow.storage.publish.os.replace", dies)
    with pytest.raises(RunError, match="Crash"):
        fit(dataset, config, out=out, checkpoint_every=2, executor=Cut(1))
    monkeypatch.undo()
    assert len(list((tmp_path / "p.zarr.run").glob("checkpoint-*"))) == 2
    assert_same_bits(fit(dataset, config, out=out, resume=True), reference)


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize(
    "share", [0.5, pytest.param(0.1, marks=pytest.mark.slow), pytest.param(0.95, marks=pytest.mark.slow)]
)
def test_killed_while_the_result_is_written(
    share: float, dataset: Any, config: Any, reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the arrays of the result some are there, the last one empty: what is resumed writes them all."""
    out, made, new_array = tmp_path / "p.zarr", 0, store.new_array

    def attempt(until: float, **options: Any) -> None:
        """Run for five iterations, and make so many arrays of the result."""
        nonlocal made
        ended = made = 0

        def watch(event: Any) -> None:
            nonlocal ended
            ended += type(event).__name__ == "IterationDone" and event.iteration == 5

        def dies(*given: Any, **named: Any) -> Any:
            nonlocal made
            found, made = new_array(*given, **named), made + bool(ended)
            if made >= until:
                raise Crash
            return found

        with monkeypatch.context() as patch:
            patch.setattr(store, "new_array", dies)
            patch.setattr("factorflow.posterior.globals.new_array", dies)
            fit(dataset, config, out=out, checkpoint_every=2, max_iter=5, on_event=watch, **options)

    attempt(np.inf)
    delete(out)
    until = max(1, round(share * made))
    with pytest.raises(RunError, match="result was written"):
        attempt(until)
    with pytest.raises(RunError, match="result was written"):
        attempt(max(1, until // 2), resume=True)
    assert not out.exists()
    assert_same_bits(fit(dataset, config, out=out, resume=True), reference)
    assert [p.name for p in tmp_path.iterdir()] == ["p.zarr"]


@pytest.mark.thorough
@pytest.mark.once
def test_killed_before_the_result_is_put_in_place(
    dataset: Any, config: Any, reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws have been cut to those that were made; the run goes on to more of them."""
    out = tmp_path / "p.zarr"

    def dies(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("factorflow.storage.publish.publish", dies)
        with pytest.raises(RunError, match="result was written"):
            fit(dataset, config, out=out, checkpoint_every=2, max_iter=n_iterations(reference) - 2)
    assert not out.exists()
    assert_same_bits(fit(dataset, config, out=out, resume=True), reference)


@pytest.mark.thorough
@pytest.mark.once
def test_interrupt_keeps_a_partial_posterior_and_a_checkpoint(
    dataset: Any, config: Any, reference: Any, tmp_path: Path
) -> None:
    out, middle = tmp_path / "p.zarr", n_iterations(reference) // 2  # the end of a stage, in some families
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(dataset, config, out=out, on_event=fails_after("IterationDone", middle, KeyboardInterrupt))
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


@pytest.mark.once
def test_interrupt_before_the_first_iteration_leaves_nothing(
    dataset: Any, config: Any, tmp_path: Path
) -> None:
    watch = fails_after("RunStarted", 1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(dataset, config, out=tmp_path / "p.zarr", on_event=watch)
    assert caught.value.__notes__ == ["No iteration was complete: nothing was kept."]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once
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


# Refused


@pytest.mark.once
def test_a_map_that_raises_names_the_cause(
    dataset: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.zarr"
    calls = []

    def fails(self: Any, number: int, *args: Any) -> tuple[Block, Any]:
        calls.append(number)
        if len(calls) > 3 * dataset.n_blocks:
            raise OSError("disk on fire")
        return read(self, number, *args)

    read = type(dataset).read
    monkeypatch.setattr("factorflow.engine.source._block_cache", lambda *given: _Nothing())
    monkeypatch.setattr(type(dataset), "read", fails)
    with pytest.raises(RunError, match="disk on fire"):
        fit(dataset, config, out=out)
    assert not out.exists()


@pytest.mark.thorough
@pytest.mark.once("bayesian_pca:default")
def test_refusals(dataset: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.engine.executors.clusters.CONNECT_SECONDS", 1)
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


@pytest.mark.once
def test_checkpoint_of_another_run_is_refused(dataset: Any, config: Any, tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    with pytest.raises(RunError, match="Crash"):
        fit(dataset, config, out=out, checkpoint_every=2, on_event=fails_after("IterationDone", 4))
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


class _Nothing:
    def get(self, number: int) -> None:
        return None

    def offer(self, *pair: Any) -> Any:
        return pair
