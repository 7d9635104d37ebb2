"""The files of a dataset, byte by byte: one chunk a block and tile, its checksum, its moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zarr

from factorflow.data import open_dataset, write_dataset


def arrays(path: Path) -> dict[str, Any]:
    """Return the Zarr arrays of a store by name."""
    return {name: item for name, item in zarr.open_group(str(path), mode="r").members(max_depth=None)
            if isinstance(item, zarr.Array)}  # fmt: skip


def names(array: Any) -> tuple[str, ...]:
    return tuple(array.metadata.dimension_names or ())


@pytest.mark.parametrize("block_rows", [16, 64])
def test_no_chunk_is_shared_by_two_blocks(tmp_path: Path, views: dict[str, Any], block_rows: int) -> None:
    """Values and masks: rows of a block each, all columns of a tile, and a file for every one."""
    path = tmp_path / "s"
    dataset = write_dataset(path, views, block_rows=block_rows)
    for name, array in arrays(path).items():
        if names(array) != ("obs", "feature"):
            continue
        assert array.chunks == (block_rows, array.shape[1]), name
        files = sorted(int(file.parent.name) for file in (path / name / "c").glob("*/*"))
        assert files == list(range(dataset.n_blocks)), name


def test_a_wide_view_is_cut_into_tiles_of_equal_width(tmp_path: Path) -> None:
    """64 rows of 40 000 features are 10 MB: three tiles of at most 4 MB, the last a column narrower."""
    values = np.random.default_rng(0).standard_normal((40, 40_000)).astype(np.float32)
    dataset = write_dataset(tmp_path / "s", {"wide": values})
    array = arrays(tmp_path / "s")["wide/values"]
    assert array.chunks == (64, 13_334)
    assert dataset.block_rows == 64
    assert sorted(f.name for f in (tmp_path / "s/wide/values/c/0").iterdir()) == ["0", "1", "2"]
    np.testing.assert_array_equal(dataset.block(0).data["wide"], values)


def test_a_chunk_is_its_rows_and_their_checksum(tmp_path: Path, views: dict[str, Any]) -> None:
    """Little-endian values, rows beyond the last as fill values, then the crc32c of these bytes."""
    write_dataset(tmp_path / "s", views, block_rows=64)
    for view, dtype, fill in (("rna", "<f4", np.nan), ("counts", "|u1", 0), ("mutation", "|i1", 0)):
        held = np.nan_to_num(views[view], nan=fill)
        for number in (0, 4):
            raw = (tmp_path / "s" / view / "values" / "c" / str(number) / "0").read_bytes()
            body, crc = raw[:-4], int.from_bytes(raw[-4:], "little")
            assert crc == google_crc32c.value(body)
            chunk = np.frombuffer(body, dtype).reshape(64, -1)
            rows = held[64 * number : 64 * (number + 1)]
            np.testing.assert_array_equal(chunk[: len(rows)], rows)
            if fill == 0:
                assert (chunk[len(rows) :] == 0).all()
    observed = (tmp_path / "s/mutation/observed/c/0/0").read_bytes()
    mask = np.frombuffer(observed[:-4], bool).reshape(64, -1)
    np.testing.assert_array_equal(mask, ~np.isnan(views["mutation"][:64]))


def moments_by_hand(values: Any) -> dict[str, Any]:
    return {
        "n_observed": (~np.isnan(values)).sum(axis=0),
        "mean": np.nanmean(values, axis=0),
        "variance": np.nanvar(values, axis=0),
        "min": np.nanmin(values, axis=0),
        "max": np.nanmax(values, axis=0),
    }


def test_moments_are_merged_over_blocks_of_unequal_length(tmp_path: Path) -> None:
    """A feature whose level drifts over the rows, one that is missing from whole blocks, one far from 0."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((83, 4))
    values[:, 0] += np.linspace(0, 50, 83)
    values[:70, 1] = np.nan
    values[:, 2] = 1e4 + values[:, 2]
    values[20:50:2, 3] = np.nan
    values = values.astype(np.float32)
    dataset = write_dataset(tmp_path / "s", {"y": values}, {"y": "gaussian"}, block_rows=16)
    for name, expected in moments_by_hand(values.astype(float)).items():
        np.testing.assert_allclose(dataset.moments("y")[name], expected, rtol=1e-9, err_msg=name)


