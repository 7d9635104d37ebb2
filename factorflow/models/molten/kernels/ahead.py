"""Loops that are compiled ahead (`factorflow.kernels.ahead`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from factorflow.kernels.ahead import Loop

_KERNELS = "factorflow.models.molten.kernels"


def loops(model: Mapping[str, Any]) -> list[Loop]:
    """Return those that counts need late, and one of their types; measurements need few and small ones."""
    if model["model"] != "molten_poisson":
        return []
    return [
        Loop(f"{_KERNELS}.gammas", "update_levels", "d3r d3r d2 d2 d3r d1r ?2 d3 d3 d3 d3 d3 d1 d1"),
        Loop(f"{_KERNELS}.priors", "add_prior_terms", "d1 d3 d2 d3 d3 ?1 d d d1"),
        Loop(f"{_KERNELS}.gammas", "multiply_levels", "d3r d3r d1r ?2 d2 d3 d3"),
        Loop(f"{_KERNELS}.priors", "inverse_digamma", "d1 d1"),
        Loop(f"{_KERNELS}.priors", "best_scales", "d3 d3 d3"),
    ]
