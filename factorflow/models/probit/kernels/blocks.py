"""Probit factor models, array side: one sweep over a block of samples, one over a run of features."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float32, Float64, Int8

from factorflow.core.block import Array
from factorflow.kernels.compile import compile_scalar, read_only_view
from factorflow.kernels.device import on_device
from factorflow.kernels.random import Step
from factorflow.models.probit.kernels.loadings import loop_features
from factorflow.models.probit.kernels.samplers import N_COUNTS, moves_not_taken, sweep_rows
from factorflow.models.probit.kernels.tables import BlockSums, FactorTables


def sweep_block(
    x: Int8[Array, "B N"],
    start: int,
    factors: Float[Array, "B K"],
    tables: FactorTables,
    step: Step,
    chances: bool = False,
) -> tuple[Float32[Array, "B K"], Float64[np.ndarray, "B N"] | None, BlockSums]:
    """Move the factors of a block of samples and sum the statistics of their utilities.

    Parameters
    ----------
    x : array
        Entries, -1 where unobserved. A CuPy array is worked on by its device.
    start : int
        Global number of the first row, by which the noise is keyed.
    factors : array
        f before; not changed.

    Returns
    -------
    factors : array
    chances : array or None
        Phi(x_n mean_n), of a 1 where the entry is unobserved, at the factors the utilities were drawn from.
    sums : BlockSums
    """
    if on_device(x):
        from factorflow.models.probit.kernels.cuda import sweep_block_cuda

        return sweep_block_cuda(x, start, factors, tables, step, chances)
    n_rows, n_features = x.shape
    n_factors = tables.loadings.shape[0]
    size = (n_factors + 1) * (n_factors + 2) // 2
    new_factors = np.array(factors, dtype=np.float32)
    filled = np.empty((n_rows if chances else 0, n_features))
    total_gram, missing_gram = np.zeros(size), np.zeros((n_features, size))
    cross, squares, counts = np.zeros((n_factors + 1, n_features)), np.zeros(n_features), np.zeros(N_COUNTS)
    shared = (tables.loadings, tables.offset, tables.gram, tables.odds)
    sweep = compile_scalar(sweep_rows, omit=moves_not_taken(tables.kind, tables.sampler))
    density = sweep(
        read_only_view(x), start, *map(read_only_view, shared), tables.kind, tables.sampler, tables.travel,
        tables.limit, np.uint64(step.seed), np.uint64(step.iteration), np.uint64(step.stream),
        new_factors, filled, total_gram, missing_gram, cross, squares, counts,
    )  # fmt: skip
    sums = BlockSums(total_gram, missing_gram, np.ascontiguousarray(cross.T), squares, density, counts)
    return new_factors, filled if chances else None, sums


def draw_loadings(
    gram: Float64[np.ndarray, "N P"],
    cross: Float64[np.ndarray, "N K1"],
    squares: Float64[np.ndarray, " N"],
    odds: float,
    variance: float,
    noise: tuple[Float64[np.ndarray, "N K1"], Float64[np.ndarray, "N K1"], Float64[np.ndarray, " N"]],
    loadings: Float64[np.ndarray, "N K1"],
) -> Float64[np.ndarray, "N K1"]:
    """Draw spike-and-slab loadings of a run of features given the utilities (appendix A).

    Parameters
    ----------
    gram : array
        Q_n, packed by rows of the upper triangle.
    cross : array
        j_n.
    squares : array
        Sum of y_n^2.
    odds, variance : float
        b / (1 - b) and tau^2.
    noise : three arrays
        Uniforms for c, normals for z, chi-square variates of the rescaling of the utilities.
    loadings : array
        z before, the offset last; zero where c = 0. Not changed.

    Returns
    -------
    array
        z.
    """
    new_loadings = np.array(loadings, dtype=np.float64)
    uniform, normal, chi_squares = map(read_only_view, noise)
    gram, cross, squares = map(read_only_view, (gram, cross, squares))
    compile_scalar(loop_features)(
        gram, cross, squares, chi_squares, odds, variance, uniform, normal, new_loadings
    )
    return new_loadings
