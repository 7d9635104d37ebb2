"""The work of `factorflow.fit`, `resume` and `project`: joins store, engine and posterior."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from factorflow.data import Dataset, Holdout, open_dataset
from factorflow.engine.draws import DrawStore, draw_chunk
from factorflow.engine.events import Event, OnEvent, RunFinished, RunStarted
from factorflow.engine.executors.environment import check_device, environment
from factorflow.engine.executors.launch import open_executor
from factorflow.engine.executors.local import Executor, LocalExecutor
from factorflow.engine.kept import local_must_spill, must_spill
from factorflow.engine.loop import Budget, Loop
from factorflow.engine.memory import check_memory, kept_bytes
from factorflow.engine.output import Output, read_identity
from factorflow.engine.plan import Plan
from factorflow.engine.projecting import Aligned, project_rows
from factorflow.engine.publish import publish
from factorflow.engine.source import Source
from factorflow.models import configure
from factorflow.models.contract import Model, ModelConfig
from factorflow.posterior.assembly import assemble, labels_of
from factorflow.posterior.store import create_draws
from factorflow.posterior.stored import Stored
from factorflow.settings import ResumeOptions, RunOptions

if TYPE_CHECKING:
    import xarray as xr
    from distributed import Client

__all__ = ["fit", "project", "resume"]


def fit(
    dataset: Dataset | str | os.PathLike[str],
    model: ModelConfig | Mapping[str, Any],
    options: RunOptions,
    *,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume: bool | Literal["auto"] = False,
    place: Client | Executor | None = None,
    on_event: OnEvent | None = None,
) -> xr.DataTree | Path:
    """Fit a model to a dataset; see `factorflow.fit`.

    Parameters
    ----------
    dataset, model, out, overwrite, resume, on_event
        As for `factorflow.fit`.
    options : RunOptions
        The rest of its parameters.
    place : Client or Executor, optional
        Where to run, instead of what ``options.executor`` names.

    Returns
    -------
    DataTree or Path
        The posterior in memory, or where it is.
    """
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    config = configure(model)
    check_device(options.device, config.devices)
    hidden = Holdout(options.holdout, options.seed) if options.holdout else None
    built = config.build(data.meta(config.views, hidden))
    output = Output(out, _identity(data, config, options), overwrite=overwrite, resume=resume)
    if output.is_complete:
        return output.path
    opening = closing(open_executor(place or options.executor, options.workers, options.memory_limit))
    with _explained(output, options), closing(output), opening as executor:
        plan = _plan(built, data, hidden, config, options, executor, output)
        draws = DrawStore(plan.draws_path, draw_chunk(built)) if plan.draws_path else None
        budget = Budget(options.max_minutes, options.checkpoint_every)
        return _run(Loop(plan, executor, budget, output.checkpoints, draws, on_event or _ignore), output)


def resume(
    out: str | os.PathLike[str],
    options: ResumeOptions,
    *,
    place: Client | Executor | None = None,
    on_event: OnEvent | None = None,
) -> xr.DataTree | Path:
    """Go on with an interrupted run; see `factorflow.resume`; ``place`` and what is returned as for `fit`."""
    begun = read_identity(out)
    same = {name: begun[name] for name in ("seed", "holdout", "device")}
    if options.max_iter is None:
        same["max_iter"] = begun["max_iter"]
    whole = RunOptions(**(options.model_dump() | same))
    return fit(
        begun["dataset_path"], begun["config"], whole, out=out, resume=True, place=place, on_event=on_event
    )


def project(posterior: Stored, dataset: Dataset | str | os.PathLike[str], iterations: int) -> xr.DataTree:
    """Return the posterior of new samples under a fitted model, in memory; see `factorflow.project`."""
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    fitted = posterior.model
    aligned = Aligned(data, fitted.meta, {v.name: posterior.features(v.name) for v in fitted.meta.views})
    model = posterior.config.build(aligned.meta)
    records = _records(posterior, at_most=100)
    rows, draws = project_rows(model, records, aligned, int(posterior.run["seed"]), iterations)
    monte_carlo = model.kind == "monte carlo"
    record = (
        {name: np.stack([r[name] for r in records])[None] for name in records[0]}
        if monte_carlo
        else records[0]
    )
    if monte_carlo:
        rows = {name: values[None] for name, values in {**rows, **draws}.items()}
    coords = {**model.coords(model.restore(records[0])), "factor": list(posterior.factors)}
    coords |= {f"feature_{view}": list(names) for view, names in aligned.features.items()}
    n_draws = len(records) if monte_carlo else 0
    trace: dict[str, list[Any]] = {"stage": ["projection"] * n_draws, "iteration": list(range(n_draws))}
    trace |= {"seconds": [0.0] * n_draws, "infos": [[{}]] * n_draws, "kept": [True] * n_draws}
    run = {**posterior.run, "status": "projected", "dataset": str(data.path)}
    run["identity"] = {key: posterior.run[key] for key in ("config", "seed", "factorflow")}
    run["identity"] |= {"dataset": data.fingerprint, "holdout": 0.0}
    return assemble(model, labels_of(data, model.meta, coords), record, rows, trace, run)


def _records(posterior: Stored, at_most: int) -> list[dict[str, Any]]:
    """Return the recorded globals: one set, or a sampler's draws, evenly thinned over all chains."""
    table = [v for v in posterior.model.variables() if not v.rows]
    stored: dict[str, Any] = {v.name: posterior.tree[v.group][v.name].to_numpy() for v in table}
    if posterior.model.kind == "variational":
        return [stored]
    n_chains, n_draws = stored[table[0].name].shape[:2]
    chosen = np.unique(np.linspace(0, n_chains * n_draws - 1, min(at_most, n_chains * n_draws)).astype(int))
    return [{name: values[i // n_draws, i % n_draws] for name, values in stored.items()} for i in chosen]


@contextmanager
def _explained(output: Output, options: RunOptions) -> Iterator[None]:
    """Note on an interrupt what the run leaves behind and how it goes on, for whoever shows the interrupt."""
    try:
        yield
    except Exception:
        raise
    except BaseException as interrupt:  # KeyboardInterrupt, SystemExit, Prefect's TerminationSignal
        if (left := output.left_behind()) is not None:
            interrupt.add_note(left)
        if output.has_checkpoint:
            interrupt.add_note(f"To go on: {_resume_command(output, options)}")
        raise


def _resume_command(output: Output, options: RunOptions) -> str:
    """Return the command that goes on with a run as it was begun."""
    words = ["factorflow", "resume", str(output.shown_path)]
    for name, field in ResumeOptions.model_fields.items():
        value = getattr(options, name)
        if value != field.default:
            words += [f"--{name.replace('_', '-')}", str(value)]
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
    model: Model[Any],
    data: Dataset,
    hidden: Holdout | None,
    config: ModelConfig,
    options: RunOptions,
    executor: Executor,
    output: Output,
) -> Plan:
    """Return what the tasks have in common, if they fit into memory; makes the folder of the run."""
    n_chains, monte_carlo = config.n_chains, model.kind == "monte carlo"
    n_groups, limit = len(executor.cut(data.n_blocks)), executor.memory_bytes
    check_memory(model, n_groups, n_chains, limit)
    spill = must_spill(model, n_groups, n_chains, limit)
    local_spill = local_must_spill(model, n_groups, n_chains, limit)
    output.open(needed=monte_carlo or spill or local_spill or not isinstance(executor, LocalExecutor))
    views = tuple(view.name for view in model.meta.views)
    return Plan(
        model,
        Source(data, views, hidden, kept_bytes(model, executor.cache_bytes), options.device),
        options.seed,
        n_chains,
        options.max_iter,
        output.store if monte_carlo else None,
        output.kept if spill else None,
        output.kept if local_spill else None,
    )


def _run(loop: Loop, output: Output) -> xr.DataTree | Path:
    """Drive the loop and publish what it found, also when it was interrupted."""
    plan = loop.plan
    if output.resuming and loop.checkpoints is not None:
        loop.resume(loop.checkpoints.read_manifest())
    else:
        if plan.draws_path is not None:
            create_draws(plan.draws_path, plan.model, plan.n_chains)
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
    found = publish(loop, output)
    loop.on_event(RunFinished(loop.reason, loop.counted, loop.seconds, output.shown_path))
    if interrupt is not None:
        raise interrupt
    return found


def _ignore(event: Event) -> None:
    """Watch nothing."""
