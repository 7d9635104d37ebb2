"""Local state of blocks on disk, when it outgrows memory.

That is the state of the rows from one iteration to the next. A file is written once, under the number of the
round that made it, and never changed: a task that is computed again writes the same bytes. Files are deleted
as they are superseded; a checkpoint links what it needs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from factorflow.core.trees import freeze
from factorflow.errors import RunError
from factorflow.storage.local import atomic_write, describe, sync
from factorflow.storage.serialize import dumps, loads

SUPERSEDED = 4
"""States of a block on disk at once: no task that may yet run reads an older one."""


@dataclass(frozen=True)
class OnDisk:
    """Paths of the spilled state of a block, and of its previous states."""

    path: str
    older: tuple[str, ...] = ()


def spill(
    folder: str | None,
    name: str,
    number: int,
    round_: int,
    values: tuple[Any, ...],
    before: tuple[Any, ...] | None = None,
) -> tuple[Any, ...]:
    """Return the values of a block, or their location on disk if they were spilled.

    Parameters
    ----------
    folder : str or None
        Where to; None: in memory.
    number, round_ : int
        The block, and the round that made them: together a file's name that no other values have.
    before : tuple or None
        What stood for them before; files that are superseded for long enough are deleted.
    """
    if folder is None or all(value is None for value in values):
        return values
    path = Path(folder) / f"{name}-{number:08d}-{round_:010d}.tree"
    try:
        atomic_write(path, dumps(values))
    except OSError as error:
        raise RunError(f"the state {path} of a block cannot be written: {describe(error, path)}") from error
    older: tuple[str, ...] = ()
    if before and isinstance(before[0], OnDisk):
        older = (before[0].path, *before[0].older)
        for old in older[SUPERSEDED - 1 :]:
            if Path(old).parent == path.parent:  # what a checkpoint refers to is not ours to delete
                Path(old).unlink(missing_ok=True)
    return (OnDisk(str(path), older[: SUPERSEDED - 1]),)


def load_spilled(
    values: tuple[Any, ...], classes: Mapping[str, type] = MappingProxyType({})
) -> tuple[Any, ...]:
    """Load the spilled state of a block, for each chain.

    Parameters
    ----------
    classes : mapping of str to type
        As for `factorflow.core.flatten.unflatten`.
    """
    if len(values) != 1 or not isinstance(values[0], OnDisk):
        return values
    try:
        loaded: tuple[Any, ...] = freeze(loads(Path(values[0].path).read_bytes(), classes))
    except (OSError, ValueError) as error:
        raise RunError(
            f"the state {values[0].path} of a block cannot be read: {error}. Run anew with {{overwrite}}.",
            overwrite=True,
        ) from error
    return loaded


def link_into(values: tuple[Any, ...], folder: Path, *, make: bool) -> tuple[Any, ...]:
    """Return values that refer to the file of the same name in ``folder``; ``make``: link it there first."""
    if len(values) != 1 or not isinstance(values[0], OnDisk):
        return values
    old = Path(values[0].path)
    new = folder / old.name
    if make and not new.exists():
        sync(old)
        try:
            os.link(old, new)
        except OSError:  # a file system without links
            shutil.copyfile(old, new)
            sync(new)
    return (OnDisk(str(new)),)


def delete_spilled(folder: Path) -> None:
    """Delete what was spilled into a folder: a checkpoint has links to all that counts."""
    for file in folder.glob("*.tree"):
        file.unlink(missing_ok=True)
