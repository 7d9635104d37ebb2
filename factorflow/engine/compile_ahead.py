"""Workers compile the loops of a model while the client reads data, measures memory and places blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from factorflow.engine.executors.local import Executor
from factorflow.engine.memory import measure
from factorflow.errors import FactorflowError
from factorflow.kernels.ahead import Loop, loops_of
from factorflow.models.contract import Model


def compile_on_workers(executor: Executor, model: Model[Any, Any], options: Mapping[str, Any]) -> None:
    """Have workers compile what a fit needs, of families that name loops (`factorflow.kernels.ahead`).

    Parameters
    ----------
    options : mapping
        Of the model, as `loops_of` takes them.
    """
    _, loops = loops_of(options)
    if loops:
        executor.prepare(partial(compile_loops, model, loops))


def compile_loops(model: Model[Any, Any], loops: Sequence[Loop], number: int, n_beside: int) -> None:
    """Compile the loops of a model on a worker, that with this number of those of its machine.

    The trial that measures memory meets all that a fit needs, in the order in which it does. The first worker
    begins with it; others first compile what is named, each from another loop on, and find in the cache what
    the ones beside them have compiled meanwhile (`factorflow.kernels.shared_cache`).
    """
    if number:
        begin = (number - 1) * len(loops) // (n_beside - 1)
        for loop in [*loops[begin:], *loops[:begin]]:
            function, types = loop.compiled()
            function.compile(types)
    with suppress(FactorflowError):  # the client is told of it where it measures
        measure(model)
