"""The one way to write: beside its place, to the disk, then renamed; what a kill leaves is seen to later.

Whatever is to appear at ``<path>`` is made in the folder ``<path>.partial`` and moved when it is complete, so
that ``<path>`` is always the old content or the new. The folder is locked by who writes there; the lock ends
with the process. A kill leaves the folder behind: the next writer empties it.

A folder that replaces another is exchanged with it in one step where the system can (Linux, most local
disks). Elsewhere the old one is moved into ``<path>.partial`` first, and a kill at that moment leaves nothing
at ``<path>``: `repair` puts it back. Everything that opens a path asks for that first.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from factorflow import disk
from factorflow.disk import FULL, Lock, exchange, make_folder, real_path, sync, sync_directory, why
from factorflow.errors import FactorflowError, InputError, RunError
from factorflow.place import Place, Remote, as_place
from factorflow.upload import clear, upload

__all__ = [
    "check_outside",
    "check_space",
    "clear_up",
    "disk_errors",
    "fresh_directory",
    "fresh_file",
    "put_in_place",
    "remove",
    "repair",
    "scratch_folder",
    "write_file",
    "write_scratch",
]

REPLACED = ".replaced"
"""Name, in ``<path>.partial``, of the old content while the new one is put in its place."""

PATIENCE = 1.0
"""Seconds that `repair` leaves to a writer that may be between its two renames."""


@contextmanager
def fresh_directory(
    path: str | os.PathLike[str] | Remote,
    overwrite: bool,
    recognise: Callable[[Any], object],
    reads: str = "",
) -> Iterator[Path]:
    """Yield an empty folder that becomes ``path`` when the body ends without an error.

    In an object store: a temporary folder of this machine, which is then uploaded (`factorflow.upload`).

    Parameters
    ----------
    path : path
        Folders above it are made.
    overwrite : bool
        Replace what is at ``path``; it stays there until the new one is complete.
    recognise : callable
        Raises InputError for what may not be replaced.
    reads : str
        What the body reads elsewhere, for errors of those files: "of the views".

    Raises
    ------
    InputError
        When ``path`` exists and ``overwrite`` is False, or it is something else, or it cannot be written, or
        another process is writing it.
    """
    if isinstance(path, Remote):
        check_target(path, overwrite, recognise)
        with tempfile.TemporaryDirectory(prefix="factorflow-") as scratch:
            built = Path(scratch, path.name)
            built.mkdir()
            with disk_errors(built, reads=reads):
                yield built
            upload(built, path, replace=overwrite)
        return
    path = real_path(path)
    repair(path)
    check_target(path, overwrite, recognise)
    with disk_errors(path):
        make_folder(path.parent)
    with _workshop(path) as folder:
        built = folder / path.name
        with disk_errors(path):
            os.mkdir(built)
        with disk_errors(path, reads=reads):
            yield built
        with disk_errors(path):
            sync(built)
            _move(built, path, folder)


@contextmanager
def fresh_file(path: str | os.PathLike[str] | Remote, parameter: str = "path") -> Iterator[Path]:
    """Yield where to write a file that becomes ``path``, in place of any there, when the body ends.

    Parameters
    ----------
    path : path or URL
        In a folder that exists.
    parameter : str
        What an error calls it.

    Raises
    ------
    InputError
        When it cannot be written, or another process is writing it.
    """
    place = as_place(path, parameter)
    if isinstance(place, Remote):
        with tempfile.TemporaryDirectory(prefix="factorflow-") as scratch:
            built = Path(scratch, place.name)
            with disk_errors(built, parameter):
                yield built
            place.put_file(built)
        return
    path = real_path(place)
    with disk_errors(path, parameter), _workshop(path, parameter) as folder:
        built = folder / path.name
        yield built
        sync(built)
        os.replace(built, path)
        sync_directory(path.parent)


def write_file(path: str | os.PathLike[str] | Remote, content: str | bytes, parameter: str = "path") -> None:
    """Write a small file at once (`fresh_file`)."""
    with fresh_file(path, parameter) as built:
        built.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_scratch(path: Path, content: bytes | memoryview, *, durable: bool = False) -> None:
    """Write a file of a run at once, as any of several processes may that have the same to write.

    It is brought to the disk first where it is to be ``durable``; for others a checkpoint does that as far as
    it needs them. Of a kill remains a file that ends in ``.partial``, in a folder that the run deletes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    built = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}.partial")
    try:
        built.write_bytes(content)
        if durable:
            sync(built)
        os.replace(built, path)
    except BaseException:
        with suppress(OSError):
            built.unlink(missing_ok=True)
        raise


@contextmanager
def scratch_folder(path: Place, what: str) -> Iterator[Path]:
    """Yield an empty folder ``<path>.<what>`` for what is needed meanwhile; it is removed at the end.

    What a kill left of it is removed the next time. Of a place in an object store: a temporary folder.

    Raises
    ------
    InputError
        When it cannot be made, or another process is at work there.
    """
    if isinstance(path, Remote):
        with tempfile.TemporaryDirectory(prefix="factorflow-") as scratch:
            yield Path(scratch)
        return
    path = real_path(path)
    folder = Path(f"{path}.{what}")
    with disk_errors(path):
        lock = Lock(folder, path)
    try:
        for left in folder.iterdir():
            remove(left)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()


def remove(place: Place) -> None:
    """Remove a file or an object, or a folder with all in it."""
    if isinstance(place, Remote):
        clear(place)
    else:
        disk.remove(place)


def put_in_place(built: Path, path: Path) -> None:
    """Move a complete folder, on the same disk, to where it belongs; what is there is replaced at once.

    Raises
    ------
    InputError
        When it cannot be put there, or another process is writing there; ``built`` stays then.
    """
    path = real_path(path)
    with disk_errors(path):
        sync(built)
        with _workshop(path) as folder:
            _move(built, path, folder)
        remove(built)  # the old one, where the two were exchanged


