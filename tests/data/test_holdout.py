"""Held-out entries depend on seed, view, row and column alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from factorflow.data import Holdout, write_dataset
from factorflow.data.holdout import HOLDOUT_SITE
from factorflow.errors import InputError
from factorflow.kernels.random import entry_uniform


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


def test_hidden_entries_look_missing(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset, holdout = write_dataset(tmp_path / "s", views, block_rows=64), Holdout(0.3, 2)
    for number in range(dataset.n_blocks):
        whole, block = dataset.block(number), dataset.block(number, holdout=holdout)
        for name in views:
            rows, columns = block.hidden[name]
            seen = whole.data[name][rows, columns]
            np.testing.assert_array_equal(dataset.hidden_values(number, name, holdout), seen)
            hidden = np.zeros(whole.data[name].shape, bool)
            hidden[rows, columns] = True
            if name == "mutation":
                assert (seen >= 0).all()
                assert (block.data[name][hidden] == -1).all()
            else:
                assert not np.isnan(seen).any()
                assert np.isnan(block.data[name][hidden]).all()
            np.testing.assert_array_equal(block.data[name][~hidden], whole.data[name][~hidden])


def test_mask_is_the_counter_generator() -> None:
    mask = Holdout(0.25, seed=2**63 + 5).mask(2, 1000, 300, 400)
    uniform = entry_uniform(2**63 + 5, HOLDOUT_SITE + 2, np.arange(1000, 1300)[:, None], np.arange(400)[None])
    np.testing.assert_array_equal(mask, uniform < 0.25)
    assert abs(mask.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / mask.size)  # false alarm: 6e-7


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_refuses_other_fractions(fraction: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        Holdout(fraction)
    with pytest.raises(InputError, match="seed"):
        Holdout(0.1, -1)
