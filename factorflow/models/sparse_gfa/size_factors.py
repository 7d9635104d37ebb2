"""Size factors of counts: their logarithm is added to the predictor.

The logarithm of a rate is x + o_n with o_n = log s_n (`factorflow.models.size_factors`), and nothing else of
the model knows of them.
"""

from __future__ import annotations

from jaxtyping import Float64, Shaped

from factorflow.models import size_factors
from factorflow.models.contract import Array
from factorflow.models.size_factors import METHODS
from factorflow.models.sparse_gfa.settings import ViewSettings
from factorflow.models.sparse_gfa.state import Fixed

__all__ = ["METHODS", "entry_level", "log_size_factors"]


def entry_level(view: ViewSettings, values: Shaped[Array, "B D"]) -> Float64[Array, " D"] | None:
    """Return the sums over a block of what size factors are relative to; None where there are none."""
    return None if view.size_factors == "none" else size_factors.level_sums(view.size_factors, values)


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
    return size_factors.log_size_factors(view.size_factors, fixed.average, values)
