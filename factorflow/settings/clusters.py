"""Where a run works: one setting for this machine, a running cluster, and one that is asked for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from factorflow.errors import InputError
from factorflow.settings.base import Options
from factorflow.settings.reading import read_yaml

__all__ = [
    "GPUs",
    "TLS",
    "Address",
    "AnyCluster",
    "BatchCluster",
    "Bounds",
    "Cluster",
    "Custom",
    "Kubernetes",
    "Processes",
    "Setting",
    "ThisProcess",
    "Threads",
    "bytes_of",
    "check_address",
    "cluster_of",
    "n_cores",
    "read_cluster",
    "seconds_of",
]


def bytes_of(parameter: str, limit: str | int | None) -> int | None:
    """Return an amount of memory in bytes.

    Raises
    ------
    InputError
        If it is none.
    """
    if limit is None:
        return None
    from dask.utils import parse_bytes

    try:
        n_bytes = int(parse_bytes(limit))
    except ValueError:
        n_bytes = 0
    if n_bytes <= 0:
        raise InputError(parameter, limit, "bytes, or text such as '4GB'", "Correct it.")
    return n_bytes


_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>[0-5]\d)(?::(?P<seconds>[0-5]\d))?")


def seconds_of(parameter: str, duration: str) -> int:
    """Return a duration in seconds: ``2h``, ``90 minutes``, ``02:00:00`` or ``1-12:00:00`` (with days).

    Raises
    ------
    InputError
        If it is none.
    """
    if found := _CLOCK.fullmatch(duration.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        n_seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    else:
        from dask.utils import parse_timedelta

        try:
            n_seconds = int(parse_timedelta(duration, default=False))
        except (KeyError, TypeError, ValueError):
            n_seconds = 0
    if n_seconds <= 0:
        expected = "a time, such as '2h', '90 minutes' or '02:00:00'"
        raise InputError(parameter, duration, expected, "Correct it.")
    return n_seconds


def _memory(limit: Any) -> Any:
    """Refuse what is no amount of memory; numbers are kept as text."""
    if isinstance(limit, str | int) and not isinstance(limit, bool):
        bytes_of("memory", limit)
        return str(limit)
    return limit


def _duration(duration: Any) -> Any:
    """Refuse what is no time; a clock in YAML without quotes is a number of seconds."""
    if isinstance(duration, int) and not isinstance(duration, bool):
        duration = f"{duration} s"
    if isinstance(duration, str):
        seconds_of("walltime", duration)
    return duration


Memory = Annotated[str, BeforeValidator(_memory)]
Duration = Annotated[str, BeforeValidator(_duration)]


class Bounds(Options):
    """As many workers as there is work for, within bounds."""

    of = "factorflow.settings.clusters.Bounds"

    minimum: int = Field(default=0, ge=0, description="Workers at least.")
    maximum: int = Field(ge=1, description="Workers at most; the data are shared out among so many.")

    @model_validator(mode="after")
    def _ordered(self) -> Bounds:
        if self.minimum > self.maximum:
            expected = f"at most maximum ({self.maximum})"
            raise InputError("minimum", self.minimum, expected, "Correct one of the two.")
        return self


Count = Annotated[int, Field(ge=1)]

WORKERS = "Workers, or bounds: {minimum: 2, maximum: 16}."


class Setting(Options):
    """Base of the settings."""


class ThisProcess(Setting):
    """The process itself, one task after the other."""

    of = "factorflow.settings.clusters.ThisProcess"

    kind: Literal["local"] = "local"
    memory: Memory | None = Field(default=None, description="Memory that the run may use, such as 4GB.")


class Threads(Setting):
    """Threads of this process."""

    of = "factorflow.settings.clusters.Threads"

    kind: Literal["threads"] = "threads"
    workers: Count | None = Field(default=None, description="Threads; all cores when left out.")
    memory: Memory | None = Field(default=None, description="Memory of all of them, such as 16GB.")


class Processes(Setting):
    """Worker processes on this machine, started for the run: Dask, with its dashboard."""

    of = "factorflow.settings.clusters.Processes"

    kind: Literal["dask"] = "dask"
    workers: Count | Bounds | None = Field(default=None, description=f"{WORKERS} All cores when left out.")
    threads: Count = Field(default=1, description="Threads of each worker: as many groups of blocks.")
    memory: Memory | None = Field(default=None, description="Memory of each worker, such as 4GB.")


class TLS(Options):
    """Files, in PEM format, with which this process and a scheduler prove to each other who they are."""

    of = "factorflow.settings.clusters.TLS"

    ca: str = Field(description="Certificate of the authority that signed all others of the cluster.")
    certificate: str = Field(description="Certificate of this process.")
    key: str = Field(description="Its private key.")


class Address(Setting):
    """A cluster that is running."""

    of = "factorflow.settings.clusters.Address"

    kind: Literal["address"] = "address"
    address: str = Field(description="Of the scheduler: tcp://host:8786, or tls://host:8786.")
    tls: TLS | None = Field(default=None, description="For tls://; left out: as Dask is configured.")
    workers: Count | Bounds | None = Field(
        default=None,
        description="Workers that are going to be there, if not all of them are yet, or bounds of a cluster "
        "that scales by itself: {minimum: 2, maximum: 16}.",
    )
    share: Count = Field(
        default=1,
        description="Runs that are to work on it at the same time: each plans with its part of the memory.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Address:
        check_address(self.address)
        if self.tls is not None and not self.address.startswith("tls://"):
            expected = "tls://HOST:PORT where certificates are given"
            raise InputError("address", self.address, expected, "Correct it, or leave tls out.")
        return self


class Asked(Setting):
    """Base of the clusters that are asked for elsewhere, and come when there is room for them."""

    workers: Count | Bounds = Field(description=WORKERS)
    threads: Count = Field(default=1, description="Threads of each worker: as many groups of blocks.")
    memory: Memory = Field(description="Memory of each worker, such as 4GB.")
    wait: Duration = Field(default="1h", description="Time to wait for the first worker.")
    environment: dict[str, str] = Field(
        default_factory=dict, description="Variables of the environment of the workers; no secrets."
    )


class BatchCluster(Asked):
    """Workers as jobs of a queue: SLURM, PBS, LSF or SGE (package dask-jobqueue, extra `jobqueue`)."""

    of = "factorflow.settings.clusters.BatchCluster"

    kind: Literal["slurm", "pbs", "lsf", "sge"] = Field(description="The queue.")
    walltime: Duration = Field(description="Time that each job may take, such as 2h or 02:00:00.")
    queue: str | None = Field(default=None, description="Queue, or partition.")
    account: str | None = Field(default=None, description="Account, or project, that is charged.")
    workers_per_job: Count = Field(default=1, description="Workers that one job starts.")
    directives: list[str] = Field(
        default_factory=list, description="More options of the queue, such as --qos=low."
    )
    prologue: list[str] = Field(
        default_factory=list, description="Commands of the job before the worker: module load, activate."
    )
    python: str | None = Field(default=None, description="Python of the workers; this one when left out.")
    interface: str | None = Field(default=None, description="Network interface, such as ib0.")
    log_directory: str | None = Field(default=None, description="Folder of the logs of the jobs.")


class Kubernetes(Asked):
    """Workers as pods, made by Dask's operator (package dask-kubernetes, extra `kubernetes`)."""

    of = "factorflow.settings.clusters.Kubernetes"

    kind: Literal["kubernetes"] = "kubernetes"
    image: str = Field(description="Image with factorflow (deploy/Dockerfile).")
    name: str = Field(default="factorflow-{uuid}", description="Of the DaskCluster.")
    namespace: str | None = Field(default=None, description="Namespace; that of the context when left out.")
    claims: dict[str, str] = Field(
        default_factory=dict,
        description="Volume claims that all pods mount, each with the path where: data and results.",
    )


