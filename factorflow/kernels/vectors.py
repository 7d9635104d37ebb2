"""Loops that the compiler turns into vector instructions, and functions of one number that allow it to.

The library's exponential and logarithm are calls, which keep a loop from becoming vector instructions; `exp`
and `log` are a few multiplications each. Arithmetic is double precision whatever the type of the data.

Machine code is cached on disk; as in `factorflow.kernels.compile`, the stamp covers all sources of kernels.
Importing this module imports numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from factorflow.kernels.compile import INNER, jit

Array = Any
_FAST = {"contract", "reassoc", "nsz"}


def compile_loop(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a loop that releases the interpreter lock; its sums may be reordered into vectors.

    Options are those of `numba.njit`.
    """
    chosen = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": _FAST, **options}
    return jit(function, **chosen)


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function into the loops that call it (`factorflow.kernels.compile.INNER`)."""
    return compile_loop(function, **INNER)


def compile_inline(function: Callable[..., Any]) -> Any:
    """Compile a function that is copied into the loops that call it."""
    return compile_loop(function, inline="always")


@intrinsic
def _float_of_bits(context: Any, x: Any) -> Any:
    def generate(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], codegen.get_value_type(types.float64))

    return types.float64(types.int64), generate


@intrinsic
def _bits_of_float(context: Any, x: Any) -> Any:
    def generate(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], codegen.get_value_type(types.int64))

    return types.int64(types.float64), generate


_as_float: Any = _float_of_bits
_as_bits: Any = _bits_of_float
_C = tuple(1.0 / math.factorial(i) for i in range(13))
_SQRT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)


@compile_inline
def exp(x: Array) -> Array:
    """Return e^x for |x| < 700: range reduction and a polynomial, relative error 2e-15, vectorises."""
    n = math.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10
    p = ((((_C[12] * r + _C[11]) * r + _C[10]) * r + _C[9]) * r + _C[8]) * r + _C[7]
    p = (((((((p * r + _C[6]) * r + _C[5]) * r + _C[4]) * r + _C[3]) * r + 0.5) * r) + 1.0) * r + 1.0
    return p * _as_float((np.int64(n) + 1023) << 52)


@compile_inline
def log(x: Array) -> Array:
    """Return log x of a positive normal number: absolute error 2e-15, vectorises."""
    bits = _as_bits(x)
    k = (bits - _SQRT_HALF_BITS) >> 52
    m = _as_float(bits - (k << 52))
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = (((1.0 / 21.0 * z + 1.0 / 19.0) * z + 1.0 / 17.0) * z + 1.0 / 15.0) * z + 1.0 / 13.0
    p = ((((p * z + 1.0 / 11.0) * z + 1.0 / 9.0) * z + 1.0 / 7.0) * z + 1.0 / 5.0) * z + 1.0 / 3.0
    return np.float64(k) * 6.93147180559945309417e-01 + 2.0 * s * (p * z + 1.0)
