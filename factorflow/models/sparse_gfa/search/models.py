"""Models of fewer factors: under trial, taking passes of their own, and fits that are over.

`state.Globals` holds them, and they hold such globals and views: `Any` here, so that one imports the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

__all__ = ["Attempt", "Loose", "Rung", "Smaller", "Trial"]


@dataclass(frozen=True)
class Smaller:
    """A model of fewer factors under trial.

    Parameters
    ----------
    pick : array
        B: its loadings begin as W B.
    reading : array
        L: what the expected scores say of its own, E z' = S' L E z.
    evidence : array
        Precision that its loadings give its scores, averaged over the samples: S'^-1 less the prior's.
    views : mapping of view to View
        What its features share.
    short : float
        By how much its bound fell short at the last look.
    """

    pick: Float64[np.ndarray, "K fewer"]
    reading: Float64[np.ndarray, "fewer K"]
    evidence: Float64[np.ndarray, "fewer fewer"]
    views: Mapping[str, Any]
    short: float = float("inf")


@dataclass(frozen=True)
class Trial:
    """Smaller models that the next update of the features is to judge.

    Parameters
    ----------
    models : tuple of Smaller
        See there.
    looks : int
        How often they were looked at.
    final : bool
        Whether there is one that was found better, and takes over if it still is.
    """

    models: tuple[Smaller, ...]
    looks: int = 0
    final: bool = False


@dataclass(frozen=True)
class Loose:
    """What says by how much the bound is too fond of a smaller model; see `trials`.

    Parameters
    ----------
    likelihood : float
        Of views with a loose bound, each times the share that it loses too little.
    lost : float
        What the bound of binary views would have besides, if it was not loose.
    known : array
        Reliability of each factor.
    """

    likelihood: float
    lost: float
    known: Float64[np.ndarray, " K"]


@dataclass(frozen=True)
class Attempt:
    """Smaller models that take passes of their own, one after the other; see `attempts`.

    Parameters
    ----------
    picks : tuple of array
        B of the one that takes passes, and of those that follow.
    margins : tuple of float
        By how much the bound of each must be higher than that of the model at hand.
    least : float
        The bound to get beyond, each less its margin: that of the model at hand, or of the best so far.
    pace : float
        What it gained by its last pass.
    loose : Loose
        Of the model at hand.
    behind : tuple of float
        By how much the first was behind that after each of its passes.
    best : Globals or None
        The best so far, if it is better than the model at hand.
    close : bool
        Whether one was given up that was ahead but for what the model at hand would have gained.
    """

    picks: tuple[Float64[np.ndarray, "K fewer"], ...]
    margins: tuple[float, ...]
    least: float
    pace: float
    loose: Loose
    behind: tuple[float, ...] = ()
    best: Any = None
    close: bool = False


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
