"""Assignment of groups of blocks to workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["assign_groups"]


def assign_groups(n_groups: int, slots: Sequence[str], before: Sequence[str] = ()) -> list[str]:
    """Return the worker of each group: shares as equal as threads allow, and few groups that move.

    Parameters
    ----------
    n_groups : int
        Groups, at least one.
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
            return _spread(slots)[:n_groups]
        return [slots[group * len(slots) // n_groups] for group in range(n_groups)]
    share = -(-n_groups // len(slots))  # a thread takes no more: the slowest says how long an iteration takes
    load: Counter[str] = Counter()
    places = list(before)
    homeless = []
    for group, address in enumerate(before):
        if load[address] < share * threads[address]:
            load[address] += 1
        else:
            homeless.append(group)
    for group in homeless:
        places[group] = min(threads, key=lambda address: (load[address] / threads[address], address))
        load[places[group]] += 1
    return places


def _spread(slots: Sequence[str]) -> list[str]:
    """Return the slots with every worker once before any worker twice."""
    seen: Counter[str] = Counter()
    order = []
    for address in slots:
        seen[address] += 1
        order.append((seen[address], address))
    return [address for _, address in sorted(order, key=lambda slot: slot[0])]
