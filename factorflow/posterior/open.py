"""Opening a stored posterior: checked first, then read when something is asked of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.core.block import sample_names
from factorflow.errors import FactorflowError, InputError
from factorflow.models.variables import AVERAGES
from factorflow.posterior.schema import NAMED, read_with_checksums
from factorflow.storage.checksums import CHECKSUM_ATTRIBUTES
from factorflow.storage.location import is_remote
from factorflow.storage.remote import RemotePath, map_concurrently

if TYPE_CHECKING:
    import xarray as xr

LAZY_LABELS = 1_000_000
"""Dimensions longer than this get no index when a posterior is opened: it would take long."""

GROUPS = ("variational", "optimization", "posterior", AVERAGES, "sample_stats", "iterations")
"""The groups that come first, in this order."""


def open_tree(path: str | os.PathLike[str] | RemotePath) -> xr.DataTree:
    """Open the posterior at ``path``; values are read when they are used.

    Raises
    ------
    InputError
        When there is no posterior, one of another schema version, or one that lacks a part or was changed.
    """
    import xarray as xr

    from factorflow.storage.verified_store import open_tree as open_verified

    attributes, checksums = read_with_checksums(path)
    has_names = bool(attributes.get(NAMED, True))
    stored = open_verified(checksums, decode_cf=False, create_default_indexes=False)
    for name in CHECKSUM_ATTRIBUTES:
        del stored.attrs[name]
    groups = {
        node.path: _with_labels(node.to_dataset(inherit=False), str(path), has_names=has_names)
        for node in stored.subtree
    }
    first = [f"/{name}" for name in GROUPS if f"/{name}" in groups]
    return xr.DataTree.from_dict(
        {path: groups[path] for path in dict.fromkeys(["/", *first, *sorted(groups)])}
    )


def load_variable(array: Any, name: str, path: str | None) -> Any:
    """Return the variable with its values in memory."""
    try:
        return array.load()
    except FactorflowError:  # it names the chunk, or the store
        raise
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise InputError(
            f"variable {name}",
            f"a damaged chunk at {path} ({error})",
            "intact chunks",
            "Copy the store again, or fit again.",
        ) from error


def load_tree(tree: xr.DataTree, path: str | None) -> None:
    """Read everything into memory; ``path`` is where it was opened, for messages."""
    for node in tree.subtree:
        for name in node.to_dataset(inherit=False).variables:
            load_variable(node[str(name)], f"{node.path.strip('/')}/{name}", path)


def _load(arrays: Mapping[Any, Any], path: str, name: Any) -> Any:
    return load_variable(arrays[name], str(name), path).values


def _with_labels(dataset: Any, path: str, *, has_names: bool) -> Any:
    """Return the dataset with all text read, as objects, and an index for all but very long dimensions.

    Names of numbered samples are made.
    """
    names = [
        name
        for name, variable in dataset.variables.items()
        if (name in dataset.dims or variable.dtype.kind in "TUO") and variable.size <= LAZY_LABELS
    ]
    read: dict[Any, tuple[Any, ...]] = {}
    arrays = {name: dataset[name].variable for name in names}
    load = partial(_load, arrays, path)
    for name, values in zip(names, map_concurrently(is_remote(path), load, names), strict=True):
        values = values.astype(object) if values.dtype.kind in "TU" else values
        read[name] = (dataset[name].dims, values, dataset[name].attrs)
    if (
        not has_names
        and "obs" not in dataset.variables
        and dataset.sizes.get("obs", LAZY_LABELS + 1) <= LAZY_LABELS
    ):
        read["obs"] = ("obs",), sample_names(np.arange(dataset.sizes["obs"])).astype(object)
    labelled = dataset.assign(read)
    return labelled[sorted(labelled.data_vars)]  # a Zarr group lists its members in any order
