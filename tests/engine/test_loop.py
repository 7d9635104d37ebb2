"""What other families will ask of the loop, on toy models: scans, minibatches, stages, chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from contract_tools import Cut, leaves

import factorflow
from factorflow.core.flatten import allow_package
from factorflow.engine.loop import Loop
from factorflow.engine.plan import Plan
from factorflow.engine.source import Source
from factorflow.engine.submissions import Budget
from factorflow.errors import RunError
from factorflow.models.contract import Gather, Model, Stage, Sweep

allow_package(__name__)

ROWS, BLOCK = 250, 32


@dataclass(frozen=True)
class Toy(Model[Any, Any]):
    """A model made of whatever stages a test needs."""

    made_of: tuple[Stage[Any], ...]
    start: Any
    chains: int = 1
    kind: ClassVar[str] = "variational"

    @property
    def n_chains(self) -> int:
        return self.chains

    def stages(self) -> tuple[Stage[Any], ...]:
        return self.made_of

    def init(self, step: Any) -> Any:
        return replace(self.start, chain=step.chain) if hasattr(self.start, "chain") else self.start


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    values = np.arange(ROWS, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    path = tmp_path_factory.mktemp("toy") / "data.zarr"
    return factorflow.write_dataset(
        path, views={"x": values}, likelihoods={"x": "gaussian"}, block_rows=BLOCK
    )


@pytest.fixture
def run(dataset: Any) -> Callable[..., Any]:
    def go(
        *stages: Stage[Any],
        start: Any,
        executor: Any = None,
        n_chains: int = 1,
        max_iter: int | None = None,
        **budget: Any,
    ) -> Loop:
        model = Toy(dataset.meta(), stages, start, n_chains)
        plan = Plan(model, Source(dataset, ("x",), None, 1 << 20), 5, max_iter)
        loop = Loop(plan, executor or Cut(), Budget(**budget), None, None, lambda event: None)
        loop.start()
        assert loop.run() is None
        return loop

    return go


@dataclass(frozen=True)
class Sum:
    value: Any
    chain: int = 0


class AddUp(Sweep[Sum, Any, Sum]):
    name = "add-up"

    def map(self, block: Any, local: Any, globals_: Sum, step: Any) -> Any:
        return None, Sum(block.data["x"][:, 0].sum(dtype=float) + globals_.value * 0)

    def update(self, globals_: Sum, stats: Sum, step: Any) -> Any:
        value = globals_.value + stats.value
        return replace(globals_, value=value), {"objective": float(np.sum(value)), "observed": 1.0}


TOTAL = ROWS * (ROWS - 1) / 2


class KeepRows(AddUp):
    """Returns local state."""

    def map(self, block: Any, local: Any, globals_: Sum, step: Any) -> Any:
        return Sum(block.data["x"][:, 0]), super().map(block, local, globals_, step)[1]


def test_stateless_runs_leave_nothing(dataset: Any) -> None:
    """Without local state no task keeps any; local state that comes all the same is not dropped silently."""
    plan = Plan(
        Toy(dataset.meta(), (Stage("add", (AddUp(),), 2),), Sum(0.0)), Source(dataset, ("x",), None, 0), 5
    )
    names: list[str] = []
    executor = Cut(3)
    submit = executor.submit
    executor.submit = lambda name, *args, **kw: (names.append(name), submit(name, *args, **kw))[1]
    for stateful in (True, False):
        loop = Loop(replace(plan, stateful=stateful), executor, Budget(), None, None, lambda event: None)
        loop.start()
        loop.run()
        assert executor.result(loop.state).globals_[0].value == 2 * TOTAL
        assert names.count("keep") == 2
    wrong = replace(plan.model, made_of=(Stage("add", (KeepRows(),), 2),))
    loop = Loop(
        replace(plan, model=wrong, stateful=False), executor, Budget(), None, None, lambda event: None
    )
    loop.start()
    with pytest.raises(RunError, match="KeepRows returned local state, and none when it was measured"):
        loop.run()


# Rounds submitted, and read, at once -----------------------------------------------------------


class Noting(Cut):
    """Notes how many rounds were submitted, and how many records read, each time; may be interrupted."""

    def __init__(self, interrupt_at: int = 0, **options: Any) -> None:
        super().__init__(3, **options)
        self.sent: list[int] = []
        self.read: list[int] = []
        self.interrupt_at, self.rounds = interrupt_at, 0

    @contextmanager
    def together(self) -> Iterator[None]:
        self.sent.append(0)
        yield

    def submit(self, name: str, *args: Any, **options: Any) -> Any:
        if name == "merge":
            self.sent[-1] += 1
            self.rounds += 1
            if self.rounds == self.interrupt_at:
                raise KeyboardInterrupt
        return super().submit(name, *args, **options)

    def result(self, handle: Any) -> Any:
        value = super().result(handle)
        if isinstance(value, tuple) and value:  # records
            self.read.append(len(value))
        return value


def test_short_rounds_are_submitted_and_read_at_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.engine.loop.AT_ONCE_SECONDS", 60.0)
    executor = Noting(look_ahead=2, at_once=4)
    loop = run(Stage("one", (AddUp(),), 20), start=Sum(0.0), executor=executor)
    assert executor.sent[:4] == [1, 1, 1, 4]  # the first tell how long they take
    assert executor.read[:4] == [1, 1, 1, 4]
    assert set(executor.sent[3:]) == {4}
    seconds = loop.trace.columns()["seconds"]
    assert 0.0 < seconds[0]
    assert (np.diff(seconds) > 0).all()
    np.testing.assert_allclose(np.diff(seconds[2:7]), (seconds[6] - seconds[2]) / 4)  # each its share
    assert reported(loop) == [TOTAL * (i + 1) for i in range(20)]


def test_long_rounds_are_read_one_by_one(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.engine.loop.AT_ONCE_SECONDS", 0.0)
    executor = Noting(look_ahead=2, at_once=4)
    run(Stage("one", (AddUp(),), 8), start=Sum(0.0), executor=executor)
    assert set(executor.sent) == set(executor.read) == {1}


@pytest.mark.parametrize("at", [5, 6, 7, 8])
def test_an_interrupt_among_rounds_leaves_none_of_them(
    dataset: Any, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.engine.loop.AT_ONCE_SECONDS", 60.0)
    model = Toy(dataset.meta(), (Stage("one", (AddUp(),), 20),), Sum(0.0))
    plan = Plan(model, Source(dataset, ("x",), None, 1 << 20), 5, None, None, None)
    executor = Noting(at, look_ahead=2, at_once=4)
    loop = Loop(plan, executor, Budget(), None, None, lambda event: None)
    loop.start()
    assert isinstance(loop.run(), KeyboardInterrupt)
    assert loop.reason == "interrupted"
    assert 0 < loop.counted < at
    assert reported(loop) == [TOTAL * (i + 1) for i in range(loop.counted)]


# Neighbours in a sequence ----------------------------------------------------------------------


@dataclass(frozen=True)
class Edges:
    totals: Gather
    done: Any = 0.0


class Scan(Sweep[Edges, Any, Edges]):
    """A prefix sum over all rows in two sweeps: block totals ride up, the next sweep adds what is before."""

    name = "totals"

    def map(self, block: Any, local: Any, globals_: Edges, step: Any) -> Any:
        return local, Edges(Gather.of(block, block.data["x"][:, 0].sum(dtype=float)))

    def carry(self, globals_: Edges, stats: Edges, step: Any) -> Any:
        totals = stats.totals.values
        assert list(stats.totals.numbers) == sorted(stats.totals.numbers)
        return replace(globals_, totals=Gather(stats.totals.numbers, np.cumsum(totals) - totals))

    def update(self, globals_: Edges, stats: Edges, step: Any) -> Any:
        return globals_, {}


@dataclass(frozen=True)
class Running:
    values: Any


class Apply(Sweep[Edges, Running, Edges]):
    name = "apply"
    neighbours = True

    def map(self, block: Any, local: Any, globals_: Edges, step: Any) -> Any:
        values = float(globals_.totals.own(block)) + np.cumsum(block.data["x"][:, 0], dtype=float)
        last = values[-1] if block.number + 1 == block.n_blocks else 0.0
        return Running(values), Edges(Gather.empty(), last)

    def update(self, globals_: Edges, stats: Edges, step: Any) -> Any:
        return replace(globals_, done=stats.done), {"objective": stats.done, "observed": 1.0}


@pytest.mark.parametrize("cut", [(), (1, 5), (3, 4, 7)])
def test_prefix_scan_over_block_summaries(run: Any, cut: tuple[int, ...]) -> None:
    loop = run(
        Stage("scan", (Scan(), Apply()), 2), start=Edges(Gather.empty()), executor=Cut(*cut, look_ahead=2)
    )
    assert loop.state.globals_[0].done == TOTAL
    local = {n: chains[0].values for group in loop.locals for n, chains in group.local.items()}
    expected = np.cumsum(np.arange(ROWS, dtype=float))
    np.testing.assert_array_equal(np.concatenate([local[n] for n in sorted(local)]), expected)


def test_two_sweeps_of_an_iteration_draw_the_same_noise(run: Any) -> None:
    seen: list[tuple[str, int, float]] = []

    class First(AddUp):
        name = "first"

        def update(self, globals_: Sum, stats: Sum, step: Any) -> Any:
            seen.append((self.name, step.iteration, float(step.normal(1, np.arange(1), 1)[0, 0])))
            return globals_, {}

    class Second(First):
        name = "second"

        def update(self, globals_: Sum, stats: Sum, step: Any) -> Any:
            return super().update(globals_, stats, step)[0], {"objective": 0.0}

    run(Stage("both", (First(), Second()), 3), start=Sum(0.0))
    assert [name for name, *_ in seen] == ["first", "second"] * 3
    noise = [value for *_, value in seen]
    assert noise[0::2] == noise[1::2]
    assert len(set(noise)) == 3


# Minibatches -----------------------------------------------------------------------------------


class Turns(AddUp):
    """Each block that is visited adds the number of the iteration, from 1."""

    name = "turns"

    def map(self, block: Any, local: Any, globals_: Sum, step: Any) -> Any:
        return None, Sum(step.count + 1.0)

    def update(self, globals_: Sum, stats: Sum, step: Any) -> Any:
        return replace(globals_, value=stats.value), {"objective": stats.value, "observed": 1.0}


def reported(loop: Any, name: str = "objective") -> list[float]:
    return [chain[0][name] for chain in loop.trace.columns()["infos"]]


@pytest.mark.parametrize("cut", [(), (1,), (3, 6), (2, 3, 5)])
def test_parts_of_the_blocks(run: Any, cut: tuple[int, ...]) -> None:
    """Two of eight blocks give iteration + 1 each; the others sit out but take their place in the tree."""
    stage = Stage("some", (Turns(),), 3, part_rows=ROWS // 4)
    assert reported(run(stage, start=Sum(0.0), executor=Cut(*cut, look_ahead=1))) == [2.0, 4.0, 6.0]


class Evaluate(AddUp):
    """Reports the sum of all rows; what it does to the globals must not matter."""

    name = "evaluate"

    def update(self, globals_: Sum, stats: Sum, step: Any) -> Any:
        return replace(globals_, value=-1.0), {"objective": stats.value, "observed": 1.0}


def test_an_evaluation_changes_nothing_and_is_what_convergence_looks_at(run: Any) -> None:
    stage = Stage("steps", (Turns(),), 20, tol=1e-9, patience=2, evaluate=Evaluate(), evaluate_every=3)
    loop = run(stage, start=Sum(0.0), executor=Cut(2, look_ahead=2))
    objective = [info[0].get("objective") for info in loop.trace.columns()["infos"]]
    assert [i + 1 for i, value in enumerate(objective) if value is not None] == [3, 6, 9]
    assert objective[2] == TOTAL
    assert reported(loop, "estimate") == [8.0 * (i + 1) for i in range(9)]
    assert loop.reason == "converged"
    assert loop.state.globals_[0].value == 8.0 * 9


@pytest.mark.parametrize("look_ahead", [0, 3])
@pytest.mark.parametrize("budget", [{"max_iter": 4}, {"max_minutes": 1e-9}, {"max_iter": 3}, {}])
def test_the_last_iteration_is_evaluated_whatever_ends_it(run: Any, budget: Any, look_ahead: int) -> None:
    """Once, also where an evaluation was due anyhow; the closing stage comes after it."""
    close = Stage("close", (AddUp(),), 1, counts=False, closing=True)
    stage = Stage("steps", (Turns(),), 5, keep=True, thin=2, evaluate=Evaluate(), evaluate_every=3)
    loop = run(stage, close, start=Sum(0.0), executor=Cut(2, look_ahead=look_ahead), **budget)
    columns, done = loop.trace.columns(), loop.counted
    assert columns["iteration"] == list(range(1, done + 1))
    assert [i + 1 for i, info in enumerate(columns["infos"]) if "objective" in info[0]] == sorted(
        {*range(3, done, 3), done}
    )
    assert columns["infos"][-1][0] == {"estimate": 8.0 * done, "objective": TOTAL, "observed": 1.0}
    assert columns["kept"] == [number % 2 == 0 for number in columns["iteration"]]
    assert (loop.state.counted, loop.state.tick, loop.state.draws) == (done, done + 1, done // 2)
    assert loop.state.globals_[0].value == 8.0 * done + TOTAL


# Stages ----------------------------------------------------------------------------------------


def test_stages_of_no_iterations_are_left_out(run: Any) -> None:
    def never(globals_: Sum) -> Sum:
        raise AssertionError

    none = Stage("none", (AddUp(),), 0, enter=never)
    loop = run(none, Stage("one", (AddUp(),), 2), none, start=Sum(0.0), executor=Cut(2, look_ahead=2))
    assert loop.trace.columns()["stage"] == ["one", "one"]
    assert (loop.reason, loop.state.globals_[0].value) == ("complete", 2 * TOTAL)


def test_enter_may_change_the_globals(run: Any) -> None:
    def shrink(globals_: Sum) -> Sum:
        return replace(globals_, value=globals_.value[:1])

    stages = Stage("two", (AddUp(),), 1), Stage("one", (AddUp(),), 2, enter=shrink)
    assert run(*stages, start=Sum(np.zeros(2))).state.globals_[0].value.tolist() == [3 * TOTAL]


@pytest.mark.parametrize("edges", [(), (2, 5)])
def test_a_stage_is_entered_once(run: Any, edges: tuple[int, ...]) -> None:
    """However many groups, and the root, begin with what that leaves: a rotation takes long."""
    entered = []

    def enter(globals_: Sum) -> Sum:
        entered.append(globals_.value)
        return globals_

    stages = Stage("one", (AddUp(),), 2, enter=enter), Stage("two", (AddUp(),), 1, enter=enter)
    run(*stages, start=Sum(0.0), executor=Cut(*edges))
    assert entered == [0.0, 2 * TOTAL]


@dataclass(frozen=True)
class Halving(AddUp):
    """The bound rises by 1, 1/2, 1/4, ..."""

    def update(self, globals_: Sum, stats: Sum, step: Any) -> Any:
        value = globals_.value + 0.5**step.iteration
        return replace(globals_, value=value), {"objective": value, "observed": 2.0}


def test_convergence_by_gain_per_entry(run: Any) -> None:
    """Gains an entry are 2^-(i+1): the third below .01 ends the stage."""
    loop = run(Stage("rise", (Halving(),), 99, tol=0.01, patience=3), start=Sum(0.0))
    gains = np.diff([chain[0]["objective"] for chain in loop.trace.columns()["infos"]]) / 2
    assert (gains[-3:] < 0.01).all()
    assert gains[-4] >= 0.01
    assert loop.reason == "converged"


def test_budget_runs_the_closing_stage(run: Any) -> None:
    stages = (
        Stage("first", (AddUp(),), 5),
        Stage("never", (AddUp(),), 5),
        Stage("close", (AddUp(),), 1, counts=False, closing=True),
    )
    loop = run(*stages, start=Sum(0.0), max_iter=2, executor=Cut(3, look_ahead=5))
    assert loop.trace.columns()["iteration"] == [1, 2]
    assert loop.reason == "max_iter"
    assert loop.state.globals_[0].value == 3 * TOTAL


# Chains ----------------------------------------------------------------------------------------


class Draw(AddUp):
    name = "draw"

    def update(self, globals_: Sum, stats: Sum, step: Any) -> Any:
        value = float(step.normal(2, np.arange(1), 1)[0, 0])
        return replace(globals_, value=value), {"objective": value, "monitor_value": value}


def test_chains_are_independent_and_end_by_rhat(run: Any) -> None:
    stage = Stage("sampling", (Draw(),), 1000, keep=True, thin=2, max_rhat=1.05)
    loop = run(stage, start=Sum(0.0), n_chains=3, executor=Cut(2, look_ahead=3))
    values = np.array([[chain["objective"] for chain in info] for info in loop.trace.columns()["infos"]])
    assert abs(np.corrcoef(values.T)[np.triu_indices(3, 1)]).max() < 0.3
    kept = sum(loop.trace.columns()["kept"])
    assert loop.reason == "converged"
    assert 50 <= kept < 500
    assert kept % 50 == 0
    assert loop.trace.columns()["kept"][:4] == [False, True, False, True]


def test_the_objective_of_chains_is_their_mean(dataset: Any) -> None:
    """As listeners are told it: of every iteration, and what it gained."""
    events: list[Any] = []
    model = Toy(dataset.meta(), (Stage("sampling", (Draw(),), 4),), Sum(0.0), 3)
    loop = Loop(
        Plan(model, Source(dataset, ("x",), None, 1 << 20), 5), Cut(), Budget(), None, None, events.append
    )
    loop.start()
    assert loop.run() is None
    means = [np.mean([info["objective"] for info in infos]) for infos in loop.trace.columns()["infos"]]
    told = [event for event in events if type(event).__name__ == "IterationDone"]
    np.testing.assert_allclose([event.objective for event in told], means)
    assert told[0].gain is None
    np.testing.assert_allclose([event.gain for event in told[1:]], np.diff(means))


def test_arguments_are_read_only(run: Any) -> None:
    class Writes(AddUp):
        def update(self, globals_: Any, stats: Sum, step: Any) -> Any:
            globals_.value[0] = 1.0
            return globals_, {}

    with pytest.raises(factorflow.RunError, match="read-only"):
        run(Stage("writes", (Writes(),), 1), start=Sum(np.zeros(2)))


def test_blocks_beyond_the_cache_are_read_again(dataset: Any) -> None:
    """With no room to keep blocks every pass reads them all, in order, ahead of the compute."""
    source = Source(dataset, ("x",), None, 0)
    for _ in range(2):
        assert [b.number for b in source.stream(range(1, 7))] == list(range(1, 7))
    kept = Source(dataset, ("x",), None, 1 << 20)
    first = next(iter(kept.stream([3])))
    assert not any(a.flags.writeable for a in leaves(dict(first.data)))


def test_folder_is_left_clean(tmp_path: Path, dataset: Any) -> None:
    with pytest.raises(factorflow.InputError, match="n_factors"):
        factorflow.fit(dataset, factorflow.models.SparseGFA(n_factors=50), out=tmp_path / "p.zarr")
    assert list(tmp_path.iterdir()) == []


def test_budgets_are_in_minutes(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is due after so many iterations, or minutes, whichever comes first."""
    stage = Stage[Any]("add", (AddUp(),), 3)
    loop, clock = run(stage, start=Sum(0.0)), SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr("factorflow.engine.loop.time", SimpleNamespace(perf_counter=lambda: clock.seconds))
    loop.budget = Budget(max_minutes=20.0, checkpoint_every=50, checkpoint_minutes=10.0)
    loop.checkpoints, loop._iteration_complete, loop.reason = object(), True, ""
    loop._begun, loop._saved, loop.counted = 1000.0, (1000.0, 3), 4
    for minutes in (9.99, 10.0, 19.99, 20.0):
        clock.seconds = 1000.0 + 60.0 * minutes
        assert loop._checkpoint_due() == (minutes >= 10.0), minutes
        assert loop._out_of_time() == (minutes >= 20.0), minutes
    loop.counted = 3
    assert not loop._checkpoint_due(), "nothing is new"
    clock.seconds, loop.counted = 1000.0, 53
    assert loop._checkpoint_due()
    loop.counted = 52
    assert not loop._checkpoint_due()
