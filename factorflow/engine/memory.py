"""Whether a run fits, asked before it starts."""

from __future__ import annotations

from typing import Any

from factorflow.engine.kept import LOCAL_COPIES, local_must_spill
from factorflow.engine.source import READ_AHEAD
from factorflow.errors import InputError
from factorflow.models.contract import Model

__all__ = ["PROCESS_BYTES", "check_memory", "kept_bytes", "required_bytes"]

PROCESS_BYTES = 256 << 20
"""A Python process with its libraries loaded (measured: 180 to 240 MiB)."""

MERGE_DEPTH = 3
"""Sets of statistics alive at once in a task: the block's, the tree's, and one on its way."""


def required_bytes(model: Model[Any], n_groups: int, n_chains: int, limit: int) -> int:
    """Return the memory that one task needs at most, in bytes; local state beyond its share is on disk."""
    meta, footprint = model.meta, model.footprint()
    block_bytes = meta.row_bytes * meta.block_rows
    on_disk = local_must_spill(model, n_groups, n_chains, limit)
    rows = LOCAL_COPIES * (meta.block_rows if on_disk else -(-meta.n_rows // n_groups))
    blocks = block_bytes * (READ_AHEAD + 2) + footprint.scratch_per_row * meta.block_rows
    depth = MERGE_DEPTH + (meta.n_blocks // n_groups).bit_length()
    return int(
        PROCESS_BYTES
        + footprint.remembered
        + blocks
        + n_chains * (footprint.local_per_row * rows + footprint.statistics * depth + 2 * footprint.globals_)
    )


def check_memory(model: Model[Any], n_groups: int, n_chains: int, limit: int) -> None:
    """Refuse a run that cannot fit.

    Raises
    ------
    InputError
        Naming what is needed and what there is.
    """
    need = required_bytes(model, n_groups, n_chains, limit)
    if need > limit:
        meta, footprint = model.meta, model.footprint()
        raise InputError(
            "memory_limit",
            f"{limit / 2**20:.0f} MiB a worker",
            f"at least {need / 2**20:.0f} MiB: "
            f"blocks of {meta.row_bytes * meta.block_rows / 2**20:.1f} MiB, "
            f"{footprint.remembered / 2**20:.1f} MiB of blocks remembered in another form, "
            f"{footprint.statistics / 2**20:.1f} MiB of statistics, "
            f"{footprint.globals_ / 2**20:.1f} MiB of globals, "
            f"{footprint.local_per_row} bytes of local state a row",
            "Give workers more memory, or use more workers, fewer factors or smaller block_rows.",
        )


def kept_bytes(model: Model[Any], cache_bytes: int) -> int:
    """Return what the values of blocks may take of the memory for keeping blocks.

    The rest is for what the model remembers of them.
    """
    row = model.meta.row_bytes
    return cache_bytes * row // (row + model.footprint().kept_per_row)
