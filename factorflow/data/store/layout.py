"""The layout on disk: names, block grid, manifest; described in ``docs/store-layout.md``.

The manifest lives in the attributes of the root group and is written last: a group without it does not open.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.core.block import Likelihood, Meta, Missing, ViewMeta
from factorflow.core.design import TableDesign
from factorflow.core.kinds import KINDS, Kind
from factorflow.core.records import from_record, same_fields
from factorflow.data.store.extremes import Outlier
from factorflow.errors import InputError, OptionText
from factorflow.kernels.sparse_rows import column_type
from factorflow.settings import check_block_rows
from factorflow.storage.checksums import ChecksumManifest
from factorflow.storage.location import Location

if TYPE_CHECKING:
    from factorflow.data.holdout import Holdout

SCHEMA = "factorflow.dataset"
SCHEMA_VERSION = 4
READ_VERSIONS = (3, 4)
"""Versions that are read; of version 3 metadata lie in the root group, without digests."""

METADATA = "metadata"
"""Group of the columns of the sample metadata."""

FEATURE_METADATA = "var"
"""Group of a view with the columns of the metadata of its features."""

ATTRIBUTES = "attributes"
"""Group of what else belongs to a dataset (`Dataset.attributes`)."""

BLOCK_BYTES = 16 * 2**20
"""Entries of one block over all views: what a block costs besides its matrix products is then little."""
CHUNK_BYTES = 4 * 2**20
"""Values of one chunk at most: tiles of 1-4 MB read fastest from disks."""

ROW_BYTES = 128
"""What a row counts for at least: a model's own arrays for each row are never smaller."""
MIN_BLOCK_ROWS = 32
MANY_BLOCK_ROWS = 4096
"""Blocks of more rows are made only where `FEW_BLOCKS` are left."""
FEW_BLOCKS = 8
TABLE_ROW_BYTES = 32
"""As `ROW_BYTES`, of a long table: its models keep nothing for a row."""
MANY_TABLE_ROWS = 2**18
"""As `MANY_BLOCK_ROWS`, of a long table: rows of equal levels then lie in long runs."""
"""Blocks of narrow data at least: work for several workers."""

DAMAGED = OptionText(
    "The dataset is damaged: restore it from a copy, or ingest it again with {overwrite}.", overwrite=True
)

RESERVED = frozenset({"obs", "group", "sequence", "joined", "truth", METADATA, ATTRIBUTES})
"""Names of the root group that a view may not take; beside sequences ``time`` is another."""


@dataclass(frozen=True)
class ViewEntry:
    """One view in the manifest.

    Parameters
    ----------
    name, likelihood, n_features, missing
        As in `ViewMeta`.
    dtype : str
        Type on disk (`Kind.storage_dtype`).
    tile : int
        Columns of one chunk; all of them unless a block of the view exceeds 4 MB. 1 for a categorical view.
    compressed : bool
        Whether chunks are zstd compressed (at most 10 % non-zeros).
    masked : bool
        Whether an ``observed`` mask lies beside the values (`Kind.masked`, and something is missing).
    likelihood_from : str
        "given", "file" or "guessed".
    recoded : dict of str to int
        Values replaced at ingest ({"-1": 0} for binary views given as -1/+1); empty: none.
    outliers : tuple of Outlier
        Single entries far from all others of their feature; some of them, where there are many.
    read_as : str
        What was decided of the file it comes from (separator, decimal mark, sample names), in words.
    location, largest, default_likelihood, aux
        As in `ViewMeta`.
    layout : {"dense", "sparse", "derived"}
        Whether all entries are stored, or those that are not zero (`factorflow.data.store.sparse`), or none:
        they are computed (`factorflow.data.store.derived`).
    block_entries : int
        Of a sparse view, entries that a chunk has room for: those of the fullest block; as many has a view
        that is computed from it where zeros stay zeros.
    n_patterns : int
        Of a sparse view, and of one that is computed from it, sets of features that are missing together in
        rows that have others.
    of, transform : str and dict
        Of a derived view, the view that it is computed from, and how (`Transform`).
    derived_bytes : int
        Of a derived view, what computing a block takes besides its values.
    var_columns : dict of str to str
        Metadata of the features: name of the column to that of its array in the group `FEATURE_METADATA`.
    var_types : dict of str to dict
        As `Manifest.obs_types`, of these columns.
    """

    name: str
    likelihood: Likelihood
    n_features: int
    missing: Missing
    dtype: str
    tile: int
    compressed: bool
    masked: bool
    likelihood_from: str
    n_missing: int
    n_missing_samples: int
    recoded: dict[str, int]
    outliers: tuple[Outlier, ...] = ()
    read_as: str = ""
    location: tuple[float, ...] = ()
    largest: float = 0.0
    default_likelihood: str = ""
    aux: str = ""
    layout: str = "dense"
    block_entries: int = 0
    n_patterns: int = 0
    of: str = ""
    transform: dict[str, Any] = field(default_factory=dict)
    derived_bytes: int = 0
    var_columns: dict[str, str] = field(default_factory=dict)
    var_types: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """The kind of the view, by its likelihood."""
        return KINDS[self.likelihood]

    @property
    def reading_bytes(self) -> int:
        """Bytes that reading a block takes besides its values: of a sparse view, its arrays."""
        if self.layout == "derived":
            return self.derived_bytes
        each = column_type(self.n_features).itemsize + np.dtype(self.dtype).itemsize
        return 2 * self.block_entries * each

    @property
    def meta(self) -> ViewMeta:
        """The part of it that models see."""
        return ViewMeta(**same_fields(ViewMeta, self))


