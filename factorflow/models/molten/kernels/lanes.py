"""Rows of a table as vectors of a length that is known when a loop is compiled.

A table of components is (D, W): C-contiguous, W a multiple of `PART`, of double precision; one that is only
looked up may be of single precision. `load` takes one of its rows into vector registers, as doubles, `add_to`
adds such a vector to a row, and what lies between is done lane by lane in order: no loop over components is
left for a compiler to vectorise or not. What is one number a row (its total, what it is divided by) is done
for `ROWS` rows at once (`Numbers`). The length travels as a tuple, ``lanes = (0,) * W``, of which only
the length counts. Vectors are written down in full, and cut by the compiler into what a machine has: bits do
not depend on that. Importing this module imports numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import models, register_model

from factorflow.kernels.compile import jit

__all__ = [
    "PART",
    "ROWS",
    "add_to",
    "added",
    "at",
    "compiled",
    "folded",
    "load",
    "load_first_numbers",
    "load_products",
    "multiply",
    "no_numbers",
    "plus_weighted_logs",
    "ratios",
    "scaled",
    "store",
    "store_numbers",
    "sum_of",
    "times_own",
    "times_shared",
    "total",
    "totals",
]

Array = Any
PART = 4
"""Rows of tables are padded to a multiple of so many numbers."""

ROWS = 8
"""Rows of which one number each is worked on together."""

_INDEX = ir.IntType(32)
_WORD = ir.IntType(64)
_LOG = (
    0.14616585424888623, 0.15331710618210773, 0.18182889455674947, 0.22222211130259878, 0.2857142862600327,
    0.39999999999899444, 0.666666666666667, 2.0,
)  # fmt: skip
"""Of log x / s in s^2, s = (x - 1) / (x + 1), x from sqrt(1/2) to sqrt(2): at Chebyshev's nodes, to 2e-18."""
_SQRT_HALF = 0x3FE6A09E667F3BCD


def _vector(size: int, single: bool = False) -> Any:
    return ir.VectorType(ir.FloatType() if single else ir.DoubleType(), size)


class Lanes(types.Type):
    """Type of a row: so many numbers, in vectors of two `PART` where that comes out even."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.part = 2 * PART if size % (2 * PART) == 0 else PART
        super().__init__(name=f"Lanes({size})")

    @property
    def n_parts(self) -> int:
        """Vectors it takes."""
        return self.size // self.part

    @property
    def vector(self) -> Any:
        """Type of each."""
        return _vector(self.part)


class Vector(types.Type):
    """Type of one vector: of `PART` numbers of a row, or of a number of each of `ROWS` rows."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(name=f"Vector({size})")


_FOLDED, _NUMBERS = Vector(PART), Vector(ROWS)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, _vector(kind.size))  # type: ignore[no-untyped-call]


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, ir.ArrayType(kind.vector, kind.n_parts))  # type: ignore[no-untyped-call]


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function that writes instructions known to compiled code."""
    return extending.intrinsic(function)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a loop that releases the interpreter lock; its sums keep the order in which they are written.

    Machine code is cached on disk; as in `factorflow.kernels.compile`, the stamp covers all sources.
    """
    return jit(function, cache=True, nogil=True, error_model="numpy", fastmath={"contract"})


def _places(
    context: Any, builder: Any, kind: Any, array: Any, row: Any, lanes: Lanes, part: int
) -> list[Any]:
    """Return where the vectors of a row are, of ``part`` numbers of the table's type."""
    first = builder.gep(
        context.make_array(kind)(context, builder, array).data,
        [builder.mul(row, ir.Constant(row.type, lanes.size))],
    )
    starts = [builder.gep(first, [ir.Constant(_INDEX, at)]) for at in range(0, lanes.size, part)]
    vector = _vector(part, kind.dtype == types.float32)
    return [builder.bitcast(start, vector.as_pointer()) for start in starts]


def _loaded(builder: Any, place: Any) -> Any:
    """Return a vector at a place, as doubles."""
    vector = place.type.pointee
    if vector.element == ir.DoubleType():
        return builder.load(place, align=8)
    return builder.fpext(builder.load(place, align=4), _vector(vector.count))


def _each(builder: Any, kind: Lanes, make: Callable[[int], Any]) -> Any:
    """Return lanes made vector by vector."""
    out = ir.Constant(ir.ArrayType(kind.vector, kind.n_parts), ir.Undefined)
    for part in range(kind.n_parts):
        out = builder.insert_value(out, make(part), part)
    return out


