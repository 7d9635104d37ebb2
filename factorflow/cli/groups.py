"""Command-line options from a pydantic model: one flag per field, with its text parsed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from factorflow.cli.options import assignments, completions, values_of
from factorflow.settings import Options, parse_config


def has_group(hint: Any) -> bool:
    """Return whether a parameter is a model of options."""
    return isinstance(hint, type) and issubclass(hint, Options)


def options_of(parameter: inspect.Parameter, group: type[Options]) -> list[inspect.Parameter]:
    """Return an option for each field of a group; a default of the parameter overrules the fields' own."""
    defaults = None if parameter.default is parameter.empty else parameter.default
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field, field.get_default(call_default_factory=True))
            if defaults is None
            else _default(field, getattr(defaults, name)),
            annotation=_annotation(name, field),
        )
        for name, field in group.model_fields.items()
    ]


def _annotation(name: str, field: FieldInfo) -> Any:
    hint, metavar = _shell_type(field.annotation)
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    flags = [f"--{extra['flag']}"] if "flag" in extra else []
    choices = _choices(field.annotation)
    complete = _completer(choices) if choices else completions(name)
    about: dict[str, Any] = {"help": field.description, "autocompletion": complete, "metavar": metavar}
    return Annotated[hint, typer.Option(*flags, **about)]


def parse_group(group: type[Options], typed: dict[str, Any]) -> Options:
    """Return the options that were typed; those without a value have their defaults."""
    values = {name: _value(name, group.model_fields[name], value) for name, value in typed.items()}
    return parse_config(group, {name: value for name, value in values.items() if value is not None})


def _shell_type(hint: Any) -> tuple[Any, str | None]:
    """Return the Typer type of an option and, if that is too vague, its metavar."""
    hint = _without_checks(hint)
    kinds = _kinds(hint)
    if _has_parts(hint):
        return str | None, None
    if dict in kinds:
        return list[str] | None, "NAME=VALUE" if len(kinds) == 1 else "[NAME=]VALUE"
    if {bool, list} <= kinds:
        return list[str] | None, "[VIEW]"
    if kinds == {Literal}:
        return str, "|".join(_choices(hint))
    if _has_numbers(hint):
        return str | None, "INTEGER,..."
    if len(kinds) > 1:
        return (bool if bool in kinds else str | None), None
    return hint, None


def _without_checks(hint: Any) -> Any:
    """Return a type without what its group checks, and words, itself: bounds and validators."""
    if get_origin(hint) is Annotated:
        return get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, (_without_checks(part) for part in get_args(hint)))
    return hint


def _completer(choices: list[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def _choices(hint: Any) -> list[str]:
    """Return the choices of a literal type, without blanks."""
    return [str(choice).replace(" ", "-") for choice in get_args(hint)] if get_origin(hint) is Literal else []


def _value(name: str, field: FieldInfo, typed: Any) -> Any:
    """Return the value given to a flag; None if there is none."""
    kinds = _kinds(field.annotation)
    if _has_numbers(field.annotation):
        return values_of(typed) if isinstance(typed, str) else typed
    if not isinstance(typed, list | tuple) or kinds == {list}:
        return typed
    if not typed:
        return None
    if dict in kinds:
        alone = len(kinds) > 1 and len(typed) == 1 and "=" not in typed[0]
        return typed[0] if alone else assignments(name, typed)
    return True if "" in typed else list(typed)


def _default(field: FieldInfo, value: Any) -> Any:
    """Return the default of an option: none of those that may be given several times or stand alone."""
    if _has_numbers(field.annotation):
        return ",".join(map(str, value))
    several = {dict, list} & _kinds(field.annotation) and len(_kinds(field.annotation)) > 1
    return None if several or field.is_required() else value


def _kinds(hint: Any) -> set[Any]:
    """Return the kinds of values of a type: ``str | dict[str, str] | None`` has two."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return {get_origin(part) or part for part in parts} - {NoneType}


def _has_numbers(hint: Any) -> bool:
    """Whether a type is a list of integers, which a shell gives as one text: ``0,1,2``."""
    return get_origin(hint) is list and _without_checks(get_args(hint)[0]) is int


def _has_parts(hint: Any) -> bool:
    """Whether a field holds options itself: a shell gives them as one text."""
    return has_group(hint) or any(_has_parts(part) for part in get_args(hint))
