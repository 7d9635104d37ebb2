"""Options shared by several commands, and parsing of their values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from factorflow.cli.wording import Wording
from factorflow.errors import InputError
from factorflow.settings import Options, describe, read_yaml
from factorflow.storage.location import URL


def path(text: str) -> Path | str:
    """Return what was typed as a path; a URL stays text, since `pathlib.Path` takes a slash away."""
    return text if URL.match(text) else Path(text)


Overwrite = Annotated[bool, typer.Option(help="Replace what is at OUT.")]
Dataset = Annotated[Path, typer.Argument(help="A dataset, as `factorflow ingest` writes it.", parser=path)]
Source = Annotated[
    Path, typer.Argument(help="A dataset, or a file or folder that `ingest` accepts.", parser=path)
]
Results = Annotated[
    Path, typer.Option(help="Folder for dataset, posterior, summary and report.", parser=path)
]

FAMILIES = "{families}"
"""Stands in help texts for the names of all families."""

DEFAULT_FAMILY = "{default_family}"
"""Stands in help texts for the family that is fitted where none is named."""

SIMULATORS = "{simulators}"
"""Stands in help texts for the names of all simulators."""


PLACE = "cluster"
"""What a file with the options of a model may say of the run: where it works."""


class ModelOptions(Options):
    """A model as the command line names it."""

    of = "the command"

    model: str | None = Field(None, description=f"Family: {FAMILIES}; {DEFAULT_FAMILY} if left out.")
    config: Path | None = Field(None, description="YAML or JSON file: the model's options, and `cluster`.")
    set: list[str] | None = Field(
        None,
        description="NAME=VALUE, an option of the model, such as n_factors=15; as often as needed. "
        "`factorflow models NAME` lists them.",
    )

    def wording(self, wording: Wording) -> Wording:
        """Return the wording of errors for a command with this model."""
        try:
            values = self.values()
        except InputError:
            return wording
        flags = {**wording.written, **dict.fromkeys(names_set(self.set), "--set")}
        file = None if self.config is None else str(self.config)
        return replace(wording, model=values, file=file, written=flags)

    def values(self) -> dict[str, Any]:
        """Return the options: those of the file, overruled by those of the command line.

        A value is read as JSON where it is JSON (``15``, ``true``, ``null``, ``["rna"]``), else as text.
        """
        options = _read_options(self.config)
        options.pop(PLACE, None)
        options |= {name: value_of(text) for name, text in assignments("set", self.set or []).items()}
        if self.model is not None:
            options["model"] = self.model
        from factorflow.models.registry import default_family

        return options if "model" in options else {"model": default_family(), **options}


def from_config(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run options of the model's options file that the command line does not give.

    Parameters
    ----------
    arguments : mapping
        What was typed, by name.
    """
    if arguments.get("config") is None or arguments.get(PLACE, "") is not None:
        return {}
    config_values = _read_options(arguments["config"])
    return {PLACE: config_values[PLACE]} if PLACE in config_values else {}


def assignments(parameter: str, texts: Sequence[str]) -> dict[str, str]:
    """Return ``name=value`` texts as a mapping.

    Raises
    ------
    InputError
        For a text without an equals sign, or a name given twice.
    """
    values_by_name: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(parameter, text, "NAME=VALUE", "Put an equals sign between the two.")
        if name in values_by_name:
            raise InputError(parameter, text, f"one value for {name}", "Leave the other one out.")
        values_by_name[name] = value
    return values_by_name


def names_set(texts: Sequence[str] | None) -> frozenset[str]:
    """Return the names of ``name=value`` texts, right or wrong."""
    return frozenset(text.partition("=")[0] for text in texts or ())


def value_of(text: str) -> Any:
    """Parse a value of the command line: JSON, numbers like .6 and 1. too, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return float(text) if re.fullmatch(r"[-+]?(\.\d+|\d+\.\d*)", text) else text


def values_of(text: str) -> list[Any]:
    """Parse a JSON or comma-separated list."""
    whole = value_of(text)
    return whole if isinstance(whole, list) else [value_of(part) for part in text.split(",") if part]


def completions(name: str) -> Any:
    """Return the shell completion of an option; None if the shell's own suffices."""
    return _COMPLETIONS.get(name)


def simulators(incomplete: str) -> list[str]:
    """Complete the name of a simulator."""
    from factorflow.data.simulation.simulate import FAMILIES as suited
    from factorflow.data.simulation.simulate import SIMULATORS as named

    return [name for name in [*named, *suited] if name.startswith(incomplete)]


def families(incomplete: str) -> list[str]:
    """Complete the name of a family."""
    from factorflow.models.registry import registered_models

    return [name for name in registered_models() if name.startswith(incomplete)]


def default_families(_: str = "") -> list[str]:
    """Return the name of the family that is fitted where none is named."""
    from factorflow.models.registry import default_family

    return [default_family()]


def options_like(flag: str) -> list[str]:
    """Return options of models that are written as a flag is, ``--n-factors``, or nearly so."""
    from difflib import get_close_matches

    from factorflow.models.registry import registered_models

    names = {name for family in registered_models().values() for name in family.model_fields}
    typed = flag.lstrip("-").replace("-", "_")
    return [typed] if typed in names else get_close_matches(typed, sorted(names), n=2, cutoff=0.8)


def _complete_assignment(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete NAME= of the options of a model, and VALUE where there is a choice."""
    from factorflow.models.registry import default_family, registered_models

    family = registered_models().get(ctx.params.get("model") or default_family())
    name, equals, value = incomplete.partition("=")
    options = {option["option"]: option for option in describe(family)} if family else {}
    if not equals:
        return [f"{option}=" for option in options if option.startswith(name)]
    choices = options.get(name, {}).get("values", "").split(" or ")
    return [f"{name}={choice}" for choice in choices if " " not in choice and choice.startswith(value)]


def _executors(incomplete: str) -> list[str]:
    return [name for name in ("local", "threads", "dask") if name.startswith(incomplete)]


_COMPLETIONS = {"model": families, "set": _complete_assignment, "executor": _executors}


def _read_options(path: Path | None) -> dict[str, Any]:
    """Return the mapping in a YAML or JSON file; empty without a file.

    Raises
    ------
    InputError
        If the file cannot be read or holds something else.
    """
    if path is None:
        return {}
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        expected = f"a readable YAML or JSON file ({error})"
        raise InputError("config", str(path), expected, "Correct the file.") from error
    if not isinstance(content, Mapping):
        raise InputError("config", str(path), "names with values", "Write one `name: value` a line.")
    return dict(content)
