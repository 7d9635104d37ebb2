"""Files that hold several views: .npz, Zarr groups, xarray Datasets, AnnData and MuData."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.sources import (
    KindOf,
    Source,
    check_array,
    from_dataarray,
    from_object,
    labels,
    read_type,
)
from factorflow.errors import InputError
from factorflow.kinds import KINDS, Kind

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Annotated",
    "Found",
    "Reading",
    "from_anndata",
    "from_mudata",
    "from_xarray",
    "open_h5ad",
    "open_h5mu",
    "open_npz",
    "open_zarr",
]


@dataclass(frozen=True)
class Annotated:
    """What of an AnnData object (or of each modality of MuData) becomes views.

    Parameters
    ----------
    layer : str or None
        The layer that is taken instead of X.
    obsm : tuple of str
        Matrices beside X that are views as well, named by their keys.
    highly_variable : bool
        Only the features that ``var["highly_variable"]`` marks.
    """

    layer: str | None = None
    obsm: tuple[str, ...] = ()
    highly_variable: bool = False


@dataclass(frozen=True)
class Reading:
    """How files are read.

    Parameters
    ----------
    spool : Path
        Directory for what has to be unpacked.
    sample_column : str, bool or None
        See `factorflow.data.ingest.tables.read_table`.
    kinds : callable
        Name of a view to its kind, where it was said.
    annotated : Annotated
        What of AnnData is taken.
    seen : list of str
        Views of AnnData that were met.
    tables : list of str
        Views of text tables and Parquet files that were met.
    """

    def check_used(self) -> None:
        """Refuse what is for AnnData, or for tables, where there was none."""
        if self.sample_column is not None and not self.tables:
            expected = "nothing: it is for text tables and Parquet files, and no view is one"
            raise InputError("sample_column", self.sample_column, expected, "Leave it out.")
        for name, value in vars(self.annotated).items():
            if value and not self.seen:
                raise InputError(
                    name, value, "nothing: it is for AnnData and MuData, and no view is one", "Leave it out."
                )

    spool: Path
    sample_column: str | bool | None
    kinds: KindOf
    annotated: Annotated = Annotated()
    seen: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)


Found = "tuple[dict[str, Source], pd.DataFrame | None]"
"""The views of a container by name, and the sample metadata in it."""

SPARSE = {"format", "shape", "data"}
"""Members of an .npz that `scipy.sparse.save_npz` wrote, of any format."""

UNPACKED_BYTES = 64 * 2**20
"""Larger members of an .npz are unpacked to disk instead of into memory."""


def open_npz(path: Path, view: str, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the views of an .npz file; see `_by_convention` for its keys.

    What ``scipy.sparse.save_npz`` wrote is one view, called ``view``.
    """
    spool = reading.spool
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
        with np.load(path, allow_pickle=False) as file:
            if SPARSE <= set(file.files):
                from scipy.sparse import load_npz

                return {view: from_object(view, load_npz(path), reading.kinds(view))}, None
            arrays = {}
            for key in file.files:
                large = sizes[key] > UNPACKED_BYTES
                with _objects_refused(path, key):
                    arrays[key] = _unpack(path, key, spool) if large else file[key]
    except InputError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"file {path}", str(error), "an .npz of plain arrays", "Save it with numpy.savez."
        ) from error
    return _by_convention(path, arrays, reading.kinds)


@contextmanager
def _objects_refused(path: Path, key: str) -> Iterator[None]:
    """Say which array of an .npz holds Python objects: they are not read, since that could run code."""
    try:
        yield
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise InputError(
            f"array {key!r} of {path}",
            "Python objects",
            "numbers, or text",
            "Save it anew with numpy.savez: numbers with astype(float), names with astype(str).",
        ) from error


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


