"""Expected log-likelihoods of counts on the CPU: fused loops over the entries of a block.

The formulas are those of `entry_counts`, beside this file: of a negative binomial, log(1 + delta e^x) is
log(1 + e^x') at x' = x + log delta, whose expectations stand in a table. The loop over the nodes lies outside
the one over the features of a row, which the compiler turns into vector instructions. Importing this module
imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorflow.kernels.softplus_table import RUN, softplus_run, softplus_tables, workspace
from factorflow.models.sparse_gfa.kernels import entry_counts as counts
from factorflow.models.sparse_gfa.kernels.vectors import compiled, vectorised

__all__ = ["derivatives", "local"]

Array = Any
_poisson = vectorised(counts.poisson_terms)
_steepness = vectorised(counts.steepness)
_dispersion, _rising = vectorised(counts.dispersion_terms), vectorised(counts.rising)
NODES, WEIGHTS = np.array(counts.NODES), np.array(counts.WEIGHTS)


def local(
    values: Array, mean: Array, variance: Array, dispersion: Array, precision: Array, weighted: Array
) -> Array:
    """Write u and u y^ of every entry, given x ~ N(mean, variance); return two sums.

    They are what is free of x in the tangent, and the expected log-likelihood, both less log y! and what
    `derivatives` returns. A dispersion of 0 of all features stands for Poisson's likelihood.
    """
    return _local(softplus_tables(), values, mean, variance, dispersion, precision, weighted)


@compiled
def _local(
    tables: Any,
    values: Array,
    mean: Array,
    variance: Array,
    dispersion: Array,
    precision: Array,
    weighted: Array,
) -> Array:
    dispersed = dispersion.max() > 0.0
    size = values.shape[1]
    y, seen, level, sd = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    total, slope, curvature, expected = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    x, variances, shape = np.empty(size), np.empty(size), 1.0 / np.maximum(dispersion, 1e-300)
    log_shape, work = np.log(shape), workspace()
    free, reached = 0.0, 0.0
    for n in range(values.shape[0]):
        for d in range(size):
            given = np.float64(values[n, d])
            seen[d] = 1.0 if given >= 0.0 else 0.0
            y[d] = given if given >= 0.0 else 0.0
            level[d] = mean[n, d]
            sd[d] = math.sqrt(max(np.float64(variance[n, d]), 0.0))
            total[d], slope[d], curvature[d], expected[d] = 0.0, 0.0, 0.0, 0.0
        if dispersed:
            for d in range(size):
                x[d], variances[d] = level[d] - log_shape[d], sd[d] * sd[d]
            for begin in range(0, size, RUN):
                end = min(begin + RUN, size)
                run = slice(begin, end)
                softplus_run(tables, work, x[run], variances[run], total[run], slope[run], curvature[run])
            for d in range(size):
                times, rate = y[d] + shape[d], slope[d]
                total[d] = y[d] * level[d] - times * total[d]
                slope[d] = times * rate - y[d]
                curvature[d] *= times
                expected[d] = shape[d] * rate
        else:
            for i in range(NODES.size):
                node, weight = NODES[i], WEIGHTS[i]
                for d in range(size):
                    value, first, second, usual = _poisson(y[d], level[d] + node * sd[d])
                    total[d] += weight * value
                    slope[d] += weight * first
                    curvature[d] += weight * second
                    expected[d] += weight * usual
        for d in range(size):
            u = _steepness(y[d], level[d], slope[d], curvature[d], expected[d], dispersion[d])
            m, v = level[d], sd[d] * sd[d]
            precision[n, d], weighted[n, d] = seen[d] * u, seen[d] * (u * m - slope[d])
            free += seen[d] * (total[d] + slope[d] * m + 0.5 * u * (v - m * m))
            reached += seen[d] * total[d]
    return free, reached


@compiled
def derivatives(values: Array, mean: Array, variance: Array, dispersion: Array, out: Array) -> Array:
    """Add to ``out`` (2, D) the derivatives of the expected log-likelihood by the dispersion of each feature.

    Returns the sum of `entry_counts.rising`.
    """
    total = 0.0
    for n in range(values.shape[0]):
        for d in range(values.shape[1]):
            y = np.float64(values[n, d])
            if not y >= 0.0:
                continue
            m, sd = np.float64(mean[n, d]), math.sqrt(max(np.float64(variance[n, d]), 0.0))
            value, first, second = _rising(y, dispersion[d])
            total += value
            for i in range(NODES.size):
                one, two = _dispersion(y, m + NODES[i] * sd, dispersion[d])
                first += WEIGHTS[i] * one
                second += WEIGHTS[i] * two
            out[0, d] += first
            out[1, d] += second
    return total
