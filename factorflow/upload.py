"""Putting a finished store into an object store: nothing can be renamed there, so the root comes last.

What makes a store exist is the ``zarr.json`` of its root. It is put when all else is there, only if there is
none (a conditional request), and where a store is replaced it is the first object that goes.

While the objects travel, an object ``<url>.writing`` beside them names their writer and keeps others out. No
lock of an object store ends with its process. That of a killed process of the same machine is taken over;
what another machine left, the next writer is told to remove.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from factorflow.errors import FactorflowError, InputError, RunError
from factorflow.place import Remote, at_once

__all__ = ["CLAIM", "check_writable", "claimed", "clear", "is_copy", "upload"]

ROOT = "zarr.json"
CLAIM = ".writing"
"""Ending of the object that keeps other writers away."""


def upload(folder: Path, place: Remote, *, replace: bool) -> None:
    """Put a sealed store of a disk into an object store; it exists there when all of it has arrived.

    Parameters
    ----------
    folder : Path
        The store.
    place : Remote
        Where to.
    replace : bool
        Remove what is there first. Meanwhile there is nothing that opens; a failure leaves nothing either.

    Raises
    ------
    InputError
        If something is there, or another process writes there.
    RunError
        If it could not be put there: nothing that opens is there then.
    """
    files = [os.path.join(inner, name) for inner, _, names in os.walk(folder) for name in names]
    names = sorted(os.path.relpath(file, folder) for file in files)
    with claimed(place, holds=True):
        there = _names(place)
        if there and not replace:
            raise InputError("output", str(place), "a name where nothing is yet", "Choose another one.")
        with _cleared_on_failure(place, replaced=bool(there)):
            (place / ROOT).delete()  # first: whoever reads the old one must learn of it
            place.delete_within(there - {ROOT})
            for _ in at_once(True, lambda name: _put(folder, place, name), [n for n in names if n != ROOT]):
                pass
            if _names(place) != set(names) - {ROOT}:
                remedy = "Another process writes there, or removes what is there: choose another one."
                raise InputError("output", str(place), "a name that no other process writes", remedy)
            _put_new(place / ROOT, (folder / ROOT).read_bytes())


def check_writable(place: Remote) -> None:
    """Refuse a place that cannot be written, before work begins whose result is to go there.

    Raises
    ------
    InputError
        If it may not be written, or another process writes there.
    RunError
        If the bucket is full.
    """
    with claimed(place, holds=True):
        pass


def clear(place: Remote) -> None:
    """Remove a store, its root first, or a single object, if it is there."""
    (place / ROOT).delete()
    place.delete_within(_names(place))
    place.delete()


def is_copy(folder: Path, place: Remote) -> bool:
    """Return whether the sealed store of a disk has arrived at a place: its root came last."""
    try:
        return (place / ROOT).read_bytes() == (folder / ROOT).read_bytes()
    except FileNotFoundError:
        return False


def _put(folder: Path, place: Remote, name: str) -> None:
    (place / name).put((folder / name).read_bytes())


def _put_new(place: Remote, content: bytes) -> None:
    """Put an object where there is none; raises FileExistsError where there is another one.

    A request whose answer is lost is sent again, and then finds what it put itself.
    """
    try:
        place.put(content, new=True)
    except FileExistsError:
        if place.read_bytes() != content:
            raise


def _names(place: Remote) -> set[str]:
    """Return the names of all objects within a place."""
    return {url.removeprefix(f"{place}/") for url in place.within()}


@contextmanager
def claimed(place: Remote, parameter: str = "output", *, holds: bool = False) -> Iterator[None]:
    """Keep other writers away from a place, by an object ``<url>.writing`` that is put if there is none.

    Parameters
    ----------
    place : Remote
        What is written.
    parameter : str
        What an error calls it.
    holds : bool
        Whether a writer that was killed leaves objects within it.

    Raises
    ------
    InputError
        If another process, or another thread of this one, writes there.
    """
    claim = Remote(f"{place}{CLAIM}")
    who = {"host": socket.gethostname(), "process": os.getpid(), "since": datetime.now(UTC).isoformat()}
    content = json.dumps(who | {"machine": _machine(), "started": _started(os.getpid())}).encode()
    try:
        try:
            _put_new(claim, content)
        except FileExistsError:
            version = claim.version()
            with suppress(OSError, ValueError):
                who = json.loads(claim.read_text())
            if not (any(version[:2]) and _is_gone(who)):
                raise
            claim.put(content, instead=version)
    except FileExistsError:
        expected = f"a name that no other process writes (process {who['process']} on {who['host']} does)"
        left = f"the object {claim}" + (f" and all objects in {place}/" if holds else "")
        remedy = f"Wait for it. If it was killed (it began at {who['since']}), remove {left}."
        raise InputError(parameter, str(place), expected, remedy) from None
    try:
        yield
    finally:
        with suppress(FactorflowError, OSError):  # a store that is away: the next writer is told
            claim.delete()


def _machine() -> str:
    """Return what tells a machine since it was started, or a container on it, from others; '': unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _started(process: int) -> str:
    """Return when a process of this machine was started, in ticks of its clock; '': there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return ""


def _is_gone(who: Mapping[str, Any]) -> bool:
    """Return whether a writer is known to be no more: it was one of this machine."""
    machine = _machine()
    return bool(machine) and who.get("machine") == machine and _started(who["process"]) != who.get("started")


@contextmanager
def _cleared_on_failure(place: Remote, *, replaced: bool) -> Iterator[None]:
    """Remove what was put, if not all of it was; say what that leaves."""
    try:
        yield
    except FileExistsError as error:  # the root is not ours: leave what is there to whom it belongs
        text = "Another process put it there meanwhile. Objects of both are there, so readers will refuse it"
        raise RunError(f"{place} was not written. {text}: remove it, and choose another name.") from error
    except BaseException as error:
        left = f" What was there before is gone: {place}." if replaced else ""
        try:
            place.delete_within(_names(place))
        except (FactorflowError, OSError):
            left += f" Objects without a root are left in {place}/: remove them."
        if isinstance(error, FactorflowError | OSError):
            text = f"{place} was not written, and nothing that opens is there: {error}{left}"
            raise RunError(text) from error
        raise
