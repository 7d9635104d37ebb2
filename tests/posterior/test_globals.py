"""Sets of globals in files: small leaves share them, written in any parts they are what was given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorflow.files import write_scratch
from factorflow.posterior.globals import SMALL, StoredGlobals, write_globals
from factorflow.trees import flatten


@dataclass(frozen=True)
class Some:
    """Globals with a leaf of 8 bytes and one of more than a file is shared for."""

    level: float
    table: np.ndarray


def test_small_leaves_share_files_and_sets_come_in_parts(tmp_path: Path) -> None:
    rng, n_sets = np.random.default_rng(0), 7
    chains = [[Some(rng.random(), rng.random(SMALL // 8 + 1)) for _ in range(n_sets)] for _ in range(2)]
    for first, last in ((0, 3), (2, 5), (5, 7)):  # a set written twice, as after a kill
        write_globals(tmp_path, first, n_sets, [sets[first:last] for sets in chains])
    stored = StoredGlobals(str(tmp_path), None, json.dumps(flatten(chains[0][0])[0]))
    for chain, sets in enumerate(chains):
        for number, given in enumerate(sets):
            found = stored.read(chain, number)
            assert found.level == given.level
            assert np.array_equal(found.table, given.table)
    files = [
        sum(f.is_file() for f in (tmp_path / "globals" / leaf / "c").rglob("*"))
        for leaf in ("leaf_0000", "leaf_0001")
    ]
    assert files == [1, 2 * n_sets]


def test_sets_are_on_the_disk_once_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint relies on those that were in a file before it was written again."""
    written: dict[str, bool] = {}

    def spied(path: Path, *arguments: Any, durable: bool = False) -> None:
        written[str(path.relative_to(tmp_path))] = durable
        write_scratch(path, *arguments, durable=durable)

    monkeypatch.setattr("factorflow.checked.write_scratch", spied)
    sets = [[Some(1.0, np.arange(3.0)), Some(2.0, np.arange(3.0))]]
    write_globals(tmp_path, 0, 2, sets)
    chunks = [path for path in tmp_path.rglob("*") if path.is_file() and "/c/" in str(path)]
    assert len(chunks) == 2
    assert all(written[str(path.relative_to(tmp_path))] for path in chunks)
