"""Figures of a posterior, and a report that is one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factorflow.lazily import on_first_use

if TYPE_CHECKING:
    from factorflow.report.checks import plot_calibration, plot_rootogram
    from factorflow.report.figures import (
        plot_data,
        plot_factor_correlation,
        plot_loadings,
        plot_rhat,
        plot_scores,
        plot_trace,
        plot_variance_explained,
        plot_weights,
    )
    from factorflow.report.html import write_report

__all__ = [
    "plot_calibration",
    "plot_data",
    "plot_factor_correlation",
    "plot_loadings",
    "plot_rhat",
    "plot_rootogram",
    "plot_scores",
    "plot_trace",
    "plot_variance_explained",
    "plot_weights",
    "write_report",
]

__getattr__ = on_first_use(
    __name__,
    dict.fromkeys(__all__, "factorflow.report.figures")
    | dict.fromkeys(("plot_calibration", "plot_rootogram"), "factorflow.report.checks")
    | {"write_report": "factorflow.report.html"},
)
