"""The steps of an analysis, each idempotent: ingest, fit, project, summarise, publish.

`factorflow.workflow.refresh` runs what is needed of them; the flows run the same steps as tasks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorflow.errors import InputError, pluralize
from factorflow.settings import RunOptions, SourceOptions
from factorflow.storage.download import as_local_source, remote_fingerprint
from factorflow.storage.local import disk_errors
from factorflow.storage.location import Location, absolute, as_location, is_remote, source_not_found
from factorflow.storage.publish import current_version, new_directory
from factorflow.workflow.folder import Folder, read_json, write_json
from factorflow.workflow.growth import append_growth, contents, growing_tables

if TYPE_CHECKING:
    from factorflow.api import Posterior
    from factorflow.data import Dataset
    from factorflow.engine.events import Event, OnEvent
    from factorflow.models.configuration import ModelConfig

PIECE = 1 << 20
RUN = RunOptions()
SOURCE = SourceOptions()


def fingerprint(source: str | os.PathLike[str]) -> str:
    """Return the sha256 (hex) of a file, or of all files of a folder with their names.

    In an object store: of names, sizes and versions.

    Raises
    ------
    InputError
        If there is nothing there.
    """
    if is_remote(os.fsdecode(source)):
        return remote_fingerprint(as_location(source, "source"))  # type: ignore[arg-type]
    root = Path(source)
    if not root.exists():
        raise source_not_found(source, "source")
    if not (root.is_file() or root.is_dir()):
        remedy = "It is a pipe or a device: write what it yields to a file."
        raise InputError("source", str(source), "a file or folder", remedy)
    digest = hashlib.sha256()
    for path in [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    return digest.hexdigest()


def ingest(
    source: str | os.PathLike[str],
    folder: Folder,
    options: SourceOptions = SOURCE,
    check: Callable[[Dataset], None] | None = None,
) -> tuple[Dataset, bool]:
    """Return the dataset of a source, rewritten only if the source has changed.

    Of tables that grew at their end the new rows are appended (`factorflow.workflow.growth`); which it was,
    and why, `Folder.ingested` says. What is at a URL is downloaded first, if it has changed.

    Parameters
    ----------
    source : path or URL
        A dataset (used where it is), or what `factorflow.write_dataset` accepts as one path; with a formula
        what `factorflow.write_table` does.
    check : callable, optional
        Raises InputError for a new dataset that is not to replace the one before.

    Returns
    -------
    dataset : Dataset
    changed : bool
        Whether it was written.

    Raises
    ------
    InputError
        When the source cannot be used, or is a dataset and has options.
    """
    from factorflow.data import open_dataset
    from factorflow.data.store.layout import read_root

    arguments = options.arguments()
    if _is_dataset(source):
        if arguments:
            name = "formula" if options.formula is not None else next(iter(arguments))
            expected, remedy = (
                f"none, since {source} is a dataset already",
                "Leave it out: it is used as it is.",
            )
            raise InputError(name, arguments[name], expected, remedy)
        return open_dataset(source), False
    record: dict[str, Any] = {
        "source": str(source) if is_remote(os.fsdecode(source)) else absolute(os.fspath(source), "source"),
        "fingerprint": fingerprint(source),
        "options": arguments,
    }
    record |= {"obs": fingerprint(options.obs)} if options.obs is not None else {}
    _check_outside(source, folder)
    current_version(folder.dataset)
    before: dict[str, Any] = read_json(folder.source_record) or {} if folder.dataset.exists() else {}
    previous_files, _ = before.pop("files", {}), before.pop("how", "")
    if before == record:
        with suppress(InputError):  # damaged, or of another version: it is made anew
            return open_dataset(folder.dataset), False
        previous_files = {}
    with disk_errors(folder.path, "out"):
        folder.path.mkdir(parents=True, exist_ok=True)

    def recognise(path: Location) -> None:
        if not (before and isinstance(path, Path) and path.is_dir()):  # else it is ours, whole or not
            read_root(path)

    with new_directory(folder.dataset, overwrite=True, recognise=recognise, reads="of the source") as built:
        os.rmdir(built)  # its writer makes it
        noted = _write(os.fspath(source), folder.dataset, str(built), options, before, record, previous_files)
        if check is not None:
            check(open_dataset(built))
        folder.source_record.unlink(missing_ok=True)  # an interrupted ingest must not look like it
    write_json(folder.source_record, noted)
    return open_dataset(folder.dataset), True


def _check_outside(source: str | os.PathLike[str], folder: Folder) -> None:
    """Refuse results within their source: each run would read those of the run before."""
    if isinstance(folder.path, Path) and not is_remote(os.fsdecode(source)):
        root, out = Path(source).resolve(), folder.path.resolve()
        if root.is_dir() and (out == root or root in out.parents):
            expected = f"a folder outside of the source {source}, which is read with all that is in it"
            raise InputError("out", str(folder.path), expected, "Choose another path.")


def _write(
    source: str,
    dataset: Location,
    built: str,
    options: SourceOptions,
    before: Mapping[str, Any],
    record: dict[str, Any],
    previous_files: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the new version of a dataset, and return the record of its source.

    Parameters
    ----------
    before, record : mapping
        Records of the source: of the version before, and of this one.
    previous_files : mapping
        What was in the files of the version before.
    """
    from factorflow.data import write_dataset, write_table

    arguments = options.arguments()
    if options.formula is not None:
        writing = write_table(built, source, **arguments)
        why = "rows of a long table that agree are merged, and sorted by their levels"
        return record | _how(before, writing, None, why)
    with as_local_source(source) as views:
        plain = arguments.keys() <= {"index_col", "likelihoods"}
        why = "" if plain else "it is read with metadata or other options"
        files = [] if why else growing_tables(views)
        now, grown = contents(files), None
        if before == record:
            why = "its dataset could not be opened"
        elif {**before, "fingerprint": ""} != {**record, "fingerprint": ""}:
            why = "it was read in another way"
        elif not why:
            grown, why = append_growth(views, previous_files, dataset, arguments.get("index_col"), built)
        writing = grown or write_dataset(built, views, **arguments)
        if now and all(file.stat().st_size == now[file.name][0] for file in files):  # none grew meanwhile
            record = {**record, "files": now}
    return record | _how(before, writing, grown, why)


