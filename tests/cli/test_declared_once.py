"""What functions, commands and forms take is declared in one model: names, defaults, descriptions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from typer.main import get_command

from factorflow import Posterior, add_view, fit, write_dataset, write_table
from factorflow.cli import app
from factorflow.settings import (
    DerivedOptions,
    FitOptions,
    MatrixOptions,
    Options,
    ProjectOptions,
    ResumeOptions,
    RunOptions,
    SelectOptions,
    SourceOptions,
    TableOptions,
)

TAKERS: list[tuple[Callable[..., Any], type[Options]]] = [
    (fit, FitOptions),
    (Posterior.project, ProjectOptions),
    (add_view, DerivedOptions),
    (write_dataset, MatrixOptions),
    (write_table, TableOptions),
]
COMMANDS: list[tuple[str, type[Options]]] = [
    ("ingest", SourceOptions),
    ("add-view", DerivedOptions),
    ("refresh", SourceOptions),
    ("refresh", RunOptions),
    ("fit", FitOptions),
    ("resume", ResumeOptions),
    ("select", SelectOptions),
    ("project", ProjectOptions),
]


def plain(default: Any) -> Any:
    """Return a default where none, nothing and an empty list are the same."""
    return None if isinstance(default, list | tuple | dict) and not default else default


@pytest.mark.parametrize(("function", "kind"), TAKERS)
def test_functions_take_the_options_of_their_model(function: Callable[..., Any], kind: type[Options]) -> None:
    parameters, docstring = inspect.signature(function).parameters, str(inspect.getdoc(function))
    words = " ".join(docstring.split())
    for name, field in kind.model_fields.items():
        if name == "cluster":  # an executor in Python
            continue
        taken = parameters[name].default
        if field.is_required():
            assert taken is inspect.Parameter.empty, name
        else:
            assert plain(taken) == plain(field.get_default(call_default_factory=True)), name
        description = " ".join(str(field.description).split())
        of_python = f" {name} : " + "{"  # what else Python takes stands in the docstring itself
        assert f"\n{name} : " in docstring, name
        said = f" {name} : {function.__annotations__[name]} {description}"
        assert said in words or of_python in words, name
    assert "<options>" not in words


@pytest.mark.parametrize(("name", "kind"), COMMANDS)
def test_commands_take_the_options_of_their_model(name: str, kind: type[Options]) -> None:
    taken = {p.name: p for p in get_command(app).commands[name].params}  # type: ignore[attr-defined]
    run = {"holdout", "seed"} if kind is SourceOptions and name == "refresh" else set()  # of the run there
    for option, field in kind.model_fields.items():
        if option not in run:
            assert taken[option].help == field.description  # type: ignore[attr-defined]
