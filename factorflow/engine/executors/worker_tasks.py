"""Tasks as they run on workers, and runs that start inside a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from dask.task_spec import Alias, List
from distributed import Future, get_worker, rejoin, secede

from factorflow.core.trees import align_arrays
from factorflow.engine.executors.environment import Environment, check_environment, one_thread
from factorflow.errors import InputError


def reference(value: Any) -> Any:
    """Return a value, or a list, as a graph has it: with the keys of futures in it."""
    if isinstance(value, Future):
        return Alias(value.key)
    return List(*map(reference, value)) if isinstance(value, list) else value


def call(expected: Environment, function: Callable[..., Any], *args: Any) -> Any:
    """Run a function, with one BLAS thread, on a worker whose environment is that of the run."""
    check_environment(expected)
    with one_thread():
        return function(*map(align_arrays, args))


def identity(value: Any) -> Any:
    """Return the value: a task whose result many others read."""
    return value


def refuse_coroutines() -> None:
    """Refuse a run in a coroutine on a worker, whose other tasks would have to wait for it."""
    try:
        get_worker()
        asyncio.get_running_loop()
    except (ValueError, RuntimeError):
        return
    expected = "a run that does not stop the event loop of its worker"
    raise InputError("executor", "in an asynchronous task", expected, "Use a task without async.")


def leave_pool(stack: ExitStack) -> None:
    """Leave the thread pool of a worker until the stack ends, in a task: its thread waits for other tasks."""
    with suppress(ValueError, KeyError):  # in no task, or `worker_client` has left it already
        secede()
        stack.callback(rejoin)