@dataclass(frozen=True)
class Manifest:
    """The manifest of a dataset, stored in the root attributes.

    Parameters
    ----------
    n_rows, block_rows : int
        Rows of the dataset and of every block but possibly the last.
    groups : tuple of str
        Names of the groups; empty: none.
    n_sequences : int
        Sequences; 0: the rows are exchangeable.
    named : bool
        Whether the samples have names of their own; else they are numbered and no name is stored.
    obs_columns : dict of str to str
        Sample metadata: name of the column to path of its array.
    fingerprint : str
        sha256 (hex) over shapes, names, likelihoods and chunk checksums.
    design : TableDesign or None
        Roles of the views of a table; None: of other datasets.
    code_columns : dict of str to str
        Name among the sample metadata of group, sequence and time, where there are any: their own, unless a
        column of another content has that.
    obs_digests : dict of str to str
        sha256 (hex) of the content of each column of the sample metadata; empty: not known.
    obs_types : dict of str to dict
        Types of the columns that are no plain numbers, truth values or text (`column_types`).
    """

    n_rows: int
    block_rows: int
    views: tuple[ViewEntry, ...]
    groups: tuple[str, ...]
    n_sequences: int
    named: bool
    group_sizes: tuple[int, ...]
    obs_columns: dict[str, str]
    fingerprint: str
    created_by: str
    design: TableDesign | None = None
    code_columns: dict[str, str] = field(default_factory=dict)
    obs_digests: dict[str, str] = field(default_factory=dict)
    obs_types: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def n_blocks(self) -> int:
        """Blocks in the grid."""
        return -(-self.n_rows // self.block_rows)

    def attributes(self) -> dict[str, Any]:
        """Return the root attributes."""
        return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_attributes(cls, attributes: dict[str, Any]) -> Manifest:
        """Return the manifest that `attributes` wrote."""
        manifest = from_record(cls, attributes)
        arrays = [name.removeprefix(f"{METADATA}/") for name in manifest.obs_columns.values()]
        arrays += [name for view in manifest.views for name in view.var_columns.values()]
        for name in (*(view.name for view in manifest.views), *arrays):
            if os.path.basename(name) != name or name in {"", ".", ".."}:
                raise ValueError(f"{name!r} is no name inside the store")
        return manifest

    def meta(self, views: Iterable[ViewEntry], holdout: Holdout | None = None) -> Meta:
        """Return the shape that models see; with a hold-out, any value or row may be missing."""
        own = tuple(_with_gaps(view.meta, holdout) for view in views)
        return Meta(**same_fields(Meta, self) | {"views": own})


def _with_gaps(view: ViewMeta, holdout: Holdout | None) -> ViewMeta:
    """Return a view as it is with entries held out."""
    if holdout is None or holdout.unit == "count" or not view.kind.is_values:
        return view
    if holdout.unit == "entry":
        return replace(view, missing="scattered", n_patterns=0)
    return replace(view, missing="samples") if view.missing == "none" else view


def read_manifest(path: Location) -> tuple[Manifest, ChecksumManifest]:
    """Read the manifest of the store at ``path`` without opening it as Zarr.

    Raises
    ------
    InputError
        When there is no factorflow dataset, one of another schema version, or one that was changed.
    """
    document = read_root(path)
    checksums = ChecksumManifest.from_root(path, document, DAMAGED)
    try:
        manifest = Manifest.from_attributes(document["attributes"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"manifest of {path}", str(error), "a complete manifest", DAMAGED) from error
    return manifest, checksums


def read_root(path: Location) -> dict[str, Any]:
    """Read the ``zarr.json`` of the root of the store at ``path``.

    Raises
    ------
    InputError
        When there is no factorflow dataset, or one of another schema version.
    """
    remedy = "Make one with factorflow.write_dataset or `factorflow ingest`."
    try:
        document: dict[str, Any] = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
        schema, version = (document["attributes"].get(name) for name in ("schema", "schema_version"))
    except FileNotFoundError:
        problem = "exists, but it is not a Zarr v3 group" if path.exists() else "does not exist"
        raise InputError(
            "dataset", str(path), "the path of a factorflow dataset", f"It {problem}. {remedy}"
        ) from None
    except NotADirectoryError:
        raise InputError(
            "dataset", str(path), "the path of a factorflow dataset", f"It is a file. {remedy}"
        ) from None
    except InputError:  # of an object store: it says what to do
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "dataset",
            str(path),
            "the path of a factorflow dataset",
            f"{path / 'zarr.json'} cannot be read ({error}). {remedy}",
        ) from error
    if schema != SCHEMA:
        what = "a Zarr group of another program, or its ingest was interrupted"
        if str(schema).startswith("factorflow."):
            what = f"a {schema}"
        raise InputError("dataset", str(path), "the path of a factorflow dataset", f"It is {what}. {remedy}")
    if version not in READ_VERSIONS:
        raise InputError(
            f"schema version of {path}",
            version,
            " or ".join(map(str, READ_VERSIONS)),
            "Write the dataset again with this version of factorflow, or open it with the one that wrote it.",
        )
    return document


def choose_block_rows(
    n_rows: int, row_bytes: int, requested: int | None = None, *, table: bool = False
) -> int:
    """Return the rows of a block: a power of two.

    About 16 MB over all views, from 32 rows on; at least two blocks from 256 rows on, at least eight where
    blocks have more than 4096 rows (of a long table: 2^18), and never more than the power of two that holds
    all rows.

    Parameters
    ----------
    row_bytes : int
        What a row of all views counts for (`Kind.work_bytes`).
    table : bool
        Whether it is a long table: one response a row, and what it is explained by.
    """
    if requested is not None:
        return check_block_rows(requested)
    least, many = (TABLE_ROW_BYTES, MANY_TABLE_ROWS) if table else (ROW_BYTES, MANY_BLOCK_ROWS)
    target = BLOCK_BYTES / max(least, row_bytes)
    rows: int = 2 ** round(np.log2(max(target, 1.0)))
    rows = min(rows, max(many, _most_rows(n_rows, FEW_BLOCKS)))
    if n_rows >= 256:
        rows = min(rows, _most_rows(n_rows, 2))
    all_rows: int = 2 ** (n_rows - 1).bit_length()
    return max(MIN_BLOCK_ROWS, min(rows, all_rows))


def _most_rows(n_rows: int, n_blocks: int) -> int:
    """Return the largest power of two that cuts the rows into at least so many blocks; 0: there is none."""
    most = (n_rows - 1) // (n_blocks - 1)
    return 2 ** (most.bit_length() - 1) if most else 0


def choose_tile(block_rows: int, n_features: int, itemsize: int) -> int:
    """Return the columns of a chunk: all of them unless a block of the view exceeds 4 MB."""
    n_tiles = max(1, -(-block_rows * n_features * itemsize // CHUNK_BYTES))
    return -(-n_features // n_tiles)
