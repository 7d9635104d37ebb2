"""Optional packages, and the extra of factorflow that brings each."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from factorflow.errors import InputError

EXTRAS = {
    "anndata": "omics",
    "av": "examples",
    "bokeh": "dashboard",
    "cupy": "gpu",
    "dask_cuda": "gpu",
    "dask_jobqueue": "jobqueue",
    "dask_kubernetes": "kubernetes",
    "h5py": "omics",
    "matplotlib": "report",
    "mlflow": "mlflow",
    "mudata": "omics",
    "obstore": "cloud",
    "PIL": "examples",
    "prefect": "flows",
    "prometheus_client": "dashboard",
    "statsmodels": "survival",
    "torch": "gplvm",
    "umap": "umap",
}
"""Names of modules, and the extras that install them."""


def require(module: str, purpose: str) -> Any:
    """Import an optional package.

    Parameters
    ----------
    module : str
        Name of the module, such as ``mudata`` or ``anndata.io``.
    purpose : str
        What it does for factorflow, for the message.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        expected = f"{package}, which {purpose} ({error})"
        raise InputError(f"package {package}", "not usable", expected, install(package)) from error


def install(package: str) -> str:
    """Return how to install an optional package."""
    return f"Install it: pip install 'factorflow[{EXTRAS[package]}]'."
