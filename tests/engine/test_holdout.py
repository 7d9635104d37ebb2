"""A run hides entries, rows or sequences, scores them from one read, and is known by what it hid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.core.block import HoldoutUnit
from factorflow.data import Dataset, Holdout, write_dataset
from factorflow.engine.source import Source
from factorflow.errors import InputError
from factorflow.settings import RunOptions, TrialOptions

CONFIG = {"model": "sparse_gfa", "n_factors": 2, "warmup_iter": 5, "max_iter": 8}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(4)
    y = (
        3.0 * rng.standard_normal((150, 2)) @ rng.standard_normal((2, 8))
        + rng.standard_normal((150, 8))
        + 5.0
    )
    y[rng.random(y.shape) < 0.1] = np.nan
    binary = (rng.random((150, 5)) < 0.5).astype(float)
    path = tmp_path_factory.mktemp("holdout") / "d.zarr"
    sequences = np.repeat(np.arange(30), 5)
    return write_dataset(path, {"y": y, "b": binary}, sequences=sequences, block_rows=32)


def hidden(dataset: Dataset, holdout: Holdout, view: str) -> np.ndarray:
    """Where observed entries are held out, (N, D)."""
    shown = [dataset.block(n, [view], holdout).data[view] for n in range(dataset.n_blocks)]
    observed = dataset.views[view].kind.observed
    return observed(dataset.values(view)) & ~observed(np.concatenate(shown))


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["row", "sequence"])
def test_whole_units_are_scored(dataset: Dataset, tmp_path: Path, unit: HoldoutUnit) -> None:
    posterior = factorflow.fit(
        dataset, CONFIG, seed=5, holdout=0.2, holdout_unit=unit, out=tmp_path / "p.zarr"
    )
    holdout = Holdout(0.2, 5, unit)
    scores = posterior.holdout_scores()
    for view in ("y", "b"):
        where = hidden(dataset, holdout, view)
        rows = where.any(axis=1)
        assert 5 < rows.sum() < 100
        observed = dataset.views[view].kind.observed(dataset.values(view))
        np.testing.assert_array_equal(where[rows], observed[rows])  # all of a row, or none of it
        assert scores.loc[view, "n_entries"] == where.sum()
        error = posterior.predict(view)["mean"].values[where] - dataset.values(view)[where]
        np.testing.assert_allclose(scores.loc[view, "rmse"], np.sqrt((error**2).mean()), rtol=1e-6)
    assert posterior.run["holdout_unit"] == unit
    assert posterior.summary()["holdout_unit"] == unit
    kinds = {view.name: view.missing for view in posterior.meta.views}
    assert kinds == {"y": "scattered", "b": "samples"}


@pytest.mark.thorough
def test_variance_is_that_of_the_shown_entries(dataset: Dataset) -> None:
    """The shares that the posterior computes leave out what was hidden, whatever the unit."""
    from factorflow.posterior.variance import _squares_of_views

    for unit in ("entry", "row"):
        posterior = factorflow.fit(dataset, CONFIG, seed=5, holdout=0.2, holdout_unit=unit)
        where = hidden(dataset, Holdout(0.2, 5, unit), "y")
        y = np.where(where, np.nan, dataset.values("y").astype(float))
        squares = _squares_of_views(posterior, None, "y", lambda whole: [whole])
        np.testing.assert_allclose(
            squares.total[0, 0], np.nansum((y - np.nanmean(y, axis=0)) ** 2), rtol=1e-9
        )
        error = y - posterior.predict("y")["mean"].values
        np.testing.assert_allclose(squares.residual[0, 0, 0], np.nansum(error**2), rtol=1e-9)


@pytest.mark.thorough
def test_a_run_is_known_by_its_unit(dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    options: dict[str, Any] = {"seed": 5, "holdout": 0.2, "out": out}
    first = factorflow.fit(dataset, CONFIG, holdout_unit="row", **options)
    again = factorflow.fit(dataset, CONFIG, holdout_unit="row", resume="auto", **options)
    assert again.run["created_at"] == first.run["created_at"]
    with pytest.raises(InputError, match="a path that does not exist"):
        factorflow.fit(dataset, CONFIG, holdout_unit="entry", resume="auto", **options)


@pytest.mark.thorough
def test_an_interrupted_run_goes_on_with_its_unit(dataset: Dataset, tmp_path: Path) -> None:
    from factorflow.engine.events import IterationDone

    def stop(event: Any) -> None:
        if isinstance(event, IterationDone) and event.iteration == 3:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"seed": 5, "holdout": 0.2, "holdout_unit": "sequence"}
    whole = factorflow.fit(dataset, CONFIG, **options)
    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(dataset, CONFIG, out=tmp_path / "p.zarr", on_event=stop, **options)
    resumed = factorflow.resume(tmp_path / "p.zarr")
    assert resumed.run["holdout_unit"] == "sequence"
    wanted = whole.holdout_scores()
    np.testing.assert_array_equal(resumed.holdout_scores()[wanted.columns], wanted)


def test_refused_before_a_run_begins(dataset: Dataset, tmp_path: Path) -> None:
    plain = write_dataset(tmp_path / "d.zarr", {"y": dataset.values("y")})
    with pytest.raises(InputError, match="a dataset with sequences"):
        factorflow.fit(plain, CONFIG, holdout=0.1, holdout_unit="sequence", out=tmp_path / "p.zarr")
    with pytest.raises(InputError, match="holdout_unit = column"):
        factorflow.fit(plain, CONFIG, holdout_unit="column", out=tmp_path / "p.zarr")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["d.zarr"]


def test_options_know_the_unit() -> None:
    assert TrialOptions().holdout_unit == "entry"
    assert "holdout_unit" in RunOptions.model_fields
    assert RunOptions.model_fields["holdout_unit"].description


def test_truth_comes_with_the_one_read(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    holdout = Holdout(0.2, 1)
    reads: list[int] = []
    read = Dataset.read

    def watched(self: Dataset, number: int, *rest: Any) -> Any:
        reads.append(number)
        return read(self, number, *rest)

    monkeypatch.setattr(Dataset, "read", watched)
    source = Source(dataset, ("y",), holdout, 1 << 20)
    for block in source.stream(range(5)):
        assert block.hidden["y"][0].size
    for block, truth in source.with_truth(range(5)):
        where = block.hidden["y"]
        values = dataset.values("y", block.start, block.start + block.n_rows)
        np.testing.assert_array_equal(truth["y"], values[where])
    assert sorted(reads) == list(range(5))  # kept blocks keep their truth


def test_kept_blocks_are_counted_whole(dataset: Dataset) -> None:
    from factorflow.engine.source import _block_cache

    source = Source(dataset, ("y", "b"), Holdout(0.2, 2), 1 << 20)
    size = 0
    for block, truth in source.with_truth(range(5)):
        arrays = [*block.data.values(), *block.columns.values(), *truth.values()]
        size += sum(a.nbytes for a in [*arrays, *(part for where in block.hidden.values() for part in where)])
    assert (1 << 20) - _block_cache(source)._left["blocks"] == size
    assert len(block.columns) == 2
    assert truth["y"].size


def test_a_later_run_goes_by_its_own_budget(dataset: Dataset) -> None:
    from factorflow.engine.source import _block_cache

    ample = Source(dataset, ("y", "b"), Holdout(0.2, 4), 1 << 20, 1 << 20)
    for block in ample.stream(range(5)):
        block.once("ten numbers", (), lambda: np.zeros(10))
    kept = _block_cache(ample)
    assert len(kept) == 5
    half = kept.n_bytes // 2
    assert _block_cache(replace(ample, cache_bytes=half)) is kept
    assert 0 < kept.n_bytes <= half
    assert kept._left == {"blocks": half - kept.n_bytes, "memory": (1 << 20) - 80 * len(kept)}
    _block_cache(replace(ample, cache_bytes=half, memory_bytes=100))
    assert len(kept) == 1
    assert len(list(ample.stream(range(5)))) == 5
    assert len(_block_cache(ample)) == 5  # there is room again
