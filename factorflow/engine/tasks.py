"""The tasks of a run: pure functions, the same for every executor.

One round is one sweep::

    update_samples   a group maps its blocks and merges their statistics into aligned subtrees
    update_features  a share of the feature axis is merged and updated (when the statistics are wide)
    merge            the root merges what is left, updates the globals and decides what comes next

Each reads in the `State` it is given which sweep that is; after the end of the run it does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from factorflow.engine.kept import drop, fetch, put
from factorflow.engine.plan import FEATURE_RUN, Plan, State, current, decide, keeps
from factorflow.engine.tree import Node, Tree
from factorflow.models.contract import Block, Stage, Step, Sweep
from factorflow.posterior.store import write_rows
from factorflow.trees import freeze, join, narrow, restrict

__all__ = ["Group", "Run", "cut_features", "merge", "slice_features", "update_features", "update_samples"]

Nodes = tuple[Node, ...]


@dataclass(frozen=True)
class Group:
    """What a run of blocks gives back; all but the subtrees stays where the blocks are.

    Parameters
    ----------
    local : mapping of int to tuple
        Per block, the local state for each chain, or where it is on disk.
    kept : mapping of (str, int) to tuple
        Per sweep and block, the statistics for each chain: where blocks may sit out, they keep theirs.
    nodes : tuple of tuple of Node, or None
        Subtrees of the statistics for each chain; None when the run is over.
    stage : str
        The stage that ``kept`` is of.
    """

    local: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)
    kept: Mapping[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    nodes: tuple[Nodes, ...] | None = None
    stage: str = ""


@dataclass(frozen=True)
class Run:
    """A fixed run of the features of one axis: the unit in which they are updated."""

    axis: str
    number: int
    index: range


def update_samples(plan: Plan, group: range, before: Group | None, state: State) -> Group:
    """Map the blocks of a group and merge their statistics."""
    before = before or Group()
    now = current(plan, state)
    if now is None:
        return replace(before, nodes=None)
    stage, sweep = now
    steps = [plan.step(chain, state.tick) for chain in range(plan.n_chains)]
    chosen = _minibatch(plan, sweep, state, steps)
    local, kept = dict(before.local), _kept_by(stage, before)
    trees = [Tree() for _ in steps]
    blocks = plan.source.stream([n for n in group if any(n in numbers for numbers in chosen)])
    for number in group:
        stats: tuple[Any, ...] = fetch(kept.get((sweep.name, number), (None,) * plan.n_chains))
        if any(number in numbers for numbers in chosen):
            block = next(blocks)
            old = fetch(local.get(number, (None,) * plan.n_chains))
            results = [
                sweep.map(block, old[c], state.globals_[c], steps[c])
                if number in chosen[c]
                else (old[c], stats[c])
                for c in range(plan.n_chains)
            ]
            new = tuple(freeze(new) for new, _ in results)
            stats = tuple(freeze(value) for _, value in results)
            _write_draws(plan, stage, state, block, new)
            local[number] = put(plan.local_path, f"local-{sweep.name}", number, state.tick, new)
            drop(plan.local_path, f"local-{sweep.name}", number, state.tick)
            if stage.replace:
                kept[sweep.name, number] = put(plan.kept_path, sweep.name, number, state.tick, stats)
        for tree, value in zip(trees, stats, strict=True):
            tree.add(number, value)
    return Group(local, kept, tuple(tree.nodes(hand_over=True) for tree in trees), stage.name)


def merge(
    plan: Plan,
    state: State,
    groups: Sequence[Group | tuple[Nodes, ...] | None],
    shares: Sequence[tuple[dict[Run, tuple[Any, Any]], ...]] = (),
) -> State:
    """Merge the statistics, update the globals, and decide what comes next.

    Parameters
    ----------
    plan, state
        The run, and where it stands.
    groups : sequence
        Statistics of the groups in block order: of each, the whole result (the group beside the root) or
        only its subtrees.
    shares : sequence of tuple of dict
        What the feature tasks return, for each chain; empty: the features are updated here.
    """
    now = current(plan, state)
    if now is None:
        return state
    _, sweep = now
    globals_, infos = [], []
    for chain, before in enumerate(state.globals_):
        step = plan.step(chain, state.tick)
        stats = _total(groups, chain)
        if not sweep.axes():
            after, info = sweep.update(before, stats, step)
        else:
            runs = cut_features(sweep.axes())
            if shares:
                done = {run: result for part in shares for run, result in part[chain].items()}
            else:
                done = {run: _update_run(sweep, run, before, stats, step) for run in runs}
            parts, sums = _joined(runs, done)
            after, info = sweep.assemble(before, narrow(stats), parts, sums, step)
        globals_.append(freeze(after))
        infos.append({name: float(value) for name, value in info.items()})
    return decide(plan, state, tuple(globals_), tuple(infos))


def slice_features(
    plan: Plan, state: State, result: Group, runs: Sequence[Run] | None
) -> tuple[Nodes, ...] | None:
    """Return a group's subtrees cut to some runs of features; without any, their narrow part."""
    if result.nodes is None:
        return None
    now = current(plan, state)
    if now is None or not now[1].axes():
        return result.nodes if runs is None else None
    if runs is None:
        return tuple(tuple(replace(n, value=narrow(n.value)) for n in nodes) for nodes in result.nodes)
    return tuple(
        tuple(
            replace(n, value={run: restrict(n.value, run.axis, _as_slice(run)) for run in runs})
            for n in nodes
        )
        for nodes in result.nodes
    )


