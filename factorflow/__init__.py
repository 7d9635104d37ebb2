"""Sparse Bayesian factor models of data that does not fit one machine.

Names are imported on first use (PEP 562): ``import factorflow`` loads neither Dask nor Prefect, plotting or
GPU libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from factorflow.errors import FactorflowError, InputError, RunError

if TYPE_CHECKING:
    from factorflow import models
    from factorflow.data import open_dataset, simulate, write_dataset
    from factorflow.posterior.posterior import Posterior, open_posterior
    from factorflow.run import fit, project, resume

    __version__: str

__all__ = [
    "FactorflowError",
    "InputError",
    "Posterior",
    "RunError",
    "__version__",
    "fit",
    "models",
    "open_dataset",
    "open_posterior",
    "project",
    "resume",
    "simulate",
    "write_dataset",
]

_HOME = {
    "Posterior": "factorflow.posterior.posterior",
    "fit": "factorflow.run",
    "open_dataset": "factorflow.data",
    "open_posterior": "factorflow.posterior.posterior",
    "project": "factorflow.run",
    "resume": "factorflow.run",
    "simulate": "factorflow.data",
    "write_dataset": "factorflow.data",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name == "models":
        return import_module("factorflow.models")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("factorflow")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"
