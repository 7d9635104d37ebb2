"""From the ``executor`` argument, or a cluster's setting, to an executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from warnings import warn

from factorflow.engine.executors.local import Executor, LocalExecutor
from factorflow.errors import InputError, UnusedWarning
from factorflow.settings.clusters import (
    Address,
    AnyCluster,
    Setting,
    ThisProcess,
    Threads,
    bytes_of,
    cluster_of,
    n_cores,
)

if TYPE_CHECKING:
    from distributed import Client

    from factorflow.engine.executors.dask import DaskExecutor
    from factorflow.settings import TrialOptions

    Place = str | Client | Executor | AnyCluster | Mapping[str, Any]
    """What may be given as ``executor``."""

__all__ = ["open_executor", "shared_cluster"]

T = TypeVar("T", bound="TrialOptions")


def open_executor(
    executor: str | Client | Executor | Setting,
    workers: int | None = None,
    memory_limit: str | int | None = None,
) -> Executor:
    """Return the executor a user asked for; Dask is imported only if it is needed.

    Parameters
    ----------
    executor : str, Client, Executor or Setting
        The short form of a setting (with ``workers`` and ``memory_limit``), a setting, or what there is
        already. What is started is closed by ``close`` of the executor.

    Raises
    ------
    InputError
        If there is no such executor, no scheduler at the address, or the cluster cannot be started.
    """
    setting = cluster_of(executor, workers, memory_limit) if isinstance(executor, str) else executor
    if not isinstance(setting, Setting):
        bytes_of("memory_limit", memory_limit)
    _check_used(executor, workers, memory_limit)
    if isinstance(setting, ThisProcess):
        return LocalExecutor(0, bytes_of("memory", setting.memory))
    if isinstance(setting, Threads):
        return LocalExecutor(setting.workers or n_cores(), bytes_of("memory", setting.memory))
    if isinstance(setting, Setting):
        from factorflow.engine.executors.clusters import open_cluster

        return open_cluster(cast(AnyCluster, setting))
    if hasattr(setting, "cut"):
        return cast(Executor, setting)
    from factorflow.engine.executors.dask import DaskExecutor

    return DaskExecutor(cast(Any, setting))


@contextmanager
def shared_cluster(options: T, parallel: int = 1) -> Iterator[T]:
    """Yield options for runs on one cluster, where each would start its own.

    Parameters
    ----------
    options : TrialOptions
        Of the runs.
    parallel : int
        Runs at the same time.

    Raises
    ------
    InputError
        If several are to run at a time where they would have one process, or one port, to share.
    """
    setting = options.cluster or cluster_of(options.executor, options.workers, options.memory_limit)
    if parallel > 1 and options.metrics is not None:
        remedy = "Leave metrics out, or let the runs follow one another."
        raise InputError("metrics", options.metrics, "none: a port serves one run at a time", remedy)
    if setting.kind in {"local", "threads"}:
        if parallel > 1:
            remedy = "Give them a cluster: --executor dask, or --cluster."
            raise InputError("parallel", parallel, "1 in one process", remedy)
        yield options
        return
    if isinstance(setting, Address):
        mine = setting.model_copy(update={"share": parallel})
        where: dict[str, Any] = {"executor": "local", "workers": None, "memory_limit": None, "cluster": mine}
        yield options if setting == mine else type(options)(**(options.model_dump() | where))
        return
    from factorflow.engine.executors.clusters import known

    executor = cast("DaskExecutor", open_executor(setting))
    try:
        workers = getattr(setting, "workers", None)
        with known(executor.address, executor.security):
            there = {
                "kind": "address",
                "address": executor.address,
                "workers": workers,
                "share": parallel,
            }
            where = {"executor": "local", "workers": None, "memory_limit": None, "cluster": there}
            yield type(options)(**(options.model_dump() | where))
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
