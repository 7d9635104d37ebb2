"""Shared by all commands: ``--json``, ``--debug``, exit codes and the display of results."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
import typer.core
import typer.models

from factorflow.cli.groups import has_group, options_of, parse_group
from factorflow.cli.options import (
    DEFAULT_FAMILY,
    FAMILIES,
    SIMULATORS,
    ModelOptions,
    default_families,
    families,
    from_config,
    names_set,
    options_like,
    simulators,
)
from factorflow.cli.wording import Flag, Wording
from factorflow.errors import FactorflowError, InputError

if TYPE_CHECKING:
    from factorflow.api import Posterior

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


FormatText = Callable[[str], str]
"""Formats the options in a text (`OptionText`) as the command line has them."""


@dataclass(frozen=True)
class DisplayedResult:
    """A result with a text of its own.

    Parameters
    ----------
    data : mapping
        Plain values, shown with ``--json``.
    text : str or callable
        Shown without; given what formats texts with options.
    findings : sequence of mapping
        Printed to standard error as warnings.
    model : mapping, optional
        Options of the model that these are of, where the command does not name it.
    """

    data: Mapping[str, Any]
    text: str | Callable[[FormatText], str]
    findings: Sequence[Mapping[str, Any]] = ()
    model: Mapping[str, Any] | None = None


Result = Mapping[str, Any] | DisplayedResult


def report_findings(data: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> DisplayedResult:
    """Return a result whose findings are printed to standard error; JSON contains them as well."""
    return replace(without_findings(data), findings=data["findings"], model=model)


def describe_posterior(
    posterior: Posterior, before: Mapping[str, Any], after: Mapping[str, Any], ending: str = ""
) -> DisplayedResult:
    """Return the summary of a posterior, with values around it, and text behind."""
    from factorflow.posterior.summary import as_text

    return DisplayedResult(
        {**before, **posterior.summary(), **after},
        lambda format_text: as_text(posterior, posterior.findings, format_text) + ending,
        model=posterior.run["config"],
    )


def without_findings(data: Mapping[str, Any]) -> DisplayedResult:
    """Return a result whose text omits findings, which are printed separately, and empty entries."""
    empty: tuple[Any, ...] = (None, "", [], {})
    remaining = {name: value for name, value in data.items() if name != "findings" and value not in empty}
    return DisplayedResult(data, render(remaining))


JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result, or the error, as JSON.")]
DebugFlag = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]


def command(app: typer.Typer) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Register a function that returns plain values, or `DisplayedResult`, as a command.

    The command prints what the function returns, as text or as JSON, and turns exceptions into a message and
    an exit code: 1 the run failed (or the result says ``ok: False``), 2 bad input, 130 interrupted.
    A parameter whose type is a pydantic model becomes one option for each of its fields.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own_parameters = inspect.signature(function).parameters.values()
        groups = {p.name: hints[p.name] for p in own_parameters if has_group(hints[p.name])}
        by_name: dict[str, inspect.Parameter] = {}
        for parameter in own_parameters:
            if parameter.name in groups:
                for option in options_of(parameter, groups[parameter.name]):
                    by_name.setdefault(option.name, option)  # one flag, where a run and a source have it
            else:
                hint = hints[parameter.name]
                by_name[parameter.name] = parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY)
        parameters = list(by_name.values())

        flags = {name: flag for parameter in parameters for name, flag in _flags_of(parameter).items()}
        for key, flag in flags.items():
            FLAGS.setdefault(key, flag)
        name = function.__name__.replace("_", "-")

        @wraps(function)
        def run(*args: Any, json_output: bool, debug: bool, **kwargs: Any) -> None:
            wording = Wording(name, flags, FLAGS, written=_assigned_names(kwargs))
            kwargs = {key: _expand_home(value) for key, value in kwargs.items()}
            try:
                kwargs |= from_config(kwargs)
                for group, kind in groups.items():
                    own = [key for key in kind.model_fields if key in kwargs]
                    options = parse_group(kind, {key: kwargs.pop(key) for key in own})
                    kwargs[group] = options
                    if isinstance(options, ModelOptions):
                        wording = options.wording(wording)
                with _warnings_in(wording):
                    result = function(*args, **kwargs)
            except BaseException as error:
                raise typer.Exit(_report(error, json_output, debug, wording)) from None
            displayed = (
                result if isinstance(result, DisplayedResult) else DisplayedResult(result, render(result))
            )
            wording = wording if displayed.model is None else replace(wording, model=displayed.model)
            for finding in displayed.findings:
                parts = wording.text(finding["message"]), wording.text(finding["remedy"])
                print("warning:", *parts, file=sys.stderr)
            text = displayed.text(wording.text) if callable(displayed.text) else displayed.text
            _print_result(as_json(displayed.data, wording.text) if json_output else text)
            if displayed.data.get("ok") is False:
                raise typer.Exit(FAILED)

        extra = [
            inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
            for flag, annotation in (("json_output", JsonFlag), ("debug", DebugFlag))
        ]
        run.__signature__ = inspect.Signature([*parameters, *extra])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in [*parameters, *extra]} | {"return": None}
        app.command(cls=Command)(run)
        return run

    return decorate


def _expand_home(value: Any) -> Any:
    """Return a path with ``~`` replaced, as a shell does it where it stands alone, and not in --out=~/x."""
    return value.expanduser() if isinstance(value, Path) and value.parts[:1] == ("~",) else value


def _print_result(text: str) -> None:
    """Print a result; a full disk is an error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)  # names that it has no signs for
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise  # who reads has seen enough
    except OSError as error:
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        with suppress(OSError):
            sys.stdout.close()  # so that nothing tries again at exit
        raise typer.Exit(FAILED) from None


