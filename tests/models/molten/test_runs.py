"""Sums of runs of rows are kept from one sweep to the next, where both need the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factorflow.core.trees import arrays
from factorflow.engine.source import _BlockCache, _Memory
from factorflow.models import MoltenPoisson
from factorflow.models.molten.kernels import loops

LEVELS = (4, 30, 5), (4, 5, 30)
"""The large variable between the two that rows are sorted by, and after them."""


@pytest.mark.parametrize(("levels", "written"), [(LEVELS[0], 2), (LEVELS[1], 1)])
def test_sums_of_runs_are_kept_while_what_they_follow_from_is_the_same(
    levels: tuple[int, ...], written: int, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three sweeps need them, of the same means where the third does not come between."""
    calls: list[int] = []
    write = loops.write_sums_of_runs

    def counted(*args: object) -> None:
        calls.append(1)
        write(*args)

    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, n, 600) for n in levels], axis=1)
    meta, blocks = tools.table(codes, rng.poisson(2.0, 600), "poisson")
    config, kept = MoltenPoisson(n_components=3, n_starts=1), _BlockCache(0, 1 << 20)
    remembering = [replace(block, memory=_Memory(kept)) for block in blocks]
    plain = [list(arrays(g)) for g, _ in tools.rounds(config, meta, blocks, 3)]
    monkeypatch.setattr(loops, "write_sums_of_runs", counted)
    found = [list(arrays(g)) for g, _ in tools.rounds(config, meta, remembering, 3)]
    assert len(calls) == 3 * written
    for left, right in zip(plain, found, strict=True):
        assert all(map(np.array_equal, left, right))


def test_what_is_kept_of_a_block_is_of_the_model(tools: Any) -> None:
    """Blocks outlast a fit: one of the same table with another exposure takes nothing of the one before."""
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, n, 600) for n in LEVELS[0]], axis=1)
    given = {name: rng.uniform(0.5, 2.0, 600) for name in ("t", "u")}
    meta, blocks = tools.table(codes, rng.poisson(2.0, 600), "poisson", **given)
    kept = _BlockCache(0, 1 << 20)
    remembering = [replace(block, memory=_Memory(kept)) for block in blocks]
    for exposure in ("t", "u"):
        config = MoltenPoisson(n_components=3, n_starts=1, exposure=exposure)
        plain = [list(arrays(g)) for g, _ in tools.rounds(config, meta, blocks, 3)]
        found = [list(arrays(g)) for g, _ in tools.rounds(config, meta, remembering, 3)]
        for left, right in zip(plain, found, strict=True):
            assert all(map(np.array_equal, left, right)), exposure
