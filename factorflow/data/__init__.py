"""The multi-view store: layout, opening, ingest, tables, simulators, hold-outs and the block grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factorflow.core.lazy_imports import names_of, on_first_use

if TYPE_CHECKING:
    from factorflow.core.block import Block, Likelihood, Meta, Missing, ViewMeta
    from factorflow.core.design import TableDesign
    from factorflow.data.holdout import Holdout
    from factorflow.data.ingest.add_view import add_view
    from factorflow.data.ingest.checks import DataWarning
    from factorflow.data.ingest.ingest import write_dataset
    from factorflow.data.simulation.simulate import simulate
    from factorflow.data.store.dataset import Dataset, open_dataset
    from factorflow.data.tables.write import write_table

__all__ = [
    "Block",
    "DataWarning",
    "Dataset",
    "Holdout",
    "Likelihood",
    "Meta",
    "Missing",
    "TableDesign",
    "ViewMeta",
    "add_view",
    "open_dataset",
    "simulate",
    "write_dataset",
    "write_table",
]

__getattr__ = on_first_use(
    __name__,
    {
        **dict.fromkeys(("Block", "Likelihood", "Meta", "Missing", "ViewMeta"), "factorflow.core.block"),
        **dict.fromkeys(("Dataset", "open_dataset"), "factorflow.data.store.dataset"),
        "DataWarning": "factorflow.data.ingest.checks",
        "Holdout": "factorflow.data.holdout",
        "TableDesign": "factorflow.core.design",
        "add_view": "factorflow.data.ingest.add_view",
        "simulate": "factorflow.data.simulation.simulate",
        "write_dataset": "factorflow.data.ingest.ingest",
        "write_table": "factorflow.data.tables.write",
    },
)
__dir__ = names_of(__name__, __all__)
