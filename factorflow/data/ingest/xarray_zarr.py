"""Zarr stores that xarray wrote: only xarray unpacks their values and finds the names of their rows."""

from __future__ import annotations

from typing import Any


def is_written_by_xarray(group: Any) -> bool:
    """Whether all arrays of a Zarr group name their dimensions: only xarray decodes them."""
    arrays = [array for _, array in group.arrays()]
    return any(_dimensions(array) for array in arrays) and all(
        array.ndim == 0 or _dimensions(array) for array in arrays
    )


def open_stored(group: Any) -> Any:
    """Return the Dataset in a Zarr group, its variables left on disk."""
    import xarray as xr

    return xr.open_zarr(group.store, group=group.path or None, chunks=None, consolidated=False)


def find_variable(array: Any) -> Any:
    """Return the variable that xarray sees in a Zarr array, with names and decoded; None: it wrote none."""
    import zarr

    folder, _, name = array.path.rpartition("/")
    if not name or not _dimensions(array):
        return None
    try:
        group = zarr.open_group(array.store, path=folder, mode="r")
    except (FileNotFoundError, ValueError):
        return None
    return open_stored(group).get(name) if is_written_by_xarray(group) else None


def _dimensions(array: Any) -> Any:
    return getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
