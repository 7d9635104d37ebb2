"""Frozen dataclasses of arrays, handled leaf by leaf: freeze, add, multiply, restrict, join.

Globals, local state and statistics are frozen dataclasses whose fields are arrays, scalars, None, or
dictionaries, tuples and dataclasses of those. Everything the engine does to them is here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.shape import Block

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


@dataclass(frozen=True)
class Wide:
    """Marks a field of G or S as wide: its leading axis runs over the features of an axis.

    Used as ``field(metadata=wide("rna"))``, or a mapping from axis name to array with ``wide()``.
    """

    axis: str | None


def wide(axis: str | None = None) -> dict[str, Wide]:
    """Return the metadata of a wide field.

    Parameters
    ----------
    axis : str, optional
        Name of the axis, one of `Sweep.axes`; left out, the field maps axis names to arrays or dataclasses.

    Returns
    -------
    dict
    """
    return {"wide": Wide(axis)}


def _fields(cls: Any) -> tuple[tuple[str, Wide | None], ...]:
    """Return the names of a dataclass's fields, and how they are marked."""
    if cls not in _FIELDS:
        _FIELDS[cls] = tuple((f.name, f.metadata.get("wide")) for f in fields(cls))
    return _FIELDS[cls]


_FIELDS: dict[Any, tuple[tuple[str, Wide | None], ...]] = {}


_PLAIN = {type(None), float, int, bool, str}


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _rebuild(tree: Any, values: dict[str, Any]) -> Any:
    """Return another dataclass of the same class, not by way of its ``__init__``.

    The fields need not hold what the class says: None where wide ones were taken out, one axis more where
    blocks are laid side by side.
    """
    new = object.__new__(type(tree))
    for name, value in values.items():
        object.__setattr__(new, name, value)
    return new


if TYPE_CHECKING:
    from dataclasses import replace
else:

    def replace(tree, /, **values):
        """Return a copy of a dataclass with other values of some fields, as `dataclasses.replace` does.

        Not by way of its ``__init__``, which takes a frozen one of many fields several times as long.
        """
        kind = type(tree)
        if kind not in _COPYABLE:
            names = frozenset(f.name for f in fields(kind) if f.init)
            plain = hasattr(tree, "__dict__") and not hasattr(kind, "__post_init__")
            _COPYABLE[kind] = names if plain and len(names) == len(fields(kind)) else frozenset()
        names = _COPYABLE[kind]
        if not values.keys() <= names or len(tree.__dict__) != len(names):
            return dataclasses.replace(tree, **values)  # which raises, where a field is not known
        new = object.__new__(kind)
        new.__dict__.update(tree.__dict__)
        new.__dict__.update(values)
        return new


_COPYABLE: dict[Any, frozenset[str]] = {}
"""Names of the fields of classes of which a copy of the fields is a copy; none of others."""


def _is_node(tree: Any) -> bool:
    return isinstance(tree, dict | tuple) or (is_dataclass(tree) and not isinstance(tree, type))


