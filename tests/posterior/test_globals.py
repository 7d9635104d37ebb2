"""Sets of globals in files: small leaves share them, written in any parts they are what was given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
