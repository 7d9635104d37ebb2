"""Options that several commands share, and how text becomes values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, Field

from factorflow.errors import InputError
from factorflow.settings import TableOptions, parse_config

__all__ = [
    "Dataset",
    "Formula",
    "Likelihoods",
    "ModelOptions",
    "Results",
    "Source",
    "assignments",
    "one_likelihood",
    "source_of",
    "value_of",
    "values_of",
]

Dataset = Annotated[Path, typer.Argument(help="A dataset, as `factorflow ingest` writes it.")]
Source = Annotated[Path, typer.Argument(help="A dataset, or a file or folder that `ingest` accepts.")]
Results = Annotated[Path, typer.Option(help="Folder for dataset, posterior, summary and report.")]

Likelihoods = Annotated[
    list[str] | None,
    typer.Option(
        "--likelihood",
        help="VIEW=gaussian, bernoulli, poisson, categorical or covariate; as often as needed.",
    ),
]


class ModelOptions(BaseModel):
    """A model as the command line names it."""

    model: str | None = Field(None, description="Family of models; sparse_gfa if left out.")
    config: Path | None = Field(None, description="YAML or JSON file with the model's options.")
    set: list[str] | None = Field(
        None, description="NAME=VALUE, an option of the model; may be given several times."
    )

    def values(self) -> dict[str, Any]:
        """Return the options: those of the file, overruled by those of the command line.

        A value is read as JSON where it is JSON (``15``, ``true``, ``null``, ``["rna"]``), else as text.
        """
        options = _read_options(self.config)
        options |= {name: value_of(text) for name, text in assignments("set", self.set or []).items()}
        if self.model is not None:
            options["model"] = self.model
        return {"model": "sparse_gfa", **options}


Formula = Annotated[
    str | None,
    typer.Option(help="SOURCE is a long table with this formula: 'count ~ site + offset(log(effort))'."),
]


def one_likelihood(likelihood: Sequence[str] | None) -> str | None:
    """Return the likelihood of the response of a table: alone, or behind its name.

    Raises
    ------
    InputError
        When there are several.
    """
    if likelihood is not None and len(likelihood) > 1:
        raise InputError("likelihood", ", ".join(likelihood), "one: a table has one response", "Leave one.")
    return likelihood[0].rpartition("=")[2] if likelihood else None


def source_of(formula: str | None, likelihood: Sequence[str] | None) -> dict[str, Any]:
    """Return how a source is read: ``likelihoods`` by view, or as a ``table``."""
    if formula is None:
        return {"likelihoods": assignments("likelihood", likelihood or [])}
    settings = {"formula": formula, "likelihood": one_likelihood(likelihood)}
    return {"table": parse_config(TableOptions, settings)}


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


def _read_options(path: Path | None) -> dict[str, Any]:
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
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        expected = f"a readable YAML or JSON file ({error})"
        raise InputError("config", str(path), expected, "Correct the file.") from error
    if not isinstance(content, Mapping):
        raise InputError("config", str(path), "names with values", "Write one `name: value` a line.")
    return dict(content)
