"""The recurring flow: update results from their source if it has changed."""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.events import emit_event

from factorflow.core.markdown import escape
from factorflow.settings import RefreshOptions
from factorflow.workflow.folder import Folder
from factorflow.workflow.refresh import Check, RefreshResult, Steps, run_steps
from flows import tasks
from flows.artifacts import Label
from flows.parameters import (
    FormField,
    ModelChoice,
    Out,
    Reading,
    Run,
    RunOptions,
    Source,
    SourceOptions,
    Worded,
    default_model,
)
from flows.submission import checked_flow

Rule = Annotated[
    RefreshOptions,
    Worded,
    FormField("When a fit is due, what it begins with, how many posteriors stay, what is called drift."),
]

SHOWN = 50
"""Factors that the artifact lists."""


@checked_flow("refresh")
def refresh(
    source: Source,
    out: Out,
    model: ModelChoice = default_model(),  # noqa: B008  Prefect shows the default in its form
    run: Run = RunOptions(),  # noqa: B008
    source_options: Reading = SourceOptions(),  # noqa: B008
    rule: Rule = RefreshOptions(),  # noqa: B008
) -> dict[str, Any]:
    """Ingest if the source has changed, fit or project if a rule says so, compare with the last posterior.

    Two refreshes of one folder wait for each other. What was found is an artifact and an event,
    ``factorflow.refresh.unchanged``, ``.projected``, ``.fitted`` or ``.drifted``, for automations.

    Parameters
    ----------
    source, model, run, source_options
        As for `flows.fit.fit`.
    out : str
        Folder for dataset, history of posteriors, summary and report.
    rule : RefreshOptions
        When a fit is due, and what it begins with.

    Returns
    -------
    dict
        What was done and why, the paths of posterior, summary and report, what changed.
    """
    folder, label = Folder.at(out), Label.of(source, out)

    def ingest(place: Folder, check: Check) -> tuple[str, bool]:
        ingested: tuple[str, bool] = tasks.ingest(source, place, source_options, check)
        return ingested

    steps = Steps(
        ingest=ingest,
        fit=lambda dataset, place, warm: tasks.fit(dataset, place, model, run, True, label, warm),
        project=lambda posterior, dataset, place: tasks.project(posterior, dataset, place, run, label),
        summarise=lambda place: tasks.summarise(place, label),
        publish=lambda place: tasks.publish(place, label),
    )
    with _exclusive_folder(folder):
        result = run_steps(folder, model, run, rule, steps)
    outcome = result.describe()
    tasks.log_findings(outcome["findings"])
    print(f"{out}: {outcome['done']}. {outcome.get('ingest', '')} {result.due.reason}")
    for alert in result.alerts:
        print(alert)
    if result.entry is not None and result.entry.comparison:
        description = f"What changed: {label.as_markdown()}"
        create_markdown_artifact(_page(result, label), key=label.key("changes"), description=description)
    _emit_event(result, label)
    return outcome


@contextmanager
def _exclusive_folder(folder: Folder) -> Iterator[None]:
    """Wait until no other flow refreshes the folder: a limit of the Prefect server, one for each folder.

    The package's own lock keeps out what knows no server, without waiting: that is why a server that is away
    for a while, and cannot renew the lease, does not end the run.
    """
    name = limit_of(folder)
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(name, 1)
    with concurrency(name, occupy=1, strict=True, raise_on_lease_renewal_failure=False):
        yield


def limit_of(folder: Folder) -> str:
    """Return the name of the limit of a folder."""
    return f"factorflow-refresh-{hashlib.sha256(str(folder.path).encode()).hexdigest()[:12]}"


def _emit_event(result: RefreshResult, label: Label) -> None:
    """Emit the event."""
    kinds = {"nothing": "unchanged", "project": "projected", "fit": "fitted"}
    what = "drifted" if result.alerts else kinds[result.due.action]
    resource = {
        "prefect.resource.id": f"factorflow.results.{label.key('results')}",
        "prefect.resource.name": str(label),
        "factorflow.folder": str(result.folder.path),
        "factorflow.dataset": label.dataset,
    }
    emit_event(f"factorflow.refresh.{what}", resource, payload=result.describe())


def _page(result: RefreshResult, label: Label) -> str:
    """Return what changed as markdown."""
    assert result.entry is not None
    comparison = result.entry.comparison
    text = [f"# {label.as_markdown()}: {Path(result.folder.name).stem}", escape(result.due.reason)]
    text.append(escape(result.entry.note))
    listed = "\n".join(f"- {escape(alert)}" for alert in result.alerts)
    text.append(listed or "Nothing drifted beyond the limits.")
    sections = (
        (f"Factors beside those of {escape(comparison['with'])}", comparison["factors"][:SHOWN]),
        ("Held-out log-likelihood, nats an entry", comparison["scores"]),
        ("Data", comparison["data"]),
    )
    for title, rows in sections:
        if rows:
            text += [f"## {title}", _table(rows)]
    return "\n\n".join(part for part in text if part)


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else escape(value)
