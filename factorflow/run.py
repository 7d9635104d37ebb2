"""`fit`, `resume` and `project`: the thin module that joins store, engine and posterior."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from factorflow.data import Dataset, Holdout, open_dataset
from factorflow.engine.draws import DrawStore, draw_chunk
from factorflow.engine.events import Event, OnEvent, RunFinished, RunStarted
from factorflow.engine.executors.environment import check_device, environment
from factorflow.engine.executors.launch import open_executor
from factorflow.engine.executors.local import Executor, LocalExecutor
from factorflow.engine.fixed import Fixed
from factorflow.engine.loop import Budget, Loop
from factorflow.engine.memory import check_memory, kept_bytes, local_must_spill, measure, must_spill
from factorflow.engine.output import Output, read_identity
from factorflow.engine.plan import Plan
from factorflow.engine.projecting import Aligned
from factorflow.engine.publish import publish
from factorflow.engine.source import Source
from factorflow.models import configure
from factorflow.models.contract import Model, ModelConfig
from factorflow.posterior import Posterior, open_posterior
from factorflow.posterior.globals import GROUP, StoredGlobals
from factorflow.posterior.store import create_draws
from factorflow.settings import ResumeOptions, RunOptions, parse_config

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["fit", "project", "resume"]


def fit(
    dataset: Dataset | str | os.PathLike[str],
    model: ModelConfig | Mapping[str, Any],
    *,
    seed: int = 0,
    executor: str | Client = "local",
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume: bool | Literal["auto"] = False,
    max_iter: int | None = None,
    max_minutes: float | None = None,
    holdout: float = 0.0,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    checkpoint_every: int = 50,
    device: Literal["cpu", "cuda"] = "cpu",
    on_event: OnEvent | None = None,
) -> Posterior:
    """Fit a model to a dataset and return its posterior.

    The same dataset, settings and seed give the same bits with any executor and any number of workers,
    interrupted and resumed or not.

    Parameters
    ----------
    dataset : Dataset or path
        What `write_dataset` wrote.
    model : ModelConfig or mapping
        Such as ``models.SparseGFA(n_factors=15)``, or ``{"model": "sparse_gfa", "n_factors": 15}``.
    seed : int
        Key of all random numbers, held-out entries included.
    executor : {"local", "threads", "dask"}, address or distributed.Client
        This process; its threads; a Dask cluster of its own on this machine; a running one.
    out : path, optional
        Where the posterior goes; its checkpoints are in ``<out>.run`` meanwhile. Left out: kept in memory.
    overwrite : bool
        Replace what is at ``out``; the old one stays until the new one is complete.
    resume : bool or "auto"
        Go on from the checkpoint in ``<out>.run``. "auto": if there is one, else begin anew, and return
        ``out`` if it is already the complete result of this very run.
    max_iter, max_minutes : int, float, optional
        Iterations at most, over the stages that count; wall-clock minutes at most.
    holdout : float
        Share of the observed entries that are hidden from the model and scored at the end.
    workers : int, optional
        Threads or worker processes that are started ("threads", "dask"); all cores when left out.
    memory_limit : str or int, optional
        Memory of each worker ("4GB"), of this process for "local" and "threads".
    checkpoint_every : int
        Iterations between two checkpoints.
    device : {"cpu", "cuda"}
        Where blocks are worked on (``config.devices``); a GPU agrees with a CPU to a tolerance only.
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
    given = {"seed": seed, "device": device, "holdout": holdout}
    budgets = {"max_iter": max_iter, "max_minutes": max_minutes, "checkpoint_every": checkpoint_every}
    options = parse_config(RunOptions, given | budgets)
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    config = configure(model)
    check_device(device, config.devices)
    hidden = Holdout(holdout, seed) if holdout else None
    built = config.build(data.meta(config.views, hidden))
    output = Output(out, _identity(data, config, options), overwrite=overwrite, resume=resume)
    if output.is_complete:
        return open_posterior(output.path)
    place: dict[str, Any] = {"executor": executor, "workers": workers, "memory_limit": memory_limit}
    with _explained(output, place | budgets), closing(output), closing(open_executor(**place)) as where:
        plan, draws = _plan(built, data, hidden, options, where, output)
        budget = Budget(max_minutes, checkpoint_every)
        return _run(Loop(plan, where, budget, output.checkpoints, draws, on_event or _ignore), output)


def resume(out: str | os.PathLike[str], **options: Any) -> Posterior:
    """Go on with an interrupted run; dataset, model, seed and hold-out are those it began with.

    Parameters
    ----------
    out : path
        Where the run was to put its posterior.
    **options
        Of `fit`: executor, workers, memory_limit, max_iter (left out: that of the run), max_minutes,
        checkpoint_every, on_event.

    Raises
    ------
    InputError
        If there is no interrupted run.
    """
    begun = read_identity(out)
    if options.get("max_iter") is None:
        options["max_iter"] = begun["max_iter"]
    return fit(
        begun["dataset_path"],
        begun["config"],
        seed=begun["seed"],
        holdout=begun["holdout"],
        device=begun["device"],
        out=out,
        resume=True,
        **options,
    )


