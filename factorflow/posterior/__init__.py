"""What a run found: building, writing and reading posteriors; prediction, diagnostics, analysis, export."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factorflow.posterior.posterior import Posterior, open_posterior

__all__ = ["Posterior", "open_posterior"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("factorflow.posterior.posterior"), name)
