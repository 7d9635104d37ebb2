"""The directory of a run, ``<out>.run`` beside its result, and the publication of the result.

An object store is not written bit by bit: the directory of a run to there is on a disk, with its result until
all of it is uploaded; `remote_checkpoints` copies the checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import warnings
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

from factorflow.engine.checkpoint import DRAWN, KEPT, MANIFEST, Checkpoints, read_manifest
from factorflow.engine.remote_checkpoints import RemoteCheckpoints
from factorflow.errors import FactorflowError, InputError, RunError
from factorflow.posterior.record import RunRecord
from factorflow.posterior.schema import is_posterior
from factorflow.posterior.store import read_run
from factorflow.storage import publish
from factorflow.storage.local import LOCK, Lock, delete, disk_errors, make_directory, sync, sync_directory
from factorflow.storage.location import Location, as_location, local_path, output_location, resolve_links
from factorflow.storage.remote import RemotePath

PARTIAL = "partial.zarr"
"""Name, in the directory, of the result of a run that can be resumed."""
FINISHED, REPLACES = "finished.zarr", "replaces"
"""For an object store: the result until it is uploaded, and a file if it may replace another."""
RUNS = "FACTORFLOW_RUNS"
"""Environment variable: directory for the runs to object stores; else the working directory."""


class RunDirectory:
    """The working directory of a run, on the same disk as its result.

    Of an object store: ``<name>-<digest of the URL>.run`` in the directory that `RUNS` names.
    """

    def __init__(self, out: Location) -> None:
        self.out = out
        self.remote: RemoteCheckpoints | None = None
        if isinstance(out, RemotePath):
            digest = hashlib.sha256(str(out).encode()).hexdigest()[:8]
            self.path = local_path(os.environ.get(RUNS) or ".", RUNS) / f"{out.name}-{digest}.run"
            self.remote = RemoteCheckpoints(self.path, out)
        else:
            self.path = Path(f"{resolve_links(out)}.run")

    def is_resumable(self) -> bool:
        """Return whether there is a checkpoint on the disk, or a result that is not uploaded yet."""
        return (self.path / MANIFEST).exists() or (self.path / FINISHED).exists()

    def is_begun(self) -> bool:
        """Return whether there is one on the disk or in the object store."""
        return self.is_resumable() or (self.remote is not None and self.remote.exist())

    def is_ended(self) -> bool:
        """Return whether the complete result is in its place, and nothing is left to resume.

        What a run was still to replace (`REPLACES`) is not its result, also where its manifest was lost.
        """
        if (self.path / REPLACES).exists():
            return False
        if self.remote is not None and not self.out.exists():  # raises where the store cannot be read
            return False
        run = read_run(self.out)
        return run is not None and run.status in {"complete", "projected"} and not self.is_begun()

    def read_record(self) -> RunRecord:
        """Return the record of the interrupted run; an InputError if there is none."""
        if self.remote is not None:
            self.remote.download()
            if not self.path.exists():
                expected = f"an interrupted run: {self.path} or {self.out}.run to be there"
                remedy = f"Resume in the folder where the run was begun, or set {RUNS} to it."
                raise InputError("resume", str(self.out), expected, remedy)
        return read_manifest(self.path)[1]

    def deliver(self) -> bool:
        """Upload the result of a run that could not upload it itself; return whether there was one."""
        if self.remote is None or not (self.path / FINISHED).exists():
            return False
        with closing(Lock(self.path / LOCK, self.out, "out")) as lock:
            self.upload_result()
            self.delete(lock)
        return True

    def upload_result(self) -> None:
        """Upload the result, unless the run was killed after the last request."""
        assert isinstance(self.out, RemotePath)
        built = self.path / FINISHED
        try:
            if not publish.is_uploaded(built, self.out):
                publish.upload(built, self.out, replace=(self.path / REPLACES).exists())
        except FactorflowError as error:
            text = f"The posterior is complete in {built}: `factorflow resume {self.out}` uploads it"
            raise RunError(f"{error} {text}; or copy it to another place.") from error

    def delete(self, lock: Lock) -> None:
        """Delete the directory and its copy, manifests first: nothing half deleted is resumed.

        Before them what says that the run was still to replace something (`is_ended`).
        """
        with suppress(OSError):
            (self.path / REPLACES).unlink(missing_ok=True)
        if self.remote is not None:
            self.remote.delete()
        lock.delete_directory(first=MANIFEST)

    def delete_leftovers(self) -> None:
        """Delete files left by a killed run that had ended, unless another run is active."""
        if isinstance(self.out, Path):
            publish.recover(self.out)
        if self.path.exists():
            with suppress(InputError, OSError), closing(Lock(self.path / LOCK, self.out)) as lock:
                lock.refuse_others(self.out)
                self.delete(lock)


class Output:
    """The path a posterior goes to, and the directory of the run while it lasts.

    Parameters
    ----------
    out : path, URL or None
        None: the posterior is kept in memory.
    overwrite : bool
        Replace what is at ``out`` once the new result is complete.
    resume : bool or "auto"
        Go on from the checkpoint in the directory.

    Attributes
    ----------
    name : str
        What the run is called in progress messages.
    shown_path : str or None
        ``out`` as it is shown.
    folder : Path or None
        The directory of the run.
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
        out: str | os.PathLike[str] | RemotePath | None,
        record: RunRecord,
        *,
        overwrite: bool,
        resume: bool | Literal["auto"],
    ) -> None:
        self.record = record
        self.checkpoints: Checkpoints | None = None
        self.resuming = self.is_complete = False
        self.name = "in memory"
        self.shown_path: str | None = None
        self.folder: Path | None = None
        self._lock: Lock | None = None
        self._run: RunDirectory | None = None
        if out is None:
            if resume is True:
                raise InputError("resume", True, "an `out` whose checkpoint is to be resumed", "Give `out`.")
            return
        publish.check_outside(as_location(out, "out"), "out")
        self.path = output_location(out)
        self.name, self.shown_path = self.path.stem, str(self.path)
        self._run = run = RunDirectory(self.path)
        self.folder = run.path
        publish.current_version(self.path)
        delivered = bool(resume) and run.deliver()
        if resume and run.remote is not None:
            run.remote.download()
        self._present = exists, has_run = self._look(run)
        if resume and exists and (has_run or delivered or resume == "auto"):
            previous = read_run(self.path)
            self.is_complete = previous is not None and previous.is_result_of(record)
        if self.is_complete:
            run.delete_leftovers()  # of a run that was killed after its result was put in its place
            return
        if resume is True or (resume == "auto" and has_run):
            self.resuming = self._can_resume(obsolete_allowed=resume == "auto" and overwrite)
        self._check_free(run, overwrite)

    def _look(self, run: RunDirectory) -> tuple[bool, bool]:
        """Return whether there is something at the path, and a checkpoint beside it."""
        there = self.path.exists() if isinstance(self.path, RemotePath) else os.path.lexists(self.path)
        return there, run.is_begun()

    def _can_resume(self, *, obsolete_allowed: bool) -> bool:
        """Return whether the checkpoint is of this run; one of another run, or a damaged one, is an error.

        Unless it may be obsolete: then the run begins anew, of a damaged one with a warning.
        """
        assert self.folder is not None
        checkpoints = Checkpoints(self.folder, self.record)
        try:
            manifest, record = read_manifest(self.folder)
            if obsolete_allowed and checkpoints.differences(record):
                return False
            checkpoints.check_same_run(record)
            if obsolete_allowed:
                checkpoints.verify(manifest)
        except InputError as error:
            if not obsolete_allowed:
                raise
            text = f"the run in {self.folder} begins anew, since its checkpoint cannot be read: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return False
        _warn_of_other_versions(record, self.record)
        return True

    def _check_free(self, run: RunDirectory, overwrite: bool) -> None:
        """Refuse a path that this run may not take."""
        exists, has_run = self._present
        if exists and not (overwrite or self.resuming):
            expected, remedy = "a path that does not exist", "Use {overwrite} or another path."
        elif exists and not is_posterior(self.path) and not _is_empty(self.path):
            expected = "a posterior to overwrite"
            remedy = "It is not a factorflow result: choose another path, or remove it."
        elif has_run and not (self.resuming or overwrite):
            at = run.path if run.remote is None or run.is_resumable() else run.remote.location
            expected = f"a path without an interrupted run ({at} holds one)"
            remedy = "Use {resume} to go on with it, or {overwrite} to begin anew."
        else:
            return
        raise InputError("out", str(self.path), expected, remedy, resume=True, overwrite=True)

    @property
    def store(self) -> str | None:
        """Where the posterior is built."""
        return None if self.folder is None else str(self.folder / DRAWN)

    @property
    def local_path(self) -> str | None:
        """Where local state goes when it outgrows memory."""
        return None if self.folder is None else str(self.folder / KEPT)

    def open(self, *, needed: bool) -> None:
        """Make and lock the directory; without ``out`` only if one is ``needed`` (draws, or checkpoints)."""
        if self._run is None:
            if not needed:
                return
            self.folder = Path(tempfile.mkdtemp(prefix="factorflow-"))
        assert self.folder is not None
        path = self.folder if self._run is None else self.path
        if isinstance(path, RemotePath):
            publish.check_writable(path)
        with disk_errors(self.folder if isinstance(path, RemotePath) else path, "out"):
            make_directory(self.folder.parent)
            self._lock = Lock(self.folder / LOCK, path, "out")
            try:
                self._lock.refuse_others(path, "out")
                if self._run is not None:
                    self._prepare(self._run, self._lock)
            except BaseException:
                self._release()
                raise
        copy = None if self._run is None or self._run.remote is None else self._run.remote.upload
        self.checkpoints = Checkpoints(self.folder, self.record, copy)

    def _prepare(self, run: RunDirectory, lock: Lock) -> None:
        """Delete what an earlier run left in the directory, but for what is resumed."""
        if self._look(run) != self._present:
            expected = "a path that no other run writes"
            raise InputError("out", str(self.path), expected, "Another run wrote it just now: inspect it.")
        if self.resuming:
            for temporary in list(run.path.rglob("*.partial")):
                delete(temporary)
        else:
            lock.clear_directory(first=MANIFEST)
        (run.path / REPLACES).unlink(missing_ok=True)
        if self._present[0]:
            (run.path / REPLACES).touch()
        sync_directory(run.path.parent)
        if run.remote is not None:
            run.remote.take_over(resuming=self.resuming)

    def begin_publishing(self, *, partial: bool, has_draws: bool) -> str | None:
        """Return where the finished store is built; None: in memory.

        A partial result is built in a copy, so that its run can be resumed with its draws untouched. Without
        draws nothing that is there counts: it was left by an attempt that was killed.
        """
        if self.folder is None:
            return None
        store = self.folder / DRAWN
        built = self.folder / PARTIAL if partial else store
        if (partial or not has_draws) and built.exists():
            delete(built)
        if partial and has_draws:
            shutil.copytree(store, built)
        return str(built)

    def complete(self, built: str, *, partial: bool) -> None:
        """Put the finished store in its place, or keep it for `deliver` if that is in an object store."""
        if self._run is None:
            return
        if isinstance(self.path, Path):
            publish.publish(Path(built), self.path)
            if not partial:
                self._delete()
        elif not partial:
            with disk_errors(self._run.path, "out"):
                sync(Path(built))
                os.rename(built, self._run.path / FINISHED)
                sync_directory(self._run.path)

    def deliver(self) -> None:
        """Upload a result for an object store; the directory stays if that fails, or it is partial."""
        if self._run is None or not isinstance(self.path, RemotePath):
            return
        if (self._run.path / FINISHED).exists():
            self._run.upload_result()
            self._delete()
            return
        built = self._run.path / PARTIAL
        try:
            publish.upload(built, self.path, replace=self._present[0])
        except FactorflowError as error:
            error.add_note(f"The checkpoint is in {self._run.path}.")
            raise
        delete(built)

    @property
    def can_go_on(self) -> bool:
        """Whether the run can be resumed: there is a checkpoint, or an undelivered result."""
        return self._run is not None and self._run.is_resumable()

    def left_behind(self) -> str | None:
        """Describe what an interrupted run leaves on disk; None without ``out``."""
        if self._run is None:
            return None
        if not self.can_go_on:
            return "No iteration was complete: nothing was kept."
        if (finished := self._run.path / FINISHED).exists():
            return f"The posterior is complete: it is {finished}, and not yet {self.path}."
        run = read_run(self.path)
        partial = run is not None and run.status == "partial"
        posterior = f", the partial posterior is {self.path}" if partial else ""
        return f"The checkpoint is in {self._run.path}{posterior}."

    def close(self) -> None:
        """Leave nothing behind that cannot be resumed."""
        if not self.can_go_on:
            self._delete()
        self._release()

    def _delete(self) -> None:
        """Delete the directory and release its lock: from then on another run may have it."""
        if self._lock is not None:
            if self._run is None:
                self._lock.delete_directory()
            else:
                self._run.delete(self._lock)
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _is_empty(path: Location) -> bool:
    """Return whether a path is a directory with nothing in it, whatever others make or delete meanwhile."""
    try:
        return isinstance(path, Path) and not any(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _warn_of_other_versions(record: RunRecord, now: RunRecord) -> None:
    """Warn when a run goes on in another environment: it may end with other last bits."""
    before, after = record.environment, now.environment
    pairs = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    if changed := ", ".join(f"{name} {old} -> {new}" for name, (old, new) in pairs.items() if old != new):
        text = f"the run began in another environment ({changed}): its result may differ in the last bits"
        warnings.warn(f"{text} from that of a run that was never interrupted", RuntimeWarning, stacklevel=2)
