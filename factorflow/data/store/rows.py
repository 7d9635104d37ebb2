"""Row labels: names, and the codes of group, sequence and time, handled in chunks.

Rows that were given no names have none on disk: they are ``sample0``, ``sample1``, ... Codes lie in chunks of
whole blocks and are read block by block. Where two blocks meet, the store knows whether a sequence runs on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import sample_names
from factorflow.data.store.chunks import ChunkedArray
from factorflow.data.store.fingerprint import Digest
from factorflow.storage.checksums import crc32c

if TYPE_CHECKING:
    import pandas as pd

CODES = ("group", "sequence", "time")
"""Codes a row may have, int32; the names of their arrays."""

LABEL_CHUNK = 65536
"""Rows of a chunk of the arrays with one value a sample; of codes at least a block."""

StrArray = NDArray[np.str_]
ReadCodes = Callable[[int, int], NDArray[np.int32]]


@dataclass(frozen=True)
class RowNames:
    """Names of the samples: stored, or else generated on demand.

    Parameters
    ----------
    n_rows : int
        Samples (N).
    stored : (N,) str array or None
        Their names.
    """

    n_rows: int
    stored: StrArray | None = None

    def part(self, start: int, stop: int) -> StrArray:
        """Return the names of rows ``start`` to ``stop``."""
        return sample_names(np.arange(start, stop)) if self.stored is None else self.stored[start:stop]

    def whole(self) -> StrArray:
        """Return all names, (N,)."""
        return self.part(0, self.n_rows)


@dataclass(frozen=True)
class Columns:
    """Names, codes and metadata of all rows.

    Parameters
    ----------
    codes : mapping of str to callable
        ``group``, ``sequence``, ``time``, where there are any: (start, stop) -> (stop - start,) int32.
    obs : DataFrame or None
        Sample metadata, in the order of the rows.
    """

    names: RowNames
    codes: Mapping[str, ReadCodes] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    n_sequences: int = 0
    obs: pd.DataFrame | None = None


@dataclass(frozen=True)
class WrittenCodes:
    """Summary of the codes that were written.

    Parameters
    ----------
    digests : dict of str to str
        Digest of every array of codes, by name.
    joined : (n_blocks,) bool array
        Whether the first row of a block goes on the sequence of the row before it.
    """

    digests: dict[str, str]
    group_sizes: tuple[int, ...]
    joined: NDArray[np.bool_]


def chunk_rows(n_rows: int, block_rows: int) -> int:
    """Return the rows of a chunk of codes: whole blocks."""
    return min(n_rows, max(block_rows, LABEL_CHUNK))


def code_array(path: str, name: str, n_rows: int, block_rows: int) -> ChunkedArray:
    """Return the array of a code, to be read chunk by chunk."""
    chunk = (chunk_rows(n_rows, block_rows),)
    return ChunkedArray(os.path.join(path, name), name, "int32", (n_rows,), chunk, "zstd")


def write_codes(root: Any, columns: Columns, block_rows: int) -> WrittenCodes:
    """Write the codes of all rows, chunk by chunk."""
    from zarr.codecs import Crc32cCodec, ZstdCodec

    n_rows = columns.names.n_rows
    size = chunk_rows(n_rows, block_rows)
    digests = {name: Digest() for name in columns.codes}
    counts = np.zeros(len(columns.groups), np.int64)
    joined = np.zeros(-(-n_rows // block_rows), bool)
    for name, read in columns.codes.items():
        array = root.create_array(
            name,
            shape=(n_rows,),
            chunks=(size,),
            dtype="int32",
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
            filters=None,
            fill_value=-1,
            dimension_names=("obs",),
            attributes={"names": list(columns.groups)} if name == "group" else {},
            config={"write_empty_chunks": True},
        )
        last = -1
        for start in range(0, n_rows, size):
            codes = np.ascontiguousarray(read(start, min(start + size, n_rows)), np.int32)
            array[start : start + codes.size] = codes
            digests[name].add([crc32c(codes)])
            if name == "group":
                counts += np.bincount(codes, minlength=counts.size)
            if name == "sequence":
                joins(codes, start, block_rows, last, joined)
                last = int(codes[-1])
    hex_digests = {name: digest.hex() for name, digest in digests.items()}
    return WrittenCodes(hex_digests, tuple(counts.tolist()), joined)


def joins(
    sequence: NDArray[np.int32], start: int, block_rows: int, before: int, out: NDArray[np.bool_]
) -> None:
    """Mark the blocks that begin among some rows and go on the sequence of the row before them.

    Parameters
    ----------
    sequence : (B,) int32 array
        Numbers of the sequences of the rows from ``start`` on, which is the first row of a block.
    start, block_rows : int
        Where the rows are in the grid.
    before : int
        Sequence of row ``start - 1``; -1: there is none.
    out : (n_blocks,) bool array
        Is filled in.
    """
    first = np.arange(0, sequence.size, block_rows)
    previous = np.concatenate([[before], sequence[first[1:] - 1]])
    number = start // block_rows
    out[number : number + first.size] = sequence[first] == previous
