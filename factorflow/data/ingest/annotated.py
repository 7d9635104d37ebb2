"""AnnData and MuData: objects in memory, and files (.h5ad, .h5mu, Zarr) whose matrices stay on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.extras import require
from factorflow.data.ingest.joined_metadata import join_metadata
from factorflow.data.ingest.metadata import keep_integers
from factorflow.data.ingest.objects import from_object
from factorflow.data.ingest.reading import Contents, Reading
from factorflow.data.ingest.sources import Source, labels
from factorflow.data.ingest.sparse import from_parts
from factorflow.data.store.column_types import marked_rows
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

READS = "reads files of AnnData and MuData"


def open_h5ad(path: Path, view: str, reading: Reading) -> Contents:
    """Open an .h5ad file; its matrices stay on disk."""
    file = _open_hdf5(path, reading)
    if is_annotated(file):
        return from_group(file, path, view, reading)
    file.close()
    data = require("anndata", READS).read_h5ad(path, backed="r")  # of the time before 2020
    return from_anndata(data, view, reading)


def open_h5mu(path: Path, view: str, reading: Reading) -> Contents:
    """Return the modalities of an .h5mu file; their matrices stay on disk."""
    file = _open_hdf5(path, reading)
    if not is_annotated(file):
        raise InputError(f"file {path}", "another HDF5 file", "a MuData file", "Write it again.")
    return from_group(file, path, view, reading)


def _open_hdf5(path: Path, reading: Reading) -> Any:
    return reading.opened.enter_context(require("h5py", "reads HDF5 files").File(path, "r"))


def is_annotated(group: Any) -> bool:
    """Whether a group of HDF5 or Zarr holds AnnData or MuData."""
    return _encoding(group) in ("anndata", "mudata") or (
        "obs" in group and _encoding(group["obs"]) == "dataframe"  # before 2022 only its parts were marked
    )


def from_group(group: Any, path: Path, view: str, reading: Reading) -> Contents:
    """Return the views and metadata of an HDF5 or Zarr group with AnnData or MuData.

    Parameters
    ----------
    view : str
        Name of its matrix; modalities have their own.
    """
    if _encoding(group) == "mudata":
        return from_mudata(_Modalities(group, path, reading.spool), view, reading)
    return from_anndata(_File(group, path, reading.spool), view, reading)


def from_anndata(data: Any, view: str, reading: Reading) -> Contents:
    """Return X (or a layer) of an AnnData object as a view, beside it what is taken of obsm; its obs.

    Raises
    ------
    InputError
        When there is no such matrix, or no feature is marked as highly variable.
    """
    matrix, var = _matrix(data, view, reading.layer(view))
    source = from_object(view, matrix, reading.kinds(view))
    source.samples, source.features = labels(data.obs.index), labels(var.index)
    if getattr(data, "isbacked", False):
        reading.opened.callback(data.file.close)
    marked = _find_highly_variable(data, view, reading) if reading.annotated.highly_variable else None
    name = reading.name or view
    reading.seen[name] = reading.seen.get(name, False) or marked is not None
    if marked is not None and reading.wants_marked(view):
        source.marked = np.isin(source.features, labels(data.var.index)[marked])
    in_rows = reading.transpose(reading.name or view)  # var is of the samples then
    of_features = data.obs if in_rows else var
    source.about = of_features if of_features.shape[1] else None
    sources = {view: source}
    for key in reading.annotated.obsm:
        if key not in data.obsm:
            available = ", ".join(data.obsm) or "none"
            raise InputError(
                "obsm", key, f"a key of obsm ({available})", "Choose one of them, or leave it out."
            )
        beside = from_object(key, data.obsm[key], reading.kinds(key))
        beside.samples = source.samples
        sources[key] = beside
    about = data.var if in_rows else _with_places(data, reading.annotated.spatial)
    return sources, about if about.shape[1] else None


def _with_places(data: Any, obsm_key: str | None) -> pd.DataFrame:
    """Return obs with the places in obsm as columns x, y (and z), those that it has not.

    Raises
    ------
    InputError
        When a key was named that is not there, or does not hold places.
    """
    obs: pd.DataFrame = data.obs
    key = obsm_key or "spatial"
    if key not in data.obsm:
        if obsm_key is None:
            return obs
        available = ", ".join(data.obsm) or "none"
        raise InputError(
            "spatial", key, f"a key of obsm ({available})", "Choose one of them, or leave it out."
        )
    values = np.asarray(data.obsm[key])
    if values.ndim != 2 or values.shape[1] not in (2, 3) or values.dtype.kind not in "iuf":
        expected = "two or three numbers a sample"
        remedy = "Name another key of obsm, or write the places as columns of obs."
        raise InputError("spatial", f"{key}, of shape {values.shape}", expected, remedy)
    columns = {name: values[:, i] for i, name in enumerate("xyz"[: values.shape[1]])}
    return obs.assign(**{name: column for name, column in columns.items() if name not in obs})


def from_mudata(data: Any, view: str, reading: Reading) -> Contents:
    """Return the modalities of a MuData object as views; its metadata, filled from those of the modalities.

    A column of a modality is there as ``<modality>:<column>`` as well.
    """
    if reading.annotated.obsm:
        expected = "none: the matrices of a MuData object belong to its modalities"
        raise InputError("obsm", ", ".join(reading.annotated.obsm), expected, "Write them as views by name.")
    if getattr(data, "axis", 0) != 0:
        raise InputError(
            "views",
            f"MuData with axis={data.axis}, whose modalities share features",
            "modalities that share samples (axis=0)",
            "Give the modalities as parts of one view: views={'rna': [first, second]}.",
        )
    sources: dict[str, Source] = {}
    frames: dict[str, pd.DataFrame | None] = {}
    if len(data.mod) > 1:  # the name that is given is that of one of them
        reading = replace(reading, name=None)
    for name, modality in data.mod.items():
        if hasattr(modality, "mod"):
            remedy = "Give its modalities by name: views={name: modality, ...}."
            raise InputError(f"modality {name!r}", "MuData within MuData", "AnnData", remedy)
        inside, frames[str(name)] = from_anndata(modality, str(name), reading)
        sources |= inside
    own, joined = data.obs, join_metadata(frames, prefixed=True)
    if joined is None:
        return sources, own if own.shape[1] else None
    own = keep_integers(own).set_axis(labels(own.index).astype(object))
    new = [column for column in joined if column not in own]
    index = own.index.append(joined.index.difference(own.index, sort=False))
    return sources, own.reindex(index).join(joined[new])


def _matrix(data: Any, view: str, layer: str | None) -> tuple[Any, pd.DataFrame]:
    """Return X of an AnnData object, one of its layers or its raw values, and the table of its features."""
    if layer == "raw" and data.raw is not None:
        if "raw" in data.layers:
            raise InputError(
                "layer", layer, "one meaning", f"{view!r} has .raw and a layer 'raw': rename the layer."
            )
        return data.raw.X, data.raw.var
    if layer is not None:
        if layer not in data.layers:
            available = f"a layer of {view!r} ({_layers(data)})"
            raise InputError("layer", layer, available, "Leave it out for X, or name it by view.")
        return data.layers[layer], data.var
    if data.X is None:
        raise InputError(
            f"view {view!r}",
            "AnnData without X",
            "a matrix X, or a layer",
            f"Name one, {{layer}}: {_layers(data)}.",
            layer=...,
        )
    return data.X, data.var


def _layers(data: Any) -> str:
    """Name the layers of an AnnData object; newer versions count X among them, as None."""
    names = [name for name in data.layers if name is not None] + ["raw"] * (data.raw is not None)
    return ", ".join(names) or "there are none"


def _find_highly_variable(data: Any, view: str, reading: Reading) -> NDArray[np.bool_] | None:
    """Return which features are marked as highly variable; None: of this view none has a mark."""
    column = data.var.get("highly_variable")
    if column is None and not reading.is_named(view):
        return None
    where = f"var['highly_variable'] of view {view!r}"
    values = np.zeros(0, bool) if column is None else marked_rows(column, where)
    if not values.any():
        raise InputError(
            "highly_variable",
            view,
            f"features of {view!r} that are marked in var['highly_variable']",
            "Mark them (scanpy.pp.highly_variable_genes), or leave it out for all features.",
        )
    return values


class _Raw:
    """The raw values of a file."""

    def __init__(self, file: _File) -> None:
        self.var = file.table("raw/var")
        self.X = file.element("raw/X")


@dataclass(frozen=True)
class _Lazy(Mapping[str, Any]):
    """Layers or obsm of a file: read when they are asked for."""

    file: _File
    folder: str

    def __getitem__(self, key: str) -> Any:
        return self.file.element(f"{self.folder}/{key}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.group[self.folder] if self.folder in self.file.group else ())

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True)
class _File:
    """AnnData in a group of HDF5 or Zarr: what of the object is asked for, read when it is."""

    group: Any
    path: Path
    spool: Path

    @cached_property
    def obs(self) -> pd.DataFrame:
        return self.table("obs")

    @cached_property
    def var(self) -> pd.DataFrame:
        return self.table("var")

    @cached_property
    def raw(self) -> _Raw | None:
        return _Raw(self) if "raw" in self.group else None

    @property
    def X(self) -> Any:
        return self.element("X") if "X" in self.group else None

    @property
    def layers(self) -> Mapping[str, Any]:
        return _Lazy(self, "layers")

    @property
    def obsm(self) -> Mapping[str, Any]:
        return _Lazy(self, "obsm")

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of metadata."""
        frame: pd.DataFrame = self._read(name)
        return frame

    def element(self, name: str) -> Any:
        """Return a matrix that stays on disk, or another element in memory."""
        node = self.group[name]
        encoding = _encoding(node)
        if encoding in ("csr_matrix", "csc_matrix"):
            where = f"array {node.name.strip('/')!r} of {self.path}"
            arrays = (node["data"], node["indices"], node["indptr"])
            return from_parts(*arrays, node.attrs["shape"], encoding[:3], where, self.spool)
        if encoding in ("array", "") and hasattr(node, "dtype"):
            return node
        return self._read(name)

    def _read(self, name: str) -> Any:
        return require("anndata.io", READS).read_elem(self.group[name])


class _Modalities:
    """MuData in a group of HDF5 or Zarr."""

    def __init__(self, group: Any, path: Path, spool: Path) -> None:
        self.axis = int(group.attrs.get("axis", 0))
        self.obs = require("anndata.io", READS).read_elem(group["obs"])
        parts = group["mod"]
        order = [str(name) for name in parts.attrs.get("mod-order", [])]
        names = [name for name in order if name in parts] or list(parts)
        self.mod = {name: _File(parts[name], path, spool) for name in names}


def _encoding(group: Any) -> str:
    return str(group.attrs.get("encoding-type", "")).lower()
