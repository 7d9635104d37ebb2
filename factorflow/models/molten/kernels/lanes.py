"""Rows of a table as vectors of a length that is known when a loop is compiled.

A table of components is (D, W): C-contiguous, W a multiple of `PART`, of double precision; one that is only
looked up may be of single precision. `load` takes one of its rows into vector registers, as doubles, `add_to`
adds such a vector to a row, and what lies between is done lane by lane in order: no loop over components is
left for a compiler to vectorise or not. The length travels as a tuple, ``lanes = (0,) * W``, of which only
the length counts. Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, njit, types
from numba.extending import models, register_model

from factorflow.kernels.compile import stamp

__all__ = ["PART", "add_to", "added", "compiled", "load", "multiply", "scaled", "store", "total"]

Array = Any
PART = 4
"""Numbers in a vector register, as the loops are written; other widths are the compiler's matter."""

_VECTOR = ir.VectorType(ir.DoubleType(), PART)
_SINGLE = ir.VectorType(ir.FloatType(), PART)
_INDEX = ir.IntType(32)


class Lanes(types.Type):
    """Type of a row: so many numbers, in vectors of `PART`."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(name=f"Lanes({size})")

    @property
    def n_parts(self) -> int:
        """Vectors it takes."""
        return self.size // PART


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, ir.ArrayType(_VECTOR, kind.n_parts))  # type: ignore[no-untyped-call]


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function that writes instructions known to compiled code."""
    return extending.intrinsic(function)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a loop that releases the interpreter lock; its sums keep the order in which they are written.

    Machine code is cached on disk; as in `factorflow.kernels.compile`, the stamp covers all sources.
    """
    dispatcher = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function)
    stored = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if stored is not None:
        stored._source_stamp = stamp(function.__module__)
    return dispatcher


def _places(context: Any, builder: Any, kind: Any, array: Any, row: Any, size: int) -> list[Any]:
    """Return where the vectors of a row are, of numbers of the table's type."""
    first = builder.gep(
        context.make_array(kind)(context, builder, array).data,
        [builder.mul(row, ir.Constant(row.type, size))],
    )
    starts = [builder.gep(first, [ir.Constant(_INDEX, at)]) for at in range(0, size, PART)]
    vector = _SINGLE if kind.dtype == types.float32 else _VECTOR
    return [builder.bitcast(start, vector.as_pointer()) for start in starts]


def _each(builder: Any, kind: Lanes, make: Callable[[int], Any]) -> Any:
    """Return lanes made vector by vector."""
    out = ir.Constant(ir.ArrayType(_VECTOR, kind.n_parts), ir.Undefined)
    for part in range(kind.n_parts):
        out = builder.insert_value(out, make(part), part)
    return out


@intrinsic
def load(typing: Any, table: Any, row: Any, lanes: Any) -> Any:
    """Return a row of a table (D, W); ``lanes`` is (0,) * W."""
    kind = Lanes(lanes.count)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        places = _places(context, builder, signature.args[0], given[0], given[1], kind.size)
        if signature.args[0].dtype != types.float32:
            return _each(builder, kind, lambda part: builder.load(places[part], align=8))
        return _each(builder, kind, lambda part: builder.fpext(builder.load(places[part], align=4), _VECTOR))

    return kind(table, types.intp, lanes), generate


@intrinsic
def store(typing: Any, table: Any, row: Any, values: Any) -> Any:
    """Write lanes into a row of a table."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        for part, place in enumerate(
            _places(context, builder, signature.args[0], given[0], given[1], values.size)
        ):
            builder.store(builder.extract_value(given[2], part), place, align=8)
        return context.get_dummy_value()

    return types.void(table, types.intp, values), generate


@intrinsic
def add_to(typing: Any, table: Any, row: Any, values: Any) -> Any:
    """Add lanes to a row of a table."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        for part, place in enumerate(
            _places(context, builder, signature.args[0], given[0], given[1], values.size)
        ):
            total = builder.fadd(builder.load(place, align=8), builder.extract_value(given[2], part))
            builder.store(total, place, align=8)
        return context.get_dummy_value()

    return types.void(table, types.intp, values), generate


def _lane_by_lane(left: Any, right: Any, instruction: str) -> Any:
    """Return signature and generator of an instruction on two rows."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        apply = getattr(builder, instruction)
        parts = [[builder.extract_value(each, part) for each in given] for part in range(left.n_parts)]
        return _each(builder, left, lambda part: apply(*parts[part]))

    return left(left, right), generate


@intrinsic
def multiply(typing: Any, left: Any, right: Any) -> Any:
    """Return the products, lane by lane."""
    return _lane_by_lane(left, right, "fmul")


@intrinsic
def added(typing: Any, left: Any, right: Any) -> Any:
    """Return the sums, lane by lane."""
    return _lane_by_lane(left, right, "fadd")


@intrinsic
def scaled(typing: Any, values: Any, factor: Any) -> Any:
    """Return lanes times one number."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        one = builder.insert_element(nothing, given[1], ir.Constant(_INDEX, 0))
        everywhere = ir.Constant(ir.VectorType(_INDEX, PART), [0] * PART)
        repeated = builder.shuffle_vector(one, nothing, everywhere)
        return _each(
            builder, values, lambda part: builder.fmul(builder.extract_value(given[0], part), repeated)
        )

    return values(values, types.float64), generate


@intrinsic
def total(typing: Any, values: Any) -> Any:
    """Return the sum of all lanes: vectors in order, then their lanes in pairs."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        vector = builder.extract_value(given[0], 0)
        for part in range(1, values.n_parts):
            vector = builder.fadd(vector, builder.extract_value(given[0], part))
        a, b, c, d = (builder.extract_element(vector, ir.Constant(_INDEX, lane)) for lane in range(PART))
        return builder.fadd(builder.fadd(a, b), builder.fadd(c, d))

    return types.float64(values), generate
