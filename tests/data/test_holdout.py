"""Held-out entries depend on seed, view, row and column alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from factorflow.core.block import HoldoutUnit
from factorflow.data import Holdout, write_dataset
from factorflow.errors import InputError
from factorflow.kernels.random import entry_uniform
from factorflow.kernels.sites import HOLDOUT_ENTRIES, HOLDOUT_UNITS


def hidden_entries(dataset, holdout: Holdout, views=None) -> dict[str, set[tuple[int, int]]]:
    found: dict[str, set[tuple[int, int]]] = {}
    for number in range(dataset.n_blocks):
        block = dataset.block(number, views, holdout)
        for view, (rows, columns) in block.hidden.items():
            assert rows.dtype == columns.dtype == np.int32
            order = rows.astype(np.int64) * 10**6 + columns
            assert (np.diff(order) > 0).all()  # row-major
            found.setdefault(view, set()).update(
                zip((rows + block.start).tolist(), columns.tolist(), strict=True)
            )
    return found


def test_same_entries_under_any_block_size(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    holdout = Holdout(0.2, seed=11)
    found = []
    for block_rows in (4, 32, 512):
        dataset = write_dataset(tmp_path / f"{block_rows}", views, block_rows=block_rows)
        found.append(hidden_entries(dataset, holdout))
    assert found[0] == found[1] == found[2]
    assert hidden_entries(dataset, holdout, ["counts"]) == {"counts": found[0]["counts"]}
    assert hidden_entries(dataset, Holdout(0.2, seed=12)) != found[0]
    assert found[0]["rna"] != found[0]["mutation"]


@pytest.mark.parametrize("unit", ["entry", "row", "sequence"])
def test_hidden_entries_look_missing(tmp_path: Path, views: dict[str, np.ndarray], unit: HoldoutUnit) -> None:
    sequences = np.repeat(np.arange(50), 6)
    dataset = write_dataset(tmp_path / "s", views, block_rows=64, sequences=sequences)
    holdout = Holdout(0.3, 2, unit)
    for number in range(dataset.n_blocks):
        whole = dataset.block(number)
        block, truth = dataset.read(number, holdout=holdout)
        assert not truth.keys() - block.hidden.keys()
        same = dataset.block(number, holdout=holdout)
        for name in views:
            rows, columns = block.hidden[name]
            seen = whole.data[name][rows, columns]
            np.testing.assert_array_equal(truth[name], seen)
            assert truth[name].dtype == seen.dtype
            assert not truth[name].flags.writeable
            hidden = np.zeros(whole.data[name].shape, bool)
            hidden[rows, columns] = True
            if name == "mutation":
                assert (seen >= 0).all()
                assert (block.data[name][hidden] == -1).all()
            else:
                assert not np.isnan(seen).any()
                assert np.isnan(block.data[name][hidden]).all()
            np.testing.assert_array_equal(block.data[name][~hidden], whole.data[name][~hidden])
            np.testing.assert_array_equal(same.data[name], block.data[name])
    assert dataset.read(0)[1] == {}


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["row", "sequence"])
def test_whole_units_are_hidden(tmp_path: Path, views: dict[str, np.ndarray], unit: HoldoutUnit) -> None:
    sequence = np.repeat(np.arange(40), [1, 14] * 20)  # they begin and end inside blocks
    holdout = Holdout(0.3, seed=2**63 + 5, unit=unit)
    number, site = (np.arange(300), 0) if unit == "row" else (sequence, 1)
    wanted = entry_uniform(2**63 + 5, HOLDOUT_UNITS[site], number, 0) < 0.3
    assert 0.1 < wanted.mean() < 0.6
    kinds = {"site": "categorical", "effort": "covariate"}
    inputs = {"site": np.array(["a", "b", "c"] * 100), "effort": np.arange(300.0)}
    found = []
    for block_rows in (4, 32, 512):
        dataset = write_dataset(
            tmp_path / f"{block_rows}",
            views | inputs,
            inputs=kinds,
            sequences=sequence,
            block_rows=block_rows,
        )
        blocks = [dataset.block(n, holdout=holdout) for n in range(dataset.n_blocks)]
        for name, values in views.items():
            seen = np.concatenate([dataset.views[name].kind.observed(b.data[name]) for b in blocks])
            np.testing.assert_array_equal(seen, ~np.isnan(values) & ~wanted[:, None])
        for name in inputs:
            np.testing.assert_array_equal(
                np.concatenate([b.data[name] for b in blocks]), dataset.values(name)
            )
        found.append(hidden_entries(dataset, holdout))
    assert found[0] == found[1] == found[2]
    assert set(found[0]) == set(views)
    assert hidden_entries(dataset, holdout, ["counts", "site"]) == {"counts": found[0]["counts"]}
    missing = {view.name: view.missing for view in dataset.meta(holdout=holdout).views}
    assert missing == {
        "rna": "scattered",
        "mutation": "samples",
        "counts": "samples",
        "site": "none",
        "effort": "none",
    }


def test_units_that_the_data_do_not_have(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views)
    for call in (dataset.meta, lambda views, holdout: dataset.read(0, views, holdout)):
        with pytest.raises(InputError, match="holdout_unit = sequence: expected a dataset with sequences"):
            call(None, Holdout(0.1, unit="sequence"))
    with pytest.raises(InputError, match="holdout_unit = column: expected one of entry, row, sequence"):
        Holdout(0.1, unit="column")  # type: ignore[arg-type]
    three = write_dataset(tmp_path / "t", views, sequences=["a"] * 100 + ["b"] * 100 + ["c"] * 100)
    with pytest.raises(InputError, match="some of 3 sequences.*hides none"):
        three.meta(holdout=Holdout(1e-9, unit="sequence"))
    with pytest.raises(InputError, match="some of 3 sequences.*hides all"):
        three.meta(holdout=Holdout(1 - 1e-9, unit="sequence"))
    with pytest.raises(InputError, match="some of 300 rows.*hides none"):
        dataset.meta(holdout=Holdout(1e-9, unit="row"))


def test_large_data_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.data.holdout.PIECE", 10)
    holdout = Holdout(0.02, seed=3, unit="row")
    first = int(np.flatnonzero(holdout.rows(0, 10_000))[0])
    assert first > 20
    holdout.check(first + 1, 0)
    with pytest.raises(InputError, match="hides none"):
        holdout.check(first, 0)


def test_a_holdout_from_settings() -> None:
    assert Holdout.of({"holdout": 0.0, "seed": 1}) is None
    assert Holdout.of({"seed": 1}) is None
    assert Holdout.of({"holdout": 0.2, "seed": 7}) == Holdout(0.2, 7)
    assert Holdout.of({"holdout": 0.2, "seed": 7, "holdout_unit": "row"}) == Holdout(0.2, 7, "row")


def test_mask_is_the_counter_generator() -> None:
    mask = Holdout(0.25, seed=2**63 + 5).mask(2, 1000, 300, 400)
    uniform = entry_uniform(
        2**63 + 5, HOLDOUT_ENTRIES[2], np.arange(1000, 1300)[:, None], np.arange(400)[None]
    )
    np.testing.assert_array_equal(mask, uniform < 0.25)
    assert abs(mask.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / mask.size)  # false alarm: 6e-7


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_refuses_other_fractions(fraction: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        Holdout(fraction)
    with pytest.raises(InputError, match="seed"):
        Holdout(0.1, -1)


def test_rows_hidden_whole() -> None:
    """None of them where single entries are hidden."""
    assert not Holdout(0.9, 1).rows(0, 50).any()
    hidden = Holdout(0.5, 1, "row").rows(10, 50)
    np.testing.assert_array_equal(hidden, Holdout(0.5, 1, "row").rows(0, 60)[10:])
    assert 10 < hidden.sum() < 40
    sequences = np.repeat(np.arange(30), 2)
    whole = Holdout(0.5, 1, "sequence").rows(0, 60, sequences)
    for found, numbers, site in ((hidden, np.arange(10, 60), 0), (whole, sequences, 1)):
        np.testing.assert_array_equal(found, entry_uniform(1, HOLDOUT_UNITS[site], numbers, 0) < 0.5)


@pytest.mark.parametrize("unit", ["row", "entry"])
@pytest.mark.parametrize("first", [0, 5, 16, 20, 40])
def test_rows_that_are_kept_for_last_are_held_out_from_the_first_on(unit: HoldoutUnit, first: int) -> None:
    """Whatever blocks they are in; of a table whose last rows are held out."""
    holdout, observed = Holdout(0.0, unit=unit, from_row=first), np.ones((16, 2), bool)
    hidden = []
    for start in (0, 16, 32):
        rows, columns = holdout.hidden(0, start, observed, None)
        assert sorted(zip(rows.tolist(), columns.tolist(), strict=True)) == [
            (row, column) for row in sorted(set(rows.tolist())) for column in (0, 1)
        ]
        hidden += sorted({start + row for row in rows.tolist()})
    assert hidden == list(range(first, 48))
