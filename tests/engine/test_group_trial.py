"""When all blocks become one group, and when they are cut again."""

from __future__ import annotations

from typing import Any

import pytest

from factorflow.engine.group_trial import FEW, REREAD, SHORT_SECONDS, SKIPPED, TIMED, GroupTrial, regroup
from factorflow.engine.tasks import Group

CUT = [range(0, 2), range(2, 5)]
ONE = [range(0, 5)]


def choices(trial: GroupTrial, seconds: float, n: int, n_pending: int = 0) -> list[Any]:
    return [trial.choose(seconds, n_pending) for _ in range(n)]


def test_one_group_where_it_takes_less_time() -> None:
    trial = GroupTrial(CUT)
    assert choices(trial, 1.0, SKIPPED) == [None] * SKIPPED  # they load and compile
    assert choices(trial, 0.02, TIMED, n_pending=3) == [None] * (TIMED - 1) + [ONE]
    assert choices(trial, 0.03, REREAD + 3) == [None] * (REREAD + 3)  # of the cut before, or the first
    assert choices(trial, 0.01, 200) == [None] * 200


def test_groups_again_where_one_takes_longer() -> None:
    trial = GroupTrial(CUT)
    choices(trial, 0.02, SKIPPED + TIMED)
    assert choices(trial, 0.03, REREAD + FEW) == [None] * (REREAD + FEW - 1) + [CUT]
    assert choices(trial, 0.02, 200) == [None] * 200
    trial = GroupTrial(CUT)
    choices(trial, 0.02, SKIPPED + TIMED)
    choices(trial, 0.01, REREAD + FEW)
    assert choices(trial, 0.03, TIMED - FEW) == [None] * (TIMED - FEW - 1) + [CUT]


@pytest.mark.parametrize("seconds", [1.01 * SHORT_SECONDS, 10.0])
def test_long_rounds_are_not_tried(seconds: float) -> None:
    assert choices(GroupTrial(CUT), seconds, 200) == [None] * 200


def test_groups_take_the_states_of_their_blocks() -> None:
    left, right = Group({0: ("a",), 1: ("b",)}), Group({2: ("c",)})
    both = regroup(range(0, 3), [left, right])
    assert both == Group({0: ("a",), 1: ("b",), 2: ("c",)})
    assert regroup(range(1, 3), [both]) == Group({1: ("b",), 2: ("c",)})
    assert regroup(range(0, 3), [None, None]) is None  # before the first round
