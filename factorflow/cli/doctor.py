"""Checks of this machine, its packages and a cluster."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from factorflow.cli.prefect_server import check_prefect, read_settings
from factorflow.core.extras import EXTRAS, install
from factorflow.errors import InputError
from factorflow.storage.location import absolute

if TYPE_CHECKING:
    from factorflow.engine.executors.dask import DaskExecutor
    from factorflow.engine.executors.worker_info import WorkerInfo
    from factorflow.settings.clusters import ClusterSetting


@dataclass(frozen=True)
class Check:
    """One finding.

    Parameters
    ----------
    remedy : str
        What to do about it; empty when there is nothing to do.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""


def examine(
    executor: str | ClusterSetting | None = None,
    folder: str | os.PathLike[str] = ".",
    dataset: str | os.PathLike[str] | None = None,
) -> list[Check]:
    """Check Python, packages, extras, memory, disk, GPU and, with an address, a Dask cluster.

    Parameters
    ----------
    executor : str or ClusterSetting, optional
        Address of a Dask scheduler, or the setting of a cluster, whose workers are compared with this
        process; a cluster that a setting starts is closed again.
    folder : path
        Where runs are going to write; workers must see it too.
    dataset : path, optional
        What runs are going to read: workers must see the same one there.
    """
    folder = absolute(os.fspath(folder), "folder")
    checks = [
        _python(),
        *_packages(),
        *_extras(),
        _threads(),
        _compiled_code(),
        _memory(),
        _disk(Path(folder)),
        _gpu(),
        _prefect(),
    ]
    if executor is not None:
        checks += _cluster(executor, Path(folder), None if dataset is None else os.fspath(dataset))
    elif dataset is not None:
        checks.append(_dataset(dataset))
    return checks


def _python() -> Check:
    return Check(
        "python",
        sys.version_info >= (3, 11),
        f"{platform.python_version()} on {platform.platform()}",
        "" if sys.version_info >= (3, 11) else "Use Python 3.11 or newer.",
    )


def _packages() -> list[Check]:
    """Compare installed packages with the requirements of factorflow."""
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(text) for text in requires("factorflow") or []]
    except PackageNotFoundError:
        return [Check("factorflow", False, "not installed", "Install it: python -m pip install .")]
    checks = [Check("factorflow", True, version("factorflow"))]
    for requirement in needed:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        checks.append(_package(requirement.name, str(requirement.specifier), requirement.specifier.contains))
    return checks


def _package(name: str, required: str, fits: Callable[..., bool]) -> Check:
    remedy = f"python -m pip install '{name}{required}'"
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Check(name, False, "not installed", remedy)
    ok = fits(installed, prereleases=True)
    return Check(name, ok, installed if ok else f"{installed}, needed {required}", "" if ok else remedy)


def _extras() -> list[Check]:
    """Check which optional packages are installed."""
    found: dict[str, list[str]] = {}
    for module, extra in EXTRAS.items():
        found.setdefault(extra, [])
        if find_spec(module) is None:
            found[extra].append(module)
    return [
        Check(f"extra {extra}", True, "installed")
        if not missing
        else Check(f"extra {extra}", True, f"without {', '.join(missing)}", install(missing[0]))
        for extra, missing in sorted(found.items())
    ]


def _threads() -> Check:
    import numpy  # noqa: F401  its BLAS must be loaded to be seen
    from threadpoolctl import threadpool_info

    pools = [f"{pool['internal_api']} {pool.get('version') or ''}".strip() for pool in threadpool_info()]
    return Check("blas", bool(pools), f"{', '.join(sorted(set(pools)))}; {os.cpu_count()} cores")


def _compiled_code() -> Check:
    """Check that compiled code can be cached; otherwise every process compiles again."""
    from numba import njit

    from factorflow.kernels.compile import NO_PLACE
    from factorflow.kernels.scalar import normal

    try:
        compiled: Any = njit(cache=True)(normal.fast_exp)
    except RuntimeError:
        remedy = "Set NUMBA_CACHE_DIR to a folder that can be written."
        return Check("compiled code", False, NO_PLACE, remedy)
    return Check("compiled code", True, f"kept in {compiled._cache.cache_path}")


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Check("memory", True, f"{total / 1e9:.1f} GB")


def _dataset(path: str | os.PathLike[str]) -> Check:
    """Check that a dataset can be opened."""
    from factorflow.data import open_dataset
    from factorflow.errors import InputError

    try:
        return Check("dataset", True, f"{path}, fingerprint {open_dataset(path).fingerprint[:12]}")
    except InputError as error:
        return Check("dataset", False, str(error.value), error.remedy)


def _disk(folder: Path) -> Check:
    there = next(path for path in [folder, *folder.parents] if path.exists())
    free = shutil.disk_usage(there).free
    ok = os.access(there, os.W_OK)
    return Check(
        "disk", ok, f"{free / 1e9:.1f} GB free at {there}", "" if ok else f"{there} cannot be written."
    )


def _gpu() -> Check:
    """Check for a GPU; none is not a failure."""
    try:
        cupy = import_module("cupy")
        count = int(cupy.cuda.runtime.getDeviceCount())
        names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
    except ImportError:
        return Check("gpu", True, "none used: CuPy is not installed (extra `gpu`)")
    except Exception as error:  # CuPy raises its own types, which cannot be named without it
        return Check("gpu", True, f"none: {type(error).__name__}")
    return Check("gpu", True, ", ".join(names) or "none")


