"""Choosing a model by held-out score: a task for each trial, so that each is retried and shown by itself."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from factorflow.settings import SELECTION
from factorflow.workflow.pipeline import Folder
from factorflow.workflow.select import Trial, Verdict, choose, plan, run_trial
from flows import tasks
from flows.artifacts import Label, RunWatcher
from flows.parameters import ModelChoice, Out, RunOptions, Shown, Source, SourceOptions, default_model

__all__ = ["select"]

Grid = Annotated[
    dict[str, list[Any]],
    Shown('Options of the model to vary, each with its values, as JSON: `{"n_factors": [5, 10, 15]}`.'),
]
Seeds = Annotated[list[int], Shown("Runs of each combination: a seed each.")]


@task(cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=tasks.worth_retrying)
def trial_run(dataset: str, trial: Trial, out: str, run: RunOptions, label: Label) -> Verdict:
    """Fit one trial and score it."""
    print(f"{dict(trial.varied)}, seed {trial.seed}")
    watcher = RunWatcher(label)
    try:
        verdict = run_trial(dataset, trial, out, run, on_event=watcher)
    finally:
        watcher.close()
    print(f"held-out log-likelihood {verdict.log_likelihood:.5g}")
    return verdict


@flow(name="select", log_prints=True)
def select(
    source: Source,
    out: Out,
    grid: Grid,
    model: ModelChoice = default_model(),  # noqa: B008  Prefect shows the default in its form
    seeds: Seeds = [0],  # noqa: B006  Prefect copies it
    run: RunOptions = RunOptions(holdout=SELECTION.holdout),  # noqa: B008
    source_options: SourceOptions = SourceOptions(),  # noqa: B008
) -> dict[str, Any]:
    """Fit every combination of a grid of options and rank them by held-out log-likelihood.

    Parameters
    ----------
    source, model, source_options
        As for `flows.fit.fit`.
    out : str
        Folder for the dataset and the posteriors of all trials.
    grid : dict of str to list
        Options of the model to vary: ``{"n_factors": [5, 10, 15]}``.
    seeds : list of int
        Runs of each combination; a seed also draws the held-out entries.
    run : RunOptions
        Executor, budgets, hold-out (its seed is not used).

    Returns
    -------
    dict
        The best options, and a table of all combinations, best first.
    """
    folder, label = Folder.at(out), Label.of(source, out)
    dataset, _ = tasks.ingest(source, folder, source_options)
    trials = plan(model.model_dump(mode="json"), grid, seeds)
    place = str(folder.path / "trials")
    labels = [Label(label.dataset, f"{label.run}/{trial.name}") for trial in trials]
    named = zip(trials, labels, strict=True)
    selection = choose([trial_run(dataset, trial, place, run, its_label) for trial, its_label in named])
    rows = [dict(row) for row in selection.table]
    description = f"Held-out log-likelihood by combination: {label}"
    create_table_artifact(rows, key=label.key("selection"), description=description)
    return selection.describe()
