"""What a user may hand over as ``views``, sorted into one source a view."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.data.ingest import checks, containers
from factorflow.data.ingest.containers import Reading
from factorflow.data.ingest.sources import KindOf, Source, from_object
from factorflow.data.ingest.tables import is_table, read_metadata, read_table, table_stem
from factorflow.disk import no_source
from factorflow.errors import InputError
from factorflow.kinds import Kind

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["collect"]

METADATA_STEMS = frozenset({"obs", "samples", "metadata"})
"""Names (without ending) of the table with sample metadata in a folder of views."""

_ENDINGS = ".csv, .tsv, .txt, .parquet (also .gz), .npy, .npz, .h5ad, .h5mu, .zarr"


def collect(views: Any, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    """Return the source of every view, and the sample metadata that came with them.

    Parameters
    ----------
    views : mapping, path-like, xarray Dataset, AnnData or MuData
        See `factorflow.data.write_dataset`.
    reading : Reading
        How files are read.
    """
    if isinstance(views, str | os.PathLike):
        sources, obs = _from_path(_place(views), reading)
        sources = _usable(sources)
    elif isinstance(views, Mapping) and type(views).__module__.partition(".")[0] != "xarray":
        sources, obs = _from_mapping(views, reading)
    else:
        sources, obs = _from_container(views, reading)
        sources = _usable(sources)
    checks.check_view_names(list(sources))
    _check_overlap(sources)
    return sources, obs


def _from_mapping(
    views: Mapping[Any, Any], reading: Reading
) -> tuple[dict[str, Source], pd.DataFrame | None]:
    sources: dict[str, Source] = {}
    obs = None
    checks.check_view_names([str(name) for name in views])
    for name, value in views.items():
        view = str(name)
        kind = reading.kinds(view)
        if isinstance(value, str | os.PathLike):
            inside, metadata = _from_path(_place(value), replace(reading, kinds=_always(kind)))
        elif type(value).__module__.partition(".")[0] == "anndata":
            inside, metadata = containers.from_anndata(value, view, reading)
        else:
            inside, metadata = {view: from_object(view, value, kind)}, None
        if len(inside) != 1:
            raise InputError(
                f"view {view!r}",
                f"{value} with views {', '.join(inside)}",
                "a file with one view",
                "Give the file by itself: views=path.",
            )
        sources[view] = next(iter(inside.values()))
        obs = metadata if obs is None else obs
    return sources, obs


def _always(kind: Kind | None) -> KindOf:
    """Return what says the same of every view: the file of a view may have another name."""
    return lambda _: kind


def _place(given: str | os.PathLike[str]) -> Path:
    """Return a path as it is given, ``~`` replaced; an empty text would be the folder one is in."""
    if not os.fspath(given):
        raise InputError("views", "an empty path", "the path of a file or folder", "Name it.")
    return Path(os.path.expanduser(given))


def _from_path(path: Path, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    if not path.exists():
        raise no_source(path, "views")
    if path.is_dir() and not containers.is_zarr(path):
        return _from_folder(path, reading)
    view = table_stem(path)
    if path.is_dir():
        return containers.open_zarr(path, view, reading)
    if is_table(path):
        reading.tables.append(view)
        return {view: read_table(path, reading.spool, reading.sample_column, reading.kinds(view))}, None
    ending = path.suffix.lower()
    if ending == ".npz":
        return containers.open_npz(path, view, reading)
    if ending == ".npy":
        return {view: from_object(view, _load_npy(path), reading.kinds(view))}, None
    if ending == ".h5ad":
        return containers.open_h5ad(path, view, reading)
    if ending == ".h5mu":
        return containers.open_h5mu(path, reading)
    raise InputError(
        "views", str(path), f"a file of a known kind: {_ENDINGS}", "Convert it, for example to CSV."
    )


def _load_npy(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        what = "no such array" if isinstance(error, ValueError) else str(error)
        remedy = "Save numbers with numpy.save, not objects: convert them with astype(float)."
        raise InputError(f"file {path}", what, "an .npy of numbers", remedy) from error


def _from_folder(folder: Path, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    sources: dict[str, Source] = {}
    obs = None
    for path in sorted(folder.iterdir()):
        known = is_table(path) or path.suffix.lower() in {".npy", ".npz", ".h5ad", ".zarr"}
        if path.name.startswith(".") or not known:
            continue
        if is_table(path) and table_stem(path).lower() in METADATA_STEMS:
            obs = read_metadata(path)
            continue
        inside, metadata = _from_path(path, reading)
        repeated = sorted(set(inside) & set(sources))
        if repeated:
            raise InputError(
                "view names", ", ".join(repeated), "every name once", f"Rename one of the files in {folder}."
            )
        sources |= inside
        obs = metadata if obs is None else obs
    if not sources:
        raise InputError(
            "views", str(folder), f"a folder with one file a view ({_ENDINGS})", "Check the path."
        )
    return sources, obs


def _from_container(views: Any, reading: Reading) -> tuple[dict[str, Source], pd.DataFrame | None]:
    kind = type(views).__module__.partition(".")[0]
    if kind == "xarray" and hasattr(views, "data_vars"):
        return containers.from_xarray(views, reading.kinds)
    if kind == "anndata":
        return containers.from_anndata(views, "X", reading)
    if kind == "mudata":
        return containers.from_mudata(views, reading)
    raise InputError(
        "views",
        f"an object of type {type(views).__name__}",
        "a mapping of view names to arrays or paths, the path of a file or folder, or an xarray Dataset",
        "Name the array: views={'rna': array}.",
    )


def _usable(sources: dict[str, Source]) -> dict[str, Source]:
    """Return the sources of a file with names that can name a variable, telling what was renamed."""
    out: dict[str, Source] = {}
    for name, source in sources.items():
        better = checks.usable_name(name)
        while better != name and (better in out or better in sources):
            better += "_"
        if better != name:
            checks.warn(
                f"view {name!r} is called {better!r}: such names are made of letters, digits and underscores"
            )
        out[better] = source
    return out


def _check_overlap(sources: Mapping[str, Source]) -> None:
    """Warn of views that share no sample with the others: names that differ, or features in rows."""
    sets = {
        view: set(source.samples.tolist()) for view, source in sources.items() if source.samples is not None
    }
    for view, names in sets.items():
        others = [other for key, other in sets.items() if key != view]
        if others and not any(names & other for other in others):
            checks.warn(
                f"view {view!r} has no sample in common with any other view: are its sample names written "
                "differently, or its features in rows?"
            )
