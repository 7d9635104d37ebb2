"""Rows of a table as vectors of a length that is known when a loop is compiled.

A table of components is (D, W): C-contiguous, W a multiple of `PART`, of double precision; one that is only
looked up may be of single precision. `load` takes one of its rows into vector registers, as doubles, `add_to`
adds such a vector to a row, and what lies between is done lane by lane in order: no loop over components is
left for a compiler to vectorise or not. What is one number a row (its total, what it is divided by) is done
for `ROWS` rows at once (`row_scalars`). The length travels as a tuple, ``lanes = (0,) * W``, of which only
the length counts. Vectors are written down in full, and cut by the compiler into what a machine has: bits do
not depend on that. Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import models, register_model

from factorflow.kernels.compile import jit

Array = Any
PART = 4
"""Rows of tables are padded to a multiple of so many numbers."""

ROWS = 8
"""Rows of which one number each is worked on together."""

INDEX = ir.IntType(32)


def vector_type(size: int, single: bool = False) -> Any:
    """Return the LLVM type of a vector of so many numbers."""
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
        return vector_type(self.part)


class Vector(types.Type):
    """Type of one vector: of `PART` numbers of a row, or of a number of each of `ROWS` rows."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(name=f"Vector({size})")


_FOLDED, ROW_SCALARS = Vector(PART), Vector(ROWS)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, vector_type(kind.size))  # type: ignore[no-untyped-call]


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, ir.ArrayType(kind.vector, kind.n_parts))  # type: ignore[no-untyped-call]


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function that writes instructions known to compiled code."""
    return extending.intrinsic(function)


def compile_ordered(function: Callable[..., Any]) -> Any:
    """Compile a loop that releases the interpreter lock; its sums keep the order in which they are written.

    Machine code is cached on disk; as in `factorflow.kernels.compile`, the stamp covers all sources.
    """
    return jit(function, cache=True, nogil=True, error_model="numpy", fastmath={"contract"})


def _row_pointers(
    context: Any, builder: Any, kind: Any, array: Any, row: Any, lanes: Lanes, part: int
) -> list[Any]:
    """Return where the vectors of a row are, of ``part`` numbers of the table's type."""
    first = builder.gep(
        context.make_array(kind)(context, builder, array).data,
        [builder.mul(row, ir.Constant(row.type, lanes.size))],
    )
    starts = [builder.gep(first, [ir.Constant(INDEX, at)]) for at in range(0, lanes.size, part)]
    vector = vector_type(part, kind.dtype == types.float32)
    return [builder.bitcast(start, vector.as_pointer()) for start in starts]


def load_vector(builder: Any, place: Any) -> Any:
    """Return a vector at a place, as doubles."""
    vector = place.type.pointee
    if vector.element == ir.DoubleType():
        return builder.load(place, align=8)
    return builder.fpext(builder.load(place, align=4), vector_type(vector.count))


def _map_parts(builder: Any, kind: Lanes, make: Callable[[int], Any]) -> Any:
    """Return lanes made vector by vector."""
    out = ir.Constant(ir.ArrayType(kind.vector, kind.n_parts), ir.Undefined)
    for part in range(kind.n_parts):
        out = builder.insert_value(out, make(part), part)
    return out


def broadcast(builder: Any, number: Any, size: int) -> Any:
    """Return a vector of one number."""
    nothing = ir.Constant(ir.VectorType(number.type, size), ir.Undefined)
    one = builder.insert_element(nothing, number, ir.Constant(INDEX, 0))
    return builder.shuffle_vector(one, nothing, _mask([0] * size))


def _scale(builder: Any, kind: Lanes, row: Any, factor: Any) -> Any:
    """Return a row times a number."""
    repeated = broadcast(builder, factor, kind.part)
    return _map_parts(builder, kind, lambda part: builder.fmul(builder.extract_value(row, part), repeated))


def constant(size: int, number: float) -> Any:
    """Return a vector of one constant."""
    return ir.Constant(vector_type(size), [number] * size)


@intrinsic
def load(typing: Any, table: Any, row: Any, lanes: Any) -> Any:
    """Return a row of a table (D, W); ``lanes`` is (0,) * W."""
    kind = Lanes(lanes.count)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = _row_pointers(context, builder, signature.args[0], args[0], args[1], kind, kind.part)
        return _map_parts(builder, kind, lambda part: load_vector(builder, places[part]))

    return kind(table, types.intp, lanes), generate


@intrinsic
def load_number(typing: Any, array: Any, place: Any) -> Any:
    """Return a number of a contiguous array; no place counts from the end, which takes an indexing longer."""
    whole = isinstance(array.dtype, types.Integer)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        number = builder.load(builder.gep(data, [args[1]]))
        if whole:
            wide = context.get_value_type(types.intp)
            extend = builder.sext if array.dtype.signed else builder.zext
            return number if number.type == wide else extend(number, wide)
        return number if array.dtype == types.float64 else builder.fpext(number, ir.DoubleType())

    return (types.intp if whole else types.float64)(array, types.intp), generate


