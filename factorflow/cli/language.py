"""Errors in the language of a shell: flags instead of arguments of Python, commands instead of functions."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from factorflow.errors import InputError, OptionError

__all__ = ["Typed"]

COMMANDS = {
    "write_dataset": "factorflow ingest",
    "write_table": "factorflow ingest --table",
    "open_dataset": "factorflow inspect",
    "open_posterior": "factorflow summary",
    "find_anomalies": "factorflow anomalies",
    "export_mofa": "factorflow export --format mofa",
    "fit": "factorflow fit",
    "resume": "factorflow resume",
}
"""What functions of Python are on the command line."""

ELSEWHERE = {
    "likelihoods": "--likelihood",
    "drop_empty_features": "--drop-empty-features",
    "overwrite": "--overwrite",
    "holdout": "--holdout",
    "missing_levels": "--missing-levels",
    "grid": "--grid",
    "obs": "--obs",
    "groups": "--groups",
    "sequences": "--sequences",
    "index_col": "--index-col",
    "transpose": "--transpose",
    "na_values": "--na-values",
    "encoding": "--encoding",
    "decimal": "--decimal",
    "sep": "--sep",
    "max_iter": "--max-iter",
    "resume": "--resume",
}
"""Flags of other commands than the one that was typed: of those that made what this one works on."""

PHRASES = {
    "posterior.dataset = factorflow.open_dataset(path)": "--dataset PATH",
    "posterior.trace and the held-out scores": "`factorflow report` and `factorflow summary`",
}
"""Sentences of Python that a shell says in another way."""

_ASSIGNED = re.compile(
    r"(?<![\w.`])(?P<name>[a-z_]+)="
    r"(?P<value>True|False|None|'[^']*'|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|-?[\w.]*\w|\.\.\.)?"
)
_CALLED = re.compile(
    r"(?<![`\w])(?:factorflow\.|ff\.)?(?:(?P<name>[a-z_]+)\((?:[^()]|\([^()]*\))*\)|(?P<bare>[a-z]+_[a-z]+)\b(?!=))"
)
_TWICE = re.compile(r"(`[^`]+`) or \1")
_SHOWN = re.compile(r" \(--[a-z-]+\)")


@dataclass(frozen=True)
class Typed:
    """What a user typed: says of a name of Python how it is written there.

    Parameters
    ----------
    name : str
        The command, as in ``factorflow fit``.
    flags : mapping of str to str
        Names of Python to flags (``--max-iter``), or to the words of arguments (``DATASET``).
    model : mapping of str to Any
        Options of the model, if the command has one, ``model`` among them.
    file : str or None
        The file that they were read from.
    written : mapping of str to str
        Names that were given a value behind a flag, ``--set NAME=VALUE``, and the flag.
    """

    name: str
    flags: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    file: str | None = None
    written: Mapping[str, str] = field(default_factory=dict)

    def message(self, error: InputError) -> str:
        """Return the whole of an error, as whoever typed the command would write it."""
        shown = error.value if isinstance(error.value, str) else _plain(error.value)
        where = self._place(error, shown)
        return f"{where}: expected {self.expected(error)}. {self.remedy(error)}"

    def expected(self, error: InputError) -> str:
        """Return what would have been accepted."""
        if isinstance(error, OptionError):
            return error.expected.replace(error.of, self._taker(error))
        return self.text(error.expected)

    def remedy(self, error: InputError) -> str:
        """Return what to do about an error."""
        return self.text(error.remedy if not isinstance(error, OptionError) else self._advice(error))

    def text(self, text: str) -> str:
        """Return a text with its assignments and calls of Python as they are written in a shell."""
        for python, shell in PHRASES.items():
            text = text.replace(python, shell)
        commands = _TWICE.sub(r"\1", _CALLED.sub(_called, _SHOWN.sub("", text)))
        return _ASSIGNED.sub(self._assigned, commands)

    def _place(self, error: InputError, shown: str) -> str:
        parameter = error.parameter
        if _of_cluster(error):
            return f"--cluster: {parameter} = {shown}"
        of_model = self._is_option(parameter)
        if isinstance(error, OptionError):
            of_model = error.of.startswith("factorflow.models.")
        if parameter in self.written and (of_model or not self.model):
            return shlex.join([self.written[parameter], f"{parameter}={shown}"])
        if of_model and parameter != "model":
            return f"{parameter}: {shown} in {self.file}" if self.file else f"{parameter} = {shown}"
        if (flag := self._flag(parameter)) is not None:
            return f"{flag} {shown}"
        return f"{parameter} = {shown}"

    def _is_option(self, name: str) -> bool:
        """Whether an option is one of the model, and was given as one."""
        return name in self.model

    def _taker(self, error: OptionError) -> str:
        """Return what takes the options: a family, or the command."""
        if _of_cluster(error):
            return "this kind of cluster"
        of_model = error.of.startswith("factorflow.models.")
        return str(self.model.get("model")) if of_model else f"`factorflow {self.name}`"

    def _advice(self, error: OptionError) -> str:
        if _of_cluster(error):
            return error.advice("docs/clusters.md explains the options.")
        if error.of.startswith("factorflow.models."):
            return error.advice(f"`factorflow models {self._taker(error)}` explains the options.")
        return error.advice(f"`factorflow {self.name} --help` explains the options.")

    def _flag(self, name: str) -> str | None:
        """Return the flag of a name of Python, which may be in the plural on one side."""
        names = (name, name.removesuffix("s"), f"{name}s", *["out"] * (name in {"path", "output"}))
        return next((self.flags[n] for n in names if n in self.flags), None)

    def _assigned(self, found: re.Match[str]) -> str:
        name, text = found["name"], found["value"]
        value = _read(text)
        elsewhere = name in ELSEWHERE and isinstance(value, dict)  # by view: of ingest
        if name in self._options() and (self._is_option(name) or not (elsewhere or self._flag(name))):
            shown = "..." if text in (None, "...", "(...)") else _plain(value)
            in_file = self.file is not None and name not in self.written
            return f"`{name}: {shown}`" if in_file else shlex.join(["--set", f"{name}={shown}"])
        flag = self._flag(name) or ELSEWHERE.get(name)
        if flag is None:
            return found[0]
        if isinstance(value, dict):
            pairs = [(key if isinstance(key, str) else "VIEW", item) for key, item in value.items()]
            return " ".join(f"{flag} {key}={item}" for key, item in pairs)
        if value is False and name != "index_col":
            return flag.replace("--", "--no-", 1)
        return flag if text in (None, "True", "...") else f"{flag} {shlex.quote(_plain(value))}"

    def _options(self) -> frozenset[str]:
        """Return the options of the model."""
        from factorflow.models.registry import registered

        family = registered().get(str(self.model.get("model")))
        return frozenset(family.model_fields if family else ())


def _of_cluster(error: InputError) -> bool:
    """Return whether an option is one of a cluster's setting: it has no flag of its own."""
    return isinstance(error, OptionError) and error.of.startswith("factorflow.settings.clusters.")


def _called(found: re.Match[str]) -> str:
    """Return the command of a function; what is no function of factorflow's stays as it is."""
    command = COMMANDS.get(found["name"] or found["bare"])
    return found[0] if command is None else f"`{command}`"


def _read(text: str | None) -> Any:
    """Return the value that a text of Python stands for; the text where it is none."""
    try:
        return ast.literal_eval(text or "")
    except (ValueError, SyntaxError):
        return text


def _plain(value: Any) -> str:
    """Return a value as a shell or YAML has it: text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
