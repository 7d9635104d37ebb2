"""Rows of a table as vectors of a length that is known when a loop is compiled.

A table of components is (D, W): C-contiguous, W a multiple of `PART`, of double precision; one that is only
looked up may be of single precision. `load` takes one of its rows into vector registers, as doubles, `add_to`
adds such a vector to a row, and what lies between is done lane by lane in order: no loop over components is
left for a compiler to vectorise or not. What is one number a row (its total, what it is divided by) is done
for four rows at once. The length travels as a tuple, ``lanes = (0,) * W``, of which only
the length counts. Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, njit, types
from numba.extending import models, register_model

from factorflow.kernels.compile import stamp

__all__ = [
    "PART",
    "add_to",
    "added",
    "at",
    "compiled",
    "divided",
    "lane",
    "load",
    "load_numbers",
    "multiply",
    "scaled",
    "store",
    "store_numbers",
    "total",
    "totals",
]

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


class Numbers(types.Type):
    """Type of a vector: a number of each of `PART` rows."""

    def __init__(self) -> None:
        super().__init__(name="Numbers")


_NUMBERS = Numbers()


@register_model(Numbers)
class _NumbersModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Numbers) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call]


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
def at(typing: Any, array: Any, place: Any) -> Any:
    """Return a number of a contiguous array; no place counts from the end, which takes an indexing longer."""
    whole = isinstance(array.dtype, types.Integer)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, given[0]).data
        number = builder.load(builder.gep(data, [given[1]]))
        if whole:
            wide = context.get_value_type(types.intp)
            return number if number.type == wide else builder.sext(number, wide)
        return number if array.dtype == types.float64 else builder.fpext(number, ir.DoubleType())

    return (types.intp if whole else types.float64)(array, types.intp), generate


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
        vector = _folded(builder, values, given[0])
        a, b, c, d = (builder.extract_element(vector, ir.Constant(_INDEX, lane)) for lane in range(PART))
        return builder.fadd(builder.fadd(a, b), builder.fadd(c, d))

    return types.float64(values), generate


@intrinsic
def totals(typing: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
    """Return the sums of all lanes of four rows; each in the order of `total`."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        rows = [_folded(builder, first, row) for row in given]

        def in_pairs(left: Any, right: Any, even: list[int], odd: list[int]) -> Any:
            parts = [builder.shuffle_vector(left, right, _mask(lanes)) for lanes in (even, odd)]
            return builder.fadd(*parts)

        even, odd = [0, 4, 2, 6], [1, 5, 3, 7]  # a + b and c + d of two rows in turn
        front, back = (in_pairs(rows[at], rows[at + 1], even, odd) for at in (0, 2))
        return in_pairs(front, back, [0, 1, 4, 5], [2, 3, 6, 7])

    return _NUMBERS(first, second, third, fourth), generate


def _folded(builder: Any, kind: Lanes, row: Any) -> Any:
    """Return the sum of the vectors of a row, in order."""
    vector = builder.extract_value(row, 0)
    for part in range(1, kind.n_parts):
        vector = builder.fadd(vector, builder.extract_value(row, part))
    return vector


def _mask(lanes: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_INDEX, PART), lanes)


@intrinsic
def load_numbers(typing: Any, array: Any, start: Any) -> Any:
    """Return `PART` numbers of a contiguous array, as doubles."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _place_of(context, builder, signature, given)
        if signature.args[0].dtype != types.float32:
            return builder.load(place, align=8)
        return builder.fpext(builder.load(place, align=4), _VECTOR)

    return _NUMBERS(array, types.intp), generate


@intrinsic
def store_numbers(typing: Any, array: Any, start: Any, values: Any) -> Any:
    """Write them into one of double precision."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[2], _place_of(context, builder, signature, given), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, values), generate


def _place_of(context: Any, builder: Any, signature: Any, given: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, given[0]).data
    vector = _SINGLE if signature.args[0].dtype == types.float32 else _VECTOR
    return builder.bitcast(builder.gep(data, [given[1]]), vector.as_pointer())


@intrinsic
def divided(typing: Any, left: Any, right: Any) -> Any:
    """Return the ratios, row by row."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fdiv(*given)

    return left(left, right), generate


@intrinsic
def lane(typing: Any, values: Any, row: Any) -> Any:
    """Return the number of one of the rows, 0 to `PART` - 1."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.extract_element(given[0], builder.trunc(given[1], _INDEX))

    return types.float64(values, types.intp), generate
