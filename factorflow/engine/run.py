"""The implementation of `factorflow.fit`, `resume` and `project`: joins store, engine and posterior."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from warnings import warn

import numpy as np

from factorflow.core.block import ViewMeta
from factorflow.core.garbage import rare_collection
from factorflow.data import Dataset, Holdout, open_dataset
from factorflow.data.aligned_dataset import AlignedDataset
from factorflow.data.held_out_counts import check_split
from factorflow.data.sample_tables import SampleTables, model_meta
from factorflow.engine.compile_ahead import compile_on_workers
from factorflow.engine.draws import DrawStore, draw_chunk
from factorflow.engine.events import Event, OnEvent, RunFinished, RunStarted
from factorflow.engine.executors.environment import environment
from factorflow.engine.executors.launch import open_executor
from factorflow.engine.executors.local import Executor, LocalExecutor
from factorflow.engine.fixed_globals import FixedGlobals
from factorflow.engine.loop import Loop
from factorflow.engine.memory import fit_into_memory, fits_one_group, measure
from factorflow.engine.memory_limits import keep_every, kept_bytes, local_must_spill, sends_local
from factorflow.engine.observers import observers
from factorflow.engine.plan import Plan
from factorflow.engine.publish import publish
from factorflow.engine.resume_hints import note_outcome, with_resume_command
from factorflow.engine.run_directory import Output, RunDirectory
from factorflow.engine.source import Source
from factorflow.engine.submissions import Budget
from factorflow.engine.warm_start import Warm, warm_start
from factorflow.errors import InputError, OptionText, UnusedWarning
from factorflow.kernels.device import check_device
from factorflow.models import configure
from factorflow.models.configuration import ModelConfig
from factorflow.models.contract import Model
from factorflow.posterior.draw_store import check_draws, make_room
from factorflow.posterior.globals import StoredGlobals, n_sets, sets_after
from factorflow.posterior.open import open_tree
from factorflow.posterior.record import RunRecord
from factorflow.posterior.store import create_draws
from factorflow.posterior.stored_posterior import StoredPosterior
from factorflow.settings import ResumeOptions, RunOptions
from factorflow.storage.local import delete
from factorflow.storage.location import Location, as_location, output_location, resolve_links
from factorflow.storage.publish import current_version
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    import xarray as xr
    from distributed import Client
    from distributed.deploy.cluster import Cluster


def fit(
    dataset: Dataset | str | os.PathLike[str],
    model: ModelConfig | Mapping[str, Any],
    options: RunOptions,
    *,
    out: str | os.PathLike[str] | RemotePath | None = None,
    overwrite: bool = False,
    resume: bool | Literal["auto"] = False,
    warm: StoredPosterior | str | os.PathLike[str] | None = None,
    place: Client | Cluster | Executor | None = None,
    on_event: OnEvent | None = None,
) -> xr.DataTree | Location:
    """Fit a model to a dataset; see `factorflow.fit`.

    Parameters
    ----------
    dataset, model, out, overwrite, resume, on_event
        As for `factorflow.fit`.
    options : RunOptions
        The rest of its parameters.
    warm : StoredPosterior or path, optional
        The earlier fit that it begins with.
    place : Client, Cluster or Executor, optional
        Where to run, instead of what ``options.cluster`` or ``options.executor`` names.

    Returns
    -------
    DataTree, Path or Remote
        The posterior in memory, or where it is.
    """
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if data.n_rows < 2:
        raise InputError("samples", data.n_rows, "at least 2", "One sample can only be projected on a fit.")
    config = configure(model)
    check_device(options.device, config.devices)
    hidden = Holdout.of(options.model_dump(), data.design)
    before = None if warm is None else _open_fit(warm)
    meta = model_meta(data, config, hidden, None if before is None else before.meta)
    built = config.build(meta)
    _check_entries(built, data, data.features)
    check_split(hidden, data, built.meta, built.likelihood)
    for name, why in config.unused(meta).items():
        if (value := getattr(config, name)) != type(config).model_fields[name].default:
            text = OptionText(f"{{{name}}} does nothing here: {why}.", **{name: value})
            warn(text, UnusedWarning, stacklevel=3)
    if options.holdout_unit != "entry" and not options.holdout:
        shown = options.model_dump() | {"holdout": 0.1}
        text = OptionText("{holdout_unit} does nothing without {holdout}.", **shown)
        warn(text, UnusedWarning, stacklevel=3)
    start, origin = None, ("", "")
    if before is not None:
        start, origin = _start_of(before, data, config, built)
    tables = SampleTables.of(meta)
    record = RunRecord.begin(
        str(data.path), data.fingerprint, config.model_dump(mode="json"), options, environment(), origin,
        tables.digest,
        "" if meta.feature_sets is None else meta.feature_sets.digest,
    )  # fmt: skip
    output = Output(out, record, overwrite=overwrite, resume=resume)
    if output.is_complete:
        return output.path

    def make_plan(executor: Executor) -> tuple[Plan, DrawStore | None]:
        return _plan(built, data, hidden, options, executor, output, warm=start, tables=tables)

    return _execute(output, options, place, on_event, record.identity.config["model"], make_plan)


def resume(
    path: str | os.PathLike[str],
    options: ResumeOptions,
    *,
    place: Client | Cluster | Executor | None = None,
    on_event: OnEvent | None = None,
) -> xr.DataTree | Location:
    """Resume the interrupted run to a path; see `factorflow.resume`; other parameters are as for `fit`."""
    out = output_location(path)
    current_version(out)
    run = RunDirectory(out)
    if run.deliver() or run.is_ended():
        if options.max_iter is None:
            run.delete_leftovers()
            return out
        remedy = "Fit anew with {overwrite} for more: a run that has ended keeps no checkpoint."
        expected = f"an interrupted run: the one to {out} is complete"
        raise InputError("max_iter", options.max_iter, expected, remedy, overwrite=True)
    record = run.read_record()
    if record.status == "projected":
        return _resume_projection(out, record, options, place, on_event)
    again = record.run_options(options)
    config, warm = record.identity.config, record.warm_from or None
    return fit(record.dataset, config, again, out=out, resume=True, warm=warm, place=place, on_event=on_event)


def _resume_projection(
    out: Location,
    record: RunRecord,
    options: ResumeOptions,
    place: Client | Cluster | Executor | None,
    on_event: OnEvent | None,
) -> xr.DataTree | Location:
    """Resume an interrupted projection on the fit that its record names."""
    iterations = record.options.max_iter
    if options.max_iter is not None or iterations is None:
        expected = f"none: the projection to {out} has as many iterations as it began with"
        raise InputError("max_iter", options.max_iter, expected, "Leave it out.")
    if not record.warm_from:
        expected = "the projection on a stored posterior"
        remedy = "The fit was in memory: call its `project` with {resume}."
        raise InputError("resume", str(out), expected, remedy, resume=True)
    fitted = StoredPosterior(open_tree(record.warm_from), record.warm_from)
    return project(
        fitted, record.dataset, iterations, options, out=out, resume=True, place=place, on_event=on_event
    )


def project(
    posterior: StoredPosterior,
    dataset: Dataset | str | os.PathLike[str],
    iterations: int,
    options: ResumeOptions,
    *,
    out: str | os.PathLike[str] | RemotePath | None = None,
    overwrite: bool = False,
    resume: bool | Literal["auto"] = False,
    place: Client | Cluster | Executor | None = None,
    on_event: OnEvent | None = None,
    scored: tuple[int, int] | None = None,
    covariates: Any = None,
) -> xr.DataTree | Location:
    """Project new samples on a fitted model; see `factorflow.project`; returns as `fit`.

    With ``scored``, draws and repeats, their log likelihood instead (`Model.scorer`).
    """
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    posterior.check_draws()
    if (
        out is not None
        and posterior.path is not None
        and resolve_links(as_location(out)) == resolve_links(as_location(posterior.path))
    ):
        remedy = "Choose another path: the fit would be replaced by the projection, and be lost."
        raise InputError("out", str(out), "another path than that of the fitted posterior", remedy)
    fitted = posterior.model
    aligned = AlignedDataset(
        data, fitted.meta, {v.name: _features(posterior, v, data) for v in fitted.meta.views}
    )
    tables = SampleTables.projected(fitted.meta, data, covariates)
    fitted_meta = fitted.meta
    meta = replace(
        aligned.meta,
        covariates=tables.covariates_of_new(fitted_meta),
        feature_sets=fitted_meta.feature_sets,
        places=fitted_meta.places,
        levels=fitted_meta.levels,
        score_covariates=fitted_meta.score_covariates,
        sizes=fitted_meta.sizes,
    )
    model = posterior.config.build_fitted(meta)
    _check_entries(model, aligned, aligned.features.__getitem__)
    model = model if scored is None else model.scorer(*scored)
    stored = StoredGlobals.of(posterior.tree, posterior.path)
    fixed = FixedGlobals(stored, tuple(range(n_sets(posterior.tree))), iterations)
    whole = RunOptions(**(options.model_dump() | {"seed": posterior.record.identity.seed, "max_iter": None}))
    config = posterior.record.identity.config
    origin = (posterior.path or "", stored.digest(model.n_chains, fixed.draws[-1]))
    noted = whole.model_copy(update={"max_iter": iterations})
    record = RunRecord.begin(
        str(data.path), data.fingerprint, config, noted, environment(), origin, tables.digest
    )
    output = Output(out, record.ended("projected", "", 0), overwrite=overwrite, resume=resume)
    if output.is_complete:
        return output.path

    def make_plan(executor: Executor) -> tuple[Plan, DrawStore | None]:
        return _plan(model, aligned, None, whole, executor, output, fixed, tables=tables)

    return _execute(output, options, place, on_event, config["model"], make_plan)


def _execute(
    output: Output,
    options: ResumeOptions,
    place: Client | Cluster | Executor | None,
    on_event: OnEvent | None,
    family: str,
    make_plan: Callable[[Executor], tuple[Plan, DrawStore | None]],
) -> xr.DataTree | Location:
    """Carry out a run where its options say, and return its result."""
    where = place or options.cluster or options.executor
    opening = closing(open_executor(where, options.workers, options.memory_limit))
    with note_outcome(output, options), closing(output), opening as executor:
        with rare_collection:
            plan, draws = make_plan(executor)
        budget = Budget(options.max_minutes, options.checkpoint_every)
        with observers(options, output.name, family, executor, on_event or _ignore) as listener:
            listener = with_resume_command(listener, output, options)
            return _run(Loop(plan, executor, budget, output.checkpoints, draws, listener), output)


def _check_entries(
    model: Model[Any, Any], data: Dataset | AlignedDataset, features: Callable[[str], Any]
) -> None:
    """Refuse entries that the likelihood of their view gives no probability; kinds were checked at ingest."""
    for view in model.meta.value_views:
        density = model.likelihood(view.name)
        if density.name == view.likelihood:
            continue
        for of_all in data.moments(view.name, "min", "max").values():
            for feature in np.flatnonzero(density.excludes(of_all)):
                description = f"view {view.name}, feature {features(view.name)[feature]}, with an entry"
                density.check_entry(description, float(of_all[feature]))


def _features(posterior: StoredPosterior, view: ViewMeta, data: Dataset) -> Any:
    """Return the names of the features that a view had when it was fitted.

    The one column of a response may have none in the posterior, and the dataset of the fit may have grown.
    """
    features = posterior.own_features(view.name)
    if features is None and view.n_features == 1 and view.name in data.views:
        features = data.features(view.name)
    return posterior.features(view.name) if features is None or len(features) != view.n_features else features


def _start_of(
    posterior: StoredPosterior, data: Dataset, config: ModelConfig, model: Model[Any, Any]
) -> tuple[Warm, tuple[str, str]]:
    """Return the start that an earlier fit gives, its path, and the digest of its globals."""
    model.warm_stages()  # raises where the model starts anew only
    start = warm_start(posterior, data, config)
    return start, (posterior.path or "", start.stored.digest(model.n_chains, start.number))


def _open_fit(posterior: StoredPosterior | str | os.PathLike[str]) -> StoredPosterior:
    if not isinstance(posterior, str | os.PathLike):
        return posterior
    where = str(current_version(as_location(posterior, "warm_start")))
    return StoredPosterior(open_tree(where), where)


def check_warm_start(
    posterior: str | os.PathLike[str],
    dataset: Dataset | str | os.PathLike[str],
    model: ModelConfig | Mapping[str, Any],
) -> None:
    """Refuse an earlier fit that a fit of this model to this dataset cannot begin with."""
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    config, before = configure(model), _open_fit(posterior)
    _start_of(before, data, config, config.build(model_meta(data, config, like=before.meta)))


def _plan(
    model: Model[Any, Any],
    data: Dataset | AlignedDataset,
    hidden: Holdout | None,
    options: RunOptions,
    executor: Executor,
    output: Output,
    fixed: FixedGlobals | None = None,
    warm: Warm | None = None,
    tables: SampleTables | None = None,
) -> tuple[Plan, DrawStore | None]:
    """Return the plan of the run if it fits into memory; make the directory of the run."""
    meta, n_chains = model.meta, model.n_chains
    has_draws = any(stage.keep for stage in model.stages())
    if options.device == "cpu":
        compile_on_workers(executor, model, output.record.identity.config)
    footprint, limit = measure(model, fitting=fixed is None), executor.memory_bytes
    n_groups = len(executor.cut(meta.n_blocks))
    footprint, room = fit_into_memory(model, footprint, n_groups, executor)
    cache = kept_bytes(meta, footprint, room)
    views = tuple(view.name for view in meta.views)
    tables = tables or SampleTables()
    sparse = meta.sparse_views if options.device == "cpu" else ()
    source = Source(data, views, hidden, cache, room - cache, options.device, tables, sparse)
    plan = Plan(model, source, options.seed, options.max_iter, fixed=fixed, warm=warm)
    spill = local_must_spill(meta, footprint, n_groups, n_chains, limit)
    output.open(needed=has_draws or spill or not isinstance(executor, LocalExecutor))
    # A folder for a result in memory is a temporary one: it is there for runs on one machine.
    executor.check_paths(str(data.path), *([] if output.shown_path is None else [str(output.folder)]))
    sizes = meta, footprint, n_groups, n_chains, limit, room, executor.n_root_threads
    plan = replace(
        plan,
        draws_path=output.store if has_draws else None,
        local_path=output.local_path if spill else None,
        may_join=fits_one_group(model, footprint, executor),
        stateful=fixed is not None or not footprint.is_stateless,
        sends_local=sends_local(*sizes),
        keep_every=keep_every(*sizes),
        state_bytes=n_chains * footprint.globals_,
        statistics_bytes=n_chains * footprint.statistics,
    )
    return plan, DrawStore(plan.draws_path, draw_chunk(footprint.globals_)) if plan.draws_path else None


def _run(loop: Loop, output: Output) -> xr.DataTree | Location:
    """Drive the loop and publish its results, also after an interruption."""
    plan = loop.plan
    n_draws, globals_ = 0, None
    if output.resuming and loop.checkpoints is not None:
        manifest = loop.checkpoints.read_manifest()
        if plan.draws_path is not None and (n_draws := manifest["drawn"]["sizes"]["draw"]):
            check_draws(plan.draws_path, manifest["drawn"])
            make_room(plan.draws_path, plan.n_draws, sets_after(plan.n_draws, plan.n_draws, plan.n_chains))
        loop.resume(manifest)
        if plan.draws_path is not None and not n_draws:
            delete(Path(plan.draws_path))  # no draw is lost with it, and it may be damaged
            globals_ = loop.first_globals()
    else:
        loop.start()
    if plan.draws_path is not None and not n_draws:
        fitted = globals_ if plan.fixed is None else plan.fixed.globals_(0, 0)
        create_draws(plan.draws_path, plan.model, plan.n_draws, fitted)
    planned = sum(stage.max_iter for stage in plan.stages if stage.counts)
    started = RunStarted(
        run=output.name,
        n_rows=plan.model.meta.n_rows,
        n_blocks=plan.model.meta.n_blocks,
        n_groups=len(loop.groups),
        dashboard=loop.executor.dashboard,
        stages=tuple(stage.name for stage in plan.stages),
        max_iter=planned if plan.max_iter is None else min(plan.max_iter, planned),
        resumed_from=loop.counted if output.resuming else None,
    )
    loop.on_event(started)
    interrupt = loop.run()
    with loop.error_context("while its result was written"), rare_collection:
        result = publish(loop, output)
    output.deliver()
    loop.on_event(RunFinished(loop.reason, loop.counted, loop.seconds, output.shown_path))
    if interrupt is not None:
        raise interrupt
    return result


def _ignore(event: Event) -> None:
    """Watch nothing."""
