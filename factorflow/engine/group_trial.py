"""Whether one group of all blocks takes less time than one for each worker: tried where rounds are short.

Messages of a round take milliseconds for each group, whatever the work of its blocks. Numbers do not depend
on the cut, so that groups may change between any two rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from factorflow.engine.executors.local import Handle
from factorflow.engine.tasks import Group

SHORT_SECONDS = 0.1
"""Rounds that take longer are not tried in one group: what it could save is a few messages of some ms."""

SKIPPED, TIMED = 8, 16
"""First rounds of a run that are not timed, since they load and compile, and rounds of a cut that are."""

REREAD, FEW = 2, 4
"""Rounds of one group that are not timed, since it loads blocks, and after which it may be given up."""


class GroupTrial:
    """Times rounds of the first cut, then of one group, and chooses."""

    def __init__(self, groups: Sequence[range]) -> None:
        self._many = list(groups)
        self._one = [range(groups[0].start, groups[-1].stop)]
        self._seconds: list[float] = []
        self._skipped, self._with_many, self._over = SKIPPED, 0.0, False

    def choose(self, seconds: float, n_pending: int) -> list[range] | None:
        """Take the time of a round; return the groups of the rounds to come, where they change.

        Parameters
        ----------
        n_pending : int
            Rounds of the same cut that were submitted and are not read yet.
        """
        if self._skipped:
            self._skipped -= 1
            return None
        n_timed = len(self._seconds) + 1
        if self._over or n_timed > TIMED:
            return None
        self._seconds.append(seconds)
        if not self._with_many:
            typical = median(self._seconds)
            if n_timed < TIMED or typical > SHORT_SECONDS:
                return None
            self._with_many, self._seconds, self._skipped = typical, [], n_pending + REREAD
            return self._one
        longer = n_timed == FEW and min(self._seconds) > self._with_many
        self._over = longer or (n_timed == TIMED and median(self._seconds) > self._with_many)
        return self._many if self._over else None


def regroup(group: range, parts: Sequence[Group | None]) -> Group | None:
    """Return what a group of another cut holds, from groups that its blocks were in."""
    groups = [part for part in parts if part is not None]
    if not groups:
        return None
    local = {number: state for part in groups for number, state in part.local.items() if number in group}
    return Group(local)


def overlapping(group: range, groups: Sequence[range], handles: Sequence[Handle]) -> list[Handle]:
    """Return those of the handles, one a group, whose blocks a group of another cut has some of."""
    return [
        handle
        for other, handle in zip(groups, handles, strict=True)
        if other.start < group.stop and group.start < other.stop
    ]
