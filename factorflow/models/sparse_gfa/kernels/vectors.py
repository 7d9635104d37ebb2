"""Compiling the loops of sparse group factor analysis for types that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from factorflow.kernels.vectors import compile_loop, compiled, exp, inlined, inner, log

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


@inlined
def log1p_small(e: Any) -> Any:
    """Return log(1 + e) for 0 <= e <= 1 with small relative error."""
    return e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - 0.25 * e))) if e < 1e-4 else log(1.0 + e)
