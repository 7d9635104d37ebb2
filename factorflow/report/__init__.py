"""Figures of a posterior, and a report that is one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factorflow.lazily import on_first_use

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

__getattr__ = on_first_use(
    __name__, dict.fromkeys(__all__, "factorflow.report.figures") | {"write_report": "factorflow.report.html"}
)
