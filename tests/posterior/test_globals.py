"""Sets of globals in files: small leaves share them, written in any parts they are what was given."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorflow.core.flatten import allow_package, flatten
from factorflow.posterior.globals import PACKED, SMALL_FILE, StoredGlobals, write_globals
from factorflow.storage.local import atomic_write

allow_package(__name__)


@dataclass(frozen=True)
class Some:
    """Globals with small leaves, of odd sizes, and one of more than a file is shared for."""

    few: np.ndarray
    level: np.ndarray
    table: np.ndarray
    number: int
    name: str = "some"


def some(rng: np.random.Generator) -> Some:
    few, table = rng.integers(0, 100, (3, 1)).astype("u1"), rng.random(SMALL_FILE // 8 + 1)
    return Some(few, rng.random(2), table, int(rng.integers(100)))


def structure(store: Path) -> str:
    return str(json.loads((store / "globals" / "zarr.json").read_text())["attributes"]["structure"])


def test_small_leaves_share_files_and_sets_come_in_parts(tmp_path: Path) -> None:
    rng, n_sets = np.random.default_rng(0), 7
    chains = [[some(rng) for _ in range(n_sets)] for _ in range(2)]
    for first, last in ((0, 3), (2, 5), (5, 7)):  # a set written twice, as after a kill
        write_globals(tmp_path, first, n_sets, [sets[first:last] for sets in chains])
    stored = StoredGlobals(str(tmp_path), None, structure(tmp_path))
    for chain, sets in enumerate(chains):
        for number, given in enumerate(sets):
            found = stored.read(chain, number)
            assert (found.number, found.name) == (given.number, "some")
            assert found.level.flags.aligned
            assert np.array_equal(found.level, given.level)
            assert found.few.dtype == given.few.dtype
            assert np.array_equal(found.few, given.few)
            assert np.array_equal(found.table, given.table)
    arrays = sorted(path.name for path in (tmp_path / "globals").iterdir() if path.is_dir())
    assert arrays == ["leaf_0002", PACKED]
    files = [sum(f.is_file() for f in (tmp_path / "globals" / name / "c").rglob("*")) for name in arrays]
    assert files == [2 * n_sets, 1]


def test_larger_leaves_share_files_within_a_chain(tmp_path: Path) -> None:
    """Of both chains they would be too much for a file."""
    rng = np.random.default_rng(0)
    sets = [
        [Some(np.ones((1, 1), "u1"), rng.random(2), rng.random(SMALL_FILE // 24), 1) for _ in range(7)]
        for _ in range(2)
    ]
    write_globals(tmp_path, 0, 7, sets)
    stored = StoredGlobals(str(tmp_path), None, structure(tmp_path))
    for chain, number in np.ndindex(2, 7):
        assert np.array_equal(stored.read(chain, number).table, sets[chain][number].table)
    assert sum(f.is_file() for f in (tmp_path / "globals" / "leaf_0002" / "c").rglob("*")) == 6  # of 3, 3, 1


def test_sets_of_which_nothing_is_packed_are_read(tmp_path: Path) -> None:
    """As older versions wrote them: an array for each leaf, and the tree alone as their structure."""
    given = some(np.random.default_rng(1))
    tree, leaves = flatten(given)
    arrays = {f"leaf_{i:04d}": np.asarray(leaf)[None, None] for i, leaf in enumerate(leaves)}
    found = StoredGlobals(None, arrays, json.dumps(tree)).read(0, 0)
    assert found.number == given.number
    assert np.array_equal(found.level, given.level)
    assert np.array_equal(found.few, given.few)
    assert np.array_equal(found.table, given.table)


def test_a_set_of_another_shape_is_refused(tmp_path: Path) -> None:
    given = some(np.random.default_rng(1))
    for other in (replace(given, few=given.few[:2]), replace(given, level=given.level.astype("f4"))):
        with pytest.raises(TypeError, match="another type or shape"):
            write_globals(tmp_path / "once", 0, 2, [[given, other]])
    write_globals(tmp_path / "twice", 0, 2, [[given]])
    with pytest.raises(TypeError, match="another type or shape"):
        write_globals(tmp_path / "twice", 1, 2, [[other]])


def test_sets_are_on_the_disk_once_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint relies on those that were in a file before it was written again."""
    written: dict[str, bool] = {}

    def spied(path: Path, *arguments: Any, durable: bool = False) -> None:
        written[str(path.relative_to(tmp_path))] = durable
        atomic_write(path, *arguments, durable=durable)

    monkeypatch.setattr("factorflow.posterior.chunks.atomic_write", spied)
    sets = [[some(np.random.default_rng(i)) for i in range(2)]]
    write_globals(tmp_path, 0, 2, sets)
    chunks = [path for path in tmp_path.rglob("*") if path.is_file() and "/c/" in str(path)]
    assert len(chunks) == 3  # the packed leaves of both, the large one of each
    assert all(written[str(path.relative_to(tmp_path))] for path in chunks)
