"""From a cluster's setting to a Dask cluster that runs, and is closed with the executor."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, cast

from distributed import Client, Security

from factorflow.engine.executors.asking import check_answers
from factorflow.engine.executors.dask import WAIT_SECONDS, DaskExecutor
from factorflow.engine.executors.environment import ONE_THREAD
from factorflow.engine.executors.keeping import Keeper
from factorflow.engine.executors.own import dashboard_address, local_cluster
from factorflow.engine.executors.tls import check_peer, security_of
from factorflow.errors import InputError
from factorflow.settings.clusters import (
    Address,
    AnyCluster,
    BatchCluster,
    Bounds,
    Custom,
    GPUs,
    Kubernetes,
    Processes,
    bytes_of,
    n_cores,
    seconds_of,
)

__all__ = ["kubernetes_spec", "known", "open_cluster"]

CONNECT_SECONDS = 10

TARGET = "50ms"
"""Work of a round, in seconds of one thread, that is enough to ask for one more worker.

Dask's own answer, 5 s, is for computations whose tasks are all there from the start. Those of a run come
round by round: a cluster would stay as small as it is, however many workers a round could use.
"""

IDLE_LOOKS = 60
"""Looks in a row, one a second, at which a worker must be one too many before it is given back.

Dask's own answer, 3, gave jobs back that had run for ten seconds, and asked for others at once: between the
rounds of a run every worker is idle for a moment.
"""

LEAVE_EARLY = 300, 0.1
"""When a worker leaves in order: seconds before the end of its job, or a share of the time.

The shorter of the two. What the worker holds moves to others, and another one is asked for.
"""

_known: dict[str, Security] = {}


@contextmanager
def known(address: str, security: Security) -> Iterator[None]:
    """Let whoever connects to a cluster of this process, by its address, do it as its owner does."""
    _known[address] = security
    try:
        yield
    finally:
        del _known[address]


def open_cluster(setting: AnyCluster) -> DaskExecutor:
    """Start, or connect to, a cluster.

    Raises
    ------
    InputError
        If a package or a file is missing, nothing answers, or no worker comes.
    """
    workers = getattr(setting, "workers", None)
    wait = seconds_of("wait", setting.wait) if hasattr(setting, "wait") else WAIT_SECONDS
    with ExitStack() as stack:
        if isinstance(setting, Address):
            client = _connect(setting)
            owned: tuple[Any, ...] = (client,)
        elif isinstance(setting, Processes):
            first = max(1, workers.minimum) if isinstance(workers, Bounds) else workers or n_cores()
            client, owned = local_cluster(first, bytes_of("memory", setting.memory), setting.threads)
            if isinstance(workers, Bounds):
                _scale(client.cluster, workers)
        else:
            cluster = _STARTED[type(setting)](setting)
            stack.callback(cluster.close)
            if workers is not None:
                _scale(cluster, workers)
                if hasattr(cluster, "worker_spec"):  # others, such as an operator, look after theirs
                    Keeper(cluster)
            client = Client(cluster)
            owned = (client, cluster)
            stack.pop_all()
        for thing in reversed(owned):
            stack.callback(thing.close)
        share = getattr(setting, "share", 1)
        executor = DaskExecutor(client, owned, threads=_threads_of(setting), wait_seconds=wait, share=share)
        stack.pop_all()  # from here on the executor closes them
    return executor


def _threads_of(setting: AnyCluster) -> int:
    """Return the threads of all workers that are going to be there at most; 0: those that are there."""
    workers = getattr(setting, "workers", None)
    if workers is None:
        return 0
    most = workers.maximum if isinstance(workers, Bounds) else workers
    return most * int(getattr(setting, "threads", 1))


def _scale(cluster: Any, workers: int | Bounds) -> None:
    """Ask for a number of workers, or let the cluster follow the work within bounds."""
    if isinstance(workers, Bounds):
        # An operator adapts by rules of its own, and takes the bounds alone.
        how = {"target_duration": TARGET, "wait_count": IDLE_LOOKS} if hasattr(cluster, "worker_spec") else {}
        cluster.adapt(minimum=workers.minimum, maximum=workers.maximum, **how)
    else:
        cluster.scale(workers)


def _connect(setting: Address) -> Client:
    """Connect to a scheduler."""
    address = setting.address
    security = _known.get(address)
    if setting.tls is not None:
        security = security_of(setting.tls)
        check_peer(address, setting.tls, CONNECT_SECONDS)
    try:
        check_answers(address, security, CONNECT_SECONDS)
        return Client(address, timeout=CONNECT_SECONDS, security=security)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        remedy = "Start one with `dask scheduler`, check host and port, or use executor='dask'."
        if address.startswith("tls://") and security is None:
            remedy = "Start one with `dask scheduler`, check host and port, and give `tls` its files."
        raise InputError(
            "executor",
            address,
            f"the address of a running Dask scheduler ({type(error).__name__}: {error})",
            remedy,
        ) from error


def _class_of(parameter: str, path: str, install: str) -> Callable[..., Any]:
    """Return a class by its import path, ``package.module:Class``.

    Raises
    ------
    InputError
        Naming what is missing, and how to install it.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return cast(Callable[..., Any], getattr(import_module(module), name))
    except ImportError as error:
        missing = f"an installed package ({type(error).__name__}: {error})"
        raise InputError(parameter, path, missing, install) from error
    except (AttributeError, ValueError) as error:
        raise InputError(parameter, path, f"package.module:Class ({error})", "Correct it.") from error


def _extra(name: str) -> str:
    return f"Install it: python -m pip install 'factorflow[{name}]'."


QUEUES = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "lsf": "LSFCluster", "sge": "SGECluster"}


