"""The copy of a run's checkpoints in an object store, ``<url>.run``: another machine can resume from it.

After each checkpoint its new files are uploaded, the manifest last: what it names is complete.

Two processes may not write there, and no lock of an object store ends with its process. So each process that
begins or resumes a run replaces the object ``owner``, by a conditional request, with a token of its own; a
process that finds another token before it writes a checkpoint ends with an error. A file in the directory on
the disk keeps the token: it says whether the run was there last.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import warnings
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from factorflow.engine.checkpoint import DRAWN, MANIFEST
from factorflow.errors import FactorflowError, InputError, RunError
from factorflow.storage.local import LOCK, Lock, check_space, sync
from factorflow.storage.publish import write_file
from factorflow.storage.remote import RemotePath, map_concurrently

OWNER = "owner"


class RemoteCheckpoints:
    """The copy of the checkpoints of a run.

    Parameters
    ----------
    directory : Path
        The directory of the run, on a disk.
    """

    def __init__(self, directory: Path, out: RemotePath) -> None:
        self.directory, self.out, self.location = directory, out, RemotePath(f"{out}.run")
        self._token = b""
        self._uploaded: dict[str, tuple[int, ...]] = {}

    def exist(self) -> bool:
        """Return whether there is a checkpoint."""
        return bool((self.location / MANIFEST).version())

    def download(self) -> bool:
        """Bring the checkpoint to the disk unless the run was there last; return whether it was brought."""
        if not self.exist() or ((self.directory / MANIFEST).exists() and self._is_ours()):
            return False
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        with closing(Lock(self.directory / LOCK, self.out, "out")) as lock:
            lock.refuse_others(self.out, "out")
            lock.clear_directory(first=MANIFEST)
            manifest, owner = ((self.location / name).read_bytes() for name in (MANIFEST, OWNER))
            names = sorted(self.location.list_names() - {MANIFEST, OWNER})
            versions = map_concurrently(True, lambda name: (self.location / name).version(), names)
            check_space(self.directory, sum(version[3] for version in versions if version))
            try:
                for name in names:  # each in several requests at a time
                    target = self.directory / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    (self.location / name).download(target)
                    sync(target)
                if (self.location / MANIFEST).read_bytes() != manifest:
                    raise FileNotFoundError
            except FileNotFoundError:
                expected = "the checkpoint of a run that no process goes on with"
                remedy = "Wait until the run is over, or end it."
                raise InputError("resume", str(self.location), expected, remedy) from None
            write_file(self.directory / OWNER, owner, "checkpoint")
            write_file(self.directory / MANIFEST, manifest, "checkpoint")
        return True

    def take_over(self, *, resuming: bool) -> None:
        """Claim the remote copy for this process; delete that of another run."""
        present, owner = self.location.list_names(), self.location / OWNER
        version = owner.version()
        who = {"token": secrets.token_hex(8), "host": socket.gethostname(), "process": os.getpid()}
        self._token = json.dumps(who).encode()
        try:
            owner.put(self._token, new=not version, replaces=version)
        except FileExistsError:
            expected = "a run that no other process begins or resumes"
            raise InputError("out", str(self.out), expected, "Wait for the other one.") from None
        write_file(self.directory / OWNER, self._token, "checkpoint")
        if not resuming:
            self.location.unlink_within(present - {OWNER})
        self._uploaded = dict.fromkeys(present if resuming else (), ())

    def upload(self, checkpoint: Path, *, with_draws: bool) -> None:
        """Upload the newest checkpoint, its manifest last, and delete what it does not name.

        A store that cannot be reached costs a warning: the checkpoint is on the disk, and the next one is
        uploaded again. If another process has resumed the run, that is a RunError.

        Parameters
        ----------
        with_draws : bool
            Whether the run has draws on the disk.
        """
        try:
            self._check_owner()
            files = self._files(checkpoint, with_draws)
            new = [name for name, identity in files.items() if self._uploaded.get(name) != identity]
            for name in map_concurrently(True, self._upload_file, new):
                self._uploaded[name] = files[name]
            self._check_owner()
            (self.location / MANIFEST).put((self.directory / MANIFEST).read_bytes())
            self.location.unlink_within(set(self._uploaded) - set(files) - {MANIFEST, OWNER})
            self._uploaded = files
        except _TakenOverError:
            raise
        except FactorflowError as error:
            text = f"the checkpoint is in {self.directory} alone, it could not be put into {self.location}"
            warnings.warn(f"{text}: {error}", RuntimeWarning, stacklevel=2)

    def delete(self) -> None:
        """Delete the copy, its manifest first, if this process or the run on this disk owns it."""
        with suppress(FactorflowError, OSError):  # the next run there deletes what stays
            if self._is_ours():
                names = self.location.list_names()
                (self.location / MANIFEST).unlink()
                self.location.unlink_within(names - {OWNER})
                (self.location / OWNER).unlink()

    def _is_ours(self) -> bool:
        """Return whether the owner is this process, or the one that last wrote the directory on this disk."""
        try:
            owner = (self.location / OWNER).read_bytes()
            return owner == self._token or owner == (self.directory / OWNER).read_bytes()
        except FileNotFoundError:
            return False

    def _check_owner(self) -> None:
        who: dict[str, Any] = {}
        with suppress(FileNotFoundError, ValueError):
            owner = (self.location / OWNER).read_bytes()
            if owner == self._token:
                return
            who = json.loads(owner)
        by = f"process {who['process']} on {who['host']}" if "host" in who else "another process"
        text = f"the run to {self.out} was taken over by {by}"
        raise _TakenOverError(f"{text}: it ends here, and goes on there.")

    def _files(self, checkpoint: Path, with_draws: bool) -> dict[str, tuple[int, ...]]:
        """Return the digest of each file of a checkpoint by relative name."""
        walks = (entry for f in [checkpoint, *[self.directory / DRAWN] * with_draws] for entry in os.walk(f))
        files = [os.path.join(folder, name) for folder, _, names in walks for name in names]
        stats = {os.path.relpath(file, self.directory): os.stat(file) for file in files}
        return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}

    def _upload_file(self, name: str) -> str:
        (self.location / name).put_file(self.directory / name)
        return name


class _TakenOverError(RunError):
    """Another process has resumed the run."""
