"""`factorflow.resume`: continue an interrupted run, and bring what a flow wrote beside it up to date."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from factorflow.api.posterior import Posterior, as_posterior, log_findings, write_card
from factorflow.api.runs import preparation_text
from factorflow.engine import run
from factorflow.engine.executors.launch import executor_options
from factorflow.engine.progress import watching
from factorflow.settings import ResumeOptions, parse_config
from factorflow.storage.location import as_location
from factorflow.workflow.folder import Folder
from factorflow.workflow.pipeline import repair

if TYPE_CHECKING:
    from factorflow.engine.events import OnEvent
    from factorflow.engine.executors.launch import ExecutorLike


def resume(
    out: str | os.PathLike[str],
    *,
    executor: ExecutorLike = "local",
    progress: bool | None = None,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Posterior:
    """Resume an interrupted run with the dataset, model, seed and hold-out it began with.

    Of a projection, too, if the fit that it is on is stored. Summary and report that a flow wrote beside the
    posterior follow it: those of an earlier one, or that were cut off, are written anew.

    Parameters
    ----------
    out : path or URL
        Where the run was to put its posterior. One that is complete is returned: a retry changes nothing.
    executor, progress, on_event
        As for `fit`.
    **options
        Of `fit`: workers, memory_limit, max_iter (left out: that of the run), max_minutes, checkpoint_every,
        log_json, metrics, performance_report.

    Returns
    -------
    Posterior
        In memory, or opened from ``out``.

    Raises
    ------
    InputError
        If there is no interrupted run.

    Examples
    --------
    >>> model = factorflow.models.SparseGFA(n_factors=3)
    >>> stopped = factorflow.fit(dataset, model, max_minutes=1e-4, out="stopped.zarr")
    >>> stopped.run["status"]
    'partial'
    >>> factorflow.resume("stopped.zarr").run["status"]
    'complete'
    """
    where, options_of = executor_options(executor)
    with watching(progress, on_event, preparation_text(executor)) as watch:
        result = run.resume(
            out, parse_config(ResumeOptions, options | options_of), place=where, on_event=watch
        )
    place = as_location(out, "out")
    for folder in place.parents[:1]:
        repair(Folder(folder, place.name))
    return write_card(log_findings(as_posterior(result)))