def _assigned_names(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the names that were given values behind a flag, ``--set NAME=VALUE``, each with the flag."""
    flags = {"settings": "--set", "grid": "--grid"}
    texts = {flag: arguments.get(key) for key, flag in flags.items()}
    return {name: flag for flag, each in texts.items() if isinstance(each, list) for name in names_set(each)}


PLACEHOLDERS: dict[str, Callable[[str], list[str]]] = {
    FAMILIES: families,
    DEFAULT_FAMILY: default_families,
    SIMULATORS: simulators,
}
"""What stands in help texts for names that are looked for where help is needed, and what finds them."""


class Command(typer.core.TyperCommand):
    """A command that knows models and simulators: they are looked for where help is needed."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments; suggest ``--set`` for a model option given as a flag."""
        try:
            return super().parse_args(ctx, self._with_values(args))
        except Exception as error:  # NoSuchOption, which typer 0.26 and later have of their own
            if hasattr(error, "possibilities") and any(p.name == "set" for p in self.params):
                flags = list(error.possibilities or ())
                names = options_like(getattr(error, "option_name", ""))
                settings = [name for name in names if f"--{name.replace('_', '-')}" not in flags]
                error.possibilities = [*(f"--set {name}=VALUE" for name in settings), *flags]
            raise

    def _with_values(self, args: list[str]) -> list[str]:
        """Insert an empty value after options whose value is optional, ``[VIEW]``."""
        alone = {flag for p in self.params if re.fullmatch(r"\[\w+\]", str(p.metavar)) for flag in p.opts}
        return [
            f"{arg}=" if arg in alone and not _is_name(following) else arg
            for arg, following in zip(args, [*args[1:], ""], strict=False)
        ]

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first paragraph of the help, for the list of commands: whole, it is wrapped there."""
        return " ".join((self.help or "").split("\n\n")[0].split())

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        for parameter in self.params:
            text = getattr(parameter, "help", None) or ""
            for placeholder, names in PLACEHOLDERS.items():
                if placeholder in text:
                    text = text.replace(placeholder, ", ".join(names("")))
                    parameter.help = text  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def _is_name(text: str) -> bool:
    """Whether a word of a command names a view: neither an option, a file nor NAME=FILE."""
    return re.fullmatch(r"\w[\w-]*", text) is not None and not os.path.exists(text)


FLAGS: dict[str, Flag] = {}
"""How options of the commands are typed, by their names in Python; of those that share a name the first."""

IN_PYTHON = {"out": ("path", "output"), "form": ("format",), "sources": ("views", "SOURCE")}
"""What functions of Python call parameters of commands."""


def _flags_of(parameter: inspect.Parameter) -> dict[str, Flag]:
    """Return how a parameter is typed, by its names in Python."""
    option_info = next(
        (m for m in getattr(parameter.annotation, "__metadata__", ()) if hasattr(m, "help")), None
    )
    names = [parameter.name, *IN_PYTHON.get(parameter.name, ())]
    if isinstance(option_info, typer.models.ArgumentInfo):
        word = str(option_info.metavar or parameter.name.upper()).split()[0].rstrip(".")
        return dict.fromkeys(names, Flag(word))
    declarations = (getattr(option_info, "default", None), *(getattr(option_info, "param_decls", None) or ()))
    declared = [text for text in declarations if isinstance(text, str) and text.startswith("--")]
    name = declared[0].partition("/")[0] if declared else "--" + parameter.name.replace("_", "-")
    flag = Flag(name, is_switch=bool in (parameter.annotation, *get_args(parameter.annotation)))
    return dict.fromkeys(names, flag)


@contextmanager
def _warnings_in(wording: Wording) -> Iterator[None]:
    """Show warnings in the words of the command meanwhile, where they are shown as lines."""
    before = warnings.showwarning
    if before is show_warning:
        warnings.showwarning = partial(show_warning, wording=wording)
    try:
        yield
    finally:
        warnings.showwarning = before


def as_json(value: Any, format_text: FormatText = str) -> str:
    """Return plain values as JSON; NaN and infinities as null, arrays as lists."""
    return json.dumps(_json_value(value, format_text), indent=2)


def render(value: Any, indent: str = "") -> str:
    """Return plain values as text: scalars as ``name  value`` lines, lists of mappings as tables."""
    if not isinstance(value, Mapping):
        return f"{indent}{_cell(value)}"
    width = max((len(str(key)) for key, item in value.items() if not _is_nested(item)), default=0)
    lines = []
    for key, item in value.items():
        if not _is_nested(item):
            lines.append(f"{indent}{key!s:<{width}}  {_cell(item)}")
            continue
        show = as_table if isinstance(item, Sequence) else render
        lines += [f"{indent}{key}", show(item, indent + "  ")]
    return "\n".join(lines)


def _is_nested(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else [value]
    return bool(value) and all(isinstance(item, Mapping) for item in items)


def as_table(rows: Sequence[Mapping[str, Any]], indent: str) -> str:
    """Return rows as a table for a terminal, a column for each name."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = []
    for name in names:
        cells = [name, *(_cell(row.get(name)) for row in rows)]
        width = max(map(len, cells))
        is_text = all(isinstance(row.get(name), str) for row in rows)
        columns.append([cell.ljust(width) if is_text else cell.rjust(width) for cell in cells])
    return "\n".join((indent + "  ".join(line)).rstrip() for line in zip(*columns, strict=True))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, Mapping):
        return "-"
    return str(value)


