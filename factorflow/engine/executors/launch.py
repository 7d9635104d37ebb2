"""From the ``executor`` argument to an executor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from warnings import warn

from factorflow.engine.executors.local import Executor, LocalExecutor
from factorflow.errors import InputError, UnusedWarning

if TYPE_CHECKING:
    from distributed import Client

    from factorflow.engine.executors.dask import DaskExecutor
    from factorflow.settings import TrialOptions

__all__ = ["open_executor", "shared_cluster"]

T = TypeVar("T", bound="TrialOptions")


def open_executor(
    executor: str | Client | Executor, workers: int | None = None, memory_limit: str | int | None = None
) -> Executor:
    """Return the executor a user asked for; Dask is imported only if it is needed.

    Raises
    ------
    InputError
        If there is no such executor, or no scheduler at the address.
    """
    if workers is not None and workers < 1:
        raise InputError("workers", workers, "at least 1", "Leave it out to use every core.")
    limit = _bytes(memory_limit)
    _check_used(executor, workers, memory_limit)
    if isinstance(executor, str) and executor in {"local", "threads"}:
        n_threads = 0 if executor == "local" else workers or _n_cores()
        return LocalExecutor(n_threads, limit)
    if isinstance(executor, str) and executor != "dask" and "://" not in executor:
        raise InputError(
            "executor",
            executor,
            "'local', 'threads', 'dask', an address such as tcp://host:8786, or a Client",
            "Choose one.",
        )
    if not isinstance(executor, str) and hasattr(executor, "cut"):
        return cast("Executor", executor)
    from factorflow.engine.executors.dask import DaskExecutor, connect, local_cluster

    if not isinstance(executor, str):
        return DaskExecutor(cast(Any, executor))
    if executor == "dask":
        client, owned = local_cluster(workers or _n_cores(), limit)
    else:
        client, owned = connect(executor)
    try:
        return DaskExecutor(client, owned)
    except BaseException:
        for thing in owned:
            thing.close()
        raise


@contextmanager
def shared_cluster(options: T) -> Iterator[T]:
    """Yield options for runs one after the other: on one cluster where each would start its own.

    Parameters
    ----------
    options : TrialOptions
        Of the runs.
    """
    if options.executor != "dask":
        yield options
        return
    executor = cast("DaskExecutor", open_executor(options.executor, options.workers, options.memory_limit))
    try:
        where = {"executor": executor.address, "workers": None, "memory_limit": None}
        yield options.model_copy(update=where)
    finally:
        executor.close()


def _check_used(executor: Any, workers: int | None, memory_limit: str | int | None) -> None:
    """Warn of options that do nothing with an executor."""
    started = isinstance(executor, str) and executor in {"threads", "dask"}
    if workers is not None and not started:
        where = f"executor='{executor}'" if isinstance(executor, str) else "a client of one's own"
        instead = " executor='threads' and executor='dask' start workers." if executor == "local" else ""
        warn(f"workers={workers} does nothing with {where}.{instead}", UnusedWarning, stacklevel=4)
    if memory_limit is not None and not (started or executor == "local"):
        what = "a running cluster: its workers have limits of their own"
        warn(f"memory_limit={memory_limit!r} does nothing with {what}.", UnusedWarning, stacklevel=4)


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bytes(limit: str | int | None) -> int | None:
    if limit is None:
        return None
    from dask.utils import parse_bytes

    try:
        n_bytes = int(parse_bytes(limit))
    except ValueError:
        n_bytes = 0
    if n_bytes <= 0:
        raise InputError("memory_limit", limit, "bytes, or text such as '4GB'", "Correct it.")
    return n_bytes
