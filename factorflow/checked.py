"""Zarr stores of which nothing is read unchecked, or lost once it is written.

Imported where they are used: they need Zarr.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zarr.abc.store import Store
from zarr.storage import LocalStore

from factorflow.errors import InputError
from factorflow.files import write_scratch
from factorflow.place import Remote, as_place
from factorflow.seal import Seal, has_checksum

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["CheckedRemote", "CheckedStore", "DurableStore", "checked", "open_array", "open_tree"]

CHUNK = re.compile(r"(?P<node>.*)/c(/\d+)*")


class DurableStore(LocalStore):
    """A folder with a Zarr store in which a file, once it has its name, is on the disk.

    So what is written a second time never takes that with it which a checkpoint relies on: after a loss of
    power it has its old content or the new. Chunks of draws are brought to the disk by `posterior.chunks`.
    """

    def __init__(self, root: str | os.PathLike[str], *, read_only: bool = False) -> None:
        super().__init__(Path(root), read_only=read_only)

    async def _set(self, key: str, value: Any, exclusive: bool = False) -> None:
        if not self._is_open:
            await self._open()
        if exclusive and (self.root / key).exists():
            raise FileExistsError(key)  # as Zarr wants it
        await asyncio.to_thread(self.set_sync, key, value)

    def set_sync(self, key: str, value: Any) -> None:
        """Write a file of the store."""
        write_scratch(self.root / key, value.to_bytes(), durable=True)


class _Checks:
    """What is compared when a file of a store is read.

    What is missing or damaged is an error that names the file. Zarr itself takes fill values for missing
    chunks, leaves out what has no metadata, and names no file.
    """

    root: Any
    _seal: Seal | None

    @property
    def remedy(self) -> str:
        """What to do about damage."""
        return self._seal.remedy if self._seal else "Run anew with overwrite=True."

    def _checked(self, key: str, found: Any, *, whole: bool) -> Any:
        node, _, name = key.rpartition("/")
        if name == "zarr.json" and node and self._seal is not None:
            if node not in self._seal.contents:
                return None
            self._seal.check_metadata(node, None if found is None else found.to_bytes())
        elif CHUNK.fullmatch(key):
            if found is None:
                self._refuse(key, "is missing")
            if whole and not has_checksum(found.as_numpy_array().view("u1")):
                self._refuse(key, "a wrong checksum")
        return found

    def _refuse(self, key: str, what: str) -> None:
        expected = "a whole chunk with the checksum it was written with"
        raise InputError(f"chunk {self.root / key}", what, expected, self.remedy)


class CheckedStore(_Checks, LocalStore):
    """A folder with a Zarr store, to be read only.

    Parameters
    ----------
    root : path
        The folder.
    seal : Seal or None
        What it holds: groups and arrays besides are not there, and metadata are compared. None: the store is
        being written, and its chunks alone are checked.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, read_only: bool = True, seal: Seal | None = None
    ) -> None:
        LocalStore.__init__(self, Path(root), read_only=True)
        self._seal = seal

    def with_read_only(self, read_only: bool = True) -> Self:
        """Return the store: it is read only."""
        return self

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return a file of the store."""
        return self._checked(key, await super().get(key, prototype, byte_range), whole=byte_range is None)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return a file of the store."""
        found = super().get_sync(key, prototype=prototype, byte_range=byte_range)
        return self._checked(key, found, whole=byte_range is None)


class CheckedRemote(_Checks, Store):
    """A Zarr store in an object store, to be read only; whole objects are read, since nothing is sharded.

    Zarr's own store of objects is not used: its errors repeat what was sent, and it would list what the seal
    knows.

    Parameters
    ----------
    root : Remote
        Where it lies.
    seal : Seal or None
        As for `CheckedStore`; without one nothing can be listed.
    """

    supports_writes, supports_deletes, supports_listing = False, False, True

    def __init__(self, root: Remote, seal: Seal | None = None) -> None:
        super().__init__(read_only=True)
        self.root: Remote = root
        self._seal = seal

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckedRemote) and (other.root, other._seal) == (self.root, self._seal)

    __hash__ = None  # type: ignore[assignment]

    def with_read_only(self, read_only: bool = True) -> Self:
        """Return the store: it is read only."""
        return self

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return an object of the store."""
        from zarr.core.buffer import default_buffer_prototype

        if byte_range is not None:
            raise NotImplementedError("parts of objects: the arrays of factorflow are not sharded")
        buffer, (node, _, name) = (prototype or default_buffer_prototype()).buffer, key.rpartition("/")
        if name == "zarr.json" and node and self._seal is not None:
            if node not in self._seal.contents:
                return None
            if (known := self._seal.known_metadata(node)) is not None:
                return buffer.from_bytes(known)
        try:
            content = await asyncio.to_thread((self.root / key).read_bytes)
        except FileNotFoundError:
            return self._checked(key, None, whole=True)
        return self._checked(key, buffer.from_bytes(content), whole=True)

    async def get_partial_values(
        self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]
    ) -> builtins.list[Any]:
        """Return objects of the store."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return whether there is an object."""
        return bool(await asyncio.to_thread((self.root / key).version))

    async def set(self, key: str, value: Any) -> None:
        """Refuse to write."""
        self._check_writable()

    async def delete(self, key: str) -> None:
        """Refuse to delete."""
        self._check_writable()

    async def list(self) -> AsyncIterator[str]:
        """Yield the metadata of groups and arrays, as the seal knows them."""
        for node in self._seal.contents if self._seal else ():
            yield f"{node}/zarr.json"

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


def checked(path: str | os.PathLike[str] | Remote, seal: Seal | None = None) -> CheckedStore | CheckedRemote:
    """Return a Zarr store at a path or URL, to be read and checked."""
    place = as_place(path)
    return CheckedRemote(place, seal) if isinstance(place, Remote) else CheckedStore(place, seal=seal)


def open_tree(seal: Seal, **options: Any) -> xr.DataTree:
    """Open a sealed store with xarray, once everything is there that belongs to it; values are not read.

    Parameters
    ----------
    seal : Seal
        What the store holds.
    **options
        Of `xarray.open_datatree`.

    Raises
    ------
    InputError
        Naming what is missing or changed.
    """
    import xarray as xr

    seal.check_complete()
    store: Any = checked(seal.path, seal)
    return xr.open_datatree(store, engine="zarr", consolidated=False, **options)


def open_array(store: str | os.PathLike[str] | Remote, name: str, seal: Seal | None = None) -> Any:
    """Open an array of a store to be read: missing and damaged chunks are errors.

    Raises
    ------
    InputError
        When there is no such array, or its metadata are damaged.
    """
    import zarr

    files = checked(store, seal)
    try:
        return zarr.open_array(files, path=name, mode="r", zarr_format=3)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, OSError, AttributeError) as error:
        file = f"{store}/{name}/zarr.json"
        raise InputError(
            f"file {file}", f"{type(error).__name__}: {error}", "the metadata of an array", files.remedy
        ) from error
