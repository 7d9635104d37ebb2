"""NumPy's files: .npy and .npz, and the names by which arrays of a container are views."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS, Kind
from factorflow.data.ingest.objects import from_object
from factorflow.data.ingest.reading import Contents, Reading
from factorflow.data.ingest.sources import KindOf
from factorflow.data.ingest.sparse import from_parts
from factorflow.errors import InputError

SPARSE = {"format", "shape", "data"}
"""Members of an .npz that `scipy.sparse.save_npz` wrote, of any format."""

UNPACKED_BYTES = 64 * 2**20
"""Larger members of an .npz are unpacked to disk instead of into memory."""


def open_npz(path: Path, view: str, reading: Reading) -> Contents:
    """Return the views of an .npz file; see `sort_arrays` for its keys.

    What ``scipy.sparse.save_npz`` wrote is one view, called ``view``.
    """
    spool = reading.spool
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
        with np.load(path, allow_pickle=False) as file:
            is_sparse = set(file.files) >= SPARSE
            _check_room(path, list(sizes.values()), spool, in_memory=is_sparse)
            if is_sparse:
                return {view: from_object(view, _load_sparse(path, file), reading.kinds(view))}, None
            arrays = {}
            for key in file.files:
                large = sizes[key] > UNPACKED_BYTES
                with _refuse_objects(path, key):
                    arrays[key] = _unpack(path, key, spool) if large else file[key]
    except MemoryError as error:  # a damaged header may ask for any size
        raise ValueError(str(error)) from error
    return sort_arrays(path, arrays, reading.kinds)


def _check_room(path: Path, sizes: list[int], spool: Path, *, in_memory: bool) -> None:
    """Refuse an .npz that declares more bytes than there is room for, before any of it is unpacked."""
    large = 0 if in_memory else sum(size for size in sizes if size > UNPACKED_BYTES)
    folder = next(folder for folder in spool.absolute().parents if folder.exists())
    for needed, room, where in (
        (large, shutil.disk_usage(folder).free, f"free at {folder}"),
        (sum(sizes) - large, _physical_memory(), "of memory"),
    ):
        if needed > room:
            value, expected = f"{needed:,} bytes unpacked", f"at most the {room:,} bytes {where}"
            remedy = "Check where it is from; split it, or save its arrays as .npy."
            raise InputError(f"file {path}", value, expected, remedy)


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize


def _load_sparse(path: Path, file: Any) -> Any:
    """Return a matrix that `scipy.sparse.save_npz` wrote."""
    form = np.asarray(file["format"]).item()
    form = form.decode("ascii") if isinstance(form, bytes) else str(form)
    if form in ("csr", "csc"):
        arrays = (file["data"], file["indices"], file["indptr"])
        return from_parts(*arrays, file["shape"], form, f"sparse matrix of {path}")
    from scipy.sparse import load_npz

    return load_npz(path)


def open_npy(path: Path, view: str, reading: Reading) -> Contents:
    """Return the array of an .npy file, left on disk."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return {view: from_object(view, array, reading.kinds(view))}, None


@contextmanager
def _refuse_objects(path: Path, key: str) -> Iterator[None]:
    """Return the error for an array of Python objects: reading it could run code."""
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


def sort_arrays(path: Path, arrays: Mapping[str, Any], kinds: KindOf) -> Contents:
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
                f"file {path}", ", ".join(absent), "an array for each name in view_names", "It is missing."
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
        source = from_object(view, arrays[key], kind)
        names = _texts(arrays, f"features_{view}")
        source.samples = source.samples if samples is None else samples
        source.features = source.features if names is None else names
        source.likelihood = likelihoods.get(view)
        sources[view] = source
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
    if getattr(array, "ndim", 0) == 2 and np.dtype(array.dtype).kind in "biufc":
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
