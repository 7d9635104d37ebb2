"""Writing a store, one block of rows after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest import checks
from factorflow.data.patches.transform import PatchTransform
from factorflow.data.store.fingerprint import combine, digest_names
from factorflow.data.store.layout import RESERVED, Manifest
from factorflow.data.store.rows import LABEL_CHUNK, Columns, WrittenCodes, write_codes
from factorflow.data.store.views import ViewSource, ViewWriter, prepare, write_array
from factorflow.design import TableDesign
from factorflow.errors import counted
from factorflow.seal import seal

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RowTruth", "Truth", "write_store"]

SHOWN = 5
"""Samples that a warning names."""


@dataclass(frozen=True)
class RowTruth:
    """A simulated quantity with a row for every sample: its second dimension, its width, and its rows."""

    dim: str
    width: int
    read: Callable[[int, int], NDArray[Any]]


@dataclass(frozen=True)
class Truth:
    """What simulated data were made from, for the group ``truth``.

    Parameters
    ----------
    arrays : mapping of str to (dims, array)
        Whole arrays.
    rows : mapping of str to RowTruth
        Arrays with a row for every sample, written block by block.
    """

    arrays: Mapping[str, tuple[tuple[str, ...], Any]]
    rows: Mapping[str, RowTruth]


def write_store(
    directory: Path,
    views: Sequence[ViewSource],
    columns: Columns,
    block_rows: int,
    drop_empty_features: bool = False,
    truth: Truth | None = None,
    design: TableDesign | None = None,
    patches: PatchTransform | None = None,
) -> None:
    """Write a whole store into an empty directory; the manifest and its seal come last.

    Parameters
    ----------
    directory : Path
        Where to.
    views : sequence of ViewSource
        In order.
    columns : Columns
        What is known of every row (N of them).
    block_rows : int
        Rows of a block.
    drop_empty_features : bool
        Leave out features without any observed value instead of refusing them.
    truth : Truth, optional
        Of a simulation.
    design : TableDesign, optional
        Of a table.
    patches : PatchTransform, optional
        What the pixels of patches became, for the group ``transform``.

    Raises
    ------
    InputError
        When the values cannot be used; see `factorflow.data.ingest.checks`.
    """
    import zarr

    names, n_rows = columns.names, columns.names.n_rows
    root = zarr.open_group(str(directory), mode="a", zarr_format=3)
    writers = []
    for view in views:
        source, survey = prepare(view, names, block_rows, drop_empty_features)
        writers.append(ViewWriter(root, source, names, block_rows, survey))
    n_absent, absent = 0, list[str]()
    for number in range(-(-n_rows // block_rows)):
        start, stop = number * block_rows, min((number + 1) * block_rows, n_rows)
        present = np.zeros(stop - start, bool)
        for writer in writers:
            present |= writer.write(number, writer.source.read(start, stop))
        n_absent += int((~present).sum())
        if len(absent) < SHOWN and not present.all():
            absent += names.part(start, stop)[~present].tolist()
    finished = [writer.finish() for writer in writers]
    if n_absent and all(writer.kind.is_values for writer in writers):  # with inputs, rows are for prediction
        checks.warn(
            f"{counted(n_absent, 'sample')} without a value in any view "
            f"({checks.listed(absent, total=n_absent)}); their factor scores will be the prior's"
        )
    if truth is not None:
        _write_truth(root.create_group("truth"), truth, n_rows)
    if patches is not None:
        group = root.create_group("transform", attributes=patches.attributes())
        for name, (dims, array) in patches.arrays().items():
            write_array(group, name, array, dims)
    codes = write_codes(root, columns, block_rows)
    obs_columns = _write_columns(root, columns, codes, [entry.name for entry, *_ in finished])
    named = None if names.given is None else digest_names(names.given)
    fingerprint = combine(
        n_rows, block_rows, named, codes.digests, codes.joined, columns.groups, finished, design
    )
    manifest = Manifest(
        n_rows=n_rows,
        block_rows=block_rows,
        views=tuple(entry for entry, *_ in finished),
        groups=columns.groups,
        n_sequences=columns.n_sequences,
        named=names.given is not None,
        group_sizes=codes.group_sizes,
        obs_columns=obs_columns,
        fingerprint=fingerprint,
        created_by=_program(),
        design=design,
    )
    root.attrs.update(manifest.attributes())
    seal(directory)


def _write_truth(group: Any, truth: Truth, n_rows: int) -> None:
    from zarr.codecs import Crc32cCodec

    for name, (dims, values) in truth.arrays.items():
        write_array(group, name, values, dims)
    for name, part in truth.rows.items():
        size = min(n_rows, LABEL_CHUNK)
        shape, chunks = (n_rows, part.width), (size, part.width)
        array = group.create_array(
            name,
            shape=shape,
            chunks=chunks,
            dtype="float32",
            compressors=[Crc32cCodec()],
            dimension_names=("obs", part.dim),
            config={"write_empty_chunks": True},
        )
        for start in range(0, n_rows, size):
            stop = min(start + size, n_rows)
            array[start:stop] = part.read(start, stop)


def _write_columns(root: Any, columns: Columns, codes: WrittenCodes, taken: Iterable[str]) -> dict[str, str]:
    """Write what is known of every row; return the array of every column of the sample metadata."""
    if columns.names.given is not None:
        write_array(root, "obs", columns.names.given, ("obs",))
    if columns.n_sequences:
        write_array(root, "joined", codes.joined, ("block",))
    used, arrays = {*taken, *RESERVED}, dict[str, str]()
    if columns.obs is None:
        return arrays
    for column in columns.obs.columns:
        name = "".join(c if c.isalnum() or c in "_-. " else "_" for c in str(column)).strip(" ._") or "column"
        while name in used:
            name += "_"
        used.add(name)
        arrays[str(column)] = name
        write_array(root, name, _plain(columns.obs[column]), ("obs",), long_name=str(column))
    return arrays


def _plain(column: pd.Series[Any]) -> NDArray[Any]:
    """Return a metadata column as numbers where it has numbers, else as text ("" where missing)."""
    if column.dtype.kind in "biuf" and isinstance(column.dtype, np.dtype):
        return column.to_numpy()
    if column.dtype.kind in "biuf":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return column.astype(object).where(column.notna(), "").astype(str).to_numpy(dtype=object)


def _program() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"factorflow {version('factorflow')}"
    except PackageNotFoundError:
        return "factorflow"
