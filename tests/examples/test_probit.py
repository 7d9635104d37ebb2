"""The source's experiments, cut short."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from examples.reproduce.probit import load_set, mnlp, reproduce, synthetic
from factorflow.errors import InputError


def test_synthetic_set_is_three_patterns_with_a_tenth_flipped() -> None:
    x = synthetic()
    assert x.shape == (600, 16)
    assert set(np.unique(x)) == {0.0, 1.0}
    pattern = np.repeat([x[200 * i : 200 * i + 200].mean(0) > 0.5 for i in range(3)], 200, axis=0)
    assert abs((x != pattern).mean() - 0.1) < 0.02  # standard error .003


def test_mnlp_is_in_bits() -> None:
    x = np.array([[1.0, 0.0, 1.0]])
    assert mnlp(x, np.full((1, 3), 0.5), np.ones((1, 3), bool)) == 1.0
    p = np.array([[0.25, 0.25, 1.0]])
    assert mnlp(x, p, np.array([[True, True, False]])) == pytest.approx((2 - np.log2(0.75)) / 2)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"PK\x03\x04\x8d\xff"):
        (tmp_path / "set.npz").write_bytes(content)
        with pytest.raises(InputError, match="a CSV file"):
            load_set(tmp_path / "set.npz")


def test_a_table_that_is_not_binary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ages.csv").write_text("a,b\n1,44\n0,31\n")
    with pytest.raises(InputError, match="zeros and ones"):
        load_set(tmp_path)


@pytest.mark.thorough
def test_a_short_run_writes_scores_and_figures(tmp_path: Path) -> None:
    found = reproduce(tmp_path, n_factors=(2,), splits=1, sweeps=12, burn_in=4, long_draws=0)
    assert len(found["synthetic"]["scores"]) == 3
    assert all(0.0 < row["test_mnlp"] < 2.0 for row in found["synthetic"]["scores"])
    assert json.loads((tmp_path / "probit.json").read_text()) == found
    names = {path.name for path in tmp_path.glob("*.png")}
    assert names == {"probit-figure-1.png", "probit-synthetic.png"}


@pytest.mark.slow
def test_long_chains_and_data_of_ones_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.random((60, 1)) < 0.5) ^ (rng.random((60, 6)) < 0.15)
    table = "\n".join(",".join(map(str, row)) for row in rows.astype(int))
    (tmp_path / "small.csv").write_text("a,b,c,d,e,f\n" + table + "\n")
    short = {"n_factors": (1, 2), "splits": 2, "sweeps": 20, "burn_in": 5}
    found = reproduce(tmp_path / "out", tmp_path / "small.csv", long_draws=20, **short)
    assert set(found) == {"synthetic", "small"}
    for result in found.values():
        assert len(result["scores"]) == 6
        assert set(result["long_chains"]) == {"binary", "spike_slab", "nonnegative"}
        assert all(len(chain["test_mnlp"]) == 4 for chain in result["long_chains"].values())
