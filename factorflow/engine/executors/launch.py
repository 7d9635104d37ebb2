"""Start an executor from the ``executor`` argument or the setting of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from warnings import warn

from factorflow.engine.executors.local import Executor, LocalExecutor, n_cores
from factorflow.errors import InputError, OptionText, UnusedWarning, thread_limit_errors
from factorflow.kernels import ahead
from factorflow.settings.clusters import ClusterSetting, bytes_of

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy.cluster import Cluster

    from factorflow.settings import TrialOptions

    ExecutorLike = str | Client | Cluster | Executor | ClusterSetting | Mapping[str, Any]
    """What may be given as ``executor``."""

T = TypeVar("T", bound="TrialOptions")


@thread_limit_errors()
def open_executor(
    executor: str | Client | Cluster | Executor | ClusterSetting,
    workers: int | None = None,
    memory_limit: str | int | None = None,
) -> Executor:
    """Return the executor that is requested; Dask is imported only if it is needed.

    Parameters
    ----------
    executor : str, Client, Cluster, Executor or ClusterSetting
        What is started for it is closed by ``close`` of the executor.
    workers : int, optional
        Threads or workers to start; workers that are going to be there at most, of a cluster that is running.
    memory_limit : str or int, optional
        Memory of this process, or of each worker that is started.

    Raises
    ------
    InputError
        If there is no such executor, no scheduler at the address, the cluster cannot be started, or Python
        runs without assertions.
    """
    if not __debug__:  # assertions of Zarr have effects that a result is written by
        expected = "Python with assertions: results could not be written"
        raise InputError("python", "-O", expected, "Leave out -O and PYTHONOPTIMIZE.")
    if workers is not None and workers < 1:
        raise InputError("workers", workers, "at least 1", "Leave it out to use every core.")
    memory = bytes_of("memory_limit", memory_limit)
    if executor == "local" and workers is not None:
        text = "{workers} does nothing in this process: {executor}, or 'dask', starts workers."
        warn(OptionText(text, workers=workers, executor="threads"), UnusedWarning, stacklevel=3)
    if executor not in ("local", "threads", "dask") and memory_limit is not None:
        text = "{memory_limit} does nothing with a running cluster, whose workers have theirs."
        warn(OptionText(text, memory_limit=memory_limit), UnusedWarning, stacklevel=3)
    if executor == "local":
        return LocalExecutor(0, memory)
    if executor == "threads":
        return LocalExecutor(workers or n_cores(), memory)
    if hasattr(executor, "cut"):
        return executor  # type: ignore[return-value]
    from factorflow.engine.executors import clusters
    from factorflow.engine.executors.worker_tasks import refuse_coroutines

    refuse_coroutines()
    if isinstance(executor, ClusterSetting):
        return clusters.open_cluster(executor)
    return clusters.open_running(executor, workers, memory)


def compile_ahead(executor: Any, model: object) -> None:
    """Start a process that compiles loops of a model, where this machine computes and has two cores."""
    from factorflow.models.configuration import ModelConfig

    options = model.model_dump() if isinstance(model, ModelConfig) else model
    if isinstance(options, Mapping) and n_cores() > 1 and executor in ("local", "threads", "dask"):
        ahead.start(options)


def executor_options(executor: Any) -> tuple[Any, dict[str, Any]]:
    """Return the user's client, cluster or executor, if any, and the options for it.

    Raises
    ------
    InputError
        If it is none, is asynchronous, or is closed.
    """
    if isinstance(executor, str):
        return None, {"executor": executor}
    if isinstance(executor, ClusterSetting | Mapping):
        return None, {"cluster": executor}
    if hasattr(executor, "cut"):  # one of this package's own
        return executor, {}
    is_cluster = hasattr(executor, "scheduler_address") and hasattr(executor, "close")
    if not is_cluster and not (hasattr(executor, "submit") and hasattr(executor, "status")):
        expected = (
            "local, threads, dask, the address of a scheduler, a mapping, a distributed.Client or a cluster"
        )
        what = executor if executor is None or isinstance(executor, int) else f"a {type(executor).__name__}"
        raise InputError("executor", what, expected, "See help(factorflow.fit).")
    what = "cluster" if is_cluster else "client"
    if getattr(executor, "asynchronous", False):
        remedy = "Give the address of its scheduler, or make one without it."
        raise InputError("executor", f"an asynchronous {what}", "one without asynchronous=True", remedy)
    status = getattr(executor.status, "name", executor.status)
    if status not in {"running", "connecting", "created"}:
        remedy = "Create it again: distributed.Client(address)."
        raise InputError("executor", f"a {what} that is {status}", "a connected client", remedy)
    address = executor.scheduler_address if is_cluster else executor.scheduler.address
    return executor, {"executor": str(address)}


@contextmanager
def shared_cluster(options: T, parallel: int = 1) -> Iterator[T]:
    """Yield options for runs on one cluster, where each would start its own.

    Raises
    ------
    InputError
        If several are to run at a time where they would have one process, or one port, to share.
    """
    if parallel > 1 and options.metrics is not None:
        remedy = "Leave metrics out, or let the runs follow one another."
        raise InputError("metrics", options.metrics, "none: a port serves one run at a time", remedy)
    if options.cluster is None and options.executor in {"local", "threads"}:
        if parallel > 1:
            remedy = "Give them a cluster: --executor dask, or --cluster."
            raise InputError("parallel", parallel, "1 in one process", remedy)
        yield options
        return
    nothing = {"executor": "local", "workers": None, "memory_limit": None}
    cluster, address = options.cluster, None if options.executor == "dask" else options.executor
    if cluster is None and address is not None:
        cluster = ClusterSetting(address=address, workers=options.workers)
    if cluster is not None and cluster.address is not None:
        shared = cluster.model_copy(update={"share": parallel})
        yield options.model_copy(update={**nothing, "cluster": shared})
        return
    from factorflow.engine.executors.clusters import shared_security

    executor: Any = open_executor(cluster or "dask", options.workers, options.memory_limit)
    try:
        with shared_security(executor.address, executor.security):
            n_workers = (options.workers if cluster is None else cluster.n_workers) or None
            shared = ClusterSetting(address=executor.address, workers=n_workers, share=parallel)
            yield options.model_copy(update={**nothing, "cluster": shared})
    finally:
        executor.close()
