"""Likelihoods by name: those of this package and of entry points."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from factorflow.errors import InputError
from factorflow.likelihoods.base import REGISTRY, Likelihood


@cache
def _scan() -> None:
    """Import the files of this package and what entry points name, once."""
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"factorflow.likelihoods.{module.name}")
    for entry in metadata.entry_points(group="factorflow.likelihoods"):
        entry.load()


def likelihood_names() -> tuple[str, ...]:
    """Return the names of all likelihoods."""
    _scan()
    return tuple(sorted(REGISTRY))


@cache
def get_likelihood(text: str) -> Likelihood:
    """Return a likelihood by name.

    Parameters
    ----------
    text : str
        A name, with parameters in brackets where the likelihood has some.

    Raises
    ------
    InputError
        When there is none of that name, or a parameter is not of it.

    Examples
    --------
    >>> get_likelihood("binomial(trials=2)")
    Binomial(trials=2)
    """
    _scan()
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    kind = REGISTRY.get(match[1]) if match else None
    if match is None or kind is None:
        raise InputError("likelihood", text, f"one of {', '.join(likelihood_names())}", "Choose one of them.")
    defaults: dict[str, Any] = {field.name: field.default for field in fields(kind) if field.init}  # type: ignore[arg-type]
    parameters = {}
    for part in (match[2] or "").split(",") if (match[2] or "").strip() else ():
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            parameters[name] = type(defaults[name])(value)
        except (KeyError, ValueError):
            usage = ", ".join(f"{name}={value}" for name, value in defaults.items())
            expected = f"{kind.name}({usage})" if defaults else f"{kind.name}, which has no parameters"
            raise InputError("likelihood", text, expected, "Correct what is in brackets.") from None
    return kind(**parameters)
