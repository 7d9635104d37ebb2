"""Loops that are compiled ahead (`factorflow.kernels.ahead`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from factorflow.kernels.ahead import Loop

_KERNELS = "factorflow.models.identity_attribute.kernels"


def loops(model: Mapping[str, Any]) -> list[Loop]:
    """Return those that a fit needs late: the first one is `frames._update_tiles`, or that of chains."""
    each, kind = f"l*{model.get('n_attributes', 2)}", model.get("factorisation", "frame_then_chain")
    chains = [
        Loop(
            f"{_KERNELS}.all_chains",
            "_smooth_all",
            f"{each} l1 l1 ?1 ?1 d2 d2 d3 d2r d d2 d d2 d2 d2 d2 d2 d3 d4 d3 d2",
            ("add_frame_before", "continue_chain"),
        )
    ]
    frames = [
        Loop(
            f"{_KERNELS}.statistics",
            "sum_statistics",
            "l1 l1 d2r d2r d2r d2r d2r d2r l1 l1 d4 d2 d1 d2 d2 d2 d1 d1 d2 d2 d3 d3 d1 d2",
        )
    ]
    shared = [Loop(f"{_KERNELS}.statistics", "write_means", "d2 d2 d2 d2 d2")]
    return [*(chains if "chain" in kind else []), *(frames if "frame" in kind else []), *shared]
