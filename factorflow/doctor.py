"""What this machine and a cluster have, and what is wrong with it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

__all__ = ["Check", "examine"]


@dataclass(frozen=True)
class Check:
    """One finding.

    Parameters
    ----------
    name : str
        What was looked at.
    ok : bool
        Whether factorflow can work with it.
    found : str
        What is there.
    remedy : str
        What to do about it; empty when there is nothing to do.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""


def examine(executor: str | None = None, folder: str | os.PathLike[str] = ".") -> list[Check]:
    """Look at Python, packages, memory, disk, GPU, dashboard and, with an address, a Dask cluster.

    Parameters
    ----------
    executor : str, optional
        Address of a Dask scheduler whose workers are compared with this process.
    folder : path
        Where runs are going to write.
    """
    checks = [
        _python(),
        *_packages(),
        _dashboard(),
        _threads(),
        _memory(),
        _disk(Path(folder)),
        _gpu(),
        _prefect(),
    ]
    if executor is not None:
        checks.append(_cluster(executor))
    return checks


def _python() -> Check:
    return Check(
        "python",
        sys.version_info >= (3, 11),
        f"{platform.python_version()} on {platform.platform()}",
        "" if sys.version_info >= (3, 11) else "Use Python 3.11 or newer.",
    )


def _packages() -> list[Check]:
    """Compare what is installed with what factorflow asks for."""
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


def _package(name: str, wanted: str, fits: Callable[..., bool]) -> Check:
    remedy = f"python -m pip install '{name}{wanted}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name, False, "not installed", remedy)
    ok = fits(found, prereleases=True)
    return Check(name, ok, found if ok else f"{found}, needed {wanted}", "" if ok else remedy)


def _dashboard() -> Check:
    try:
        import_module("bokeh")
    except ImportError:
        return Check("dask dashboard", False, "bokeh is missing", "python -m pip install 'dask[diagnostics]'")
    return Check("dask dashboard", True, "bokeh is there")


def _threads() -> Check:
    import numpy  # noqa: F401  its BLAS must be loaded to be seen
    from threadpoolctl import threadpool_info

    pools = [f"{pool['internal_api']} {pool.get('version') or ''}".strip() for pool in threadpool_info()]
    return Check("blas", bool(pools), f"{', '.join(sorted(set(pools)))}; {os.cpu_count()} cores")


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Check("memory", True, f"{total / 1e9:.1f} GB")


def _disk(folder: Path) -> Check:
    there = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    free = shutil.disk_usage(there).free
    ok = os.access(there, os.W_OK)
    return Check(
        "disk", ok, f"{free / 1e9:.1f} GB free at {there}", "" if ok else f"{there} cannot be written."
    )


def _gpu() -> Check:
    """Look for a GPU; none is no fault."""
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
    address = os.environ.get("PREFECT_API_URL")
    if not address:
        return Check("prefect server", True, "none set: flows start one of their own")
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"{address.rstrip('/')}/health", timeout=5) as answer:
            return Check("prefect server", answer.status == 200, address)
    except (URLError, OSError, ValueError) as error:
        return Check("prefect server", False, f"{address}: {error}", "Start it, or unset PREFECT_API_URL.")


def _cluster(address: str) -> Check:
    """Compare the workers' environment with this one, as a run does before it starts."""
    from factorflow.engine.executors.launch import open_executor
    from factorflow.errors import InputError

    try:
        executor = open_executor(address)
    except InputError as error:
        return Check("cluster", False, str(error.value), f"Expected {error.expected}. {error.remedy}")
    try:
        workers = len(executor.cut(1 << 20))
        return Check(
            "cluster", True, f"{address}: {workers} worker threads, same versions; {executor.dashboard}"
        )
    finally:
        executor.close()


def describe(checks: Sequence[Check]) -> Mapping[str, Any]:
    """Return the findings as plain values."""
    rows = [
        {"check": c.name, "ok": "yes" if c.ok else "NO", "found": c.found, "remedy": c.remedy} for c in checks
    ]
    return {"ok": all(c.ok for c in checks), "checks": rows}
