"""Files that hold several views: .npz, Zarr groups, xarray Datasets, AnnData and MuData."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.sources import KindOf, Source, check_array, from_dataarray, labels, read_type
from factorflow.errors import InputError
from factorflow.kinds import KINDS, Kind

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Found", "from_anndata", "from_xarray", "open_h5ad", "open_h5mu", "open_npz", "open_zarr"]

Found = "tuple[dict[str, Source], pd.DataFrame | None]"
"""The views of a container by name, and the sample metadata in it."""

UNPACKED_BYTES = 64 * 2**20
"""Larger members of an .npz are unpacked to disk instead of into memory."""


def open_npz(path: Path, spool: Path, kinds: KindOf) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the views of an .npz file; see `_by_convention` for its keys."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
        with np.load(path, allow_pickle=False) as file:
            arrays = {
                key: _unpack(path, key, spool) if sizes[key] > UNPACKED_BYTES else file[key]
                for key in file.files
            }
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"file {path}", str(error), "an .npz of plain arrays", "Save it with numpy.savez."
        ) from error
    return _by_convention(path, arrays, kinds)


def _unpack(path: Path, key: str, spool: Path) -> Any:
    spool.mkdir(parents=True, exist_ok=True)
    target = spool / f"{len(list(spool.iterdir()))}.npy"
    with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as member, target.open("wb") as out:
        shutil.copyfileobj(member, out, 2**20)
    return np.load(target, mmap_mode="r")


def _by_convention(
    path: Path, arrays: Mapping[str, Any], kinds: KindOf
) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Sort the arrays of a container by their names.

    ``view_names`` and for each of them ``Y_<view>``; without ``view_names`` every two-dimensional array of
    numbers, and every one that is said to be an input, is a view, with or without ``Y_``. Beside them, all
    optional: ``likelihoods`` (in the order of ``view_names``),
    ``samples``, ``features_<view>``, ``obs_<column>``.
    """
    import pandas as pd

    names = _texts(arrays, "view_names")
    if names is not None:
        keys = {name: f"Y_{name}" for name in names.tolist()}
        absent = [key for key in keys.values() if key not in arrays]
        if absent:
            raise InputError(
                f"file {path}", ", ".join(absent), "an array for every name in view_names", "It is missing."
            )
    else:
        keys = {
            key.removeprefix("Y_"): key
            for key, array in arrays.items()
            if _is_view(key, array, kinds(key.removeprefix("Y_")))
        }
    if not keys:
        raise InputError(
            f"file {path}",
            ", ".join(arrays) or "nothing in it",
            "arrays of samples x features",
            "docs/ingest.md lists the names.",
        )
    suggested = _texts(arrays, "likelihoods")
    likelihoods = dict(zip(keys, [] if suggested is None else suggested.tolist(), strict=False))
    samples = _texts(arrays, "samples")
    sources = {}
    for view, key in keys.items():
        kind = kinds(view) or KINDS.get(likelihoods.get(view, ""))
        check_array(view, arrays[key], kind)
        names = _texts(arrays, f"features_{view}")
        sources[view] = Source(arrays[key], samples, names, likelihoods.get(view), dtype=read_type(kind))
    n_rows = next(iter(sources.values())).shape[0]
    columns = {
        key.removeprefix("obs_"): np.asarray(array[:])
        for key, array in arrays.items()
        if key.startswith("obs_") and np.shape(array) == (n_rows,)
    }
    return sources, pd.DataFrame(
        columns, index=None if samples is None else pd.Index(samples)
    ) if columns else None


def _is_view(key: str, array: Any, kind: Kind | None) -> bool:
    """Whether an array without a list of views beside it is one."""
    if getattr(array, "ndim", 0) == 2 and np.dtype(array.dtype).kind in "biuf":
        return True
    if key in ("samples", "likelihoods") or key.startswith(("obs_", "features_")):
        return False
    return kind is not None and not kind.is_values and np.ndim(array) in (1, 2)


