"""Datasets of xarray, and netCDF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from factorflow.core.kinds import KINDS
from factorflow.data.ingest.checks import join_names, warn
from factorflow.data.ingest.objects import from_dataarray
from factorflow.data.ingest.reading import Contents, Reading
from factorflow.data.ingest.sources import KindOf, labels
from factorflow.errors import InputError


def from_xarray(dataset: Any, kinds: KindOf) -> Contents:
    """Return the variables of an xarray Dataset: those of two dimensions and inputs are views.

    Others of one dimension are metadata. Samples are along the dimension that all views have and some have
    first; where there is none, or two, along the first one of the first view.
    """
    import pandas as pd

    tables = [array.dims for array in dataset.data_vars.values() if array.ndim == 2]
    rows = tables[0][0] if tables else None
    shared = set.intersection({dims[0] for dims in tables}, *map(set, tables))
    if len(shared) == 1:
        (rows,) = shared
    sources = {}
    for name, array in dataset.data_vars.items():
        kind = kinds(str(name)) or KINDS.get(str(array.attrs.get("likelihood")))
        if array.ndim == 2 or (array.dims == (rows,) and kind is not None and not kind.is_values):
            turned = array.transpose(rows, ...) if rows in array.dims else array
            sources[str(name)] = from_dataarray(str(name), turned, kind)
    if not sources:
        raise InputError(
            "views",
            "an xarray Dataset without any",
            "variables of samples x features",
            "Check its dimensions.",
        )
    columns = {
        str(name): array.to_numpy()
        for name, array in dataset.variables.items()
        if array.dims == (rows,) and name != rows and str(name) not in sources
    }
    index = labels(dataset.indexes[rows]).astype(object) if rows in dataset.indexes else None
    left_out = [str(name) for name in dataset.data_vars if str(name) not in {*sources, *columns}]
    if left_out:
        warn(
            f"left out: {join_names(left_out)}, neither samples x features nor along {str(rows)!r}, the "
            "first dimension of the views; if samples are in columns, transpose the Dataset"
        )
    return sources, pd.DataFrame(columns, index=index) if columns else None


def open_netcdf(path: Path, view: str, reading: Reading) -> Contents:
    """Return the variables of a netCDF file, left on disk."""
    import xarray as xr

    return from_xarray(reading.opened.enter_context(xr.open_dataset(path)), reading.kinds)