def _how(before: Mapping[str, Any], dataset: Dataset, grown: Dataset | None, why: str) -> dict[str, str]:
    """Return how a dataset was written, from the record of its source; nothing the first time."""
    if not before:
        return {}
    rows = pluralize(dataset.n_rows, "row")
    if grown is not None:
        return {"how": f"The new rows of the source were appended: {rows} now."}
    return {"how": f"The source was ingested anew, {rows}: {why}."}


def fit(
    dataset: Dataset | str | os.PathLike[str],
    folder: Folder,
    model: ModelConfig | Mapping[str, Any],
    options: RunOptions = RUN,
    *,
    overwrite: bool = False,
    warm: str | None = None,
    on_event: OnEvent | None = None,
) -> tuple[Posterior, bool]:
    """Return the posterior of a dataset, fitted only if it is not there yet; an interrupted run goes on.

    Parameters
    ----------
    dataset, model, overwrite, on_event
        As for `factorflow.fit`.
    folder : Folder
        Where the posterior goes.
    options : RunOptions
        The rest of its parameters.
    warm : str, optional
        Path of the posterior that it begins with.

    Returns
    -------
    posterior : Posterior
    fitted : bool
        Whether a run was needed.
    """
    from factorflow.api import fit as run

    watch = _Watch(on_event)
    with disk_errors(folder.path, "out"):
        folder.path.mkdir(parents=True, exist_ok=True)
    place: dict[str, Any] = {"out": folder.posterior, "resume": "auto", "overwrite": overwrite}
    place["warm_start"] = warm
    posterior = run(dataset, model, on_event=watch, **place, **options.arguments())
    return posterior, watch.started


def project(
    posterior: str | os.PathLike[str],
    dataset: Dataset | str | os.PathLike[str],
    folder: Folder,
    options: RunOptions = RUN,
    *,
    on_event: OnEvent | None = None,
) -> Posterior:
    """Return the posterior of the rows of a dataset under a fitted model, written into a folder.

    An interrupted projection goes on.

    Parameters
    ----------
    posterior : path
        The fit.
    dataset, on_event
        As for `factorflow.project`.
    folder : Folder
        Where the new posterior goes.
    options : RunOptions
        Where it works is taken from it.
    """
    from factorflow.api import open_posterior

    with disk_errors(folder.path, "out"):
        folder.path.mkdir(parents=True, exist_ok=True)
    how = {name: options.arguments()[name] for name in ("executor", "workers", "memory_limit")}
    fitted = open_posterior(posterior)
    place: dict[str, Any] = {"out": str(folder.posterior), "overwrite": True, "resume": "auto"}
    return fitted.project(dataset, on_event=on_event, **place, **how)


def summarise(folder: Folder) -> dict[str, Any]:
    """Write the summary of the posterior, and return it."""
    from factorflow.api import open_posterior

    summary: dict[str, Any] = open_posterior(folder.posterior).summary()
    folder.write_summary(summary)
    return summary


def publish(folder: Folder) -> Location:
    """Write the report of the posterior; return its path."""
    from factorflow.api import open_posterior
    from factorflow.report import write_report

    write_report(open_posterior(folder.posterior), folder.report)
    folder.record_output(folder.report)
    return folder.report


def repair(folder: Folder) -> None:
    """Rewrite the summary and report of the posterior if they are damaged, missing or of an earlier one.

    Where neither was ever written of a posterior of this name, no flow made it, and nothing is written.
    """
    outputs = {folder.summary: summarise, folder.report: publish}
    if folder.has_outputs():
        for path, write in outputs.items():
            if not folder.is_current(path):
                write(folder)


@dataclass
class _Watch:
    """Passes events on, and remembers whether a run began."""

    on_event: Callable[[Event], None] | None
    started: bool = field(default=False)

    def __call__(self, event: Event) -> None:
        self.started = True
        if self.on_event is not None:
            self.on_event(event)


def _is_dataset(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a dataset of factorflow, of whatever version."""
    attributes = (read_json(as_location(path, "source") / "zarr.json") or {}).get("attributes")
    return isinstance(attributes, dict) and str(attributes.get("schema", "")).startswith("factorflow")
