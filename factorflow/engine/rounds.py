"""A round of a run as tasks of an executor: samples, merges, features, the root."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from factorflow.engine.executors.local import Executor, Handle
from factorflow.engine.tasks import (
    hand_out,
    keep,
    merge,
    merge_nodes,
    relay,
    slice_features,
    update_features,
    update_remotely,
    update_samples,
)
from factorflow.engine.tree import merge_steps, relay_parents
from factorflow.models.stages import Sends


class Rounds:
    """Submits the tasks of rounds.

    Parameters
    ----------
    executor : Executor
        Where they run.
    groups : sequence of range
        The blocks of each group.
    state_bytes : int
        Size of the state.
    """

    def __init__(self, executor: Executor, groups: Sequence[range], state_bytes: int) -> None:
        self.executor, self.groups = executor, groups
        self._parents = relay_parents(len(groups), state_bytes)
        self._steps = merge_steps(groups)
        self._beside = {merge.group for merge in self._steps[0]} if self._steps else {0}

    def submit(
        self, plan: Handle, state: Handle, before: Sequence[Handle], *, sends: Sends, stateful: bool
    ) -> tuple[Handle, list[Handle]]:
        """Submit one round: a task per group, its local state, merges of neighbours, and the root.

        Parameters
        ----------
        plan, state : Handle
            The run, and its state before the round.
        before : sequence of Handle
            Local state of the groups.
        sends : {"whole", "alike", "each"}
            What the groups get of the state.
        stateful : bool
            Whether there is local state.

        Returns
        -------
        state : Handle
        locals_ : list of Handle
            After the round; None of each group, where there is none.
        """
        submit, n_threads = self.executor.submit, self.executor.n_root_threads
        near = self._hand_out(plan, state, sends)
        inputs = [(plan, group, before[i], near[i]) for i, group in enumerate(self.groups)]
        updates = [
            submit("update_samples", update_samples if i in self._beside else update_remotely, *mine, group=i)
            for i, mine in enumerate(inputs)
        ]
        locals_: list[Handle] = [None] * len(self.groups)
        if stateful:
            locals_ = [
                update if i in self._beside else submit("keep", keep, *mine, update, group=i)
                for i, (mine, update) in enumerate(zip(inputs, updates, strict=True))
            ]
        merged, places = self._merge_neighbours(updates)
        shares = self._share_features(plan, state, merged, places) if self.executor.n_feature_tasks else []
        if shares:
            merged = [
                submit("statistics", slice_features, plan, state, part, None, group=place)
                for part, place in zip(merged, places, strict=True)
            ]
        return submit("merge", merge, plan, state, merged, shares, n_threads, group=0), locals_

    def _merge_neighbours(self, statistics: list[Handle]) -> tuple[list[Handle], list[int]]:
        """Submit the merges before the root's; return what is left for it, and the group where each is."""
        places = list(range(len(statistics)))
        for step in self._steps:
            statistics = [
                self.executor.submit(
                    "merge_nodes", merge_nodes, statistics[m.run.start : m.run.stop], group=m.group
                )
                for m in step
            ]
            places = [m.group for m in step]
        return statistics, places

    def _share_features(
        self, plan: Handle, state: Handle, statistics: Sequence[Handle], places: Sequence[int]
    ) -> list[Handle]:
        """Submit the feature tasks: each merges and updates some runs of features."""
        submit = self.executor.submit
        handles = []
        for f in range(self.executor.n_feature_tasks):
            share = (f, self.executor.n_feature_tasks)
            cut = [
                submit("statistics", slice_features, plan, state, part, share, group=place)
                for part, place in zip(statistics, places, strict=True)
            ]
            handles.append(submit("update_features", update_features, plan, state, share, cut, group=f))
        return handles

    def _hand_out(self, plan: Handle, state: Handle, sends: Sends) -> list[Handle]:
        """Return the state as each group needs it; the one beside the root reads it where it is.

        Tasks that others wait for are done before the updates of the groups there.
        """
        submit = partial(self.executor.submit, urgent=True)
        if sends == "each":
            others = [submit("hand_out", hand_out, plan, state, group, group=0) for group in self.groups[1:]]
            return [state, *others]
        near = [state]
        if sends == "alike" and len(self.groups) > 1:
            near = [submit("hand_out", hand_out, plan, state, None, group=0)]
        for i, parent in enumerate(self._parents, start=1):
            fetched = near[parent]
            near.append(submit("relay", relay, fetched, group=i) if i in self._parents else fetched)
        return [state, *near[1:]]
