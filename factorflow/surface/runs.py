"""Runs: `fit` begins one, `resume` goes on with one, `project` is one of new samples, the globals fixed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from factorflow import run
from factorflow.engine.executors.launch import executor_options
from factorflow.engine.progress import watching
from factorflow.settings import ResumeOptions, RunOptions, parse_config
from factorflow.surface.posterior import Posterior, face, told

if TYPE_CHECKING:
    from factorflow.data import Dataset
    from factorflow.engine.events import OnEvent
    from factorflow.engine.executors.launch import Place
    from factorflow.models.contract import ModelConfig
    from factorflow.shape import HoldoutUnit

__all__ = ["fit", "project", "resume"]


def fit(
    dataset: Dataset | str | os.PathLike[str],
    model: ModelConfig | Mapping[str, Any],
    *,
    seed: int = 0,
    executor: Place = "local",
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume: bool | Literal["auto"] = False,
    warm_start: Posterior | str | os.PathLike[str] | None = None,
    max_iter: int | None = None,
    max_minutes: float | None = None,
    holdout: float = 0.0,
    holdout_unit: HoldoutUnit = "entry",
    workers: int | None = None,
    memory_limit: str | int | None = None,
    checkpoint_every: int = 50,
    device: Literal["cpu", "cuda"] = "cpu",
    log_json: str | os.PathLike[str] | None = None,
    metrics: str | int | None = None,
    performance_report: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    on_event: OnEvent | None = None,
) -> Posterior:
    """Fit a model to a dataset and return its posterior.

    The same dataset, settings and seed give the same bits with any executor and any number of workers,
    interrupted and resumed or not.

    Parameters
    ----------
    dataset : Dataset, path or URL
        What `write_dataset` wrote.
    model : ModelConfig or mapping
        Such as ``models.SparseGFA(n_factors=15)``, or ``{"model": "sparse_gfa", "n_factors": 15}``.
    seed : int
        Key of all random numbers, held-out entries included.
    executor : {"local", "threads", "dask"}, address, distributed.Client, cluster object or mapping
        This process; its threads; a Dask cluster of its own on this machine; a running one. A mapping starts
        any other cluster: ``{"class": "dask_jobqueue.SLURMCluster", "kwargs": {"cores": 1, "memory": "4GB",
        "walltime": "02:00:00"}, "adapt": {"minimum": 2, "maximum": 16}}`` (``docs/clusters.md``).
    out : path or URL, optional
        Where the posterior goes; its checkpoints are in ``<out>.run`` meanwhile, of a URL on a disk
        (``docs/object-stores.md``). Left out: kept in memory.
    overwrite : bool
        Replace what is at ``out``; the old one stays until the new one is complete.
    resume : bool or "auto"
        Go on from the checkpoint in ``<out>.run``. "auto": if there is one, else begin anew, and return
        ``out`` if it is already the complete result of this very run.
    warm_start : Posterior or path, optional
        An earlier fit of the same model to other rows of the same features: the run begins with its globals,
        and the factors keep their order, their signs and, where some are dropped, their names. A factor that
        it dropped does not come back.
    max_iter, max_minutes : int, float, optional
        Iterations at most, over the stages that count; wall-clock minutes at most.
    holdout : float
        Share of the observed entries that are hidden from the model and scored at the end.
    holdout_unit : {"entry", "row", "sequence"}
        What is hidden together: single entries, all values of a row, or of the rows of a sequence. Inputs
        (categorical variables, covariates) stay visible.
    workers : int, optional
        Threads or worker processes that are started ("threads", "dask"); all cores when left out.
    memory_limit : str or int, optional
        Memory of each worker ("4GB"), of this process for "local" and "threads".
    checkpoint_every : int
        Iterations between two checkpoints.
    device : {"cpu", "cuda"}
        Where blocks are worked on (``config.devices``); a GPU agrees with a CPU to a tolerance only.
    log_json : path, optional
        File to which a line of JSON is appended for each event: run, model, stage, iteration, objective
        (nats), seconds.
    metrics : int or str, optional
        Port, or ``"HOST:PORT"``, where Prometheus can fetch the run's numbers meanwhile.
    performance_report : path, optional
        HTML file for Dask's report of the run.
    progress : bool, optional
        Whether it is shown how far the run is: as a bar in a terminal or notebook, elsewhere the address of
        the dashboard and a line a minute (`logging`, logger ``factorflow``). By default unless ``on_event``
        is given.
    on_event : callable, optional
        Told of everything that happens (`factorflow.engine.events`).

    Returns
    -------
    Posterior
        In memory, or opened from ``out``.

    Raises
    ------
    InputError
        Before any work starts: data, model and settings do not fit together, or ``out`` exists.
    RunError
        If the run fails after it began; what was checkpointed stays.
    """
    options = {
        "seed": seed,
        "device": device,
        "holdout": holdout,
        "holdout_unit": holdout_unit,
        "max_iter": max_iter,
        "max_minutes": max_minutes,
        "checkpoint_every": checkpoint_every,
        "workers": workers,
        "memory_limit": memory_limit,
        "log_json": log_json,
        "metrics": metrics,
        "performance_report": performance_report,
    }
    place, where = executor_options(executor)
    with watching(progress, on_event) as watch:
        found = run.fit(
            dataset,
            model,
            parse_config(RunOptions, options | where),
            out=out,
            overwrite=overwrite,
            resume=resume,
            warm=warm_start,
            place=place,
            on_event=watch,
        )
    return told(face(found))


def resume(
    out: str | os.PathLike[str],
    *,
    executor: Place = "local",
    progress: bool | None = None,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Posterior:
    """Go on with an interrupted run; dataset, model, seed and hold-out are those it began with.

    Of a projection, too, if the fit that it is on is stored.

    Parameters
    ----------
    out : path or URL
        Where the run was to put its posterior. One that is complete is returned: a retry changes nothing.
    executor, progress, on_event
        As for `fit`.
    **options
        Of `fit`: workers, memory_limit, max_iter (left out: that of the run), max_minutes, checkpoint_every,
        log_json, metrics, performance_report.

    Raises
    ------
    InputError
        If there is no interrupted run.
    """
    place, where = executor_options(executor)
    with watching(progress, on_event) as watch:
        found = run.resume(out, parse_config(ResumeOptions, options | where), place=place, on_event=watch)
    return told(face(found))


def project(posterior: Posterior, dataset: Dataset | str | os.PathLike[str], **options: Any) -> Posterior:
    """Return the posterior of new samples under a fitted model: see `Posterior.project`."""
    return posterior.project(dataset, **options)
