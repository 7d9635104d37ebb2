"""The history of posteriors of a recurring run.

``<folder>/0003.zarr`` is a fit, or a projection of all rows on an earlier fit; ``0003.json`` says of what and
why, and how it compares with the one before; ``0003.npz`` holds moments of the data. ``latest.json`` names
the last of them, and the last fit; it is replaced at once when all else is in place. What a killed refresh
left is repaired by the next one (`History.repair`).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal
from zipfile import BadZipFile

import numpy as np

from factorflow.errors import InputError
from factorflow.storage.local import Lock, disk_errors, make_directory
from factorflow.storage.location import Location
from factorflow.storage.publish import claim, delete_location, new_file, write_file
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    from factorflow.data import Dataset

Moments = Mapping[str, Mapping[str, Any]]
"""By view: ``n_observed``, ``mean``, ``variance`` and ``feature``, (D,) each, and ``n_rows``."""


@dataclass(frozen=True)
class Entry:
    """One posterior of a history.

    Parameters
    ----------
    number : int
        From 1, in the order in which they were made.
    kind : {"fit", "projection"}
        Whether it was fitted, or its rows found under the globals of an earlier fit.
    made : str
        When, ISO 8601 in UTC.
    n_rows : int
        Rows of the data.
    fingerprint : str
        Of the data.
    reason : str
        Why it was made.
    start : str
        Name of the posterior that it began with or was projected on; empty: it began anew.
    note : str
        Why it did not begin with the last fit; empty otherwise.
    comparison : mapping
        What changed since the one before (`factorflow.workflow.drift`); empty: there was none.
    """

    number: int
    kind: Literal["fit", "projection"]
    made: str
    n_rows: int
    fingerprint: str
    reason: str
    start: str = ""
    note: str = ""
    comparison: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the posterior."""
        return f"{self.number:04d}.zarr"


