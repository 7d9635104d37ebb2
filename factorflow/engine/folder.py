"""The folder of a run: where it is, what is in it, what is left in it.

It is ``<out>.run`` beside the result. Nothing is written bit by bit into an object store: the folder of a run
to there is on a disk, with its result until all of that has been uploaded; `mirror` copies its checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import closing, suppress
from pathlib import Path

from factorflow.disk import Lock, local_path, real_path, remove
from factorflow.engine.checkpoint import MANIFEST, read_manifest
from factorflow.engine.mirror import MARK, Mirror
from factorflow.errors import FactorflowError, InputError, RunError
from factorflow.files import clear_up
from factorflow.place import Place, Remote
from factorflow.posterior.record import RunRecord
from factorflow.posterior.store import read_run
from factorflow.upload import is_copy, upload

__all__ = [
    "FINISHED",
    "MARK",
    "PARTIAL",
    "REPLACES",
    "RUNS",
    "deliver",
    "deliver_from",
    "is_empty",
    "is_ended",
    "read_record",
    "remove_folder",
    "remove_leftover",
    "run_folder",
]

PARTIAL = "partial.zarr"
"""Name, in that folder, of the result of a run that can be resumed."""

FINISHED, REPLACES = "finished.zarr", "replaces"
"""In the folder of a run to an object store: its result until it is there; whether it may replace another."""

RUNS = "FACTORFLOW_RUNS"
"""Variable of the environment: folder for the runs to object stores, else the working directory."""


def run_folder(out: Place) -> Path:
    """Return the folder of a run, on the disk that ``out`` is really on; workers may work elsewhere.

    Of an object store: ``<name>-<digest of the URL>.run`` in the folder that the variable `RUNS` of the
    environment names, else in the working directory.
    """
    if isinstance(out, Remote):
        digest = hashlib.sha256(str(out).encode()).hexdigest()[:8]
        return local_path(os.environ.get(RUNS) or ".", RUNS) / f"{out.name}-{digest}.run"
    return Path(f"{real_path(out)}.run")


def is_ended(out: Place) -> bool:
    """Return whether the run to a path has ended: its complete result is there, and nothing to go on from."""
    if isinstance(out, Remote) and not out.exists():  # raises where the store does not say
        return False
    found = read_run(out)
    folder = run_folder(out)
    begun = (folder / MANIFEST).exists() or (isinstance(out, Remote) and Mirror(folder, out).holds_run())
    return found is not None and found.status == "complete" and not begun


def read_record(out: Place) -> RunRecord:
    """Return the record of the interrupted fit of ``out``.

    Raises
    ------
    InputError
        If there is none.
    """
    folder = run_folder(out)
    if isinstance(out, Remote):
        Mirror(folder, out).bring()
        if not folder.exists():
            remedy = f"Go on in the folder where the run was begun, or set {RUNS} to it."
            raise InputError(
                "resume", str(out), f"an interrupted run: {folder} or {out}.run to be there", remedy
            )
    _, record = read_manifest(folder)
    if record.status == "projected":
        raise InputError("resume", str(out), "an interrupted fit", "Project the new samples again.")
    return record


def deliver(out: Place) -> bool:
    """Put into an object store what a run to there had found when it was cut off from it, if there is such.

    Raises
    ------
    InputError
        If another process is at it, or something else has been put there.
    RunError
        If it cannot be put there.
    """
    folder = run_folder(out)
    if isinstance(out, Remote) and (folder / FINISHED).exists():
        with closing(Lock(folder, out, "out")):
            deliver_from(folder, out)
            Mirror(folder, out).clear()
            remove_folder(folder)
        return True
    return False


def deliver_from(folder: Path, place: Remote) -> None:
    """Put the result in a run's folder into an object store; raises as `deliver`."""
    finished = folder / FINISHED
    try:
        if not is_copy(finished, place):  # of a kill between the last request and this line
            upload(finished, place, replace=(folder / REPLACES).exists())
    except FactorflowError as error:
        text = f"The posterior is complete in {finished}: `factorflow resume {place}` uploads it"
        raise RunError(f"{error} {text}; or copy it to another place.") from error


def remove_leftover(out: Place) -> None:
    """Remove what a run that was killed when it had ended left beside its result, unless one is at work."""
    if isinstance(out, Path):
        clear_up(out)
    folder = run_folder(out)
    if not ((folder / MARK).exists() or is_empty(folder)):
        return
    with suppress(InputError, OSError):
        lock = Lock(folder, out, "out")
        try:
            if isinstance(out, Remote):
                Mirror(folder, out).clear()
            remove_folder(folder)
        finally:
            lock.close()


def remove_folder(folder: Path) -> None:
    """Remove a run's folder: the manifest first, so that nothing half removed is resumed, the mark last."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for part in folder.iterdir():
        if part.name != MARK:
            remove(part)
    shutil.rmtree(folder)


def is_empty(path: Place) -> bool:
    """Return whether a path is a folder with nothing in it: now, whatever others make or remove meanwhile."""
    try:
        return isinstance(path, Path) and not any(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
