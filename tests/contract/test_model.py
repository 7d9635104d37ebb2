"""What every model owes the engine, one block and one update at a time."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from contract_tools import leaves, run_loop

from factorflow.core.flatten import flatten, unflatten
from factorflow.core.trees import Gather, map_gathers, nbytes
from factorflow.engine.decide import current, enter_stage, first_state
from factorflow.engine.memory import measure
from factorflow.engine.plan import Plan
from factorflow.engine.tasks import keep, merge, update_remotely, update_samples
from factorflow.errors import InputError
from factorflow.models import configure
from factorflow.models.configuration import ModelConfig
from factorflow.models.contract import Model, Stage, Sweep
from factorflow.models.registry import registered_models


def _everything(plan: Plan) -> range:
    """Return the blocks of a group that is alone."""
    return range(plan.model.meta.n_blocks)


class Walk:
    """The first rounds of a run, each made when first asked for: (state, group result before, and after)."""

    def __init__(self) -> None:
        self._rounds: list[tuple[Any, Any, Any]] = []

    def __call__(self, plan: Plan, rounds: int = 40) -> Iterator[tuple[Any, Any, Any]]:
        for number in range(rounds):
            if number == len(self._rounds):
                state, group = first_state(plan), None
                if self._rounds:
                    before, _, group = self._rounds[-1]
                    state = merge(plan, before, [group])
                    if state.stage >= len(plan.stages):
                        return
                self._rounds.append((state, group, update_samples(plan, _everything(plan), group, state)))
            yield self._rounds[number]


@pytest.fixture(scope="module")
def walks() -> defaultdict[str, Walk]:
    """Those of each case, for all its tests."""
    return defaultdict(Walk)


@pytest.fixture
def walk(family: str, walks: dict[str, Walk]) -> Walk:
    return walks[family]


def test_configuration_round_trips(config: Any) -> None:
    again = type(config).model_validate_json(config.model_dump_json())
    assert again == config
    with pytest.raises(ValueError, match="no_such_key"):
        type(config)(no_such_key=1)


def test_model_is_frozen_and_pickles(plan: Plan) -> None:
    assert dataclasses.is_dataclass(plan.model)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.model.meta = None
    assert pickle.loads(pickle.dumps(plan.model)) == plan.model
    assert len(pickle.dumps(plan.model)) < 10_000


@pytest.mark.thorough
@pytest.mark.once
def test_model_file_imports_no_executor(family: str) -> None:
    module = registered_models()[family.partition(":")[0]].__module__
    if not module.startswith("factorflow."):
        pytest.skip("lives in the tests")
    forbidden = ("distributed", "prefect", "factorflow.engine")
    code = f"import sys, {module}; print([m for m in {forbidden} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_rounds_are_pure(plan: Plan, walk: Walk) -> None:
    """The same round twice gives the same bits and leaves its arguments as they were."""
    for state, group, first in walk(plan, 12):
        before = [a.tobytes() for a in leaves((state, group))]
        second = update_samples(plan, _everything(plan), group, state)
        _assert_equal(first, second)
        _assert_equal(merge(plan, state, [first]), merge(plan, state, [second]))
        assert before == [a.tobytes() for a in leaves((state, group))]


def test_what_stays_is_left_behind_and_computed_again(plan: Plan, walk: Walk) -> None:
    """Of an update that has travelled only the statistics are there; what stays of it has the same bits.

    Also that of several rounds, of which no task kept any.
    """
    kept, states, every = None, [], _everything(plan)
    far: Any = None
    for number, (state, _, update) in enumerate(walk(plan, 12)):
        away = update_remotely(plan, every, [kept, states, far] if states else kept, state)
        states = [*states, state]
        far = pickle.loads(pickle.dumps(away))
        _assert_equal(far.nodes, update.nodes)
        assert far.group is None
        assert keep(plan, every, [kept, states, away]) is away.group
        if number % 3 == 2:
            kept, states = keep(plan, every, [kept, states, far]), []
            _assert_equal(kept, away.group)
            assert kept is not None
            assert kept.nodes is None


def test_statistics_are_float64_and_keep_their_structure(plan: Plan, walk: Walk) -> None:
    meta, footprint = plan.model.meta, measure(plan.model)
    for state, _, _ in walk(plan):
        now = current(plan, state)
        assert now is not None
        sizes: set[Any] = set()
        blocks = list(plan.source.stream(range(meta.n_blocks)))
        for block in blocks:
            given = now[1].prepare(enter_stage(plan, state).globals_[0])
            _, stats = now[1].map(block, None, given, plan.step(0, state))
            if stats is None:
                continue
            added = map_gathers(stats, lambda _: Gather.empty())
            sizes.add(tuple(a.shape for a in leaves(stats)))
            assert {a.dtype for a in leaves(added) if a.size} <= {np.dtype(np.float64)}
            assert nbytes(stats) <= 1.1 * footprint.statistics + 4096
        assert len(sizes) <= 1


def test_record_fills_the_table_of_variables(plan: Plan, walk: Walk) -> None:
    *_, (state, _, group) = walk(plan, 400)
    state = merge(plan, state, [group])
    table = {v.name: v for v in plan.model.variables()}
    record = plan.model.record(state.globals_[0])
    assert set(record) == {v.name for v in table.values() if not v.rows}
    coords = plan.model.coords(state.globals_[0])
    meta = plan.model.meta
    sizes = {"obs": meta.n_rows, "view": len(meta.views), "group": len(meta.groups)}
    sizes |= {f"feature_{v.name}": v.n_features for v in meta.views} | {k: len(v) for k, v in coords.items()}
    block = next(plan.source.stream([0]))
    given = plan.model.prepare(state.globals_[0])
    rows = plan.model.rows(block, group.local.get(0, (None,))[0], given, plan.step(0, state))
    assert set(rows) == {v.name for v in table.values() if v.rows and not v.draws}
    for name, values in {**record, **rows}.items():
        shape = tuple(block.n_rows if dim == "obs" else sizes[dim] for dim in table[name].dims)
        assert np.shape(values) == shape, name
        assert table[name].doc


def test_globals_are_taken_apart_and_put_together(plan: Plan, walk: Walk) -> None:
    """As the engine stores them beside the record."""
    for state, *_ in walk(plan, 12):
        structure, arrays_ = flatten(state.globals_[0])
        again = unflatten(json.loads(json.dumps(structure)), arrays_)
        _assert_equal(again, state.globals_[0])
        assert flatten(again)[0] == structure


def test_bound_does_not_fall_within_a_stage(plan: Plan) -> None:
    """Not even by one step, where every step sees all rows; else it ends higher than it began.

    A family may report the bound of the state that a step began with: of the first one none is known, nor of
    one that begins with fewer factors than the last one ended with.
    """
    if plan.model.kind != "variational":
        pytest.skip("a sampler has no bound")
    columns = run_loop(plan).trace.columns()
    for stage in (stage for stage in plan.stages if stage.counts):
        here = [
            infos[0]
            for name, infos in zip(columns["stage"], columns["infos"], strict=True)
            if name == stage.name
        ]
        values = np.array([info["objective"] for info in here if "objective" in info])
        assert len(values) >= min(2, stage.max_iter, stage.patience)
        if stage.evaluate is None:
            assert len(values) == len(here)
            unknown = np.isnan(values)
            assert not unknown[1:].any() or "n_factors" in here[0]
            values = values[~unknown]
            assert (np.diff(values) >= -1e-7 * np.abs(values[1:])).all(), (stage.name, values)
        else:
            assert len(values) == len(here) // stage.evaluate_every + (len(here) % stage.evaluate_every > 0)
            assert values[-1] > values[0], (stage.name, values)


def _assert_equal(left: Any, right: Any) -> None:
    a, b = list(leaves(left)), list(leaves(right))
    assert len(a) == len(b)
    assert all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def test_a_configuration_that_is_not_registered_is_refused() -> None:
    """Before anything is fitted: its posterior could not be read."""

    class Unknown(ModelConfig):
        model: Literal["unknown"] = "unknown"

    with pytest.raises(InputError, match="model = Unknown: expected a configuration that is registered"):
        configure(Unknown())


def test_names_of_factors() -> None:
    """They count from 1; of factors that are not in order each has its own number."""
    assert Model.factor_names(3) == ["Factor1", "Factor2", "Factor3"]
    assert Model.factor_names(2, [4, 0]) == ["Factor5", "Factor1"]


def test_what_is_handed_out() -> None:
    """Less than all globals: to the sweeps that look at neighbours, and those that leave something out."""

    class Plain(Sweep[Any, Any, Any]):
        pass

    class Beside(Sweep[Any, Any, Any]):
        neighbours = True

    class Slim(Sweep[Any, Any, Any]):
        def send(self, globals_: Any) -> Any:
            return globals_

    stages = [Stage[Any]("s", (Plain(), *more), 3) for more in ((), (Beside(),), (Slim(),))]
    assert [stage.sends for stage in stages] == ["whole", "each", "alike"]
    assert Stage[Any]("s", (Plain(),), 3, evaluate=Slim()).sends == "alike"
    assert Stage[Any]("s", (Slim(),), 3, evaluate=Beside()).sends == "each"
