"""Loops that are compiled ahead (`factorflow.kernels.ahead`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from factorflow.kernels.ahead import Loop


def loops(model: Mapping[str, Any]) -> list[Loop]:
    """Return the loop over features: that over samples is needed at once."""
    module = "factorflow.models.probit.kernels.loadings"
    return [Loop(module, "loop_features", "d2r d2r d1r d1r d d d2r d2r d2")]
