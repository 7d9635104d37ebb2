"""Fits of several numbers of factors that are over.

`state.Globals` holds them, and they hold such globals: `Any` here, so that one imports the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Rung"]


@dataclass(frozen=True)
class Rung:
    """A fit of one of several numbers of factors, when it is over.

    Parameters
    ----------
    begun, kept, n_factors : int
        Factors that it began with (0: not known), that it kept to its end, and those of them that explain
        something.
    objective, score : float
        The bound that it reached, and by what fits are compared: see `rungs`.
    globals_ : Globals or None
        What it learned, without ``fixed``; of the best alone, until that goes on.
    """

    begun: int
    kept: int
    n_factors: int
    objective: float
    score: float
    globals_: Any
