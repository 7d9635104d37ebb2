"""Recurring runs: fit or project changed data, and compare with the previous posterior.

`refresh` runs the steps of `factorflow.workflow.pipeline` one after the other; the flow runs the same course
with tasks in their place (`Steps`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorflow.core.extras import require
from factorflow.errors import InputError, RunError
from factorflow.settings import RefreshOptions, RunOptions, SourceOptions
from factorflow.workflow import pipeline
from factorflow.workflow.drift import alerts, compare_data, compare_factors, compare_scores
from factorflow.workflow.due import (
    Due,
    Last,
    check_rows,
    due,
    last_fit,
    n_latest_rows,
    other_features,
    run_asked_for,
)
from factorflow.workflow.folder import Folder
from factorflow.workflow.history import Entry, History, Moments, moments_of

if TYPE_CHECKING:
    from factorflow.data import Dataset
    from factorflow.engine.events import OnEvent
    from factorflow.models.configuration import ModelConfig

Accept = Callable[[Mapping[str, Any]], bool]
"""A hook that says whether a new posterior becomes the latest, by its comparison with the one before."""

Check = Callable[["Dataset"], None]
"""Raises InputError for a new dataset that is not to replace the one before."""

RULE = RefreshOptions()
RUN = RunOptions()
SOURCE = SourceOptions()


@dataclass(frozen=True)
class Steps:
    """The steps of a recurring run.

    Parameters
    ----------
    ingest : callable
        (folder, check of a new dataset): returns the path of the dataset, and whether it was written.
    fit : callable
        (dataset, folder, path of the posterior that it begins with or None): fits.
    project : callable
        (posterior, dataset, folder): projects the rows of the dataset on a posterior.
    summarise, publish : callable
        (folder): write summary and report.
    """

    ingest: Callable[[Folder, Check], tuple[str, bool]]
    fit: Callable[[str, Folder, str | None], Any]
    project: Callable[[str, str, Folder], Any]
    summarise: Callable[[Folder], Any]
    publish: Callable[[Folder], Any]


@dataclass(frozen=True)
class RefreshResult:
    """The result of a recurring run.

    Parameters
    ----------
    folder : Folder
        Where its results are, and the latest posterior.
    ingested : bool
        Whether the source had changed.
    due : Due
        What was done, and why.
    entry : Entry or None
        The posterior that was made.
    alerts : tuple of str
        What drifted by more than the rule allows.
    accepted : bool
        False: the hook refused what was made, and the latest posterior is the one before.
    """

    folder: Folder
    ingested: bool
    due: Due
    entry: Entry | None = None
    alerts: tuple[str, ...] = field(default=())
    accepted: bool = True

    def describe(self) -> dict[str, Any]:
        """Return it as plain values."""
        did = {"project": ["projected"], "fit": ["fitted"], "nothing": []}[self.due.action]
        did += [] if self.accepted else ["not accepted"]
        description: dict[str, Any] = {
            "done": ", ".join(["ingested"] * self.ingested + did) or "nothing to do",
            **({"ingest": self.folder.ingested()} if self.ingested and self.folder.ingested() else {}),
            "reason": self.due.reason,
            "posterior": str(self.folder.posterior),
            "summary": str(self.folder.summary),
            "report": str(self.folder.report),
            "findings": self.folder.findings(),
        }
        if self.entry is not None:
            description |= {"began_with": self.entry.start, "note": self.entry.note}
            description |= {"comparison": dict(self.entry.comparison), "alerts": list(self.alerts)}
        return description


def refresh(
    source: str | os.PathLike[str],
    folder: Folder,
    model: ModelConfig | Mapping[str, Any],
    options: RunOptions = RUN,
    rule: RefreshOptions = RULE,
    *,
    source_options: SourceOptions = SOURCE,
    accept: Accept | None = None,
    on_event: OnEvent | None = None,
) -> RefreshResult:
    """Update the results in a folder from their source; do nothing if they are current.

    Parameters
    ----------
    source, folder, source_options
        As for `factorflow.workflow.pipeline.ingest`.
    model, options, on_event
        As for `factorflow.workflow.pipeline.fit`.
    rule : RefreshOptions
        When a fit is due, and what it begins with.
    accept : callable, optional
        Given the comparison with the posterior before (``rows``, ``factors``, ``scores``, ``data``,
        ``alerts``), returns whether the new one becomes the latest. One that is refused stays beside the
        history, and is asked about again by the next refresh of the same data.

    Raises
    ------
    InputError
        When the input cannot be used or has too few rows (``rule.min_rows``), or another refresh of the
        folder is going on.
    """

    def ingest(place: Folder, check: Check) -> tuple[str, bool]:
        dataset, changed = pipeline.ingest(source, place, source_options, check)
        return str(dataset.path), changed

    def fit(dataset: str, place: Folder, warm: str | None) -> Any:
        return pipeline.fit(dataset, place, model, options, overwrite=True, warm=warm, on_event=on_event)

    def project(posterior: str, dataset: str, place: Folder) -> Any:
        return pipeline.project(posterior, dataset, place, options, on_event=on_event)

    steps = Steps(ingest, fit, project, pipeline.summarise, pipeline.publish)
    return run_steps(folder, model, options, rule, steps, accept)


def run_steps(
    folder: Folder,
    model: ModelConfig | Mapping[str, Any],
    options: RunOptions,
    rule: RefreshOptions,
    steps: Steps,
    accept: Accept | None = None,
) -> RefreshResult:
    """Run the course of a refresh; parameters as for `refresh`.

    Summary and report are written before the history names the posterior: what a kill leaves, and a fit that
    a budget of minutes ended, is found to be unfinished by the next refresh, which goes on from there.
    """
    from factorflow.data import open_dataset

    require("matplotlib", "draws the report")  # before the fit
    accept = _choose_hook(rule, accept)
    history = History(folder.path)
    with history.locked():
        history.repair(rule.keep)
        last = last_fit(history, folder)
        path, ingested = steps.ingest(folder, lambda new: check_rows(history, last, new, rule))
        dataset = open_dataset(path)
        decided = _decide(last, dataset, model, options, rule)
        if decided.action == "nothing":
            place = replace(folder, name=_latest_name(history, folder))
            _write_outdated(place, steps)
            return RefreshResult(place, ingested, decided)
        check_rows(history, last, dataset, rule)
        entries = history.entries()
        moments = history.moments(entries[-1]) if entries else None  # damaged: before the work
        place, note, start = replace(folder, name=history.next_name()), "", None
        if decided.action == "project":
            assert last is not None
            steps.project(str(last.path), path, place)
            start = str(last.path)
        else:
            start, note = _start(last, dataset, model, rule)
            steps.fit(path, place, start)
            if _is_partial(place):  # the next refresh goes on with it
                steps.summarise(place)
                steps.publish(place)
                return RefreshResult(place, ingested, decided)
        entry = Entry(
            number=int(Path(place.name).stem),
            kind="fit" if decided.action == "fit" else "projection",
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            n_rows=dataset.n_rows,
            fingerprint=dataset.fingerprint,
            reason=decided.reason,
            start="" if start is None else start.rpartition("/")[2],
            note=note,
        )
        comparison = _compare_runs(history, last, entry, dataset, place, moments)
        messages = alerts(comparison, rule)
        entry = replace(entry, comparison=comparison | {"alerts": messages} if comparison else {})
        if comparison and accept is not None and not _is_accepted(accept, entry.comparison, place):
            return RefreshResult(place, ingested, decided, entry, tuple(messages), accepted=False)
        if entry.kind == "fit":
            steps.summarise(place)
            steps.publish(place)
        history.add(entry, dataset)
        history.prune(rule.keep)
        return RefreshResult(place, ingested, decided, entry, tuple(messages))


def _decide(
    last: Last | None,
    dataset: Dataset,
    model: ModelConfig | Mapping[str, Any],
    options: RunOptions,
    rule: RefreshOptions,
) -> Due:
    """Return what is due; rows of other features cannot be projected."""
    requested = run_asked_for(dataset, model, options, last)
    decided = due(last, requested, dataset.n_rows, rule, datetime.now(UTC))
    if last is not None and decided.action == "project" and (names := other_features(last, dataset, model)):
        return Due("fit", f"Other features than those of the last fit: {', '.join(names)}.")
    return decided


def _choose_hook(rule: RefreshOptions, accept: Accept | None) -> Accept | None:
    """Return the hook, given as a function or by its path."""
    if rule.accept is None:
        return accept
    if accept is not None:
        expected = "None with accept, which is a function"
        raise InputError("rule.accept", rule.accept, expected, "Leave one of the two out.")
    return import_hook(rule.accept)


def import_hook(path: str) -> Accept:
    """Return the hook at a path, ``package.module:function``.

    Raises
    ------
    InputError
        If there is none.
    """
    module, _, name = path.partition(":")
    try:
        hook: Any = getattr(import_module(module), name)
    except Exception as error:  # the module is somebody else's
        expected = f"a function that can be imported ({type(error).__name__}: {error})"
        remedy = "Install its package where the run is, or add its folder to PYTHONPATH."
        raise InputError("accept", path, expected, remedy) from error
    if not callable(hook):
        raise InputError("accept", path, f"a function, not a {type(hook).__name__}", "Correct it.")
    accept: Accept = hook
    return accept


def _is_accepted(accept: Accept, comparison: Mapping[str, Any], place: Folder) -> bool:
    try:
        return bool(accept(comparison))
    except Exception as error:  # it is somebody else's
        text = f"accept, which decides about {place.posterior}, raised {type(error).__name__}: {error}"
        remedy = "The latest posterior is the one before; the next refresh asks again."
        raise RunError(f"{text}. {remedy}") from error


def _is_partial(place: Folder) -> bool:
    from factorflow.posterior.store import read_run

    record = read_run(place.posterior)
    return record is not None and record.status == "partial"


def _latest_name(history: History, folder: Folder) -> str:
    entries = history.entries()
    return entries[-1].name if entries else folder.name


def _write_outdated(place: Folder, steps: Steps) -> None:
    for path, step in ((place.summary, steps.summarise), (place.report, steps.publish)):
        if not place.is_current(path):
            step(place)


def _start(
    last: Last | None, dataset: Dataset, model: ModelConfig | Mapping[str, Any], rule: RefreshOptions
) -> tuple[str | None, str]:
    """Return the posterior that a fit begins with, or None and why not."""
    from factorflow.engine.run import check_warm_start

    if last is None or not rule.warm:
        return None, ""
    try:
        check_warm_start(str(last.path), dataset, model)
    except InputError as error:
        return None, f"It began anew: {last.path.name} is {error.value}; expected {error.expected}."
    return str(last.path), ""


def _compare_runs(
    history: History,
    last: Last | None,
    entry: Entry,
    dataset: Dataset,
    place: Folder,
    moments: Moments | None,
) -> dict[str, Any]:
    """Return what changed since the last fit (factors, scores) and the latest posterior (data)."""
    from factorflow.api import open_posterior

    entries = history.entries()
    if last is None and not entries:
        return {}
    before_it = history.path(entries[-1]) if last is None else last.path
    report: dict[str, Any] = {"with": before_it.name, "factors": [], "scores": [], "data": []}
    report["rows"] = {"before": n_latest_rows(history, last), "after": dataset.n_rows}
    if entry.kind == "fit" and last is not None:
        before, after = open_posterior(last.path), open_posterior(place.posterior)
        report |= {"factors": compare_factors(before, after), "scores": compare_scores(before, after)}
    if moments is not None:
        report["data"] = compare_data(moments, moments_of(dataset))
    return report