class GPUs(Setting):
    """One worker a GPU of this machine (package dask-cuda, extra `gpu-cu12` or `gpu-cu13`)."""

    of = "factorflow.settings.clusters.GPUs"

    kind: Literal["cuda"] = "cuda"
    devices: list[int] | None = Field(default=None, description="GPUs by number; all when left out.")
    memory: Memory | None = Field(default=None, description="Memory of each worker on the host.")


class Custom(Setting):
    """Any class of Dask clusters, by its import path."""

    of = "factorflow.settings.clusters.Custom"

    kind: Literal["class"] = "class"
    path: str = Field(description="package.module:Class, such as dask_gateway:GatewayCluster.")
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of the class by name; no secrets."
    )
    workers: Count | Bounds | None = Field(
        default=None, description=f"{WORKERS} Left out: those that the class starts."
    )
    wait: Duration = Field(default="1h", description="Time to wait for the first worker.")


AnyCluster = ThisProcess | Threads | Processes | Address | BatchCluster | Kubernetes | GPUs | Custom

Chosen = Annotated[AnyCluster, Field(discriminator="kind")]


def read_cluster(given: Any) -> Any:
    """Return a setting that was given as text: JSON, or the path of a YAML or JSON file; all else as it is.

    The file may hold the setting itself, or a mapping with the setting as its ``cluster``.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    if not isinstance(given, str):
        return given
    text = given
    if not given.lstrip().startswith("{"):
        try:
            text = Path(given).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            expected = f"JSON, such as {EXAMPLE}, or a readable YAML or JSON file ({error})"
            raise InputError("cluster", given, expected, "Correct it.") from error
    try:
        found = read_yaml(text)
    except ValueError as error:
        raise InputError("cluster", given, f"YAML or JSON ({error})", "Correct it.") from error
    if isinstance(found, Mapping) and set(found) == {"cluster"}:
        found = found["cluster"]
    if not isinstance(found, Mapping):
        raise InputError("cluster", given, f"names with values, such as {EXAMPLE}", "Correct it.")
    return dict(found)


EXAMPLE = json.dumps({"kind": "slurm", "workers": 16, "memory": "4GB", "walltime": "2h"})

Cluster = Annotated[Chosen, BeforeValidator(read_cluster)]
"""The setting, as options have it: a mapping with its ``kind``, or text (`read_cluster`)."""


def check_address(address: str) -> None:
    """Refuse what is no address of a scheduler.

    Raises
    ------
    InputError
        Saying what one looks like.
    """
    if not re.fullmatch(r"[a-z]+://\S+", address):
        expected = "the address of a Dask scheduler, such as tcp://host:8786"
        raise InputError("address", address, expected, "Correct it.")


def cluster_of(
    executor: str, workers: int | None = None, memory_limit: str | int | None = None
) -> AnyCluster:
    """Return the setting that the short form stands for: ``executor``, ``workers`` and ``memory_limit``.

    Raises
    ------
    InputError
        If there is no such executor.
    """
    if workers is not None and workers < 1:
        raise InputError("workers", workers, "at least 1", "Leave it out to use every core.")
    limit = bytes_of("memory_limit", memory_limit)
    memory = None if limit is None else str(limit)
    if executor == "local":
        return ThisProcess(memory=memory)
    if executor == "threads":
        return Threads(workers=workers, memory=memory)
    if executor == "dask":
        return Processes(workers=workers, memory=memory)
    if "://" not in executor:
        raise InputError(
            "executor",
            executor,
            "'local', 'threads', 'dask', an address such as tcp://host:8786, or a Client",
            "Choose one.",
        )
    return Address(address=executor)


def n_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
