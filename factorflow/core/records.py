"""Dataclasses from what `dataclasses.asdict` and JSON made of them, and from others of the same fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


def from_record(kind: type[T], record: Mapping[str, Any]) -> T:
    """Return an instance of a dataclass, with those in it, that `dataclasses.asdict` made a record of.

    Parameters
    ----------
    kind : type
        The dataclass; annotations tell lists of JSON from tuples.
    record : mapping of str to Any
        A value for each field; None, and absent ones: their defaults. Others are left alone.

    Raises
    ------
    ValueError
        Naming the first field whose value is missing, or of another type.
    """
    values = {name: value for name, value in record.items() if value is not None}
    try:
        instance: T = _adapter(kind).validate_python(values)  # type: ignore[arg-type]
        return instance
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def same_fields(kind: Any, source: object) -> dict[str, Any]:
    """Return what a value has by the names of the fields of a dataclass, as far as it has them."""
    return {each.name: getattr(source, each.name) for each in fields(kind) if hasattr(source, each.name)}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
