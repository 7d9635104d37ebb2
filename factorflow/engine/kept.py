"""What blocks keep from one iteration to the next, on disk when it outgrows memory.

That is the local state of the rows and, with `Stage.replace`, the statistics that every block gave last. A
file is written once, under the number of the iteration that made it, and never changed: a task that is
computed again writes the same bytes, and a checkpoint may refer to it. Statistics that the newest checkpoint
no longer names are deleted. Local state is deleted as it is superseded; a checkpoint links what it needs.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorflow.errors import RunError
from factorflow.models.contract import Model
from factorflow.trees import freeze

__all__ = [
    "KEPT_SHARE",
    "LOCAL_COPIES",
    "SUPERSEDED",
    "OnDisk",
    "drop",
    "fetch",
    "forget",
    "linked",
    "local_must_spill",
    "must_spill",
    "named",
    "put",
]

KEPT_SHARE = 0.25
"""Share of a task's memory that kept statistics, and local state, may take before they go to disk."""

LOCAL_COPIES = 3
"""Local states of a group alive at once: before and after a sweep, and one on its way to a checkpoint."""

SUPERSEDED = 4
"""Iterations after which a block's local state is deleted: no task that may yet run reads it."""


@dataclass(frozen=True)
class OnDisk:
    """Where what one block keeps is."""

    path: str


def must_spill(model: Model[Any], n_groups: int, n_chains: int, limit: int) -> bool:
    """Return whether the kept statistics of a group would take more memory than they may."""
    if not any(stage.replace for stage in model.stages()):
        return False
    blocks = -(-model.meta.n_blocks // n_groups)
    return blocks * n_chains * model.footprint().statistics > KEPT_SHARE * limit


def local_must_spill(model: Model[Any], n_groups: int, n_chains: int, limit: int) -> bool:
    """Return whether the local state of a group would take more memory than it may."""
    rows = -(-model.meta.n_rows // n_groups)
    return LOCAL_COPIES * rows * n_chains * model.footprint().local_per_row > KEPT_SHARE * limit


def put(folder: str | None, name: str, number: int, tick: int, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what stands for the values of a block: themselves, or where they were written."""
    if folder is None:
        return values
    path = _file(folder, name, number, tick)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(pickle.dumps(values, protocol=5))
    os.replace(temporary, path)
    return (OnDisk(str(path)),)


def drop(folder: str | None, name: str, number: int, tick: int) -> None:
    """Delete what a block kept so long before iteration ``tick`` that nothing reads it any more."""
    if folder is not None and tick >= SUPERSEDED:
        _file(folder, name, number, tick - SUPERSEDED).unlink(missing_ok=True)


def _file(folder: str, name: str, number: int, tick: int) -> Path:
    return Path(folder) / f"{name}-{number:08d}-{tick:08d}.pkl"


def fetch(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a block keeps for each chain.

    Raises
    ------
    RunError
        If their file is gone or damaged.
    """
    if len(values) != 1 or not isinstance(values[0], OnDisk):
        return values
    try:
        loaded: tuple[Any, ...] = freeze(pickle.loads(Path(values[0].path).read_bytes()))
    except (OSError, pickle.UnpicklingError, EOFError) as error:
        raise RunError(f"the state {values[0].path} of a block cannot be read: {error}") from error
    return loaded


def linked(values: tuple[Any, ...], folder: Path, *, make: bool) -> tuple[Any, ...]:
    """Return values that refer to the file of the same name in ``folder``; ``make``: link it there first."""
    if len(values) != 1 or not isinstance(values[0], OnDisk):
        return values
    old = Path(values[0].path)
    new = folder / old.name
    if make and not new.exists():
        with open(old, "rb") as file:
            os.fsync(file.fileno())
        try:
            os.link(old, new)
        except OSError:  # a file system without links
            shutil.copyfile(old, new)
    return (OnDisk(str(new)),)


def forget(folder: Path, named: Iterable[str]) -> None:
    """Delete the files that nothing refers to any more."""
    wanted = {Path(path).name for path in named}
    for file in folder.glob("*.pkl"):
        if file.name not in wanted:
            file.unlink(missing_ok=True)


def named(kept: Mapping[Any, tuple[Any, ...]]) -> list[str]:
    """Return the files that kept statistics are in."""
    return [part.path for stats in kept.values() for part in stats if isinstance(part, OnDisk)]