def _jobs(setting: BatchCluster) -> Any:
    """Return a cluster of jobs, none of which is submitted yet."""
    kind = _class_of("cluster", f"dask_jobqueue:{QUEUES[setting.kind]}", _extra("jobqueue"))
    each = setting.workers_per_job
    seconds = seconds_of("walltime", setting.walltime)
    memory = cast(int, bytes_of("memory", setting.memory)) * each
    variables = {**ONE_THREAD, **setting.environment}
    before = int(min(LEAVE_EARLY[0], LEAVE_EARLY[1] * seconds))
    account = {"account" if setting.kind in {"slurm", "pbs"} else "project": setting.account}
    if setting.kind == "sge":
        _check_sge(setting)
    return _made(
        kind,
        dict(
            cores=setting.threads * each,
            processes=each,
            memory=f"{memory} B",
            walltime=_clock(seconds, setting.kind == "lsf"),
            queue=setting.queue,
            **account,
            job_name="factorflow",
            job_extra_directives=setting.directives,
            job_script_prologue=[
                *(f"export {name}={_quoted(value)}" for name, value in variables.items()),
                *setting.prologue,
            ],
            worker_extra_args=["--lifetime", f"{seconds - before}s", "--lifetime-stagger", f"{before // 2}s"],
            python=setting.python,
            interface=setting.interface,
            log_directory=setting.log_directory,
            scheduler_options={"dashboard_address": dashboard_address("")},  # a free port, at all addresses
        ),
    )


def _check_sge(setting: BatchCluster) -> None:
    """Warn of what an SGE job is not asked for: each cluster has names of its own for cores and memory."""
    cores, asked = setting.threads * setting.workers_per_job, " ".join(setting.directives)
    missing = []
    if cores > 1 and "-pe " not in asked:
        missing.append(f"its {cores} cores, such as '-pe smp {cores}'")
    if not re.search(r"-l .*(mem|rss)", asked):
        missing.append("its memory, such as '-l h_vmem=4G' (that of a core)")
    if missing:
        text = f"SGE is not asked for {' and '.join(missing)}, of each job: add that to the directives"
        warnings.warn(f"{text} of the cluster, by the names it has there.", RuntimeWarning, stacklevel=2)


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)


def _clock(seconds: int, short: bool) -> str:
    """Return a time as queues write it; of LSF without seconds, rounded up."""
    minutes = -(-seconds // 60) if short else seconds // 60
    text = f"{minutes // 60:02d}:{minutes % 60:02d}"
    return text if short else f"{text}:{seconds % 60:02d}"


def _pods(setting: Kubernetes) -> Any:
    kind = _class_of("cluster", "dask_kubernetes.operator:KubeCluster", _extra("kubernetes"))
    given = {"namespace": setting.namespace, "custom_cluster_spec": kubernetes_spec(setting), "quiet": True}
    return _made(kind, given)


def kubernetes_spec(setting: Kubernetes) -> dict[str, Any]:
    """Return the DaskCluster that Dask's operator is asked for, as the manifest has it."""
    make = _class_of("cluster", "dask_kubernetes.operator:make_cluster_spec", _extra("kubernetes"))
    from uuid import uuid4

    n_bytes = cast(int, bytes_of("memory", setting.memory))
    memory, cpu = str(n_bytes), str(setting.threads)
    first = setting.workers.minimum if isinstance(setting.workers, Bounds) else setting.workers
    spec: dict[str, Any] = make(
        name=setting.name.replace("{uuid}", uuid4().hex[:8]),
        image=setting.image,
        n_workers=first,
        resources={"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
        env=[{"name": name, "value": v} for name, v in {**ONE_THREAD, **setting.environment}.items()],
        worker_command=["dask", "worker", "--nthreads", cpu, "--memory-limit", memory],
    )
    mounts = [{"name": claim, "mountPath": path} for claim, path in setting.claims.items()]
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in setting.claims]
    for part in ("worker", "scheduler"):
        pod = spec["spec"][part]["spec"]
        if volumes:
            pod["volumes"] = volumes
            pod["containers"][0]["volumeMounts"] = mounts
    return spec


def _gpus(setting: GPUs) -> Any:
    kind = _class_of("cluster", "dask_cuda:LocalCUDACluster", _extra("gpu"))
    given = {"CUDA_VISIBLE_DEVICES": setting.devices, "threads_per_worker": 1}
    if setting.memory is not None:
        given["memory_limit"] = bytes_of("memory", setting.memory)
    return _made(kind, given)


def _custom(setting: Custom) -> Any:
    made = _made(_class_of("path", setting.path, "Install it, or correct the path."), setting.arguments)
    if not all(hasattr(made, name) for name in ("scheduler_address", "scale", "close")):
        expected = "a class of Dask clusters (distributed.deploy.Cluster)"
        raise InputError("path", setting.path, expected, "Correct it.")
    return made


def _made(kind: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return an instance of a class of clusters.

    Raises
    ------
    InputError
        With what the class says.
    """
    try:
        with warnings.catch_warnings():
            # The dashboard of another run has the port: this one goes to a free port, and says where it is.
            warnings.filterwarnings("ignore", r"\s*Port \d+ is already in use", UserWarning)
            return kind(**{name: value for name, value in arguments.items() if value is not None})
    except Exception as error:  # each package raises types of its own
        name = getattr(kind, "__name__", str(kind))
        raise InputError(
            "cluster",
            name,
            f"a cluster that can be started ({type(error).__name__}: {error})",
            "Correct the setting, or what it needs on this machine.",
        ) from error


_STARTED: dict[type, Callable[[Any], Any]] = {
    BatchCluster: _jobs,
    Kubernetes: _pods,
    GPUs: _gpus,
    Custom: _custom,
}