class History:
    """The history in a folder.

    Parameters
    ----------
    folder : Path or Remote
        Made when something is written there.
    """

    def __init__(self, folder: Location) -> None:
        self.folder = folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the history (a context manager); a folder made for it is removed if it stays empty.

        Raises
        ------
        InputError
            If another process, or another thread of this one, is at work on it.
        """
        if isinstance(self.folder, RemotePath):
            with claim(self.folder / "refresh", "out"):
                yield
            return
        is_new, file = not self.folder.exists(), self.folder / ".refresh"
        with disk_errors(self.folder, "out"):
            make_directory(self.folder)
            lock = Lock(file, self.folder, "out")
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()
            lock.close()
            if is_new:
                with suppress(OSError):  # there is something in it
                    os.rmdir(self.folder)

    def entries(self) -> list[Entry]:
        """Return the entries of the history, oldest first.

        Raises
        ------
        InputError
            For a record that cannot be read.
        """
        entries = []
        for path in self.folder.glob("*.json"):
            if not path.stem.isdigit():
                continue
            try:
                entries.append(_read_entry(path))
            except (OSError, ValueError, TypeError) as error:
                text = " ".join(str(error).split())
                expected, remedy = f"the record of a posterior ({text})", "Restore it, or remove the file."
                raise InputError("history", str(path), expected, remedy) from error
        return sorted(entries, key=lambda entry: entry.number)

    def path(self, entry: Entry) -> Location:
        """Return where the posterior of an entry is."""
        return self.folder / entry.name

    def next_name(self) -> str:
        """Return the name of the posterior that is made next, also if a run to it was interrupted."""
        numbers = [entry.number for entry in self.entries()]
        return f"{max(numbers, default=0) + 1:04d}.zarr"

    def add(self, entry: Entry, dataset: Dataset) -> None:
        """Add a published posterior, and point ``latest.json`` to it."""
        path = self.path(entry)
        with new_file(path.with_suffix(".npz"), "out") as built, built.open("wb") as file:
            np.savez(file, **_pack_moments(dataset))
        write_file(path.with_suffix(".json"), json.dumps(asdict(entry), indent=2) + "\n", "out")
        self._write_latest(entry)

    def repair(self, keep: int) -> None:
        """Finish the writes and deletions of a killed refresh; ``keep`` as for `prune`."""
        if entries := self.entries():
            self._write_latest(entries[-1])
            self.prune(keep)

    def _write_latest(self, entry: Entry) -> None:
        """Point ``latest.json`` to an entry."""
        fit = entry.name if entry.kind == "fit" else entry.start
        latest = {"number": entry.number, "posterior": entry.name, "fit": fit, "made": entry.made}
        path, content = self.folder / "latest.json", json.dumps(latest, indent=2) + "\n"
        with suppress(OSError, ValueError):
            if path.read_text(encoding="utf-8") == content:
                return
        write_file(path, content, "out")

    def moments(self, entry: Entry) -> Moments | None:
        """Return the moments of the data that an entry was made of; None where they are gone.

        Raises
        ------
        InputError
            If they cannot be read.
        """
        moments: dict[str, dict[str, Any]] = {}
        path = self.path(entry).with_suffix(".npz")
        try:
            with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                for key in arrays.files:
                    view, _, name = key.rpartition("/")
                    moments.setdefault(view, {})[name] = arrays[key]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError, AttributeError, BadZipFile, zlib.error) as error:
            expected = f"moments of the data of {entry.name} ({error})"
            remedy = "Restore it, or remove the file: then the data are not compared."
            raise InputError("history", str(path), expected, remedy) from error
        return moments

    def prune(self, keep: int) -> list[str]:
        """Remove all but the last ``keep`` posteriors and the last fit; return the names of those removed.

        The record goes first: nothing half removed is listed. The moments go last: where they have no record,
        a kill came between, and the rest is removed.
        """
        entries = self.entries()
        needed = {entry.name for entry in entries[-keep:]}
        needed |= {next((e.name for e in reversed(entries) if e.kind == "fit"), "")}
        unneeded = {entry.name for entry in entries if entry.name not in needed}
        for name in unneeded:
            (self.folder / name).with_suffix(".json").unlink(missing_ok=True)
        last, listed = entries[-1].number if entries else 0, {entry.number for entry in entries}
        for path in self.folder.glob("*.npz"):
            number = int(path.stem) if path.stem.isdigit() else last
            if number < last and number not in listed and path.stem == f"{number:04d}":
                unneeded.add(f"{path.stem}.zarr")
        for name in unneeded:
            path = self.folder / name
            with disk_errors(path, "out"):
                if path.exists():
                    delete_location(path)
                path.with_suffix(".npz").unlink(missing_ok=True)
        return sorted(unneeded)


def _read_entry(path: Location) -> Entry:
    """Read the record of a posterior; raises ValueError where its values are of other types, or cannot be."""
    from pydantic import TypeAdapter

    content = json.loads(path.read_text(encoding="utf-8"))
    entry = TypeAdapter(Entry).validate_python(content)
    Entry(**content)  # refuses what pydantic leaves out: names of another version
    datetime.fromisoformat(entry.made)
    if entry.name != f"{path.stem}.zarr" or entry.n_rows < 1:
        raise ValueError(f"number {entry.number} and {entry.n_rows} rows cannot be")
    return entry


def moments_of(dataset: Dataset) -> Moments:
    """Return the moments of the views of values of a dataset."""
    moments: dict[str, dict[str, Any]] = {}
    for name, view in dataset.views.items():
        if not view.kind.is_values:
            continue
        stored = dataset.moments(name)
        moments[name] = {what: stored[what] for what in ("n_observed", "mean", "variance")}
        moments[name] |= {"feature": np.asarray(dataset.features(name), str), "n_rows": dataset.n_rows}
    return moments


def _pack_moments(dataset: Dataset) -> dict[str, Any]:
    return {
        f"{view}/{name}": value for view, own in moments_of(dataset).items() for name, value in own.items()
    }
