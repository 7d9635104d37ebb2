"""Where a run leaves its result, and what is beside it meanwhile."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Literal

from factorflow.disk import Lock, make_folder, remove, sync, sync_directory
from factorflow.engine.checkpoint import KEPT, MANIFEST, Checkpoints, read_manifest
from factorflow.engine.folder import (
    FINISHED,
    PARTIAL,
    REPLACES,
    deliver,
    deliver_from,
    is_empty,
    remove_folder,
    remove_leftover,
    run_folder,
)
from factorflow.engine.mirror import DRAWN, MARK, Mirror
from factorflow.errors import FactorflowError, InputError
from factorflow.files import check_outside, disk_errors, put_in_place, repair
from factorflow.place import Remote, as_place, named
from factorflow.posterior.record import RunRecord
from factorflow.posterior.schema import is_posterior
from factorflow.posterior.store import read_run
from factorflow.upload import check_writable, upload

__all__ = ["Output"]


class Output:
    """The path a posterior goes to, and the folder of the run, ``<out>.run`` beside it while it lasts.

    Parameters
    ----------
    out : path, URL or None
        None: the posterior is kept in memory.
    record : RunRecord
        The run.
    overwrite : bool
        Replace what is at ``out`` once the new result is complete.
    resume : bool or "auto"
        Go on from the checkpoint in the folder.

    Attributes
    ----------
    is_complete : bool
        Whether the result of this very run is at ``out`` already.
    resuming : bool
        Whether the run goes on from its checkpoint.

    Raises
    ------
    InputError
        If ``out`` exists, cannot be written, or there is nothing to resume.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | Remote | None,
        record: RunRecord,
        *,
        overwrite: bool,
        resume: bool | Literal["auto"],
    ) -> None:
        self.record = record
        self.checkpoints: Checkpoints | None = None
        self.resuming = False
        self.is_complete = False
        self._temporary = out is None
        self._lock: Lock | None = None
        self._mirror: Mirror | None = None
        self.folder: Path | None = None
        if out is None:
            if resume is True:
                raise InputError("resume", True, "an `out` whose checkpoint is to be resumed", "Give `out`.")
            return
        check_outside(as_place(out, "out"), "out")
        self.path = named(out)
        self.folder = run_folder(self.path)
        repair(self.path)
        if isinstance(self.path, Remote):
            self._mirror = Mirror(self.folder, self.path)
        delivered = bool(resume) and deliver(self.path)
        if resume and self._mirror is not None:
            self._mirror.bring()
        self._found = exists, begun = self._look()
        if resume and exists and (begun or delivered or resume == "auto"):
            found = read_run(self.path)
            self.is_complete = found is not None and found.answers(record)
        if self.is_complete:
            remove_leftover(self.path)  # of a run that was killed after its result was put in its place
            return
        if resume is True or (resume == "auto" and begun):
            self.resuming = self._is_resumable(obsolete_allowed=resume == "auto" and overwrite)
        self._check_free(overwrite)

    def _look(self) -> tuple[bool, bool]:
        """Return whether there is something at the path, and a checkpoint beside it."""
        there = self.path.exists() if isinstance(self.path, Remote) else os.path.lexists(self.path)
        return there, self.can_go_on or (self._mirror is not None and self._mirror.holds_run())

    def _where_begun(self) -> Path | Remote | None:
        """Return where the run that can go on is."""
        return self.folder if self.can_go_on or self._mirror is None else self._mirror.place

    def _check_free(self, overwrite: bool) -> None:
        """Refuse a path that this run may not take."""
        exists, begun = self._found
        if exists and not (overwrite or self.resuming):
            raise InputError(
                "out", str(self.path), "a path where nothing is yet", "Use overwrite=True or another path."
            )
        if exists and not is_posterior(self.path) and not is_empty(self.path):
            raise InputError(
                "out",
                str(self.path),
                "a posterior to overwrite",
                "It is something else: choose another path, or remove it yourself.",
            )
        if begun and not (self.resuming or overwrite):
            raise InputError(
                "out",
                str(self.path),
                f"a path without an interrupted run ({self._where_begun()} holds one)",
                "Use resume=True to go on with it, or overwrite=True to begin anew.",
            )

    def _is_resumable(self, *, obsolete_allowed: bool) -> bool:
        """Whether the checkpoint is of this run; one of another run is an error unless it may be obsolete."""
        assert self.folder is not None
        try:
            Checkpoints(self.folder, self.record).read_manifest()
        except InputError:
            if obsolete_allowed:
                return False
            raise
        _, begun = read_manifest(self.folder)
        _warn_of_other_versions(begun, self.record)
        return True

    @property
    def name(self) -> str:
        """What the run is called in progress messages."""
        return "in memory" if self._temporary else self.path.stem

    @property
    def store(self) -> str | None:
        """Where the posterior is built."""
        return None if self.folder is None else str(self.folder / DRAWN)

    @property
    def kept(self) -> str | None:
        """Where kept statistics go when they outgrow memory."""
        return None if self.folder is None else str(self.folder / KEPT)

    @property
    def shown_path(self) -> str | None:
        """The path a user asked for."""
        return None if self._temporary else str(self.path)

    def open(self, *, needed: bool) -> None:
        """Make and lock the folder; without ``out`` only if one is ``needed`` (draws, or checkpoints).

        Raises
        ------
        InputError
            If it cannot be written, another run is writing there, or it holds something else.
        """
        if self._temporary:
            if not needed:
                return
            self.folder = Path(tempfile.mkdtemp(prefix="factorflow-"))
        assert self.folder is not None
        shown = self.folder if self._temporary else self.path
        if isinstance(shown, Remote):
            check_writable(shown)
        with disk_errors(self.folder if isinstance(shown, Remote) else shown, "out"):
            make_folder(self.folder.parent)
            lock = Lock(self.folder, shown, "out")
            try:
                if not self._temporary and self._look() != self._found:
                    expected = "a path that no other run writes"
                    raise InputError("out", str(shown), expected, "One has just ended there: look at it.")
                self._clear_folder()
                (self.folder / MARK).touch()
                if not self._temporary and self._found[0]:
                    (self.folder / REPLACES).touch()
                sync_directory(self.folder.parent)
                if self._mirror is not None:
                    self._mirror.take(resuming=self.resuming)
            except BaseException:
                lock.close()
                raise
        self._lock = lock
        copy = None if self._mirror is None else self._mirror.send
        self.checkpoints = Checkpoints(self.folder, self.record, copy)

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
        (self.folder / REPLACES).unlink(missing_ok=True)

    def begin_publishing(self, *, partial: bool, drawn: bool) -> str | None:
        """Return where the finished store is built; None: in memory.

        A partial result is built in a copy, so that its run can be resumed with its draws untouched. Without
        draws nothing that is there counts: it was left by an attempt that was killed.
        """
        if self.store is None:
            return None
        store = Path(self.store)
        goal = store.with_name(PARTIAL) if partial else store
        if (partial or not drawn) and goal.exists():
            remove(goal)
        if partial and drawn:
            shutil.copytree(store, goal)
        return str(goal)

    def complete(self, built: str, *, partial: bool) -> None:
        """Put the finished store in its place in one step; a partial result keeps its run beside it.

        One for an object store stays in the run's folder, for `deliver`.
        """
        if self._temporary:
            return
        if not isinstance(self.path, Remote):
            put_in_place(Path(built), self.path)
            if not partial:
                self._remove_folder()
        elif not partial:
            assert self.folder is not None
            with disk_errors(self.folder, "out"):
                sync(Path(built))
                os.rename(built, self.folder / FINISHED)
                sync_directory(self.folder)

    def deliver(self) -> None:
        """Upload a result for an object store; the run's folder stays if that fails, or it is partial.

        Raises
        ------
        InputError
            If it cannot be put there: another process is at it, or something is there by now.
        RunError
            If it could not be put there.
        """
        if self._temporary or not isinstance(self.path, Remote):
            return
        assert self.folder is not None
        if (self.folder / FINISHED).exists():
            deliver_from(self.folder, self.path)
            self._remove_folder()
            return
        built = self.folder / PARTIAL
        try:
            upload(built, self.path, replace=self._found[0])
        except FactorflowError as error:
            error.add_note(f"The checkpoint is in {self.folder}.")
            raise
        remove(built)

    @property
    def can_go_on(self) -> bool:
        """Whether there is a checkpoint to go on from, or a result that is not there yet."""
        if self._temporary or self.folder is None:
            return False
        return (self.folder / MANIFEST).exists() or (self.folder / FINISHED).exists()

    def left_behind(self) -> str | None:
        """Return what an interrupted run leaves, as a sentence; None without ``out``."""
        if self._temporary:
            return None
        if not self.can_go_on:
            return "No iteration was complete: nothing was kept."
        assert self.folder is not None
        if (self.folder / FINISHED).exists():
            return f"The posterior is complete: it is {self.folder / FINISHED}, and not yet {self.path}."
        found = read_run(self.path)
        partial = found is not None and found.status == "partial"
        posterior = f", the partial posterior is {self.path}" if partial else ""
        return f"The checkpoint is in {self.folder}{posterior}."

    def close(self) -> None:
        """Leave nothing behind that cannot be resumed."""
        if self._lock is None:
            return
        if not self.can_go_on:
            self._remove_folder()
        self._lock.close()
        self._lock = None

    def _remove_folder(self) -> None:
        assert self.folder is not None
        if self._mirror is not None:
            self._mirror.clear()
        with suppress(OSError):  # what stays is removed by the next run
            remove_folder(self.folder)


def _warn_of_other_versions(begun: RunRecord, now: RunRecord) -> None:
    """Warn when a run goes on in another environment: it may end with other last bits."""
    before, after = begun.environment, now.environment
    changed = [
        f"{name} {before.get(name)} -> {after.get(name)}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    if changed:
        warnings.warn(
            f"the run began in another environment ({', '.join(changed)}): its result may differ in the last "
            "bits from that of a run which was never interrupted",
            RuntimeWarning,
            stacklevel=2,
        )
