"""The leaves of frozen dataclasses, dictionaries and tuples of arrays: copy, freeze, map, count.

Globals, local state and statistics of models are such trees; what is done to statistics as a whole is in
`factorflow.core.trees`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

__all__ = [
    "Wide",
    "align_arrays",
    "arrays",
    "fields_of",
    "freeze",
    "is_array",
    "is_node",
    "map_children",
    "map_leaves",
    "nbytes",
    "rebuild",
    "replace",
    "wide",
]


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


def fields_of(cls: Any) -> tuple[tuple[str, Wide | None], ...]:
    """Return the names of a dataclass's fields, and how they are marked."""
    if cls not in _FIELDS:
        _FIELDS[cls] = tuple((f.name, f.metadata.get("wide")) for f in fields(cls))
    return _FIELDS[cls]


_FIELDS: dict[Any, tuple[tuple[str, Wide | None], ...]] = {}


_PLAIN = {type(None), float, int, bool, str}


def is_array(x: Any) -> bool:
    """Return whether a value has a shape and a type of numbers."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def rebuild(tree: Any, values: dict[str, Any]) -> Any:
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


def is_node(tree: Any) -> bool:
    """Return whether a value is a dictionary, a tuple or a dataclass, with entries of its own."""
    return isinstance(tree, dict | tuple) or (is_dataclass(tree) and not isinstance(tree, type))


def map_children(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a node with a function applied to each entry, and to those of the others at its place."""
    if isinstance(tree, dict):
        return {key: function(value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(function(*entries) for entries in zip(tree, *others, strict=True))
    nodes, names = (tree, *others), [name for name, _ in fields_of(type(tree))]
    return rebuild(tree, {name: function(*(getattr(node, name) for node in nodes)) for name in names})


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with a function applied to every array and number; None and text stay."""
    if tree is None or isinstance(tree, str):
        return tree
    return map_children(partial(map_leaves, function), tree) if is_node(tree) else function(tree)


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
    for name, _ in fields_of(kind):
        old = getattr(tree, name)
        if type(old) in _PLAIN:
            continue
        new = _freeze_array(old) if type(old) is np.ndarray else freeze(old)
        if new is not old:
            changed[name] = new
    if not changed:
        return tree
    return rebuild(tree, {name: changed.get(name, getattr(tree, name)) for name, _ in fields_of(kind)})


def _freeze_array(array: np.ndarray) -> np.ndarray:
    flags = array.flags
    if not flags.c_contiguous:
        array = np.ascontiguousarray(array)
        array.setflags(write=False)
    elif flags.writeable:
        array.setflags(write=False)
    return array


def arrays(tree: Any) -> Iterator[Any]:
    """Yield the arrays of a tree, in the order of its fields."""
    if is_array(tree):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from arrays(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from arrays(value)
    elif is_dataclass(tree) and not isinstance(tree, type):
        for name, _ in fields_of(type(tree)):
            yield from arrays(getattr(tree, name))


def nbytes(tree: Any) -> int:
    """Return the bytes held by the arrays of a tree."""
    return sum(int(array.nbytes) for array in arrays(tree))
