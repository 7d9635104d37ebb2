"""Disks: atomic writes, fsync, locks."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from factorflow.errors import InputError, RunError, thread_limit_errors

LOCK = "lock"
"""Name of the lock file in a directory that this package makes beside an output: it also marks it as ours."""
FULL = {errno.ENOSPC, errno.EDQUOT}
"""Errors of a full disk or quota."""
ONLY_OF_WRITING = FULL | {errno.EROFS, errno.EFBIG}
SYNC_THREADS = 8
"""Concurrent fsyncs: one after the other takes five times as long."""


class Lock:
    """An exclusive lock on a file opened for writing, which ends with the process at the latest.

    If another process, or another writer of this one, holds it, that is an InputError. Every caller gets
    one where the file system has no locks. `is_new` says that no process was killed that held it.

    Parameters
    ----------
    file : Path
        The lock file, in a directory that is made if needed.
    path, parameter : object and str
        What is being written, and what errors call it.
    """

    def __init__(self, file: Path, path: object, parameter: str = "output") -> None:
        self.file = file
        while True:
            with suppress(FileExistsError):
                os.mkdir(file.parent)
            if file.parent.is_symlink():  # what is built here has to be on the disk of its output
                raise NotADirectoryError(errno.ENOTDIR, "It is a symbolic link", str(file.parent))
            self.is_new = not os.path.lexists(file)
            create = os.O_CREAT | os.O_EXCL if self.is_new else 0
            try:
                self._descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | create, 0o666)
            except (FileExistsError, FileNotFoundError):  # another process has just made or deleted it
                continue
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                expected, remedy = "a path that no other process writes", "Wait for it, or choose another."
                raise InputError(parameter, str(path), expected, remedy) from None
            except OSError:  # a file system without locks
                pass
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._descriptor), os.stat(file)):
                    return
            self.close()  # its holder deleted it between our opening and locking it

    def refuse_others(
        self, path: object, parameter: str = "output", allowed: Collection[str] | None = None
    ) -> None:
        """Refuse a directory with files of somebody else; a killed process may have left ``allowed``."""
        others = set(os.listdir(self.file.parent)) - {LOCK}
        if not self.is_new:
            others = others.difference(allowed) if allowed else set()
        if others:
            if self.is_new:
                self.file.unlink()
            expected = f"{self.file.parent} to be free, or what an interrupted run of factorflow left there"
            remedy = f"It holds something else ({min(others)}): move it, or choose another path."
            raise InputError(parameter, str(path), expected, remedy)

    def clear_directory(self, *, first: str = "") -> None:
        """Delete everything beside the lock, ``first`` first."""
        for name in sorted(set(os.listdir(self.file.parent)) - {LOCK}, key=lambda name: name != first):
            delete(self.file.parent / name)

    def delete_directory(self, *, first: str = "") -> None:
        """Delete the directory, the lock last, so that leftovers of a kill remain recognisable."""
        with suppress(OSError):  # the next writer deletes what is left
            self.clear_directory(first=first)
            self.file.unlink()
            self.file.parent.rmdir()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def atomic_write(path: Path, content: bytes | memoryview, *, durable: bool = False) -> None:
    """Write a file so that it has its old content or the new, whichever process is killed.

    Several processes may write the same content at once. What a kill leaves ends in ``.partial``. The content
    is synced before it gets its name if it is to be ``durable``, or replaces what a checkpoint may rely on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.partial")
    try:
        temporary.write_bytes(content)
        if durable or path.exists():
            sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def make_directory(path: Path) -> None:
    """Make a directory and those above it, and sync their names."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_directory(folder.parent)


def delete(path: Path) -> None:
    """Delete a file, a link or a directory tree."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Fsync a file or a directory tree."""
    _sync_all([str(path), *(entry.path for entry in (_entries(str(path)) if path.is_dir() else ()))])


def sync_directory(folder: Path) -> None:
    """Fsync the names in a directory."""
    _fsync(str(folder))


class IncrementalSync:
    """Fsyncs the new files of a directory tree at each call.

    What was synced is known by name and inode, never by time: clocks step back, and differ between hosts. A
    file that is replaced is a new inode, synced by its writer (`atomic_write`).
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._synced: dict[str, int] = {}

    def sync(self) -> None:
        """Fsync the files that are new since the last call, and the directories with their names."""
        present = {entry.path: entry.inode() for entry in _entries(self.path)}
        new = {path for path, inode in present.items() if self._synced.get(path) != inode}
        _sync_all(sorted(new | {os.path.dirname(path) for path in new}))
        self._synced = present


def check_space(folder: Path, needed: int) -> None:
    """Refuse to start when the disk of a directory cannot hold ``needed`` bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        value, expected = f"{folder} ({free / 1e9:.2f} GB free)", f"room for {needed / 1e9:.2f} GB"
        raise InputError("output", value, expected, "Free some space, or choose a path on another disk.")


def describe(error: OSError, path: str | os.PathLike[str], needed: int = 0) -> str:
    """Return why a path could not be written; of a full disk, the bytes that are free and ``needed``."""
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        with suppress(OSError):
            folder = next(f for f in (Path(path), *Path(path).absolute().parents) if f.exists())
            requirement = f", {needed:,} are needed" if needed else ""
            return f"{reason} ({shutil.disk_usage(folder).free:,} bytes are free at {folder}{requirement})"
    return reason


@contextmanager
def disk_errors(path: object, parameter: str = "output", *, reads: str = "") -> Iterator[None]:
    """Convert disk errors into InputErrors that name ``path``, or a RunError if the disk is full.

    Errors of an object store name it themselves. Errors of files that are read elsewhere meanwhile (``reads``
    says which) name those.
    """
    try:
        with thread_limit_errors():
            yield
    except OSError as error:
        name = str(error.filename or "")
        if not isinstance(path, Path):
            raise
        if reads and error.errno not in ONLY_OF_WRITING and not name.startswith(f"{path}.partial"):
            expected = "a file that can be read"
            raise InputError(f"file {name or reads}", str(error), expected, "Check it.") from error
        if error.errno in FULL:
            text = f"{parameter} {path} cannot be written: {describe(error, path)}"
            raise RunError(f"{text}. Free some space, or choose another path.") from error
        remedy = f"{error.strerror or error}: choose another, free some space, or change its permissions."
        raise InputError(parameter, str(path), "a path that can be written", remedy) from error


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield all files and directories below a directory; those deleted meanwhile are skipped."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(entry.path)


def _sync_all(paths: list[str]) -> None:
    with ThreadPoolExecutor(SYNC_THREADS) as pool:  # starts no thread without tasks
        list((map if len(paths) == 1 else pool.map)(_fsync, paths))


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system without fsync
            raise
    finally:
        os.close(descriptor)
