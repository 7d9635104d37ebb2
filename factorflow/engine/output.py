"""Where a run leaves its result, and what is beside it meanwhile."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from factorflow.engine.checkpoint import KEPT, MANIFEST, MAY_DIFFER, Checkpoints
from factorflow.errors import InputError
from factorflow.files import Lock, disk_errors, put_in_place, real_path, remove, repair
from factorflow.posterior.schema import is_posterior
from factorflow.posterior.store import read_run

__all__ = ["Output", "read_identity"]

MARK = "writable"
"""File by which a run's folder is known as one, whatever else a kill left in it."""


class Output:
    """The path a posterior goes to, and the folder ``<out>.run`` beside it while the run lasts.

    Parameters
    ----------
    out : path or None
        None: the posterior is kept in memory.
    identity : mapping
        What tells this run from any other.
    overwrite : bool
        Replace what is at ``out`` once the new result is complete.
    resume : bool or "auto"
        Go on from the checkpoint in the folder.

    Raises
    ------
    InputError
        If ``out`` exists, cannot be written, or there is nothing to resume.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None,
        identity: Mapping[str, Any],
        *,
        overwrite: bool,
        resume: bool | Literal["auto"],
    ) -> None:
        self.identity = dict(identity)
        self.checkpoints: Checkpoints | None = None
        self.resuming = False
        self.is_complete = False
        self._temporary = out is None
        self._lock: Lock | None = None
        self.folder: Path | None = None
        if out is None:
            if resume is True:
                raise InputError("resume", True, "an `out` whose checkpoint is to be resumed", "Give `out`.")
            return
        self.path = Path(out)
        repair(self.path)
        self.folder = run_folder(self.path)
        begun = (self.folder / MANIFEST).exists()
        self.resuming = resume is True or (resume == "auto" and begun)
        if self.resuming:
            self.resuming = self._is_resumable(obsolete_allowed=resume == "auto" and overwrite)
        elif resume == "auto" and self.path.exists():
            self.is_complete = self._is_this_run()
        partial = self.resuming and self.path.exists()
        if self.path.exists() and not (overwrite or self.is_complete or partial):
            raise InputError(
                "out", str(self.path), "a path where nothing is yet", "Use overwrite=True or another path."
            )
        if self.path.exists() and not is_posterior(self.path) and not _is_empty(self.path):
            raise InputError(
                "out",
                str(self.path),
                "a posterior to overwrite",
                "It is something else: choose another path, or remove it yourself.",
            )
        if begun and not (self.resuming or overwrite or self.is_complete):
            raise InputError(
                "out",
                str(self.path),
                f"a path without an interrupted run ({self.folder} holds one)",
                "Use resume=True to go on with it, or overwrite=True to begin anew.",
            )

    @property
    def name(self) -> str:
        """What the run is called in progress messages."""
        return "in memory" if self._temporary else self.path.stem

    @property
    def store(self) -> str | None:
        """Where the posterior is built."""
        return None if self.folder is None else str(self.folder / "posterior.zarr")

    @property
    def kept(self) -> str | None:
        """Where kept statistics go when they outgrow memory."""
        return None if self.folder is None else str(self.folder / KEPT)

    @property
    def shown_path(self) -> str | None:
        """The path a user asked for."""
        return None if self._temporary else str(self.path)

    def open(self, *, needed: bool) -> None:
        """Make the folder; without ``out`` only if one is ``needed`` (draws, or a cluster's checkpoints)."""
        if self._temporary:
            if not needed:
                return
            self.folder = Path(tempfile.mkdtemp(prefix="factorflow-"))
        assert self.folder is not None
        shown = self.folder if self._temporary else self.path
        with disk_errors(shown, "out"):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            lock = Lock(self.folder, shown, "out")
            try:
                self._clear_folder()
                (self.folder / MARK).touch()
            except BaseException:
                lock.close()
                raise
        self._lock = lock
        self.checkpoints = Checkpoints(self.folder, self.identity)

    def _clear_folder(self) -> None:
        """Remove what an earlier run left in the folder, but for what is resumed."""
        assert self.folder is not None
        left = list(self.folder.iterdir())
        if left and not (self.folder / MARK).exists():
            raise InputError(
                "out",
                str(self.path),
                f"{self.folder} to be free, or what a run of factorflow left there",
                "It holds something else: move it, or choose another path.",
            )
        for part in list(self.folder.rglob("*.partial")) if self.resuming else left:
            remove(part)

    def begin_publishing(self, *, partial: bool) -> str | None:
        """Return where the finished store is built; None: in memory.

        A partial result is built in a copy, so that its run can be resumed with its draws untouched.
        """
        if self.store is None or not partial:
            return self.store
        copy = str(Path(self.store).with_name("partial.zarr"))
        shutil.rmtree(copy, ignore_errors=True)
        if Path(self.store).exists():
            shutil.copytree(self.store, copy)
        return copy

    def complete(self, built: str, *, partial: bool) -> None:
        """Put the finished store in its place in one step; a partial result keeps its run beside it."""
        if self._temporary:
            return
        put_in_place(Path(built), self.path)
        if not partial and self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return not self._temporary and self.folder is not None and (self.folder / MANIFEST).exists()

    def left_behind(self) -> str | None:
        """Return what an interrupted run leaves, as a sentence; None without ``out``."""
        if self._temporary:
            return None
        if not self.has_checkpoint:
            return "No iteration was complete: nothing was kept."
        partial = read_run(self.path).get("status") == "partial"
        posterior = f", the partial posterior is {self.path}" if partial else ""
        return f"The checkpoint is in {self.folder}{posterior}."

    def close(self) -> None:
        """Leave nothing behind that cannot be resumed."""
        if self._lock is None or self.folder is None:
            return
        if not self.has_checkpoint:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()
        self._lock = None

    def _is_resumable(self, *, obsolete_allowed: bool) -> bool:
        """Whether the checkpoint is of this run; one of another run is an error unless it may be obsolete."""
        assert self.folder is not None
        try:
            Checkpoints(self.folder, self.identity).read_manifest()
        except InputError:
            if obsolete_allowed:
                return False
            raise
        return True

    def _is_this_run(self) -> bool:
        run = read_run(self.path)
        same = bool(run) and all(
            run["identity"].get(key) == value for key, value in self.identity.items() if key not in MAY_DIFFER
        )
        return bool(same and run["status"] == "complete")


def run_folder(out: str | os.PathLike[str]) -> Path:
    """Return the folder of a run, on the disk that ``out`` is really on; workers may work elsewhere."""
    return Path(f"{real_path(out)}.run")


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def read_identity(out: str | os.PathLike[str]) -> dict[str, Any]:
    """Return dataset, configuration, seed and hold-out of the interrupted run of ``out``."""
    manifest = Checkpoints(run_folder(out), {}).read_manifest()
    identity: dict[str, Any] = manifest["identity"]
    return identity
