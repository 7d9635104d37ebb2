"""doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from factorflow.cli.output import command
from factorflow.settings import ResumeOptions, parse_config


def register(app: typer.Typer) -> None:
    """Add the command that serves the others."""
    command(app)(doctor)


def doctor(
    results: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="Results: which interrupted runs does this version not go on with, what can it not read?",
        ),
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="Scheduler whose workers are compared with this machine.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="The same by the setting of a cluster, which is started, and closed again."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where runs are going to write.")] = Path(),
    dataset: Annotated[
        Path | None, typer.Option(help="What runs are going to read: do workers see the same one there?")
    ] = None,
) -> dict[str, Any]:
    """Check this machine, its packages, with --executor the workers of a cluster, with FOLDER its results."""
    from factorflow.cli.compatibility import examine_folder
    from factorflow.cli.doctor import describe, examine

    where = parse_config(ResumeOptions, {"executor": executor or "local", "cluster": cluster})
    checks = [] if results is None else examine_folder(results)
    return dict(describe([*examine(where.cluster or executor, folder, dataset), *checks]))
