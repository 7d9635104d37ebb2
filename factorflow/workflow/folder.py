"""The folder of results: dataset, posterior, summary, report, and records of what they were made of."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from factorflow.errors import InputError, OptionText
from factorflow.storage.checksums import METADATA
from factorflow.storage.location import Location, as_location
from factorflow.storage.publish import write_file
from factorflow.storage.remote import RemotePath


@dataclass(frozen=True)
class Folder:
    """The folder of results.

    Parameters
    ----------
    path : Path or Remote
        The folder; made when the first step needs it.
    """

    path: Location
    name: str = "posterior.zarr"

    @classmethod
    def at(cls, path: str | os.PathLike[str] | RemotePath) -> Folder:
        """Return the folder at a path.

        Raises
        ------
        InputError
            If a file is there, or a dataset or posterior: results would be mixed with its arrays.
        """
        return cls(check_folder(path))

    @property
    def dataset(self) -> Location:
        """The dataset that was made from the source."""
        return self.path / "dataset.zarr"

    @property
    def source_record(self) -> Location:
        """Path and fingerprint of the source of `dataset`."""
        return self.path / "source.json"

    @property
    def posterior(self) -> Location:
        """The posterior."""
        return self.path / self.name

    @property
    def summary(self) -> Location:
        """The summary of the posterior, JSON."""
        return self.path / "summary.json"

    @property
    def report(self) -> Location:
        """The report, one HTML file."""
        return self.path / "report.html"

    @property
    def checksums_path(self) -> Location:
        """Checksums of summary and report, and of which posterior they are, JSON."""
        return self.path / "written.json"

    def is_current(self, path: Location) -> bool:
        """Return whether summary or report is whole, and of the posterior that is there now."""
        recorded = (read_json(self.checksums_path) or {}).get(path.name)
        return recorded is not None and recorded == self._checksums(path)

    def has_outputs(self) -> bool:
        """Return whether a summary or report of a posterior of this name was ever written."""
        recorded = (read_json(self.checksums_path) or {}).values()
        return any(checksums.get("posterior") == self.name for checksums in recorded)

    def record_output(self, path: Location) -> None:
        """Record checksums of summary or report, and of which posterior it is."""
        write_json(
            self.checksums_path, {**(read_json(self.checksums_path) or {}), path.name: self._checksums(path)}
        )

    def _checksums(self, path: Location) -> dict[str, str]:
        """Return the posterior's name, and sha256 (hex) of its metadata and of a file; "": unreadable."""
        checksums = {"posterior": self.name}
        for name, file in (("metadata", self.posterior / METADATA), ("sha256", path)):
            try:
                checksums[name] = hashlib.sha256(file.read_bytes()).hexdigest()
            except OSError:
                checksums[name] = ""
        return checksums

    def ingested(self) -> str:
        """How the dataset was last written: appended, or rewritten and why; "" the first time."""
        return str((read_json(self.source_record) or {}).get("how", ""))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of the posterior; of its findings also the options that they name."""
        findings = [
            finding
            | {
                f"{key}_parts": [text.template, text.options]
                for key, text in finding.items()
                if isinstance(text, OptionText)
            }
            for finding in summary["findings"]
        ]
        write_json(self.summary, {**summary, "findings": findings})
        self.record_output(self.summary)

    def findings(self) -> list[dict[str, str]]:
        """Return the findings in the summary of the posterior."""
        findings = []
        for stored in (read_json(self.summary) or {}).get("findings", []):
            finding = {key: stored[key] for key in ("kind", "message", "remedy")}
            for key in finding:
                if (parts := stored.get(f"{key}_parts")) is not None:
                    finding[key] = OptionText(parts[0], **parts[1])
            findings.append(finding)
        return findings


@dataclass(frozen=True)
class Outcome:
    """The result of the steps.

    Parameters
    ----------
    ingested, fitted : bool
        Whether the source had changed, and whether a run was needed.
    """

    ingested: bool
    fitted: bool
    folder: Folder

    def describe(self) -> dict[str, Any]:
        """Return it as plain values."""
        done = [name for name, was in (("ingested", self.ingested), ("fitted", self.fitted)) if was]
        return {
            "done": ", ".join(done) or "nothing to do",
            "posterior": str(self.folder.posterior),
            "summary": str(self.folder.summary),
            "report": str(self.folder.report),
            "findings": self.folder.findings(),
        }


def check_folder(path: str | os.PathLike[str] | RemotePath) -> Location:
    """Return an absolute path, refused if it cannot be a folder of results."""
    place = as_location(path, "out")
    store = (place / "zarr.json").exists()
    if store or _is_file(place):
        what = "a dataset or a posterior" if store else "a file"
        raise InputError("out", str(place), "a folder for results", f"It is {what}: choose another path.")
    return place


def _is_file(place: Location) -> bool:
    if isinstance(place, RemotePath):
        return bool(place.version())
    return place.exists() and not place.is_dir()


def read_json(path: Location) -> Any:
    """Return the mapping in a file; None where there is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_json(path: Location, content: Any) -> None:
    """Write a value as JSON, at once."""
    write_file(path, json.dumps(content, indent=2) + "\n", "out")
