"""When a fit of few binary entries is at its end: where bound and likelihood together gain no more.

What is left to gain after a dozen of sparse passes is mostly what scores and loadings cost: for a hundred
passes small loadings become zeros, one by one, and others shrink. That raises the bound more than it should,
since a posterior of independent loadings takes what they know of each other for lost; the likelihood falls,
and hidden entries are predicted worse from pass to pass. So passes are judged by::

    bound + LIKELIHOOD (bound on E log p(y given x))

and a stage ends where this gains less than `GAIN` nats, or less than was asked for. What is recorded is the
bound.
"""

from __future__ import annotations

import numpy as np

from factorflow.models.sparse_gfa.settings import FEW, Settings
from factorflow.models.sparse_gfa.state import Globals
from factorflow.trees import replace

__all__ = ["GAIN", "LIKELIHOOD", "weighed"]

GAIN = 0.05
"""Nats below which a pass gains nothing: scores by which fits are compared (`rungs`) differ by several."""
LIKELIHOOD = 0.3
"""Weight of the likelihood beside the bound, of which it is a part."""
_FIRST = 7
"""Passes of a stage before the first that is weighed: until then scores that start with a variance of their
own settle, and the likelihood falls for that."""


def weighed(
    settings: Settings, before: Globals, new: Globals, objective: float, likelihood: float, count: int
) -> tuple[Globals, float | None]:
    """Return the globals with what a pass came to, and by how much that is more than what the last one did.

    That is the gain of the bound at first; None where it is not known, or entries are many.

    Parameters
    ----------
    settings, before, new : Settings, Globals
        Of the run; before and after a sparse pass.
    objective, likelihood : float
        What is recorded of the pass, and the part of its bound that is of the entries given x.
    count : int
        Passes of the stage before it.
    """
    if not settings.is_small_binary or settings.inference != "full" or before.observed >= FEW:
        return new, None
    if new.restored:  # all is as it was
        return replace(new, weighed=before.weighed), 0.0
    known, worth = bool(np.isfinite(before.weighed)), objective + LIKELIHOOD * likelihood
    if not known and not count:
        return new, None
    gained = worth - before.weighed if known else objective - before.objective
    new = replace(new, weighed=worth) if known or count >= _FIRST else new
    return new, gained if gained >= GAIN else 0.0
