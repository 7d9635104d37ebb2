"""Atomic publication: a path has the complete old result or the complete new one.

Everything is written beside its place, and the metadata of its root come last: they make it exist.

On a disk it is built in the directory ``<path>.partial``, which its writer locks, synced, and renamed. Where
a directory is replaced, ``<path>`` is renamed to ``<path>.previous`` first, and deleted in the end. Whoever
finds no ``<path>`` opens ``<path>.previous`` (`current_version`); the next writer renames it back.

In an object store nothing can be renamed: the root is written last and, where a store is replaced, deleted
first. An object ``<url>.writing`` keeps other writers away. No lock of an object store ends with its process:
that of a killed process of the same machine is taken over; the next writer is told to remove others.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from factorflow.errors import FactorflowError, InputError, RunError
from factorflow.storage.checksums import METADATA, verify_new_store
from factorflow.storage.local import LOCK, Lock, delete, disk_errors, make_directory, sync, sync_directory
from factorflow.storage.location import Location, as_location, list_names, read_if_present, resolve_links
from factorflow.storage.remote import RemotePath, map_concurrently

REPLACES = "replaces"
"""File in ``<path>.partial`` that tells a previous version from what somebody else has called so."""


@contextmanager
def new_directory(
    path: Location, overwrite: bool, recognise: Callable[[Any], object], reads: str = ""
) -> Iterator[Path]:
    """Yield an empty directory that becomes ``path`` when the body ends without an error.

    Parameters
    ----------
    path : Path or RemotePath
        Directories above it are made. For an object store a temporary directory is yielded, and uploaded.
    overwrite : bool
        Replace what is at ``path``; it stays there until the new one is complete and verified.
    recognise : callable
        Raises InputError for what may not be replaced.
    reads : str
        What the body reads elsewhere, for errors of those files: "of the views".
    """
    target = resolve_links(path)
    current_version(target)
    _check_target(target, overwrite, recognise)
    if isinstance(target, RemotePath):
        check_writable(target)
    else:
        with disk_errors(target):
            make_directory(target.parent)
    with _build_beside(target) as built:
        location = built if isinstance(target, RemotePath) else target
        with disk_errors(location):
            built.mkdir()
        with disk_errors(location, reads=reads):
            yield built
        with disk_errors(location):
            if isinstance(target, RemotePath):
                upload(built, target, replace=overwrite)
            else:
                _put_in_place(built, target)


@contextmanager
def new_file(path: str | os.PathLike[str] | RemotePath, parameter: str = "path") -> Iterator[Path]:
    """Yield where to write a file that becomes ``path``, in place of any there, when the body ends."""
    target = resolve_links(as_location(path, parameter))
    with _build_beside(target, parameter) as built:
        with disk_errors(built if isinstance(target, RemotePath) else target, parameter):
            yield built
            if isinstance(target, Path):
                sync(built)
                os.replace(built, target)
                sync_directory(target.parent)
        if isinstance(target, RemotePath):
            target.put_file(built)


def write_file(
    path: str | os.PathLike[str] | RemotePath, content: bytes | str, parameter: str = "path"
) -> None:
    """Publish a small file."""
    with new_file(path, parameter) as built:
        built.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_zip(folder: Path, file: Path) -> None:
    """Write the files of a folder to a .zip file, the same bytes for the same files."""
    with zipfile.ZipFile(file, "w") as packed:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            packed.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)


def publish(built: Path, path: Path) -> None:
    """Move a complete directory to its path on the same disk, replacing the previous one."""
    target = resolve_links(path)
    with disk_errors(target), _build_beside(target):
        _put_in_place(built, target)


def current_version(location: Location) -> Location:
    """Return where to read a location: ``<path>.previous`` after a writer was killed between two renames.

    It is renamed back if that can be done. Costs one look at the disk where there is something at the path.
    """
    if isinstance(location, RemotePath) or os.path.lexists(path := resolve_links(location)):
        return location
    if _has_previous(path):
        recover(path)
    return _previous(path) if _has_previous(path) and not os.path.lexists(path) else location


def recover(path: Path) -> None:
    """Undo or finish an interrupted publication, unless another writer is active or the disk is read-only."""
    with suppress(FactorflowError, OSError), _build_beside(resolve_links(path)):
        pass


@contextmanager
def temporary_directory(path: Location, suffix: str) -> Iterator[Path]:
    """Yield an empty directory on the disk of an output, in ``<path>.<suffix>``; it is deleted at the end."""
    target = resolve_links(path)
    with _build_beside(target, suffix=suffix) as folder:
        with disk_errors(target):
            folder.mkdir()
        yield folder


def delete_location(location: Location) -> None:
    """Delete a file or an object, or a directory or a store; in an object store the root goes first."""
    if isinstance(location, RemotePath):
        (location / METADATA).unlink()
        location.unlink_within(location.list_names())
        location.unlink()
    else:
        delete(location)


def check_outside(path: Location, parameter: str = "output") -> None:
    """Refuse a path within a dataset or a posterior: it would go when that is replaced or deleted."""
    for folder in path.parents:
        try:
            schema = json.loads((folder / METADATA).read_text(encoding="utf-8"))["attributes"]["schema"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if str(schema).startswith("factorflow"):
            expected = f"a path that is not within {folder}, a {schema}"
            raise InputError(parameter, str(path), expected, "Choose a path beside it.")


def _check_target(path: Location, overwrite: bool, recognise: Callable[[Any], object]) -> None:
    """Refuse an output that exists and may not be overwritten, or that is within another."""
    check_outside(path)
    if not (path.exists() if isinstance(path, RemotePath) else os.path.lexists(path)):
        return
    if not overwrite:
        remedy = "Choose another, or overwrite it: {overwrite}."
        raise InputError("output", str(path), "a path that does not exist", remedy, overwrite=True)
    if isinstance(path, Path) and path.is_dir() and not any(path.iterdir()):
        return
    try:
        recognise(path)
    except InputError as error:
        if "schema version" not in error.parameter:
            remedy = "It is not a factorflow result: remove it, or choose another path."
            raise InputError("output", str(path), "an output of the same kind to overwrite", remedy) from None


@contextmanager
def _build_beside(path: Location, parameter: str = "output", *, suffix: str = "partial") -> Iterator[Path]:
    """Yield the name of something to build, in ``<path>.<suffix>``, which is locked, and deleted at the end.

    What a killed writer of ``path`` began is undone or finished first, and what this one began at the end.
    For an object store: a name in a temporary directory.
    """
    if isinstance(path, RemotePath):
        with tempfile.TemporaryDirectory(prefix="factorflow-") as scratch:
            yield Path(scratch, path.name)
        return
    with disk_errors(path, parameter):
        lock = Lock(Path(f"{path}.{suffix}", LOCK), path, parameter)
    with closing(lock):
        folder, recovers = lock.file.parent, suffix == "partial"
        with disk_errors(path, parameter):
            lock.refuse_others(path, parameter, {path.name, REPLACES})
            if recovers:
                if os.path.lexists(path) and _has_previous(path) and not (folder / REPLACES).exists():
                    lock.delete_directory()
                    remedy = "It is not what a killed writer left: move it, or choose another path."
                    raise InputError(parameter, str(_previous(path)), "a path that does not exist", remedy)
                _recover(path)
            delete(folder / path.name)
            if not _has_previous(path):  # else it could not be deleted
                delete(folder / REPLACES)
        try:
            yield folder / path.name
        finally:
            if recovers:
                with disk_errors(path, parameter):
                    _recover(path)
            if not (recovers and _has_previous(path)):  # else the next writer has to know that it is ours
                lock.delete_directory()


def _put_in_place(built: Path, path: Path) -> None:
    """Rename a directory to ``path``; the caller holds the lock of the path and recovers it afterwards."""
    replaces = os.path.lexists(path)
    if replaces:
        verify_new_store(built)
    sync(built)
    if replaces:
        Path(f"{path}.partial", REPLACES).touch()
        os.rename(path, _previous(path))
    os.rename(built, path)
    sync_directory(path.parent)


def _previous(path: Path) -> Path:
    return Path(f"{path}.previous")


def _has_previous(path: Path) -> bool:
    """Return whether there is a previous version; files have none, they are replaced in one step."""
    return _previous(path).is_dir() and not path.is_file()


def _recover(path: Path) -> None:
    """Rename the previous version back where there is no ``path``; delete it where there is."""
    if _has_previous(path) and os.path.lexists(path):
        with suppress(OSError):
            delete(_previous(path))
    elif _has_previous(path):
        os.rename(_previous(path), path)
        sync_directory(path.parent)


def upload(folder: Path, location: RemotePath, *, replace: bool) -> None:
    """Copy a complete store of a disk into an object store; it exists there when all of it has arrived.

    What is there is an InputError, or deleted first (``replace``), once the new store is verified: until that
    is uploaded there is nothing that opens. A failure leaves nothing either, and is a RunError.
    """
    names = list_names(folder) - {METADATA}
    with claim(location, has_objects=True):
        old = location.list_names()
        if old and not replace:
            raise InputError("output", str(location), "a name that does not exist", "Choose another one.")
        if old:
            verify_new_store(folder)
        with _delete_on_failure(location, replaced=bool(old)):
            (location / METADATA).unlink()  # first: readers of the old store must notice
            location.unlink_within(old - {METADATA})

            def put(name: str) -> None:
                (location / name).put((folder / name).read_bytes())

            for _ in map_concurrently(True, put, sorted(names)):
                pass
            if location.list_names() != names:
                remedy = "Another process writes there, or deletes what is there: choose another one."
                raise InputError("output", str(location), "a name without another writer", remedy)
            _put_new(location / METADATA, (folder / METADATA).read_bytes())


def is_uploaded(folder: Path, location: RemotePath) -> bool:
    """Return whether a store of a disk has arrived at a location: its root came last."""
    return read_if_present(location / METADATA) == (folder / METADATA).read_bytes()


@contextmanager
def claim(location: RemotePath, parameter: str = "output", *, has_objects: bool = False) -> Iterator[None]:
    """Lock a location with an object ``<url>.writing``; an InputError if it is locked.

    With ``has_objects``, the error says that a writer that was killed leaves objects below it. Credentials
    that may not delete are an InputError before anything is written: stores refuse them for missing objects,
    too.
    """
    object_ = RemotePath(f"{location}.writing")
    (object_ / "none").unlink()
    who = {"host": socket.gethostname(), "process": os.getpid(), "since": datetime.now(UTC).isoformat()}
    content = json.dumps(who | {"machine": _machine(), "started": _start_time(os.getpid())}).encode()
    try:
        try:
            _put_new(object_, content)
        except FileExistsError:
            version = object_.version()
            with suppress(OSError, ValueError):
                who = json.loads(object_.read_text())
            if not (any(version[:2]) and _has_ended(who)):
                raise
            object_.put(content, replaces=version)
    except FileExistsError:
        expected = f"a name without another writer (process {who['process']} on {who['host']} does)"
        left = f"the object {object_}" + (f" and all objects in {location}/" if has_objects else "")
        remedy = f"Wait for it. If it was killed (it began at {who['since']}), remove {left}."
        raise InputError(parameter, str(location), expected, remedy) from None
    try:
        yield
    finally:
        with suppress(FactorflowError, OSError):  # the store is away: the next writer is told
            object_.unlink()


def check_writable(location: RemotePath) -> None:
    """Raise an error if objects cannot be written and deleted there, or another process does it now."""
    with claim(location, has_objects=True):
        pass


def _put_new(location: RemotePath, content: bytes) -> None:
    """Create an object; FileExistsError if it exists."""
    try:
        location.put(content, new=True)
    except FileExistsError:  # a request whose answer was lost is sent again, and finds what it wrote itself
        if location.read_bytes() != content:
            raise


def _machine() -> str:
    """Return an identifier of this machine since it was started, or of a container on it; "": unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _start_time(process: int) -> str:
    """Return the start time of a process in clock ticks; "" if there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return ""


def _has_ended(who: Mapping[str, Any]) -> bool:
    """Return whether a writer is known to have ended: it was one of this machine."""
    return who.get("machine") == _machine() != "" and _start_time(who["process"]) != who.get("started")


@contextmanager
def _delete_on_failure(location: RemotePath, *, replaced: bool) -> Iterator[None]:
    """Delete a partial upload; the error says what remains."""
    try:
        yield
    except FileExistsError as error:  # the root is another process's
        text = "Another process put it there meanwhile. Objects of both are there, so readers will refuse it"
        raise RunError(f"{location} was not written. {text}: remove it, and choose another name.") from error
    except BaseException as error:
        left = f" What was there before is gone: {location}." if replaced else ""
        try:
            location.unlink_within(location.list_names())
        except (FactorflowError, OSError):
            left += f" Objects without a root are left in {location}/: remove them."
        if isinstance(error, FactorflowError | OSError):
            text = f"{location} was not written, and nothing that opens is there: {error}{left}"
            raise RunError(text) from error
        raise
