"""Expected slope and curvature of binary log-likelihoods on the CPU: one loop over the entries of a block.

Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.models.sparse_gfa.kernels.vectors import compiled, exp

__all__ = ["local"]

Array = Any
RULES, SPREADS = (3, 5, 7, 9), (0.35, 0.75, 1.0)
"""Numbers of Gauss-Hermite nodes, and the largest sd of x up to which those before the last are enough.

E sigma is right to 1.2e-5, u to 2e-4 of it.
"""
NODES, WEIGHTS = np.zeros((2, len(RULES), RULES[-1]))
for _rule, _number in enumerate(RULES):
    _nodes, _weights = np.polynomial.hermite_e.hermegauss(_number)
    NODES[_rule, :_number], WEIGHTS[_rule, :_number] = _nodes, _weights / _weights.sum()


@compiled
def local(values: Array, mean: Array, variance: Array, precision: Array, weighted: Array) -> None:
    """Write u and u y^ of every entry, given x ~ N(mean, variance); 0 where it is missing.

    With f = -log p(y given x): u = E f'' = E sigma (1 - sigma), u y^ = u E x - E f' = u E x + y - E sigma.
    A row takes as many nodes as its entry needs whose x is known least.
    """
    size = values.shape[1]
    level, sd = np.empty(size), np.empty(size)
    rate, curvature = np.empty(size), np.empty(size)
    for n in range(values.shape[0]):
        for d in range(size):
            level[d] = mean[n, d]
            sd[d] = math.sqrt(max(np.float64(variance[n, d]), 0.0))
            rate[d], curvature[d] = 0.0, 0.0
        largest = 0.0
        for d in range(size):
            largest = max(largest, sd[d])
        rule = 0
        while rule < len(SPREADS) and largest > SPREADS[rule]:
            rule += 1
        for i in range(RULES[rule]):
            node, weight = NODES[rule, i], WEIGHTS[rule, i]
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