def repair(path: str | os.PathLike[str] | Remote) -> None:
    """Put back what was at ``path`` if its replacement was killed between two renames.

    Costs two looks at the disk where there is something at ``path``, or nothing to put back; in an object
    store nothing is renamed.

    Raises
    ------
    InputError
        When it cannot be put back.
    """
    if isinstance(path, Remote):
        return
    path = real_path(path)
    folder = _workshop_of(path)
    deadline = time.monotonic() + PATIENCE
    while not os.path.lexists(path) and os.path.lexists(folder / REPLACED):
        if time.monotonic() < deadline:  # someone may be about to put the new one there
            time.sleep(0.01)
            continue
        with disk_errors(path):
            lock = Lock(folder, path)
            try:
                _put_back(folder, path)
                with suppress(OSError):
                    os.rmdir(folder)
            finally:
                lock.close()


def clear_up(path: str | os.PathLike[str]) -> None:
    """Remove what a killed writer left beside what is complete at ``path``, unless another is at work."""
    path = real_path(path)
    if _workshop_of(path).is_dir():
        with suppress(FactorflowError, OSError), _workshop(path):
            pass


def check_target(path: Place, overwrite: bool, recognise: Callable[[Any], object]) -> None:
    """Refuse an output that exists, unless it is what may be overwritten, or that is within another."""
    check_outside(path)
    if not (path.exists() if isinstance(path, Remote) else os.path.lexists(path)):
        return
    if not overwrite:
        raise InputError(
            "output",
            str(path),
            "a path that does not exist yet",
            "Choose another, or overwrite it: overwrite=True (--overwrite).",
        )
    if isinstance(path, Path) and path.is_dir() and not any(path.iterdir()):
        return
    try:
        recognise(path)
    except InputError as error:
        if "schema version" in error.parameter:
            return
        raise InputError(
            "output",
            str(path),
            "an output of the same kind to overwrite",
            "It is something else; remove it yourself, or choose another path.",
        ) from None


def check_outside(path: Place, parameter: str = "output") -> None:
    """Refuse a path within a dataset or a posterior: it would go when that is replaced or removed."""
    for folder in path.parents:
        try:
            schema = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))["attributes"]["schema"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if str(schema).startswith("factorflow"):
            remedy = "Choose a path beside it."
            raise InputError(parameter, str(path), f"a path that is not within {folder}, a {schema}", remedy)


def check_space(folder: Path, needed: int) -> None:
    """Refuse to start when the disk of a folder cannot hold ``needed`` bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            "output",
            f"{folder} ({free / 1e9:.2f} GB free)",
            f"room for {needed / 1e9:.2f} GB",
            "Free some space, or choose a path on another disk.",
        )


@contextmanager
def disk_errors(path: Place, parameter: str = "output", *, reads: str = "") -> Iterator[None]:
    """Turn errors of the disk into InputErrors that name ``path``; a full one into a RunError.

    Parameters
    ----------
    path : Path or Remote
        What is being written; the errors of an object store name it themselves.
    parameter : str
        What the error calls it.
    reads : str
        What is read elsewhere meanwhile, if anything: errors of those files name them.
    """
    if isinstance(path, Remote):
        yield
        return
    try:
        yield
    except OSError as error:
        name = str(error.filename or "")
        if reads and error.errno not in _UNWRITABLE and not name.startswith(str(_workshop_of(path))):
            raise InputError(
                f"file {name or reads}", str(error), "a file that can be read", "Check it."
            ) from error
        if error.errno in FULL:
            text = f"{parameter} {path} cannot be written: {why(error, path)}"
            raise RunError(f"{text}. Free some space, or choose another path.") from error
        raise InputError(
            parameter,
            str(path),
            "a path that can be written",
            f"{error.strerror or error}: choose another, free some space, or change its permissions.",
        ) from error


_UNWRITABLE = FULL | {errno.EROFS, errno.EFBIG}


# Inner parts


def _workshop_of(path: Path) -> Path:
    return Path(f"{path}.partial")


@contextmanager
def _workshop(path: Path, parameter: str = "output") -> Iterator[Path]:
    """Yield the folder ``<path>.partial``, empty and locked; it is removed at the end."""
    folder = _workshop_of(path)
    with disk_errors(path, parameter):
        lock = Lock(folder, path, parameter)
    try:
        with disk_errors(path, parameter):
            _empty(folder, path)
        try:
            yield folder
        finally:
            with disk_errors(path, parameter):
                _put_back(folder, path)  # before anything is removed
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.close()


def _empty(folder: Path, path: Path) -> None:
    """Remove what a kill left of an earlier attempt; refuse a folder that holds anything else."""
    _put_back(folder, path)
    found = set(os.listdir(folder))
    if found - {path.name, REPLACED}:
        raise InputError(
            "output",
            str(folder),
            "nothing, or what an interrupted run of factorflow left there",
            "It holds something else: move it, or choose another path.",
        )
    for name in found:
        remove(folder / name)


def _move(built: Path, path: Path, folder: Path) -> None:
    """Put ``built`` at ``path``, what is there out of the way into ``folder`` or where ``built`` was."""
    if not os.path.lexists(path):
        os.rename(built, path)
    elif not exchange(built, path):
        os.rename(path, folder / REPLACED)
        os.rename(built, path)
    sync_directory(path.parent)


def _put_back(folder: Path, path: Path) -> None:
    """Give the old content its place again where nothing else took it."""
    if os.path.lexists(folder / REPLACED) and not os.path.lexists(path):
        os.rename(folder / REPLACED, path)
