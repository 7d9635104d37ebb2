"""A store at a path, opened: its manifest and checksums, and reads that all see the same version of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

from factorflow.core.arguments import NamesWrongArguments
from factorflow.data.store.layout import Manifest, read_manifest
from factorflow.data.store.views import read_array
from factorflow.errors import InputError
from factorflow.storage.checksums import ChecksumManifest
from factorflow.storage.location import Location, as_location
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    import xarray as xr


class OpenedStore(NamesWrongArguments):
    """A multi-view store of which only one version is read: a store that replaces it is refused.

    Parameters
    ----------
    path : str
        Absolute path of the store, or its URL.
    fingerprint : str, optional
        The fingerprint it must have.
    """

    def __init__(self, path: str, fingerprint: str | None = None) -> None:
        self.path = as_location(path, "dataset")
        self._expected = fingerprint

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (str(self.path), self.fingerprint)

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, from the root attributes."""
        return self._open[0]

    @cached_property
    def checksums(self) -> ChecksumManifest:
        """Checksums of all that is in it."""
        return self._open[1]

    @cached_property
    def _open(self) -> tuple[Manifest, ChecksumManifest]:
        self._version = _file_version(self.path)
        manifest, checksums = read_manifest(self.path)
        if self._expected not in (None, manifest.fingerprint):
            raise self._replaced_error(manifest.fingerprint, str(self._expected))
        return manifest, checksums

    def _replaced_error(self, fingerprint: str, expected: str) -> InputError:
        remedy = (
            "The dataset was replaced while it was in use, or a view was added: open it again "
            "(factorflow.open_dataset), start runs again."
        )
        return InputError(f"fingerprint of {self.path}", fingerprint, expected, remedy)

    @contextmanager
    def _consistent_read(self) -> Iterator[None]:
        """Refuse what was read if another dataset, or none, is now where this one was opened."""
        opened = self._open
        try:
            yield
        finally:
            version = _file_version(self.path)
            if version != self._version:
                current = read_manifest(self.path)
                if current != opened:
                    expected = f"{self.fingerprint}, with the columns it was opened with"
                    raise self._replaced_error(current[0].fingerprint, expected)
                self._version = version

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) over shapes, names, likelihoods and chunk checksums."""
        return self.manifest.fingerprint

    def read_array(self, name: str, rows: Any = ...) -> NDArray[Any]:
        """Return an array that lies beside the values, or some rows of it.

        Parameters
        ----------
        name : str
            Its path in the store.
        rows : slice, optional
            Which rows; all when left out.

        Returns
        -------
        array
        """
        with self._consistent_read():
            return read_array(self.path, name, self.checksums, rows)

    @property
    def tree(self) -> xr.DataTree:
        """The store as a lazy xarray DataTree: the root, a child for every view, and metadata."""
        from factorflow.storage.verified_store import open_tree

        return open_tree(self.checksums)

    @property
    def truth(self) -> xr.Dataset:
        """What simulated data were made from: scores, loadings_<view>, intercept_<view>, ...

        Raises
        ------
        InputError
            When the data were not simulated.
        """
        tree = self.tree
        if "truth" not in tree:
            raise InputError(
                "dataset", str(self.path), "a simulated one", "Only factorflow.simulate stores a truth."
            )
        return tree["truth"].to_dataset()

    def verify(self) -> None:
        """Read everything that is in the store and compare it with the checksums it was written with.

        Raises
        ------
        InputError
            Naming the first file that is damaged.
        """
        with self._consistent_read():
            self.checksums.verify()


def _file_version(path: Location) -> tuple[Any, ...]:
    """Return an identifier of the version of the file at a path; () if there is none."""
    file = path / "zarr.json"
    if isinstance(file, RemotePath):
        return file.version()
    try:
        status = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
