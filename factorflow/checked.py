"""Zarr stores of which nothing is read unchecked, or lost once it is written.

Imported where they are used: they need Zarr.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zarr.storage import LocalStore

from factorflow.errors import InputError
from factorflow.files import write_scratch
from factorflow.seal import Seal, has_checksum

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["CheckedStore", "DurableStore", "open_array", "open_tree"]

CHUNK = re.compile(r"(?P<node>.*)/c(/\d+)*")


class DurableStore(LocalStore):
    """A folder with a Zarr store in which a file, once it has its name, is on the disk.

    So a chunk that is written a second time, with more draws in it, never takes those with it that a
    checkpoint relies on: after a loss of power it has its old content or the new.
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


class CheckedStore(LocalStore):
    """A folder with a Zarr store, to be read only.

    What is missing or damaged is an error that names the file. Zarr itself takes fill values for missing
    chunks, leaves out what has no metadata, and names no file.

    Parameters
    ----------
    root : path
        The folder.
    seal : Seal or None
        What it holds: groups and arrays besides are not there, and metadata are compared. None: the store is
        being written, and its chunks alone are checked.
    remedy : str
        What to do about damage, where there is no seal.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        read_only: bool = True,
        seal: Seal | None = None,
        remedy: str = "Run anew with overwrite=True.",
    ) -> None:
        super().__init__(Path(root), read_only=True)
        self._seal = seal
        self._remedy = seal.remedy if seal else remedy

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
        raise InputError(f"chunk {self.root / key}", what, expected, self._remedy)


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
    store: Any = CheckedStore(seal.path, seal=seal)
    return xr.open_datatree(store, engine="zarr", consolidated=False, **options)


def open_array(store: str | os.PathLike[str], name: str, seal: Seal | None = None) -> Any:
    """Open an array of a store to be read: missing and damaged chunks are errors.

    Raises
    ------
    InputError
        When there is no such array, or its metadata are damaged.
    """
    import zarr

    checked = CheckedStore(store, seal=seal)
    try:
        return zarr.open_array(checked, path=name, mode="r", zarr_format=3)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, OSError, AttributeError) as error:
        file = Path(store, name, "zarr.json")
        raise InputError(
            f"file {file}", f"{type(error).__name__}: {error}", "the metadata of an array", checked._remedy
        ) from error
