"""The globals of a run, stored beside its record, so that new samples can be projected.

They are stored leaf by leaf (`factorflow.core.flatten`): group ``globals`` of a posterior holds an array
for each large leaf, one with the bytes of all small ones and, in its attributes, the structure they
belong to. Of a sampler some draws are stored, evenly spread over those of the record, with leading
(chain, set).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.core.flatten import flatten, unflatten
from factorflow.core.trees import freeze
from factorflow.errors import InputError
from factorflow.posterior.chunks import new_array, write_part
from factorflow.storage.location import is_remote
from factorflow.storage.remote import map_concurrently

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

GROUP = "globals"

MOST_SETS = 100
"""Sets of globals stored of a sampler, over all chains: a projection averages over them."""


PACKED = "small_leaves"
"""The array of the small leaves of a set, one behind the other: there are dozens, each a file to write."""

SMALL_LEAF, SMALL_FILE = 1 << 14, 1 << 19
"""Bytes of a leaf that is packed, and of a file that several sets share.

A file takes a millisecond to be written, synced and sealed; whoever reads a set reads what shares its files.
"""

OTHER = "a set of globals has a leaf of another type or shape than the set before"


def sets_every(n_draws: int, n_chains: int) -> int:
    """Return every how many draws of a chain the globals are stored."""
    return max(1, math.ceil(n_draws * n_chains / MOST_SETS))


def sets_after(n_draws: int, planned: int, n_chains: int) -> int:
    """Return the sets of globals that are stored of a chain once some of its planned draws are made."""
    return -(-n_draws // sets_every(planned, n_chains))


def leaf_name(number: int) -> str:
    """Return the name of the array that holds a large leaf."""
    return f"leaf_{number:04d}"


def globals_node(chains: Sequence[Sequence[Any]]) -> xr.DataTree:
    """Return the group of some sets of globals for each chain."""
    import xarray as xr

    sets = _Sets.of(chains)
    variables = {name: xr.Variable(_dims(name, values.ndim), values) for name, values in sets.arrays()}
    return xr.DataTree(xr.Dataset(variables, attrs={"structure": sets.structure}))


def write_globals(
    path: str | os.PathLike[str], first: int, n_sets: int, chains: Sequence[Sequence[Any]]
) -> None:
    """Write consecutive sets of globals of every chain, making the arrays for ``n_sets`` of them at once.

    One writer at a time.
    """
    import zarr

    from factorflow.storage.verified_store import DurableStore

    sets = _Sets.of(chains)
    group = zarr.open_group(
        DurableStore(path), mode="a", zarr_format=3, use_consolidated=False
    ).require_group(GROUP)
    structure = group.attrs.get("structure")
    if structure is None:
        group.attrs["structure"] = sets.structure
    elif json.loads(str(structure))[PACKED] != json.loads(sets.structure)[PACKED]:
        raise TypeError(OTHER)
    for name, values in sets.arrays():
        where = os.path.join(path, GROUP, name)
        leaf = values.shape[2:]
        if not os.path.exists(os.path.join(where, "zarr.json")):
            size = values.dtype.itemsize * math.prod(leaf)
            chunks = (*_grouped_sets(len(chains), n_sets, size), *(max(1, n) for n in leaf))
            sizes = (len(chains), n_sets, *leaf)
            new_array(group, name, _dims(name, len(sizes)), sizes, chunks, values.dtype)
        write_part(where, (0, first), values, durable=True)


@dataclass(frozen=True)
class _Sets:
    """Sets of globals taken apart.

    Parameters
    ----------
    leaves : list of list of list of array
        Of each chain and set.
    small : tuple of (int, str, list of int)
        Number, type and shape of the leaves that are packed.
    """

    tree: Any
    leaves: list[list[list[NDArray[Any]]]]
    small: tuple[tuple[int, str, list[int]], ...]

    @classmethod
    def of(cls, chains: Sequence[Sequence[Any]]) -> _Sets:
        """Split sets into leaves."""
        parts = [[flatten(globals_) for globals_ in sets] for sets in chains]
        tree, first = parts[0][0]
        small = [(i, x.dtype.str, list(x.shape)) for i, x in enumerate(first) if x.nbytes <= SMALL_LEAF]
        return cls(tree, [[leaves for _, leaves in sets] for sets in parts], tuple(small))

    @property
    def structure(self) -> str:
        """Their structure, as JSON."""
        return json.dumps({"tree": self.tree, PACKED: self.small})

    def arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the arrays that hold them, with leading (chain, set), one after the other."""
        packed = {i for i, _, _ in self.small}
        for i in range(len(self.leaves[0][0])):
            if i not in packed:
                yield leaf_name(i), self._stack(itemgetter(i))
        if packed:
            yield PACKED, self._stack(self._pack)

    def _stack(self, value: Callable[[list[NDArray[Any]]], NDArray[Any]]) -> NDArray[Any]:
        return np.stack([np.stack([value(leaves) for leaves in sets]) for sets in self.leaves])

    def _pack(self, leaves: list[NDArray[Any]]) -> NDArray[np.uint8]:
        for i, dtype, shape in self.small:
            if (leaves[i].dtype.str, list(leaves[i].shape)) != (dtype, shape):
                raise TypeError(f"{OTHER}: {leaves[i].dtype}, {leaves[i].shape}, not {dtype}, {shape}")
        return np.frombuffer(b"".join(leaves[i].tobytes() for i, _, _ in self.small), "u1")


