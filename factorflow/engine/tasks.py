"""The tasks of a run: pure functions, the same for every executor.

One round is one sweep::

    hand_out, relay  workers get of the state what their blocks need
    update_samples   a group maps its blocks and merges their statistics into aligned subtrees
    keep             what stays of that where the blocks are, if anything does
    merge_nodes      subtrees of neighbouring groups are merged, in steps, until few are left
    update_features  a share of the feature axis is merged and updated (when the statistics are wide)
    merge            the root merges what is left, updates the globals and decides what comes next
    run_rounds       some short rounds of one group of all blocks

Each reads in the `State` it is given which sweep that is; after the end of the run it does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from factorflow.core.block import Block
from factorflow.core.trees import arrays, find_gathers, freeze, map_gathers, narrow, nbytes, replace, restrict
from factorflow.engine.decide import current, decide, enter_stage, evaluating, keeps
from factorflow.engine.feature_runs import Run, as_slice, cut_features, update_globals
from factorflow.engine.minibatch import part_of
from factorflow.engine.plan import Plan, State
from factorflow.engine.spill import load_spilled, spill
from factorflow.engine.tree import Node, Tree
from factorflow.errors import RunError
from factorflow.kernels.device import on_host
from factorflow.models.contract import Stage, Sweep
from factorflow.posterior.store import fit_draws, write_rows

Nodes = tuple[Node, ...]


@dataclass(frozen=True)
class Group:
    """The result of a group of blocks; all but the subtrees stays on its worker.

    Parameters
    ----------
    local : mapping of int to tuple
        Per block, the local state for each chain, or where it is on disk.
    nodes : tuple of tuple of Node, or None
        Subtrees of the statistics for each chain; None when the run is over.
    """

    local: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)
    nodes: tuple[Nodes, ...] | None = None

    __sizeof__ = nbytes


@dataclass(frozen=True)
class RemoteGroup:
    """The result of a group on another worker than its merge: only its subtrees are sent.

    So the merge waits for no task that takes the one from the other: it would begin when the scheduler has
    heard of the first, and be heard of after that.

    Parameters
    ----------
    nodes : tuple of tuple of Node, or None
        As in `Group`.
    group : Group or None
        The rest of it; None in another process than that which computed it (see `keep`).
    """

    nodes: tuple[Nodes, ...] | None
    group: Group | None = None

    __sizeof__ = nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteGroup, (self.nodes,)


UnkeptGroup = list[Any]
"""Local state of a group that no task keeps yet: what was kept last, the states of the rounds since, and the
`RemoteGroup` of the last of them. A list, in which Dask looks for futures."""

GroupStatistics = Group | RemoteGroup | tuple[Nodes, ...] | None
"""Statistics of a run of blocks as a task returns them; None when the run is over."""


@dataclass(frozen=True)
class ProjectionStatistics:
    """Statistics of a block of new samples, and 1 where its local state still moved."""

    stats: Any
    n_moved: float


def hand_out(plan: Plan, state: State, group: range | None) -> State:
    """Return the state as a group of blocks needs it: of what was gathered, its own and what lies beside.

    Without a group, as all of them do.
    """
    now, state = current(plan, state), enter_stage(plan, state)
    if now is None:
        return replace(state, globals_=())
    slim = state.globals_ if plan.fixed is not None else tuple(now[1].send(g) for g in state.globals_)
    if group is not None:
        slim = tuple(map_gathers(g, lambda gather: gather.beside(group)) for g in slim)
    return replace(state, globals_=slim)


def relay(state: State) -> State:
    """Return the state: from there other workers fetch it, which would else all ask the root."""
    return state


def update_samples(plan: Plan, group: range, before: Group | None, state: State) -> Group:
    """Map the blocks of a group and merge their statistics."""
    before = before or Group()
    now, state = current(plan, state), enter_stage(plan, state)
    if now is None:
        return replace(before, nodes=None)
    stage, sweep = now
    chains = plan.chains(state)
    globals_ = [_globals_at(plan, state, chain) for chain in chains]
    chosen, scale = _part(plan, stage, state, group)
    steps = [plan.step(chain, state, scale) for chain in chains]
    prepared = [sweep.prepare(g) for g in globals_] if chosen else []
    local = dict(before.local)
    trees = [Tree() for _ in steps]
    blocks = plan.source.stream([n for n in group if n in chosen])
    for number in group:
        stats: tuple[Any, ...] = (None,) * plan.n_chains
        if number in chosen:
            block = next(blocks)
            old = load_spilled(local.get(number, (None,) * plan.n_chains), plan.classes)
            results = [sweep.map(block, old[c], prepared[c], steps[c]) for c in chains]
            stats = plan.of_all(state, [freeze(value) for _, value in results])
            if not evaluating(stage, state):
                new = plan.of_all(state, [freeze(new) for new, _ in results])
                if not plan.stateful and any(part is not None for part in new):
                    raise RunError(
                        f"sweep {type(sweep).__name__} returned local state, and none when it was measured. "
                        "A sweep returns local state for all blocks or for none."
                    )
                if plan.fixed is not None:
                    stats = tuple(_mark_changes(sweep, *parts) for parts in zip(old, new, stats, strict=True))
                _write_draws(plan, stage, state, block, new)
                local[number] = spill(
                    plan.local_path, "local", number, _round(plan, state), new, local.get(number)
                )
        for tree, value in zip(trees, stats, strict=False):
            tree.add(number, value)
    return Group(local, tuple(tree.nodes(hand_over=True) for tree in trees))


def update_remotely(
    plan: Plan, group: range, before: Group | UnkeptGroup | None, state: State
) -> RemoteGroup:
    """Do the same for a group whose statistics are merged on another worker."""
    if isinstance(before, list):
        before = keep(plan, group, before)
    new = update_samples(plan, group, before, state)
    return RemoteGroup(new.nodes, replace(new, nodes=None))


def keep(plan: Plan, group: range, unkept: UnkeptGroup) -> Group | None:
    """Return the local state of a group; recompute it if its worker is lost."""
    kept: Group | None
    remote: RemoteGroup
    kept, states, remote = unkept
    if remote.group is not None:
        return remote.group
    for state in states:
        kept = replace(update_samples(plan, group, kept, state), nodes=None)
    return kept


def merge_nodes(statistics: Sequence[GroupStatistics]) -> tuple[Nodes, ...] | None:
    """Merge the subtrees of neighbouring groups, for each chain; None when the run is over."""
    node_lists = [nodes for nodes in map(_nodes_of, statistics) if nodes is not None]
    if not node_lists:
        return None
    trees = [_build_tree(node_lists, chain) for chain in range(len(node_lists[0]))]
    merged: tuple[Nodes, ...] = freeze(tuple(tree.nodes(hand_over=True) for tree in trees))
    return merged


def merge(
    plan: Plan,
    state: State,
    statistics: Sequence[GroupStatistics],
    shares: Sequence[tuple[dict[Run, tuple[Any, Any]], ...]] = (),
    n_threads: int = 1,
    first: bool = True,
) -> State:
    """Merge the statistics, update the globals, and decide how the run continues.

    Parameters
    ----------
    statistics : sequence
        Statistics of runs of blocks, in their order: what `update_samples`, `update_remotely` or
        `merge_nodes` returned, or what was cut from that.
    shares : sequence of tuple of dict
        What the feature tasks return, for each chain; empty: the features are updated here.
    n_threads : int
        Threads that the runs of features are shared among, where they are updated here.
    first : bool
        Whether the round is the first of those submitted together: the records before it were read.
    """
    now, state = current(plan, state), enter_stage(plan, state)
    if first:
        state = replace(state, records=())
    if now is None:
        return state
    stage, sweep = now
    globals_, infos, n_moved = [], [], 0.0
    for chain in plan.chains(state):
        before, step = (_globals_at(plan, state, chain), plan.step(chain, state, _scale(plan, stage, state)))
        stats = _total(statistics, chain)
        if plan.fixed is not None:
            moved = stats or ProjectionStatistics(None, 0.0)
            info: Mapping[str, float] = {}
            n_moved += moved.n_moved
            after = sweep.carry(before, moved.stats, step)
        else:
            done = {run: result for part in shares for run, result in part[chain].items()}
            after, info = update_globals(sweep, before, stats, done, step, n_threads)
        globals_.append(before if evaluating(stage, state) else freeze(after))
        infos.append({name: float(value) for name, value in info.items()})
    after = decide(plan, state, plan.of_all(state, globals_), plan.of_all(state, infos), n_moved)
    if plan.draws_path is not None and plan.may_resize and after.stage != state.stage and not after.draws:
        fit_draws(plan.draws_path, plan.model, plan.n_draws, after.globals_[0])
    return after


def run_rounds(
    plan: Plan, group: range, before: Group | None, state: State, n_rounds: int, n_threads: int
) -> tuple[State, Group | None]:
    """Run several rounds of a single group of all blocks; return the state and the local state."""
    for number in range(n_rounds):
        before = update_samples(plan, group, before, state)
        state = merge(plan, state, [before], n_threads=n_threads, first=number == 0)
        before = replace(before, nodes=None)
    return state, before


def slice_features(
    plan: Plan, state: State, statistics: GroupStatistics, share: tuple[int, int] | None
) -> tuple[Nodes, ...] | None:
    """Return subtrees cut to the runs of features of a share; without one, their narrow part."""
    group_nodes = _nodes_of(statistics)
    if group_nodes is None:
        return None
    runs = _runs_of(plan, state, share)
    if runs is None:
        return group_nodes if share is None else None
    if share is None:
        return tuple(tuple(replace(n, value=narrow(n.value)) for n in nodes) for nodes in group_nodes)

    def cut(value: Any) -> Any:
        return None if value is None else {run: restrict(value, run.axis, as_slice(run)) for run in runs}

    return tuple(tuple(replace(n, value=cut(n.value)) for n in nodes) for nodes in group_nodes)


def update_features(
    plan: Plan, state: State, share: tuple[int, int], statistics: Sequence[tuple[Nodes, ...] | None]
) -> tuple[dict[Run, tuple[Any, Any]], ...]:
    """Merge the wide statistics of a share of the runs of features and update them, for each chain.

    ``share`` is (number, of how many); which runs that are follows from the sweep in hand.
    """
    now, runs = current(plan, state), _runs_of(plan, state, share)
    if now is None or runs is None:
        return tuple({} for _ in range(plan.n_chains))
    (stage, sweep), state = now, enter_stage(plan, state)
    results = []
    for chain in plan.chains(state):
        stats = _total(statistics, chain)
        step = plan.step(chain, state, _scale(plan, stage, state))
        before = state.globals_[chain]
        results.append(
            {
                run: freeze(sweep.features(run.axis, run.index, before, stats and stats[run], step))
                for run in runs
            }
        )
    return plan.of_all(state, results)


def _runs_of(plan: Plan, state: State, share: tuple[int, int] | None) -> list[Run] | None:
    """Return the runs of features of a share of the sweep in hand; None where it updates no features."""
    now = current(plan, state)
    if now is None or not now[1].axes() or plan.fixed is not None:
        return None
    runs = cut_features(now[1].axes())
    return runs if share is None else runs[share[0] :: share[1]]


def _globals_at(plan: Plan, state: State, chain: int) -> Any:
    """Return the globals of a chain; fixed ones as they are, with what the last sweep gathered."""
    now = state.globals_[chain]
    if plan.fixed is None:
        return now
    gathers = iter(find_gathers(now))
    return map_gathers(plan.fixed.globals_(chain, state.iteration), lambda _: next(gathers))


def _takes_all(plan: Plan, stage: Stage[Any], state: State) -> bool:
    one_part = stage.n_parts(plan.model.meta) == 1
    return one_part or evaluating(stage, state)


def _part(plan: Plan, stage: Stage[Any], state: State, group: range) -> tuple[range | frozenset[int], float]:
    """Return the blocks of a group that this sweep visits, and what their sums are to be multiplied by."""
    if _takes_all(plan, stage, state):
        return group, 1.0
    n_parts = stage.n_parts(plan.model.meta)
    return part_of(group, n_parts, state.iteration, plan.seed), float(n_parts)


def _scale(plan: Plan, stage: Stage[Any], state: State) -> float:
    return 1.0 if _takes_all(plan, stage, state) else float(stage.n_parts(plan.model.meta))


def _round(plan: Plan, state: State) -> int:
    """Return a number of the round in hand that no other round of the run has."""
    most = max(len(stage.sweeps) for stage in plan.stages)
    return state.tick * most + state.sweep


def _mark_changes(sweep: Sweep[Any, Any, Any], before: Any, after: Any, stats: Any) -> ProjectionStatistics:
    """Return statistics with whether the local state changed by more than 1e-8 of its scale anywhere."""
    if before is None:
        return ProjectionStatistics(stats, float(after is not None or sweep.neighbours))
    old, new = list(arrays(before)), list(arrays(after))
    still = len(old) == len(new) and all(map(_is_unchanged, old, new))
    return ProjectionStatistics(stats, float(not still))


def _is_unchanged(before: Any, after: Any) -> bool:
    if before.shape != after.shape:
        return False
    before, after = on_host(before), on_host(after)
    return bool(np.abs(before - after).max(initial=0.0) <= 1e-8 * (1.0 + np.abs(before).max(initial=0.0)))


def _write_draws(plan: Plan, stage: Stage[Any], state: State, block: Block, local: tuple[Any, ...]) -> None:
    """Store the sample-sized draws of a block; doing it again writes the same bytes."""
    if plan.draws_path is None or not keeps(stage, state):
        return
    table = {v.name: v for v in plan.model.table if v.draws}
    for chain, state_of_rows in enumerate(local):
        for name, values in plan.model.draw(state_of_rows).items():
            write_rows(plan.draws_path, table[name], block.start, values, (chain, state.draws))


def _nodes_of(statistics: GroupStatistics) -> tuple[Nodes, ...] | None:
    return statistics.nodes if isinstance(statistics, Group | RemoteGroup) else statistics


def _build_tree(node_lists: Sequence[tuple[Nodes, ...]], chain: int) -> Tree:
    tree = Tree()
    for nodes in node_lists:
        tree.feed(nodes[chain])
    return tree


def _total(statistics: Sequence[GroupStatistics], chain: int) -> Any:
    node_lists = [nodes for nodes in map(_nodes_of, statistics) if nodes is not None]
    return freeze(_build_tree(node_lists, chain).total())
