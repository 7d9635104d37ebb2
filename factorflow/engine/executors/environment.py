"""Comparison of environments: versions, code, processor and BLAS threads must be equal for equal bits."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorflow.engine.executors.timeouts import address_of
from factorflow.errors import InputError

if TYPE_CHECKING:
    from distributed import Client

Environment = tuple[tuple[str, str], ...]
"""Versions and processor type, by name: as a task carries them."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
"""Environment of a worker: parallelism comes from blocks; two BLAS threads give other bits than one."""


def environment() -> dict[str, str]:
    """Return the versions, a digest of this package's code (``build``), and the processor type."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: _version(name) for name in ("factorflow", "numpy", "scipy", "numba", "zarr", "dask")},
        "build": _build(),
        "processor": _processor(),
    }


@cache
def _build() -> str:
    """Return the digest of this package: reading it takes 30 ms."""
    return digest_of_modules(Path(__file__).parents[2])


def digest_of_modules(package: Path) -> str:
    """Return the start of the sha256 (hex) of a package's modules: builds of one version may differ."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).parts):
        digest.update(f"{path.relative_to(package).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _processor() -> str:
    """Return the type of processor that BLAS works for: looking through libraries takes 5 ms."""
    import numpy  # noqa: F401  (its BLAS must be loaded to be seen)

    pools = _threadpoolctl().threadpool_info()
    kinds = {str(pool.get("architecture", "")) for pool in pools if pool["user_api"] == "blas"}
    return "+".join(sorted(kinds)) or platform.machine()


@cache
def _version(package: str) -> str:
    """Return the version of an installed package: reading its metadata takes 5 ms."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "0+unknown"  # as `factorflow.__version__` in a source tree that was never installed


@cache
def check_environment(expected: Environment) -> None:
    """Compare this process with a run, once: in a task, so that no other result gets into it."""
    from distributed import get_worker

    if differing := _differences(environment(), dict(expected), get_worker().address):
        raise _other_bits(differing)


def compare_environments(client: Client) -> Environment:
    """Compare scheduler, workers and client; return the common environment, or raise with each difference."""
    here = environment()
    processors: dict[str, str] = {}
    differing: list[str] = []
    versions = {name: value for name, value in here.items() if name != "processor"}
    try:
        replies = client.run(environment, on_error="return")
        replies["the scheduler"] = client.run_on_scheduler(environment)
        for where, reply in sorted(replies.items()):
            if isinstance(reply, OSError):  # it has left meanwhile
                continue
            if isinstance(reply, BaseException):
                raise reply
            differing += _differences(reply, versions, where)
            if where != "the scheduler":  # it computes nothing
                processors[where] = reply.get("processor", "")
    except (ImportError, AttributeError) as error:
        expected = f"scheduler and workers with factorflow {here['factorflow']} installed ({error})"
        remedy = "Install the same factorflow on the scheduler and on every worker."
        raise InputError("executor", address_of(client), expected, remedy) from error
    if len(set(processors.values())) > 1:
        differing += sorted(f"processor {kind} on {worker}" for worker, kind in processors.items())
    if differing:
        raise _other_bits(differing)
    return *versions.items(), ("processor", "".join(set(processors.values())))


def _differences(others: Mapping[str, str], expected: Mapping[str, str], where: str) -> list[str]:
    return [
        f"{name} {others.get(name)} on {where}, {value} {'elsewhere' if name == 'processor' else 'here'}"
        for name, value in expected.items()
        if others.get(name) != value
    ]


def _other_bits(differing: list[str]) -> InputError:
    expected = (
        "the same versions on the scheduler and all workers, and one type of processor (else results would "
        "not have equal bits)"
    )
    remedy = "Install the same environment everywhere; `factorflow doctor --executor ADDRESS` compares them."
    return InputError("executor", "; ".join(differing), expected, remedy)


_lock = threading.Lock()
_limits: list[Any] = []
"""One entry for each user of `one_thread` at this moment; the first limits the threads."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Give BLAS one thread meanwhile, and its own back when the last of several users ends."""
    with _lock:
        _limits.append(_limits[0] if _limits else _controller().limit(limits=1))
    try:
        yield
    finally:
        with _lock:
            limit = _limits.pop()
            if not _limits:
                limit.restore_original_limits()


@cache
def _controller() -> Any:
    import numpy  # noqa: F401  (libraries must be loaded to be limited)
    import scipy.linalg  # noqa: F401

    return _threadpoolctl().ThreadpoolController()


@cache
def _threadpoolctl() -> Any:
    """Import threadpoolctl, which sets a variable (it allows two libraries of OpenMP) that is not to stay."""
    name = "KMP_DUPLICATE_LIB_OK"
    was_set = name in os.environ
    import threadpoolctl

    if not was_set:
        os.environ.pop(name, None)
    return threadpoolctl
