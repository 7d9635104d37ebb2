"""What options and settings are when they are left out, and how far they may go, is what it was.

Like the known numbers: a deliberate change has to change the file beside this one too, for documentation and
the runs of users count on them. Options that are new may be missing there. To write it anew:

    FACTORFLOW_WRITE_NUMBERS=1 pytest tests/contract/test_options.py
"""

from __future__ import annotations

import ast
import inspect
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from known_numbers import WRITE

import factorflow
from factorflow.data.simulation.simulate import SIMULATORS
from factorflow.models.configuration import Example
from factorflow.models.contract import Stage, Variable
from factorflow.models.registry import default_family, registered_models

KNOWN = Path(__file__).with_name("known_options.json")


def options_of(name: str) -> dict[str, str]:
    """Return default and bounds of every option of a family."""
    found = {}
    for option, field in registered_models()[name].model_fields.items():
        bounds = sorted(map(str, field.metadata))
        found[option] = " ".join([repr(field.get_default(call_default_factory=True)), *bounds])
    return found


def parameters_of(function: Any) -> dict[str, str]:
    """Return the default of every parameter that has one."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: repr(p.default) for p in parameters if p.default is not inspect.Parameter.empty}


def fields_of(kind: type) -> dict[str, str]:
    """Return the default of every field of a dataclass that has one."""
    return {f.name: repr(f.default) for f in fields(kind) if not repr(f.default).startswith("<")}


def test_options_are_in_the_docstring() -> None:
    for kind in registered_models().values():
        words = str(kind.__doc__)
        assert words.count("Parameters\n----------") == 1
        assert all(f"\n{option} : " in words for option in kind.model_fields if option != "model")


def test_one_family_is_the_default() -> None:
    defaults = [name for name, kind in registered_models().items() if kind.is_default]
    assert defaults == [default_family()]


def everything() -> dict[str, dict[str, str]]:
    families = [n for n, kind in registered_models().items() if kind.__module__.startswith("factorflow.")]
    found = {f"options of {name}": options_of(name) for name in families}
    found |= {f"settings of {name}": parameters_of(function) for name, function in SIMULATORS.items()}
    public = factorflow.fit, factorflow.resume, factorflow.simulate, factorflow.write_dataset
    found |= {f"{function.__name__}()": parameters_of(function) for function in public}
    return found | {kind.__name__: fields_of(kind) for kind in (Stage, Variable, Example)}


def test_defaults_and_bounds_are_the_known_ones() -> None:
    found = everything()
    if os.environ.get(WRITE):
        KNOWN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    known = json.loads(KNOWN.read_text())
    for what, options in known.items():
        assert {name: found[what].get(name) for name in options} == options, what


@pytest.mark.parametrize("entries", ["gaussian", "poisson"])
@pytest.mark.parametrize("name", sorted(registered_models()))
def test_what_lets_entries_vary_more_is_an_option(name: str, entries: str) -> None:
    """It is told as it is written; once it is set nothing more is told."""
    kind = registered_models()[name]
    told = kind().wider(entries)
    if told is not None:
        option, _, value = told.partition("=")
        assert option in kind.model_fields
        assert kind(**{option: ast.literal_eval(value)}).wider(entries) is None
