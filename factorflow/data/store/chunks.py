"""Reading chunks of a Zarr array straight from their files.

The arrays are plain Zarr v3 (any reader opens them). On the path that every sweep walks, the file of a chunk
is read into one fresh buffer and checked, without Zarr's own machinery: 9 GB/s instead of 3 from the page
cache of the machine it was measured on (``benchmarks/store_read.py``).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import AUX_DTYPES
from factorflow.errors import InputError
from factorflow.storage.checksums import CRC_BYTES, chunk_damage, crc32c
from factorflow.storage.location import is_remote
from factorflow.storage.remote import RemotePath, map_concurrently

if TYPE_CHECKING:
    from factorflow.core.kinds import Kind
    from factorflow.data.store.layout import Manifest, ViewEntry


@cache
def _zstd() -> Any:
    from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

    return Zstd()


@cache
def _blosc() -> Any:
    from numcodecs.blosc import Blosc  # type: ignore[import-untyped]

    return Blosc()


def _decode(codec: str, chunk: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return a chunk of so many bytes as it was before a codec; a RuntimeError or ValueError if it is not."""
    if not codec:
        return chunk
    if codec == "blosc" and (stored := int.from_bytes(chunk[4:8].tobytes(), "little")) != size:
        raise ValueError(f"{stored} bytes instead of {size}")
    out = np.empty(size, np.uint8)
    (_zstd() if codec == "zstd" else _blosc()).decode(chunk, out)
    return out


def damage_error(path: str, what: str) -> InputError:
    """Return the error for a chunk that is damaged or not there."""
    return InputError(
        f"chunk {path}",
        what,
        "a whole chunk with the checksum it was written with",
        "The dataset is damaged: restore the file from a copy, or ingest the dataset again.",
    )


@dataclass(frozen=True)
class ChunkedArray:
    """An array (N, D) or (N,) of a store, read by blocks of rows.

    Parameters
    ----------
    path : str
        Directory of the Zarr array, or its URL.
    view : str
        Name of the view it belongs to, for messages.
    dtype : str
        Type on disk (little endian).
    shape : tuple of int
        (N, D) or (N,).
    chunk : tuple of int
        Rows of a block and, with D, columns of a tile.
    codec : {"", "zstd", "blosc"}
        What stands before the checksum.
    """

    path: str
    view: str
    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    codec: str

    @property
    def n_tiles(self) -> int:
        """Chunks side by side in one block of rows."""
        return 1 if len(self.shape) == 1 else -(-self.shape[1] // self.chunk[1])

    def rows(self, number: int) -> int:
        """Return the rows of a block."""
        return min(self.chunk[0], self.shape[0] - number * self.chunk[0])

    def block(self, number: int) -> NDArray[Any]:
        """Return block ``number``, (B, D) or (B,): fresh, C-contiguous, of the type on disk."""
        n_rows = self.rows(number)
        if self.n_tiles == 1:
            return self._chunk(number, 0)[:n_rows]
        out = np.empty((n_rows, self.shape[1]), self.dtype)
        tiles = range(self.n_tiles)
        chunks = map_concurrently(is_remote(self.path), partial(self._chunk, number), tiles)
        for tile, chunk in zip(tiles, chunks, strict=True):
            part = out[:, tile * self.chunk[1] : (tile + 1) * self.chunk[1]]
            part[:] = chunk[:n_rows, : part.shape[1]]
        return out

    def part(self, first: int, last: int) -> NDArray[Any]:
        """Return rows ``first`` to ``last``, (B, D) or (B,), fresh; no other chunks are read."""
        size = self.chunk[0]
        out = np.empty((max(0, last - first), *self.shape[1:]), self.dtype)
        for number in range(first // size, -(-last // size) if len(out) else 0):
            offset = number * size
            low, high = max(first, offset), min(last, offset + self.rows(number))
            out[low - first : high - first] = self.block(number)[low - offset : high - offset]
        return out

    def checksums(self, number: int) -> list[int]:
        """Return the checksum of the values of every tile of a block, rows beyond the last left out."""
        return tile_checksums(self.block(number), self.chunk[-1])

    def file(self, number: int, tile: int = 0) -> str:
        """Return where a chunk is."""
        file = os.path.join(self.path, "c", str(number))
        return file if len(self.shape) == 1 else os.path.join(file, str(tile))

    def _chunk(self, number: int, tile: int) -> NDArray[Any]:
        """Return one chunk as stored: padded to its full shape."""
        file = self.file(number, tile)
        buffer = self._read(file)
        expected = math.prod(self.chunk) * np.dtype(self.dtype).itemsize
        if damage := chunk_damage(buffer, None if self.codec else expected + CRC_BYTES):
            raise damage_error(file, f"{damage} (view {self.view!r})")
        try:
            payload = _decode(self.codec, buffer[:-CRC_BYTES], expected)
        except (RuntimeError, ValueError) as error:
            raise damage_error(file, f"{error} (view {self.view!r})") from error
        return payload.view(self.dtype).reshape(self.chunk)

    def _read(self, file: str) -> NDArray[np.uint8]:
        try:
            if is_remote(file):
                return np.array(np.frombuffer(RemotePath(file).read(), np.uint8))
            with open(file, "rb") as opened:
                buffer = np.empty(os.fstat(opened.fileno()).st_size, np.uint8)
                return buffer[: opened.readinto(buffer.data)]
        except OSError as error:
            raise damage_error(file, f"{error.strerror} (view {self.view!r})") from error


def tile_checksums(block: NDArray[Any], width: int) -> list[int]:
    """Return the checksum of every tile of ``width`` columns of a block; of an array (B,) there is one."""
    if block.ndim == 1 or width == block.shape[1]:
        return [crc32c(np.ascontiguousarray(block))]
    return [
        crc32c(np.ascontiguousarray(block[:, start : start + width]))
        for start in range(0, block.shape[1], width)
    ]


@dataclass(frozen=True)
class DenseView:
    """The values of a dense view, read by blocks of rows."""

    kind: Kind
    values: ChunkedArray
    observed: ChunkedArray | None

    def block(self, number: int) -> NDArray[Any]:
        """Return block ``number`` as `Block` holds it, (B, D) or (B,), still writeable."""
        observed = None if self.observed is None else self.observed.block(number)
        return self.kind.decode(self.values.block(number), observed)

    def part(self, first: int, last: int) -> NDArray[Any]:
        """Return rows ``first`` to ``last``; no other chunks are read."""
        observed = None if self.observed is None else self.observed.part(first, last)
        return self.kind.decode(self.values.part(first, last), observed)


def open_dense(path: str, manifest: Manifest, entry: ViewEntry) -> DenseView:
    """Return the values of a dense view of a store."""
    mask = entry_array(path, manifest, entry, "observed", "bool") if entry.masked else None
    return DenseView(entry.kind, entry_array(path, manifest, entry, "values", entry.dtype), mask)


def aux_array(path: str, manifest: Manifest, entry: ViewEntry) -> ChunkedArray:
    """Return what lies beside the values of a view with a number for each entry (`ViewMeta.aux`)."""
    return entry_array(path, manifest, entry, entry.aux, AUX_DTYPES[entry.aux])


def entry_array(path: str, manifest: Manifest, entry: ViewEntry, name: str, dtype: str) -> ChunkedArray:
    """Return an array of a view with a number for each entry."""
    shape = entry.kind.shape(manifest.n_rows, entry.n_features)
    chunk = entry.kind.shape(manifest.block_rows, entry.tile)
    codec = "zstd" if entry.compressed else ""
    return ChunkedArray(os.path.join(path, entry.name, name), entry.name, dtype, shape, chunk, codec)
