"""Views whose non-zero entries alone are stored: the layout "sparse", described in ``docs/store-layout.md``.

A view is one CSR matrix whose chunks are blocks of rows. Blocks have different numbers of entries and chunks
have not: a chunk has room for those of the fullest block, and what is left over are zeros at the end of the
block's last row. `Block` holds the rows dense, as it does those of other views, but for models that take
`SparseRows`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.store.chunks import ChunkedArray, damage_error
from factorflow.data.store.layout import Manifest, ViewEntry
from factorflow.kernels.sparse_rows import ABSENT, SparseRows, column_type
from factorflow.storage.location import is_remote
from factorflow.storage.remote import map_concurrently

if TYPE_CHECKING:
    from factorflow.core.kinds import Kind

ROW_POINTERS = 65_536
"""Rows of a chunk of the row pointers, which other readers need."""


@dataclass(frozen=True)
class SparseView:
    """The values of a sparse view, read by blocks of rows.

    Parameters
    ----------
    n_features : int
        Columns of the view (D).
    row_nnz, columns, entries, row_pattern, patterns : ChunkedArray
        The arrays of the store; the last two where rows lack some features.
    """

    kind: Kind
    n_features: int
    row_nnz: ChunkedArray
    columns: ChunkedArray
    entries: ChunkedArray
    row_pattern: ChunkedArray | None = None
    patterns: ChunkedArray | None = None

    @classmethod
    def open(cls, path: str, manifest: Manifest, entry: ViewEntry) -> SparseView:
        """Return the view of a store."""
        slots, grid = entry.block_entries, (manifest.block_rows,)

        def array(name: str, dtype: Any, shape: Any, chunk: Any, codec: str = "") -> ChunkedArray:
            folder = os.path.join(path, entry.name, name)
            return ChunkedArray(folder, entry.name, np.dtype(dtype).name, shape, chunk, codec)

        size, rows, sets = (
            (manifest.n_blocks * slots,),
            (manifest.n_rows,),
            (entry.n_patterns, entry.n_features),
        )
        return cls(
            entry.kind,
            entry.n_features,
            array("row_nnz", np.uint32, rows, grid),
            array("indices", column_type(entry.n_features), size, (slots,), "blosc"),
            array("data", entry.dtype, size, (slots,), "blosc"),
            array("row_pattern", np.uint8, rows, grid) if entry.n_patterns else None,
            array("pattern_missing", bool, sets, sets) if entry.n_patterns else None,
        )

    def rows(self, number: int) -> SparseRows:
        """Return the rows of block ``number`` by their entries."""
        arrays = (self.row_nnz, self.columns, self.entries)
        read = partial(_block_of, number=number)
        row_nnz, columns, entries = map_concurrently(is_remote(self.row_nnz.path), read, arrays)
        n_entries = int(row_nnz[row_nnz != ABSENT].sum(dtype=np.int64))
        columns = columns[:n_entries]
        if n_entries > entries.size or (n_entries and columns.max() >= self.n_features):
            what = f"entries beyond the {self.n_features} features of view {self.columns.view!r}"
            raise damage_error(self.columns.file(number), what)
        pattern = None if self.row_pattern is None else self.row_pattern.block(number)
        if pattern is not None and self.patterns is not None and pattern.max() > self.patterns.shape[0]:
            what = f"sets of features beyond the {self.patterns.shape[0]} of view {self.columns.view!r}"
            raise damage_error(self.patterns.file(0), what)
        return SparseRows(row_nnz, columns, entries[:n_entries], self.n_features, pattern, self._missing)

    @cached_property
    def _missing(self) -> NDArray[np.bool_] | None:
        return None if self.patterns is None else self.patterns.block(0)

    def block(self, number: int) -> NDArray[Any]:
        """Return block ``number`` as `Block` holds it, (B, D), still writeable."""
        return self.rows(number).dense(self.kind)

    def part(self, first: int, last: int) -> NDArray[Any]:
        """Return rows ``first`` to ``last``, (B, D); no other blocks are read."""
        size = self.row_nnz.chunk[0]
        dtype = self.kind.in_block(np.dtype(self.entries.dtype))
        out = np.empty((max(0, last - first), self.n_features), dtype)
        for number in range(first // size, -(-last // size) if len(out) else 0):
            low, high = max(first, number * size), min(last, (number + 1) * size)
            out[low - first : high - first] = self.block(number)[low - number * size : high - number * size]
        return out


def _block_of(array: ChunkedArray, number: int) -> NDArray[Any]:
    return array.block(number)
