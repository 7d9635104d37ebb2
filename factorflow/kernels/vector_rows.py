"""Rows of tables as vectors in compiled loops: their places, loads, sums.

Rows are of a length W that is a multiple of `PART` and known when a loop is compiled: it travels as a tuple,
``lanes = (0,) * W``. Vectors are written down in full, since compilers do not find them in loops as short as
these. Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils

__all__ = ["COMPILED", "CONTRACT", "PART", "add_to", "dot", "for_entries", "load", "pointers", "repeat"]

PART = 8
"""Numbers of a vector: rows of tables are padded to a multiple of so many."""

COMPILED = 2 * PART
"""Widths of tables that a loop is compiled for are multiples of so many, where that costs little."""

CONTRACT = ("contract",)
"""A product and the sum that it goes into may be one instruction."""

_LONG = ir.IntType(64)


def _mask(lanes: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)


def pointers(context: Any, builder: Any, kind: Any, table: Any, row: Any, width: int) -> list[Any]:
    """Return where the vectors of a row are."""
    vector = ir.VectorType(context.get_value_type(kind.dtype), PART)
    data = context.make_array(kind)(context, builder, table).data
    first = builder.gep(data, [builder.mul(row, ir.Constant(_LONG, width))])
    starts = [builder.gep(first, [ir.Constant(_LONG, at)]) for at in range(0, width, PART)]
    return [builder.bitcast(start, vector.as_pointer()) for start in starts]


def load(builder: Any, place: Any) -> Any:
    """Return the vector at a place."""
    return builder.load(place, align=4)


def repeat(builder: Any, number: Any) -> Any:
    """Return a vector of one number."""
    nothing = ir.Constant(ir.VectorType(number.type, PART), ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, _mask([0] * PART))


def add_to(builder: Any, place: Any, factor: Any, values: Any) -> None:
    """Add a product of two vectors to the vector at a place."""
    product = builder.fmul(factor, values, flags=CONTRACT)
    builder.store(builder.fadd(load(builder, place), product, flags=CONTRACT), place, align=4)


def dot(builder: Any, row: list[Any], other: list[Any]) -> Any:
    """Return the scalar product of two rows."""
    total = builder.fmul(row[0], other[0])
    for left, right in zip(row[1:], other[1:], strict=True):
        total = builder.fadd(total, builder.fmul(left, right, flags=CONTRACT), flags=CONTRACT)
    return _sum(builder, total)


def _sum(builder: Any, vector: Any) -> Any:
    """Return the sum of the numbers of a vector, halves by halves."""
    size, number = PART, vector.type.element
    while size > 1:
        half, nothing = size // 2, ir.Constant(ir.VectorType(number, size), ir.Undefined)
        low, high = (
            builder.shuffle_vector(vector, nothing, _mask([*range(at, at + half)])) for at in (0, half)
        )
        vector, size = builder.fadd(low, high), half
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


@dataclass(frozen=True)
class Entry:
    """An entry of compressed sparse rows: which, its column, its number, and where that is."""

    at: Any
    column: Any
    number: Any
    place: Any


@contextmanager
def for_entries(
    context: Any, builder: Any, columns: tuple[Any, Any], entries: tuple[Any, Any], ends: tuple[Any, Any]
) -> Iterator[Entry]:
    """Begin a loop over entries: types and values of columns and numbers, the first and one past the last."""
    first, last = ends
    with cgutils.for_range_slice(builder, first, last, ir.Constant(_LONG, 1), _LONG) as (at, _):
        column, number = (
            builder.gep(context.make_array(kind)(context, builder, array).data, [at])
            for kind, array in (columns, entries)
        )
        yield Entry(at, builder.zext(builder.load(column), _LONG), builder.load(number), number)