def _json_value(value: Any, format_text: FormatText) -> Any:
    """Return a value that JSON can hold."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _json_value(item, format_text) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_value(item, format_text) for item in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, str):
        return format_text(value)
    return value if value is None or isinstance(value, int | bool) else str(value)


def _report(error: BaseException, json_output: bool, debug: bool, wording: Wording) -> int:
    """Show an exception; return the exit code."""
    if isinstance(error, typer.Exit | SystemExit):
        raise error
    if debug:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, FactorflowError):
        message = wording.message(error)
    else:
        message = f"{type(error).__name__}: {error} (--debug shows where)"
    if json_output:
        document: dict[str, Any] = {"type": type(error).__name__, "message": message}
        if isinstance(error, InputError):
            expected, remedy = wording.advice(error)
            document |= {"parameter": error.parameter, "value": error.value, "remedy": remedy}
            document["expected"] = expected
        print(as_json({"error": document}))
    print(f"error: {message}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
    return error.exit_code if isinstance(error, FactorflowError) else FAILED


def show_warning(
    message: Warning | str, category: type[Warning], filename: str = "", *_: Any,
    wording: Wording | None = None, **__: Any,
) -> None:  # fmt: skip
    """Print a warning as one line; skip deprecations, and MuData's about joining its tables."""
    if issubclass(category, FutureWarning | DeprecationWarning) or "mudata" in Path(filename).parts:
        return
    text = message.args[0] if isinstance(message, Warning) and message.args else str(message)
    print(f"warning: {wording.text(text) if wording else text}", file=sys.stderr)
