"""What must be equal everywhere for results to have equal bits."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache

from factorflow.errors import InputError

__all__ = ["ONE_THREAD", "check_device", "environment"]

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
"""Environment of a worker: parallelism comes from blocks; two BLAS threads give other bits than one."""


def environment() -> dict[str, str]:
    """Return the versions and the processor type of this process."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: _version(name) for name in ("factorflow", "numpy", "scipy", "numba", "zarr", "dask")},
        "processor": _processor(),
    }


@cache
def _processor() -> str:
    """Return the kind of processor that the products are made for: looking through libraries takes 5 ms."""
    import numpy  # noqa: F401  (its BLAS must be loaded to be seen)
    from threadpoolctl import threadpool_info

    kinds = {str(pool.get("architecture", "")) for pool in threadpool_info() if pool["user_api"] == "blas"}
    return "+".join(sorted(kinds)) or platform.machine()


@cache
def _version(package: str) -> str:
    """Return the version of an installed package: reading its metadata takes 5 ms."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "0+unknown"  # as `factorflow.__version__` in a source tree that was never installed


def check_device(device: str, able: Sequence[str]) -> None:
    """Refuse a device that a model cannot work on, or that is not there.

    Raises
    ------
    InputError
        Naming what there is.
    """
    if device not in able:
        raise InputError("device", device, f"one of {', '.join(able)} for this model", "Leave it out.")
    if device == "cpu":
        return
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # ImportError, or whatever the driver raises
        raise InputError(
            "device",
            device,
            f"a machine with CuPy and a CUDA device ({type(error).__name__}: {error})",
            "Install factorflow[gpu-cu12] or factorflow[gpu-cu13], or use device='cpu'.",
        ) from error
