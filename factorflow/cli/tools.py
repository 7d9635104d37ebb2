"""doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from factorflow.cli.output import command

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands that serve the others."""
    command(app)(doctor)


def doctor(
    executor: Annotated[
        str | None, typer.Option(help="Scheduler whose workers are compared with this machine.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where runs are going to write.")] = Path(),
) -> dict[str, Any]:
    """Check this machine, its packages and, with --executor, a cluster."""
    from factorflow.doctor import describe, examine

    return dict(describe(examine(executor, folder)))
