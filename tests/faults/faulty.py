"""A child process to which something happens at its n-th operation on files: see `test_kills.py`.

``python faulty.py`` reads attempts from its input, a JSON list a line (folder, what, fault, number, options),
makes each in a fork of itself, and answers with exit code, output and errors. The forks find everything
imported and compiled: an attempt takes what the fit takes. Exit codes: 0 done, 3 a FactorflowError, 9 died.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from fault_tools import memory

import factorflow
from factorflow.errors import FactorflowError

EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
"""Audit events that change a folder; ``open`` counts where it is for writing."""

FAULTY = 3


def written(path: Path, seed: int, **options: Any) -> Any:
    """Write a small dataset."""
    rng = np.random.default_rng(seed)
    views = {"y": rng.standard_normal((70, 5)), "z": (rng.random((70, 3)) < 0.5).astype(float)}
    views["counts"] = rng.poisson(0.1, (70, 4)).astype(float)
    kinds = {"y": "gaussian", "z": "bernoulli", "counts": "poisson"}
    path.parent.mkdir(parents=True, exist_ok=True)
    layout = {"counts": "sparse"}
    return factorflow.write_dataset(path, views, kinds, block_rows=32, layout=layout, **options)


def written_sparse(path: Path, seed: int, **options: Any) -> Any:
    """Write a dataset of a file whose entries are sorted by rows on the way, and a view computed from it."""
    import anndata
    import scipy.sparse as sp

    counts = np.random.default_rng(seed).poisson(0.1, (70, 6)).astype(np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cells.h5ad"
        anndata.AnnData(sp.csc_array(counts)).write_h5ad(file)
        likelihoods, layout = {"cells": "poisson"}, {"cells": "sparse"}
        factorflow.write_dataset(path, {"cells": file}, likelihoods, block_rows=32, layout=layout, **options)
    return factorflow.add_view(path, "log", of="cells", transform="log1p")


WRITERS = {"ingest": written, "overwrite": written, "sparse": written_sparse}


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


def attempt(work: str, what: str, fault: str, number: int, given: dict[str, Any]) -> int:
    """Make one attempt; return its exit code."""
    folder = Path(work)
    folder.mkdir(parents=True, exist_ok=True)
    if what == "overwrite":
        written(folder / "d.zarr", 1)
    faults = Faults(os.path.abspath(work), fault, number)
    for path in folder.rglob("*"):  # what is there was brought to the disk long ago
        with contextlib.suppress(FileNotFoundError):  # another writer has moved it meanwhile
            faults.synced[path.stat().st_dev, path.stat().st_ino] = path.stat().st_size
    sys.addaudithook(faults.hook)
    try:
        if given:
            fitted(folder / "p.zarr", what, given)
        else:
            WRITERS[what](folder / "d.zarr", 2, overwrite=what == "overwrite")
    except FactorflowError as error:
        print(type(error).__name__, error, *getattr(error, "__notes__", ()))
        return FAULTY
    print("operations:", faults.count)
    return 0


def fitted(out: Path, what: str, given: dict[str, Any]) -> None:
    """Fit what is given, go on with it, or replace the posterior that is there."""
    with memory(given["on_disk"]):
        if what == "resume":
            factorflow.resume(out)
        else:
            factorflow.fit(
                given["dataset"], given["config"], seed=3, holdout=0.1, checkpoint_every=2, max_iter=5,
                out=out, overwrite=what == "replace", resume="auto",
            )  # fmt: skip


def in_a_fork(request: list[Any]) -> tuple[int, str, str]:
    """Make an attempt in a fork; return its exit code, output and errors."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            code = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                code = attempt(*request)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    return code, texts[0], texts[1]


def main() -> None:
    """Make the attempts that are asked for, until the input ends."""
    known: set[str] = set()
    for line in sys.stdin:
        request = json.loads(line)
        what, given = request[1], request[4]
        if (kind := json.dumps([what, given])) not in known:
            known.add(kind)
            with tempfile.TemporaryDirectory() as folder:  # imports and compiles, for all forks
                if given:
                    fitted(Path(folder) / "p.zarr", "fit", given)
                else:
                    WRITERS[what](Path(folder) / "d.zarr", 1)
        print(json.dumps(in_a_fork(request)), flush=True)


if __name__ == "__main__":
    main()
