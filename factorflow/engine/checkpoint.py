"""Checkpoints: a new directory each time, and an atomic manifest that names the one that counts.

A run keeps them beside its output, in ``<out>.run``. A process killed at any moment leaves either the old
manifest or the new one, never half a state: the manifest is replaced in one step after every file it names
is complete. The files are arrays and JSON (`factorflow.storage.serialize`): reading one runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from factorflow.core.trees import freeze
from factorflow.engine.executors.local import Executor, Handle
from factorflow.engine.plan import Plan
from factorflow.engine.spill import delete_spilled, link_into
from factorflow.engine.tasks import Group
from factorflow.errors import RUN_ANEW, InputError, RunError
from factorflow.posterior.draw_store import check_draws
from factorflow.posterior.record import RunRecord
from factorflow.storage.checksums import signature
from factorflow.storage.local import describe, sync_directory
from factorflow.storage.publish import write_file
from factorflow.storage.serialize import dumps, loads

CHECKPOINT_VERSION = 11
MANIFEST = "manifest.json"
TRACE = "trace.json"
SIGNATURE = "signature"
KEPT = "kept"
DRAWN = "posterior.zarr"
"""Directory, in that of a run, of its draws and of the posterior that is being built."""


class Checkpoints:
    """The checkpoints of one run.

    Parameters
    ----------
    directory : Path
        ``<out>.run``; must be visible to every worker.
    record : RunRecord
        The run; its identity must be that of a checkpoint that is to be resumed.
    copy : callable, optional
        Called with each checkpoint that is written: its folder, and whether there are draws
        (``with_draws=``).
    """

    def __init__(self, directory: Path, record: RunRecord, copy: Callable[..., None] | None = None) -> None:
        self.directory, self.record, self._copy = directory, record, copy

    def write(
        self,
        executor: Executor,
        plan: Handle,
        groups: Sequence[range],
        locals_: Sequence[Handle],
        state: Handle,
        trace: Any,
        draws_written: Mapping[str, Any] | None,
    ) -> tuple[list[Handle], Handle, Path]:
        """Write the state; return handles of it, which load it if what led to it is to be forgotten."""
        number = _next_number(self.directory)
        folder = self.directory / f"checkpoint-{number:06d}"
        with _complete_directory(folder):
            names = [str(folder / f"group-{i:06d}.tree") for i in range(len(groups))]
            saved = [
                executor.submit("save", save_group, local, name, group=i)
                for i, (name, local) in enumerate(zip(names, locals_, strict=True))
            ]
            saved_state = executor.submit("save", dump, state, str(folder / "state.tree"), group=0)
            results = executor.result(saved)
            files = [
                {"file": Path(path).name, "sha256": digest, "blocks": [g.start, g.stop]}
                for g, (path, digest) in zip(groups, results, strict=True)
            ]
            path, digest = executor.result(saved_state)
            _, trace_digest = _write(json.dumps(trace).encode(), str(folder / TRACE))
            manifest = {
                "checkpoint_version": CHECKPOINT_VERSION,
                "run": self.record.model_dump(mode="json"),
                "folder": folder.name,
                "state": {"file": Path(path).name, "sha256": digest},
                "groups": files,
                "trace": {"file": TRACE, "sha256": trace_digest},
                "drawn": draws_written,
            }
            sync_directory(folder)
            content = json.dumps({**manifest, SIGNATURE: signature(manifest)})
            write_file(self.directory / MANIFEST, content, "checkpoint")
        for old in self.directory.glob("checkpoint-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
        on_disk = self.directory / KEPT
        delete_spilled(on_disk)
        if self._copy is not None:
            self._copy(folder, with_draws=draws_written is not None)
        if not executor.loses_results and not on_disk.exists():
            return list(locals_), state, folder
        return *self.load(executor, plan, groups, manifest), folder

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest.

        Raises
        ------
        InputError
            If there is none, or it is of another version or run.
        """
        manifest, record = read_manifest(self.directory)
        self.check_same_run(record)
        return manifest

    def differences(self, record: RunRecord) -> dict[str, tuple[Any, Any]]:
        """Return what makes a run another one than this, by name: there and here."""
        differences: dict[str, tuple[Any, Any]] = {}
        if (kind := _kind(record)) != (own_kind := _kind(self.record)):
            differences["run"] = kind, own_kind
        elif kind == "projection" and record.options.max_iter != self.record.options.max_iter:
            differences["iterations"] = record.options.max_iter, self.record.options.max_iter
        return differences | record.identity.differences(self.record.identity)

    def check_same_run(self, record: RunRecord) -> None:
        """Refuse the checkpoint of another run (InputError)."""
        for name, (stored, requested) in self.differences(record).items():
            remedy = "Use the settings of the interrupted run, another {out}, or {overwrite}."
            if name == "fingerprint":
                name = "the dataset of fingerprint"
                remedy = "The dataset is another one, or was changed: use another {out}, or {overwrite}."
            raise InputError(
                "resume",
                f"{self.directory} with {name} = {_short(stored)}",
                f"a checkpoint with {name} = {_short(requested)}",
                remedy,
                out=...,
                overwrite=True,
            )

    def read_trace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trace up to the checkpoint."""
        path = self.directory / manifest["folder"] / manifest["trace"]["file"]
        trace: dict[str, Any] = json.loads(_read_verified(str(path), manifest["trace"]["sha256"]))
        return trace

    def verify(self, manifest: Mapping[str, Any]) -> None:
        """Read all files that a manifest names, draws too; an InputError for one damaged or missing."""
        for file in (manifest["trace"], manifest["state"], *manifest["groups"]):
            _read_verified(str(self.directory / manifest["folder"] / file["file"]), file["sha256"])
        if manifest["drawn"] and manifest["drawn"]["sizes"]["draw"]:
            check_draws(self.directory / DRAWN, manifest["drawn"])

    def load(
        self, executor: Executor, plan: Handle, groups: Sequence[range], manifest: Mapping[str, Any]
    ) -> tuple[list[Handle], Handle]:
        """Return handles of the state that a manifest names, for any cut into groups."""
        folder = self.directory / manifest["folder"]
        state_file = (str(folder / manifest["state"]["file"]), manifest["state"]["sha256"])
        state = executor.submit("load", undump, plan, *state_file, group=0)
        locals_ = []
        for i, group in enumerate(groups):
            files = [
                (str(folder / f["file"]), f["sha256"])
                for f in manifest["groups"]
                if f["blocks"][0] < group.stop and f["blocks"][1] > group.start
            ]
            locals_.append(executor.submit("load", load_group, plan, files, group, group=i))
        return locals_, state

    def clear(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.directory, ignore_errors=True)


def read_manifest(directory: Path) -> tuple[dict[str, Any], RunRecord]:
    """Return the manifest of the newest checkpoint in a folder, and the run it is of.

    Raises
    ------
    InputError
        If there is none, or it is of another version.
    """
    path = directory / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        version, signed = manifest.get("checkpoint_version"), manifest.pop(SIGNATURE, None)
        if version == CHECKPOINT_VERSION and signature(manifest) != signed:
            raise ValueError("checksum mismatch")
        record = RunRecord.model_validate(manifest["run"]) if version == CHECKPOINT_VERSION else None
    except FileNotFoundError:
        raise InputError(
            "resume",
            str(directory),
            "the checkpoints of an interrupted run",
            "Begin the run with a fit, without {resume}.",
            resume=True,
        ) from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError("resume", str(path), f"an intact manifest ({error})", RUN_ANEW) from error
    if record is None:
        raise InputError(
            "resume",
            f"{path}, version {version}",
            f"checkpoint version {CHECKPOINT_VERSION}",
            "Resume with the version of factorflow that wrote it, or run anew.",
        )
    return manifest, record


@contextmanager
def _complete_directory(folder: Path) -> Iterator[None]:
    """Make the folder of a checkpoint; delete it if writing fails."""
    try:
        folder.mkdir(parents=True)
        yield
    except (OSError, InputError, RunError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, RunError):
            raise
        reason = describe(error, folder) if isinstance(error, OSError) else error
        raise RunError(f"the checkpoint {folder} cannot be written: {reason}") from error


def save_group(group: Group | None, path: str) -> tuple[str, str]:
    """Write the local state of a group; return its path and checksum."""
    group = group or Group()
    local = tuple((n, link_into(values, Path(path).parent, make=True)) for n, values in group.local.items())
    return dump(local, path)


def load_group(plan: Plan, files: Sequence[tuple[str, str]], blocks: range) -> Group:
    """Read the local state of a group from the files that hold parts of it."""
    local: dict[int, Any] = {}
    for path, digest in files:
        here, folder = undump(plan, path, digest), Path(path).parent
        local.update({n: link_into(value, folder, make=False) for n, value in here if n in blocks})
    return Group(local)


def dump(value: Any, path: str) -> tuple[str, str]:
    """Write globals or local state; return path and checksum of the file."""
    try:
        return _write(dumps(value), path)
    except TypeError as error:
        raise RunError(
            f"the checkpoint {path} cannot be written: {error}. Globals and local state are dataclasses, "
            "dicts by name and tuples of arrays and numbers."
        ) from error


def _write(data: bytes, path: str) -> tuple[str, str]:
    """Write a file of a checkpoint to the disk; return its path and checksum."""
    try:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        text = f"the checkpoint {path} cannot be written: {describe(error, path, len(data))}"
        raise RunError(text) from error
    return path, hashlib.sha256(data).hexdigest()


def undump(plan: Plan, path: str, digest: str) -> Any:
    """Read what `dump` wrote."""
    data = _read_verified(path, digest)
    try:
        return freeze(loads(data, plan.classes))
    except (ValueError, ImportError, TypeError, KeyError) as error:
        raise InputError("checkpoint", f"{path} ({error})", "a file of this version", RUN_ANEW) from error


def _read_verified(path: str, digest: str) -> bytes:
    """Return the content of a file of a checkpoint after comparing its checksum."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError("checkpoint", path, f"a readable file ({error})", RUN_ANEW) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError("checkpoint", path, "a file with the checksum that the manifest has", RUN_ANEW)
    return data


def _kind(run: RunRecord) -> str:
    return "projection" if run.status == "projected" else "fit"


def _next_number(directory: Path) -> int:
    numbers = [int(p.name.rsplit("-", 1)[1]) for p in directory.glob("checkpoint-*")]
    return max(numbers, default=0) + 1


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 200 else text[:200] + " ..."
