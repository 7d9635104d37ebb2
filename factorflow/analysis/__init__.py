"""Asked of a posterior once it is there: association, matching, enrichment, files of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factorflow.core.lazy_imports import names_of, on_first_use

if TYPE_CHECKING:
    from factorflow.analysis.anomalies import find_anomalies
    from factorflow.analysis.association import associate, factor_correlation
    from factorflow.analysis.consensus_programs import consensus
    from factorflow.analysis.enrichment import enrich
    from factorflow.analysis.export import annotate_anndata, annotate_mudata, export_tables
    from factorflow.analysis.matching import Matching, match_factors
    from factorflow.analysis.mofa_file import export_mofa

__all__ = [
    "Matching",
    "annotate_anndata",
    "annotate_mudata",
    "associate",
    "consensus",
    "enrich",
    "export_mofa",
    "export_tables",
    "factor_correlation",
    "find_anomalies",
    "match_factors",
    "read_gmt",
]

_FILES = ("annotate_anndata", "annotate_mudata", "export_tables")
_FACTORS = ("associate", "factor_correlation")

__getattr__ = on_first_use(
    __name__,
    {
        "find_anomalies": "factorflow.analysis.anomalies",
        **dict.fromkeys(_FACTORS, "factorflow.analysis.association"),
        **dict.fromkeys(("Matching", "match_factors"), "factorflow.analysis.matching"),
        "consensus": "factorflow.analysis.consensus_programs",
        "enrich": "factorflow.analysis.enrichment",
        "read_gmt": "factorflow.data.gmt",
        **dict.fromkeys(_FILES, "factorflow.analysis.export"),
        "export_mofa": "factorflow.analysis.mofa_file",
    },
)
__dir__ = names_of(__name__, __all__)
