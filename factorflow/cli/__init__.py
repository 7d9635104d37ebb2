"""The command line, ``factorflow COMMAND``: each command calls one public function and shows its result."""

from __future__ import annotations

from typing import Annotated

import typer

from factorflow.cli import analyses, data, figures, fitting, models, results, tools
from factorflow.cli.application import serve

__all__ = ["app", "main"]

app = typer.Typer(
    name="factorflow",
    help="Sparse Bayesian factor models of data that does not fit one machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut the names of long options where a terminal is narrow
    context_settings={"help_option_names": ["-h", "--help"]},
)

for module in (data, models, fitting, results, figures, analyses, tools):
    module.register(app)


def _version(requested: bool) -> None:
    if requested:
        from factorflow import __version__

        print(f"factorflow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Sparse Bayesian factor models of data that does not fit one machine."""


def main() -> None:
    """Run the command line."""
    serve(app)
