"""The settings that Python, command line and flows share."""

from factorflow.settings.base import (
    Options,
    describe,
    document_options,
    naming_types,
    parse_config,
    values_of,
)
from factorflow.settings.clusters import Cluster, ClusterSetting
from factorflow.settings.reading import read_yaml
from factorflow.settings.runs import (
    SELECTION,
    ExecutorName,
    FitOptions,
    ProjectOptions,
    RefreshOptions,
    ResumeOptions,
    RunOptions,
    SelectOptions,
    TrialOptions,
)
from factorflow.settings.sources import (
    DerivedOptions,
    FileOptions,
    MatrixOptions,
    SourceOptions,
    TableOptions,
    check_block_rows,
)

__all__ = [
    "SELECTION",
    "Cluster",
    "ClusterSetting",
    "DerivedOptions",
    "FileOptions",
    "ExecutorName",
    "FitOptions",
    "MatrixOptions",
    "Options",
    "ProjectOptions",
    "RefreshOptions",
    "ResumeOptions",
    "RunOptions",
    "SelectOptions",
    "SourceOptions",
    "TableOptions",
    "TrialOptions",
    "check_block_rows",
    "describe",
    "document_options",
    "naming_types",
    "parse_config",
    "read_yaml",
    "values_of",
]
