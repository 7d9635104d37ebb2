"""The settings that Python, command line and flows share."""

from factorflow.settings.base import Options, describe, parse_config, values_of
from factorflow.settings.clusters import Cluster, ClusterSetting
from factorflow.settings.reading import read_yaml
from factorflow.settings.runs import (
    SELECTION,
    ExecutorName,
    MatrixOptions,
    RefreshOptions,
    ResumeOptions,
    RunOptions,
    TableOptions,
    TrialOptions,
)

__all__ = [
    "SELECTION",
    "Cluster",
    "ClusterSetting",
    "ExecutorName",
    "MatrixOptions",
    "Options",
    "RefreshOptions",
    "ResumeOptions",
    "RunOptions",
    "TableOptions",
    "TrialOptions",
    "describe",
    "parse_config",
    "read_yaml",
    "values_of",
]
