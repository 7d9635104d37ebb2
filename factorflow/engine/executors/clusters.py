"""Executors from the setting of a cluster: a class to start and close, or an address."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import dask
from distributed import Client, Security, SpecCluster, Status

from factorflow.core.extras import EXTRAS, install
from factorflow.engine.executors.dask import WAIT_SECONDS, DaskExecutor
from factorflow.engine.executors.local import n_cores
from factorflow.engine.executors.local_cluster import local_cluster
from factorflow.engine.executors.timeouts import within
from factorflow.errors import InputError
from factorflow.settings.clusters import EXAMPLE, ClusterSetting, check_address, seconds_of

CONNECT_SECONDS = 10
"""Time that a scheduler has to answer before its address counts as wrong."""

QUEUE_SECONDS = 3600.0
"""Time that the first worker of a cluster has to come that is asked for elsewhere."""

ADAPTIVE = {"target_duration": "50ms", "wait_count": 60}
"""Defaults of the settings of `adapt`.

Work of 50 ms of one thread is enough to ask for one more worker: Dask's own 5 s are for computations whose
tasks are all there from the start, and those of a run come round by round. A worker must be one too many for
60 s until it is given back: between rounds every worker is idle for a moment.
"""

SHARE = "factorflow.share"
"""Setting of Dask's configuration: runs that work on a cluster that is running at the same time."""

_securities: dict[str, Security] = {}


@contextmanager
def shared_security(address: str, security: Security) -> Iterator[None]:
    """Share the security settings of clusters of this process, by address."""
    _securities[address] = security
    try:
        yield
    finally:
        del _securities[address]


def open_cluster(setting: ClusterSetting) -> DaskExecutor:
    """Start, or connect to, a cluster.

    Raises
    ------
    InputError
        If a package is missing, a queue refuses the jobs, nothing answers, or no worker comes.
    """
    if setting.address is not None:
        client, wait = connect(setting.address), WAIT_SECONDS
        owned: tuple[Any, ...] = (client,)
    else:
        cluster, wait = _start(setting, str(setting.class_name)), QUEUE_SECONDS
        with ExitStack() as stack:
            stack.callback(cluster.close)
            if adapt := _bounds(setting, cluster):
                _adapt(cluster, {**adapt, "minimum": max(1, adapt.get("minimum", 1))})
            client = Client(cluster, set_as_default=False)
            stack.pop_all()
        owned = (client, cluster)
    if setting.wait is not None:
        wait = seconds_of("wait", setting.wait)
    share = setting.share * _n_runs(setting.address)
    return _closing(client, owned, workers=setting.n_workers, wait_seconds=wait, share=share)


def open_running(executor: Any, workers: int | None, memory: int | None) -> DaskExecutor:
    """Return the executor of a local cluster (``dask``), of an address, a client or a cluster object."""
    if executor == "dask":
        return _closing(*local_cluster(workers or n_cores(), memory))
    if isinstance(executor, str):
        client = connect(executor)
        return _closing(client, (client,), workers=workers or 0, share=_n_runs(executor))
    if isinstance(executor, Client):
        return DaskExecutor(executor, workers=workers or 0)
    client = Client(executor, set_as_default=False)
    return _closing(client, (client,), workers=workers or 0)


def _n_runs(address: str | None) -> int:
    """Return the runs that share the memory of a cluster somebody else started: each plans with a part."""
    if address is None or address in _securities:  # of this process's own
        return 1
    n_runs = dask.config.get(SHARE, 1)
    if not isinstance(n_runs, int) or isinstance(n_runs, bool) or n_runs < 1:
        raise InputError("DASK_FACTORFLOW__SHARE", n_runs, "an integer >= 1", "Correct it, or unset it.")
    return n_runs


def _closing(client: Client, owned: tuple[Any, ...], **options: Any) -> DaskExecutor:
    """Return an executor that closes its own client and cluster, also if it fails to start."""
    with ExitStack() as stack:
        for part in reversed(owned):
            stack.callback(part.close)
        executor = DaskExecutor(client, owned, **options)
        stack.pop_all()
    return executor


