"""Runs: `fit` starts one, `project` scores new samples with the globals fixed."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from factorflow.api.inputs import as_dataset, split_options
from factorflow.api.posterior import Posterior, as_posterior, log_findings, write_card
from factorflow.engine import run
from factorflow.engine.executors.launch import compile_ahead, executor_options
from factorflow.engine.progress import LOGGER, say, watching
from factorflow.models import configure
from factorflow.settings import FitOptions, RunOptions, document_options, parse_config

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData

    from factorflow.core.block import HoldoutUnit
    from factorflow.data import Dataset
    from factorflow.engine.events import OnEvent
    from factorflow.engine.executors.launch import ExecutorLike
    from factorflow.models.configuration import ModelConfig


@document_options(FitOptions)
def fit(
    data: Dataset | AnnData | MuData | Mapping[str, Any] | str | os.PathLike[str],
    model: ModelConfig | Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    executor: ExecutorLike = "local",
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
    **options: Any,
) -> Posterior:
    """Fit a model to data and return its posterior.

    The same dataset, settings and seed give the same bits with any executor and any number of workers,
    interrupted and resumed or not.

    Parameters
    ----------
    data : Dataset, path, URL, AnnData, MuData or mapping
        What `write_dataset` wrote, or anything that it reads as ``views``: a file, an object in memory,
        ``{"rna": frame, ...}``. That is written to a dataset in the cache folder first (``FACTORFLOW_CACHE``,
        by default ``~/.cache/factorflow``), which the log names; the same data are written once.
    model : ModelConfig or mapping, optional
        Such as ``models.SparseGFA(n_factors=15)``, or ``{"model": "sparse_gfa", "n_factors": 15}``. Left out:
        ``models.SparseGFA`` with the options given here.
    executor : {"local", "threads", "dask"}, address, distributed.Client, cluster object or mapping
        This process; its threads; a Dask cluster of its own on this machine; a running one. A mapping starts
        any other cluster: ``{"class": "dask_jobqueue.SLURMCluster", "kwargs": {"cores": 1, "memory": "4GB",
        "walltime": "02:00:00"}, "adapt": {"minimum": 2, "maximum": 16}}`` (``docs/clusters.md``).
    out : path or URL, optional
        Where the posterior goes; its checkpoints are in ``<out>.run`` meanwhile, of a URL on a disk
        (``docs/object-stores.md``). Left out: kept in memory.
    <options>
    progress : bool, optional
        Whether it is shown how far the run is: as a bar in a terminal or notebook, elsewhere the address of
        the dashboard and a line a minute (`logging`, logger ``factorflow``). By default unless ``on_event``
        is given.
    on_event : callable, optional
        Told of everything that happens (`factorflow.engine.events`).
    **options
        Of `write_dataset`, where the data are no dataset yet (``obs``, ``groups``, ``likelihoods``,
        ``layer``, ...), else of ``models.SparseGFA``, where ``model`` is left out (``n_factors``, ...).

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

    Examples
    --------
    >>> model = factorflow.models.SparseGFA(n_factors=3)
    >>> found = factorflow.fit(dataset, model, seed=1, holdout=0.1, max_iter=10)
    >>> found.scores().shape
    (80, 3)
    >>> found.holdout_scores().index.tolist()
    ['rna', 'mutations']
    >>> factorflow.fit({"rna": rna}, n_factors=2, max_iter=10).factors
    ['Factor1', 'Factor2']
    """
    options_of_run = {name: value for name, value in locals().items() if name in RunOptions.model_fields}
    del options_of_run["executor"]
    place, where = executor_options(executor)
    settings = parse_config(RunOptions, options_of_run | where)
    chosen, of_data = split_options(data, model, options, _OWN)
    config = configure(chosen)
    if device == "cpu":
        compile_ahead(executor, config)
    show_progress = on_event is None if progress is None else progress
    with watching(progress, on_event, preparation_text(executor)) as watch:
        tree = run.fit(
            as_dataset(data, of_data, say if show_progress else partial(LOGGER.info, "%s")),
            config,
            settings,
            out=out,
            overwrite=overwrite,
            resume=resume,
            warm=warm_start,
            place=place,
            on_event=watch,
        )
    return write_card(log_findings(as_posterior(tree)))


def preparation_text(executor: ExecutorLike) -> str:
    """Return what is done before a run begins, in words."""
    workers = "" if executor in ("local", "threads") else ", workers start and compile kernels"
    return f"preparing{workers}"


_OWN = tuple(name for name in inspect.signature(fit).parameters if name != "options")


def project(
    posterior: Posterior,
    dataset: Dataset | AnnData | MuData | Mapping[str, Any] | str | os.PathLike[str],
    **options: Any,
) -> Posterior:
    """Return the posterior of new samples under a fitted model.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    dataset : Dataset, path, AnnData, MuData or mapping
        New samples.
    **options
        As for `Posterior.project`.

    Returns
    -------
    Posterior
        With the new samples as ``obs``.

    Raises
    ------
    InputError
        When dataset and model do not fit together, or ``out`` exists.

    Examples
    --------
    >>> factorflow.project(posterior, dataset).scores().shape
    (80, 3)
    """
    return posterior.project(dataset, **options)
