"""Sparse Bayesian factor models of data that does not fit one machine.

Names are imported on first use (PEP 562): ``import factorflow`` loads neither Dask nor Prefect, plotting or
GPU libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from factorflow.core.lazy_imports import names_of, on_first_use
from factorflow.errors import FactorflowError, InputError, RunError

if TYPE_CHECKING:
    from factorflow import analysis, data, models, posterior, report, tracking
    from factorflow.api import Posterior, fit, load, open_posterior, project
    from factorflow.data import add_view, open_dataset, simulate, write_dataset, write_table
    from factorflow.workflow.resume import resume

    __version__: str

__all__ = [
    "FactorflowError",
    "InputError",
    "Posterior",
    "RunError",
    "__version__",
    "add_view",
    "analysis",
    "data",
    "fit",
    "load",
    "models",
    "open_dataset",
    "open_posterior",
    "posterior",
    "project",
    "report",
    "resume",
    "simulate",
    "tracking",
    "write_dataset",
    "write_table",
]

_API = ("Posterior", "fit", "load", "open_posterior", "project")
_MODULES = ("analysis", "data", "models", "posterior", "report", "tracking")
_DATA = ("add_view", "open_dataset", "simulate", "write_dataset", "write_table")

_get = on_first_use(
    __name__,
    {
        **{name: f"factorflow.{name}" for name in _MODULES},
        **dict.fromkeys(_API, "factorflow.api"),
        **dict.fromkeys(_DATA, "factorflow.data"),
        "resume": "factorflow.workflow.resume",
    },
)


def __getattr__(name: str) -> Any:
    return _version() if name == "__version__" else _get(name)


__dir__ = names_of(__name__, __all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("factorflow")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"
