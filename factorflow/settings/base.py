"""The base class of options, and their descriptions."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from factorflow.errors import InputError, OptionError


class Options(BaseModel):
    """Base class of options: unknown names and values out of bounds raise an `OptionError`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: ClassVar[str] = "these options"
    """What takes the options, as Python names it; said in errors."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _refusal(type(self), error, given) from None

    @model_validator(mode="before")
    @classmethod
    def _refuse_bool_for_number(cls, values: Any) -> Any:
        """Refuse ``true`` for a number: pydantic takes it for 1."""
        for name, value in values.items() if isinstance(values, Mapping) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and _parts(field.annotation) & {int, float}:
                if bool not in _parts(field.annotation):
                    raise OptionError(name, value, "a number", cls.of, names_of(cls))
        return values

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        """Return the schema of a form: descriptions say the bounds, which forms check and do not show."""
        schema = handler(core_schema)
        described = handler.resolve_ref_schema(schema)
        described["description"] = (cls.__doc__ or "").split("\n\n")[0].strip()
        for name, field in described.get("properties", {}).items():
            parts = [handler.resolve_ref_schema(part) for part in field.get("anyOf", ())]
            if name in cls.model_fields and cls.model_fields[name].default_factory is not None:
                field["default"] = cls.model_fields[name].get_default(call_default_factory=True)
            described["properties"][name] = field = {**field, **naming_types(parts)}
            if any(f'"{sign}":' in json.dumps(field) for sign in _SIGNS):
                field["description"] = f"{field.get('description', '')} ({values_of(field, {})})".strip()
        return schema


def naming_types(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what makes a server name the types of a choice between schemas.

    Of a value of none of them it would say "not valid under any of the given schemas". Forms look at the
    choice alone: this is a condition that always holds.
    """
    types: dict[Any, None] = {}
    for part in parts:
        values = part.get("enum", [part["const"]] if "const" in part else [])
        type_names = [part["type"]] if "type" in part else [_TYPE_NAMES.get(type(value)) for value in values]
        types |= dict.fromkeys(type_names or [None])
    return {"if": {}, "then": {"type": list(types)}} if types and None not in types else {}


_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _parts(hint: Any) -> set[Any]:
    """Return a type and the types in it."""
    return {hint}.union(
        *(_parts(part) for part in get_args(hint) if isinstance(part, type) or get_args(part))
    )


B = TypeVar("B", bound=Options)


def parse_config(kind: type[B], settings: Mapping[str, Any]) -> B:
    """Return a configuration made from settings."""
    wrong = [key for key in settings if not isinstance(key, str)]
    if wrong:
        raise InputError(f"options of {kind.of}", wrong[0], "names that are text", "Quote the name.")
    return kind(**settings)


def describe(kind: type[Options]) -> list[dict[str, str]]:
    """Return the description of each option.

    Returns
    -------
    list of dict
        ``option``, ``values`` (type, choices and bounds, in words), ``default`` (as JSON; "needed" without
        one) and ``description``.
    """
    schema = kind.model_json_schema()
    fields = {field.alias or name: field for name, field in kind.model_fields.items()}
    return [
        {
            "option": name,
            "values": values_of(field, schema.get("$defs", {})),
            "default": "needed" if fields[name].is_required() else json.dumps(field["default"]),
            "description": str(fields[name].description or ""),
        }
        for name, field in schema["properties"].items()
        if "const" not in field  # the name of a family: it is chosen, not set
    ]


F = TypeVar("F", bound=Callable[..., Any])


def document_options(kind: type[Options]) -> Callable[[F], F]:
    """Insert options into the docstring of a function in place of ``<options>`` (a decorator).

    Each is said there as its field says it, with the type that the function takes; but for those of which the
    docstring says itself what Python takes.
    """

    def decorate(function: F) -> F:
        docstring, lines = inspect.getdoc(function) or "", []
        for name in inspect.signature(function).parameters:
            if name in kind.model_fields and f"\n{name} : " not in docstring:
                text = str(kind.model_fields[name].description)
                lines += [f"{name} : {function.__annotations__[name]}", *textwrap.wrap(text, 100, **_INDENT)]
        function.__doc__ = docstring.replace("<options>", "\n".join(lines))
        return function

    return decorate


