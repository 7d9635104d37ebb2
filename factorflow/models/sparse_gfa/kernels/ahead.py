"""Loops that are compiled ahead (`factorflow.kernels.ahead`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from factorflow.kernels.ahead import Loop

_KERNELS = "factorflow.models.sparse_gfa.kernels"


def loops(model: Mapping[str, Any]) -> list[Loop]:
    """Return what each fit needs, then what missing entries and views of other likelihoods do."""
    return [
        Loop(f"{_KERNELS}.lanes", "update_coordinates", "d2r d1r d3 ? d2"),
        Loop(f"{_KERNELS}.lanes", "solve", "d2r d1r d2r d2 d2 d2"),
        Loop(f"{_KERNELS}.loops", "add_listed", "d2r l1r i1r d1r d1r d1r d1 l1 d2"),
        Loop("factorflow.kernels.softplus_table", "_looked_up", "f1 d1 d1 d2 i1 d2 f1"),
    ]
