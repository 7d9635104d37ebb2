"""Options that several commands share, and how text becomes values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from factorflow.errors import InputError

__all__ = [
    "CheckpointEvery",
    "Config",
    "Device",
    "Executor",
    "Holdout",
    "MaxIter",
    "MaxMinutes",
    "Memory",
    "Model",
    "Seed",
    "Settings",
    "Workers",
    "assignments",
    "model_options",
    "read_options",
    "value_of",
    "values_of",
]

Model = Annotated[str | None, typer.Option(help="Family of models; sparse_gfa if left out.")]
Config = Annotated[Path | None, typer.Option(help="YAML or JSON file with the model's options.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE, an option of the model; may be given several times."),
]
Seed = Annotated[int, typer.Option(min=0, help="Key of all random numbers.")]
Device = Annotated[Literal["cpu", "cuda"], typer.Option(help="Where blocks are worked on.")]
Executor = Annotated[
    str,
    typer.Option(help="local, threads, dask (a cluster of its own) or an address such as tcp://host:8786."),
]
Workers = Annotated[
    int | None, typer.Option(help="Threads or worker processes to start; default: all cores.")
]
Memory = Annotated[str | None, typer.Option(help="Memory of each worker, such as 4GB.")]
MaxIter = Annotated[int | None, typer.Option(help="Iterations at most.")]
MaxMinutes = Annotated[float | None, typer.Option(help="Wall-clock minutes at most.")]
CheckpointEvery = Annotated[int, typer.Option(help="Iterations between two checkpoints.")]
Holdout = Annotated[float, typer.Option(help="Share of the observed entries to hide and score.")]


def assignments(parameter: str, texts: Sequence[str]) -> dict[str, str]:
    """Return ``name=value`` texts as a mapping.

    Raises
    ------
    InputError
        For a text without an equals sign, or a name given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(parameter, text, "NAME=VALUE", "Put an equals sign between the two.")
        if name in found:
            raise InputError(parameter, text, f"one value for {name}", "Leave the other one out.")
        found[name] = value
    return found


def read_options(path: Path | None) -> dict[str, Any]:
    """Return the mapping in a YAML or JSON file; empty without a file.

    Raises
    ------
    InputError
        If the file cannot be read or holds something else.
    """
    if path is None:
        return {}
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        expected = f"a readable YAML or JSON file ({error})"
        raise InputError("config", str(path), expected, "Correct the file.") from error
    if not isinstance(content, Mapping):
        raise InputError("config", str(path), "names with values", "Write one `name: value` a line.")
    return dict(content)


def model_options(model: str | None, config: Path | None, settings: Sequence[str]) -> dict[str, Any]:
    """Return the options of a model: those of the file, overruled by those of the command line.

    A value is read as JSON where it is JSON (``15``, ``true``, ``null``, ``["rna"]``), else as text.
    """
    options = read_options(config)
    options |= {name: value_of(text) for name, text in assignments("set", settings).items()}
    if model is not None:
        options["model"] = model
    return {"model": "sparse_gfa", **options}


def value_of(text: str) -> Any:
    """Return the value that a text of the command line stands for."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def values_of(text: str) -> list[Any]:
    """Return the values that a JSON list or a list separated by commas stands for."""
    whole = value_of(text)
    return whole if isinstance(whole, list) else [value_of(part) for part in text.split(",") if part]