def _prefect() -> Check:
    """Check the configured Prefect server, or what a flow needs to start its own."""
    if find_spec("prefect") is None:
        return Check("prefect server", True, "Prefect is not installed (extra `flows`)")
    try:
        settings = read_settings()
        address, password, url = settings.api.url, settings.api.auth_string, settings.server.database
        check_prefect(
            address,
            None if password is None else password.get_secret_value(),
            str(settings.home),
            None if url.connection_url is None else url.connection_url.get_secret_value(),
            starts_server=settings.server.ephemeral.enabled,
        )
    except InputError as error:
        return Check("prefect server", False, str(error).removesuffix(f" {error.remedy}"), error.remedy)
    return Check("prefect server", True, address or "none set: flows start one of their own")


def _cluster(setting: str | ClusterSetting, folder: Path, dataset: str | None) -> list[Check]:
    """Compare the workers' environment with this one, as a run does before it starts, and look at each."""
    from factorflow.engine.executors.launch import open_executor
    from factorflow.errors import InputError

    if setting in ("local", "threads"):
        return [Check("cluster", True, f"{setting}: this process alone")]
    try:
        executor = cast("DaskExecutor", open_executor(setting))
    except InputError as error:
        return [Check("cluster", False, str(error.value), f"Expected {error.expected}. {error.remedy}")]
    try:
        threads = len(executor.cut(1 << 20))
        name = setting if isinstance(setting, str) else setting.class_name or "address"
        where = name if name == executor.address else f"{name}, {executor.address}"
        summary = f"{where}: cut for {threads} worker threads, same versions; {executor.dashboard}"
        return [Check("cluster", True, summary), *_workers(executor, folder, dataset)]
    finally:
        executor.close()


def _workers(executor: DaskExecutor, folder: Path, dataset: str | None) -> list[Check]:
    """Check threads, memory and shared disks of workers."""
    token, content = folder / f".factorflow-{uuid4().hex}", uuid4().hex
    datasets: tuple[str, ...] = () if dataset is None else (os.path.abspath(dataset),)
    try:
        with suppress(OSError):  # `disk` says what is wrong with the folder
            token.write_text(content, encoding="utf-8")
        facts = executor.worker_info((str(token),), datasets)
    finally:
        with suppress(OSError):
            token.unlink(missing_ok=True)
    checks = [*memory_checks(facts), check_shared_path("results", str(folder), str(token), content, facts)]
    if dataset is None:
        return checks
    from factorflow.data import open_dataset

    if not (here := _dataset(dataset)).ok:
        return [*checks, here]
    fingerprint = open_dataset(dataset).fingerprint
    return [*checks, check_shared_path("dataset", dataset, datasets[0], fingerprint, facts)]


def memory_checks(facts: Mapping[str, WorkerInfo]) -> list[Check]:
    """Check threads, memory limits and pauses of workers by address."""
    many = sorted(address for address, info in facts.items() if info.threads > 1)
    threads = Check("worker threads", True, "one each")
    if many:
        advice = "Blocks are the unit of work: `dask worker --nthreads 1 --nworkers N` uses cores better."
        threads = Check("worker threads", True, f"more than one on {_join_workers(many)}", advice)
    return [threads, _limits(facts), _pauses(facts)]


def _limits(facts: Mapping[str, WorkerInfo]) -> Check:
    sharing: dict[str, list[WorkerInfo]] = {}
    for worker in facts.values():
        where = f"in job {worker.job} on {worker.host}" if worker.job else f"on {worker.host}"
        sharing.setdefault(where, []).append(worker)
    remedy = "Give each worker its share: `dask worker --memory-limit 4GB`."
    for where, workers in sorted(sharing.items()):
        if len(workers) > 1 and not all(w.memory_limit for w in workers):
            return Check("worker memory", False, f"{len(workers)} workers {where}, not all limited", remedy)
        total, there = sum(w.memory_limit for w in workers), workers[0].machine_memory
        if total > 1.02 * there:  # shares are rounded
            summary = f"limits of {total / 1e9:.1f} GB together {where}, which has {there / 1e9:.1f} GB"
            return Check("worker memory", False, summary, remedy)
    least = min(w.memory_limit or w.machine_memory for w in facts.values())
    return Check("worker memory", True, f"{least / 1e9:.1f} GB or more each")


def _pauses(facts: Mapping[str, WorkerInfo]) -> Check:
    """Check for workers that may pause: freed memory that the allocator keeps counts as used."""
    wrong = sorted(a for a, info in facts.items() if info.keeps_heap and info.pauses_at)
    if wrong:
        remedy = "Set DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=False where MALLOC_MMAP_MAX_=0 is set."
        return Check("worker pauses", False, f"kept memory would pause {_join_workers(wrong)}", remedy)
    shares = sorted({info.pauses_at for info in facts.values()})
    levels = ", ".join(f"at {100 * share:.0f} %" if share else "never" for share in shares)
    return Check("worker pauses", True, levels)


def check_shared_path(
    name: str, path_shown: str, path: str, content: str, facts: Mapping[str, WorkerInfo]
) -> Check:
    """Check that all workers see the same content at a path.

    Parameters
    ----------
    path, content : str
        What the workers looked at, and what they were to see there.
    """
    blind = sorted(address for address, info in facts.items() if info.sees.get(path) != content)
    if not blind:
        return Check(name, True, f"{path_shown}: all workers see it")
    remedy = "Put it on a file system that all of them mount, under the same path."
    return Check(name, False, f"{path_shown}: not, or another one, on {_join_workers(blind)}", remedy)


def _join_workers(workers: Sequence[str], most: int = 3) -> str:
    more = f" and {len(workers) - most} more" if len(workers) > most else ""
    return ", ".join(workers[:most]) + more


def describe(checks: Sequence[Check]) -> Mapping[str, Any]:
    """Return the findings as plain values."""
    rows = [
        {"check": c.name, "ok": "yes" if c.ok else "NO", "found": c.found, "remedy": c.remedy} for c in checks
    ]
    return {"ok": all(c.ok for c in checks), "checks": rows}
