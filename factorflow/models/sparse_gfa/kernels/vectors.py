"""Compiling the loops of sparse group factor analysis for types that are known, and its scalar functions.

`vectorised` puts the exponential and the logarithm of `factorflow.kernels.vectors` into the scalar functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import types

from factorflow.kernels.compile import is_scalar, twin
from factorflow.kernels.vectors import compile_loop, compiled, exp, inlined, inner, log
from factorflow.models.sparse_gfa.kernels import entry_bounds as bounds

__all__ = [
    "GIVEN_1",
    "GIVEN_2",
    "WRITTEN_1",
    "WRITTEN_2",
    "WRITTEN_SINGLE_2",
    "compiled",
    "compiled_for",
    "exp",
    "inlined",
    "inner",
    "log",
    "log1p_small",
    "vectorised",
]

GIVEN_1, GIVEN_2 = (types.Array(types.float64, n, "C", readonly=True) for n in (1, 2))
"""Types of arguments that are read: contiguous double precision, of one or two dimensions."""
WRITTEN_1, WRITTEN_2 = (types.Array(types.float64, n, "C") for n in (1, 2))
WRITTEN_SINGLE_2 = types.Array(types.float32, 2, "C")
"""Types of arguments that are written."""


def compiled_for(*signatures: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Any]:
    """Compile a loop for these types of arguments alone, at once: nothing is left for its first call."""

    def compile_now(function: Callable[..., Any]) -> Any:
        dispatcher = compile_loop(function)
        for arguments in signatures:
            dispatcher.compile(types.void(*arguments))
        dispatcher.disable_compile()
        return dispatcher

    return compile_now


@cache
def vectorised(function: Callable[..., Any]) -> Any:
    """Compile a plain scalar function, with what it calls, to be copied into loops; with `exp` and `log`."""

    def stand_in(value: Any) -> Any:
        if value is math.exp:
            return exp
        if value is math.log:
            return log
        return vectorised(value) if is_scalar(value) else value

    return inlined(twin(function, stand_in))


log1p_small = vectorised(bounds.log1p_small)
