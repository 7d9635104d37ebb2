"""Names, groups and sequences of rows: in pieces, and where a sequence runs from block to block."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr

import factorflow
from factorflow import Posterior, open_posterior
from factorflow.core.block import Meta, ViewMeta, sample_names, sample_numbers
from factorflow.data import Dataset, open_dataset, simulate, write_dataset
from factorflow.errors import InputError


def test_numbered_names() -> None:
    assert sample_names(np.array([0, 7, 10**8])).tolist() == ["sample0", "sample7", "sample100000000"]
    names = [
        "sample0",
        "sample9",
        "sample10",
        "sample-1",
        "sample07",
        "sample",
        "7",
        "Sample1",
        "sample\u0663",
    ]
    assert sample_numbers(names, 10).tolist() == [0, 9, -1, -1, -1, -1, -1, -1, -1]


def test_unnamed_rows_have_no_stored_names(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views, obs={"age": np.arange(300)}, block_rows=64)
    assert not dataset.named
    assert not (tmp_path / "s" / "obs").exists()
    assert dataset.obs_names.tolist() == [f"sample{i}" for i in range(300)]
    assert dataset.names(298).tolist() == ["sample298", "sample299"]
    assert dataset.obs["age"].loc["sample7"] == 7
    assert "obs" not in dataset.tree.coords
    dataset.verify()
    same = [f"sample{i}" for i in range(300)]
    named = write_dataset(tmp_path / "t", views, samples=same, obs=dataset.obs, block_rows=64)
    assert named.named
    assert named.obs_names.tolist() == same
    assert named.names(5, 7).tolist() == ["sample5", "sample6"]
    assert named.fingerprint != dataset.fingerprint


def brute_force(sequence: np.ndarray, block_rows: int) -> list[tuple[bool, bool]]:
    """Whether each block goes on from the one before, and into the next."""
    found = []
    for start in range(0, sequence.size, block_rows):
        stop = min(start + block_rows, sequence.size)
        before = start > 0 and sequence[start - 1] == sequence[start]
        after = stop < sequence.size and sequence[stop - 1] == sequence[stop]
        found.append((bool(before), bool(after)))
    return found


@pytest.mark.parametrize("block_rows", [1, 2, 8, 32, 128, 512])
@pytest.mark.parametrize("chunk", [64, 65536])
def test_codes_and_joints(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, block_rows: int, chunk: int
) -> None:
    monkeypatch.setattr("factorflow.data.store.rows.LABEL_CHUNK", chunk)
    lengths = [1, 7, 64, 1, 55, 32, 96, 1, 1, 31]  # some end where blocks end
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    n = sequence.size
    group = rng.integers(0, 3, n)
    group[:3] = 0, 1, 2
    y = rng.standard_normal((n, 2))
    dataset = write_dataset(
        tmp_path / "s", {"y": y}, groups=group, sequences=[f"s{i}" for i in sequence], block_rows=block_rows
    )
    time = np.concatenate([np.arange(length) for length in lengths])
    wanted = {"group": group, "sequence": sequence, "time": time}
    assert dataset.code_names == ("group", "sequence", "time")
    blocks = [dataset.block(number) for number in range(dataset.n_blocks)]
    for name, codes in wanted.items():
        parts = [block.columns[name] for block in blocks]
        np.testing.assert_array_equal(np.concatenate(parts), codes)
        assert all(
            part.dtype == np.int32 and not part.flags.writeable and part.base is None for part in parts
        )
        np.testing.assert_array_equal(dataset.codes(name, 60, 200), codes[60:200])
        assert dataset.codes(name, 5, 5).size == 0
    assert [(block.from_before, block.into_next) for block in blocks] == brute_force(sequence, block_rows)
    meta = dataset.meta()
    assert meta.group_sizes == tuple(np.bincount(group))
    assert meta.row_bytes == 2 * 4 + 3 * 4
    dataset.verify()
    with pytest.raises(InputError, match="code = age: expected one of group, sequence, time"):
        dataset.codes("age")


def test_row_bytes_count_the_codes() -> None:
    view = (ViewMeta("y", "bernoulli", 3, "none"),)
    assert Meta(10, 1, 16, view).row_bytes == 3
    assert Meta(10, 1, 16, view, ("a",)).row_bytes == 3 + 4
    assert Meta(10, 1, 16, view, (), 2).row_bytes == 3 + 8
    assert Meta(10, 1, 16, view, ("a",), 2).row_bytes == 3 + 12


def test_no_sequences_no_joints(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views, block_rows=64)
    block = dataset.block(1)
    assert (block.from_before, block.into_next) == (False, False)
    assert not (tmp_path / "s" / "joined").exists()


@pytest.mark.parametrize("name", ["group", "sequence", "time"])
def test_damaged_codes(tmp_path: Path, views: dict[str, np.ndarray], name: str) -> None:
    labels = np.repeat(["a", "b", "c"], 100)
    dataset = write_dataset(tmp_path / "s", views, groups=labels, sequences=labels, block_rows=64)
    file = tmp_path / "s" / name / "c" / "0"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"{name}/c/0"):
        dataset.block(0)
    with pytest.raises(InputError, match=f"{name}/c/0"):
        dataset.verify()


def test_verify_sees_other_joints(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    labels = np.repeat(["a", "b", "c"], 100)
    write_dataset(tmp_path / "s", views, sequences=labels, block_rows=64)
    zarr.open_group(str(tmp_path / "s"))["joined"][2] = False
    with pytest.raises(InputError, match="joined"):
        open_dataset(tmp_path / "s").verify()


@pytest.mark.thorough
def test_a_run_reads_no_column_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read of codes that a fit makes is that of a block (or of a piece of the posterior)."""
    views = {"y": ("gaussian", 6)}
    dataset = simulate("sparse_gfa", tmp_path / "s", 300, views=views, n_factors=2, groups=2, block_rows=32)
    seen: list[int] = []
    codes = Dataset._codes

    def watched(self: Dataset, name: str, first: int, last: int) -> np.ndarray:
        found = codes(self, name, first, last)
        seen.append(found.size)
        return found

    monkeypatch.setattr(Dataset, "_codes", watched)
    config = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 3, "scores": "normal"}
    factorflow.fit(dataset, config, out=tmp_path / "p.zarr", holdout=0.1)
    assert seen
    assert max(seen) == 32


