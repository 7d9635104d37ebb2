"""Memory limits: what a task needs of a worker, and what goes to disk."""

from __future__ import annotations

from dataclasses import dataclass

from factorflow.core.block import Meta
from factorflow.engine.executors.assignment import max_merged_nodes
from factorflow.engine.plan import FEATURE_RUN
from factorflow.engine.source import READ_AHEAD
from factorflow.engine.tree import FAN_IN
from factorflow.errors import InputError

PROCESS_BYTES = 320 << 20
"""A Python process with its libraries and the compiled loops of a model loaded (measured: 180 to 290 MiB)."""


MERGE_DEPTH = 3
"""Sets of statistics alive at once in a task: the block's, the tree's, and one on its way."""


MERGED = 3
"""Sums that a merge makes of the nodes that it has (measured)."""


KEPT_SHARE = 0.25
"""Share of a task's memory that local state may take before it goes to disk."""


LOCAL_COPIES = 3
"""Local states of a group alive at once: before and after a sweep, and one on its way to a checkpoint."""


KEPT_ROUNDS = 8
"""Rounds after which a task keeps local state: so many of a group are computed again where it is lost."""


REMEDY = "Give workers more memory, or use more workers, fewer factors or smaller block_rows."


@dataclass(frozen=True)
class Footprint:
    """Memory a model needs beyond the blocks, in bytes.

    Parameters
    ----------
    local_per_row : int
        Local state per row and chain.
    scratch, scratch_per_row : int
        Temporary arrays of `Sweep.map`: in any case, and per row of the block in hand. An upper bound, or, of
        `trace_scratch`, what was measured.
    kept_per_row : int
        What `Block.once` keeps of each row of the blocks that the engine keeps in memory.
    update, update_run : int
        Temporary arrays and result of an update, and of that what one run of features takes, of which the
        root updates several at a time. An upper bound, or what was measured.
    """

    local_per_row: int
    statistics: int
    globals_: int
    scratch: int = 0
    scratch_per_row: int = 0
    kept_per_row: int = 0
    update: int = 0
    update_run: int = 0

    @property
    def is_stateless(self) -> bool:
        """Whether the model was measured, and has no local state."""
        return self.statistics > 0 and self.local_per_row == 0


