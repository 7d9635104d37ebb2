"""fit, resume, select, refresh."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from factorflow.cli.options import Dataset, ModelOptions, Source, assignments, names_set, path, values_of
from factorflow.cli.output import DisplayedResult, as_table, command, describe_posterior, report_findings
from factorflow.engine.progress import progress_bar
from factorflow.errors import InputError, pluralize
from factorflow.settings import (
    SELECTION,
    FitOptions,
    RefreshOptions,
    ResumeOptions,
    RunOptions,
    SelectOptions,
    SourceOptions,
)

if TYPE_CHECKING:
    from factorflow.api import Posterior
    from factorflow.engine.events import Event
    from factorflow.workflow.select import Selection


def register(app: typer.Typer) -> None:
    """Add the commands that fit."""
    for function in (fit, resume, select, refresh):
        command(app)(function)


def fit(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="Posterior to write.", parser=path)],
    model: ModelOptions,
    options: FitOptions,
) -> DisplayedResult:
    """Fit a model to a dataset."""
    from factorflow import api

    with progress_bar() as on_event:
        posterior = api.fit(dataset, model.values(), out=out, on_event=on_event, **options.arguments())
    return _describe_fit(out, posterior)


def resume(
    out: Annotated[
        Path, typer.Argument(help="Where the interrupted run was to put its posterior.", parser=path)
    ],
    run: ResumeOptions,
) -> DisplayedResult:
    """Resume an interrupted run with the dataset, model and seed it began with."""
    from factorflow.workflow.resume import resume as continue_run

    began = False

    def watch(event: Event) -> None:
        nonlocal began
        began = True
        on_event(event)

    with progress_bar() as on_event:
        posterior = continue_run(out, on_event=watch, **run.arguments())
    if began:
        return _describe_fit(out, posterior)
    note = f"The run to {out} is complete: there is nothing to go on with."
    return _describe_fit(out, posterior, note)


def select(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="Folder for the posteriors of all trials.", parser=path)],
    grid: Annotated[
        list[str], typer.Option(help="NAME=VALUE,VALUE,...: an option to vary; may be given several times.")
    ],
    model: ModelOptions,
    run: SelectOptions = SELECTION,
) -> DisplayedResult:
    """Fit every combination of a grid of options, rank them by held-out score, fit the best to everything."""
    from factorflow.workflow.select import select as rank

    varied = {name: values_of(text) for name, text in assignments("grid", grid).items()}
    if twice := sorted(names_set(model.set) & varied.keys()):
        expected = "an option in --set, which all fits have, or in --grid, which varies it"
        raise InputError("grid", ", ".join(twice), expected, "Leave one of the two out.")
    with progress_bar(None if run.parallel == 1 else False) as on_event:
        selection = rank(dataset, model.values(), varied, out=out, options=run, on_event=on_event)
    return replace(report_findings(selection.describe(), selection.best), text=_selection_text(selection))


def _selection_text(selection: Selection) -> str:
    """Return the combinations as a table, the best first, and where the best one is; JSON has the rest."""
    names = {
        "options": "options",
        "log_likelihood": "log-likelihood",
        "standard_error": "error",
        "behind": "below the best",
        "behind_error": "error of that",
        "findings": "findings",
    }
    rows = [
        {
            text: row[name]
            for name, text in names.items()
            if any(r[name] not in (None, "") for r in selection.table)
        }
        for row in selection.table
    ]
    seeds = pluralize(selection.table[0]["n_seeds"], "seed")
    lines = [f"held-out log-likelihood, nats an entry, mean of {seeds}", as_table(rows, "  ")]
    if selection.posterior is not None:
        lines.append(f"best, fitted to everything  {selection.posterior}")
    return "\n".join(lines)


def refresh(
    source: Source,
    out: Annotated[
        Path, typer.Option(help="Folder for dataset, history of posteriors, summary and report.", parser=path)
    ],
    model: ModelOptions,
    run: RunOptions,
    rule: RefreshOptions,
    source_options: SourceOptions,
) -> DisplayedResult:
    """Update results from their source: fit or project what changed, and report drift."""
    from factorflow.workflow.folder import Folder
    from factorflow.workflow.refresh import refresh as bring_up_to_date

    with progress_bar() as on_event:
        outcome = bring_up_to_date(
            source,
            Folder.at(out),
            model.values(),
            run,
            rule,
            source_options=source_options,
            on_event=on_event,
        )
    return report_findings(outcome.describe())


def _describe_fit(out: Path, posterior: Posterior, note: str = "") -> DisplayedResult:
    more = {"note": note} if note else {}
    lines = ["", "", f"posterior  {out}", *more.values()]
    return describe_posterior(posterior, {"posterior": str(out)}, more, "\n".join(lines))
