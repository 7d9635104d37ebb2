"""What is asked of a disk: locks, two paths exchanged in one step, content that has arrived there."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from factorflow.errors import InputError

__all__ = [
    "ADDRESS",
    "FULL",
    "GrowingFolder",
    "Lock",
    "exchange",
    "local_path",
    "make_folder",
    "no_source",
    "real_path",
    "remove",
    "shown",
    "sync",
    "sync_directory",
    "why",
]

ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://|(?:s3|gs|az|https?|ftp):/")
"""What is no path on a disk; with a single slash too, which is what `pathlib.Path` makes of it."""

FULL = {errno.ENOSPC, errno.EDQUOT}
"""Errors of a disk, or of a share of it, that is full."""

SYNC_THREADS = 8
"""Files that are brought to the disk at a time: one after the other takes five times as long."""

CLOCKS, STEP = 60 * 10**9, 10**8
"""Nanoseconds by which clocks of hosts that write to a disk may differ, and above steps of times of files."""

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Constants of Linux's renameat2."""


class Lock:
    """A folder's lock, which ends with the process at the latest.

    Where the file system knows no locks, everyone gets one.

    Parameters
    ----------
    folder : Path
        Made when it is not there.
    path : path or URL
        What is being written, for the message.
    parameter : str
        What the message calls it.

    Raises
    ------
    InputError
        When another process, or another writer in this one, holds it.
    """

    def __init__(self, folder: Path, path: object, parameter: str = "output") -> None:
        self._descriptor = -1
        while self._descriptor < 0:
            with suppress(FileExistsError):
                os.mkdir(folder)
            try:
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:  # its last holder has just removed it
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_at(descriptor, folder):
                    os.close(descriptor)
                    continue
            except BlockingIOError:
                os.close(descriptor)
                expected, remedy = "a path that no other process writes", "Wait for it, or choose another."
                raise InputError(parameter, str(path), expected, remedy) from None
            except OSError:  # a file system without locks
                pass
            self._descriptor = descriptor

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)


def local_path(path: str | os.PathLike[str], parameter: str = "path") -> Path:
    """Return a path as it is given, made absolute; ``~`` is the home folder, as in a shell.

    Raises
    ------
    InputError
        For an address, ``s3://bucket/name`` would become folders of that name, and for what is no path.
    """
    try:
        text = os.path.expanduser(os.fsdecode(path))
    except TypeError:
        remedy = "Give where it is; write_dataset writes data there and returns the dataset."
        raise InputError(parameter, type(path).__name__, "a path", remedy) from None
    _refuse_address(text, parameter)
    if "\0" in text:
        raise InputError(
            parameter, repr(text), "a path without the character 0", "Check where it comes from."
        )
    return Path(os.path.abspath(text))


def _refuse_address(text: str, parameter: str) -> None:
    if ADDRESS.match(text):
        remedy = "Mount it, or copy it from and to there."
        raise InputError(parameter, shown(text), "a path on a disk", remedy)


def shown(address: str) -> str:
    """Return an address as errors may show it: of one that can hold a password its first word."""
    return address.partition(":")[0] + "://..." if re.search(r"[@?#]", address) else address


def no_source(path: str | os.PathLike[str], parameter: str) -> InputError:
    """Return the error of a source that is not there."""
    text, remedy = os.fsdecode(path), "Check the path."
    if ADDRESS.match(text):
        text, remedy = (
            shown(text),
            "Copy it to a disk; what is ingested may be at an s3://, gs:// or az:// URL, as text.",
        )
    return InputError(parameter, text, "a file or folder that exists", remedy)


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return where a path really is: what a link stands for is replaced, and the link stays.

    Raises
    ------
    InputError
        For an address: whatever is written goes through here.
    """
    _refuse_address(os.fsdecode(path), "path")
    return Path(os.path.realpath(path))


def sync_directory(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    _sync_one(str(folder))


def why(error: OSError, path: str | os.PathLike[str], needed: int = 0) -> str:
    """Return in words why something could not be written; of a full disk, what is free and what is needed.

    Parameters
    ----------
    error : OSError
        What the system said.
    path : path
        What was being written.
    needed : int
        Bytes that were to be written, as far as that is known.
    """
    if error.errno != errno.ENOSPC:
        return error.strerror or str(error)
    place = next(folder for folder in (Path(path), *Path(path).absolute().parents) if folder.exists())
    with suppress(OSError):
        free = shutil.disk_usage(place).free
        asked = f", {needed:,} are needed" if needed else ""
        return f"{error.strerror} ({free:,} bytes are free at {place}{asked})"
    return error.strerror or str(error)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, as far as they are not there, and bring them to the disk."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_directory(folder.parent)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; return False where that cannot be done."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(number, os.strerror(number), str(other))


@cache
def _renameat2() -> Any:
    """Return the C library's renameat2, or None."""
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(built: Path) -> None:
    """Bring a file, or a folder with all in it, to the disk."""
    inner = _inner(str(built)) if built.is_dir() else ()
    _sync_all([str(built), *(entry.path for entry in inner)])


class GrowingFolder:
    """A folder that is written to again and again, and what of it is on the disk already.

    Parameters
    ----------
    path : Path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._since = 0
        self._known: dict[str, tuple[int, int]] = {}

    def sync(self) -> None:
        """Bring to the disk what was changed since the last time.

        What looks as it did then is on the disk, unless it was changed in the moment in which it was looked
        at: times of files have steps. What is much older than the newest file is not compared at all.
        """
        found = {str(self.path): self.path.stat()}
        found |= {entry.path: entry.stat() for entry in _inner(str(self.path))}
        changed = {path: stat for path, stat in found.items() if stat.st_mtime_ns >= self._since}
        looks = {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in changed.items()}
        _sync_all([path for path, look in looks.items() if self._known.get(path) != look])
        newest = max(stat.st_mtime_ns for stat in found.values())
        self._since = newest - CLOCKS
        self._known = {path: look for path, look in looks.items() if look[1] < newest - STEP}


def _inner(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield all files and folders in a folder; what goes while one looks is not there."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _inner(entry.path)


def _sync_all(paths: Sequence[str]) -> None:
    if len(paths) < 2:
        for path in paths:
            _sync_one(path)
        return
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        list(pool.map(_sync_one, paths))


def _sync_one(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot
            raise
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, folder: Path) -> bool:
    """Return whether an open folder is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False
