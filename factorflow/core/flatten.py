"""Frozen dataclasses of arrays as a structure of plain values (JSON) and a list of arrays, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np


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
                raise TypeError(f"Dictionary keys must be str, got {key!r}")
        return {"dict": {key: _structure(value, leaves) for key, value in tree.items()}}
    if isinstance(tree, tuple):
        return {"tuple": [_structure(value, leaves) for value in tree]}
    if is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in fields(tree)]
        where = f"{type(tree).__module__}:{type(tree).__qualname__}"
        return {"class": where, "fields": {n: _structure(getattr(tree, n), leaves) for n in names}}
    leaves.append(np.asarray(tree.get() if hasattr(tree, "get") else tree))  # CuPy's only come when told to
    if isinstance(tree, np.generic):
        return {"leaf": "scalar"}
    kind = type(tree).__name__ if isinstance(tree, bool | int | float) else "array"
    return {"leaf": kind}


def unflatten(
    structure: Any, leaves: Sequence[Any], classes: Mapping[str, type] = MappingProxyType({})
) -> Any:
    """Return the tree that `flatten` took apart.

    Parameters
    ----------
    classes : mapping of str to type
        Dataclasses that cannot be imported by their name, as "module:name".

    Raises
    ------
    ValueError
        If a class in it is no dataclass, is no longer there, or is of another package than factorflow and
        those of registered models.
    """
    return _build(structure, iter(leaves), classes)


def _build(structure: Any, leaves: Iterator[Any], classes: Mapping[str, type]) -> Any:
    if "plain" in structure:
        return structure["plain"]
    if "dict" in structure:
        return {key: _build(value, leaves, classes) for key, value in structure["dict"].items()}
    if "tuple" in structure:
        return tuple(_build(value, leaves, classes) for value in structure["tuple"])
    if "class" in structure:
        cls = classes.get(structure["class"]) or _import_dataclass(structure["class"])
        return cls(**{name: _build(value, leaves, classes) for name, value in structure["fields"].items()})
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


def _import_dataclass(where: str) -> Any:
    """Return a dataclass by module and name: no file can ask for more than a model consists of."""
    module, _, path = where.partition(":")
    if module.partition(".")[0] not in _PACKAGES:
        raise ValueError(f"{where} is neither of factorflow nor of the package of a registered model")
    cls: Any = import_module(module)
    for name in path.split("."):
        cls = getattr(cls, name, None)
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise ValueError(f"{where} is no dataclass")
    return cls
