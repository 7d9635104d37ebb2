"""Size factors of counts: how much of each sample was counted; their logarithm is added to the predictor.

o_n of a row and view, of its observed entries, with averages over the samples of the fit:

- "total": log (sum_d y_nd / sum_d mean y_d); a row without counts has half a count: it says next to nothing;
- "median": median_d of log (y_nd + 1/2) less the mean of that feature, which few large features do not sway.

A row that a view lacks has o_n = 0. The logarithm of a rate then is x + o_n, and nothing else of a model
knows of them.

References
----------
Anders and Huber (2010), Genome Biology 11, R106 (the median of ratios).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Shaped

from factorflow.kernels import device
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.settings import ViewSettings
from factorflow.models.sparse_gfa.state import Fixed

__all__ = ["METHODS", "entry_level", "log_size_factors"]

METHODS = ("none", "total", "median")
"""How they are found."""


def entry_level(view: ViewSettings, values: Shaped[Array, "B D"]) -> Float64[Array, " D"] | None:
    """Return the sums over a block of what size factors are relative to; None where there are none."""
    if view.size_factors == "none":
        return None
    y, seen = _entries(view, values)
    return (y * seen).sum(axis=0)


def log_size_factors(
    view: ViewSettings, fixed: Fixed | None, values: Shaped[Array, "B D"]
) -> Float64[Array, " B"] | None:
    """Return o of each row of a block; None where there are no size factors, or no averages yet.

    Parameters
    ----------
    view : ViewSettings
        The view.
    fixed : Fixed or None
        With the averages.
    values : array
        Entries.
    """
    if view.size_factors == "none" or fixed is None or fixed.average is None:
        return None
    y, seen = _entries(view, values)
    found, known = np.zeros(len(y)), seen @ fixed.average > 0.0
    if view.size_factors == "total":
        expected = seen[known] @ fixed.average
        found[known] = np.log(np.maximum(y[known].sum(axis=1), 0.5) / expected)
        return found
    known = seen.any(axis=1)
    found[known] = np.nanmedian(np.where(seen > 0.0, y - fixed.average, np.nan)[known], axis=1)
    return found


def _entries(
    view: ViewSettings, values: Shaped[Array, "B D"]
) -> tuple[Float64[Array, "B D"], Float64[Array, "B D"]]:
    """Return counts, or log (count + 1/2) for medians, 0 where missing; and 1 where they are not."""
    y = device.on_host(values).astype(np.float64)
    seen = (y >= 0.0).astype(np.float64)
    y = np.where(seen > 0.0, y, 0.0)
    return (np.log(y + 0.5) if view.size_factors == "median" else y), seen
