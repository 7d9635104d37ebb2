"""Errors and warnings of commands: options as flags, not as Python arguments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from factorflow.errors import FactorflowError, InputError, OptionError, OptionText, python_option


@dataclass(frozen=True)
class Flag:
    """The flag of an option.

    Parameters
    ----------
    name : str
        ``--max-iter``, or the word of an argument, ``DATASET``.
    is_switch : bool
        It stands alone: ``--overwrite``, ``--no-merge``.
    """

    name: str
    is_switch: bool = False

    def with_value(self, value: Any) -> str:
        """Return the flag with a value; ``...`` stands for any."""
        if self.is_switch or value is ...:
            return self.name.replace("--", "--no-", 1) if value is False else self.name
        if isinstance(value, Mapping):
            return " ".join(f"{self.name} {key}={item}" for key, item in value.items())
        each = value if isinstance(value, list | tuple) else [value]
        return " ".join(f"{self.name} {shlex.quote(format_value(item))}" for item in each)


@dataclass(frozen=True)
class Wording:
    """The options of a command as flags.

    Parameters
    ----------
    name : str
        The command, as in ``factorflow fit``.
    others : mapping of str to Flag
        Those of all commands: some made what this one works on.
    model : mapping of str to Any
        Options of the model, if the command has one, ``model`` among them.
    written : mapping of str to str
        Names that were given a value behind a flag, ``--set NAME=VALUE``, and the flag.
    """

    name: str
    flags: Mapping[str, Flag] = field(default_factory=dict)
    others: Mapping[str, Flag] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    file: str | None = None
    written: Mapping[str, str] = field(default_factory=dict)

    def message(self, error: FactorflowError) -> str:
        """Return the whole of an error."""
        if not isinstance(error, InputError):
            return self.text(error.text)
        expected, remedy = self.advice(error)
        return f"{self._place(error, format_value(error.value))}: expected {expected}. {remedy}"

    def advice(self, error: InputError) -> tuple[str, str]:
        """Return the expectation and the remedy of an error."""
        if not isinstance(error, OptionError):
            return self.text(error.expected), self.text(error.remedy)
        taker, where = f"`factorflow {self.name}`", f"`factorflow {self.name} --help`"
        if _is_of("settings.clusters", error):
            taker, where = "this kind of cluster", "docs/clusters.md"
        elif _is_of("models", error):
            taker = str(self.model.get("model"))
            where = f"`factorflow models {taker}`"
        return error.worded(error.parameter, taker, f"{where} explains the options.")

    def text(self, text: str) -> str:
        """Return a text with its options as they are typed."""
        return text.worded(self._option) if isinstance(text, OptionText) else text

    def _place(self, error: InputError, value: str) -> str:
        """Return a parameter with its value."""
        name = error.parameter
        if _is_of("settings.clusters", error):
            return f"--cluster: {name} = {value}"
        of_model = _is_of("models", error) if isinstance(error, OptionError) else name in self.model
        if name in self.written and (of_model or not self.model):
            return shlex.join([self.written[name], f"{name}={value}"])
        if of_model and name != "model":
            return f"{name}: {value} in {self.file}" if self.file else f"{name} = {value}"
        return f"{self.flags[name].name} {value}" if name in self.flags else f"{name} = {value}"

    def _option(self, name: str, value: Any) -> str:
        """Return an option with a value as it is typed, in the file of the model if it is one."""
        owner, _, name = name.rpartition(".")
        if name in self._model_options() and (owner or name in self.model or name not in self.flags):
            value_text = format_value("..." if value is ... else value)
            in_file = self.file is not None and name not in self.written
            return f"`{name}: {value_text}`" if in_file else shlex.join(["--set", f"{name}={value_text}"])
        if owner:  # of a model that the command does not name
            return shlex.join(["--set", f"{name}={format_value(value)}"])
        flag = self.flags.get(name) or self.others.get(name)
        return python_option(name, value) if flag is None else flag.with_value(value)

    def _model_options(self) -> frozenset[str]:
        """Return the options of the model."""
        from factorflow.models.registry import registered_models

        family = registered_models().get(str(self.model.get("model")))
        return frozenset(family.model_fields if family else ())


def _is_of(package: str, error: InputError) -> bool:
    return isinstance(error, OptionError) and error.of.startswith(f"factorflow.{package}.")


def format_value(value: Any) -> str:
    """Format a value for a shell or YAML: text unchanged, all else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
