"""Sums over the rows of a block: on the CPU, or on the device of the block.

Tables are those of all variables below each other, with the factors of the rows in linear groups behind them
(`groups.stacked`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Float64

from factorflow.kernels import device
from factorflow.models.contract import Block
from factorflow.models.molten.rows import Rows, allocate, zeros

Table = Float[np.ndarray, "A W"]
TableSource = tuple[int, tuple[tuple[np.ndarray, ...], ...]]

_LONG = 8
"""Rows of a run on average, from which on sums of runs are kept: they are little beside the rows."""


def shares(rows: Rows, logs: Table) -> tuple[Float64[np.ndarray, "A W"], float]:
    """Return the sums of y p by level of all variables, and sum y log R, given exp(E log lambda)."""
    if rows.placed is not None:
        from factorflow.models.molten.kernels import cuda

        return cuda.shares(rows.placed, logs)
    from factorflow.models.molten.kernels import loops

    runs, y = rows.counted, rows.counts
    assert runs is not None and y is not None  # noqa: PT018
    counts, place = zeros(logs.shape), runs.places[0]
    arguments = runs.start, tuple(runs.outer.values()), tuple(runs.inner.values()), y, logs, lane_tuple(logs)
    return counts, float(loops.add_shares(*arguments, place.start, place.stop, counts))


def products(
    block: Block,
    rows: Rows,
    weight: Float64[np.ndarray, " B"],
    table: Table,
    source: TableSource,
    variable: int,
    levels: range,
) -> Float64[np.ndarray, "D W"]:
    """Return the sums of weight F by level of a variable, F the product of a table over all others.

    ``levels`` are the rows of the table of the variable; ``source`` is what the table is computed from: the
    number of a start, and arrays for each variable.
    """
    if rows.placed is not None:
        from factorflow.models.molten.kernels import cuda

        return cuda.products(rows.placed, weight, table, variable, levels)
    from factorflow.models.molten.kernels import loops

    runs = rows.runs
    assert runs is not None
    out = zeros((len(levels), table.shape[1]))
    outer, lanes = _codes_from(runs.outer, variable), lane_tuple(table)
    if variable in runs.inner:
        inner, each = _codes_from(runs.inner, variable), _loop_weight(rows, weight)
        loops.add_products_of_rows(runs.start, outer, inner, each, table, lanes, levels.start, out)
    else:
        sums = _sums_of_runs(block, rows, weight, table, source)
        loops.add_products_of_runs(outer, sums, table, lanes, levels.start, out)
    return out


def _sums_of_runs(
    block: Block, rows: Rows, weight: Float64[np.ndarray, " B"], table: Table, source: TableSource
) -> Float64[np.ndarray, "R W"]:
    """Return the sums of weight f by run, f the product of a table over the inner variables.

    The sweeps over one outer variable after the other need the same ones.
    """
    from factorflow.models.molten.kernels import loops

    runs = rows.runs
    assert runs is not None

    def make() -> Float64[np.ndarray, "R W"]:
        out = allocate((len(runs.start) - 1, table.shape[1]))
        inner, each = tuple(runs.inner.values()), _loop_weight(rows, weight)
        loops.write_sums_of_runs(runs.start, inner, each, table, lane_tuple(table), out)
        return out

    is_repeated = len(runs.outer) > 1 and not rows.groups and weight is rows.weight
    if not is_repeated or len(runs.start) * _LONG > len(rows.y):
        return make()
    start, arrays = source
    inner = tuple(array for variable in runs.inner for array in arrays[variable])
    return block.once("molten sums of runs", (rows.codes, rows.weight, start, *inner), make)


def _loop_weight(rows: Rows, weight: Float64[np.ndarray, " B"]) -> Float64[np.ndarray, " B"] | float:
    """Return weights as the loops take them: a number where all rows have the same, which is not read."""
    return float(weight[0]) if rows.alike and weight is rows.weight else weight


def totals(rows: Rows, table: Table) -> Float64[np.ndarray, " B"]:
    """Return sum_l prod_g of a table for every row."""
    if rows.placed is not None:
        from factorflow.models.molten.kernels import cuda

        out_of_device: Float64[np.ndarray, " B"] = device.on_host(cuda.totals(rows.placed, table))
        return out_of_device
    from factorflow.models.molten.kernels import loops

    out = np.empty(len(rows.y))
    loops.write_totals(rows.codes, table, lane_tuple(table), (0,) * rows.codes.shape[1], out)
    return out


def moments(
    rows: Rows, e: Float64[np.ndarray, " B"], means: Table, squares: Table, variable: int, levels: range
) -> tuple[Float64[np.ndarray, "3 D W"], Float64[np.ndarray, "D W W"]]:
    """Return the sums of w e F, w F and w S by level of a variable, and those of w F F'.

    F and S are the products of ``means`` and ``squares`` over all other variables.
    """
    if rows.placed is not None:
        from factorflow.models.molten.kernels import cuda

        return cuda.moments(rows.placed, e, means, squares, variable, levels)
    from factorflow.models.molten.kernels import loops

    size, width = len(levels), means.shape[1]
    vectors, cross = np.zeros((3, size, width)), np.zeros((size * width, width))
    lanes, variables = lane_tuple(means), (0,) * rows.codes.shape[1]
    arguments = rows.codes, rows.weight, e, means, squares, lanes, variables, variable, levels.start
    loops.add_moments(*arguments, *vectors, cross)
    return vectors, cross.reshape(size, width, width)


def lane_tuple(table: Table) -> tuple[int, ...]:
    """Return the argument that fixes the width of a table at compile time."""
    return (0,) * int(table.shape[1])


def _codes_from(codes: Mapping[int, np.ndarray], variable: int) -> tuple[np.ndarray, ...]:
    """Return the codes of some variables, those of the one in hand first, if it is among them."""
    return tuple(codes[place] for place in sorted(codes, key=lambda place: place != variable))
