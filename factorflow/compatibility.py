"""What of a folder this version can go on with and read: interrupted runs, posteriors, datasets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from factorflow.doctor import Check
from factorflow.errors import InputError, counted
from factorflow.storage.location import URL

__all__ = ["examine_folder"]

RUN = ".run"
"""What the folder of an interrupted run ends with."""

MANIFEST = "manifest.json"


def examine_folder(folder: str | os.PathLike[str]) -> list[Check]:
    """Return of each interrupted run in a folder, at any depth, whether this version goes on with it.

    And of all posteriors, and all datasets, whether this version reads them. Nothing is changed.

    Parameters
    ----------
    folder : path
        Of a disk.

    Raises
    ------
    InputError
        If there is no such folder.
    """
    text = os.fspath(folder)
    if URL.match(text) or not Path(text).is_dir():
        remedy = "Name the folder with results; of object stores, the one that FACTORFLOW_RUNS names."
        raise InputError("results", text, "an existing folder of a disk", remedy)
    runs: list[Check] = []
    stores: dict[str, list[Path]] = {"posterior": [], "dataset": []}
    for place in _places(Path(text)):
        if place.name.endswith(RUN):
            runs.append(_run(place))
        elif (kind := _kind(place)) in stores:
            stores[kind].append(place)
    runs = runs or [Check("interrupted runs", True, "none")]
    return [*runs, *_posteriors(stores["posterior"]), *_datasets(stores["dataset"])]


def _places(folder: Path) -> Iterator[Path]:
    """Yield the folders of interrupted runs, and the stores; nothing inside of them."""
    for root, names, _ in os.walk(folder):
        names.sort()
        for name in tuple(names):
            place = Path(root, name)
            if (is_run := name.endswith(RUN)) or (place / "zarr.json").exists():
                names.remove(name)
                if not is_run or (place / MANIFEST).exists():
                    yield place


def _kind(place: Path) -> str:
    """Return what a store is by its schema: ``posterior``, ``dataset``, or another word."""
    try:
        schema = json.loads((place / "zarr.json").read_text(encoding="utf-8"))["attributes"]["schema"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(schema).removeprefix("factorflow.")


def _run(place: Path) -> Check:
    """Look at all that going on with a run would refuse."""
    from factorflow.data import open_dataset
    from factorflow.engine.checkpoint import read_manifest
    from factorflow.engine.executors.environment import environment
    from factorflow.models import configure

    name = f"run {str(place).removesuffix(RUN)}"
    now = environment()
    try:
        _, begun = read_manifest(place)
        before = begun.identity.factorflow
        if before != now["factorflow"]:
            remedy = (
                f"End it with factorflow {before} (`factorflow resume`), or begin it anew with --overwrite."
            )
            found = f"begun with factorflow {before}: {now['factorflow']} does not go on with it"
            return Check(name, False, found, remedy)
        configure(begun.identity.config)
        if open_dataset(begun.dataset).fingerprint != begun.identity.fingerprint:
            remedy = "Restore the dataset, or begin the run anew with --overwrite."
            return Check(name, False, f"another dataset is at {begun.dataset}", remedy)
    except InputError as error:
        return _refused(name, error)
    known = begun.environment
    changed = [f"{key} {known[key]} -> {now[key]}" for key in known if now.get(key, known[key]) != known[key]]
    return Check(name, True, "goes on" + (f"; last bits may differ: {', '.join(changed)}" if changed else ""))


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
            wrong.append(_refused(f"posterior {place}", error))
            continue
        if record.identity.factorflow != now:
            others.add(record.identity.factorflow)
    said = f"{counted(len(places) - len(wrong), 'posterior')} can be read"
    advice = ""
    if others:
        said += f"; not made by {now}, but by {', '.join(sorted(others))}"
        advice = "`refresh`, and a fit with the same settings, make them anew with this version."
    return [*wrong, Check("posteriors", True, said, advice)]


def _datasets(places: list[Path]) -> list[Check]:
    from factorflow.data import open_dataset

    wrong = []
    for place in places:
        try:
            open_dataset(place)
        except InputError as error:
            wrong.append(_refused(f"dataset {place}", error))
    said = f"{counted(len(places) - len(wrong), 'dataset')} can be read"
    return [*wrong, Check("datasets", True, said)]


def _refused(name: str, error: InputError) -> Check:
    return Check(name, False, f"{error.parameter} = {error.value}: expected {error.expected}", error.remedy)
