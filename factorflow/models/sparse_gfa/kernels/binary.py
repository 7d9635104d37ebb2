"""Expected slope and curvature of binary log-likelihoods on the CPU: one loop over the entries of a block.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.softplus_table import RUN, softplus_run, softplus_tables, workspace
from factorflow.models.sparse_gfa.kernels.vectors import compiled

__all__ = ["local"]

Array = Any


def local(values: Array, mean: Array, variance: Array, precision: Array, weighted: Array) -> None:
    """Write u and u y^ of every entry, given x ~ N(mean, variance); 0 where it is missing.

    With f = -log p(y given x): u = E f'' = E sigma (1 - sigma), u y^ = u E x - E f' = u E x + y - E sigma.
    """
    _local(softplus_tables(), values, mean, variance, precision, weighted)


@compiled
def _local(
    tables: Any, values: Array, mean: Array, variance: Array, precision: Array, weighted: Array
) -> None:
    work = workspace()
    value, rate, curvature = np.empty(RUN), np.empty(RUN), np.empty(RUN)
    for n in range(values.shape[0]):
        for first in range(0, values.shape[1], RUN):
            last = min(first + RUN, values.shape[1])
            size = last - first
            m, v, y = mean[n, first:last], variance[n, first:last], values[n, first:last]
            u, r = precision[n, first:last], weighted[n, first:last]
            softplus_run(tables, work, m, v, value[:size], rate[:size], curvature[:size])
            for d in range(size):
                given = np.float64(y[d])
                seen = 1.0 if given >= 0.0 else 0.0
                u[d] = seen * curvature[d]
                r[d] = seen * (curvature[d] * m[d] + given - rate[d])
