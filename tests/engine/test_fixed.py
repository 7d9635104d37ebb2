"""Globals of a fitted model: which draw an iteration takes, and how often it is read."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from factorflow.engine import fixed_globals
from factorflow.engine.fixed_globals import FixedGlobals
from factorflow.posterior.globals import StoredGlobals


@dataclass
class Counting:
    """Sets of globals that say what was read."""

    read_so_far: list[tuple[int, int]] = field(default_factory=list)

    def read(self, chain: int, number: int) -> dict[str, Any]:
        self.read_so_far.append((chain, number))
        return {"w": np.array([chain, number], np.int64)}


def _fixed(draws: tuple[int, ...] = (0, 2, 5), iterations: int = 3) -> tuple[FixedGlobals, Counting]:
    stored = Counting()
    return FixedGlobals(cast(StoredGlobals, stored), draws, iterations), stored


def _taken(of: FixedGlobals, chain: int, iteration: int) -> list[int]:
    found: list[int] = of.globals_(chain, iteration)["w"].tolist()
    return found


def test_an_iteration_takes_the_draw_whose_turn_it_is() -> None:
    found, _ = _fixed()
    turns = [0, 0, 0, 2, 2, 2, 5, 5, 5, 5]  # the last one for what comes after the end
    for chain in (0, 1):
        assert [_taken(found, chain, i) for i in range(10)] == [[chain, turn] for turn in turns]
    assert _taken(found, 1, 4) == [1, 2]  # one that was read ahead of is read again
    assert _taken(found, 1, 0) == [1, 0]


def test_a_draw_is_read_once_for_all_its_tasks() -> None:
    """Reading a set took nine tenths of a projection under draws when each task read it."""
    found, stored = _fixed()
    for iteration in range(9):
        for _ in range(2):  # of a group of blocks, and of the root
            for chain in (0, 1):
                found.globals_(chain, iteration)
    assert stored.read_so_far == [(0, 0), (1, 0), (0, 2), (1, 2), (0, 5), (1, 5)]


def test_large_sets_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_globals, "HELD_BYTES", 15)
    found, stored = _fixed()
    assert [_taken(found, 0, 0), _taken(found, 0, 1)] == [[0, 0], [0, 0]]
    assert stored.read_so_far == [(0, 0), (0, 0)]
    monkeypatch.setattr(fixed_globals, "HELD_BYTES", 16)
    assert [_taken(found, 0, 0), _taken(found, 0, 1)] == [[0, 0], [0, 0]]
    assert stored.read_so_far == [(0, 0)] * 3


def test_what_is_held_does_not_travel() -> None:
    found, _ = _fixed()
    found.globals_(0, 4)
    again = pickle.loads(pickle.dumps(found))
    assert (again.draws, again.iterations) == (found.draws, found.iterations)
    assert _taken(again, 0, 4) == [0, 2]
    assert again.stored.read_so_far == [(0, 2), (0, 2)]
