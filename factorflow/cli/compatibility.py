"""Which runs, posteriors and datasets of a folder this version can resume and read."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from factorflow.cli.doctor import Check
from factorflow.engine.checkpoint import DRAWN, MANIFEST
from factorflow.engine.run_directory import FINISHED, RunDirectory
from factorflow.errors import InputError, pluralize
from factorflow.storage.checksums import METADATA
from factorflow.storage.local import LOCK
from factorflow.storage.location import URL, as_location

RUN = ".run"
"""Suffix of the folder of an interrupted run."""


def examine_folder(folder: str | os.PathLike[str]) -> list[Check]:
    """Return of each interrupted run in a folder, at any depth, whether this version goes on with it.

    And of all posteriors, and all datasets, whether this version reads them. Nothing is changed.
    """
    text = os.fspath(folder)
    if URL.match(text) or not Path(text).is_dir():
        remedy = "Name the folder with results; of object stores, the one that FACTORFLOW_RUNS names."
        raise InputError("results", text, "an existing local folder", remedy)
    runs: list[Check] = []
    lost: list[Check] = []
    stores: dict[str, list[Path]] = {"posterior": [], "dataset": []}
    for place in _places(Path(text)):
        if place.name.endswith(RUN):
            if (check := _run(place)) is not None:
                runs.append(check)
        elif not (place / METADATA).exists():
            problem = f"its {METADATA} is lost: nothing opens it"
            remedy = "Restore that file, or make the store anew (`overwrite`); else delete the folder."
            lost.append(Check(f"store {place}", False, problem, remedy))
        elif (kind := _kind(place)) in stores:
            stores[kind].append(place)
    runs = runs or [Check("interrupted runs", True, "none")]
    return [*runs, *lost, *_posteriors(stores["posterior"]), *_datasets(stores["dataset"])]


def _places(folder: Path) -> Iterator[Path]:
    """Yield the folders of interrupted runs, and the stores; nothing inside of them."""
    for root, names, _ in os.walk(folder):
        names.sort()
        for name in tuple(names):
            place = Path(root, name)
            if (place / METADATA).exists() or (_is_ours(place) if name.endswith(RUN) else _lost_root(place)):
                names.remove(name)
                yield place


def _is_ours(place: Path) -> bool:
    """Return whether a folder that is called like one of a run is one, with or without its manifest."""
    return any((place / name).exists() for name in (MANIFEST, LOCK, DRAWN)) or bool(_checkpoints(place))


def _checkpoints(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob("checkpoint-*"))


def _lost_root(place: Path) -> bool:
    """Return whether a folder is called like a store and holds arrays of one, but not its root."""
    return place.suffix == ".zarr" and any(place.glob(f"*/{METADATA}"))


def _kind(place: Path) -> str:
    """Return the kind of a store from its schema: ``posterior``, ``dataset`` or another."""
    try:
        schema = json.loads((place / METADATA).read_text(encoding="utf-8"))["attributes"]["schema"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(schema).removeprefix("factorflow.")


def _run(place: Path) -> Check | None:
    """Look at all that going on with a run would refuse; None of a run that is at work, or has ended."""
    from factorflow.data import open_dataset
    from factorflow.engine.checkpoint import read_manifest
    from factorflow.engine.executors.environment import environment
    from factorflow.models import configure

    name = f"run {str(place).removesuffix(RUN)}"
    if not (place / MANIFEST).exists():
        return _without_manifest(name, place)
    now = environment()
    try:
        _, manifest = read_manifest(place)
        before = manifest.identity.factorflow
        if before != now["factorflow"]:
            remedy = (
                f"End it with factorflow {before} (`factorflow resume`), or begin it anew with --overwrite."
            )
            problem = f"begun with factorflow {before}: {now['factorflow']} does not go on with it"
            return Check(name, False, problem, remedy)
        configure(manifest.identity.config)
        if open_dataset(manifest.dataset).fingerprint != manifest.identity.fingerprint:
            remedy = "Restore the dataset, or begin the run anew with --overwrite."
            return Check(name, False, f"another dataset is at {manifest.dataset}", remedy)
    except InputError as error:
        return _failed_check(name, error)
    run_environment = manifest.environment
    changed = [
        f"{key} {run_environment[key]} -> {now[key]}"
        for key in run_environment
        if now.get(key, run_environment[key]) != run_environment[key]
    ]
    return Check(name, True, "goes on" + (f"; last bits may differ: {', '.join(changed)}" if changed else ""))


def _without_manifest(name: str, place: Path) -> Check | None:
    """Look at the folder of a run that has no checkpoint yet, or none any more."""
    out = str(place).removesuffix(RUN)
    if (place / FINISHED).exists():
        return Check(
            name, True, "complete, and to be uploaded", f"`factorflow resume` of its URL, in {place}"
        )
    if _is_locked(place / LOCK):
        return None
    if RunDirectory(as_location(out)).is_ended():
        return Check(name, True, "complete; its folder is left over, and deleted by `factorflow resume`")
    remedy = f"Begin it anew with --overwrite, which deletes {place}; or delete that yourself."
    if there := _checkpoints(place):
        problem = f"{MANIFEST} is lost: {there[-1]} cannot be resumed"
        return Check(name, False, problem, f"Restore {place / MANIFEST} from a backup. {remedy}")
    return Check(name, False, "was ended before its first checkpoint: there is nothing to go on with", remedy)


def _is_locked(lock: Path) -> bool:
    """Return whether a process is at work that holds a lock."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or the file system has no locks
        pass
    return False


def _posteriors(places: list[Path]) -> list[Check]:
    from factorflow.engine.executors.environment import environment
    from factorflow.posterior.record import RunRecord
    from factorflow.posterior.schema import read_attributes

    now = environment()["factorflow"]
    wrong, others = [], set()
    for place in places:
        try:
            record = RunRecord.of_attributes(read_attributes(place))
        except InputError as error:
            wrong.append(_failed_check(f"posterior {place}", error))
            continue
        if record.identity.factorflow != now:
            others.add(record.identity.factorflow)
    summary = f"{pluralize(len(places) - len(wrong), 'posterior')} can be read"
    advice = ""
    if others:
        summary += f"; not made by {now}, but by {', '.join(sorted(others))}"
        advice = "`refresh`, and a fit with the same settings, make them anew with this version."
    return [*wrong, Check("posteriors", True, summary, advice)]


def _datasets(places: list[Path]) -> list[Check]:
    from factorflow.data import open_dataset

    wrong = []
    for place in places:
        try:
            open_dataset(place)
        except InputError as error:
            wrong.append(_failed_check(f"dataset {place}", error))
    summary = f"{pluralize(len(places) - len(wrong), 'dataset')} can be read"
    return [*wrong, Check("datasets", True, summary)]


def _failed_check(name: str, error: InputError) -> Check:
    return Check(name, False, f"{error.parameter} = {error.value}: expected {error.expected}", error.remedy)
