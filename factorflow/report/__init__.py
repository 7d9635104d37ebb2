"""Figures of a posterior, and a report that is one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factorflow.core.lazy_imports import names_of, on_first_use

if TYPE_CHECKING:
    from factorflow.report.analysis_plots import plot_association, plot_enrichment
    from factorflow.report.checks import plot_calibration, plot_rootogram
    from factorflow.report.data_plots import plot_data, plot_presence
    from factorflow.report.factor_plots import (
        plot_factor_correlation,
        plot_loadings,
        plot_top_weights,
        plot_variance_explained,
        plot_weights,
    )
    from factorflow.report.html import write_report
    from factorflow.report.run_plots import plot_rhat, plot_trace
    from factorflow.report.sample_plots import plot_covariate, plot_distribution, plot_embedding, plot_scores
    from factorflow.report.selection import plot_selection
    from factorflow.report.sequences import plot_attributes, plot_identities
    from factorflow.report.smooth_plots import plot_group_correlation, plot_smoothness, plot_space
    from factorflow.report.survival_plots import plot_survival

__all__ = [
    "plot_association",
    "plot_attributes",
    "plot_calibration",
    "plot_covariate",
    "plot_data",
    "plot_distribution",
    "plot_embedding",
    "plot_enrichment",
    "plot_factor_correlation",
    "plot_group_correlation",
    "plot_identities",
    "plot_loadings",
    "plot_presence",
    "plot_rhat",
    "plot_rootogram",
    "plot_scores",
    "plot_selection",
    "plot_smoothness",
    "plot_space",
    "plot_survival",
    "plot_top_weights",
    "plot_trace",
    "plot_variance_explained",
    "plot_weights",
    "write_report",
]

_FILES = {
    "analysis_plots": ("association", "enrichment"),
    "checks": ("calibration", "rootogram"),
    "data_plots": ("data", "presence"),
    "factor_plots": ("factor_correlation", "loadings", "top_weights", "variance_explained", "weights"),
    "run_plots": ("rhat", "trace"),
    "sample_plots": ("covariate", "distribution", "embedding", "scores"),
    "selection": ("selection",),
    "sequences": ("attributes", "identities"),
    "smooth_plots": ("group_correlation", "smoothness", "space"),
    "survival_plots": ("survival",),
}

__getattr__ = on_first_use(
    __name__,
    {f"plot_{name}": f"factorflow.report.{file}" for file, names in _FILES.items() for name in names}
    | {"write_report": "factorflow.report.html"},
)
__dir__ = names_of(__name__, __all__)