@pytest.fixture
def fitted(tmp_path: Path) -> tuple[Dataset, Path]:
    """A stored posterior of unnamed samples with groups and metadata."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((90, 3)) + rng.standard_normal((90, 1))
    groups = np.repeat(["a", "b", "c"], 30)
    obs = pd.DataFrame({"age": np.arange(90.0)})
    dataset = write_dataset(tmp_path / "s", {"y": y}, groups=groups, obs=obs, block_rows=32)
    config = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 3, "scores": "normal"}
    factorflow.fit(dataset, config, out=tmp_path / "p.zarr")
    return dataset, tmp_path / "p.zarr"


def check(posterior: Posterior) -> None:
    names = [f"sample{i}" for i in range(90)]
    assert list(posterior.obs_names) == names
    assert posterior.predict("y", obs=["sample80", "sample3"])["mean"].values.shape == (2, 3)
    mean = posterior.predict("y", 80, 81)["mean"]
    np.testing.assert_array_equal(posterior.predict("y", obs=["sample80"])["mean"].values, mean.values)
    table = posterior.sample_metadata()
    assert list(table.index) == names
    assert table["group"].tolist() == [*"a" * 30, *"b" * 30, *"c" * 30]
    assert table["age"].tolist() == list(range(90))
    with pytest.raises(InputError, match="obs = sample90"):
        posterior.predict("y", obs=["sample90"])


@pytest.mark.thorough
def test_posterior_of_unnamed_samples(fitted: tuple[Dataset, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, path = fitted
    arrays = {os.path.relpath(folder, path) for folder, _, files in os.walk(path) if "zarr.json" in files}
    assert not [name for name in arrays if name.split("/")[-1] == "obs"]
    posterior = open_posterior(path)
    check(posterior)
    assert posterior.scores().obs.values.tolist() == [f"sample{i}" for i in range(90)]
    assert posterior.scores().sel(obs="sample7").shape == (len(posterior.factors),)
    assert list(posterior.predict("y", 3, 5).obs.values) == ["sample3", "sample4"]
    for module in ("open", "prediction", "assembly"):  # as if 90 were too many
        monkeypatch.setattr(f"factorflow.posterior.{module}.LAZY_LABELS", 50)
    many = open_posterior(path)
    assert "obs" not in many.tree["variational"].coords
    check(many)
    assert list(many.predict("y")["mean"][70:72].obs.values) == ["sample70", "sample71"]
    config = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 3, "scores": "normal"}
    in_memory = factorflow.fit(dataset, config)
    assert "obs" not in in_memory.tree["variational"].coords
    check(in_memory)
