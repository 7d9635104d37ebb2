"""Feather files, and what pandas writes into Parquet of a MultiIndex."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from factorflow import write_dataset, write_table
from factorflow.errors import InputError


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("ending", ["feather", "arrow"])
def test_feather(tmp_path: Path, ending: str, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.data.ingest.tables.PIECE_VALUES", 28)  # seven rows at a time
    values = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    values[3, 1] = np.nan
    names = [f"p{i}" for i in range(40)]
    frame = pd.DataFrame(values, columns=list("abc"))
    frame.insert(0, "id", names)
    frame.to_feather(tmp_path / f"y.{ending}", compression=compression)
    dataset = write_dataset(tmp_path / "s", tmp_path / f"y.{ending}")
    np.testing.assert_array_equal(dataset.values("y"), values)
    assert dataset.obs_names.tolist() == names
    assert dataset.features("y").tolist() == ["a", "b", "c"]
    meta = pd.DataFrame({"id": names[::-1], "age": range(40)})
    meta.to_feather(tmp_path / "meta.feather")
    dataset = write_dataset(tmp_path / "t", {"y": tmp_path / f"y.{ending}"}, obs=tmp_path / "meta.feather")
    assert dataset.obs["age"].loc["p0"] == 39


def test_damaged_files(tmp_path: Path) -> None:
    """Whatever libraries raise of them, the file is named; so is the view whose values cannot be read."""
    frame = pd.DataFrame({"y": range(8), "a": list("abababab")}, [f"s{i}" for i in range(8)])
    frame.to_feather(tmp_path / "t.feather")
    whole = (tmp_path / "t.feather").read_bytes()
    for old, new in ((b'"index_columns"', b'"index_col\xf3mns"'), (b'{"index', b'["index')):
        (tmp_path / "t.feather").write_bytes(whole.replace(old, new))
        with pytest.raises(InputError, match=r"file .*t\.feather = .*may be damaged"):
            write_dataset(tmp_path / "s", tmp_path / "t.feather")
        with pytest.raises(InputError, match=r"file .*t\.feather = .*may be damaged"):
            write_dataset(tmp_path / "s", {"y": frame[["y"]]}, obs=tmp_path / "t.feather")
    (tmp_path / "t.parquet").write_bytes(b"PAR1" * 9)
    with pytest.raises(InputError, match=r"t\.parquet"):
        write_table(tmp_path / "s", tmp_path / "t.parquet", "y ~ a")

    class Lost:
        shape, dtype = (8, 2), np.dtype(float)

        def __getitem__(self, rows: slice) -> None:
            raise RuntimeError("bad checksum")

    with pytest.raises(InputError, match="values of view 'x', samples 0 to 7 = bad checksum"):
        write_dataset(tmp_path / "s", {"x": Lost()})


def test_what_is_no_feather_file(tmp_path: Path) -> None:
    (tmp_path / "y.feather").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"y\.feather.*expected a Feather file"):
        write_dataset(tmp_path / "s", tmp_path / "y.feather")


@pytest.mark.parametrize("names", [["site", "plot"], [None, None]])
def test_row_names_of_several_levels(tmp_path: Path, names: list[str | None]) -> None:
    index = pd.MultiIndex.from_product([range(2), range(10)], names=names)
    pd.DataFrame(np.ones((20, 2)), index=index, columns=["a", "b"]).to_parquet(tmp_path / "y.parquet")
    with pytest.raises(
        InputError, match=r"row names of .*y\.parquet = a MultiIndex of .*: expected one name"
    ):
        write_dataset(tmp_path / "s", tmp_path / "y.parquet")
