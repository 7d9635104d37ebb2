"""What an iteration of sparse group factor analysis reports, and how far the next one may move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.sums import FeatureSums, Stats
from factorflow.trees import replace

__all__ = ["reported", "with_pace"]

SLOWEST, FASTER = 0.125, 1.1
"""Share of the way that a step goes at least, and how much longer it gets with every rise of the bound."""


def reported(
    settings: Settings,
    before: Globals,
    new: Globals,
    bound: float,
    sums: Mapping[str, FeatureSums],
    stats: Stats,
) -> tuple[float, float | None]:
    """Return the bound to report, and what `Globals.rest` keeps for the next iteration.

    With a tangent in place of the bound (`ViewSettings.tangent`) the value after an iteration is known once
    the next one has visited the entries: what is reported is the bound at the state the iteration began with,
    and NaN where there is none.

    Raises
    ------
    FloatingPointError
        If the bound is not finite, with the views whose parameters are not.
    """
    tangent = [view.name for view in settings.views if view.tangent]
    rest, objective = None, bound
    if tangent:
        constant = sum(float(before.fixed[name].constant.sum()) for name in tangent)
        rest = bound - stats.tangent - sum(sums[name].likelihood for name in tangent) + constant
        objective = float("nan") if before.rest is None else before.rest + stats.reached
    known = not tangent or before.rest is not None
    if not np.isfinite(bound) or (known and not np.isfinite(objective)):
        raise FloatingPointError(
            f"the bound is {bound}, and {_not_finite(new)}. Look for values far from all others, scale the "
            "features (scale_features=True), or start from fewer factors"
        )
    return objective, rest


def _not_finite(globals_: Globals) -> str:
    """Return in words which views have parameters that are not finite."""
    found = {
        name: [f.name for f in fields(w) if not _finite(getattr(w, f.name))]
        for name, w in globals_.weights.items()
    }
    bad = [f"{name} ({', '.join(parts)})" for name, parts in found.items() if parts]
    return f"parameters of {'; '.join(bad)} are not finite" if bad else "all loadings are finite"


def _finite(values: Float64[Array, "*shape"] | None) -> bool:
    return values is None or bool(np.isfinite(values).all())


def with_pace(
    settings: Settings, before: Globals, new: Globals, objective: float, rest: float | None
) -> Globals:
    """Return the globals with how far the next iteration may move: half as far after a fall of the bound.

    With every rise it is a tenth more again, up to the whole way. Bounds are not compared across numbers of
    factors.
    """
    same = new.n_factors == before.n_factors
    new = replace(new, rest=rest if same else None)
    if not settings.tangent:
        return new
    pace = min(1.0, FASTER * before.pace)
    if before.reached is not None and objective < before.reached:
        pace = max(0.5 * before.pace, SLOWEST)
    known = same and bool(np.isfinite(objective))
    return replace(new, reached=objective if known else None, pace=pace)
