"""When a fit of few binary entries has learned enough: where its likelihood falls, the bound rising or not.

What is left to gain after a dozen of sparse passes is mostly what loadings and scores cost: small loadings
become zeros, others shrink, one by one, for a hundred passes. A posterior of independent loadings takes what
they know of each other for lost, so that the bound goes up by more than it should, and hidden entries are
predicted worse all the while. So passes are judged by::

    bound + LIKELIHOOD (bound on E log p(y given x))

A stage ends where this gains too little; what is reported is the bound.
"""

from __future__ import annotations

import numpy as np

from factorflow.models.sparse_gfa.settings import FEW, Settings
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.sums import Stats
from factorflow.trees import replace

__all__ = ["LIKELIHOOD", "weighed"]

GAIN = 0.05
"""Nats below which a pass gains nothing: scores by which fits are compared differ by several."""
LIKELIHOOD = 0.3
"""Weight of the likelihood beside the bound, of which it is a part."""
_FIRST = 7
"""Passes of a stage before the first that is weighed: until then scores that start with a variance of their
own settle, and the likelihood falls for that."""


def weighed(
    settings: Settings, before: Globals, new: Globals, objective: float, likelihood: float, count: int
) -> tuple[Globals, float | None]:
    """Return the globals with what a pass came to, and how much more that is than before; None: by the bound.

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
    known = bool(np.isfinite(before.weighed))
    worth = objective + LIKELIHOOD * likelihood
    gained = worth - before.weighed if known else objective - before.objective
    new = replace(new, weighed=worth) if known or count >= _FIRST else new
    return new, (None if np.isnan(gained) else gained if gained >= GAIN else 0.0)