def _texts(arrays: Mapping[str, Any], key: str) -> NDArray[np.str_] | None:
    if key not in arrays:
        return None
    values = np.asarray(arrays[key][:])
    return (
        np.char.decode(values, "utf-8")
        if values.dtype.kind == "S"
        else np.asarray(values.astype(object), dtype=str)
    )


def is_zarr(path: Path) -> bool:
    """Whether a directory is a Zarr array or group."""
    return any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray"))


def open_zarr(path: Path, view: str, kinds: KindOf) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the views of a Zarr array (one, called ``view``) or group (as an .npz; or AnnData, MuData)."""
    import zarr

    node = zarr.open(str(path), mode="r")
    if isinstance(node, zarr.Array):
        check_array(view, node, kinds(view))
        return {view: Source(node, dtype=read_type(kinds(view)))}, None
    kind = str(node.attrs.get("encoding-type", "")).lower()
    if kind == "anndata":
        return from_anndata(_omics("anndata").read_zarr(path), view, kinds)
    if kind == "mudata":
        return from_mudata(_omics("mudata").read_zarr(path), kinds)
    if str(node.attrs.get("schema", "")).startswith("factorflow"):
        raise InputError(
            "views", str(path), "raw data", "It is a factorflow store already: open it with open_dataset."
        )
    arrays: dict[str, Any] = {
        key: np.asarray(value) for key, value in node.attrs.items() if isinstance(value, list)
    }
    arrays.update(node.arrays())
    return _by_convention(path, arrays, kinds)


def from_xarray(dataset: Any, kinds: KindOf) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the variables of an xarray Dataset: those of two dimensions and inputs are views.

    Others of one dimension are metadata.
    """
    import pandas as pd

    rows = next((array.dims[0] for array in dataset.data_vars.values() if array.ndim == 2), None)
    sources = {}
    for name, array in dataset.data_vars.items():
        kind = kinds(str(name)) or KINDS.get(str(array.attrs.get("likelihood")))
        if array.ndim == 2 or (array.dims == (rows,) and kind is not None and not kind.is_values):
            sources[str(name)] = from_dataarray(str(name), array, kind)
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
    index = dataset.indexes[rows].map(str) if rows in dataset.indexes else None
    return sources, pd.DataFrame(columns, index=index) if columns else None


def _omics(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            "views",
            f"a file for {module}",
            "an installation that reads it",
            "pip install 'factorflow[omics]'",
        ) from error


def open_h5ad(path: Path, view: str, kinds: KindOf) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the matrix of an .h5ad file, left on disk."""
    return from_anndata(_read(path, _omics("anndata").read_h5ad), view, kinds)


def open_h5mu(path: Path, kinds: KindOf) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the modalities of an .h5mu file, left on disk."""
    return from_mudata(_read(path, _omics("mudata").read_h5mu), kinds)


def _read(path: Path, reader: Any) -> Any:
    try:
        return reader(path, backed="r")
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            f"file {path}", str(error), "an AnnData or MuData file", "Write it again."
        ) from error


def from_anndata(data: Any, view: str, kinds: KindOf) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return X of an AnnData object as one view, its obs as metadata."""
    try:
        matrix = data.X
    except KeyError:  # of one that is left on disk
        matrix = None
    if matrix is None:
        raise InputError(
            f"view {view!r}", "AnnData without X", "a matrix X", "Put the layer to be modelled into X."
        )
    if getattr(matrix, "format", "") == "csc":  # rows of a CSC matrix on disk cannot be sliced
        matrix = (matrix.to_memory() if hasattr(matrix, "to_memory") else matrix).tocsr()
    source = Source(
        matrix,
        labels(data.obs_names),
        labels(data.var_names),
        close=data.file.close if data.isbacked else lambda: None,
        dtype=read_type(kinds(view)),
    )
    return {view: source}, data.obs if data.obs.shape[1] else None


def from_mudata(data: Any, kinds: KindOf) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the modalities of a MuData object as views, its obs as metadata."""
    sources: dict[str, Source] = {}
    for name, modality in data.mod.items():
        sources |= from_anndata(modality, str(name), kinds)[0]
    return sources, data.obs if data.obs.shape[1] else None
