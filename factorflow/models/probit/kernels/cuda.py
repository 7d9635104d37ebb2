"""Probit factor models on a CUDA device: one thread a sample, from the source the CPU runs.

The sums over samples are matrix products of CuPy. Numbers differ from the CPU's in their last bits (the
device's exponentials and fused multiplications), so that a few discrete choices differ too.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int8

from factorflow.core.block import Array
from factorflow.kernels.compile import compile_scalar
from factorflow.kernels.cuda import cuda
from factorflow.kernels.random import Step
from factorflow.models.probit.kernels.samplers import N_COUNTS, sample_step, scratch_size
from factorflow.models.probit.kernels.tables import BlockSums, FactorTables

__all__ = ["launch_rows", "sweep_block_cuda"]

THREADS = 64
"""Threads in a block: trajectories of neighbours diverge, so warps are kept few and small."""
SCRATCH_BYTES = 1 << 30
"""Memory for the threads to work in; longer blocks of samples take several launches."""


@cache
def _kernel() -> Any:
    step = compile_scalar(sample_step, "cuda")

    @cuda.jit
    def kernel(x, start, loadings, offset, gram, odds, kind, sampler, travel, limit, seed, iteration, chain,
               factors, latent, chance, scratch, where, densities, counts):  # fmt: skip
        t = cuda.grid(1)
        if t < x.shape[0]:
            densities[t] = step(
                x[t], loadings, offset, gram, odds, kind, sampler, travel, limit, seed, np.uint64(start + t),
                iteration, chain, factors[t], latent[t], chance[t], scratch[t], where[t], counts[t],
            )  # fmt: skip

    return kernel


def launch_rows(
    x: Int8[Array, "B N"],
    start: int,
    factors: Float[Array, "B K"],
    tables: FactorTables,
    step: Step,
    xp: Any = np,
) -> tuple[
    Float64[Array, "B K"],
    Float64[Array, "B N"],
    Float64[Array, "B N"],
    Float64[Array, " B"],
    Float64[Array, "B 6"],
]:
    """Run `sample_step` for every row of a block on the device.

    Parameters
    ----------
    x, start, factors, tables, step
        As for `factorflow.models.probit.kernels.blocks.sweep_block`.
    xp : module
        CuPy; or NumPy, whose arrays Numba copies to the device and back (and which the simulator takes).

    Returns
    -------
    factors, latent, chance, densities, counts : array
        Of each row.
    """
    n_rows, n_features = x.shape
    n_factors = tables.loadings.shape[0]
    moved = xp.array(factors, dtype=xp.float64)
    latent, chance = xp.zeros((n_rows, n_features)), xp.zeros((n_rows, n_features))
    densities, counts = xp.zeros(n_rows), xp.zeros((n_rows, N_COUNTS))
    size = scratch_size(n_features, n_factors)
    at_once = max(THREADS, SCRATCH_BYTES // (8 * size + 4 * n_features))
    scratch = xp.zeros((min(n_rows, at_once), size))
    where = xp.zeros((min(n_rows, at_once), n_features), dtype=xp.int32)
    globals_ = (tables.loadings, tables.offset, tables.gram, tables.odds)
    settings = (tables.kind, tables.sampler, tables.travel, tables.limit)
    keys = tuple(np.uint64(part) for part in (step.seed, step.iteration, step.stream))
    for first in range(0, n_rows, at_once):
        run = slice(first, min(first + at_once, n_rows))
        n_blocks = -(-(run.stop - first) // THREADS)
        _kernel()[n_blocks, THREADS](
            x[run], start + first, *(xp.asarray(value) for value in globals_), *settings, *keys,
            moved[run], latent[run], chance[run], scratch, where, densities[run], counts[run],
        )  # fmt: skip
    return moved, latent, chance, densities, counts


def sweep_block_cuda(
    x: Int8[Array, "B N"],
    start: int,
    factors: Float[Array, "B K"],
    tables: FactorTables,
    step: Step,
    chances: bool = False,
) -> tuple[Float32[Array, "B K"], Float64[np.ndarray, "B N"] | None, BlockSums]:
    """Do what `factorflow.models.probit.kernels.blocks.sweep_block` does, with CuPy arrays.

    The factors stay on the device; the sums, and the probabilities asked for, come back as NumPy arrays.
    """
    import cupy

    moved, latent, chance, densities, counts = launch_rows(x, start, factors, tables, step, cupy)
    state = cupy.concatenate([moved, cupy.ones((x.shape[0], 1))], axis=1)
    rows, columns = np.triu_indices(state.shape[1])
    outer = state[:, rows] * state[:, columns]
    sums = BlockSums(
        cupy.asnumpy(outer.sum(0)),
        cupy.asnumpy((x < 0).astype(cupy.float64).T @ outer),
        cupy.asnumpy(latent.T @ state),
        cupy.asnumpy((latent * latent).sum(0)),
        float(densities.sum()),
        cupy.asnumpy(counts.sum(0)),
    )
    return moved.astype(cupy.float32), cupy.asnumpy(chance) if chances else None, sums
