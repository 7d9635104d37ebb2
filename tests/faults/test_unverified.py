"""Nothing good is replaced by something unverified: damaged draws of a run, a damaged new dataset."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import Crash, assert_same_bits, fails_after

import factorflow
from factorflow.data.ingest import ingest
from factorflow.engine import publish
from factorflow.errors import FactorflowError, InputError, RunError
from factorflow.storage.checksums import chunk_damage, crc32c_bytes

CONFIG = {"model": "probit", "n_factors": 1, "n_burn_in": 2, "n_draws": 8, "chains": 1}
CHUNK = "posterior.zarr/posterior/loadings_y/c/0/0/0/0"


def empty(file: Path) -> None:
    file.write_bytes(b"")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)


def shorten(file: Path) -> None:
    """Write a shorter chunk with its right checksum."""
    content = file.read_bytes()[:-12]
    file.write_bytes(content + crc32c_bytes(content))


DAMAGES = {damage.__name__: damage for damage in (empty, truncate, change, shorten)}


@pytest.fixture
def old(tmp_path: Path) -> Any:
    """A posterior that a run is to replace."""
    y = (np.random.default_rng(0).standard_normal((60, 6)) > 0).astype(np.int8)
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"y": y}, {"y": "bernoulli"}, block_rows=32)
    return factorflow.fit(data, CONFIG, seed=1, out=tmp_path / "p.zarr", progress=False).load()


def fit(tmp_path: Path, **options: Any) -> Any:
    given = {"out": tmp_path / "p.zarr", "overwrite": True, "checkpoint_every": 2, "progress": False}
    return factorflow.fit(tmp_path / "d.zarr", CONFIG, seed=2, **(given | options))


def chunk(tmp_path: Path) -> Path:
    """Return a chunk of draws."""
    return (
        tmp_path / "p.zarr.run" / "posterior.zarr" / "posterior" / "loadings_y" / "c" / "0" / "0" / "0" / "0"
    )


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_draws_are_not_resumed(damage: Callable[[Path], None], old: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Crash"):
        fit(tmp_path, on_event=fails_after("CheckpointWritten", 3, Crash))
    file = chunk(tmp_path)
    damage(file)
    with pytest.raises(InputError, match=f"{file}.*run anew with overwrite=True"):
        factorflow.resume(tmp_path / "p.zarr")
    assert_same_bits(factorflow.open_posterior(tmp_path / "p.zarr"), old)
    assert (tmp_path / "p.zarr.run" / "manifest.json").exists()


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_draws_are_not_published(
    damage: Callable[[Path], None],
    replaces: bool,
    old: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Damaged after all of them were written."""
    out = tmp_path / "p.zarr"
    if not replaces:
        shutil.rmtree(out)
    assemble = publish.assemble

    def damaged(*given: Any) -> Any:
        damage(chunk(tmp_path))
        return assemble(*given)

    monkeypatch.setattr(publish, "assemble", damaged)
    with pytest.raises(FactorflowError, match=f"p.zarr.run/{CHUNK} = "):
        fit(tmp_path)
    if replaces:
        assert_same_bits(factorflow.open_posterior(out), old)
    assert out.exists() is replaces
    assert (tmp_path / "p.zarr.run" / "manifest.json").exists()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_dataset_replaces_nothing(
    damage: Callable[[Path], None], old: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, before = ingest.write_store, factorflow.open_dataset(tmp_path / "d.zarr")

    def damaged(directory: Path, *given: Any, **options: Any) -> None:
        write(directory, *given, **options)
        damage(directory / "y" / "values" / "c" / "0" / "0")

    monkeypatch.setattr(ingest, "write_store", damaged)
    y = {"y": np.zeros((60, 6), np.int8)}
    y["y"][::2] = 1
    with pytest.raises(InputError, match=r"y/values/c/0/0.*Nothing was replaced"):
        factorflow.write_dataset(tmp_path / "d.zarr", y, {"y": "bernoulli"}, block_rows=32, overwrite=True)
    assert factorflow.open_dataset(tmp_path / "d.zarr").fingerprint == before.fingerprint
    before.verify()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.zarr", "p.zarr"]


def test_a_chunk_without_content_is_damaged() -> None:
    assert crc32c_bytes(b"") == b"\0\0\0\0"
    assert chunk_damage(b"\0\0\0\0") == "checksum mismatch"


def test_a_run_without_its_manifest_is_not_taken_for_the_result_that_it_was_to_replace(
    old: Any, tmp_path: Path
) -> None:
    """What is at the path is not called its result, and the run is left alone."""
    with pytest.raises(RunError, match="Crash"):
        fit(tmp_path, on_event=fails_after("CheckpointWritten", 3, Crash))
    run = tmp_path / "p.zarr.run"
    (run / "manifest.json").unlink()
    with pytest.raises(InputError, match="expected the checkpoints of an interrupted run"):
        factorflow.resume(tmp_path / "p.zarr")
    assert (run / "posterior.zarr").exists()
    assert_same_bits(factorflow.open_posterior(tmp_path / "p.zarr"), old)
