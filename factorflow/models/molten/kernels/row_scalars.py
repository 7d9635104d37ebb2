"""One number for each of `ROWS` rows of a table, as a vector: load, store, divide, add logarithms, sum.

Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types

from factorflow.models.molten.kernels.lanes import (
    INDEX,
    ROW_SCALARS,
    ROWS,
    broadcast,
    constant,
    intrinsic,
    load_vector,
    sum_in_order,
    vector_type,
)

_WORD = ir.IntType(64)
_LOG = (
    0.14616585424888623, 0.15331710618210773, 0.18182889455674947, 0.22222211130259878, 0.2857142862600327,
    0.39999999999899444, 0.666666666666667, 2.0,
)  # fmt: skip
"""Of log x / s in s^2, s = (x - 1) / (x + 1), x from sqrt(1/2) to sqrt(2): at Chebyshev's nodes, to 2e-18."""
_SQRT_HALF = 0x3FE6A09E667F3BCD


@intrinsic
def zeros(typing: Any) -> Any:
    """Return zeros."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return constant(ROWS, 0.0)

    return ROW_SCALARS(), generate


@intrinsic
def load_first(typing: Any, array: Any, start: Any, count: Any) -> Any:
    """Return `ROWS` numbers of a contiguous array, as doubles, of which those from ``count`` on are 0.

    They are read all the same: `ROWS` more have to be there.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = load_vector(builder, _pointer(context, builder, signature, args))
        number = ir.Constant(ir.VectorType(_WORD, ROWS), [*range(ROWS)])
        there = builder.icmp_signed("<", number, broadcast(builder, args[2], ROWS))
        return builder.select(there, values, constant(ROWS, 0.0))

    return ROW_SCALARS(array, types.intp, types.intp), generate


@intrinsic
def store_scalars(typing: Any, array: Any, start: Any, values: Any) -> Any:
    """Write them into one of double precision."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, signature, args), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, values), generate


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    vector = vector_type(ROWS, signature.args[0].dtype == types.float32)
    return builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer())


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
        self.m_plus_one = builder.fadd(self.m, constant(ROWS, 1.0))
        self.inverse = builder.fdiv(constant(ROWS, 1.0), builder.fmul(self.m, self.m_plus_one))


@intrinsic
def divide(typing: Any, left: Any, right: Any) -> Any:
    """Return left / right, row by row, within two units of the last place; ``right`` is 1e-290 to 1e290."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = _Parts(builder, args[1])
        inverse = builder.bitcast(builder.fmul(parts.inverse, parts.m_plus_one), parts.k.type)
        return builder.fmul(args[0], builder.bitcast(builder.sub(inverse, parts.exponent), args[0].type))

    return left(left, right), generate


@intrinsic
def add_weighted_logs(typing: Any, sums: Any, weights: Any, values: Any) -> Any:
    """Return sums + weights log values, row by row; the logarithm's absolute error is below 1e-15."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = _Parts(builder, args[2])
        s = builder.fmul(builder.fsub(parts.m, constant(ROWS, 1.0)), builder.fmul(parts.inverse, parts.m))
        z, series = builder.fmul(s, s), constant(ROWS, _LOG[0])
        for coefficient in _LOG[1:]:
            series = builder.fadd(builder.fmul(series, z), constant(ROWS, coefficient))
        whole = builder.fmul(builder.sitofp(parts.k, z.type), constant(ROWS, math.log(2.0)))
        log = builder.fadd(whole, builder.fmul(s, series))
        return builder.fadd(args[0], builder.fmul(args[1], log))

    return sums(sums, weights, values), generate


@intrinsic
def sum_scalars(typing: Any, values: Any) -> Any:
    """Return the sum of all numbers, in order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        each = [builder.extract_element(args[0], ir.Constant(INDEX, row)) for row in range(ROWS)]
        return sum_in_order(builder, each)

    return types.float64(values), generate
