"""reproduce, doctor."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

import typer

from factorflow.cli.options import assignments, value_of
from factorflow.cli.output import command
from factorflow.errors import InputError
from factorflow.settings import ResumeOptions, parse_config

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands that serve the others."""
    for function in (reproduce, doctor):
        command(app)(function)


def reproduce(
    what: Annotated[str, typer.Argument(help="A published experiment: probit, molten, identity or gplvm.")],
    out: Annotated[Path, typer.Option(help="Folder for numbers and figures.")],
    data: Annotated[Path | None, typer.Option(help="Data of your own to run it on as well.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, such as splits=1; as often as needed.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The setting of a cluster where its fits work, which they share.")
    ] = None,
) -> dict[str, Any]:
    """Run a published experiment anew."""
    import factorflow.reproduce as package

    known = [module.name for module in iter_modules(package.__path__)]
    if what not in known:
        raise InputError("what", what, f"one of {', '.join(known)}", "Choose one of them.")
    run = import_module(f"factorflow.reproduce.{what}").reproduce
    options = {name: value_of(text) for name, text in assignments("set", settings or []).items()}
    taken = sorted(inspect.signature(run).parameters.keys() - {"out", "data", "report"})
    for name in options:
        if name not in taken:
            expected = f"a setting of {what}: {', '.join(taken)}"
            raise InputError(name, options[name], expected, "Correct the name.")
    where = parse_config(ResumeOptions, {"cluster": cluster}).cluster
    with package.working_on(where, out):
        found: dict[str, Any] = run(out, data, **options, report=lambda line: print(line, file=sys.stderr))
    return found


def doctor(
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
    """Check this machine, its packages and, with --executor or --cluster, the workers of a cluster."""
    from factorflow.doctor import describe, examine

    where = parse_config(ResumeOptions, {"executor": executor or "local", "cluster": cluster})
    return dict(describe(examine(where.cluster or executor, folder, dataset)))
