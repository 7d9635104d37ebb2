"""The executor protocol, and the local executor, serial or threaded: the default and the reference."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from factorflow.engine.executors.assignment import cut_aligned
from factorflow.engine.executors.environment import one_thread
from factorflow.errors import InputError

CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory.high",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
)
"""Where Linux says how much memory a container may use, by version of control groups: bytes, or "max"."""

CACHE_SHARE = 0.75
"""Share of a memory limit that blocks may take at most: what a run needs beside them is an estimate. Where no
limit is given they take half of the memory that is free."""

Function = Callable[..., Any]
Handle = Any
"""Result of `Executor.submit`: a handle of a value that may not be there yet."""


class StalledError(Exception):
    """The run has stalled and can continue from its last checkpoint."""


class Executor(Protocol):
    """Runs tasks. Results do not depend on the executor, bit for bit."""

    look_ahead: int
    """Rounds submitted before the record of the first of them is read."""
    rounds_at_once: int
    """Short rounds that are submitted, and whose records are read, at once: at most so many."""
    joins_groups: bool
    """Whether groups cost messages: where rounds are short, one group of all blocks may take less time."""
    n_feature_tasks: int | None
    """Tasks that wide statistics are shared among; 0: the root updates the features; None: by their size."""
    n_root_threads: int
    """Threads that it may use for that: cores of its machine that are idle meanwhile."""
    dashboard: str | None
    loses_results: bool
    """Whether what a handle stands for can be lost, and is computed again from what led to it."""
    cache_bytes: int
    """Memory one process may spend on keeping blocks."""
    memory_bytes: int
    """Memory one task may use in all."""
    memory_note: str
    """Which part of its limit that is, in brackets; empty: all of it."""

    def cut(self, n_blocks: int) -> list[range]:
        """Return the groups: runs of blocks, one a worker."""
        ...

    def constant(self, value: Any) -> Handle:
        """Return a handle of a value that many tasks read."""
        ...

    def submit(
        self, name: str, function: Function, *args: Any, group: int | None = None, urgent: bool = False
    ) -> Handle:
        """Run a function; arguments may be handles, or lists of them.

        ``group`` says where, if it can be; ``urgent``: before all else that could run there.
        """
        ...

    def together(self) -> AbstractContextManager[None]:
        """Submit tasks together at the end, or none after an error (a context manager)."""
        ...

    def result(self, handle: Handle) -> Any:
        """Wait for a result, or for each of a list of them."""
        ...

    def restart(self) -> None:
        """Forget all that was submitted (after `StalledError`)."""
        ...

    def prepare(self, function: Callable[[int, int], None]) -> None:
        """Have each worker call a function while the run is prepared; nothing waits for it.

        It is given the number of the worker among those of its machine, and of how many.
        """
        ...

    def check_paths(self, *paths: str) -> None:
        """Refuse workers that do not see a path of this machine."""
        ...

    def close(self) -> None:
        """Close what the executor started."""
        ...


class LocalExecutor:
    """Runs tasks in this process: one after the other, or in a pool of threads.

    Parameters
    ----------
    n_threads : int
        0: serial.
    """

    dashboard: str | None = None
    loses_results = False
    rounds_at_once = 1
    joins_groups = False
    n_feature_tasks: int | None = 0
    memory_note = ""

    def __init__(self, n_threads: int = 0, memory_bytes: int | None = None) -> None:
        if n_threads < 0:
            remedy = "Leave it out to use every core."
            raise InputError("workers", n_threads, "a number of threads >= 1", remedy)
        self._stack = ExitStack()
        self._stack.enter_context(one_thread())  # 2 BLAS threads give other bits than 1
        self._pool = ThreadPoolExecutor(n_threads, "factorflow") if n_threads else None
        self._n_groups = self.n_root_threads = max(1, n_threads)
        self.look_ahead = 1 if n_threads else 0
        self.memory_bytes = (memory_bytes or available_memory()) // self._n_groups
        self.cache_bytes = int(CACHE_SHARE * memory_bytes) if memory_bytes else available_memory() // 2

    def cut(self, n_blocks: int) -> list[range]:
        """Return one run of blocks for each thread."""
        return cut_aligned(n_blocks, self._n_groups)

    def constant(self, value: Any) -> Handle:
        """Return the value."""
        return value

    def submit(
        self, name: str, function: Function, *args: Any, group: int | None = None, urgent: bool = False
    ) -> Handle:
        """Run the function now, or in the pool once its arguments are there.

        Tasks are submitted after those they wait for, and the pool is first in, first out: a waiting task
        can only wait for running ones.
        """
        if self._pool is None:
            return function(*args)
        return self._pool.submit(_call, function, args)

    def together(self) -> AbstractContextManager[None]:
        """Do nothing: tasks run in this process."""
        return nullcontext()

    def result(self, handle: Handle) -> Any:
        """Return the result, or a list of them."""
        return _resolve(handle)

    def restart(self) -> None:
        """Do nothing: a local run does not stall."""

    def prepare(self, function: Callable[[int, int], None]) -> None:
        """Do nothing: this process prepares the run."""

    def check_paths(self, *paths: str) -> None:
        """Do nothing: paths are those of this process."""

    def close(self) -> None:
        """Stop the threads and give BLAS its own back."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._stack.close()


def n_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Return the memory this process may use, in bytes: the machine's, or its control group's limit.

    As `distributed.system` does, which takes a quarter of a second to import.
    """
    import psutil

    limits = [int(psutil.virtual_memory().total)]
    for file in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            limits.append(int(Path(file).read_text(encoding="ascii")))
    return min(limit for limit in limits if limit > 0)


def _resolve(value: Any) -> Any:
    if isinstance(value, Future):
        return value.result()
    if isinstance(value, list):
        return [_resolve(item) for item in value]
    return value


def _call(function: Function, args: tuple[Any, ...]) -> Any:
    return function(*map(_resolve, args))
