"""Helpers of the contract suite: executors with a given cut, runs without a posterior, bit by bit."""

from __future__ import annotations

import json
from typing import Any

from factorflow.core.flatten import flatten
from factorflow.core.trees import arrays as leaves
from factorflow.data.sample_tables import SampleTables, model_meta
from factorflow.engine.executors.local import LocalExecutor
from factorflow.engine.loop import Loop
from factorflow.engine.memory import measure
from factorflow.engine.plan import Plan
from factorflow.engine.source import Source
from factorflow.engine.spill import load_spilled
from factorflow.engine.submissions import Budget

__all__ = [
    "Crash",
    "Cut",
    "arrays",
    "assert_same_bits",
    "assert_same_found",
    "fails_after",
    "leaves",
    "on_workers",
    "plan_of",
    "run_loop",
    "run_plan",
]


class Cut(LocalExecutor):
    """The local executor with a given cut into groups, look-ahead, rounds at once and feature tasks."""

    def __init__(self, *edges: int, look_ahead: int = 0, at_once: int = 1, feature_tasks: int = 0) -> None:
        super().__init__()
        self.edges, self.look_ahead, self.rounds_at_once = edges, look_ahead, at_once
        self.n_feature_tasks = feature_tasks

    def cut(self, n_blocks: int) -> list[range]:
        edges = sorted({0, *(e for e in self.edges if e < n_blocks), n_blocks})
        return [range(a, b) for a, b in zip(edges, edges[1:], strict=False)]


def plan_of(dataset: Any, config: Any, holdout: Any = None, **options: Any) -> Plan:
    """Return the plan of a run, as `factorflow.fit` would make it."""
    model = config.build(model_meta(dataset, config, holdout))
    views = tuple(view.name for view in model.meta.views)
    tables = SampleTables.of(model.meta)
    source = Source(dataset, views, holdout, 1 << 24, 1 << 24, tables=tables, sparse=model.meta.sparse_views)
    return Plan(model, source, 3, stateful=not measure(model).is_stateless, **options)


def run_loop(plan: Plan, executor: Any = None, **budget: Any) -> Loop:
    """Run a plan to its end, without anything on disk."""
    loop = Loop(plan, executor or Cut(), Budget(**budget), None, None, lambda event: None)
    loop.start()
    assert loop.run() is None
    return loop


def run_plan(plan: Plan, executor: Any = None, **budget: Any) -> dict[str, Any]:
    """Run a plan to its end, and return the bits of all it found: globals, local state, reports."""
    loop = run_loop(plan, executor, **budget)
    state = loop.executor.result(loop.state)
    trace = {name: values for name, values in loop.trace.columns().items() if name != "seconds"}
    found = {
        "trace": json.dumps(trace),
        "reason": loop.reason,
        "place": (state.tick, state.stage, state.draws),
    }
    found |= {f"globals {i}": bits(globals_) for i, globals_ in enumerate(state.globals_)}
    for group in loop.executor.result([local for local in loop.locals if local is not None]):
        found |= {f"block {number}": bits(load_spilled(local)) for number, local in group.local.items()}
    return found


def bits(tree: Any) -> list[tuple[Any, ...]]:
    """Return the structure of a tree, and type, shape and bytes of every array and number in it."""
    structure, values = flatten(tree)
    return [(json.dumps(structure),), *((str(a.dtype), a.shape, a.tobytes()) for a in values)]


def assert_same_found(found: dict[str, Any], alone: dict[str, Any], how: Any = "") -> None:
    """Assert that two runs found the same bits."""
    assert found.keys() == alone.keys(), how
    for name in sorted(found, reverse=True):
        assert found[name] == alone[name], (name, how)


def arrays(posterior: Any) -> dict[str, Any]:
    """Return every array of a posterior but the wall-clock times."""
    found = {}
    for node in posterior.tree.subtree:
        for name, variable in node.to_dataset(inherit=False).variables.items():
            if not str(name).startswith("seconds"):
                found[f"{node.path}/{name}"] = variable.values
    return found


def assert_same_bits(left: Any, right: Any) -> None:
    """Assert that two posteriors have equal bytes in every array."""
    a, b = arrays(left), arrays(right)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].shape == b[name].shape, name
        if a[name].dtype == object:
            assert a[name].tolist() == b[name].tolist(), name
        else:
            assert a[name].tobytes() == b[name].tobytes(), name


class Crash(Exception):
    """An error in the middle of a run: nothing is written on the way out."""


def fails_after(event: str, count: int, error: type[BaseException] = Crash) -> Any:
    """Return a watcher of events that raises at the ``count``-th of a kind."""
    seen = []

    def watch(happened: Any) -> None:
        if type(happened).__name__ == event:
            seen.append(happened)
            if len(seen) == count:
                raise error

    return watch


def on_workers(cluster: Any, workers: int) -> Any:
    """Return an executor on some of the workers of the cluster."""
    from factorflow.engine.executors.dask import DaskExecutor

    executor = DaskExecutor(cluster)
    executor._n_groups, executor._addresses = workers, executor._addresses[:workers]
    return executor
