"""Zarr stores that verify reads or sync writes.

Zarr itself takes fill values for missing chunks, leaves out what has no metadata, and names no file. Reading
goes through locations, not through a `zarr.storage.WrapperStore` of Zarr's object store: that keeps, and
pickles, the credentials that it was opened with, and its errors repeat what was sent.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import re
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Self

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, WrapperStore

from factorflow.errors import RUN_ANEW, InputError
from factorflow.storage.checksums import METADATA, ChecksumManifest, chunk_damage
from factorflow.storage.local import atomic_write
from factorflow.storage.location import as_location, read_if_present
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    import xarray as xr

CHUNK = re.compile(r".*/c(/\d+)*")


class DurableStore(WrapperStore[LocalStore]):
    """A store on a disk whose files are synced before they get their names: a checkpoint may rely on them."""

    def __init__(self, root: str | os.PathLike[str] | LocalStore) -> None:
        super().__init__(root if isinstance(root, LocalStore) else LocalStore(os.fspath(root)))

    async def set(self, key: str, value: Any) -> None:
        """Write a file of the store."""
        await asyncio.to_thread(atomic_write, self._store.root / key, value.to_bytes(), durable=True)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        """Write a file of the store if there is none."""
        if not await self.exists(key):
            await self.set(key, value)


class VerifiedStore(Store):
    """A Zarr store on a disk or in an object store, read only, whose files are verified when they are read.

    Parameters
    ----------
    manifest : ChecksumManifest, optional
        What it holds: metadata are compared, and groups and arrays besides do not exist. Left out for a store
        that is being written: only its chunks are verified, and nothing is listed.
    """

    supports_writes, supports_deletes, supports_listing = False, False, True

    def __init__(
        self, root: str | os.PathLike[str] | RemotePath, manifest: ChecksumManifest | None = None
    ) -> None:
        super().__init__(read_only=True)
        self.root, self.manifest = as_location(root), manifest
        self.remedy = manifest.remedy if manifest else RUN_ANEW

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifiedStore) and (other.root, other.manifest) == (self.root, self.manifest)

    __hash__ = None  # type: ignore[assignment]

    def with_read_only(self, read_only: bool = True) -> Self:
        """Return the store: it is read only."""
        return self

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return a file of the store."""
        if byte_range is not None:
            raise NotImplementedError("parts of files: the arrays of factorflow are not sharded")
        content = await asyncio.to_thread(self._read, key)
        buffer = (prototype or default_buffer_prototype()).buffer
        return None if content is None else buffer.from_bytes(content)

    def _read(self, key: str) -> bytes | None:
        node, _, name = key.rpartition("/")
        manifest = self.manifest if name == METADATA and node else None
        if manifest and node not in manifest.contents:
            return None
        if manifest and isinstance(self.root, RemotePath) and (verified := manifest.verified_metadata(node)):
            return verified
        content = read_if_present(self.root / key)
        if manifest:
            manifest.check_metadata(node, content)
        elif CHUNK.fullmatch(key) and (damage := "is missing" if content is None else chunk_damage(content)):
            expected = "an intact chunk"
            raise InputError(f"chunk {self.root / key}", damage, expected, self.remedy)
        return content

    async def get_partial_values(
        self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]
    ) -> builtins.list[Any]:
        """Return files of the store."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return whether there is a file."""
        return await asyncio.to_thread((self.root / key).exists)

    async def set(self, key: str, value: Any = None) -> None:
        """Refuse to write or delete."""
        raise ValueError("store was opened in read-only mode")

    delete = set

    async def list(self) -> AsyncIterator[str]:
        """Yield the metadata of groups and arrays in the manifest."""
        for node in self.manifest.contents if self.manifest else ():
            yield f"{node}/{METADATA}"

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield those of them that begin with a prefix."""
        async for key in self.list():
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield what is directly below a group."""
        folder = prefix.strip("/") + "/" if prefix.strip("/") else ""
        below = [key.removeprefix(folder) async for key in self.list_prefix(folder)]
        for name in dict.fromkeys(key.partition("/")[0] for key in below):
            yield name


def open_tree(manifest: ChecksumManifest, **options: Any) -> xr.DataTree:
    """Open a store with `xarray.open_datatree`, once metadata are verified and every chunk is looked for."""
    import xarray as xr

    manifest.check_complete()
    store: Any = VerifiedStore(manifest.location, manifest)
    return xr.open_datatree(store, engine="zarr", consolidated=False, zarr_format=3, **options)


def open_array(
    root: str | os.PathLike[str] | RemotePath, name: str, manifest: ChecksumManifest | None = None
) -> Any:
    """Open an array of a store to read it: missing and damaged chunks, and metadata, are InputErrors."""
    import zarr

    store = VerifiedStore(root, manifest)
    try:
        return zarr.open_array(store, path=name, mode="r", zarr_format=3)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, OSError, AttributeError) as error:
        value, expected = f"{type(error).__name__}: {error}", "the metadata of an array"
        raise InputError(f"file {root}/{name}/{METADATA}", value, expected, store.remedy) from error
