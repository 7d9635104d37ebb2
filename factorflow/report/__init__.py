"""Figures of a posterior, and a report that is one HTML file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factorflow.report.figures import (
        plot_data,
        plot_factor_correlation,
        plot_loadings,
        plot_rhat,
        plot_scores,
        plot_trace,
        plot_variance_explained,
    )
    from factorflow.report.html import write_report

__all__ = [
    "plot_data",
    "plot_factor_correlation",
    "plot_loadings",
    "plot_rhat",
    "plot_scores",
    "plot_trace",
    "plot_variance_explained",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "html" if name == "write_report" else "figures"
    return getattr(import_module(f"factorflow.report.{module}"), name)
