"""Writing a store, one block of rows after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.design import TableDesign
from factorflow.data.ingest import checks
from factorflow.data.store.column_types import encode
from factorflow.data.store.fingerprint import combine, digest_names
from factorflow.data.store.layout import ATTRIBUTES, METADATA, Manifest
from factorflow.data.store.names import free_name
from factorflow.data.store.rows import LABEL_CHUNK, Columns, WrittenCodes, write_codes
from factorflow.data.store.view_source import ViewSource
from factorflow.data.store.views import ViewWriter, prepare, write_array, write_columns
from factorflow.errors import InputError, pluralize
from factorflow.storage.checksums import write_manifest

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
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Write a whole store into an empty directory; the root with the manifest and checksums comes last.

    Parameters
    ----------
    columns : Columns
        What is known of every row (N of them).
    drop_empty_features : bool
        Leave out features without any observed value instead of refusing them.
    attributes : mapping of str to value or array, optional
        What else belongs to the dataset, for the group of that name.
    """
    import zarr

    names, n_rows = columns.names, columns.names.n_rows
    root = zarr.open_group(str(directory), mode="a", zarr_format=3)
    if columns.n_sequences and "time" in (view.name for view in views):
        expected = "another name: beside sequences it is the place of a sample in its own"
        raise InputError("view name", "time", expected, "Rename it, for example 'hours'.")
    writers = []
    for view in views:
        source, survey = prepare(view, names, block_rows, drop_empty_features)
        writers.append(ViewWriter(root, source, names, block_rows, survey))
    n_absent, absent = 0, list[str]()
    for number in range(-(-n_rows // block_rows)):
        start, stop = number * block_rows, min((number + 1) * block_rows, n_rows)
        present = np.zeros(stop - start, bool)
        for writer in writers:
            present |= writer.write(number)
        n_absent += int((~present).sum())
        if len(absent) < SHOWN and not present.all():
            absent += names.part(start, stop)[~present].tolist()
    finished = [writer.finish() for writer in writers]
    if n_absent and all(writer.kind.is_values for writer in writers):  # with inputs, rows are for prediction
        checks.warn(
            f"{pluralize(n_absent, 'sample')} without a value in any view "
            f"({checks.join_names(absent, total=n_absent)}); their factor scores will be the prior's"
        )
    if truth is not None:
        _write_truth(root.create_group("truth"), truth, n_rows)
    if attributes:
        write_attributes(root, attributes)
    codes = write_codes(root, columns, block_rows)
    columns_written = _write_columns(root, columns, codes)
    names_digest = None if names.stored is None else digest_names(names.stored)
    fingerprint = combine(
        n_rows, block_rows, names_digest, codes.digests, codes.joined, columns.groups, finished, design
    )
    manifest = Manifest(
        n_rows=n_rows,
        block_rows=block_rows,
        views=tuple(entry for entry, *_ in finished),
        groups=columns.groups,
        n_sequences=columns.n_sequences,
        named=names.stored is not None,
        group_sizes=codes.group_sizes,
        obs_columns={name: array for name, (array, *_) in columns_written.items()},
        fingerprint=fingerprint,
        created_by=_program(),
        design=design,
        code_columns=_code_columns(columns),
        obs_digests={name: digest for name, (_, digest, _) in columns_written.items()},
        obs_types={name: type_ for name, (*_, type_) in columns_written.items() if type_ is not None},
    )
    root.attrs.update(manifest.attributes())
    write_manifest(directory)


def write_attributes(root: Any, attributes: Mapping[str, Any]) -> None:
    """Write plain values as attributes of a group, arrays into it."""
    arrays = {name: value for name, value in attributes.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in attributes.items() if name not in arrays}
    group = root.create_group(ATTRIBUTES, attributes=plain)
    for name, array in arrays.items():
        write_array(group, name, array, tuple(f"{name}_{axis}" for axis in range(array.ndim)))


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


def _write_columns(
    root: Any, columns: Columns, codes: WrittenCodes
) -> dict[str, tuple[str, str, dict[str, Any] | None]]:
    """Write names, codes and metadata of rows; return path, digest and type of each metadata column."""
    if columns.names.stored is not None:
        write_array(root, "obs", columns.names.stored, ("obs",))
    if columns.n_sequences:
        write_array(root, "joined", codes.joined, ("block",))
    if columns.obs is None:
        return {}
    records = write_columns(root, METADATA, columns.obs, "obs")
    return {name: (f"{METADATA}/{array}", digest, type_) for name, (array, digest, type_) in records.items()}


def _code_columns(columns: Columns) -> dict[str, str]:
    """Return under which names the codes are among the sample metadata, see `Manifest`.

    A column of the name of a code stands for it where it says the same; where not, both are there, and a
    warning says so.
    """
    from pandas import factorize

    nodes, obs = dict[str, str](), {} if columns.obs is None else dict(columns.obs.items())
    by_name = {str(name): column for name, column in obs.items()}
    for code, read in columns.codes.items():
        nodes[code] = code
        if code not in by_name:
            continue
        codes, own = read(0, columns.names.n_rows), encode(by_name[code])[0]
        labels = np.asarray(columns.groups, dtype=object)[codes] if code == "group" else codes
        if code == "sequence":  # numbered in order: whatever its labels are, they tell the same rows apart
            own = factorize(own)[0]
        if np.array_equal(np.asarray(own).astype(str), np.asarray(labels).astype(str)):
            continue
        nodes[code] = free_name(code, set(by_name))
        what = {"group": "the groups", "sequence": "the numbers of sequences", "time": "rows of sequences"}
        checks.warn(f"obs has a column {code!r} of its own: {what[code]} are in the column {nodes[code]!r}")
    return nodes


def _program() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"factorflow {version('factorflow')}"
    except PackageNotFoundError:
        return "factorflow"
