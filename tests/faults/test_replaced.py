"""A run reads one version of its dataset, whatever is put in its place meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import assert_same_bits

import factorflow
from factorflow.errors import InputError

CONFIG = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 8}


def values(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((160, 6)).astype(np.float32)


def written(path: Path, seed: int, **options: Any) -> Any:
    return factorflow.write_dataset(path, {"y": values(seed)}, block_rows=32, **options)


def at_iteration(number: int, do: Any) -> Any:
    def watch(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == number:
            do()

    return watch


@pytest.mark.parametrize("executor", ["local", "threads"])
@pytest.mark.parametrize("what", ["another", "another, twice", "none"])
def test_a_dataset_replaced_during_a_fit(
    what: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are not kept are read again each iteration: never from another version."""
    monkeypatch.setattr("factorflow.engine.run.kept_bytes", lambda *_: 0)
    path = tmp_path / "d.zarr"
    data = written(path, 1)

    def replace() -> None:
        if what == "none":
            shutil.rmtree(path)
            return
        written(path, 2, overwrite=True)
        if what == "another, twice":
            written(path, 3, overwrite=True)

    with pytest.raises(InputError, match=r"d\.zarr") as caught:
        factorflow.fit(data, CONFIG, executor=executor, on_event=at_iteration(3, replace))
    assert what == "none" or "replaced while it was in use" in str(caught.value)


def test_the_same_data_written_again_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.engine.run.kept_bytes", lambda *_: 0)
    path = tmp_path / "d.zarr"
    data = written(path, 1)
    expected = factorflow.fit(data, CONFIG)
    again = at_iteration(3, lambda: written(path, 1, overwrite=True))
    assert_same_bits(factorflow.fit(data, CONFIG, on_event=again), expected)


def test_whatever_is_read_is_of_the_version_that_was_opened(tmp_path: Path) -> None:
    data = written(tmp_path / "d.zarr", 1)
    data.block(0)
    written(tmp_path / "d.zarr", 2, overwrite=True)
    for read in (
        lambda: data.block(1),
        lambda: data.values("y", 0, 3),
        lambda: data.moments("y"),
        lambda: data.features("y"),
        data.verify,
    ):
        with pytest.raises(InputError, match="replaced while it was in use"):
            read()