def _map_children(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a node with a function applied to each entry, and to those of the others at its place."""
    if isinstance(tree, dict):
        return {key: function(value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(function(*entries) for entries in zip(tree, *others, strict=True))
    nodes, names = (tree, *others), [name for name, _ in _fields(type(tree))]
    return _rebuild(tree, {name: function(*(getattr(node, name) for node in nodes)) for name in names})


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with a function applied to every array and number; None and text stay."""
    if tree is None or isinstance(tree, str):
        return tree
    return _map_children(partial(map_leaves, function), tree) if _is_node(tree) else function(tree)


def align_arrays(tree: Any) -> Any:
    """Copy unaligned arrays received from another process.

    A buffer from the network may begin at any byte, and sums over such an array have other bits.
    """
    if isinstance(tree, list):
        return [align_arrays(item) for item in tree]
    if all(map(_is_aligned, arrays(tree))):
        return tree
    return map_leaves(lambda leaf: leaf if _is_aligned(leaf) else _copy_aligned(leaf), tree)


def _is_aligned(leaf: Any) -> bool:
    return not isinstance(leaf, np.ndarray) or leaf.flags.aligned


def _copy_aligned(array: Any) -> Any:
    copy = np.array(array, order="C")
    copy.flags.writeable = array.flags.writeable
    return copy


def map_gathers(tree: Any, change: Callable[[Gather], Gather]) -> Any:
    """Return the tree with every `Gather` in it changed."""
    if isinstance(tree, Gather):
        return change(tree)
    return _map_children(lambda entry: map_gathers(entry, change), tree) if _is_node(tree) else tree


def find_gathers(tree: Any) -> list[Gather]:
    """Return every `Gather` of a tree, in the order of its fields."""
    out: list[Gather] = []
    map_gathers(tree, lambda gather: out.append(gather) or gather)  # type: ignore[func-returns-value]
    return out


def freeze(tree: Any) -> Any:
    """Return the tree with every array C-contiguous and, where NumPy's, read-only.

    ``x.T @ x`` of a strided view has other bits than that of its unpickled copy, and a write into an
    argument would change what a lost task sees when it is computed again.
    """
    kind = type(tree)
    if kind in _PLAIN:
        return tree
    if isinstance(tree, np.ndarray):
        return _freeze_array(tree)
    if kind is tuple or isinstance(tree, tuple):
        items = tuple([freeze(value) for value in tree])
        return tree if all(map(is_, items, tree)) else items
    if isinstance(tree, dict):
        entries = {key: freeze(value) for key, value in tree.items()}
        return tree if all(map(is_, entries.values(), tree.values())) else entries
    if kind not in _FIELDS and (not is_dataclass(tree) or isinstance(tree, type)):
        return tree
    changed = {}
    for name, _ in _fields(kind):
        old = getattr(tree, name)
        if type(old) in _PLAIN:
            continue
        new = _freeze_array(old) if type(old) is np.ndarray else freeze(old)
        if new is not old:
            changed[name] = new
    if not changed:
        return tree
    return _rebuild(tree, {name: changed.get(name, getattr(tree, name)) for name, _ in _fields(kind)})


def _freeze_array(array: np.ndarray) -> np.ndarray:
    flags = array.flags
    if not flags.c_contiguous:
        array = np.ascontiguousarray(array)
        array.setflags(write=False)
    elif flags.writeable:
        array.setflags(write=False)
    return array


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
    if _is_node(left):
        return _map_children(lambda a, b: add(a, b, into), left, right)
    return left + right


def _copy(tree: Any) -> Any:
    return map_leaves(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tree)


def multiply(tree: Any, factor: float) -> Any:
    """Return statistics multiplied by a number, without gathered ones."""
    if isinstance(tree, Gather) or tree is None:
        return tree
    if _is_node(tree):
        return _map_children(lambda entry: multiply(entry, factor), tree)
    return tree * factor


def _join_gathers(left: Gather, right: Gather) -> Gather:
    if not len(left.numbers) or not len(right.numbers):
        return right if not len(left.numbers) else left
    return Gather(np.concatenate([left.numbers, right.numbers]), join([left.values, right.values]))


def _take(tree: Any, index: slice) -> Any:
    """Return rows ``index`` of every array in the tree."""
    if _is_node(tree):
        return _map_children(lambda entry: _take(entry, index), tree)
    return tree[index] if _is_array(tree) else tree


def restrict(tree: Any, axis: str, index: slice) -> Any:
    """Return statistics whose wide fields of ``axis`` hold rows ``index`` only, and no other wide fields."""
    if tree is None:
        return None

    def pick(value: Any, mark: Wide | None) -> Any:
        if mark is None or value is None:
            return value
        if mark.axis is not None:
            return _take(value, index) if mark.axis == axis else None
        return {axis: _take(value[axis], index)} if axis in value else {}

    values = {name: pick(getattr(tree, name), mark) for name, mark in _fields(type(tree))}
    return freeze(_rebuild(tree, values))


def narrow(tree: Any) -> Any:
    """Return statistics without their wide fields (None)."""
    if tree is None:
        return None
    return _rebuild(
        tree, {name: None if mark is not None else getattr(tree, name) for name, mark in _fields(type(tree))}
    )


def join(parts: Sequence[Any]) -> Any:
    """Return parts of consecutive features joined along the leading axis of every array."""
    first = parts[0]
    if first is None or len(parts) == 1:
        return first
    if _is_node(first):
        return _map_children(lambda *entries: join(entries), *parts)
    return np.concatenate(parts, axis=0)


def arrays(tree: Any) -> Iterator[Any]:
    """Yield the arrays of a tree, in the order of its fields."""
    if _is_array(tree):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from arrays(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from arrays(value)
    elif is_dataclass(tree) and not isinstance(tree, type):
        for name, _ in _fields(type(tree)):
            yield from arrays(getattr(tree, name))


def nbytes(tree: Any) -> int:
    """Return the bytes held by the arrays of a tree."""
    return sum(int(array.nbytes) for array in arrays(tree))