def open_zarr(path: Path, view: str, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the views of a Zarr array (one, called ``view``) or group (as an .npz; or AnnData, MuData)."""
    import zarr

    kinds = reading.kinds
    node = zarr.open(str(path), mode="r")
    if isinstance(node, zarr.Array):
        check_array(view, node, kinds(view))
        return {view: Source(node, dtype=read_type(kinds(view)))}, None
    kind = str(node.attrs.get("encoding-type", "")).lower()
    if kind == "anndata":
        return from_anndata(_omics("anndata").read_zarr(path), view, reading)
    if kind == "mudata":
        return from_mudata(_omics("mudata").read_zarr(path), reading)
    if str(node.attrs.get("schema", "")).startswith("factorflow"):
        raise InputError(
            "views",
            str(path),
            "raw data",
            "It is a factorflow store already: open it with open_dataset, or take it out of the folder.",
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


def open_h5ad(path: Path, view: str, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the matrix of an .h5ad file, left on disk; a layer and obsm are read into memory."""
    return from_anndata(_read(path, _omics("anndata").read_h5ad), view, reading)


def open_h5mu(path: Path, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the modalities of an .h5mu file, left on disk."""
    return from_mudata(_read(path, _omics("mudata").read_h5mu), reading)


def _read(path: Path, reader: Any) -> Any:
    try:
        return reader(path, backed="r")
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            f"file {path}", str(error), "an AnnData or MuData file", "Write it again."
        ) from error


def from_anndata(data: Any, view: str, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return X (or a layer) of an AnnData object as a view, beside it what is taken of obsm; its obs.

    Raises
    ------
    InputError
        When there is no such matrix, or no feature is marked as highly variable.
    """
    chosen, kinds = reading.annotated, reading.kinds
    reading.seen.append(view)
    matrix, features = _matrix(data, view, chosen.layer), labels(data.var_names)
    if getattr(matrix, "format", "") == "csc":  # rows of a CSC matrix on disk cannot be sliced
        matrix = (matrix.to_memory() if hasattr(matrix, "to_memory") else matrix).tocsr()
    if chosen.highly_variable:
        kept = _highly_variable(data, view)
        matrix, features = _Columns(matrix, kept), features[kept]
    samples = labels(data.obs_names)
    close = data.file.close if data.isbacked else lambda: None
    sources = {view: Source(matrix, samples, features, close=close, dtype=read_type(kinds(view)))}
    for key in chosen.obsm:
        if key not in data.obsm:
            known = ", ".join(data.obsm) or "none"
            raise InputError("obsm", key, f"a key of obsm ({known})", "Choose one of them, or leave it out.")
        beside = from_object(key, data.obsm[key], kinds(key))
        beside.samples = samples
        sources[key] = beside
    return sources, data.obs if data.obs.shape[1] else None


def _matrix(data: Any, view: str, layer: str | None) -> Any:
    """Return X of an AnnData object, or one of its layers."""
    if layer is not None:
        if layer not in data.layers:
            known = f"a layer of {view!r} ({_layers(data)})"
            raise InputError("layer", layer, known, "Leave it out for X.")
        return data.layers[layer]
    try:
        matrix = data.X
    except KeyError:  # of one that is left on disk
        matrix = None
    if matrix is None:
        raise InputError(
            f"view {view!r}",
            "AnnData without X",
            "a matrix X, or a layer",
            f"Name one, layer=: {_layers(data)}.",
        )
    return matrix


def _layers(data: Any) -> str:
    """Name the layers of an AnnData object; newer versions count X among them, as None."""
    return ", ".join(name for name in data.layers if name is not None) or "there are none"


def _highly_variable(data: Any, view: str) -> NDArray[np.intp]:
    """Return the numbers of the features that are marked as highly variable."""
    marked = data.var.get("highly_variable")
    if marked is None or not (kept := np.flatnonzero(np.asarray(marked, dtype=bool))).size:
        raise InputError(
            "highly_variable",
            True,
            f"features of {view!r} that are marked in var['highly_variable']",
            "Mark them (scanpy.pp.highly_variable_genes), or leave it out for all features.",
        )
    return kept


@dataclass(frozen=True)
class _Columns:
    """Some columns of a matrix whose rows are read by slicing."""

    matrix: Any
    kept: NDArray[np.intp]

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.matrix.shape[0]), self.kept.size

    @property
    def dtype(self) -> Any:
        return self.matrix.dtype

    def __getitem__(self, rows: slice) -> Any:
        return self.matrix[rows][:, self.kept]


def from_mudata(data: Any, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the modalities of a MuData object as views, its obs as metadata."""
    if reading.annotated.obsm:
        expected = "none: the matrices of a MuData object belong to its modalities"
        raise InputError("obsm", ", ".join(reading.annotated.obsm), expected, "Write them as views by name.")
    sources: dict[str, Source] = {}
    for name, modality in data.mod.items():
        sources |= from_anndata(modality, str(name), reading)[0]
    return sources, data.obs if data.obs.shape[1] else None
