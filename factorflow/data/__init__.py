"""The multi-view store: layout, opening, ingest, simulators, hold-outs and the block grid."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factorflow.data.block import Block, Likelihood, Meta, Missing, ViewMeta
    from factorflow.data.checks import DataWarning
    from factorflow.data.dataset import Dataset, open_dataset
    from factorflow.data.holdout import Holdout
    from factorflow.data.ingest import write_dataset
    from factorflow.data.simulators import simulate

__all__ = [
    "Block",
    "DataWarning",
    "Dataset",
    "Holdout",
    "Likelihood",
    "Meta",
    "Missing",
    "ViewMeta",
    "open_dataset",
    "simulate",
    "write_dataset",
]

_HOME = {
    "Block": "block",
    "DataWarning": "checks",
    "Dataset": "dataset",
    "Holdout": "holdout",
    "Likelihood": "block",
    "Meta": "block",
    "Missing": "block",
    "ViewMeta": "block",
    "open_dataset": "dataset",
    "simulate": "simulators",
    "write_dataset": "ingest",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import factorflow`` stays light."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