def update_features(
    plan: Plan, state: State, runs: Sequence[Run], groups: Sequence[tuple[Nodes, ...] | None]
) -> tuple[dict[Run, tuple[Any, Any]], ...]:
    """Merge the wide statistics of some runs of features and update them, for each chain."""
    now = current(plan, state)
    if now is None or not now[1].axes():
        return ()
    results = []
    for chain, before in enumerate(state.globals_):
        stats = _total(groups, chain)
        step = plan.step(chain, state.tick)
        results.append(
            {run: freeze(now[1].features(run.axis, run.index, before, stats[run], step)) for run in runs}
        )
    return tuple(results)


def cut_features(axes: Mapping[str, int]) -> list[Run]:
    """Return the fixed runs that the feature axes are cut into."""
    return [
        Run(axis, number, range(start, min(start + FEATURE_RUN, length)))
        for axis, length in axes.items()
        for number, start in enumerate(range(0, length, FEATURE_RUN))
    ]


def _as_slice(run: Run) -> slice:
    return slice(run.index.start, run.index.stop)


def _minibatch(
    plan: Plan, sweep: Sweep[Any, Any, Any], state: State, steps: Sequence[Step]
) -> list[range | frozenset[int]]:
    """Return the blocks that take part, for each chain."""
    everything = range(plan.model.meta.n_blocks)
    chosen: list[range | frozenset[int]] = []
    for globals_, step in zip(state.globals_, steps, strict=True):
        numbers = sweep.blocks(len(everything), globals_, step)
        chosen.append(everything if numbers is None else frozenset(int(n) for n in numbers))
    return chosen


def _kept_by(stage: Stage[Any], before: Group) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Return the kept statistics, if they are of this stage: another may have other factors."""
    return dict(before.kept) if stage.replace and before.stage == stage.name else {}


def _write_draws(plan: Plan, stage: Stage[Any], state: State, block: Block, local: tuple[Any, ...]) -> None:
    """Store the sample-sized draws of a block; doing it again writes the same bytes."""
    if plan.draws_path is None or not keeps(stage, state):
        return
    for chain, globals_ in enumerate(state.globals_):
        for name, values in plan.model.draw(block, local[chain], globals_).items():
            write_rows(
                plan.draws_path, _variable(plan, name), block.start, values, chain=chain, draw=state.draws
            )


def _variable(plan: Plan, name: str) -> Any:
    return next(v for v in plan.model.variables() if v.name == name)


def _total(groups: Sequence[Group | tuple[Nodes, ...] | None], chain: int) -> Any:
    tree = Tree()
    for group in groups:
        nodes = group.nodes if isinstance(group, Group) else group
        if nodes is not None:
            tree.feed(nodes[chain])
    return freeze(tree.total())


def _update_run(
    sweep: Sweep[Any, Any, Any], run: Run, globals_: Any, stats: Any, step: Step
) -> tuple[Any, Any]:
    cut = restrict(stats, run.axis, _as_slice(run))
    part: tuple[Any, Any] = freeze(sweep.features(run.axis, run.index, globals_, cut, step))
    return part


def _joined(
    runs: Sequence[Run], done: Mapping[Run, tuple[Any, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Join the parts along each axis, and sum their sums in a fixed tree."""
    parts: dict[str, Any] = {}
    sums: dict[str, Any] = {}
    for axis in dict.fromkeys(run.axis for run in runs):
        mine = [run for run in runs if run.axis == axis]
        parts[axis] = freeze(join([done[run][0] for run in mine]))
        tree = Tree()
        for run in mine:
            tree.add(run.number, done[run][1])
        sums[axis] = freeze(tree.total())
    return parts, sums