_INDENT: dict[str, Any] = {"initial_indent": "    ", "subsequent_indent": "    "}


def values_of(field: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Describe the values of a field of a JSON schema."""
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        return values_of(options[name], options) if name in options else _TYPES["object"]
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(dict.fromkeys(values_of(part, options) for part in field[key]))
    choices = field.get("enum", [field["const"]] if "const" in field else [])
    if choices:
        return " or ".join(map(str, choices))
    if "prefixItems" in field:
        return f"[{', '.join(values_of(part, options) for part in field['prefixItems'])}]"
    kind = str(field.get("type", "any value"))
    if kind == "array":
        return f"list of {values_of(field.get('items', {}), options)}"
    bounds = [f"{sign} {field[name]}" for name, sign in _SIGNS.items() if name in field]
    return " ".join([_TYPES.get(kind, kind), *([" and ".join(bounds)] if bounds else [])])


_SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_TYPES = {"integer": "integer", "string": "str", "boolean": "true or false", "null": "null",
          "object": "mapping"}  # fmt: skip


def names_of(kind: type[Options]) -> tuple[str, ...]:
    """Return the names of the options, as they are written."""
    return tuple(field.alias or name for name, field in kind.model_fields.items())


def _refusal(kind: type[Options], error: ValidationError, values: Mapping[str, Any]) -> InputError:
    """Return the first thing that is wrong with the options, in words."""
    first = error.errors()[0]
    for detail in error.errors():  # of a choice between types the one that says more
        if isinstance(cause := detail.get("ctx", {}).get("error"), InputError):
            return cause
    parts = [str(part) for part in first["loc"]]
    key = next((part for part in parts if part in kind.model_fields), parts[0] if parts else "options")
    value, field_names = first.get("input"), names_of(kind)
    if first["type"] == "extra_forbidden":
        return OptionError(key, value, None, kind.of, field_names)
    if first["type"] == "missing" and isinstance(first["loc"][-1], int):  # of a list that is too short
        return OptionError(key, values[key], _list(kind, key), kind.of, field_names)
    if first["type"] == "missing":
        return OptionError(key, "nothing", "a value: it has no default", kind.of, field_names)
    expected = _expectation(first, error, key).replace("a list", _list(kind, key), 1)
    return OptionError(key, value, expected, kind.of, field_names)


_BOUNDS = {"greater_than_equal": ">= {ge}", "greater_than": "> {gt}",
           "less_than_equal": "<= {le}", "less_than": "< {lt}"}  # fmt: skip
_KINDS = {"int": "an integer", "float": "a number", "bool": "true or false", "string": "text",
          "tuple": "a list", "list": "a list", "dict": "a mapping",
          "model": "a mapping"}  # fmt: skip


def _list(kind: type[Options], key: str) -> str:
    """Describe the type of a list."""
    schema = kind.model_json_schema()
    values = values_of(schema.get("properties", {}).get(key, {}), schema.get("$defs", {}))
    return "a list, such as " + ('["a", "b"]' if "str" in values else "[1, 2]")


def _expectation(first: Any, error: ValidationError, key: str) -> str:
    """Describe what pydantic expected; of a union, each member."""
    same = [e for e in error.errors() if key in map(str, e["loc"])]
    bounds = dict.fromkeys(_describe_bound(e) for e in same)
    return " or ".join(bounds) if bounds else _describe_bound(first)


def _describe_bound(error: Any) -> str:
    kind = str(error["type"])
    if kind in _BOUNDS:
        return "a number " + _BOUNDS[kind].format(**error["ctx"])
    if kind in {"too_short", "too_long"}:
        limits = error["ctx"]
        size = limits.get("min_length", limits.get("max_length"))
        return f"a list of {size} at {'least' if kind == 'too_short' else 'most'}"
    if kind == "int_from_float":
        return "an integer"
    if kind == "union_tag_invalid":
        return f"a {error['ctx']['discriminator'].strip(chr(39))} among {error['ctx']['expected_tags']}"
    if kind == "union_tag_not_found":
        return f"a mapping with {error['ctx']['discriminator'].strip(chr(39))}"
    word = kind.removesuffix("_type").removesuffix("_parsing")
    if word in _KINDS:
        return _KINDS[word]
    return str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
