"""Choosing a model by held-out score: a task for each trial, so that each is retried and shown by itself."""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, as_completed

from factorflow.api import open_posterior
from factorflow.core.markdown import escape
from factorflow.data import open_dataset
from factorflow.engine.executors.launch import shared_cluster
from factorflow.models.registry import registered_models
from factorflow.settings import SELECTION, SelectOptions, naming_types
from factorflow.workflow.folder import Folder
from factorflow.workflow.parallel import Stop
from factorflow.workflow.select import (
    Selection,
    Trial,
    Verdict,
    check_trials,
    choose,
    plan,
    publish,
    refit,
    run_trial,
)
from flows import tasks
from flows.artifacts import Label, RunWatcher, picture_of, publish_picture, publish_report
from flows.parameters import (
    DeclaredField,
    FormField,
    ModelChoice,
    Out,
    Reading,
    RunOptions,
    Source,
    SourceOptions,
    TrialOptions,
    TrialRun,
    default_model,
)
from flows.submission import checked_flow


@dataclass(frozen=True)
class Options(FormField):
    """Values of options of a model, validated by the family."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of the form; named properties would each be a field of it."""
        values: dict[str, list[dict[str, Any]]] = {}
        for family in registered_models().values():
            for name, field in family.model_json_schema()["properties"].items():
                for one in field.get("anyOf", [field]):
                    bounds = {key: one[key] for key in one if key not in {"title", "description", "default"}}
                    if bounds not in values.setdefault(name, []):
                        values[name].append(bounds)
        return {
            **super().__get_pydantic_json_schema__(core_schema, handler),
            "propertyNames": {"enum": sorted(values)},
            "patternProperties": {
                f"^{name}$": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"anyOf": fields, **naming_types(fields)},
                }
                for name, fields in values.items()
            },
        }


Grid = Annotated[
    dict[str, list[Any]],
    Options('Options of the model to vary, each with its values, as JSON: `{"n_factors": [5, 10, 15]}`.'),
]
Seeds = Annotated[list[int], DeclaredField(SelectOptions, "seeds")]
Refit = Annotated[bool, DeclaredField(SelectOptions, "refit")]
Parallel = Annotated[int, DeclaredField(SelectOptions, "parallel")]


@task(cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=tasks.worth_retrying)
def trial_run(dataset: str, trial: Trial, out: str, run: RunOptions, label: Label, stop: Stop) -> Verdict:
    """Fit one trial and score it."""
    stop.check()
    print(f"{dict(trial.varied)}, seed {trial.seed}")
    watcher = RunWatcher(label)
    try:
        verdict = run_trial(dataset, trial, out, run, on_event=stop.listener(watcher))
    finally:
        watcher.close()
    print(f"held-out log-likelihood {verdict.log_likelihood:.5g}")
    return verdict


@task(cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=tasks.worth_retrying)
def fit_best(
    dataset: str, selection: Selection, out: str, run: RunOptions, seed: int, label: Label
) -> Selection:
    """Fit the best model to everything."""
    watcher = RunWatcher(label)
    try:
        return refit(dataset, selection, out, run, seed=seed, on_event=watcher)
    finally:
        watcher.close()


def check_selection(parameters: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return the trials of a grid; an InputError where the family refuses its options."""
    if "grid" not in parameters:
        return ()
    return plan(parameters["model"].model_dump(mode="json"), parameters["grid"], parameters["seeds"])


@checked_flow("select", check_selection)
def select(
    source: Source,
    out: Out,
    grid: Grid,
    model: ModelChoice = default_model(),  # noqa: B008  Prefect shows the default in its form
    seeds: Seeds = SELECTION.seeds,
    run: TrialRun = TrialOptions(),  # noqa: B008
    source_options: Reading = SourceOptions(),  # noqa: B008
    refit: Refit = SELECTION.refit,
    parallel: Parallel = SELECTION.parallel,
) -> dict[str, Any]:
    """Fit every combination of a grid of options, rank them by held-out score, fit the best to everything.

    All of them share one cluster.

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
    refit : bool
        Whether the best model is fitted to everything.
    parallel : int
        Trials that run at the same time.

    Returns
    -------
    dict
        The best options, a table of all combinations, best first, the posterior of the best model, and what
        is to be known of it.
    """
    folder, label = Folder.at(out), Label.of(source, out)
    trials = check_selection({"model": model, "grid": grid, "seeds": seeds})
    dataset, _ = tasks.ingest(source, folder, source_options)
    check_trials(open_dataset(dataset), trials)
    place = str(folder.path / "trials")
    labels = [Label(label.dataset, f"{label.run}/{trial.name}") for trial in trials]
    labelled = zip(trials, labels, strict=True)
    with shared_cluster(run, parallel) as shared:
        stop = Stop()
        calls = [(dataset, trial, place, shared, its_label, stop) for trial, its_label in labelled]
        selection = choose(
            [trial_run(*call) for call in calls] if parallel == 1 else _run_all(calls, parallel, stop)
        )
        if refit:
            best = str(folder.path / "best.zarr")
            with shared_cluster(shared) as alone:
                its_label = Label(label.dataset, f"{label.run}/best")
                selection = fit_best(dataset, selection, best, alone, seeds[0], its_label)
    rows = [dict(row) for row in selection.table]
    escaped = [{name: escape(v) if isinstance(v, str) else v for name, v in row.items()} for row in rows]
    description = f"Held-out log-likelihood by combination: {label.as_markdown()}"
    create_table_artifact(escaped, key=label.key("selection"), description=description)
    figure = picture_of(publish(selection, folder.path))
    publish_picture(figure, label.key("selection-figure"), description)
    chosen = open_posterior(selection.posterior or rows[0]["posterior"])
    publish_report(chosen, None, Label(label.dataset, f"{label.run}/best"))
    outcome = selection.describe()
    tasks.log_findings(outcome["findings"])
    return outcome


def _run_all(calls: Sequence[tuple[Any, ...]], parallel: int, stop: Stop) -> list[Verdict]:
    """Return the verdicts of trials, so many at a time; an interrupt, or a failure, ends all in order."""
    futures: list[PrefectFuture[Verdict]] = []
    under_way: list[PrefectFuture[Verdict]] = []
    try:
        for call in calls:
            if len(under_way) == parallel:
                done = next(as_completed(under_way))
                done.result()
                under_way = [future for future in under_way if future is not done]
            futures.append(trial_run.submit(*call))
            under_way.append(futures[-1])
        return [future.result() for future in futures]
    except BaseException:
        stop.request()
        for future in under_way:
            with suppress(BaseException):  # what it was ended by
                future.wait()
        raise
