"""Statistics of blocks that sit out of a minibatch, on disk when they outgrow memory.

With `Stage.replace` every block keeps the statistics it gave last. A file is written once, under the number
of the iteration that made it, and never changed: a task that is computed again writes the same bytes, and a
checkpoint may refer to it. Files that the newest checkpoint no longer names are deleted.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorflow.engine.leaves import freeze
from factorflow.errors import RunError
from factorflow.models.base import Model

__all__ = ["KEPT_SHARE", "OnDisk", "fetch", "forget", "must_spill", "put"]

KEPT_SHARE = 0.25
"""Share of a task's memory that kept statistics may take before they go to disk."""


@dataclass(frozen=True)
class OnDisk:
    """Where the statistics of one block are."""

    path: str


def must_spill(model: Model[Any], n_groups: int, n_chains: int, limit: int) -> bool:
    """Return whether the kept statistics of a group would take more memory than they may."""
    if not any(stage.replace for stage in model.stages()):
        return False
    blocks = -(-model.meta.n_blocks // n_groups)
    return blocks * n_chains * model.footprint().statistics > KEPT_SHARE * limit


def put(folder: str | None, name: str, number: int, tick: int, stats: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what stands for the statistics of a block: themselves, or where they were written."""
    if folder is None:
        return stats
    path = Path(folder) / f"{name}-{number:08d}-{tick:08d}.pkl"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(pickle.dumps(stats, protocol=5))
    os.replace(temporary, path)
    return (OnDisk(str(path)),)


def fetch(stats: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the statistics of a block for each chain.

    Raises
    ------
    RunError
        If their file is gone or damaged.
    """
    if len(stats) != 1 or not isinstance(stats[0], OnDisk):
        return stats
    try:
        loaded: tuple[Any, ...] = freeze(pickle.loads(Path(stats[0].path).read_bytes()))
    except (OSError, pickle.UnpicklingError, EOFError) as error:
        raise RunError(f"kept statistics {stats[0].path} cannot be read: {error}") from error
    return loaded


def forget(folder: Path, named: Iterable[str]) -> None:
    """Delete the files that nothing refers to any more."""
    wanted = {Path(path).name for path in named}
    for file in folder.glob("*.pkl"):
        if file.name not in wanted:
            file.unlink(missing_ok=True)


def named(kept: Mapping[Any, tuple[Any, ...]]) -> list[str]:
    """Return the files that kept statistics are in."""
    return [part.path for stats in kept.values() for part in stats if isinstance(part, OnDisk)]
