"""What a run found: building, writing and reading posteriors; prediction, scores, draws, diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factorflow.lazily import on_first_use

if TYPE_CHECKING:
    from factorflow.posterior.stored import Posterior, open_posterior

__all__ = ["Posterior", "open_posterior"]

__getattr__ = on_first_use(__name__, dict.fromkeys(__all__, "factorflow.posterior.stored"))