def project(
    posterior: Posterior,
    dataset: Dataset | str | os.PathLike[str],
    *,
    iterations: int = 20,
    executor: str | Client = "local",
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    on_event: OnEvent | None = None,
) -> Posterior:
    """Return the posterior of new samples under a fitted model, its globals fixed.

    A run like `fit`: block by block, out of core, on whatever executor, with the same bits on all of them.

    Parameters
    ----------
    posterior : Posterior
        A fitted model.
    dataset : Dataset or path
        New samples. Features are matched by name; views, features and entries may be missing.
    iterations : int
        Passes over the data at most, for models whose local state is found by iterating; of a sampler, for
        each of at most 100 draws of the fit, the same ones of each chain.
    executor, out, overwrite, workers, memory_limit, on_event
        As for `fit`.

    Returns
    -------
    Posterior
        With the new samples as ``obs``; in memory, or opened from ``out``.

    Raises
    ------
    InputError
        When dataset and model do not fit together, or ``out`` exists.
    """
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    fitted = posterior.model
    aligned = Aligned(data, fitted.meta, {v.name: posterior.features(v.name) for v in fitted.meta.views})
    model = posterior.config.build(aligned.meta)
    stored = StoredGlobals.of(posterior.tree, posterior.path)
    fixed = Fixed(stored, tuple(range(n_sets(posterior))), iterations)
    identity = {key: posterior.run[key] for key in ("config", "seed", "factorflow")}
    identity |= {"dataset": data.fingerprint, "holdout": 0.0, "dataset_path": str(data.path)}
    options = RunOptions(seed=int(posterior.run["seed"]))
    output = Output(out, identity, overwrite=overwrite, resume=False)
    place: dict[str, Any] = {"executor": executor, "workers": workers, "memory_limit": memory_limit}
    with closing(output), closing(open_executor(**place)) as where:
        plan, draws = _plan(model, aligned, None, options, where, output, fixed)
        return _run(Loop(plan, where, Budget(), output.checkpoints, draws, on_event or _ignore), output)


def n_sets(posterior: Posterior) -> int:
    """Return the sets of globals that a posterior holds of each chain."""
    group = posterior.tree.children.get(GROUP)
    return int(group.sizes["set"]) if group is not None and "set" in group.sizes else 1


@contextmanager
def _explained(output: Output, settings: Mapping[str, Any]) -> Iterator[None]:
    """Note on an interrupt what the run leaves behind and how it goes on, for whoever shows the interrupt."""
    try:
        yield
    except Exception:
        raise
    except BaseException as interrupt:  # KeyboardInterrupt, SystemExit, Prefect's TerminationSignal
        if (left := output.left_behind()) is not None:
            interrupt.add_note(left)
        if output.has_checkpoint:
            interrupt.add_note(f"To go on: {_resume_command(output, settings)}")
        raise


def _resume_command(output: Output, settings: Mapping[str, Any]) -> str:
    """Return the command that goes on with a run as it was begun."""
    words = ["factorflow", "resume", str(output.shown_path)]
    for name, field in ResumeOptions.model_fields.items():
        if settings[name] != field.default and isinstance(settings[name], str | int | float):
            words += [f"--{name.replace('_', '-')}", str(settings[name])]
    return shlex.join(words)


def _identity(data: Dataset, config: ModelConfig, options: RunOptions) -> dict[str, Any]:
    """Return what tells a run from any other, and where its dataset was."""
    shared = options.model_dump(include={"seed", "holdout", "device", "max_iter"})
    return shared | {
        "dataset": data.fingerprint,
        "config": config.model_dump(mode="json"),
        "factorflow": environment()["factorflow"],
        "dataset_path": str(data.path),
    }


def _plan(
    model: Model[Any, Any],
    data: Dataset | Aligned,
    hidden: Holdout | None,
    options: RunOptions,
    executor: Executor,
    output: Output,
    fixed: Fixed | None = None,
) -> tuple[Plan, DrawStore | None]:
    """Return what the tasks have in common, if they fit into memory; makes the folder of the run."""
    meta, n_chains, drawn = model.meta, model.n_chains, model.kind == "monte carlo"
    n_groups, limit = len(executor.cut(meta.n_blocks)), executor.memory_bytes
    footprint = measure(model)
    check_memory(meta, footprint, n_groups, n_chains, limit)
    spill = must_spill(model.stages(), meta, footprint, n_groups, n_chains, limit)
    local_spill = local_must_spill(meta, footprint, n_groups, n_chains, limit)
    output.open(needed=drawn or spill or local_spill or not isinstance(executor, LocalExecutor))
    views = tuple(view.name for view in meta.views)
    cache = kept_bytes(meta, footprint, executor.cache_bytes)
    plan = Plan(
        model,
        Source(data, views, hidden, cache, executor.cache_bytes - cache, options.device),
        options.seed,
        options.max_iter,
        output.store if drawn else None,
        output.kept if spill else None,
        output.kept if local_spill else None,
        fixed,
    )
    return plan, DrawStore(plan.draws_path, draw_chunk(footprint.globals_)) if plan.draws_path else None


def _run(loop: Loop, output: Output) -> Posterior:
    """Drive the loop and publish what it found, also when it was interrupted."""
    plan = loop.plan
    if output.resuming and loop.checkpoints is not None:
        loop.resume(loop.checkpoints.read_manifest())
    else:
        if plan.draws_path is not None:
            create_draws(plan.draws_path, plan.model, plan.n_draws)
        loop.start()
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
    posterior = publish(loop, output)
    loop.on_event(RunFinished(loop.reason, loop.counted, loop.seconds, output.shown_path))
    if interrupt is not None:
        raise interrupt
    return posterior


def _ignore(event: Event) -> None:
    """Watch nothing."""
