"""Frozen dataclasses of arrays, handled leaf by leaf: freeze, add, cut, join, take apart.

Globals, local state and statistics are frozen dataclasses whose fields are arrays, scalars, None, or
dictionaries, tuples and dataclasses of those. Everything the engine does to them is here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.shape import Block

__all__ = [
    "Gather",
    "Wide",
    "add",
    "allow_package",
    "arrays",
    "flatten",
    "freeze",
    "gathers",
    "join",
    "mapped",
    "narrow",
    "nbytes",
    "received",
    "replace",
    "restrict",
    "times",
    "unflatten",
    "wide",
    "with_gathers",
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
        """Return the contribution of one block: a tree of arrays and numbers."""
        return cls(np.array([block.number]), mapped(lambda leaf: np.asarray(leaf)[None], value))

    @classmethod
    def empty(cls) -> Gather:
        """Return a statistic that no block has contributed to."""
        return cls(np.empty(0, np.int64), None)

    def own(self, block: Block) -> Any:
        """Return what belongs to a block; None where it gave nothing."""
        return self._at(block.number)

    def before(self, block: Block) -> Any:
        """Return what belongs to the block before; None at the first one."""
        return self._at(block.number - 1)

    def after(self, block: Block) -> Any:
        """Return what belongs to the block behind; None at the last one."""
        return self._at(block.number + 1)

    def _at(self, number: int) -> Any:
        where = int(np.searchsorted(self.numbers, number))
        if where == len(self.numbers) or self.numbers[where] != number:
            return None
        return mapped(lambda leaf: leaf[where], self.values)

    def beside(self, blocks: range) -> Gather:
        """Return what a run of blocks may read: their own values and those of the two blocks beside them."""
        low, high = np.searchsorted(self.numbers, [blocks.start - 1, blocks.stop + 1])
        if high - low == len(self.numbers):
            return self
        part = slice(int(low), int(high))
        return Gather(self.numbers[part].copy(), mapped(lambda leaf: leaf[part].copy(), self.values))


@dataclass(frozen=True)
class Wide:
    """Marks a field of G or S as wide: its leading axis runs over the features of an axis.

    Used as ``field(metadata=wide("rna"))``, or a mapping from axis name to array with ``wide()``.
    """

    axis: str | None


def wide(axis: str | None = None) -> dict[str, Wide]:
    """Return the metadata of a wide field; unnamed, it maps axis names to arrays or dataclasses."""
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
        if kind not in _COPIED:
            names = frozenset(f.name for f in fields(kind) if f.init)
            plain = hasattr(tree, "__dict__") and not hasattr(kind, "__post_init__")
            _COPIED[kind] = names if plain and len(names) == len(fields(kind)) else frozenset()
        names = _COPIED[kind]
        if not values.keys() <= names or len(tree.__dict__) != len(names):
            return dataclasses.replace(tree, **values)  # which raises, where a field is not known
        new = object.__new__(kind)
        new.__dict__.update(tree.__dict__)
        new.__dict__.update(values)
        return new


_COPIED: dict[Any, frozenset[str]] = {}
"""Names of the fields of classes of which a copy of the fields is a copy; none of others."""


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with a function applied to every array and number; None and text stay."""
    if tree is None or isinstance(tree, str):
        return tree
    if isinstance(tree, dict):
        return {key: mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(mapped(function, value) for value in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return _rebuild(
            tree, {name: mapped(function, getattr(tree, name)) for name, _ in _fields(type(tree))}
        )
    return function(tree)


def received(tree: Any) -> Any:
    """Return what another process sent with every array where NumPy would have put it.

    A buffer from the network may begin at any byte, and sums over such an array have other bits.
    """
    if isinstance(tree, list):
        return [received(item) for item in tree]
    if all(map(_is_aligned, arrays(tree))):
        return tree
    return mapped(lambda leaf: leaf if _is_aligned(leaf) else _moved(leaf), tree)


def _is_aligned(leaf: Any) -> bool:
    return not isinstance(leaf, np.ndarray) or leaf.flags.aligned


def _moved(array: Any) -> Any:
    moved = np.array(array, order="C")
    moved.flags.writeable = array.flags.writeable
    return moved


def with_gathers(tree: Any, change: Callable[[Gather], Gather]) -> Any:
    """Return the tree with every `Gather` in it changed."""
    if isinstance(tree, Gather):
        return change(tree)
    if isinstance(tree, dict):
        return {key: with_gathers(value, change) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(with_gathers(value, change) for value in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        names = [name for name, _ in _fields(type(tree))]
        return _rebuild(tree, {name: with_gathers(getattr(tree, name), change) for name in names})
    return tree


def gathers(tree: Any) -> list[Gather]:
    """Return every `Gather` of a tree, in the order of its fields."""
    found: list[Gather] = []
    with_gathers(tree, lambda gather: found.append(gather) or gather)  # type: ignore[func-returns-value]
    return found


def freeze(tree: Any) -> Any:
    """Return the tree with every array C-contiguous and, where NumPy's, read-only.

    ``x.T @ x`` of a strided view has other bits than that of its unpickled copy, and a write into an
    argument would change what a lost task sees when it is computed again.
    """
    kind = type(tree)
    if kind in _PLAIN:
        return tree
    if isinstance(tree, np.ndarray):
        return _frozen(tree)
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
        new = _frozen(old) if type(old) is np.ndarray else freeze(old)
        if new is not old:
            changed[name] = new
    if not changed:
        return tree
    return _rebuild(tree, {name: changed.get(name, getattr(tree, name)) for name, _ in _fields(kind)})


def _frozen(array: np.ndarray) -> np.ndarray:
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
        kept, side = (right, "right") if left is None else (left, "left")
        return kept if side == into else _copied(kept)
    if isinstance(left, Gather):
        return _beside(left, right)
    if isinstance(left, np.ndarray) and left.ndim:
        out = {"left": left, "right": right}.get(into or "")
        return np.add(left, right, out=out)
    if isinstance(left, dict):
        if left.keys() != right.keys():
            raise ValueError(f"statistics of two blocks differ in their keys: {set(left) ^ set(right)}")
        return {key: add(value, right[key], into) for key, value in left.items()}
    if isinstance(left, tuple):
        return tuple(add(a, b, into) for a, b in zip(left, right, strict=True))
    if is_dataclass(left):
        names = _fields(type(left))
        return _rebuild(
            left, {name: add(getattr(left, name), getattr(right, name), into) for name, _ in names}
        )
    return left + right


def _copied(tree: Any) -> Any:
    return mapped(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tree)


def times(tree: Any, factor: float) -> Any:
    """Return statistics multiplied by a number; what was gathered stays."""
    if isinstance(tree, Gather) or tree is None:
        return tree
    if isinstance(tree, dict):
        return {key: times(value, factor) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(times(value, factor) for value in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return _rebuild(tree, {n: times(getattr(tree, n), factor) for n, _ in _fields(type(tree))})
    return tree * factor


def _beside(left: Gather, right: Gather) -> Gather:
    if not len(left.numbers) or not len(right.numbers):
        return right if not len(left.numbers) else left
    return Gather(np.concatenate([left.numbers, right.numbers]), join([left.values, right.values]))


def _take(tree: Any, index: slice) -> Any:
    """Return rows ``index`` of every array in the tree."""
    if tree is None or not (_is_array(tree) or isinstance(tree, (dict, tuple)) or is_dataclass(tree)):
        return tree
    if isinstance(tree, dict):
        return {key: _take(value, index) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_take(value, index) for value in tree)
    if is_dataclass(tree):
        return _rebuild(tree, {name: _take(getattr(tree, name), index) for name, _ in _fields(type(tree))})
    return tree[index]


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
    if isinstance(first, dict):
        return {key: join([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(join(column) for column in zip(*parts, strict=True))
    if is_dataclass(first):
        return _rebuild(first, {n: join([getattr(p, n) for p in parts]) for n, _ in _fields(type(first))})
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


def flatten(tree: Any) -> tuple[Any, list[Any]]:
    """Return the structure of a tree as plain values (JSON), and its arrays and numbers in order.

    `unflatten` puts them together again.
    """
    leaves: list[Any] = []
    return _structure(tree, leaves), leaves


def _structure(tree: Any, leaves: list[Any]) -> Any:
    if tree is None or isinstance(tree, str):
        return {"plain": tree}
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, str):
                raise TypeError(f"{key!r} is no name, of an entry of a dictionary")
        return {"dict": {key: _structure(value, leaves) for key, value in tree.items()}}
    if isinstance(tree, tuple):
        return {"tuple": [_structure(value, leaves) for value in tree]}
    if is_dataclass(tree) and not isinstance(tree, type):
        names = [name for name, _ in _fields(type(tree))]
        where = f"{type(tree).__module__}:{type(tree).__qualname__}"
        return {"class": where, "fields": {n: _structure(getattr(tree, n), leaves) for n in names}}
    leaves.append(np.asarray(tree.get() if hasattr(tree, "get") else tree))  # CuPy's only come when told to
    if isinstance(tree, np.generic):
        return {"leaf": "scalar"}
    kind = type(tree).__name__ if isinstance(tree, bool | int | float) and not _is_array(tree) else "array"
    return {"leaf": kind}


def unflatten(
    structure: Any, leaves: Sequence[Any], classes: Mapping[str, type] = MappingProxyType({})
) -> Any:
    """Return the tree that `flatten` took apart.

    Parameters
    ----------
    structure, leaves
        What `flatten` returned.
    classes : mapping of str to type
        Dataclasses that cannot be imported by their name, as "module:name".

    Raises
    ------
    ValueError
        If a class in it is no dataclass, is no longer there, or is of another package than factorflow and
        those of registered models.
    """
    return _rebuilt(structure, iter(leaves), classes)


def _rebuilt(structure: Any, leaves: Iterator[Any], classes: Mapping[str, type]) -> Any:
    if "plain" in structure:
        return structure["plain"]
    if "dict" in structure:
        return {key: _rebuilt(value, leaves, classes) for key, value in structure["dict"].items()}
    if "tuple" in structure:
        return tuple(_rebuilt(value, leaves, classes) for value in structure["tuple"])
    if "class" in structure:
        cls = classes.get(structure["class"]) or _dataclass_at(structure["class"])
        return cls(**{name: _rebuilt(value, leaves, classes) for name, value in structure["fields"].items()})
    leaf = next(leaves)
    if structure["leaf"] == "scalar":
        return np.asarray(leaf)[()]
    convert = {"bool": bool, "int": int, "float": float}.get(structure["leaf"], np.asarray)
    return convert(leaf)


_PACKAGES = {__name__.partition(".")[0]}
"""Packages whose dataclasses a file can ask for: this one, and those of registered models."""


def allow_package(module: str) -> None:
    """Let files name dataclasses of the package that a module belongs to."""
    _PACKAGES.add(module.partition(".")[0])


def _dataclass_at(where: str) -> Any:
    """Return a dataclass by module and name: no file can ask for more than a model consists of."""
    module, _, path = where.partition(":")
    if module.partition(".")[0] not in _PACKAGES:
        raise ValueError(f"{where} is neither of factorflow nor of the package of a registered model")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise ValueError(f"{where} is no dataclass")
    return found
