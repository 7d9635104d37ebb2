"""Which blocks an iteration visits, and which rows of a long trace stay."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorflow.engine import draws
from factorflow.engine.minibatch import part_of
from factorflow.engine.plan import Record
from factorflow.engine.trace import Trace
from factorflow.kernels.random import Step
from factorflow.models.contract import Meta, Stage, ViewMeta
from factorflow.posterior.globals import sets_every


def epoch(n_blocks: int, n_parts: int, number: int, seed: int) -> list[frozenset[int]]:
    return [part_of(range(n_blocks), n_parts, number * n_parts + turn, seed) for turn in range(n_parts)]


@pytest.mark.parametrize(("n_blocks", "n_parts"), [(12, 4), (13, 4), (5, 5), (7, 1), (3, 8)])
def test_an_epoch_visits_every_block_once(n_blocks: int, n_parts: int) -> None:
    for number in range(5):
        parts = epoch(n_blocks, n_parts, number, 3)
        assert sorted(block for part in parts for block in part) == list(range(n_blocks))


@pytest.mark.parametrize(
    ("part_rows", "n_parts"), [(None, 1), (100, 10), (67, 15), (10, 32), (1000, 1), (5000, 1), (1500, 1)]
)
def test_parts_have_about_as_many_rows_as_asked_for(part_rows: int | None, n_parts: int) -> None:
    """Of 1000 rows in 32 blocks; no more parts than blocks, and no less than one."""
    meta = Meta(1000, 32, 32, (ViewMeta("a", "gaussian", 4, "none"),))
    assert Stage[Any]("s", (), 3, part_rows=part_rows).n_parts(meta) == n_parts


def test_every_run_of_blocks_has_one_in_each_part() -> None:
    """So a worker with a contiguous share of them always has work."""
    for number in range(4):
        for part in epoch(24, 4, number, 1):
            assert sorted(block // 4 for block in part) == list(range(6))


@pytest.mark.parametrize("cut", [(), (1,), (5, 6), (3, 11, 17)])
def test_parts_do_not_depend_on_the_groups(cut: tuple[int, ...]) -> None:
    edges = [0, *cut, 20]
    for iteration in range(12):
        whole = part_of(range(20), 3, iteration, 7)
        groups = [part_of(range(a, b), 3, iteration, 7) for a, b in zip(edges, edges[1:], strict=False)]
        assert frozenset().union(*groups) == whole
        assert sum(map(len, groups)) == len(whole)


def test_more_parts_than_a_row_of_noise_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a row of the counter there are 2^17 words: every block has a row of its own."""
    asked: list[Any] = []
    uniform = Step.uniform

    def watch(self: Step, site: int, index: Any, words: int = 1) -> Any:
        asked.append((np.unique(index).size, words))
        return uniform(self, site, index, words)

    monkeypatch.setattr(Step, "uniform", watch)
    n_parts = 3 << 17
    part_of(range(n_parts, n_parts + 5), n_parts, 0, 3)
    assert asked == [(n_parts, 1)]


@pytest.mark.thorough
def test_parts_are_shuffled_anew() -> None:
    """By run, epoch and seed; each block is in the first part of an epoch with probability 1 / parts.

    600 epochs: a share of 1/4 has a standard error of .018; six of them are a false alarm of 2e-9 a block.
    """
    first = np.array([[block in part_of(range(8), 4, 4 * e, 0) for block in range(8)] for e in range(600)])
    assert (np.abs(first.mean(0) - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 600)).all()
    pairs = (first[:, 0] & first[:, 4]).mean()
    assert abs(pairs - 1 / 16) < 6 * np.sqrt(15 / 16**2 / 600)  # runs are independent
    again = (first[1:, 0] & first[:-1, 0]).mean()
    assert abs(again - 1 / 16) < 6 * np.sqrt(15 / 16**2 / 599)  # and so are epochs
    other = [part_of(range(8), 4, 4 * e, 1) for e in range(20)]
    assert other != [part_of(range(8), 4, 4 * e, 0) for e in range(20)]


