"""Size factors of counts: how much of each sample was counted.

s_n of a row and view, of its observed entries, with averages over the samples of the fit:

- "total": sum_d y_nd / sum_d mean y_d; a row without counts has half a count: it says next to nothing;
- "median": median_d of log (y_nd + 1/2) less the mean of that feature, which few large features do not sway.

A row that a view lacks has s_n = 1. Columns of the sample metadata are relative to their mean, and read with
the blocks (`factorflow.data.sizes`).

References
----------
Anders and Huber (2010), Genome Biology 11, R106 (the median of ratios).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

from factorflow.core.kinds import KINDS
from factorflow.kernels import device
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.contract import Array

METHODS = ("none", "total", "median")
"""Ways to compute size factors."""

LEARNED = ("learned", "total+learned")
"""Ways to learn them: about one mean, about what the totals are."""

TILE = 64
"""Rows that are made dense at once: their medians are over zeros, too."""


def columns_of(
    choices: str | Mapping[str, str], methods: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the columns among values of the option, of all views or by view, and the methods; None: none."""
    chosen = [choices] if isinstance(choices, str) else choices.values()
    columns = tuple(name for name in dict.fromkeys(chosen) if name not in methods)
    return (columns, methods) if columns else None


def level_sums(method: str, values: Array | SparseRows) -> Float64[Array, " D"]:
    """Return the sums over a block of what size factors are relative to.

    Parameters
    ----------
    values : (B, D) array or SparseRows
        Counts.
    """
    if isinstance(values, SparseRows):
        return _sums_of_entries(method, values)
    y, observed = _entries(method, values)
    return np.asarray((y * observed).sum(axis=0))


def log_size_factors(
    method: str, average: Float64[Array, " D"], values: Array | SparseRows
) -> Float64[Array, " B"]:
    """Return log s of each row of a block.

    Parameters
    ----------
    average : (D,) array
        Averages over the observed entries of what they are relative to.
    values : (B, D) array or SparseRows
        Counts.
    """
    if isinstance(values, SparseRows):
        if method == "total":
            return _ratio(values.totals, _expected(average, values))
        parts = [values.part(start, min(start + TILE, values.row_nnz.size)) for start in _tiles(values)]
        dense = [log_size_factors(method, average, part.dense(KINDS["poisson"])) for part in parts]
        return np.concatenate([np.zeros(0), *dense])
    if method == "total" and (values := device.on_host(values)).min(initial=0) >= 0:  # nothing is missing
        return _ratio(values.sum(axis=1, dtype=np.float64), np.full(len(values), average.sum()))
    y, observed = _entries(method, values)
    if method == "total":
        return _ratio(y.sum(axis=1), observed @ average)
    logs = np.zeros(len(y))
    is_observed = observed.any(axis=1)
    logs[is_observed] = np.nanmedian(np.where(observed > 0.0, y - average, np.nan)[is_observed], axis=1)
    return logs


def _ratio(total: Float64[Array, " B"], expected: Float64[Array, " B"]) -> Float64[Array, " B"]:
    logs, is_observed = np.zeros(len(total)), expected > 0.0
    logs[is_observed] = np.log(np.maximum(total[is_observed], 0.5) / expected[is_observed])
    return logs


def _tiles(values: SparseRows) -> range:
    return range(0, values.row_nnz.size, TILE)


def _expected(average: Float64[Array, " D"], values: SparseRows) -> Float64[Array, " B"]:
    """Return the sum of averages over the observed entries of each row."""
    expected = np.where(values.absent, 0.0, average.sum())
    for rows, features in values.lacking():
        expected[rows] -= average[features].sum()
    lost = np.bincount(values.missing_rows, average[values.missing_columns], minlength=expected.size)
    expected = expected - lost
    return np.where(expected > 1e-12 * average.sum(), expected, 0.0)  # but rounding


def _sums_of_entries(method: str, values: SparseRows) -> Float64[Array, " D"]:
    y = values.entries.astype(np.float64)
    if method == "total":
        return np.bincount(values.columns, y, minlength=values.n_features)
    zero = np.log(0.5)
    above = np.bincount(values.columns, np.log(y + 0.5) - zero, minlength=values.n_features)
    return np.asarray(above + zero * values.n_observed())


def _entries(method: str, values: Array) -> tuple[Float64[Array, "B D"], Float64[Array, "B D"]]:
    """Return counts, or log (count + 1/2) for medians, 0 where missing; and 1 where they are not."""
    y = device.on_host(values).astype(np.float64)
    observed = (y >= 0.0).astype(np.float64)
    y = np.where(observed > 0.0, y, 0.0)
    return (np.log(y + 0.5) if method == "median" else y), observed
