"""The passes over rows of molten component analysis on a CUDA device.

One thread adds up one component of a piece of the rows of a level: sorted by each variable in turn, the rows
of a level lie together, and no two threads add to the same place. The sums of y p need no pass of their own:
with r_n = y_n / R_n they are exp(E log lambda_dl) times sum_n r_n prod_g exp(E log lambda) over the other
variables, the same sums as those of t F with other weights. Results agree with the CPU's up to rounding.
Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int32, Int64

from factorflow.core.block import Array
from factorflow.kernels import device
from factorflow.kernels.cuda import cuda

__all__ = ["DeviceRows", "SortedRows", "moments", "place", "products", "shares", "totals"]

THREADS = 128
"""Threads in a block."""
PIECE = 256
"""Rows of a level that one thread adds up at most."""


@dataclass(frozen=True)
class SortedRows:
    """The rows in the order of a variable, in P pieces of one level each.

    Parameters
    ----------
    order, start : array
        Rows, and where every piece begins and the last one ends (P1 = P + 1); on the device.
    level : array
        Row of the table of every piece; on the host.
    """

    order: Int32[Array, " B"]
    start: Int64[Array, " P1"]
    level: Int32[np.ndarray, " P"]


@dataclass(frozen=True)
class DeviceRows:
    """The rows of a block on a device.

    Parameters
    ----------
    codes : array
        As of `molten.rows.Rows`, by variable.
    y, weight : array
        As there.
    """

    codes: Int32[Array, "G B"]
    y: Float64[Array, " B"]
    weight: Float64[Array, " B"]
    by: tuple[SortedRows, ...]


def place(
    codes: Int32[np.ndarray, "B G"],
    y: Float64[np.ndarray, " B"],
    weight: Float64[np.ndarray, " B"],
    n_variables: int,
    other: Array,
) -> DeviceRows:
    """Return rows where ``other`` lies."""
    by = []
    for g in range(n_variables):
        order = np.argsort(codes[:, g], kind="stable").astype(np.int32)
        level = codes[order, g]
        first = np.flatnonzero(np.diff(level, prepend=-1))
        within = np.arange(len(level)) - np.repeat(first, np.diff(np.append(first, len(level))))
        start = np.flatnonzero(within % PIECE == 0)
        ends = np.append(start, len(level)).astype(np.int64)
        by.append(SortedRows(device.move_beside(order, other), device.move_beside(ends, other), level[start]))
    columns = device.move_beside(np.ascontiguousarray(codes.T), other)
    return DeviceRows(columns, device.move_beside(y, other), device.move_beside(weight, other), tuple(by))


@cache
def totals_kernel() -> Any:
    """Return the kernel of sum_l prod_g: a thread a row."""

    @cuda.jit
    def kernel(codes, table, out):
        n = cuda.grid(1)
        if n < out.size:
            total = 0.0
            for k in range(table.shape[1]):
                product = np.float64(table[codes[0, n], k])
                for g in range(1, codes.shape[0]):
                    product *= table[codes[g, n], k]
                total += product
            out[n] = total

    return kernel


@cache
def products_kernel() -> Any:
    """Return the kernel of the sums of weight F over a piece: a thread a piece and component."""

    @cuda.jit
    def kernel(codes, order, start, weight, table, own, out):
        i = cuda.grid(1)
        piece, k = i // out.shape[1], i % out.shape[1]
        if piece < out.shape[0]:
            total = 0.0
            for at in range(start[piece], start[piece + 1]):
                n = order[at]
                product = weight[n]
                for g in range(codes.shape[0]):
                    if g != own:
                        product *= table[codes[g, n], k]
                total += product
            out[piece, k] = total

    return kernel


@cache
def pairs_kernel() -> Any:
    """Return the kernel of the sums of weight F F': a thread a piece and pair of components."""

    @cuda.jit
    def kernel(codes, order, start, weight, table, own, out):
        i = cuda.grid(1)
        width = out.shape[1]
        piece, k, other = i // (width * width), i // width % width, i % width
        if piece < out.shape[0]:
            total = 0.0
            for at in range(start[piece], start[piece + 1]):
                n = order[at]
                product = weight[n]
                for g in range(codes.shape[0]):
                    if g != own:
                        product *= table[codes[g, n], k] * table[codes[g, n], other]
                total += product
            out[piece, k, other] = total

    return kernel


def totals(rows: DeviceRows, table: Float[np.ndarray, "A W"]) -> Float64[Array, " B"]:
    """See `factorflow.models.molten.passes.totals`; on the device."""
    out = device.namespace(rows.y).empty(rows.y.shape)
    totals_kernel()[_blocks(rows.y.size), THREADS](rows.codes, device.move_beside(table, rows.y), out)
    return out


def products(
    rows: DeviceRows, weight: Float64[Array, " B"], table: Float[np.ndarray, "A W"], own: int, levels: range
) -> Float64[np.ndarray, "D W"]:
    """See `factorflow.models.molten.passes.products`."""
    return _sum_by_level(products_kernel(), rows, weight, table, own, levels, table.shape[1:])


def shares(rows: DeviceRows, logs: Float[np.ndarray, "A W"]) -> tuple[Float64[np.ndarray, "A W"], float]:
    """See `factorflow.models.molten.passes.shares`."""
    xp = device.namespace(rows.y)
    above, total = rows.y > 0, totals(rows, logs)
    total = xp.where(above, total, 1.0)
    added = np.zeros(logs.shape)
    for own in range(len(rows.by)):
        added += logs * products(rows, rows.y / total, logs, own, range(len(logs)))
    return added, float(device.on_host(xp.sum(rows.y * xp.log(total))))


def moments(
    rows: DeviceRows,
    e: Float64[np.ndarray, " B"],
    means: Float64[np.ndarray, "A W"],
    squares: Float64[np.ndarray, "A W"],
    own: int,
    levels: range,
) -> tuple[Float64[np.ndarray, "3 D W"], Float64[np.ndarray, "D W W"]]:
    """See `factorflow.models.molten.passes.moments`."""
    weighted, width = rows.weight * device.move_beside(e, rows.y), means.shape[1]
    vectors = [
        products(rows, weight, table, own, levels)
        for weight, table in ((weighted, means), (rows.weight, means), (rows.weight, squares))
    ]
    return np.stack(vectors), _sum_by_level(
        pairs_kernel(), rows, rows.weight, means, own, levels, (width, width)
    )


def _sum_by_level(
    kernel: Any,
    rows: DeviceRows,
    weight: Float64[Array, " B"],
    table: Float[np.ndarray, "A W"],
    own: int,
    levels: range,
    shape: tuple[int, ...],
) -> Float64[np.ndarray, "D ..."]:
    """Run a kernel over the pieces of a variable, and add its sums up by level."""
    xp, by = device.namespace(rows.y), rows.by[own]
    pieces = xp.empty((len(by.level), *shape))
    where = device.move_beside(weight, rows.y), device.move_beside(table, rows.y)
    kernel[_blocks(pieces.size), THREADS](rows.codes, by.order, by.start, *where, own, pieces)
    out = np.zeros((len(levels), *shape))
    np.add.at(out, by.level - levels.start, device.on_host(pieces))
    return out


def _blocks(n_threads: int) -> int:
    return max(1, -(-n_threads // THREADS))
