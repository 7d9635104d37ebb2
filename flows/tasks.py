"""The steps of `factorflow.workflow.pipeline` as Prefect tasks: few and coarse, since each costs 10-20 ms.

They hand each other paths and small records; blocks and sweeps are Dask's, inside the fit task.
"""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import TerminationSignal
from prefect.tasks import Task

from factorflow.api import open_posterior
from factorflow.api.runs import preparation_text
from factorflow.data import Dataset
from factorflow.errors import InputError
from factorflow.workflow import pipeline
from factorflow.workflow.folder import Folder
from flows.artifacts import Label, RunWatcher, publish_factors, publish_objective, publish_report
from flows.parameters import ModelChoice, RunOptions, SourceOptions


def log_findings(findings: Iterable[Mapping[str, str]]) -> None:
    """Log the findings as warnings of the run."""
    for finding in findings:
        get_run_logger().warning("%s %s", finding["message"], finding["remedy"])


def worth_retrying(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    """Whether a failure may pass: bad input stays bad."""
    return not isinstance(state.result(raise_on_failure=False), InputError)


@task(cache_policy=NO_CACHE)
def ingest(
    source: str, folder: Folder, options: SourceOptions, check: Callable[[Dataset], None] | None = None
) -> tuple[str, bool]:
    """Return the path of the source's dataset, and whether it had to be written; ``check`` may refuse it."""
    dataset, changed = pipeline.ingest(source, folder, options, check)
    print(repr(dataset))
    return str(dataset.path), changed


@task(cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
def fit(
    dataset: str,
    folder: Folder,
    model: ModelChoice,
    run: RunOptions,
    overwrite: bool,
    label: Label,
    warm: str | None = None,
) -> bool:
    """Fit, and return whether a run was needed; a retry goes on from the last checkpoint.

    With ``warm`` the run begins with the posterior at that path.

    Cancelling the flow run raises Prefect's ``TerminationSignal`` here; the engine then ends the run in
    order, keeps checkpoint and partial posterior, notes where they are, and lets the signal pass.
    """
    print(preparation_text(run.executor).capitalize())
    watcher = RunWatcher(label)
    try:
        posterior, fitted = pipeline.fit(
            dataset, folder, model, run, overwrite=overwrite, warm=warm, on_event=watcher
        )
    except TerminationSignal as interrupt:
        print(*getattr(interrupt, "__notes__", ()), sep="\n")
        raise
    finally:
        watcher.close()
    publish_objective(posterior, label)
    return fitted


@task(cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
def project(posterior: str, dataset: str, folder: Folder, run: RunOptions, label: Label) -> str:
    """Project the rows of a dataset on a posterior; return where the new one is."""
    watcher = RunWatcher(label)
    try:
        pipeline.project(posterior, dataset, folder, run, on_event=watcher)
    finally:
        watcher.close()
    return str(folder.posterior)


@task(cache_policy=NO_CACHE)
def summarise(folder: Folder, label: Label) -> dict[str, Any]:
    """Write and return the summary of the posterior."""
    summary = pipeline.summarise(folder)
    publish_factors(summary["factors"], label)
    return summary


@task(cache_policy=NO_CACHE)
def publish(folder: Folder, label: Label) -> str:
    """Write the report, and publish what it says; return its path."""
    path = pipeline.publish(folder)
    publish_report(open_posterior(folder.posterior), path, label)
    return str(path)
