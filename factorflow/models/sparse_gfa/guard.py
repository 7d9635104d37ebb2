"""The guard of sparse group factor analysis: how far a pass may move, and an end where numbers overflow.

Of entries that are not Gaussian a pass maximises tangents, which have value and slope of the expected
log-likelihood at the state that it begins with. The objective that is recorded is their value behind the
pass: what the likelihood itself has there, but for third powers of the step. Where steps are too long for
that, the next tangents lie lower.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.state import Globals

__all__ = ["check_finite", "next_step_length"]

SLOWEST, FASTER = 0.125, 1.1
"""Share of the way that a step goes at least, and how much longer it gets with every rise of the bound."""


def check_finite(globals_: Globals, bound: float) -> None:
    """Refuse to go on with a bound that is not finite.

    Raises
    ------
    FloatingPointError
        Naming the views whose parameters are not finite.
    """
    if not np.isfinite(bound):
        raise FloatingPointError(
            f"the bound is {bound}, and {_not_finite(globals_)}. Look for values far from all others, scale "
            "the features (scale_features), or start from fewer factors"
        )


def _not_finite(globals_: Globals) -> str:
    """Return in words which views have parameters that are not finite."""
    names = {
        name: [f.name for f in fields(w) if not _finite(getattr(w, f.name))]
        for name, w in globals_.weights.items()
    }
    bad = [f"{name} ({', '.join(parts)})" for name, parts in names.items() if parts]
    return f"parameters of {'; '.join(bad)} are not finite" if bad else "all loadings are finite"


def _finite(values: Float64[Array, "*shape"] | None) -> bool:
    return values is None or bool(np.isfinite(values).all())


def next_step_length(before: Globals, new: Globals, objective: float, rounding: float) -> float:
    """Return how far the next pass may move: half as far after a fall of the objective.

    With every rise it is a tenth more again, up to the whole way. Objectives are not compared across numbers
    of factors, or with those before a longer step.

    Parameters
    ----------
    before, new : Globals
        Before and after the pass.
    objective, rounding : float
        What the pass found; by how much that may be wrong.
    """
    comparable = new.n_factors == before.n_factors and before.snapshot is None
    if comparable and objective < before.objective - rounding:
        return max(0.5 * before.step_length, SLOWEST)
    return min(1.0, FASTER * before.step_length)