def _everywhere(builder: Any, number: Any, size: int) -> Any:
    """Return a vector of one number."""
    nothing = ir.Constant(ir.VectorType(number.type, size), ir.Undefined)
    one = builder.insert_element(nothing, number, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(one, nothing, _mask([0] * size))


def _times(builder: Any, kind: Lanes, row: Any, factor: Any) -> Any:
    """Return a row times a number."""
    repeated = _everywhere(builder, factor, kind.part)
    return _each(builder, kind, lambda part: builder.fmul(builder.extract_value(row, part), repeated))


def _constant(size: int, number: float) -> Any:
    return ir.Constant(_vector(size), [number] * size)


@intrinsic
def load(typing: Any, table: Any, row: Any, lanes: Any) -> Any:
    """Return a row of a table (D, W); ``lanes`` is (0,) * W."""
    kind = Lanes(lanes.count)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        places = _places(context, builder, signature.args[0], given[0], given[1], kind, kind.part)
        return _each(builder, kind, lambda part: _loaded(builder, places[part]))

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
            extend = builder.sext if array.dtype.signed else builder.zext
            return number if number.type == wide else extend(number, wide)
        return number if array.dtype == types.float64 else builder.fpext(number, ir.DoubleType())

    return (types.intp if whole else types.float64)(array, types.intp), generate


@intrinsic
def store(typing: Any, table: Any, row: Any, values: Any) -> Any:
    """Write lanes into a row of a table."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        for part, place in enumerate(
            _places(context, builder, signature.args[0], given[0], given[1], values, values.part)
        ):
            builder.store(builder.extract_value(given[2], part), place, align=8)
        return context.get_dummy_value()

    return types.void(table, types.intp, values), generate


@intrinsic
def add_to(typing: Any, table: Any, row: Any, values: Any) -> Any:
    """Add lanes to a row of a table."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        for part, place in enumerate(
            _places(context, builder, signature.args[0], given[0], given[1], values, values.part)
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
        return _times(builder, values, given[0], given[1])

    return values(values, types.float64), generate


@intrinsic
def times_own(typing: Any, values: Any, weight: Any, n: Any) -> Any:
    """Return lanes times the weight of row n; unchanged where all rows have one weight, a number."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        if isinstance(signature.args[1], types.Float):
            return given[0]
        data = context.make_array(signature.args[1])(context, builder, given[1]).data
        return _times(builder, values, given[0], builder.load(builder.gep(data, [given[2]])))

    return values(values, weight, types.intp), generate


@intrinsic
def times_shared(typing: Any, values: Any, weight: Any) -> Any:
    """Return lanes times the one weight of all rows; unchanged where each has its own."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        if not isinstance(signature.args[1], types.Float):
            return given[0]
        return _times(builder, values, given[0], given[1])

    return values(values, weight), generate


def _folded(builder: Any, kind: Lanes, row: Any) -> Any:
    """Return the sum of the quarters of a row, `PART` numbers each, in order."""
    return _sum_in_order(builder, _quarters(builder, kind, row))


def _sum_in_order(builder: Any, vectors: list[Any]) -> Any:
    out = vectors[0]
    for vector in vectors[1:]:
        out = builder.fadd(out, vector)
    return out


def _quarters(builder: Any, kind: Lanes, row: Any) -> list[Any]:
    """Return a row in vectors of `PART`."""
    vectors = [builder.extract_value(row, part) for part in range(kind.n_parts)]
    starts = range(0, kind.part, PART)
    return [
        builder.shuffle_vector(vector, vector, _mask([*range(start, start + PART)]))
        for vector in vectors
        for start in starts
    ]


def _mask(lanes: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_INDEX, len(lanes)), lanes)


@intrinsic
def total(typing: Any, values: Any) -> Any:
    """Return the sum of all lanes: vectors in order, then their lanes in pairs."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        vector = _folded(builder, values, given[0])
        a, b, c, d = (builder.extract_element(vector, ir.Constant(_INDEX, lane)) for lane in range(PART))
        return builder.fadd(builder.fadd(a, b), builder.fadd(c, d))

    return types.float64(values), generate


@intrinsic
def folded(typing: Any, values: Any) -> Any:
    """Return what `total` begins with: the sum of the vectors of a row."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _folded(builder, values, given[0])

    return _FOLDED(values), generate