@pytest.mark.parametrize(
    ("n_draws", "n_chains", "every"), [(10, 2, 1), (50, 2, 1), (51, 2, 2), (1000, 4, 40), (1, 1, 1)]
)
def test_at_most_a_hundred_sets_of_globals_are_stored(n_draws: int, n_chains: int, every: int) -> None:
    assert sets_every(n_draws, n_chains) == every
    assert -(-n_draws // every) * n_chains <= 100 + n_chains


def record(number: int, *, kept: bool = False, objective: float = 1.0) -> Any:
    infos = ({"objective": objective, "other": float(number)},)
    return Record("stage", True, True, number, 0, kept, infos, None, False, "")


def test_a_long_trace_is_thinned_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 2^k-th of those that report an objective, of the others too; all draws; the last one."""
    monkeypatch.setattr("factorflow.engine.trace.TRACE_ROWS", 10)
    trace = Trace()
    drawn = set(range(50, 60))
    for number in range(1, 101):
        value = np.nan if number % 5 else 1.0  # four of five iterations report nothing
        trace.append(record(number, kept=number in drawn, objective=value), seconds=float(number))
    columns = trace.columns()
    kept = columns["iteration"]
    assert kept == sorted(kept)
    assert drawn <= set(kept)
    assert kept[-1] == trace.last_iteration == 100
    assert trace.last_seconds == 100.0
    reports = [n for n in range(5, 101, 5) if n not in drawn]  # 18 came: every second stays
    others = [n for n in range(1, 101) if n % 5 and n not in drawn]  # 72 came: every eighth stays
    assert set(kept) == drawn | set(reports[::2]) | set(others[::8]) | {100}
    assert columns["seconds"] == [float(n) for n in kept]
    assert [row[0]["other"] for row in columns["infos"]] == [float(n) for n in kept]
    assert [n for n, k in zip(kept, columns["kept"], strict=True) if k] == sorted(drawn)


@pytest.mark.parametrize("last", [1, 22, 23, 24, 36])
def test_a_trace_goes_on_after_a_checkpoint(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    monkeypatch.setattr("factorflow.engine.trace.TRACE_ROWS", 10)
    whole, first = Trace(), Trace()
    for number in range(1, 38):
        whole.append(record(number, kept=number % 7 == 0), 0.5 * number)
        if number <= last:
            first.append(record(number, kept=number % 7 == 0), 0.5 * number)
    second = Trace.from_state(json.loads(json.dumps(first.state())))
    assert second.columns() == first.columns()
    for number in range(last + 1, 38):
        second.append(record(number, kept=number % 7 == 0), 0.5 * number)
    assert second.columns() == whole.columns()
    assert (Trace().last_iteration, Trace().last_seconds) == (0, 0.0)
    assert Trace.from_state(Trace().state()).columns()["iteration"] == []


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_stored_globals_are_of_every_so_many_draws_of_the_chain(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of every so many of a chunk: 150 draws of 2 chains, of which every third is stored."""
    monkeypatch.setattr(draws, "write_globals", lambda path, first, n, sets: found.append((first, n, sets)))
    model = SimpleNamespace(table=(), record=lambda globals_: {})
    plan: Any = SimpleNamespace(model=model, n_draws=150, n_chains=2, fixed=None)
    states: list[Any] = [SimpleNamespace(globals_=(i, -i)) for i in range(150)]
    found: list[Any] = []
    for first in range(0, 150, chunk):
        assert draws.write_states(plan, "p", first, states[first : first + chunk]) == len(
            states[first : first + chunk]
        )
    assert {n for _, n, _ in found} == {50}
    for chain, sign in enumerate((1, -1)):
        stored = {first + i: value for first, _, sets in found for i, value in enumerate(sets[chain])}
        assert stored == {i: sign * 3 * i for i in range(50)}
