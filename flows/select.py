"""Choosing a model by held-out score: a task for each trial, so that each is retried and shown by itself."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from factorflow.settings import SELECTION
from factorflow.workflow.pipeline import Folder
from factorflow.workflow.select import Trial, Verdict, choose, plan, run_trial
from flows import tasks
from flows.artifacts import RunWatcher
from flows.parameters import ModelChoice, RunOptions, SourceOptions, default_model

__all__ = ["select"]


@task(cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=tasks.worth_retrying)
def trial_run(dataset: str, trial: Trial, out: str, run: RunOptions) -> Verdict:
    """Fit one trial and score it."""
    print(f"{dict(trial.varied)}, seed {trial.seed}")
    verdict = run_trial(dataset, trial, out, run, on_event=RunWatcher())
    print(f"held-out log-likelihood {verdict.log_likelihood:.5g}")
    return verdict


@flow(name="select", log_prints=True)
def select(
    source: str,
    out: str,
    grid: dict[str, list[Any]],
    model: ModelChoice = default_model(),  # noqa: B008  Prefect shows the default in its form
    seeds: list[int] = [0],  # noqa: B006  Prefect copies it
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
    folder = Folder.at(out)
    dataset, _ = tasks.ingest(source, folder, source_options)
    trials = plan(model.model_dump(mode="json"), grid, seeds)
    selection = choose([trial_run(dataset, trial, str(folder.path / "trials"), run) for trial in trials])
    rows = [dict(row) for row in selection.table]
    create_table_artifact(rows, key="selection", description="Held-out log-likelihood by combination")
    return selection.describe()