@intrinsic
def load_products(typing: Any, values: Any, table: Any, row: Any) -> Any:
    """Return ``folded(multiply(values, load(table, row, lanes)))``, products added as they are made."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        places = _places(context, builder, signature.args[1], given[1], given[2], values, PART)
        left, right = _quarters(builder, values, given[0]), [_loaded(builder, place) for place in places]
        return _sum_in_order(builder, [builder.fmul(a, b) for a, b in zip(left, right, strict=True)])

    return _FOLDED(values, table, types.intp), generate


@intrinsic
def totals(typing: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Return the sums of the lanes of `ROWS` rows that are `folded`; each in the order of `total`."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        def of_four(first: int) -> Any:
            # a + b and c + d of two rows in turn, then of four; the left operand needs no exchange of lanes
            a, b, c, d = given[first : first + PART]
            left, right = (in_pairs(x, y, [0, 5, 2, 7], [1, 4, 3, 6]) for x, y in ((a, b), (c, d)))
            return in_pairs(left, right, [0, 1, 6, 7], [2, 3, 4, 5])

        def in_pairs(left: Any, right: Any, even: list[int], odd: list[int]) -> Any:
            return builder.fadd(*(builder.shuffle_vector(left, right, _mask(lanes)) for lanes in (even, odd)))

        return builder.shuffle_vector(of_four(0), of_four(PART), _mask([*range(ROWS)]))

    return _NUMBERS(a, b, c, d, e, f, g, h), generate


@intrinsic
def no_numbers(typing: Any) -> Any:
    """Return zeros."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _constant(ROWS, 0.0)

    return _NUMBERS(), generate


@intrinsic
def load_first_numbers(typing: Any, array: Any, start: Any, count: Any) -> Any:
    """Return `ROWS` numbers of a contiguous array, as doubles, of which those from ``count`` on are 0.

    They are read all the same: `ROWS` more have to be there.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        values = _loaded(builder, _place_of(context, builder, signature, given))
        number = ir.Constant(ir.VectorType(_WORD, ROWS), [*range(ROWS)])
        there = builder.icmp_signed("<", number, _everywhere(builder, given[2], ROWS))
        return builder.select(there, values, _constant(ROWS, 0.0))

    return _NUMBERS(array, types.intp, types.intp), generate


@intrinsic
def store_numbers(typing: Any, array: Any, start: Any, values: Any) -> Any:
    """Write them into one of double precision."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[2], _place_of(context, builder, signature, given), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, values), generate


def _place_of(context: Any, builder: Any, signature: Any, given: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, given[0]).data
    vector = _vector(ROWS, signature.args[0].dtype == types.float32)
    return builder.bitcast(builder.gep(data, [given[1]]), vector.as_pointer())


class _Parts:
    """What logarithm and inverse of numbers x = 2^k m have in common, sqrt(1/2) <= m < sqrt(2).

    One division does for both: of 1 by m (m + 1).
    """

    def __init__(self, builder: Any, x: Any) -> None:
        words = ir.VectorType(_WORD, ROWS)
        bits, shift = builder.bitcast(x, words), ir.Constant(words, [52] * ROWS)
        self.k = builder.ashr(builder.sub(bits, ir.Constant(words, [_SQRT_HALF] * ROWS)), shift)
        self.exponent = builder.shl(self.k, shift)
        self.m = builder.bitcast(builder.sub(bits, self.exponent), x.type)
        self.more = builder.fadd(self.m, _constant(ROWS, 1.0))
        self.inverse = builder.fdiv(_constant(ROWS, 1.0), builder.fmul(self.m, self.more))


@intrinsic
def ratios(typing: Any, left: Any, right: Any) -> Any:
    """Return left / right, row by row, within two units of the last place; ``right`` is 1e-290 to 1e290."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        parts = _Parts(builder, given[1])
        inverse = builder.bitcast(builder.fmul(parts.inverse, parts.more), parts.k.type)
        return builder.fmul(given[0], builder.bitcast(builder.sub(inverse, parts.exponent), given[0].type))

    return left(left, right), generate


@intrinsic
def plus_weighted_logs(typing: Any, sums: Any, weights: Any, values: Any) -> Any:
    """Return sums + weights log values, row by row; the logarithm's absolute error is below 1e-15."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        parts = _Parts(builder, given[2])
        s = builder.fmul(builder.fsub(parts.m, _constant(ROWS, 1.0)), builder.fmul(parts.inverse, parts.m))
        z, series = builder.fmul(s, s), _constant(ROWS, _LOG[0])
        for coefficient in _LOG[1:]:
            series = builder.fadd(builder.fmul(series, z), _constant(ROWS, coefficient))
        whole = builder.fmul(builder.sitofp(parts.k, z.type), _constant(ROWS, math.log(2.0)))
        log = builder.fadd(whole, builder.fmul(s, series))
        return builder.fadd(given[0], builder.fmul(given[1], log))

    return sums(sums, weights, values), generate


@intrinsic
def sum_of(typing: Any, values: Any) -> Any:
    """Return the sum of all numbers, in order."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        each = [builder.extract_element(given[0], ir.Constant(_INDEX, row)) for row in range(ROWS)]
        return _sum_in_order(builder, each)

    return types.float64(values), generate
