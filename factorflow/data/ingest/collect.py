"""Accepted forms of ``views``, and their conversion to one source per view."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorflow.data.ingest import annotated, checks, matlab, npz, tenx, xarrays, zarrs
from factorflow.data.ingest.conversions import is_of
from factorflow.data.ingest.joined_metadata import join_metadata
from factorflow.data.ingest.long import from_long_frame, from_long_table, is_long_table
from factorflow.data.ingest.objects import from_object
from factorflow.data.ingest.parts import FILE, has_parts, join_parts, names_of_parts
from factorflow.data.ingest.reading import Contents, Reader, Reading
from factorflow.data.ingest.sources import Source
from factorflow.data.ingest.tables import is_table, open_table, read_table, table_stem
from factorflow.errors import InputError
from factorflow.storage.location import source_not_found

if TYPE_CHECKING:
    import pandas as pd

METADATA_STEMS = frozenset({"obs", "samples", "metadata"})
"""Names (without ending) of the table with sample metadata in a folder of views."""

_ANNDATA = "an AnnData or MuData file", "Write it again."
READERS: dict[str, tuple[Reader, str, str]] = {
    ".npy": (
        npz.open_npy,
        "an .npy of numbers",
        "Save numbers with numpy.save, not objects: convert them with astype(float).",
    ),
    ".npz": (npz.open_npz, "an .npz of plain arrays", "Save it with numpy.savez."),
    ".h5ad": (annotated.open_h5ad, *_ANNDATA),
    ".h5mu": (annotated.open_h5mu, *_ANNDATA),
    ".h5": (tenx.open_10x_h5, "an HDF5 file of Cell Ranger", "Copy it again."),
    ".mat": (matlab.open_mat, "a .mat file", "Save it again."),
    ".nc": (
        xarrays.open_netcdf,
        "a netCDF file",
        "Write it again; files of netCDF 4 need an engine: pip install h5netcdf.",
    ),
    ".zarr.zip": (zarrs.open_zarr_zip, "a zipped Zarr store", "Zip the contents of the store."),
}
"""Readers of files by their ending, with what is expected of a file, and what to do where it cannot be read;
text tables and Parquet have readers of their own."""

_ENDINGS = f".csv, .tsv, .txt, .parquet, .feather, .zarr, {', '.join(READERS)}, or a folder of 10x"


def collect(views: Any, reading: Reading) -> Contents:
    """Return the source of every view, and the sample metadata that came with them.

    Parameters
    ----------
    views : mapping, path-like, xarray Dataset, AnnData or MuData
        See `factorflow.data.write_dataset`.
    """
    if isinstance(views, str | os.PathLike):
        sources, obs = _from_path(_place(views), reading)
        sources = _transpose_sources(_usable(sources), reading)
    elif isinstance(views, Mapping) and not is_of("xarray", views):
        sources, obs = _from_mapping(views, reading)
    else:
        sources, obs = _from_container(views, reading)
        sources = _transpose_sources(_usable(sources), reading)
    checks.check_view_names(list(sources))
    return {view: source.select() for view, source in sources.items()}, obs


def _from_mapping(views: Mapping[Any, Any], reading: Reading) -> Contents:
    sources: dict[str, Source] = {}
    metadata: dict[str, pd.DataFrame | None] = {}
    checks.check_view_names([str(name) for name in views])
    if keys := reading.annotated.obsm:
        expected = "one file or AnnData object by itself: a mapping names its views"
        remedy = f"Leave it out, and give the matrix as a view: {{{keys[0]!r}: adata.obsm[{keys[0]!r}]}}."
        raise InputError("obsm", ", ".join(keys), expected, remedy)
    for name, value in views.items():
        view = str(name)
        sources[view], metadata[view] = _one_view(view, value, reading)
    joined = [str(name) for name, value in views.items() if _has_parts(str(name), value, reading)]
    if len(joined) > 1:  # each has files of its own
        for view in joined:
            frame = metadata[view]
            metadata[view] = None if frame is None else frame.rename(columns={FILE: f"{view}:{FILE}"})
    return sources, join_metadata(metadata)


def _has_parts(view: str, value: Any, reading: Reading) -> bool:
    """Whether a view is given as several files; a list of texts may hold labels as well."""
    kind = reading.kinds(view)
    return has_parts(value) and not (kind is not None and kind.coded and isinstance(value[0], str))


def _one_view(view: str, value: Any, reading: Reading) -> tuple[Source, pd.DataFrame | None]:
    """Return the source of a view that the user names, and its metadata."""
    kind = reading.kinds(view)
    if _has_parts(view, value, reading):
        parts = [_one_view(view, part, reading) for part in value]
        return join_parts(view, names_of_parts(value), parts, reading)
    if isinstance(value, str | os.PathLike):
        inside, metadata = _from_path(_place(value), replace(reading, kinds=lambda _: kind, name=view))
    elif (annotation := _from_annotated(value, view, replace(reading, kinds=lambda _: kind))) is not None:
        inside, metadata = annotation
    else:
        source = from_object(view, value, kind, transpose=reading.transpose(view))
        inside, metadata = {view: source}, None
    if len(inside) > 1 and view in inside:
        inside = {view: inside[view]}
    if len(inside) != 1:
        raise InputError(
            f"view {view!r}",
            f"{value} with views {', '.join(inside)}",
            "a file with one view",
            "Name it like one of these, or give the file by itself: views=path.",
        )
    source = next(iter(inside.values()))
    return source.transposed() if reading.transpose(view) else source, metadata


def _transpose_sources(sources: dict[str, Source], reading: Reading) -> dict[str, Source]:
    """Return the sources with samples in rows."""
    return {
        view: source.transposed() if reading.transpose(view) else source for view, source in sources.items()
    }


def _place(path: str | os.PathLike[str]) -> Path:
    """Return a path as it is given, ``~`` replaced; an empty text would be the folder one is in."""
    if not os.fspath(path):
        raise InputError("views", "an empty path", "the path of a file or folder", "Name it.")
    return Path(os.path.expanduser(path))


def _from_path(path: Path, reading: Reading) -> Contents:
    if not path.exists():
        raise source_not_found(path, "views")
    with checks.readable(f"file {path}"):
        return _open_path(path, reading)


def _open_path(path: Path, reading: Reading) -> Contents:
    ending = _ending(path)
    if path.is_dir():
        if zarrs.is_zarr(path):
            return zarrs.open_zarr(path, path.stem, reading)
        return _from_folder(path, reading)
    if is_table(path):
        view = table_stem(path)
        reading.tables.append(view)
        table_format = replace(reading.format, na_values=reading.codes.texts(reading.name or view))
        transpose = reading.transpose(reading.name or view)
        table = open_table(path, table_format, kind := reading.kinds(view))
        if is_long_table(table):
            return from_long_table(table, reading)
        source = read_table(table, reading.spool, reading.format.index_col, kind, transpose=transpose)
        return {view: source}, None
    if ending is None:
        raise InputError(
            "views",
            str(path),
            f"a file of a known kind: {_ENDINGS}",
            "Convert it, for example to CSV or .h5ad; of matrix.mtx give the folder.",
        )
    read, expected, remedy = READERS[ending]
    with checks.readable(f"file {path}", remedy, expected):
        return read(path, path.name[: -len(ending)], reading)


def _ending(path: Path) -> str | None:
    """Return the ending of a file by which its reader is found; None: there is no reader."""
    return next((ending for ending in READERS if path.name.lower().endswith(ending)), None)


def _from_folder(folder: Path, reading: Reading) -> Contents:
    sources: dict[str, Source] = {}
    obs: Any = None
    files: dict[str, pd.DataFrame | None] = {}
    beside = tenx.companion_files(folder)
    if beside:
        sources |= tenx.open_10x_folder(folder, folder.name, reading)[0]
    for path in sorted(folder.iterdir()):
        is_readable = is_table(path) or _ending(path) or path.suffix.lower() == ".zarr"
        is_readable = is_readable or (path.is_dir() and tenx.is_10x_folder(path))
        if path.name.startswith(".") or path in beside or not is_readable:
            continue
        if is_table(path) and table_stem(path).lower() in METADATA_STEMS:
            if obs is not None:
                remedy = f"Make one table of them, or take one out of {folder}."
                raise InputError(
                    "sample metadata", f"{obs.name} and {path.name}", "one table in a folder", remedy
                )
            obs = path  # read once the names of the samples are known
            continue
        inside, metadata = _from_path(path, reading)
        repeated = sorted(set(inside) & set(sources))
        if repeated:
            raise InputError(
                "view names", ", ".join(repeated), "every name once", f"Rename one of the files in {folder}."
            )
        sources |= inside
        files[next(iter(inside))] = metadata
    if not sources:
        raise InputError(
            "views", str(folder), f"a folder with one file a view ({_ENDINGS})", "Check the path."
        )
    return sources, join_metadata(files) if obs is None else obs


def _from_container(views: Any, reading: Reading) -> Contents:
    if hasattr(views, "to_pandas") and not is_of("xarray", views):
        views = views.to_pandas()
    if is_of("pandas", views) and hasattr(views, "columns"):
        return from_long_frame(views, reading)
    if is_of("xarray", views) and hasattr(views, "data_vars"):
        return xarrays.from_xarray(views, reading.kinds)
    if (annotation := _from_annotated(views, "X", reading)) is not None:
        return annotation
    raise InputError(
        "views",
        f"an object of type {type(views).__name__}",
        "a mapping of view names to arrays or paths, the path of a file or folder, or an xarray Dataset",
        "Name the array: views={'rna': array}.",
    )


def _from_annotated(value: Any, view: str, reading: Reading) -> Contents | None:
    """Return the views and metadata of an AnnData or MuData object; None: it is neither."""
    remedy = "Give the path of its file, or load it into memory: to_memory()."
    with checks.readable(f"view {view!r}", remedy, "an object whose matrices and tables can be read"):
        if is_of("anndata", value) and hasattr(value, "obs_names"):
            return annotated.from_anndata(value, view, reading)
        if is_of("mudata", value) and hasattr(value, "mod"):
            return annotated.from_mudata(value, view, reading)
    return None


def _usable(sources: dict[str, Source]) -> dict[str, Source]:
    """Rename the sources of a file to valid variable names, with a warning."""
    out: dict[str, Source] = {}
    for name, better in checks.usable_names(sources).items():
        if better != name:
            checks.warn(
                f"view {name!r} is called {better!r}: such names are made of letters, digits and underscores"
            )
        out[better] = sources[name]
    return out
