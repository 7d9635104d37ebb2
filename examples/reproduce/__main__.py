"""``python -m examples.reproduce EXPERIMENT --out FOLDER``: a published experiment, run anew."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from examples.reproduce import working_on
from factorflow.cli.application import serve
from factorflow.cli.options import assignments, value_of
from factorflow.cli.output import command
from factorflow.errors import InputError
from factorflow.settings import ResumeOptions, parse_config

__all__ = ["app"]

EXPERIMENTS = ("probit", "molten", "identity", "gplvm")


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
    if what not in EXPERIMENTS:
        raise InputError("what", what, f"one of {', '.join(EXPERIMENTS)}", "Choose one of them.")
    run = import_module(f"examples.reproduce.{what}").reproduce
    options = {name: value_of(text) for name, text in assignments("set", settings or []).items()}
    taken = sorted(inspect.signature(run).parameters.keys() - {"out", "data", "report"})
    for name in options:
        if name not in taken:
            expected = f"a setting of {what}: {', '.join(taken)}"
            raise InputError(name, options[name], expected, "Correct the name.")
    where = parse_config(ResumeOptions, {"cluster": cluster}).cluster
    with working_on(where, out):
        found: dict[str, Any] = run(out, data, **options, report=lambda line: print(line, file=sys.stderr))
    return found


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
command(app)(reproduce)

if __name__ == "__main__":
    serve(app)
