"""Statistics as trees of arrays: add, gather, multiply, restrict, join.

Globals, local state and statistics are frozen dataclasses whose fields are arrays, scalars, None, or
dictionaries, tuples and dataclasses of those (`factorflow.core.leaves`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from factorflow.core.block import Block
from factorflow.core.leaves import (
    Wide,
    align_arrays,
    arrays,
    fields_of,
    freeze,
    is_array,
    is_node,
    map_children,
    map_leaves,
    nbytes,
    rebuild,
    replace,
    wide,
)

T = TypeVar("T")

__all__ = [
    "Gather",
    "Wide",
    "add",
    "align_arrays",
    "arrays",
    "find_gathers",
    "freeze",
    "join",
    "map_gathers",
    "map_leaves",
    "narrow",
    "nbytes",
    "replace",
    "take",
    "restrict",
    "multiply",
    "wide",
]


@dataclass(frozen=True)
class Gather:
    """A statistic that is laid side by side in block order instead of added.

    For edges between neighbouring blocks of a sequence, and for prefix scans over block summaries:
    `Sweep.carry` puts it (or what a scan makes of it) into the globals, where the next sweep reads what
    belongs to its block.

    Parameters
    ----------
    numbers : (M,) int array
        Blocks that contributed, in ascending order.
    values : tree of (M, ...) arrays
        What each of them did.
    """

    numbers: Any
    values: Any

    @classmethod
    def of(cls, block: Block, value: Any) -> Gather:
        """Return the contribution of one block.

        Parameters
        ----------
        block : Block
            The block.

        value : tree of arrays and numbers
            What it contributes.

        Returns
        -------
        Gather
        """
        return cls(np.array([block.number]), map_leaves(lambda leaf: np.asarray(leaf)[None], value))

    @classmethod
    def empty(cls) -> Gather:
        """Return a statistic that no block has contributed to.

        Returns
        -------
        Gather
        """
        return cls(np.empty(0, np.int64), None)

    def own(self, block: Block) -> Any:
        """Return the values of a block.

        Parameters
        ----------
        block : Block
            The block.

        Returns
        -------
        tree of arrays, or None
            None where it contributed nothing.
        """
        return self._at(block.number)

    def before(self, block: Block) -> Any:
        """Return the values of the previous block.

        Parameters
        ----------
        block : Block
            The block.

        Returns
        -------
        tree of arrays, or None
            None at the first one.
        """
        return self._at(block.number - 1)

    def after(self, block: Block) -> Any:
        """Return the values of the next block.

        Parameters
        ----------
        block : Block
            The block.

        Returns
        -------
        tree of arrays, or None
            None at the last one.
        """
        return self._at(block.number + 1)

    def _at(self, number: int) -> Any:
        where = int(np.searchsorted(self.numbers, number))
        if where == len(self.numbers) or self.numbers[where] != number:
            return None
        return map_leaves(lambda leaf: leaf[where], self.values)

    def beside(self, blocks: range) -> Gather:
        """Return the values of a run of blocks and of its two neighbours.

        Parameters
        ----------
        blocks : range
            Numbers of the blocks.

        Returns
        -------
        Gather
        """
        low, high = np.searchsorted(self.numbers, [blocks.start - 1, blocks.stop + 1])
        if high - low == len(self.numbers):
            return self
        part = slice(int(low), int(high))
        return Gather(self.numbers[part].copy(), map_leaves(lambda leaf: leaf[part].copy(), self.values))


def map_gathers(tree: Any, change: Callable[[Gather], Gather]) -> Any:
    """Return the tree with every `Gather` in it changed."""
    if isinstance(tree, Gather):
        return change(tree)
    return map_children(lambda entry: map_gathers(entry, change), tree) if is_node(tree) else tree


def find_gathers(tree: Any) -> list[Gather]:
    """Return every `Gather` of a tree, in the order of its fields."""
    out: list[Gather] = []
    map_gathers(tree, lambda gather: out.append(gather) or gather)  # type: ignore[func-returns-value]
    return out


def add(left: Any, right: Any, into: str | None = None) -> Any:
    """Return the sum of two sets of statistics, leaf by leaf.

    None is the neutral element; a `Gather` is laid side by side.

    Parameters
    ----------
    left, right : statistics
        Of blocks of which the left ones come first.
    into : {None, "left", "right"}
        Write sums into the arrays of that operand, which the caller owns. The bits do not depend on it.

    Returns
    -------
    statistics
        Whose arrays are the caller's: where only one operand has something, it is copied, unless owned.
    """
    if left is None or right is None:
        operand, side = (right, "right") if left is None else (left, "left")
        return operand if side == into else _copy(operand)
    if isinstance(left, Gather):
        return _join_gathers(left, right)
    if isinstance(left, np.ndarray) and left.ndim:
        out = {"left": left, "right": right}.get(into or "")
        return np.add(left, right, out=out)
    if isinstance(left, dict) and left.keys() != right.keys():
        raise ValueError(f"statistics of two blocks differ in their keys: {set(left) ^ set(right)}")
    if is_node(left):
        return map_children(lambda a, b: add(a, b, into), left, right)
    return left + right


def _copy(tree: Any) -> Any:
    return map_leaves(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tree)


def multiply(tree: Any, factor: float) -> Any:
    """Return statistics multiplied by a number, without gathered ones."""
    if isinstance(tree, Gather) or tree is None:
        return tree
    if is_node(tree):
        return map_children(lambda entry: multiply(entry, factor), tree)
    return tree * factor


def _join_gathers(left: Gather, right: Gather) -> Gather:
    if not len(left.numbers) or not len(right.numbers):
        return right if not len(left.numbers) else left
    return Gather(np.concatenate([left.numbers, right.numbers]), join([left.values, right.values]))


def take(tree: T, index: Any) -> T:
    """Return rows ``index`` of every array in the tree."""
    return map_leaves(lambda leaf: leaf[index] if is_array(leaf) else leaf, tree)  # type: ignore[no-any-return]


def restrict(tree: Any, axis: str, index: slice) -> Any:
    """Return statistics whose wide fields of ``axis`` hold rows ``index`` only, and no other wide fields."""
    if tree is None:
        return None

    def pick(value: Any, mark: Wide | None) -> Any:
        if mark is None or value is None:
            return value
        if mark.axis is not None:
            return take(value, index) if mark.axis == axis else None
        return {axis: take(value[axis], index)} if axis in value else {}

    values = {name: pick(getattr(tree, name), mark) for name, mark in fields_of(type(tree))}
    return freeze(rebuild(tree, values))


def narrow(tree: Any) -> Any:
    """Return statistics without their wide fields (None)."""
    if tree is None:
        return None
    marks = fields_of(type(tree))
    return rebuild(tree, {name: getattr(tree, name) if mark is None else None for name, mark in marks})


def join(parts: Sequence[Any]) -> Any:
    """Return parts of consecutive features joined along the leading axis of every array."""
    first = parts[0]
    if first is None or len(parts) == 1:
        return first
    if is_node(first):
        return map_children(lambda *entries: join(entries), *parts)
    return np.concatenate(parts, axis=0)
