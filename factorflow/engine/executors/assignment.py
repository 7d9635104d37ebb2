"""Groups of blocks: where the blocks are cut, and which worker has which group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from factorflow.engine.tree import merge_steps, n_nodes

LONGER = 1 / 32
"""By this share of a mean group the longest may be longer, so that groups send fewer subtrees."""


def cut_aligned(n_blocks: int, n_groups: int) -> list[range]:
    """Return at most ``n_groups`` contiguous runs of blocks of nearly equal length.

    They are cut beside where an even cut would be, at the best aligned block: a group that is an aligned run
    sends one node of the merge tree, one that is cut anywhere up to twice as many as the tree has levels.
    """
    n_groups = max(1, min(n_groups, n_blocks))
    mean = n_blocks / n_groups
    longest = max(math.ceil(mean), int(mean * (1 + LONGER)))
    edges = [0]
    for i in range(1, n_groups):
        even, before, left = n_blocks * i / n_groups, edges[-1], n_groups - i
        least = max(math.floor(even + mean - longest), before + 1, n_blocks - left * longest)
        most = min(math.ceil(even - mean + longest), before + longest, n_blocks - left)
        lower = ((least - 1) ^ most).bit_length() - 1  # in one number between these all lower bits are 0
        edges.append(most >> lower << lower)
    return [range(a, b) for a, b in zip(edges, [*edges[1:], n_blocks], strict=True)]


COUNTED = 64
"""Numbers of groups up to which nodes are counted; of more, two for each level of the tree are enough."""


@lru_cache
def max_merged_nodes(n_blocks: int, n_groups: int) -> int:
    """Return the nodes of the merge tree that one task merges at most, of so many groups or of fewer."""
    most = max(_max_merged_nodes(cut_aligned(n_blocks, n)) for n in range(1, min(n_groups, COUNTED) + 1))
    return most if n_groups <= COUNTED else max(most, 2 * n_blocks.bit_length())


def _max_merged_nodes(runs: Sequence[range]) -> int:
    most = 0
    for step in merge_steps(runs):
        most = max(most, *(sum(n_nodes(runs[i]) for i in merge.run) for merge in step))
        runs = [range(runs[merge.run[0]].start, runs[merge.run[-1]].stop) for merge in step]
    return max(most, sum(map(n_nodes, runs)))


def assign_groups(n_groups: int, slots: Sequence[str], before: Sequence[str] = ()) -> list[str]:
    """Return the worker of each group: shares as equal as threads allow, and few groups that move.

    Parameters
    ----------
    slots : sequence of str
        Addresses of workers, each as often as it has threads, one after the other; at least one.
    before : sequence of str
        Where the groups were; nowhere yet when left out.

    Returns
    -------
    list of str
        An address for each group. At first a worker's groups are neighbours; with fewer groups than threads
        every worker takes one first.
    """
    threads = Counter(slots)
    if not before:
        if n_groups < len(slots):
            return _interleave_workers(slots)[:n_groups]
        return [slots[group * len(slots) // n_groups] for group in range(n_groups)]
    share = -(-n_groups // len(slots))  # a thread takes no more: the slowest says how long an iteration takes
    load: Counter[str] = Counter()
    addresses = list(before)
    unassigned = []
    for group, address in enumerate(before):
        if load[address] < share * threads[address]:
            load[address] += 1
        else:
            unassigned.append(group)
    for group in unassigned:
        addresses[group] = min(threads, key=lambda address: (load[address] / threads[address], address))
        load[addresses[group]] += 1
    return addresses


def _interleave_workers(slots: Sequence[str]) -> list[str]:
    """Return the slots with every worker once before any worker twice."""
    n_of_host: Counter[str] = Counter()
    order = []
    for address in slots:
        n_of_host[address] += 1
        order.append((n_of_host[address], address))
    return [address for _, address in sorted(order, key=lambda slot: slot[0])]
