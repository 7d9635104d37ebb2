"""Figures of a posterior, and a report that is one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factorflow.lazy_imports import names_of, on_first_use

if TYPE_CHECKING:
    from factorflow.report.checks import plot_calibration, plot_rootogram
    from factorflow.report.figures import (
        plot_data,
        plot_factor_correlation,
        plot_loadings,
        plot_presence,
        plot_rhat,
        plot_scores,
        plot_trace,
        plot_variance_explained,
        plot_weights,
    )
    from factorflow.report.html import write_report
    from factorflow.report.sequences import plot_attributes, plot_identities

__all__ = [
    "plot_attributes",
    "plot_calibration",
    "plot_data",
    "plot_factor_correlation",
    "plot_identities",
    "plot_loadings",
    "plot_presence",
    "plot_rhat",
    "plot_rootogram",
    "plot_scores",
    "plot_selection",
    "plot_trace",
    "plot_variance_explained",
    "plot_weights",
    "write_report",
]

__getattr__ = on_first_use(
    __name__,
    dict.fromkeys(__all__, "factorflow.report.figures")
    | dict.fromkeys(("plot_calibration", "plot_rootogram"), "factorflow.report.checks")
    | dict.fromkeys(("plot_attributes", "plot_identities"), "factorflow.report.sequences")
    | {"plot_selection": "factorflow.report.selection", "write_report": "factorflow.report.html"},
)
__dir__ = names_of(__name__, __all__)
