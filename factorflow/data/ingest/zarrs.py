"""Zarr arrays and groups, in folders and zipped: AnnData, MuData, xarray, and others by convention."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from factorflow.data.ingest import annotated, npz, xarrays
from factorflow.data.ingest.objects import from_object
from factorflow.data.ingest.reading import Contents, Reading
from factorflow.data.ingest.xarray_zarr import is_written_by_xarray, open_stored
from factorflow.errors import InputError

_ROOTS = ("zarr.json", ".zgroup", ".zarray")


def is_zarr(path: Path) -> bool:
    """Whether a directory is a Zarr array or group."""
    return any((path / name).exists() for name in _ROOTS)


def open_zarr(path: Path, view: str, reading: Reading) -> Contents:
    """Return the views of a Zarr array (one, called ``view``) or group."""
    import zarr

    node = zarr.open(str(path), mode="r")
    if isinstance(node, zarr.Array) and is_zarr(path.parent):  # names of its rows are beside it
        node = zarr.open_group(str(path.parent), mode="r")[path.name]
    return _from_node(node, path, view, reading)


def open_zarr_zip(path: Path, view: str, reading: Reading) -> Contents:
    """Return the views of a zipped Zarr array or group; it may lie in a folder of the archive."""
    import zarr
    from zarr.storage import ZipStore

    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    top = {name.partition("/")[0] for name in names}
    inside = "" if not top.isdisjoint(_ROOTS) else top.pop() if len(top) == 1 else ""
    store = ZipStore(path, mode="r")
    reading.opened.callback(store.close)
    return _from_node(zarr.open(store, path=inside, mode="r"), path, view, reading)


def _from_node(node: Any, path: Path, view: str, reading: Reading) -> Contents:
    import zarr

    if isinstance(node, zarr.Array):
        return {view: from_object(view, node, reading.kinds(view))}, None
    if annotated.is_annotated(node):
        return annotated.from_group(node, path, view, reading)
    if str(node.attrs.get("schema", "")).startswith("factorflow"):
        raise InputError(
            "views",
            str(path),
            "raw data",
            "It is a factorflow store already: use it as it is, or take it out of the folder.",
        )
    if "view_names" not in node.attrs and "view_names" not in node and is_written_by_xarray(node):
        return xarrays.from_xarray(open_stored(node), reading.kinds)
    arrays: dict[str, Any] = {
        key: np.asarray(value) for key, value in node.attrs.items() if isinstance(value, list)
    }
    arrays.update(node.arrays())
    return npz.sort_arrays(path, arrays, reading.kinds)
