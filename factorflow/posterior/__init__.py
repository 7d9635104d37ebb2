"""What a run found: building, writing and reading posteriors; prediction, diagnostics, analysis, export."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factorflow.posterior.analysis import Matching, associate, factor_correlation, match_factors
    from factorflow.posterior.enrichment import enrich, read_gmt
    from factorflow.posterior.export import annotate_anndata, annotate_mudata, export_mofa, export_tables
    from factorflow.posterior.posterior import Posterior, open_posterior

__all__ = [
    "Matching",
    "Posterior",
    "annotate_anndata",
    "annotate_mudata",
    "associate",
    "enrich",
    "export_mofa",
    "export_tables",
    "factor_correlation",
    "match_factors",
    "open_posterior",
    "read_gmt",
]

_HOME = {
    "Matching": "analysis",
    "Posterior": "posterior",
    "annotate_anndata": "export",
    "annotate_mudata": "export",
    "associate": "analysis",
    "enrich": "enrichment",
    "export_mofa": "export",
    "export_tables": "export",
    "factor_correlation": "analysis",
    "match_factors": "analysis",
    "open_posterior": "posterior",
    "read_gmt": "enrichment",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"factorflow.posterior.{_HOME[name]}"), name)
