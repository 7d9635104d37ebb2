"""Exact draws of Polya-Gamma variables for the entries of a block.

Given omega ~ PG(1, x) a binary entry is Gaussian in its predictor x, of precision omega and value
(y - 1/2) / omega [1]_. PG(1, x) is a fourth of J*(1, |x| / 2). Its density falls by exp(-z^2 t / 2) beside
that of J*(1, 0): a quantile at the next z of the table below (`jacobi`) is accepted with probability
exp(-(z^2 - z_table^2) t / 2), nine of ten are. Beyond the table it is an inverse Gaussian [2]_. Every try
takes fresh words of the entry's own counter: how many an entry needs moves no other.

References
----------
.. [1] N. G. Polson, J. G. Scott, J. Windle, "Bayesian inference for logistic models using Polya-Gamma latent
   variables", Journal of the American Statistical Association 108 (2013) 1339-1349.
.. [2] J. R. Michael, W. R. Schucany, R. W. Haas, "Generating random variates using transformations with
   multiple roots", The American Statistician 30 (1976) 88-90.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from math import log, sqrt

import numpy as np
from jaxtyping import Float, Integer, Shaped

from factorflow.core.block import Array
from factorflow.kernels import device
from factorflow.kernels.compile import compile_scalar, options
from factorflow.kernels.jacobi import FAR, STEP, quantile, table
from factorflow.kernels.random import Step
from factorflow.kernels.scalar.normal import at_least_zero, fast_exp, ndtri
from factorflow.kernels.scalar.philox import philox_pair

_LAST = int(FAR / STEP) - 1


@options(forceinline=True)
def _place(z):
    """Return the number of the table's last z that is not above z (the last one from FAR on)."""
    return np.int64(z / STEP) if z < FAR else np.int64(_LAST)


@options(forceinline=True)
def _log_acceptance(t, z, place):
    """Return the log probability that t, drawn at the table's z, is accepted."""
    near = place * STEP
    return 0.5 * (near * near - z * z) * t


def _redraw(z, table, seed, row, iteration, place):
    """Return a draw of J*(1, z) by tries after the first."""
    near, word = _place(z), np.uint64(0)
    while True:
        word += np.uint64(1)
        u, level = philox_pair(seed, row, word, iteration, place)
        t = quantile(u, near, table)
        if level < fast_exp(_log_acceptance(t, z, near)):
            return t


def inverse_gaussian(z, u, level):
    """Return an inverse Gaussian of mean 1 / z and shape 1, by its two roots [2]_."""
    mean, normal = 1.0 / z, ndtri(u)
    y = mean * normal * normal
    t = mean + 0.5 * mean * (y - sqrt(4.0 * y + y * y))
    return t if level <= mean / (mean + t) else mean * mean / t


def draw_rows(values, x, rows, width, offset, seed, iteration, place, table, precision, weighted):
    """Draw omega of every entry into ``precision``, set ``weighted`` to y - 1/2; return sum log p(y | x).

    Both are 0 where the entry is missing. An entry's number is its row's times ``width`` plus ``offset`` plus
    its column. What all entries of a row need is computed in loops without branches.
    """
    total, size = 0.0, values.shape[1]
    u, level, t, accepted, decay = np.empty((5, size))
    for i in range(values.shape[0]):
        first = rows[i] * width + offset
        for j in range(size):
            u[j], level[j] = philox_pair(seed, first + np.uint64(j), np.uint64(0), iteration, place)
        for j in range(size):
            z = 0.5 * abs(x[i, j])
            near = _place(z)
            t[j] = quantile(u[j], near, table)
            accepted[j] = _log_acceptance(t[j], z, near)
        for j in range(size):
            accepted[j] = fast_exp(accepted[j])
            decay[j] = 1.0 + fast_exp(-abs(x[i, j]))
        product = 1.0  # of 1 + exp(-|x|): a logarithm for many
        for j in range(size):
            y, z = np.float64(values[i, j]), 0.5 * abs(x[i, j])
            if y < 0.0:
                precision[i, j] = weighted[i, j] = 0.0
                continue
            if z < FAR and level[j] < accepted[j]:
                found = t[j]
            elif z < FAR:
                found = _redraw(z, table, seed, first + np.uint64(j), iteration, place)
            else:
                found = inverse_gaussian(z, u[j], level[j])
            precision[i, j], weighted[i, j] = 0.25 * found, y - 0.5
            total += y * x[i, j] - at_least_zero(x[i, j])
            product *= decay[j]
            if product > 1e300:
                total -= log(product)
                product = 1.0
        total -= log(product)
    return total


def draw_weights(
    values: Shaped[Array, "B D"],
    x: Float[Array, "B D"],
    rows: Integer[np.ndarray, " B"],
    columns: tuple[int, int],
    step: Step,
    site: int,
) -> tuple[Float[Array, "B D"], Float[Array, "B D"], float]:
    """Return omega and y - 1/2 of every entry of a binary view, 0 where missing, and sum log p(y | x).

    Parameters
    ----------
    values : array
        0, 1, or below 0 where missing.
    rows : array
        Global numbers of the rows.
    columns : (int, int)
        Columns of all views together, and of those before this view: they number the entries.
    """
    y, predictor = device.on_host(values), device.on_host(x)
    precision, weighted = np.empty_like(predictor), np.empty_like(predictor)
    counter = np.uint64(step.seed), np.uint64(step.iteration), np.uint64(site | (step.stream << 16))
    total = compile_scalar(draw_rows)(
        np.ascontiguousarray(y), np.ascontiguousarray(predictor), np.asarray(rows, np.uint64),
        np.uint64(columns[0]), np.uint64(columns[1]), *counter, table(), precision, weighted,
    )  # fmt: skip
    return device.move_beside(precision, values), device.move_beside(weighted, values), float(total)
