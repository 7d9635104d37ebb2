"""Values in long form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from factorflow import write_dataset
from factorflow.data import DataWarning
from factorflow.errors import InputError


@pytest.fixture
def wide(rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    def made(samples: range, features: str) -> pd.DataFrame:
        values = rng.normal(size=(len(samples), len(features)))
        values[rng.random(values.shape) < 0.3] = np.nan
        values[0], values[:, 0] = 1.5, rng.normal(size=len(samples))
        return pd.DataFrame(values, index=[f"c{i}" for i in samples], columns=list(features))

    return {"rna": made(range(20), "abcd"), "prot": made(range(5, 30), "ax")}


def long_form(wide: dict[str, pd.DataFrame]) -> pd.DataFrame:
    parts = []
    for view, frame in wide.items():
        part = frame.rename_axis("sample").reset_index().melt("sample", var_name="feature")
        parts.append(part.dropna().assign(view=view))
    return pd.concat(parts).sample(frac=1, random_state=0)[["feature", "value", "view", "sample"]]


def kept(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


@pytest.mark.parametrize(
    "change", [kept, lambda f: f.astype({"sample": "category", "view": "category"}), pa.Table.from_pandas]
)
def test_entries_without_a_line_are_missing(
    tmp_path: Path, wide: dict[str, pd.DataFrame], change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.data.ingest.long.PIECE_ROWS", 17)
    dataset = write_dataset(tmp_path / "s", change(long_form(wide)), block_rows=8)
    assert sorted(dataset.views) == ["prot", "rna"]
    assert sorted(dataset.obs_names) == sorted(f"c{i}" for i in range(30))
    for view, frame in wide.items():
        values = pd.DataFrame(dataset.values(view), index=dataset.obs_names, columns=dataset.features(view))
        expected = frame.reindex(index=dataset.obs_names, columns=dataset.features(view))
        np.testing.assert_array_equal(values.to_numpy(), expected.to_numpy(np.float32))


def test_groups_come_along(tmp_path: Path, wide: dict[str, pd.DataFrame]) -> None:
    frame = long_form(wide)
    frame["group"] = np.where(frame["sample"].str.len() == 2, "short", "long")
    dataset = write_dataset(tmp_path / "s", frame)
    assert sorted(dataset.groups) == ["long", "short"]
    assert list(dataset.obs.columns) == ["group"]
    held = dataset.obs["group"]
    assert all((group == "short") == (len(name) == 2) for name, group in held.items())
    other = dict(zip(dataset.obs_names, ["x", "y"] * 15, strict=True))
    with pytest.warns(DataWarning, match="a column 'group' of its own"):
        said = write_dataset(tmp_path / "t", frame, groups=pd.Series(other))
    assert sorted(said.groups) == ["x", "y"]
    assert said.obs["group"].tolist() == [held.loc[name] for name in said.obs_names]


def twice(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.iloc[[3]]])


def at(row: int, column: str, value: Any) -> Any:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.reset_index(drop=True)
        frame[column] = frame[column].astype(object)
        frame.loc[row, column] = value
        return frame

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (twice, r"row \d+ of the long table = sample '\w+', feature '\w' again"),
        (at(4, "sample", None), "row 4 of the long table = no sample: expected a name in every line"),
        (at(4, "feature", " "), "row 4 of the long table = no feature"),
        (at(4, "view", np.nan), "row 4 of the long table = no view"),
        (at(4, "value", "high"), "column 'value' = object: expected real numbers"),
        (lambda f: f.assign(value=f["value"] * 1j), "column 'value' = complex128"),
        (lambda f: f.drop(columns="view"), "a DataFrame without 'view'"),
        (lambda f: f.assign(age=3), "a DataFrame with 'age' as well"),
        (lambda f: pd.concat([f, f["value"]], axis=1), "a DataFrame with 'value' as well"),
        (lambda f: f.assign(group=np.arange(len(f)) % 2), r"group of sample '\w+' = '[01]' and '[01]'"),
        (lambda f: f.iloc[:0], "the long table = no line"),
        (lambda f: f.assign(value=1e300), "finite"),
    ],
)
@pytest.mark.parametrize("rows", [7, 2**20])
def test_what_is_refused(
    tmp_path: Path, wide: Any, change: Any, said: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.data.ingest.long.PIECE_ROWS", rows)
    with pytest.raises(InputError, match=said):
        write_dataset(tmp_path / "s", change(long_form(wide)))


@pytest.mark.parametrize(
    "name", ["x.csv", "x.tsv.gz", "indexed.csv", "x.parquet", "indexed.parquet", "x.feather"]
)
def test_long_tables_in_files(
    tmp_path: Path, wide: dict[str, pd.DataFrame], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.data.ingest.tables.PIECE_VALUES", 60)
    frame, path = long_form(wide), tmp_path / name
    frame["group"] = np.where(frame["sample"].str.len() == 2, "short", "long")
    indexed = name.startswith("indexed")
    if "parquet" in name:
        frame.to_parquet(path, index=indexed)
    elif "feather" in name:
        frame.reset_index(drop=True).to_feather(path)
    else:
        frame.to_csv(path, sep="\t" if "tsv" in name else ",", index=indexed)
    dataset = write_dataset(tmp_path / "s", path)
    from_frame = write_dataset(tmp_path / "t", frame)
    assert dataset.fingerprint == from_frame.fingerprint
    assert sorted(dataset.groups) == ["long", "short"]
    one = write_dataset(tmp_path / "u", {"rna": path})
    assert sorted(one.obs_names) == sorted(wide["rna"].index)
    np.testing.assert_array_equal(
        one.values("rna"), wide["rna"].loc[one.obs_names, one.features("rna")].to_numpy(np.float32)
    )


def test_what_is_refused_of_a_file(tmp_path: Path, wide: dict[str, pd.DataFrame]) -> None:
    frame = long_form(wide)
    twice(frame).to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(InputError, match=r"row \d+ of .*twice\.csv = sample"):
        write_dataset(tmp_path / "s", tmp_path / "twice.csv")
    at(4, "value", "high")(frame).to_csv(tmp_path / "text.csv", index=False)
    with pytest.raises(InputError, match=r"text\.csv.*high"):
        write_dataset(tmp_path / "s", tmp_path / "text.csv")


@pytest.mark.parametrize("name", ["frame", "x.csv", "x.parquet", "x.feather"])
def test_headers_in_any_case(tmp_path: Path, wide: dict[str, pd.DataFrame], name: str) -> None:
    frame = long_form(wide).assign(group="a").reset_index(drop=True)
    wanted = write_dataset(tmp_path / "s", frame)
    frame.columns = pd.Index(["Feature", " VALUE", "View", "Sample", "Group"])
    form: Any = frame
    if name != "frame":
        form = tmp_path / name
        {"csv": frame.to_csv, "parquet": frame.to_parquet, "feather": frame.to_feather}[name[2:]](form)
    assert write_dataset(tmp_path / "t", form).fingerprint == wanted.fingerprint
    with pytest.raises(InputError, match="a DataFrame with 'value' as well"):
        write_dataset(tmp_path / "u", frame.assign(value=1.0))
    with pytest.raises(InputError, match="a DataFrame without 'sample', 'view'"):
        write_dataset(tmp_path / "u", frame[["Feature", " VALUE"]])


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.assign(Unit="mm"), "the table .*with 'Unit' as well: expected one in long form"),
        (lambda f: f.drop(columns="View"), "the table .*without 'view': expected one in long form"),
    ],
)
def test_almost_long_tables_in_files(
    tmp_path: Path, wide: dict[str, pd.DataFrame], change: Any, said: str, ending: str
) -> None:
    frame = change(long_form(wide).rename(columns=str.title).reset_index(drop=True))
    path = tmp_path / f"x.{ending}"
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    with pytest.raises(InputError, match=said):
        write_dataset(tmp_path / "s", path)
    numbers = pd.DataFrame(np.eye(3), columns=["sample", "feature", "value"])
    numbers.to_csv(tmp_path / "n.csv")
    assert write_dataset(tmp_path / "t", {"n": tmp_path / "n.csv"}).views["n"].n_features == 3
