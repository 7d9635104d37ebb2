"""plot: one figure of a posterior, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from factorflow.cli.options import Overwrite, assignments, path, value_of, values_of
from factorflow.cli.output import command
from factorflow.cli.results import Moved, Posterior, check_free, open_with_dataset
from factorflow.errors import InputError
from factorflow.storage.location import output_location
from factorflow.storage.publish import new_file

FORMATS = {".png", ".svg", ".pdf"}


def register(app: typer.Typer) -> None:
    """Add the command that draws."""
    command(app)(plot)


def plot(
    posterior: Posterior,
    name: Annotated[str, typer.Argument(help="Figure: scores, variance_explained, top_weights, ...")],
    out: Annotated[Path, typer.Option(help="File to write: .png, .svg or .pdf.", parser=path)],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Argument of the figure, as often as needed: color=age."
        ),
    ] = None,
    dpi: Annotated[int, typer.Option(min=20, max=1200, help="Dots an inch, of .png.")] = 150,
    dataset: Moved = None,
    overwrite: Overwrite = False,
) -> dict[str, Any]:
    """Draw a figure of a posterior (docs/gallery.md)."""
    from factorflow.report.accessor import NAMES

    opened, target = open_with_dataset(posterior, dataset), output_location(out)
    if name not in NAMES:
        raise InputError("name", name, f"one of {', '.join(NAMES)}", "Choose one of them.")
    if target.suffix.lower() not in FORMATS:
        raise InputError("out", str(out), "a name that ends in .png, .svg or .pdf", "Rename it.")
    check_free(target, overwrite)
    arguments = {key: _value(text) for key, text in assignments("set", settings or ()).items()}
    if "ax" in arguments:
        raise InputError("set", "ax", "an argument that can be written", "Leave it out.")
    figure = getattr(opened.plot, name)(**arguments).figure
    with new_file(target, "out") as file:
        figure.savefig(file, format=target.suffix[1:].lower(), dpi=dpi)
    return {"figure": str(out)}


def _value(text: str) -> Any:
    """Return a value of JSON, or a list separated by commas, or text."""
    try:
        return json.loads(text)
    except ValueError:
        return values_of(text) if "," in text else value_of(text)
