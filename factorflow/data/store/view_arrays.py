"""The arrays that hold the values of a view, written one block of rows after the other: dense, or sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import AUX_DTYPES
from factorflow.core.kinds import Kind
from factorflow.data.store.chunks import tile_checksums
from factorflow.data.store.fingerprint import Digest
from factorflow.data.store.layout import choose_tile
from factorflow.data.store.sparse import ROW_POINTERS
from factorflow.kernels.sparse_rows import SparseRows, column_type


class ViewArrays:
    """The values of a view; their digests are the same whatever arrays hold them.

    Parameters
    ----------
    dtype : dtype
        On disk.
    n_rows, n_features, block_rows : int
        Sizes of the view, and rows of a block.
    """

    layout = "dense"

    def __init__(
        self, group: Any, kind: Kind, dtype: np.dtype[Any], n_rows: int, n_features: int, block_rows: int
    ) -> None:
        self.group, self.kind, self.dtype = group, kind, dtype
        self.n_rows, self.n_features, self.block_rows = n_rows, n_features, block_rows
        self.tile = choose_tile(block_rows, kind.row_entries(n_features), dtype.itemsize)
        self.digests = {"values": Digest(), "observed": Digest()}
        self.masked = False

    @property
    def block_entries(self) -> int:
        """Entries that a chunk has room for, if it does not hold all of a block."""
        return 0

    @property
    def n_patterns(self) -> int:
        """Sets of features that are missing together, where they are stored so."""
        return 0

    def write(self, number: int, values: NDArray[Any], missing: NDArray[np.bool_] | None) -> None:
        """Write a block as it is stored; ``missing``: where its entries are, None: nowhere."""
        self._store(number, values, missing)
        self._digest(number, values, missing)

    def _digest(self, number: int, values: NDArray[Any], missing: NDArray[np.bool_] | None) -> None:
        """Add a block to the digests, and to the mask where there is one."""
        self.digests["values"].add(tile_checksums(values, self.tile))
        if self.kind.masked and (missing is not None or self.masked):
            if not self.masked:  # it comes into being with the first missing entry
                self.masked = True
                for earlier in range(number):
                    self._write_mask(earlier, np.ones((self.block_rows, values.shape[1]), bool))
            self._write_mask(number, np.ones(values.shape, bool) if missing is None else ~missing)

    def finish(self) -> None:
        """Write the arrays that need all blocks."""

    def _store(self, number: int, values: NDArray[Any], missing: NDArray[np.bool_] | None) -> None:
        raise NotImplementedError

    def _write_mask(self, number: int, observed: NDArray[np.bool_]) -> None:
        self.digests["observed"].add(tile_checksums(observed, self.tile))


class DenseArrays(ViewArrays):
    """All entries of a view, in chunks of the rows of a block.

    Parameters
    ----------
    group, kind, dtype, n_rows, n_features, block_rows
        As of `ViewArrays`.
    aux : str
        What lies beside the values (`ViewMeta.aux`); "": nothing.
    """

    def __init__(
        self,
        group: Any,
        kind: Kind,
        dtype: np.dtype[Any],
        n_rows: int,
        n_features: int,
        block_rows: int,
        compressed: bool,
        aux: str = "",
    ) -> None:
        super().__init__(group, kind, dtype, n_rows, n_features, block_rows)
        self.compressed = compressed
        self._values = self._create("values", dtype, 0 if kind.masked else kind.missing)
        self._observed: Any = None
        if aux:
            self._aux, self.digests[aux] = self._create(aux, AUX_DTYPES[aux], 0), Digest()

    def _create(self, name: str, dtype: Any, fill_value: Any) -> Any:
        from zarr.codecs import Crc32cCodec, ZstdCodec

        return self.group.create_array(
            name,
            shape=self.kind.shape(self.n_rows, self.n_features),
            chunks=self.kind.shape(self.block_rows, self.tile),
            dtype=dtype,
            compressors=[ZstdCodec(level=1), Crc32cCodec()] if self.compressed else [Crc32cCodec()],
            filters=None,
            fill_value=fill_value,
            dimension_names=("obs",) if self.kind.coded else ("obs", "feature"),
            config={"write_empty_chunks": True},
            overwrite=True,
        )

    def write_aux(self, number: int, name: str, values: NDArray[Any]) -> None:
        """Write a block of what lies beside the values."""
        self.digests[name].add(tile_checksums(values, self.tile))
        self._put(self._aux, number, values)

    def _store(self, number: int, values: NDArray[Any], missing: NDArray[np.bool_] | None) -> None:
        self._put(self._values, number, values)

    def _write_mask(self, number: int, observed: NDArray[np.bool_]) -> None:
        super()._write_mask(number, observed)
        if self._observed is None:
            self._observed = self._create("observed", bool, True)
        self._put(self._observed, number, observed)

    def _put(self, array: Any, number: int, block: NDArray[Any]) -> None:
        start = number * self.block_rows
        array[start : start + block.shape[0]] = block


class SparseArrays(ViewArrays):
    """The entries of a view that are not zero, in chunks with room for those of the fullest block.

    Parameters
    ----------
    group, kind, dtype, n_rows, n_features, block_rows
        As of `ViewArrays`.
    block_entries : int
        Entries of the fullest block.
    patterned : bool
        Whether features are missing in rows that have others.
    """

    layout = "sparse"
    compressed = False

    def __init__(
        self,
        group: Any,
        kind: Kind,
        dtype: np.dtype[Any],
        n_rows: int,
        n_features: int,
        block_rows: int,
        block_entries: int,
        patterned: bool,
    ) -> None:
        super().__init__(group, kind, dtype, n_rows, n_features, block_rows)
        self._slots = max(1, block_entries)
        n_blocks = -(-n_rows // block_rows)
        columns = column_type(n_features)
        self._columns = self._create("indices", columns, n_blocks * self._slots, self._slots, "entry")
        self._entries = self._create("data", dtype, n_blocks * self._slots, self._slots, "entry")
        self._row_nnz = self._create("row_nnz", np.dtype(np.uint32), n_rows, block_rows, "obs")
        self._patterns = dict[bytes, int]()
        if patterned:
            self._row_pattern = self._create("row_pattern", np.dtype(np.uint8), n_rows, block_rows, "obs")
        self._starts = np.zeros(n_rows + 1, np.int64)
        self._starts[-1] = n_blocks * self._slots
        about = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n_rows, n_features]}
        group.attrs.update({**about, "padding": PADDING})

    @property
    def block_entries(self) -> int:
        """Entries that a chunk has room for."""
        return self._slots

    @property
    def n_patterns(self) -> int:
        """Sets of features that are missing together."""
        return len(self._patterns)

    def _create(self, name: str, dtype: np.dtype[Any], size: int, chunk: int, dim: str) -> Any:
        from zarr.codecs import BloscCodec, Crc32cCodec

        blosc = BloscCodec(typesize=dtype.itemsize, cname="lz4hc", clevel=5, shuffle="bitshuffle")
        return self.group.create_array(
            name,
            shape=(size,),
            chunks=(chunk,),
            dtype=dtype,
            compressors=[Crc32cCodec()] if dim == "obs" else [blosc, Crc32cCodec()],
            filters=None,
            fill_value=0,
            dimension_names=(dim,),
            config={"write_empty_chunks": True},
            overwrite=True,
        )

    def write_entries(self, number: int, rows: SparseRows) -> None:
        """Write a block by its entries as they are stored, none of them missing one by one."""
        codes = np.zeros(len(rows), np.uint8)
        for some, features in rows.lacking():
            codes[some] = self._number(np.isin(np.arange(self.n_features), features))
        self._store_rows(number, rows, codes)
        values = rows.to_array(0 if self.kind.masked else self.kind.missing)
        self._digest(number, values, None if rows.complete else ~rows.observed())

    def _store(self, number: int, values: NDArray[Any], missing: NDArray[np.bool_] | None) -> None:
        codes = np.zeros(len(values), np.uint8)
        if missing is not None:
            for row in np.flatnonzero(missing.any(axis=1) & ~missing.all(axis=1)):
                codes[row] = self._number(missing[row])
        self._store_rows(number, SparseRows.from_dense(values, missing), codes)

    def _number(self, missing: NDArray[np.bool_]) -> int:
        """Return the number of a set of features (D,), from 1 on."""
        return self._patterns.setdefault(np.packbits(missing).tobytes(), len(self._patterns) + 1)

    def _store_rows(self, number: int, block: SparseRows, codes: NDArray[np.uint8]) -> None:
        """Write a block; ``codes``: which set of features each row lacks, 0: none, or all."""
        start, slot = number * self.block_rows, number * self._slots
        padding = self._slots - block.entries.size
        last = np.full(padding, self.n_features - 1, block.columns.dtype)
        self._columns[slot : slot + self._slots] = np.concatenate([block.columns, last])
        zeros = np.zeros(padding, block.entries.dtype)
        self._entries[slot : slot + self._slots] = np.concatenate([block.entries, zeros])
        stop = start + len(block)
        self._row_nnz[start:stop] = block.row_nnz
        if hasattr(self, "_row_pattern"):
            self._row_pattern[start:stop] = codes
        self._starts[start:stop] = slot + np.cumsum(block.counts) - block.counts

    def finish(self) -> None:
        """Write the row pointers, which other readers need, and the sets of missing features."""
        if self._patterns:
            packed = np.array([np.frombuffer(pattern, np.uint8) for pattern in self._patterns])
            self._write_patterns(np.unpackbits(packed, axis=1, count=self.n_features).astype(bool))
        pointers = self._create("indptr", np.dtype(np.int64), self.n_rows + 1, ROW_POINTERS, "row_pointer")
        pointers[:] = self._starts

    def _write_patterns(self, missing: NDArray[np.bool_]) -> None:
        from zarr.codecs import Crc32cCodec

        array = self.group.create_array(
            "pattern_missing",
            shape=missing.shape,
            chunks=missing.shape,
            dtype=bool,
            compressors=[Crc32cCodec()],
            filters=None,
            fill_value=False,
            dimension_names=("pattern", "feature"),
            config={"write_empty_chunks": True},
        )
        array[:] = missing


PADDING = (
    "Chunks of data and indices are blocks of rows of equal size. What is left over are zeros in the last "
    "column of the last row of a block: call eliminate_zeros() before entries are counted. row_nnz has the "
    "numbers of entries without them; 4294967295 there: the row is missing. Where row_pattern is not 0, the "
    "features that pattern_missing marks in that row of it, counted from 1, are missing."
)
"""What other readers of a sparse view are told."""
