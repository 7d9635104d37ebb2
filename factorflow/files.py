"""Publishing a directory at once: written beside its place, then renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from factorflow.errors import InputError

__all__ = ["check_space", "fresh_directory"]

_OUTPUT_ERRORS = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG}


@contextmanager
def fresh_directory(path: Path, overwrite: bool, recognise: Callable[[Path], object]) -> Iterator[Path]:
    """Yield an empty directory ``<path>.partial`` that becomes ``path`` when the body ends without an error.

    ``recognise`` raises InputError for what may not be overwritten. What lies at ``path`` stays there until
    the new one is complete. After an interrupt (a kill included) ``path`` is as it was; what a kill leaves
    of ``<path>.partial`` is removed by the next one who writes there.

    Raises
    ------
    InputError
        When ``path`` exists and ``overwrite`` is False, or it is no dataset, or it cannot be written, or
        another ingest is writing it.
    """
    check_target(path, overwrite, recognise)
    partial, old = path.with_name(path.name + ".partial"), path.with_name(path.name + ".old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if partial.exists():
            os.close(_lock(path, partial))
            shutil.rmtree(partial)
        partial.mkdir()
        lock = _lock(path, partial)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield partial
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(path, old)
        os.replace(partial, path)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if error.errno in _OUTPUT_ERRORS or str(error.filename or "").startswith(str(partial)):
            raise _unwritable(path, error) from error
        raise InputError(
            f"file {error.filename or 'of the views'}", str(error), "a file that can be read", "Check it."
        ) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _lock(path: Path, partial: Path) -> int:
    """Lock a directory against another ingest that is still writing it; the lock ends with the process.

    Returns
    -------
    int
        An open descriptor of it.
    """
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            "output", str(path), "a path that no other process writes", "Wait for it, or choose another."
        ) from None
    except OSError:  # a file system without locks
        pass
    return descriptor


def check_target(path: Path, overwrite: bool, recognise: Callable[[Path], object]) -> None:
    """Refuse an output that exists, unless it is a dataset that may be overwritten."""
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise InputError(
            "output",
            str(path),
            "a path that does not exist yet",
            "Choose another, or overwrite it: overwrite=True (--overwrite).",
        )
    if path.is_dir() and not any(path.iterdir()):
        return
    try:
        recognise(path)
    except InputError as error:
        if "schema version" in error.parameter:
            return
        raise InputError(
            "output",
            str(path),
            "a factorflow dataset to overwrite",
            "It is something else; remove it yourself, or choose another path.",
        ) from None


def check_space(directory: Path, needed: int) -> None:
    """Refuse to start when the disk cannot hold ``needed`` bytes."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise InputError(
            "output",
            f"{directory.parent} ({free / 1e9:.2f} GB free)",
            f"room for {needed / 1e9:.2f} GB",
            "Free some space, or choose a path on another disk.",
        )


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        "output",
        str(path),
        "a path that can be written",
        f"{error.strerror or error}: choose another, or change its permissions.",
    )