def connect(address: str) -> Client:
    """Connect to a scheduler."""
    check_address(address)
    security = _securities.get(address)
    options = {"timeout": CONNECT_SECONDS, "security": security, "set_as_default": False}
    try:
        return within(CONNECT_SECONDS + 5, lambda: Client(address, **options))
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        expected = f"the address of a running Dask scheduler ({type(error).__name__}: {error})"
        remedy = "Start one with `dask scheduler`, check host and port, or use {executor}."
        if address.startswith("tls://"):
            remedy += " Certificates are those of distributed.comm.tls in Dask's configuration."
        raise InputError("executor", address, expected, remedy, executor="dask") from error


def _start(setting: ClusterSetting, path: str) -> Any:
    """Return a cluster of a class; the error has what is missing, or what the class says."""
    try:
        cluster = _class_at(path)(**setting.kwargs)
    except InputError:
        raise
    except Exception as error:  # each package raises types of its own
        reason = f"{error}" if error.__cause__ is None else f"{error} {error.__cause__}"
        expected = f"a cluster that can be started ({type(error).__name__}: {reason})"
        remedy = "Correct its kwargs, or what it needs on this machine."
        raise InputError("cluster", path, expected, remedy) from error
    if not all(hasattr(cluster, name) for name in ("scheduler_address", "adapt", "close")):
        expected = "a class of Dask clusters (distributed.deploy.Cluster)"
        raise InputError("class", path, expected, f"Correct it: {EXAMPLE}.")
    return cluster


def _class_at(path: str) -> Any:
    """Return a class by its import path.

    dask-jobqueue replaces the handler of Ctrl-C when it is imported: the one of before is put back.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if main else None
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        package = module.partition(".")[0]
        remedy = install(package) if package in EXTRAS else f"Install the package of {package}."
        expected = f"an installed package ({type(error).__name__}: {error})"
        raise InputError("class", path, expected, remedy) from error
    except (AttributeError, ValueError) as error:
        if "main thread" in str(error) and not main:
            expected = f"a package that can be imported in this thread ({error})"
            remedy = f"Import it in the main thread, at the top of the program: import {module}."
            raise InputError("class", path, expected, remedy) from error
        expected = f"package.module.Class ({error})"
        raise InputError("class", path, expected, f"Correct it: {EXAMPLE}.") from error
    finally:
        if main and callable(handler):
            signal.signal(signal.SIGINT, handler)


def _bounds(setting: ClusterSetting, cluster: Any) -> dict[str, Any] | None:
    """Return how far a cluster adapts; where its kwargs ask for no workers those of the setting are kept.

    A setting that asks for none is refused: none would come.
    """
    if setting.adapt or not isinstance(cluster, SpecCluster) or cluster.worker_spec:
        return setting.adapt
    if setting.workers is None:
        expected, remedy = "a number of workers", "Add adapt: {minimum: 2, maximum: 16}, or workers: 4."
        raise InputError("cluster", f"{setting.class_name} without workers", expected, remedy)
    return {"minimum": setting.workers, "maximum": setting.workers}


def _adapt(cluster: Any, bounds: dict[str, Any]) -> None:
    """Ask for the first worker, then let the cluster follow the work within bounds.

    The error of a queue that refuses the jobs has what it says.
    """
    if isinstance(cluster, SpecCluster):

        async def submit() -> None:
            if not cluster.worker_spec:
                cluster.worker_spec.update(cluster.new_worker_spec())
            await cluster  # whose `scale` would not tell what the queue says

        try:
            cluster.sync(submit)
        except Exception as error:
            for job in cluster.workers.values():
                if job.status is Status.created:  # else it cannot be closed
                    job.status = Status.failed
            name, reason = type(cluster).__name__, " ".join(str(error).split())
            expected = f"jobs that the queue takes ({reason})"
            raise InputError("cluster", name, expected, "Correct its kwargs, or wait for room.") from error
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cluster.adapt).parameters.values()):
        bounds = {**ADAPTIVE, **bounds}  # an operator adapts by rules of its own, and takes the bounds alone
    cluster.adapt(**bounds)
