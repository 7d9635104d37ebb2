"""The command models: families and their options."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer

from factorflow.cli.options import families
from factorflow.cli.output import DisplayedResult, command
from factorflow.errors import InputError
from factorflow.settings import describe

WIDTH = 100
"""Characters of a line of descriptions."""


def register(app: typer.Typer) -> None:
    """Add the command that shows models."""
    command(app)(models)


def models(
    name: Annotated[
        str | None, typer.Argument(help="A family; all of them when left out.", autocompletion=families)
    ] = None,
) -> DisplayedResult:
    """List the families of models, or the options of one: values, default, description."""
    from factorflow.models.registry import registered_models

    families = registered_models()
    if name is None:
        rows = {family: (kind.__doc__ or "").split("\n\n")[0] for family, kind in families.items()}
        width = max(map(len, rows))
        lines = [f"{family:<{width}}  {text}" for family, text in rows.items()]
        lines += ["", "`factorflow models NAME` lists the options of one."]
        return DisplayedResult({"models": rows}, "\n".join(lines))
    if name not in families:
        raise InputError("NAME", name, f"one of {', '.join(families)}", "Choose one of these names.")
    kind = families[name]
    options, about = describe(kind), (kind.__doc__ or "").split("\n\n")[0]
    data = {"model": name, "class": kind.of, "description": about, "options": options}
    lines = [f"{name}: {about}", f"In a shell --model {name} --set OPTION=VALUE; in Python {kind.of}.", ""]
    return DisplayedResult(data, "\n".join([*lines, *(_format_option(option) for option in options)]))


def _format_option(option: dict[str, Any]) -> str:
    """Return an option as two lines or more: name, values and default; what it does."""
    head = f"{option['option']}  {option['values']}; default {option['default']}"
    text = textwrap.fill(option["description"], WIDTH, initial_indent="    ", subsequent_indent="    ")
    return f"{head}\n{text}" if text else head
