"""Size factors of counts: their logarithm is added to the predictor.

The logarithm of a rate is x + o_n with o_n = log s_n: computed (`factorflow.models.size_factors`), read from
a column of the sample metadata, or learned (`learned_sizes`); nothing else of the model knows of them.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Shaped

from factorflow.core.block import SIZES
from factorflow.models import size_factors
from factorflow.models.contract import Array, Block
from factorflow.models.size_factors import LEARNED, METHODS
from factorflow.models.sparse_gfa.settings import ViewSettings
from factorflow.models.sparse_gfa.state import Fixed

__all__ = ["LEARNED", "METHODS", "entry_level", "log_size_factors"]


def entry_level(view: ViewSettings, values: Shaped[Array, "B D"]) -> Float64[Array, " D"] | None:
    """Return the sums over a block of what size factors are relative to; None where there are none."""
    computed = view.size_factors in ("total", "median")
    return size_factors.level_sums(view.size_factors, values) if computed else None


def log_size_factors(
    view: ViewSettings, fixed: Fixed | None, block: Block, values: Shaped[Array, "B D"]
) -> Float64[Array, " B"] | None:
    """Return the given or computed o of each row of a block; None without size factors, or no averages yet.

    What is computed is kept with the block: it takes a pass over all entries.

    Parameters
    ----------
    view : ViewSettings
        The view.
    fixed : Fixed or None
        With the averages.
    block : Block
        The rows.
    values : array
        Entries.
    """
    if view.size_column is not None:
        return np.asarray(np.log(block.columns[SIZES][:, view.size_column]))
    if view.size_factors == "none" or fixed is None or fixed.average is None:
        return None
    average = fixed.average
    return block.once(
        ("size factors", view.name),
        (average,),
        lambda: size_factors.log_size_factors(view.size_factors, average, values),
    )
