"""The copy in an object store of the folder of a run to there, so that another machine can go on with it.

It is ``<url>.run``. After each checkpoint what is new in the folder is put there, its manifest last: what the
manifest names is complete, as on the disk. Files keep their checksums, so nothing has to be read back.

Two processes may not write there, and no lock of a store ends with its process. So each that begins or goes
on with a run puts an object ``owner`` with a number of its own, in place of the one it has seen (conditional
requests); who finds another number than its own before it writes a checkpoint ends with an error. In the
folder on the disk a file keeps that number: it says whether the run was there last.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import warnings
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from factorflow.disk import Lock, remove, sync
from factorflow.engine.checkpoint import KEPT, MANIFEST
from factorflow.errors import FactorflowError, InputError, RunError
from factorflow.files import check_space, write_file
from factorflow.place import Remote, at_once

__all__ = ["DRAWN", "MARK", "OWNER", "Mirror"]

MARK = "writable"
"""File by which a run's folder is known as one, whatever else a kill left in it."""

DRAWN = "posterior.zarr"
"""Folder, in that of a run, of its draws and of the posterior that is being built."""

OWNER = "owner"


class Mirror:
    """The copy of a run's folder.

    Parameters
    ----------
    folder : Path
        The folder, on a disk.
    out : Remote
        Where the result of the run goes.
    """

    def __init__(self, folder: Path, out: Remote) -> None:
        self.folder, self.out, self.place = folder, out, Remote(f"{out}.run")
        self._owner = b""
        self._sent: dict[str, tuple[int, int]] = {}

    def holds_run(self) -> bool:
        """Return whether there is a checkpoint."""
        return bool((self.place / MANIFEST).version())

    def bring(self) -> bool:
        """Bring the copy to the disk if the run was last there; return whether it was brought.

        Raises
        ------
        InputError
            If the store cannot be read, another process writes the folder, or the copy changes meanwhile.
        RunError
            If the disk is full.
        """
        if not self.holds_run() or ((self.folder / MANIFEST).exists() and self._is_ours()):
            return False
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with closing(Lock(self.folder, self.out, "out")):
            left = list(self.folder.iterdir())
            if left and not (self.folder / MARK).exists():
                expected = f"{self.folder} to be free, or what a run of factorflow left there"
                raise InputError("out", str(self.out), expected, "Move it, or choose another path.")
            for part in [self.folder / MANIFEST, *left]:
                if part.name != MARK:
                    remove(part)
            (self.folder / MARK).touch()
            self._download()
        return True

    def take(self, *, resuming: bool) -> None:
        """Make the copy this process's own; one of another run is removed.

        Raises
        ------
        InputError
            If the place cannot be written, or another process takes it at the same time.
        RunError
            If the bucket is full.
        """
        there, owner = self._names(), self.place / OWNER
        seen = owner.version()
        who = {"token": secrets.token_hex(8), "host": socket.gethostname(), "process": os.getpid()}
        self._owner = json.dumps(who).encode()
        try:
            owner.put(self._owner, new=not seen, instead=seen)
        except FileExistsError:
            expected = "a run that no other process begins or resumes"
            raise InputError("out", str(self.out), expected, "Wait for the other one.") from None
        write_file(self.folder / OWNER, self._owner.decode(), "checkpoint")
        if not resuming:
            self._remove(there - {OWNER})
        self._sent = dict.fromkeys(there if resuming else (), (-1, -1))

    def send(self, checkpoint: Path, kept: Iterable[str], *, drawn: bool) -> None:
        """Put the newest checkpoint there, its manifest last, and remove what it does not name.

        A store that is away costs a warning: the checkpoint is on the disk, and the next one is sent again.

        Parameters
        ----------
        checkpoint : Path
            Its folder.
        kept : iterable of str
            Files beside it that it refers to.
        drawn : bool
            Whether the run has draws on the disk.

        Raises
        ------
        RunError
            If another process has gone on with the run.
        """
        try:
            self._check_owner()
            files = self._files(checkpoint, kept, drawn)
            new = [name for name, stamp in files.items() if self._sent.get(name) != stamp]
            for name in at_once(True, self._put, new):
                self._sent[name] = files[name]
            self._check_owner()
            (self.place / MANIFEST).put((self.folder / MANIFEST).read_bytes())
            self._remove(set(self._sent) - set(files) - {MANIFEST, OWNER})
            self._sent = files
        except _TakenOver:
            raise
        except FactorflowError as error:
            text = f"the checkpoint is in {self.folder} alone, it could not be put into {self.place}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def clear(self) -> None:
        """Remove the copy, its manifest first, if this process or the run on this disk owns it."""
        with suppress(FactorflowError, OSError):  # what stays is removed by the next run there
            if self._is_ours():
                names = self._names()
                (self.place / MANIFEST).delete()
                self._remove(names - {OWNER})
                (self.place / OWNER).delete()

    def _download(self) -> None:
        """Bring all objects; the manifest comes last, and has to be the one that was there at first."""
        before, owner = (self.place / MANIFEST).read_bytes(), (self.place / OWNER).read_bytes()
        names = sorted(self._names() - {MANIFEST, OWNER})
        sizes = at_once(True, lambda name: (self.place / name).version(), names)
        check_space(self.folder, sum(version[3] for version in sizes if version))

        def fetch(name: str) -> None:
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.place / name).download(target)
            sync(target)

        try:
            for name in names:
                fetch(name)  # itself several requests at a time
            if (self.place / MANIFEST).read_bytes() != before:
                raise FileNotFoundError
        except FileNotFoundError:
            expected = "the checkpoint of a run that no process goes on with"
            remedy = "Wait until the run is over, or end it."
            raise InputError("resume", str(self.place), expected, remedy) from None
        write_file(self.folder / OWNER, owner.decode(), "checkpoint")
        write_file(self.folder / MANIFEST, before.decode(), "checkpoint")

    def _is_ours(self) -> bool:
        """Return whether who owns the copy is this process, or who last wrote the folder on this disk."""
        try:
            owner = (self.place / OWNER).read_bytes()
            return owner == self._owner or owner == (self.folder / OWNER).read_bytes()
        except FileNotFoundError:
            return False

    def _check_owner(self) -> None:
        try:
            found = (self.place / OWNER).read_bytes()
        except FileNotFoundError:
            found = b"{}"
        if found != self._owner:
            who: dict[str, Any] = {}
            with suppress(ValueError):
                who = json.loads(found)
            by = f"process {who['process']} on {who['host']}" if "host" in who else "another process"
            raise _TakenOver(
                f"the run to {self.out} was taken over by {by}: it ends here, and goes on there."
            )

    def _files(self, checkpoint: Path, kept: Iterable[str], drawn: bool) -> dict[str, tuple[int, int]]:
        """Return what tells a file of the folder from one of before, by its name there."""
        folders = [checkpoint, self.folder / DRAWN] if drawn else [checkpoint]
        walks = (entry for folder in folders for entry in os.walk(folder))
        files = [os.path.join(inner, name) for inner, _, names in walks for name in names]
        files += [str(self.folder / KEPT / Path(file).name) for file in kept]
        found = {os.path.relpath(file, self.folder): os.stat(file) for file in files}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}

    def _put(self, name: str) -> str:
        (self.place / name).put_file(self.folder / name)
        return name

    def _names(self) -> set[str]:
        return {url.removeprefix(f"{self.place}/") for url in self.place.within()}

    def _remove(self, names: Iterable[str]) -> None:
        self.place.delete_within(sorted(names))


class _TakenOver(RunError):
    """Another process goes on with the run."""
