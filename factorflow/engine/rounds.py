"""A round of a run as tasks of an executor: samples, merges, features, the root."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

from factorflow.engine.executors.local import Executor, Handle
from factorflow.engine.plan import Plan
from factorflow.engine.tasks import (
    UnkeptGroup,
    hand_out,
    keep,
    merge,
    merge_nodes,
    relay,
    run_rounds,
    slice_features,
    update_features,
    update_remotely,
    update_samples,
)
from factorflow.engine.tree import feature_shares, merge_steps, relay_parents
from factorflow.models.stages import Sends


class Rounds:
    """Submits the tasks of rounds."""

    def __init__(self, executor: Executor, groups: Sequence[range], plan: Plan) -> None:
        self.executor, self.groups = executor, groups
        self._parents = relay_parents(len(groups), plan.state_bytes)
        self._steps = merge_steps(groups)
        merging = {merge.group for merge in self._steps[0]} if self._steps else {0}
        self._whole = set(range(len(groups))) if plan.sends_local else merging
        shares = executor.n_feature_tasks
        if shares is None:
            shares = feature_shares(groups, plan.statistics_bytes, plan.n_feature_runs)
        self._n_shares, self._stateful = shares, plan.stateful
        self._keep_every = plan.keep_every

    def submit(
        self, plan: Handle, state: Handle, before: Sequence[Handle], sends: Sends, n_rounds: int
    ) -> tuple[Handle, list[Handle]]:
        """Submit rounds, one behind the other; those of a single group are one task.

        Parameters
        ----------
        plan, state : Handle
            The run, and its state before the rounds.

        Returns
        -------
        state : Handle
        locals_ : list of Handle
            After the rounds; None of each group, where there is none. Of one whose statistics are sent
            perhaps a list (`UnkeptGroup`), which `keep_local` makes a handle of.
        """
        if n_rounds > 1 and len(self.groups) == 1:
            return self._submit_single_group(plan, state, before[0], n_rounds)
        locals_ = list(before)
        for number in range(n_rounds):
            state, locals_ = self._submit_round(plan, state, locals_, sends, first=number == 0)
        return state, locals_

    def keep_local(self, plan: Handle, locals_: Sequence[Handle]) -> list[Handle]:
        """Return a handle of the local state of each group."""
        return [
            self.executor.submit("keep", keep, plan, self.groups[i], local, group=i)
            if isinstance(local, list)
            else local
            for i, local in enumerate(locals_)
        ]

    def _submit_single_group(
        self, plan: Handle, state: Handle, before: Handle, n_rounds: int
    ) -> tuple[Handle, list[Handle]]:
        """Submit rounds of one group of all blocks."""
        submit, n_threads = self.executor.submit, self.executor.n_root_threads
        both = submit("rounds", run_rounds, plan, self.groups[0], before, state, n_rounds, n_threads, group=0)
        state = submit("state", itemgetter(0), both, group=0)
        return state, [submit("keep", itemgetter(1), both, group=0) if self._stateful else None]

    def _submit_round(
        self, plan: Handle, state: Handle, before: Sequence[Handle], sends: Sends, *, first: bool
    ) -> tuple[Handle, list[Handle]]:
        """Submit one round: a task per group, its local state, merges of neighbours, and the root."""
        submit, n_threads = self.executor.submit, self.executor.n_root_threads
        near = self._hand_out(plan, state, sends)
        inputs = [(plan, group, before[i], near[i]) for i, group in enumerate(self.groups)]
        updates = [
            submit("update_samples", update_samples if i in self._whole else update_remotely, *mine, group=i)
            for i, mine in enumerate(inputs)
        ]
        locals_: list[Handle] = [None] * len(self.groups)
        if self._stateful:
            # What each gets of the state is the root's alone: it would have those of all rounds since.
            most = 1 if sends == "each" else self._keep_every
            locals_ = [
                update if i in self._whole else _unkept_group(before[i], near[i], update)
                for i, update in enumerate(updates)
            ]
            if any(isinstance(local, list) and len(local[1]) >= most for local in locals_):
                locals_ = self.keep_local(plan, locals_)
        if not self._n_shares:
            merged, shares = self._merge_neighbours(updates), []
        else:
            merged = self._merge_neighbours(self._cut(plan, state, updates, None))
            shares = [self._update_share(plan, state, updates, f) for f in range(self._n_shares)]
        return submit("merge", merge, plan, state, merged, shares, n_threads, first, group=0), locals_

    def _merge_neighbours(self, statistics: list[Handle], beside: int = 0) -> list[Handle]:
        """Submit the merges before the last one; return what is left for it.

        ``beside``: by how many groups they are done further on.
        """
        for step in self._steps:
            statistics = [
                self.executor.submit(
                    "merge_nodes",
                    merge_nodes,
                    statistics[m.run.start : m.run.stop],
                    group=(m.group + beside) % len(self.groups),
                )
                for m in step
            ]
        return statistics

    def _cut(
        self, plan: Handle, state: Handle, statistics: Sequence[Handle], share: tuple[int, int] | None
    ) -> list[Handle]:
        """Submit the tasks that take a share of the features from the statistics of each group."""
        return [
            self.executor.submit("statistics", slice_features, plan, state, whole, share, group=i)
            for i, whole in enumerate(statistics)
        ]

    def _update_share(self, plan: Handle, state: Handle, statistics: Sequence[Handle], number: int) -> Handle:
        """Submit merges of a share of the features, on workers of its own, and its update."""
        share = (number, self._n_shares)
        beside = number * len(self.groups) // self._n_shares
        cut = self._merge_neighbours(self._cut(plan, state, statistics, share), beside)
        return self.executor.submit("update_features", update_features, plan, state, share, cut, group=beside)

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
        senders = set(self._parents)
        for i, parent in enumerate(self._parents, start=1):
            fetched = near[parent]
            near.append(submit("relay", relay, fetched, group=i) if i in senders else fetched)
        return [state, *near[1:]]


def _unkept_group(before: Handle, state: Handle, update: Handle) -> UnkeptGroup:
    """Return the local state after a round of a group whose statistics are sent."""
    kept, states = before[:2] if isinstance(before, list) else (before, [])
    return [kept, [*states, state], update]
