"""The merge tree: sums that do not depend on workers or groups.

Blocks are the leaves of an aligned binary tree: node (level, index) covers the blocks
``index * 2**level ... (index + 1) * 2**level - 1``. A run of blocks returns its maximal aligned subtrees (at
most 2 log2 B of them); feeding the subtrees of adjacent runs to a fresh tree gives the tree that feeding the
blocks would have given, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from factorflow.core.trees import add, nbytes

FAN_IN = 4
"""Neighbours whose subtrees one task merges at most, and workers that fetch a large state from one."""

MOST_NODES = 12
"""Nodes that these have together at most, where they are more than two."""


TASK_BYTES = 2 << 20
"""What 10 GbE carries in the time that a task takes of the scheduler (2 ms; `benchmarks/scale_model.py`)."""


@dataclass(frozen=True)
class Node:
    """The sum over an aligned run of ``2**level`` blocks.

    ``value`` is None where no block had anything to add. ``owned``: the arrays were made by the tree, so it
    may write into them.
    """

    level: int
    index: int
    value: Any
    owned: bool = False

    __sizeof__ = nbytes  # for Dask, which counts what is kept and what travels

    @property
    def start(self) -> int:
        """First block that the node covers."""
        return self.index << self.level


class Tree:
    """Accumulates nodes in block order and merges siblings as soon as both are there."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []

    def add(self, number: int, value: Any) -> None:
        """Add what one block contributes (None: it sits out but takes its place)."""
        self.feed([Node(0, number, value)])

    def feed(self, nodes: Iterable[Node]) -> None:
        """Add nodes of a run that follows those already in the tree."""
        for new in nodes:
            node = new
            while self._nodes:
                left = self._nodes[-1]
                if left.level != node.level or left.index + 1 != node.index or left.index % 2:
                    break
                self._nodes.pop()
                node = _merge(left, node, node.level + 1, left.index // 2)
            self._nodes.append(node)

    def nodes(self, *, hand_over: bool = False) -> tuple[Node, ...]:
        """Return the maximal aligned subtrees of the added nodes.

        With ``hand_over`` they leave this process or thread, so no later tree may write into them.
        """
        if not hand_over:
            return tuple(self._nodes)
        return tuple(Node(n.level, n.index, n.value) for n in self._nodes)

    def total(self) -> Any:
        """Return the sum over everything: the subtrees that are left, from the last to the first."""
        if not self._nodes:
            return None
        *others, node = self._nodes
        while others:
            left = others.pop()
            node = _merge(left, node, left.level, left.index)
        return node.value


@dataclass(frozen=True)
class Merge:
    """A task that merges what neighbours send, before the root merges what is left.

    Parameters
    ----------
    run : range
        Positions of those neighbours: of the groups, or of the merges of the step before.
    """

    run: range
    group: int


def merge_steps(groups: Sequence[range]) -> list[list[Merge]]:
    """Return the steps in which neighbouring groups are merged until at most `FAN_IN` are left for the root.

    A run ends where the largest subtree does, so that a merge usually returns one node. Neighbours are merged
    beside the first of them; no worker has two merges, and that of the root, which is beside the first group,
    has none.
    """
    steps: list[list[Merge]] = []
    firsts, blocks = list(range(len(groups))), list(groups)
    while not _can_merge(blocks):
        runs = _runs(blocks)
        if steps:  # the first group of a run has a merge, and the second of the first run of several
            step = [Merge(run, firsts[run[-1] if len(run) == 1 else run[1]] + 1) for run in runs]
        else:
            step = [Merge(run, run[0] or 1) for run in runs]
        firsts = [firsts[run[0]] for run in runs]
        blocks = [range(blocks[run[0]].start, blocks[run[-1]].stop) for run in runs]
        steps.append(step)
    return steps


def relay_parents(n_groups: int, n_bytes: int) -> list[int]:
    """Return of each group but the first the group that it fetches the state from.

    All fetch it from the first, the root's, unless a tree saves more than it costs: the bytes that fewer
    transfers one after another save, against those that the network carries while its tasks are scheduled.
    """
    parents = [(i - 1) // FAN_IN for i in range(1, n_groups)]
    depth, last = 0, n_groups - 1
    while last > 0:
        depth, last = depth + 1, (last - 1) // FAN_IN
    fewer = n_groups - 1 - FAN_IN * depth
    return parents if fewer * n_bytes > len(set(parents)) * TASK_BYTES else [0] * len(parents)


def feature_shares(groups: Sequence[range], n_bytes: int, n_runs: int) -> int:
    """Return the number of shares of the features that statistics are merged in; 0: they are not cut.

    Each share is merged on workers of its own: what arrives at a worker, one set behind the other, is so many
    times less, and each group has a task more for each share.

    Parameters
    ----------
    n_runs : int
        Runs of features that are updated together: shares at most.
    """
    arriving, runs = 0, list(groups)
    for step in merge_steps(groups):
        arriving += max(sum(n_nodes(runs[i]) for i in merge.run) for merge in step) * n_bytes
        runs = [range(runs[merge.run[0]].start, runs[merge.run[-1]].stop) for merge in step]
    arriving += sum(map(n_nodes, runs)) * n_bytes
    tasks = len(groups) * TASK_BYTES  # of a share
    shares = min(n_runs, len(groups), int((arriving / tasks) ** 0.5))  # of least arriving / n + n tasks
    return shares if shares > 1 and arriving / shares + (shares + 1) * tasks < arriving else 0


def _can_merge(blocks: Sequence[range]) -> bool:
    """Return whether one task can merge the subtrees of neighbours: two it can, whatever they are."""
    return len(blocks) <= 2 or (len(blocks) <= FAN_IN and sum(map(n_nodes, blocks)) <= MOST_NODES)


def _runs(blocks: Sequence[range]) -> list[range]:
    """Return runs of neighbours that one task can merge, as they end at the best aligned block."""
    runs, first, n = [], 0, len(blocks)
    while first < n:
        ends = [i for i in range(first + 2, min(first + FAN_IN, n) + 1) if _can_merge(blocks[first:i])]
        best = max(ends, key=lambda i: (i != n - 1, alignment(blocks[i - 1].stop), i), default=n)
        last = n if n in ends else best
        runs.append(range(first, last))
        first = last
    return runs


def n_nodes(blocks: range) -> int:
    """Return the number of maximal aligned subtrees of a run of blocks."""
    n, start = 0, blocks.start
    while start < blocks.stop:
        size = 1 << (blocks.stop - start).bit_length() - 1
        start += min(alignment(start), size) if start else size
        n += 1
    return n


def alignment(number: int) -> int:
    """Return the largest power of two that a number of blocks is a multiple of."""
    return number & -number


def _merge(left: Node, right: Node, level: int, index: int) -> Node:
    if left.value is None or right.value is None:
        value = right if left.value is None else left
        return Node(level, index, value.value, value.owned)
    into = "left" if left.owned else "right" if right.owned else None
    return Node(level, index, add(left.value, right.value, into), owned=True)
