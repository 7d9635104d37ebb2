"""Expected slope and curvature of binary log-likelihoods on the CPU: one loop over the entries of a block.

Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.models.sparse_gfa.kernels import entry_counts as counts
from factorflow.models.sparse_gfa.kernels.vectors import compiled, exp

__all__ = ["local"]

Array = Any
NODES, WEIGHTS = np.array(counts.NODES), np.array(counts.WEIGHTS)


@compiled
def local(values: Array, mean: Array, variance: Array, precision: Array, weighted: Array) -> None:
    """Write u and u y^ of every entry, given x ~ N(mean, variance); 0 where it is missing.

    With f = -log p(y given x): u = E f'' = E sigma (1 - sigma), u y^ = u E x - E f' = u E x + y - E sigma.
    """
    size = values.shape[1]
    level, sd = np.empty(size), np.empty(size)
    rate, curvature = np.empty(size), np.empty(size)
    for n in range(values.shape[0]):
        for d in range(size):
            level[d] = mean[n, d]
            sd[d] = math.sqrt(max(np.float64(variance[n, d]), 0.0))
            rate[d], curvature[d] = 0.0, 0.0
        for i in range(NODES.size):
            node, weight = NODES[i], WEIGHTS[i]
            for d in range(size):
                x = level[d] + node * sd[d]
                e = exp(-min(abs(x), 600.0))
                s = 1.0 / (1.0 + e)
                rate[d] += weight * (s if x > 0.0 else e * s)
                curvature[d] += weight * e * s * s
        for d in range(size):
            y = np.float64(values[n, d])
            seen = 1.0 if y >= 0.0 else 0.0
            precision[n, d] = seen * curvature[d]
            weighted[n, d] = seen * (curvature[d] * level[d] + y - rate[d])
