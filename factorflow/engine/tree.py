"""The merge tree: sums that do not depend on who computed them, or in which groups.

Blocks are the leaves of an aligned binary tree: node (level, index) covers the blocks
``index * 2**level ... (index + 1) * 2**level - 1``. A run of blocks returns its maximal aligned subtrees (at
most 2 log2 B of them); feeding the subtrees of adjacent runs to a fresh tree gives the tree that feeding the
blocks would have given, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from factorflow.trees import add, nbytes

__all__ = ["Node", "Tree"]


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
        """Return the maximal aligned subtrees of what was added.

        With ``hand_over`` they leave this process or thread, so no later tree may write into them.
        """
        if not hand_over:
            return tuple(self._nodes)
        return tuple(Node(n.level, n.index, n.value) for n in self._nodes)

    def total(self) -> Any:
        """Return the sum over everything: the subtrees that are left, from the last to the first."""
        if not self._nodes:
            return None
        *rest, node = self._nodes
        while rest:
            left = rest.pop()
            node = _merge(left, node, left.level, left.index)
        return node.value


def _merge(left: Node, right: Node, level: int, index: int) -> Node:
    if left.value is None or right.value is None:
        kept = right if left.value is None else left
        return Node(level, index, kept.value, kept.owned)
    into = "left" if left.owned else "right" if right.owned else None
    return Node(level, index, add(left.value, right.value, into), owned=True)