def _unpack(values: NDArray[np.uint8], small: Sequence[tuple[int, str, Sequence[int]]]) -> dict[int, Any]:
    """Return the leaves that the bytes of a set are, by number."""
    arrays, first = {}, 0
    for number, dtype, shape in small:
        last = first + np.dtype(dtype).itemsize * math.prod(shape)
        arrays[number] = values[first:last].view(dtype).reshape(shape).copy()  # aligned, as it was
        first = last
    return arrays


def _grouped_sets(n_chains: int, n_sets: int, size: int) -> tuple[int, int]:
    """Return the chains and sets of a leaf of so many bytes that are in one file."""
    of_all, of_one = (SMALL_FILE // max(1, chains * size) for chains in (n_chains, 1))
    return (n_chains, min(n_sets, of_all)) if of_all > 1 else (1, max(1, min(n_sets, of_one)))


def _dims(name: str, ndim: int) -> list[str]:
    return ["chain", "set", *(f"{name}_{axis}" for axis in range(ndim - 2))]


@dataclass(frozen=True)
class StoredGlobals:
    """Sets of globals of a posterior: in a store, or at hand.

    Parameters
    ----------
    at_hand : mapping of str to (C, S, ...) array, or None
        The arrays of the group, where there is no store.
    structure : str
        What they belong to, as JSON, and which leaves are packed.
    """

    path: str | None
    at_hand: dict[str, Any] | None
    structure: str

    @classmethod
    def of(cls, tree: xr.DataTree, path: str | None) -> StoredGlobals:
        """Return the globals of a posterior."""
        if GROUP not in tree.children:
            raise InputError(
                "posterior",
                path or "in memory",
                "a posterior with stored globals",
                "It is a projection, or was written by an older version: use that of the fit itself.",
            )
        group = tree[GROUP].to_dataset()
        at_hand = None if path else {str(n): v.to_numpy() for n, v in group.data_vars.items()}
        return cls(path, at_hand, str(group.attrs["structure"]))

    def read(self, chain: int, number: int) -> Any:
        """Return one set of one chain."""
        structure = json.loads(self.structure)
        tree, small = structure.get("tree", structure), structure.get(PACKED, [])  # older: nothing packed
        apart = sorted(set(range(_count(tree))) - {i for i, _, _ in small})
        names = [*map(leaf_name, apart), *[PACKED] * bool(small)]
        if self.at_hand is not None:
            values = [self.at_hand[name][chain, number] for name in names]
        else:
            from factorflow.storage.verified_store import open_array

            store = str(self.path)

            def read(name: str) -> Any:
                return np.asarray(open_array(store, f"{GROUP}/{name}")[chain, number])

            values = list(map_concurrently(is_remote(store), read, names))
        leaves = dict(zip(apart, values, strict=False)) | (_unpack(values[-1], small) if small else {})
        try:
            return freeze(unflatten(tree, [leaves[i] for i in sorted(leaves)]))
        except (ValueError, ImportError, TypeError) as error:
            raise InputError(
                "posterior",
                self.path or "in memory",
                f"globals of classes that this version has ({error})",
                "Open it with the version of factorflow that wrote it, or fit again.",
            ) from error

    def digest(self, n_chains: int, number: int) -> str:
        """Return the sha256 (hex) of one set of every chain."""
        hasher = hashlib.sha256()
        for chain in range(n_chains):
            structure, leaves = flatten(self.read(chain, number))
            hasher.update(json.dumps(structure, sort_keys=True).encode())
            for leaf in leaves:
                array = np.ascontiguousarray(leaf)
                hasher.update(f"{array.dtype.str}{array.shape}".encode())
                hasher.update(array.tobytes())
        return hasher.hexdigest()


def _count(structure: Any) -> int:
    """Return the leaves of a structure."""
    if "leaf" in structure:
        return 1
    inner = structure.get("dict") or structure.get("fields") or {}
    return sum(map(_count, structure.get("tuple", inner.values())))


def n_sets(tree: xr.DataTree) -> int:
    """Return the sets of globals that a posterior holds of each chain."""
    return int(tree[GROUP].sizes.get("set", 1)) if GROUP in tree.children else 0