@intrinsic
def store(typing: Any, table: Any, row: Any, values: Any) -> Any:
    """Write lanes into a row of a table."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for part, place in enumerate(
            _row_pointers(context, builder, signature.args[0], args[0], args[1], values, values.part)
        ):
            builder.store(builder.extract_value(args[2], part), place, align=8)
        return context.get_dummy_value()

    return types.void(table, types.intp, values), generate


@intrinsic
def add_to(typing: Any, table: Any, row: Any, values: Any) -> Any:
    """Add lanes to a row of a table."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for part, place in enumerate(
            _row_pointers(context, builder, signature.args[0], args[0], args[1], values, values.part)
        ):
            total = builder.fadd(builder.load(place, align=8), builder.extract_value(args[2], part))
            builder.store(total, place, align=8)
        return context.get_dummy_value()

    return types.void(table, types.intp, values), generate


def _lane_by_lane(left: Any, right: Any, instruction: str) -> Any:
    """Return signature and generator of an instruction on two rows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        apply = getattr(builder, instruction)
        parts = [[builder.extract_value(each, part) for each in args] for part in range(left.n_parts)]
        return _map_parts(builder, left, lambda part: apply(*parts[part]))

    return left(left, right), generate


@intrinsic
def multiply(typing: Any, left: Any, right: Any) -> Any:
    """Return the products, lane by lane."""
    return _lane_by_lane(left, right, "fmul")


@intrinsic
def add(typing: Any, left: Any, right: Any) -> Any:
    """Return the sums, lane by lane."""
    return _lane_by_lane(left, right, "fadd")


@intrinsic
def scale(typing: Any, values: Any, factor: Any) -> Any:
    """Return lanes times one number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _scale(builder, values, args[0], args[1])

    return values(values, types.float64), generate


@intrinsic
def multiply_by_row(typing: Any, values: Any, weight: Any, n: Any) -> Any:
    """Return lanes times the weight of row n; unchanged where all rows have one weight, a number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(signature.args[1], types.Float):
            return args[0]
        data = context.make_array(signature.args[1])(context, builder, args[1]).data
        return _scale(builder, values, args[0], builder.load(builder.gep(data, [args[2]])))

    return values(values, weight, types.intp), generate


@intrinsic
def multiply_by_shared(typing: Any, values: Any, weight: Any) -> Any:
    """Return lanes times the one weight of all rows; unchanged where each has its own."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not isinstance(signature.args[1], types.Float):
            return args[0]
        return _scale(builder, values, args[0], args[1])

    return values(values, weight), generate


def _fold(builder: Any, kind: Lanes, row: Any) -> Any:
    """Return the sum of the quarters of a row, `PART` numbers each, in order."""
    return sum_in_order(builder, _split_parts(builder, kind, row))


def sum_in_order(builder: Any, vectors: list[Any]) -> Any:
    """Return the sum of vectors, from the first to the last."""
    out = vectors[0]
    for vector in vectors[1:]:
        out = builder.fadd(out, vector)
    return out


def _split_parts(builder: Any, kind: Lanes, row: Any) -> list[Any]:
    """Return a row in vectors of `PART`."""
    vectors = [builder.extract_value(row, part) for part in range(kind.n_parts)]
    starts = range(0, kind.part, PART)
    return [
        builder.shuffle_vector(vector, vector, _mask([*range(start, start + PART)]))
        for vector in vectors
        for start in starts
    ]


def _mask(lanes: list[int]) -> Any:
    return ir.Constant(ir.VectorType(INDEX, len(lanes)), lanes)


@intrinsic
def sum_lanes(typing: Any, values: Any) -> Any:
    """Return the sum of all lanes: vectors in order, then their lanes in pairs."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _fold(builder, values, args[0])
        a, b, c, d = (builder.extract_element(vector, ir.Constant(INDEX, lane)) for lane in range(PART))
        return builder.fadd(builder.fadd(a, b), builder.fadd(c, d))

    return types.float64(values), generate


@intrinsic
def fold(typing: Any, values: Any) -> Any:
    """Return what `sum_lanes` begins with: the sum of the vectors of a row."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fold(builder, values, args[0])

    return _FOLDED(values), generate


@intrinsic
def load_products(typing: Any, values: Any, table: Any, row: Any) -> Any:
    """Return ``fold(multiply(values, load(table, row, lanes)))``, products added as they are made."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = _row_pointers(context, builder, signature.args[1], args[1], args[2], values, PART)
        left = _split_parts(builder, values, args[0])
        right = [load_vector(builder, place) for place in places]
        return sum_in_order(builder, [*map(builder.fmul, left, right)])

    return _FOLDED(values, table, types.intp), generate


@intrinsic
def sum_rows(typing: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Return the sums of the lanes of `ROWS` folded rows (`fold`), each in the order of `sum_lanes`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def of_four(first: int) -> Any:
            # a + b and c + d of two rows in turn, then of four; the left operand needs no exchange of lanes
            a, b, c, d = args[first : first + PART]
            left, right = (in_pairs(x, y, [0, 5, 2, 7], [1, 4, 3, 6]) for x, y in ((a, b), (c, d)))
            return in_pairs(left, right, [0, 1, 6, 7], [2, 3, 4, 5])

        def in_pairs(left: Any, right: Any, even: list[int], odd: list[int]) -> Any:
            return builder.fadd(*(builder.shuffle_vector(left, right, _mask(lanes)) for lanes in (even, odd)))

        return builder.shuffle_vector(of_four(0), of_four(PART), _mask([*range(ROWS)]))

    return ROW_SCALARS(a, b, c, d, e, f, g, h), generate
