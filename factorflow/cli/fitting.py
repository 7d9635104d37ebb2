"""fit, resume, select, refresh."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from factorflow.cli.options import (
    CheckpointEvery,
    Config,
    Device,
    Executor,
    Holdout,
    MaxIter,
    MaxMinutes,
    Memory,
    Model,
    Seed,
    Settings,
    Workers,
    assignments,
    model_options,
    values_of,
)
from factorflow.cli.output import Shown, command

__all__ = ["register"]

Dataset = Annotated[Path, typer.Argument(help="A dataset, as `factorflow ingest` writes it.")]


def register(app: typer.Typer) -> None:
    """Add the commands that fit."""
    for function in (fit, resume, select, refresh):
        command(app)(function)


def fit(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="Posterior to write.")],
    model: Model = None,
    config: Config = None,
    settings: Settings = None,
    seed: Seed = 0,
    executor: Executor = "local",
    workers: Workers = None,
    memory_limit: Memory = None,
    device: Device = "cpu",
    max_iter: MaxIter = None,
    max_minutes: MaxMinutes = None,
    checkpoint_every: CheckpointEvery = 50,
    holdout: Holdout = 0.0,
    overwrite: Annotated[bool, typer.Option(help="Replace the posterior at OUT.")] = False,
    go_on: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run at OUT.")] = False,
) -> Shown:
    """Fit a model to a dataset."""
    import factorflow
    from factorflow.cli.progress import progress_bar

    options = model_options(model, config, settings or [])
    with progress_bar() as on_event:
        posterior = factorflow.fit(
            dataset,
            options,
            seed=seed,
            executor=executor,
            workers=workers,
            memory_limit=memory_limit,
            device=device,
            max_iter=max_iter,
            max_minutes=max_minutes,
            checkpoint_every=checkpoint_every,
            holdout=holdout,
            out=out,
            overwrite=overwrite,
            resume=go_on,
            on_event=on_event,
        )
    return Shown({"posterior": str(out), **posterior.summary()}, f"{posterior!r}\n\nposterior  {out}")


def resume(
    out: Annotated[Path, typer.Argument(help="Where the interrupted run was to put its posterior.")],
    executor: Executor = "local",
    workers: Workers = None,
    memory_limit: Memory = None,
    max_iter: MaxIter = None,
    max_minutes: MaxMinutes = None,
    checkpoint_every: CheckpointEvery = 50,
) -> Shown:
    """Go on with an interrupted run: its dataset, model and seed are those it began with."""
    import factorflow
    from factorflow.cli.progress import progress_bar

    with progress_bar() as on_event:
        posterior = factorflow.resume(
            out,
            executor=executor,
            workers=workers,
            memory_limit=memory_limit,
            max_iter=max_iter,
            max_minutes=max_minutes,
            checkpoint_every=checkpoint_every,
            on_event=on_event,
        )
    return Shown({"posterior": str(out), **posterior.summary()}, f"{posterior!r}\n\nposterior  {out}")


def select(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="Folder for the posteriors of all trials.")],
    grid: Annotated[
        list[str], typer.Option(help="NAME=VALUE,VALUE,...: an option to vary; may be given several times.")
    ],
    model: Model = None,
    config: Config = None,
    settings: Settings = None,
    seeds: Annotated[str, typer.Option(help="Runs of each combination, such as 0,1,2.")] = "0",
    executor: Executor = "local",
    workers: Workers = None,
    memory_limit: Memory = None,
    device: Device = "cpu",
    max_iter: MaxIter = None,
    max_minutes: MaxMinutes = None,
    holdout: Holdout = 0.1,
) -> dict[str, Any]:
    """Fit every combination of a grid of options and rank them by held-out score."""
    from factorflow.cli.progress import progress_bar
    from factorflow.select import select as rank

    with progress_bar() as on_event:
        selection = rank(
            dataset,
            model_options(model, config, settings or []),
            {name: values_of(text) for name, text in assignments("grid", grid).items()},
            out=out,
            seeds=values_of(seeds),
            holdout=holdout,
            executor=executor,
            workers=workers,
            memory_limit=memory_limit,
            device=device,
            max_iter=max_iter,
            max_minutes=max_minutes,
            on_event=on_event,
        )
    return selection.describe()


def refresh(
    source: Annotated[Path, typer.Argument(help="A dataset, or a file or folder that `ingest` accepts.")],
    out: Annotated[Path, typer.Option(help="Folder for dataset, posterior, summary and report.")],
    model: Model = None,
    config: Config = None,
    settings: Settings = None,
    likelihood: Annotated[
        list[str] | None,
        typer.Option(help="VIEW=gaussian, bernoulli or poisson; may be given several times."),
    ] = None,
    seed: Seed = 0,
    executor: Executor = "local",
    workers: Workers = None,
    memory_limit: Memory = None,
    device: Device = "cpu",
    max_iter: MaxIter = None,
    max_minutes: MaxMinutes = None,
    holdout: Holdout = 0.0,
) -> dict[str, Any]:
    """Bring results up to date with their source: ingest, fit and report only what has changed."""
    from factorflow.cli.progress import progress_bar
    from factorflow.pipeline import Folder
    from factorflow.pipeline import refresh as bring_up_to_date

    with progress_bar() as on_event:
        outcome = bring_up_to_date(
            source,
            Folder.at(out),
            model_options(model, config, settings or []),
            likelihoods=assignments("likelihood", likelihood or []),
            seed=seed,
            executor=executor,
            workers=workers,
            memory_limit=memory_limit,
            device=device,
            max_iter=max_iter,
            max_minutes=max_minutes,
            holdout=holdout,
            on_event=on_event,
        )
    return outcome.describe()