def required_bytes(
    meta: Meta, footprint: Footprint, n_groups: int, n_chains: int, limit: int, n_root_threads: int = 1
) -> int:
    """Return the memory that one task needs at most, in bytes; local state beyond its share is on disk.

    Apart from local state, of which a group has its share, no less is asked of more groups.
    """
    on_disk = local_must_spill(meta, footprint, n_groups, n_chains, limit)
    rows = LOCAL_COPIES * (meta.block_rows if on_disk else -(-meta.n_rows // n_groups))
    scratch = footprint.scratch + footprint.scratch_per_row * meta.block_rows
    blocks = meta.row_bytes * meta.block_rows * (READ_AHEAD + 2)
    blocks += READ_AHEAD * meta.reading_bytes
    statistics = n_chains * footprint.statistics
    sums = statistics * (MERGE_DEPTH + meta.n_blocks.bit_length())
    mapping = blocks + scratch + sums + 2 * n_chains * footprint.globals_
    merging = merge_bytes(meta, footprint, n_groups, n_chains, n_root_threads)
    return int(PROCESS_BYTES + max(mapping, merging) + n_chains * footprint.local_per_row * rows)


def merge_bytes(
    meta: Meta, footprint: Footprint, n_groups: int, n_chains: int, n_root_threads: int = 1
) -> int:
    """Return the bytes of a merge: the incoming statistics and their sums; at the root, the update too."""
    nodes = n_chains * footprint.statistics * max_merged_nodes(meta.n_blocks, n_groups)
    runs = sum(-(-view.n_features // FEATURE_RUN) for view in meta.views)
    more = min(n_root_threads, runs) - 1
    update = footprint.statistics + footprint.update + more * footprint.update_run
    return n_chains * footprint.globals_ + nodes + max(MERGED * footprint.statistics, update)


def check_memory(
    meta: Meta,
    footprint: Footprint,
    n_groups: int,
    n_chains: int,
    limit: int,
    n_root_threads: int = 1,
    note: str = "",
) -> None:
    """Refuse a run that cannot fit; ``note`` explains which part of a worker's limit it may use."""
    need = required_bytes(meta, footprint, n_groups, n_chains, limit, n_root_threads)
    if need > limit:
        scratch = footprint.scratch + footprint.scratch_per_row * meta.block_rows
        merging = merge_bytes(meta, footprint, n_groups, n_chains, n_root_threads)
        raise InputError(
            "memory_limit",
            f"{limit / 2**20:.0f} MiB a worker{note}",
            f"at least {need / 2**20:.0f} MiB: {PROCESS_BYTES / 2**20:.0f} MiB of the process, "
            f"blocks of {meta.row_bytes * meta.block_rows / 2**20:.1f} MiB and "
            f"{scratch / 2**20:.1f} MiB to work on one, "
            f"{footprint.statistics / 2**20:.1f} MiB of statistics, "
            f"{merging / 2**20:.1f} MiB to merge them and to update the globals, "
            f"{footprint.globals_ / 2**20:.1f} MiB of globals, "
            f"{footprint.local_per_row} bytes of local state a row",
            REMEDY,
        )


def local_must_spill(meta: Meta, footprint: Footprint, n_groups: int, n_chains: int, limit: int) -> bool:
    """Return whether the local state of a group would take more memory than it may."""
    rows = -(-meta.n_rows // n_groups)
    return LOCAL_COPIES * rows * n_chains * footprint.local_per_row > KEPT_SHARE * limit


def kept_bytes(meta: Meta, footprint: Footprint, cache_bytes: int) -> int:
    """Return the budget for values of blocks within the block cache.

    The rest is for what follows from them.
    """
    return cache_bytes * meta.row_bytes // (meta.row_bytes + footprint.kept_per_row)


def sends_local(
    meta: Meta,
    footprint: Footprint,
    n_groups: int,
    n_chains: int,
    limit: int,
    room: int,
    n_root_threads: int = 1,
) -> bool:
    """Return whether local state is sent with the statistics of its group: it saves a task for each group.

    Where it is smaller than a set of them (on disk it is paths only), and a worker has the memory: beside
    blocks in ``room`` bytes, what came to a merge stays there until the next round.
    """
    local = -(-meta.n_rows // n_groups) * footprint.local_per_row
    if local_must_spill(meta, footprint, n_groups, n_chains, limit):
        local = 0
    need = required_bytes(meta, footprint, n_groups, n_chains, limit, n_root_threads)
    stays = footprint.statistics * max_merged_nodes(meta.n_blocks, n_groups) + local * FAN_IN
    return local < footprint.statistics and need + room + n_chains * stays <= limit


def keep_every(
    meta: Meta,
    footprint: Footprint,
    n_groups: int,
    n_chains: int,
    limit: int,
    room: int,
    n_root_threads: int = 1,
) -> int:
    """Return the rounds after which a task keeps local state that is not sent: `KEPT_ROUNDS`, or one.

    A worker has the state before them and the globals of each meanwhile, and what came to a merge stays
    there until the next round. State on disk is kept at once: files that are superseded are deleted.
    """
    local = -(-meta.n_rows // n_groups) * footprint.local_per_row
    stays = footprint.statistics * max_merged_nodes(meta.n_blocks, n_groups)
    more = n_chains * (stays + local + KEPT_ROUNDS * footprint.globals_)
    need = required_bytes(meta, footprint, n_groups, n_chains, limit, n_root_threads)
    fits = need + room + more <= limit
    return 1 if local_must_spill(meta, footprint, n_groups, n_chains, limit) or not fits else KEPT_ROUNDS