def test_moments_of_minus_one_and_one_are_those_of_zero_and_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    binary = (rng.random((50, 6)) < np.linspace(0.1, 0.9, 6)).astype(float)
    binary[rng.random(binary.shape) < 0.2] = np.nan
    signed, plain = (
        write_dataset(tmp_path / name, {"y": values}, {"y": "bernoulli"}, block_rows=16)
        for name, values in (("signed", 2 * binary - 1), ("plain", binary))
    )
    for name, expected in moments_by_hand(binary).items():
        for dataset in (signed, plain):
            np.testing.assert_allclose(dataset.moments("y")[name], expected, rtol=1e-12, err_msg=name)
    assert signed.manifest.views[0].recoded == {"-1": 0}
    assert plain.manifest.views[0].recoded == {}
    np.testing.assert_array_equal(signed.values("y"), plain.values("y"))


@pytest.mark.parametrize(
    ("values", "likelihood", "dtype"),
    [
        ([0, 1, 1], "bernoulli", "int8"),
        ([-1, 1, 1], "bernoulli", "int8"),
        ([0, 0, 0], "bernoulli", "int8"),
        ([-1, 0, 1], "gaussian", "float32"),
        ([-1, -1, -1], "gaussian", "float32"),
        ([0, 1, 2], "poisson", "uint8"),
        ([0, 1, 255], "poisson", "uint8"),
        ([0, 1, 256], "poisson", "uint16"),
        ([3, 1, 65535], "poisson", "uint16"),
        ([3, 1, 65536], "poisson", "uint32"),
        ([0, 1, 1.5], "gaussian", "float32"),
        ([-2, 1, 2], "gaussian", "float32"),
        ([0, 1, 2.0**33], "gaussian", "float32"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*constant")
def test_a_likelihood_is_guessed_from_the_values(
    tmp_path: Path, values: list[float], likelihood: str, dtype: str
) -> None:
    column = np.array([*values, np.nan])[:, None] * np.ones(2)
    dataset = write_dataset(tmp_path / "s", {"y": column, "z": np.arange(4.0)[:, None]})
    entry = dataset.manifest.views[0]
    assert (entry.likelihood, entry.likelihood_from, entry.dtype) == (likelihood, "guessed", dtype)
    assert entry.n_missing == 2
    assert entry.n_missing_samples == 1
    assert entry.masked == (dtype != "float32")


def test_groups_are_coded_as_they_first_appear_and_counted(tmp_path: Path) -> None:
    labels = ["b", "a", "b", "c", "a", "b"] * 6
    values = np.random.default_rng(0).standard_normal((36, 3))
    dataset = write_dataset(tmp_path / "s", {"y": values}, groups=labels, block_rows=16)
    codes = np.concatenate([dataset.block(i).columns["group"] for i in range(dataset.n_blocks)])
    assert [dataset.groups[code] for code in codes] == labels
    assert dict(zip(dataset.groups, dataset.meta().group_sizes, strict=True)) == {"b": 18, "a": 12, "c": 6}
    assert sorted(dataset.groups) == ["a", "b", "c"]
    assert open_dataset(tmp_path / "s").obs["group"].tolist() == labels


def test_sequences_are_numbered_and_timed(tmp_path: Path) -> None:
    labels = ["x"] * 10 + ["y"] * 3 + ["w"] * 20
    values = np.random.default_rng(0).standard_normal((33, 3))
    dataset = write_dataset(tmp_path / "s", {"y": values}, sequences=labels, block_rows=16)
    columns = [dataset.block(i).columns for i in range(dataset.n_blocks)]
    assert np.concatenate([c["sequence"] for c in columns]).tolist() == [0] * 10 + [1] * 3 + [2] * 20
    assert np.concatenate([c["time"] for c in columns]).tolist() == [*range(10), *range(3), *range(20)]
    assert dataset.meta().n_sequences == 3


def test_a_description_says_how_much_is_missing(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    values[:10, 0] = np.nan
    values[39] = np.nan
    counts = np.random.default_rng(1).poisson(3, (40, 4)).astype(float)
    dataset = write_dataset(tmp_path / "s", {"y": values, "n": counts}, block_rows=32)
    facts = dataset.describe()
    first, second = facts["views"]
    assert first["missing_percent"] == pytest.approx(100 * 15 / 200)
    assert first["n_missing_samples"] == 1
    assert (second["missing_percent"], second["missing"]) == (0.0, "none")
    assert first["nbytes"] == 4 * 40 * 5
    assert facts["nbytes"] == 4 * 40 * 9
    assert (facts["n_samples"], facts["n_blocks"], facts["block_rows"]) == (40, 2, 32)
    assert "7.5 % scattered" in repr(dataset)
