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

from factorflow.errors import InputError
from factorflow.shape import AUX_DTYPES
from factorflow.storage.checksums import CRC_BYTES, chunk_damage, crc32c
from factorflow.storage.location import is_remote
from factorflow.storage.remote import RemotePath, map_concurrently

if TYPE_CHECKING:
    from factorflow.data.store.layout import Manifest, ViewEntry


@cache
def _zstd() -> Any:
    from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

    return Zstd()


def _damage_error(path: str, what: str) -> InputError:
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
    compressed : bool
        Whether a zstd codec stands before the checksum.
    """

    path: str
    view: str
    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    compressed: bool

    @property
    def n_tiles(self) -> int:
        """Chunks side by side in one block of rows."""
        return 1 if len(self.shape) == 1 else -(-self.shape[1] // self.chunk[1])

    @property
    def n_chunks(self) -> int:
        """Chunks one below the other."""
        return -(-self.shape[0] // self.chunk[0])

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

    def _chunk(self, number: int, tile: int) -> NDArray[Any]:
        """Return one chunk as stored: padded to its full shape."""
        file = os.path.join(self.path, "c", str(number))
        file = file if len(self.shape) == 1 else os.path.join(file, str(tile))
        buffer = self._read(file)
        expected = math.prod(self.chunk) * np.dtype(self.dtype).itemsize
        if not self.compressed and buffer.size != expected + CRC_BYTES:
            raise _damage_error(
                file, f"{buffer.size} bytes instead of {expected + CRC_BYTES} (view {self.view!r})"
            )
        if damage := chunk_damage(buffer):
            raise _damage_error(file, f"{damage} (view {self.view!r})")
        payload = buffer[:-CRC_BYTES]
        if self.compressed:
            payload = np.empty(expected, np.uint8)
            try:
                _zstd().decode(buffer[:-CRC_BYTES], payload)
            except RuntimeError as error:
                raise _damage_error(file, f"{error} (view {self.view!r})") from error
        return payload.view(self.dtype).reshape(self.chunk)

    def _read(self, file: str) -> NDArray[np.uint8]:
        if is_remote(file):
            try:
                return np.array(np.frombuffer(RemotePath(file).read(), np.uint8))
            except FileNotFoundError as error:
                raise _damage_error(file, f"{error.strerror} (view {self.view!r})") from error
        try:
            descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise _damage_error(file, f"{error.strerror} (view {self.view!r})") from error
        try:
            buffer = np.empty(os.fstat(descriptor).st_size, np.uint8)
            filled = 0
            while filled < buffer.size:
                got = os.readv(descriptor, [buffer.data[filled:]])
                if got == 0:
                    raise _damage_error(file, f"{filled} bytes instead of {buffer.size} (view {self.view!r})")
                filled += got
            return buffer
        finally:
            os.close(descriptor)


def tile_checksums(block: NDArray[Any], width: int) -> list[int]:
    """Return the checksum of every tile of ``width`` columns of a block; of an array (B,) there is one."""
    if block.ndim == 1 or width == block.shape[1]:
        return [crc32c(np.ascontiguousarray(block))]
    return [
        crc32c(np.ascontiguousarray(block[:, start : start + width]))
        for start in range(0, block.shape[1], width)
    ]


def chunked_arrays(
    path: str, manifest: Manifest, entry: ViewEntry
) -> tuple[ChunkedArray, ChunkedArray | None]:
    """Return the values of a view and, where there is one, its ``observed`` mask."""
    shape = entry.kind.shape(manifest.n_rows, entry.n_features)
    chunk = entry.kind.shape(manifest.block_rows, entry.tile)
    values = ChunkedArray(
        os.path.join(path, entry.name, "values"), entry.name, entry.dtype, shape, chunk, entry.compressed
    )
    if not entry.masked:
        return values, None
    file = os.path.join(path, entry.name, "observed")
    return values, ChunkedArray(file, entry.name, "bool", shape, chunk, entry.compressed)


def aux_array(path: str, manifest: Manifest, entry: ViewEntry) -> ChunkedArray:
    """Return what lies beside the values of a view with a number for each entry (`ViewMeta.aux`)."""
    shape = entry.kind.shape(manifest.n_rows, entry.n_features)
    chunk = entry.kind.shape(manifest.block_rows, entry.tile)
    file = os.path.join(path, entry.name, entry.aux)
    return ChunkedArray(file, entry.name, AUX_DTYPES[entry.aux], shape, chunk, entry.compressed)
