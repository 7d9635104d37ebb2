"""The rows of a block as the loops take them: codes of levels, response, exposure or weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float32, Float64, Int32, Int64, Integer

from factorflow.kernels import device
from factorflow.kernels.special import gammaln
from factorflow.models.contract import Array, Block
from factorflow.models.molten.groups import check_counts_reachable, group_weights
from factorflow.models.molten.settings import LANES, MOST_RUNS, Settings

if TYPE_CHECKING:
    from factorflow.models.molten.kernels.cuda import DeviceRows

CACHE_LINE = 64
"""Bytes."""

BEHIND = 8
"""Rows that the loops look at together (`kernels.lanes.ROWS`)."""


@dataclass(frozen=True)
class Runs:
    """B rows cut into R runs, in which some variables keep their levels.

    Parameters
    ----------
    start : array
        First row of every run, and B; R1 = R + 1.
    outer : mapping of int to array
        Codes of these variables, by place; of one that is no variable, the row of ones, where there is none.
    inner : mapping of int to array
        Codes of all other variables, by place, of 16 bits where all rows of the stacked tables have such.
    places : tuple of slice
        Which rows of the stacked tables these are.
    """

    start: Int64[np.ndarray, " R1"]
    outer: Mapping[int, Int32[np.ndarray, " R"]]
    inner: Mapping[int, Integer[np.ndarray, " B"]]
    places: tuple[slice, ...]


@dataclass(frozen=True)
class Rows:
    """B rows, of which the shown ones count: others have response and weight 0.

    Sorted by some of the variables (`Settings.outer`): what these give to a product is looked up once a run.

    Parameters
    ----------
    codes : array
        Rows of the stacked tables, one for each variable; a constant one beside a variable that is alone. Of
        a linear group each row has a row of its own, behind all tables (`groups.stacked`).
    y : array
        Response; of a Gaussian one less the offset.
    weight : array
        Exposure, or rows that a row stands for.
    n : float
        Shown rows, merged ones counted each.
    within : float
        Sum of squares of merged rows about their means.
    constant : float
        Counts: sum of y log t - log y!.
    runs, counted : Runs or None
        Counts: of all rows, and of those with y > 0, the only ones with shares to add.
    counts : array or None
        The responses above 0, as the block has them, and `BEHIND` zeros, which loops read and leave alone.
    groups : mapping of str to array
        Weights of the levels of each linear group, (B, D).
    placed : Placed or None
        The same rows on the device where the block lies.
    """

    codes: Int32[np.ndarray, "B G"]
    y: Float64[np.ndarray, " B"]
    weight: Float64[np.ndarray, " B"]
    n: float
    within: float
    constant: float
    runs: Runs | None = None
    counted: Runs | None = None
    counts: Float32[np.ndarray, " C8"] | None = None
    alike: bool = False
    groups: Mapping[str, Float64[np.ndarray, "B D"]] = field(default_factory=dict)
    placed: DeviceRows | None = None


def prepare_rows(settings: Settings, block: Block) -> Rows:
    """Return the rows of a block; kept as long as the block."""
    return block.once("molten rows", (repr(settings),), lambda: _rows(settings, block))


def _rows(settings: Settings, block: Block) -> Rows:
    rows = _block_order(settings, device.block_on_host(block))
    order = _order(settings, rows.codes)
    codes, y = rows.codes[order], rows.y[order]
    for position, name in enumerate(rows.groups):
        first = settings.starts[-1] + 1 + position * block.n_rows
        codes[:, settings.names.index(name)] = np.arange(first, first + block.n_rows)
    groups = {name: x[order] for name, x in rows.groups.items()}
    rows = replace(rows, codes=codes, y=y, weight=rows.weight[order], groups=groups)
    response = block.data[settings.roles.response]
    if device.on_device(response):
        from factorflow.models.molten.kernels import cuda

        placed = cuda.place(codes, y, rows.weight, settings.n_variables, response)
        return replace(rows, placed=placed)
    if settings.likelihood != "poisson":
        return rows
    above = y > 0
    counted, counts = _runs(settings, codes[above]), np.zeros(above.sum() + BEHIND, np.float32)
    counts[:-BEHIND] = y[above]
    alike = bool((rows.weight == rows.weight[:1]).all())
    return replace(rows, runs=_runs(settings, codes), counted=counted, counts=counts, alike=alike)


def _order(settings: Settings, codes: Int32[np.ndarray, "B G"]) -> np.ndarray:
    """Return the order by runs; within them by a variable whose table is too large for the cache."""
    run = np.zeros(len(codes), np.uint16)  # of 16 bits: sorted in linear time
    for place in settings.outer:
        size = settings.size(settings.names[place])
        run = run * np.uint16(size) + (codes[:, place] - settings.starts[place]).astype(np.uint16)
    inner = {settings.size(name): g for g, name in enumerate(settings.names) if g not in settings.outer}
    if max(inner, default=0) <= MOST_RUNS:
        return np.argsort(run, kind="stable")
    return np.lexsort((codes[:, inner[max(inner)]], run))


def _runs(settings: Settings, codes: Int32[np.ndarray, "B G"]) -> Runs:
    """Return the runs of rows that are sorted."""
    keys = codes[:, settings.outer]
    starts = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    starts = np.concatenate([np.zeros(min(1, len(codes)), np.int64), starts])
    outer = {g: codes[starts, g] for g in settings.outer}
    if not outer:
        outer[codes.shape[1]] = np.full(len(starts), settings.starts[-1], np.int32)
    kind = np.uint16 if codes.max(initial=0) < 2**16 else np.int32
    inner = {g: codes[:, g].astype(kind) for g in range(codes.shape[1]) if g not in settings.outer}
    places = tuple(_place(settings, g, codes[:, g]) for g in inner)
    return Runs(np.append(starts, len(codes)), outer, inner, places)


def _place(settings: Settings, variable: int, codes: Int32[np.ndarray, " B"]) -> slice:
    """Return which rows of the stacked tables a variable has; of a linear group those that are looked up."""
    if variable < settings.n_variables and settings.names[variable] in settings.roles.linear:
        return slice(int(codes.min(initial=2**31 - 1)), int(codes.max(initial=-1)) + 1)
    edges = [*settings.starts, settings.starts[-1] + 1]
    return slice(edges[variable], edges[variable + 1])


def _block_order(settings: Settings, block: Block) -> Rows:
    """Return the rows as the block has them."""
    roles, codes, groups = settings.roles, level_codes(settings, block), group_weights(settings, block)
    y = block.data[roles.response][:, 0].astype(np.float64)
    if settings.likelihood == "poisson":
        weight = covariate(block, roles.exposure, 1.0) * _grid_exposure(settings, block)
        used = ~np.isnan(y) & (weight > 0)  # an unknown exposure is not
        y, weight = np.where(used, y, 0.0), np.where(used, weight, 0.0)
        constant = float((y * np.log(np.where(used, weight, 1.0)) - gammaln(y + 1.0)).sum())
        if not settings.n_additive:
            check_counts_reachable(block, groups, y)
        return Rows(codes, y, weight, float(used.sum()), 0.0, constant, groups=groups)
    weight = covariate(block, roles.weight, 1.0)
    y = y - covariate(block, roles.offset, 0.0)
    used = ~np.isnan(y) & (weight > 0)
    y, weight = np.where(used, y, 0.0), np.where(used, weight, 0.0)
    within = float(np.where(used, covariate(block, roles.within, 0.0), 0.0).sum())
    return Rows(codes, y, weight, float(weight.sum()), within, 0.0, groups=groups)


def level_codes(settings: Settings, block: Block) -> Int32[np.ndarray, "B G"]:
    """Return the rows of the stacked tables that every row of a block looks up; 0 of linear groups."""
    starts = settings.starts
    columns = []
    for first, last, name in zip(starts, starts[1:], settings.names, strict=False):
        if name in settings.roles.linear:
            columns.append(np.zeros(block.n_rows, np.int64))
            continue
        codes = block.data[name]
        columns.append(np.where(codes < 0, last - 1, codes + first))
    if len(columns) == 1:
        columns.append(np.full_like(columns[0], starts[-1]))
    return np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.int32)


def covariate(block: Block, name: str | None, left_out: float) -> Float64[Array, " B"]:
    """Return a covariate of one column, or its default if there is none."""
    return np.full(block.n_rows, left_out) if name is None else np.asarray(block.data[name][:, 0])


def zeros(shape: tuple[int, ...], bits: int = 64) -> Float[np.ndarray, ...]:
    """Return zeros that begin with a cache line, so that rows of vectors lie in as few lines as may be."""
    return _allocate_aligned(np.zeros, shape, bits)


def allocate(shape: tuple[int, ...]) -> Float64[np.ndarray, ...]:
    """Return an array to be written that begins with a cache line."""
    return _allocate_aligned(np.empty, shape, 64)


def _allocate_aligned(
    make: Callable[..., np.ndarray], shape: tuple[int, ...], bits: int
) -> Float[np.ndarray, ...]:
    n_bytes = math.prod(shape) * bits // 8
    memory = make(n_bytes + CACHE_LINE, np.uint8)
    first = -memory.__array_interface__["data"][0] % CACHE_LINE
    return memory[first : first + n_bytes].view(f"f{bits // 8}").reshape(shape)


def stack_tables(
    settings: Settings, tables: dict[str, Float64[np.ndarray, "D S K"]], bits: int = 64
) -> Float[np.ndarray, ...]:
    """Return the tables of all variables below each other, (S, D + 1, W): the last row is of ones."""
    n_starts, n_columns = tables[settings.names[0]].shape[1:]
    out = blank_table(settings, n_starts, n_columns, bits)
    for at, name in zip(settings.starts, settings.names, strict=False):
        out[:, at : at + len(tables[name]), :n_columns] = tables[name].transpose(1, 0, 2)
    return out


def blank_table(
    settings: Settings, n_starts: int, n_columns: int, bits: int = 64
) -> Float[np.ndarray, "S D W"]:
    """Return room for the tables of all variables, and the row of ones behind them."""
    out = zeros((n_starts, settings.starts[-1] + 1, -(-n_columns // LANES) * LANES), bits)
    out[:, -1, :n_columns] = 1.0
    return out


def _grid_exposure(settings: Settings, block: Block) -> Float64[np.ndarray, " B"]:
    """Return the exposures of cells of a grid: products of those of their levels."""
    out = np.ones(block.n_rows)
    for name, _ in settings.roles.level_exposures or ():
        out *= settings.grid_exposure(name)[block.data[name]]
    return out
