"""Counts are split by (seed, view, row, feature) alone, binomially, and none is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from factorflow.core.kinds import KINDS
from factorflow.data import Dataset, Holdout, write_dataset
from factorflow.data.thinning import scored_entries
from factorflow.kernels.compile import compile_scalar
from factorflow.kernels.random import Step
from factorflow.kernels.scalar.entries import TRIALS, thin_rows
from factorflow.kernels.sites import HOLDOUT_ENTRIES

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

N, D = 300, 20
COUNTS = KINDS["poisson"]


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    rng = np.random.default_rng(7)
    y = rng.poisson(rng.gamma(0.2, 3.0, (N, D))).astype(np.float32)
    y[2, 3], y[9, 1] = np.nan, 3 * TRIALS + 7
    y[20] = np.nan
    return y


def split(
    dataset: Dataset, holdout: Holdout, view: str = "x", *, sparse: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return what is seen and what is held out, NaN where it is not scored, (N, D)."""
    seen, rest = [], np.full((dataset.n_rows, dataset.views[view].n_features), np.nan)
    for number in reversed(range(dataset.n_blocks)):  # in any order
        block, truth = dataset.read(number, [view], holdout, [view] if sparse else [])
        values = block.data[view]
        seen.append(values.dense(COUNTS) if sparse else values)
        rows, columns = block.hidden[view]
        assert rows.dtype == columns.dtype == np.int32
        assert (np.diff(rows.astype(np.int64) * 10**6 + columns) > 0).all()
        assert not truth[view].flags.writeable
        rest[rows + block.start, columns] = truth[view]
    return np.concatenate(seen[::-1]), rest


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_parts_add_up_in_any_layout_and_blocks(tmp_path: Path, counts: np.ndarray, share: float) -> None:
    holdout, results = Holdout(share, 2**63 + 5, "count"), []
    for layout, block_rows in (("dense", 32), ("dense", 512), ("sparse", 64)):
        y = np.where(
            np.isnan(counts) & (np.arange(N) != 20)[:, None], 0, counts
        )  # no single gap in a sparse one
        path = tmp_path / f"{layout}{block_rows}"
        data = {"other": counts[:, :2], "x": y}
        dataset = write_dataset(
            path, data, layout={"x": layout}, likelihoods={"x": "poisson"}, block_rows=block_rows
        )
        results += [split(dataset, holdout), split(dataset, holdout, sparse=True)]
    seen, rest = results[0]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    np.testing.assert_array_equal(seen + rest, y)  # all is scored, but what is missing
    assert (seen[y == 0] == 0).all()
    assert ((seen >= 0) | np.isnan(y)).all()
    n = np.nansum(y)
    assert abs(np.nansum(rest) - share * n) < 5 * np.sqrt(share * (1 - share) * n)  # false alarm: 6e-7
    again = split(dataset, Holdout(share, 1, "count"))[1]
    assert (again[y > 0] != rest[y > 0]).any()


def test_gaps_stay_gaps_and_are_not_scored(tmp_path: Path, counts: np.ndarray) -> None:
    whole = np.nan_to_num(counts)
    dataset = write_dataset(tmp_path / "x", {"x": counts, "y": counts, "z": whole}, block_rows=64)
    holdout = Holdout(0.3, 5, "count")
    seen, rest = split(dataset, holdout)
    np.testing.assert_array_equal(np.isnan(seen), np.isnan(counts))
    np.testing.assert_array_equal(np.isnan(rest), np.isnan(counts))
    np.testing.assert_array_equal(split(dataset, holdout, sparse=True), (seen, rest))
    assert (split(dataset, holdout, "y")[1][counts > 0] != rest[counts > 0]).any()  # of views one by one
    missing = {view.name: view.missing for view in dataset.meta(holdout=holdout).views}
    assert missing == {"x": "scattered", "y": "scattered", "z": "none"}


def test_draws_are_quantiles_of_the_counter_generator(tmp_path: Path, counts: np.ndarray) -> None:
    """Of SciPy's binomial distribution, `TRIALS` trials a uniform number."""
    dataset = write_dataset(tmp_path / "x", {"x": counts}, block_rows=64)
    _, rest = split(dataset, Holdout(0.3, 5, "count"))
    for row, column in ((9, 1), *zip(*np.nonzero(counts[:40] > 0), strict=True)):
        step, left, wanted = Step(5, iteration=int(column)), int(counts[row, column]), 0
        uniforms = step.uniform(HOLDOUT_ENTRIES[0], np.array([row]), 2 * (left // TRIALS + 1))[0, ::2]
        for uniform in uniforms:
            trials = min(left, TRIALS)
            wanted, left = wanted + int(binom.ppf(uniform, trials, 0.3)) * (trials > 0), left - trials
        assert rest[row, column] == wanted


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_parts_are_binomial(share: float) -> None:
    n_draws, count = 20_000, 5
    out, columns = np.empty(n_draws, np.uint8), np.zeros(n_draws, np.uint16)
    key = np.uint64(3), np.uint64(HOLDOUT_ENTRIES[0]), 0, share
    entries = np.full(n_draws, count, np.uint8)
    compile_scalar(thin_rows)(*key, np.ones(n_draws, np.int64), columns, entries, out)
    wanted = binom.pmf(np.arange(count + 1), count, share) * n_draws
    many = wanted > 5
    found = np.bincount(out, minlength=count + 1)[many]
    assert chisquare(found, wanted[many] * found.sum() / wanted[many].sum()).pvalue > 1e-6


def test_a_bounded_number_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = scored_entries(1, 0, 0, 10, 10, 7)
    np.testing.assert_array_equal(rows * 7 + columns, np.arange(70))  # all of few
    monkeypatch.setattr("factorflow.data.thinning.MOST_SCORED", 3 * 8000)
    rows, columns = scored_entries(1, 0, 0, 8000, 8000, 7)
    assert (np.bincount(rows) == 3).all()
    assert len(np.unique(rows.astype(np.int64) * 7 + columns)) == 3 * 8000
    of_feature = np.bincount(columns, minlength=7)
    assert (abs(of_feature - 3 / 7 * 8000) < 5 * np.sqrt(8000 * 3 / 7 * 4 / 7)).all()  # false alarm: 4e-6
    later = scored_entries(1, 0, 5000, 8000, 100, 7)
    np.testing.assert_array_equal(later[1], columns[15_000:15_300])
    assert (scored_entries(1, 1, 0, 8000, 8000, 7)[1] != columns).any()
    assert (np.bincount(scored_entries(1, 0, 0, 10**9, 50, 7)[0]) == 1).all()
