"""A child process to which something happens at its n-th operation on files: see `test_kills.py`.

``python faulty.py FOLDER WHAT FAULT NUMBER OPTIONS``; exit codes: 0 done, 3 a FactorflowError, 9 died.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import factorflow
from factorflow.errors import FactorflowError

EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
"""Audit events that change a folder; ``open`` counts where it is for writing."""

FAULTY = 3


def written(path: Path, seed: int, **options: Any) -> Any:
    """Write a small dataset."""
    rng = np.random.default_rng(seed)
    views = {"y": rng.standard_normal((70, 5)), "z": (rng.random((70, 3)) < 0.5).astype(float)}
    kinds = {"y": "gaussian", "z": "bernoulli"}
    path.parent.mkdir(parents=True, exist_ok=True)
    return factorflow.write_dataset(path, views, kinds, block_rows=32, **options)


class Faults:
    """Counts the operations on files below a folder; at one of them something happens.

    Parameters
    ----------
    folder : str
        What lies elsewhere is not counted.
    fault : str
        "death": the process is gone. "full": this and all later operations that need room fail. "power": the
        process is gone, and of files that were not brought to the disk nothing is left but their names.
    number : int
        The operation at which it happens; 0: never.
    """

    def __init__(self, folder: str, fault: str, number: int) -> None:
        self.folder, self.fault, self.number = folder, fault, number
        self.count = 0
        self.synced: dict[tuple[int, int], int] = {}
        self._fsync = os.fsync
        os.fsync = self.fsync

    def fsync(self, descriptor: int) -> None:
        """Bring a file to the disk, and remember that it is there."""
        self._step()
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        self.synced[found.st_dev, found.st_ino] = found.st_size

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """Take part in everything that Python does."""
        if event == "open":
            path, mode, flags = args
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if changes and isinstance(path, (str, bytes, os.PathLike)):
                self._at(os.fsdecode(path), room=True)
        elif event in EVENTS and isinstance(args[0], (str, bytes, os.PathLike)):
            inside = args[-1] if event in {"os.remove", "os.rmdir", "os.mkdir"} else -1
            folder = os.readlink(f"/proc/self/fd/{inside}") if inside >= 0 else ""
            self._at(os.path.join(folder, os.fsdecode(args[0])), room=event in {"os.mkdir", "os.link"})

    def _at(self, path: str, *, room: bool) -> None:
        if os.path.abspath(path).startswith(self.folder):
            self._step(room=room)

    def _step(self, *, room: bool = True) -> None:
        self.count += 1
        if not self.number or self.count < self.number:
            return
        if self.fault == "full":
            if room:
                raise OSError(errno.ENOSPC, "No space left on device")
            return
        if self.fault == "power":
            self._lose()
        os._exit(9)

    def _lose(self) -> None:
        """Empty every file that was written since it was brought to the disk, if it ever was."""
        self.number = 0
        for folder, _, files in os.walk(self.folder):
            for name in files:
                path = os.path.join(folder, name)
                found = os.stat(path)
                if self.synced.get((found.st_dev, found.st_ino)) != found.st_size:
                    os.truncate(path, 0)


def main() -> None:
    """Do what was asked for."""
    work, what, fault, number, options = sys.argv[1:]
    given = json.loads(options)
    folder = Path(work)
    folder.mkdir(parents=True, exist_ok=True)
    if what == "overwrite":
        written(folder / "d.zarr", 1)
    factorflow.fit  # noqa: B018  loads what is loaded lazily
    faults = Faults(os.path.abspath(work), fault, int(number))
    if what == "overwrite":  # the old dataset was brought to the disk long ago
        for path in folder.rglob("*"):
            faults.synced[path.stat().st_dev, path.stat().st_ino] = path.stat().st_size
    sys.addaudithook(faults.hook)
    try:
        if what == "fit":
            factorflow.fit(
                given["dataset"], given["config"], seed=3, holdout=0.1, checkpoint_every=2, max_iter=5,
                out=folder / "p.zarr", resume="auto",
            )  # fmt: skip
        else:
            written(folder / "d.zarr", 2, overwrite=what == "overwrite")
    except FactorflowError as error:
        print(type(error).__name__, error, *getattr(error, "__notes__", ()))
        sys.exit(FAULTY)
    print("operations:", faults.count)


if __name__ == "__main__":
    main()
