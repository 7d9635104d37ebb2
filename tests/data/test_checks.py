"""Bad input is refused by name, before anything is published; what a fit survives is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from factorflow.data import DataWarning, write_dataset
from factorflow.errors import InputError


def changed(array: np.ndarray, row: int, column: int, value: float) -> np.ndarray:
    array = array.astype(np.float64)
    array[row, column] = value
    return array


def table(text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "table.csv"
        path.write_text(text)
        return path

    return write


Y = np.random.default_rng(3).standard_normal((30, 4))
B = (Y > 0).astype(float)
NAMES = [f"p{i}" for i in range(30)]
FRAME = pd.DataFrame(Y, index=NAMES)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "infinite": (
        {"views": {"y": changed(Y, 3, 2, np.inf)}},
        r"sample 'sample3', feature 'feature2' of view 'y' = inf",
    ),
    "too large for float32": ({"views": {"y": changed(Y, 3, 2, 1e300)}}, "sample3.*finite number"),
    "infinite, guessed": ({"views": {"y": changed(B, 3, 2, -np.inf)}}, "finite number"),
    "no counts": ({"views": {"y": Y}, "likelihoods": {"y": "poisson"}}, "poisson likelihood.*whole numbers"),
    "negative counts": (
        {"views": {"y": changed(B, 29, 3, -1)}, "likelihoods": {"y": "poisson"}},
        "'sample29', .*-1.0",
    ),
    "not binary": (
        {"views": {"y": changed(B, 1, 0, 2)}, "likelihoods": {"y": "bernoulli"}},
        "'sample1'.* 2.0.*bernoulli",
    ),
    "three binary values": (
        {"views": {"y": changed(B, 1, 0, -1)}, "likelihoods": {"y": "bernoulli"}},
        "-1, 0 and 1.*write NaN",
    ),
    "likelihood": (
        {"views": {"y": Y}, "likelihoods": {"y": "normal"}},
        "normal: expected one of gaussian, bernoulli",
    ),
    "likelihood of another view": ({"views": {"y": Y}, "likelihoods": {"z": "poisson"}}, "likelihoods = z"),
    "likelihood for all views": (
        {"views": {"y": Y}, "likelihoods": "gaussian"},
        "likelihoods = gaussian: expected a map",
    ),
    "features of no view": (
        {"views": {"y": Y}, "features": list("abcd")},
        "features = .* expected a mapping by view",
    ),
    "samples of another view": ({"views": {"y": Y}, "samples": {"z": NAMES}}, "samples = z"),
    "block rows of another type": ({"views": {"y": Y}, "block_rows": 32.0}, "block_rows = 32.0"),
    "empty feature": (
        {"views": {"y": np.where(np.arange(4) == 2, np.nan, Y)}},
        "features of view 'y' = 'feature2'.*drop_empty_features",
    ),
    "every feature empty": (
        {"views": {"y": Y * np.nan}, "drop_empty_features": True},
        "at least one observed value",
    ),
    "shapes": ({"views": {"a": Y, "b": Y[:20]}}, "a: 30, b: 20"),
    "no names beside names": (
        {"views": {"a": FRAME, "b": Y[:20]}},
        "samples of view 'b' = 20 rows without names",
    ),
    "one dimension": ({"views": {"y": Y[0]}}, r"shape of view 'y' = \(4,\)"),
    "no columns": ({"views": {"y": Y[:, :0]}}, r"\(30, 0\)"),
    "no sample": ({"views": {"y": Y[:0]}}, r"shape of view 'y' = \(0, 4\)"),
    "text": ({"views": {"y": Y.astype(str)}}, "type of view 'y' = <U"),
    "text column": ({"views": {"y": FRAME.assign(sex="f")}}, "columns of view 'y' = sex"),
    "object": ({"views": {"y": object()}}, "an object of type object"),
    "three dimensions": ({"views": {"y": xr.DataArray(Y[None])}}, "dimensions of view 'y'"),
    "not a mapping": ({"views": Y}, "an object of type ndarray"),
    "no views": ({"views": {}}, "at least one view"),
    "view name": ({"views": {"my view": Y}}, "view name = my view.*'my_view'"),
    "view name with a slash": ({"views": {"../y": Y}}, "view name"),
    "reserved view name": ({"views": {"obs": Y}}, "'view_obs'"),
    "view name twice": ({"views": {"1": Y, 1: Y}}, "view names"),
    "sample twice": (
        {"views": {"y": FRAME}, "samples": None} | {"views": {"y": FRAME.rename({"p3": "p4"})}},
        "'p4'",
    ),
    "feature twice": ({"views": {"y": FRAME.rename(columns={1: 2})}}, "feature names of view 'y' = '2'"),
    "number of sample names": ({"views": {"y": Y}, "samples": NAMES[:-1]}, "29 names: expected 30"),
    "number of feature names": ({"views": {"y": Y}, "features": {"y": ["a"]}}, "1 names: expected 4"),
    "block rows": ({"views": {"y": Y}, "block_rows": 48}, "block_rows = 48: expected a power of two"),
    "groups": ({"views": {"y": Y}, "groups": ["a"] * 3}, "groups = 3 labels: expected 30"),
    "group column": ({"views": {"y": Y}, "groups": "batch"}, "groups = batch: expected a column"),
    "no group": ({"views": {"y": Y}, "groups": ["a", None] * 15}, "no label for 'sample1'"),
    "sequences": ({"views": {"y": Y}, "sequences": ["a", "b"] * 15}, "next to each other"),
    "obs": ({"views": {"y": Y}, "obs": {"age": [1, 2]}}, "obs = 2 rows"),
    "obs of others": (
        {"views": {"y": FRAME}, "obs": pd.DataFrame({"age": [1]}, index=["q"])},
        "index of obs",
    ),
    "obs twice": (
        {"views": {"y": FRAME}, "obs": pd.DataFrame({"age": [1, 2]}, index=["p1", "p1"])},
        "obs = 'p1'",
    ),
    "groups of two dimensions": ({"views": {"y": Y}, "groups": Y}, r"groups = ndarray of shape \(30, 4\)"),
    "one group for all": ({"views": {"y": Y}, "groups": 3}, "groups = int of shape"),
    "obs of a list": ({"views": {"y": Y}, "obs": [1, 2]}, "obs = list: expected a DataFrame"),
    "obs of unequal columns": (
        {"views": {"y": Y}, "obs": {"a": [1, 2], "b": [1]}},
        r"obs = a of shape \(2,\), b of shape \(1,\)",
    ),
    "obs column twice": (
        {"views": {"y": Y}, "obs": pd.DataFrame(Y[:, :2], columns=["x", "x"])},
        "columns of obs = 'x': expected every name once",
    ),
    "rows of unequal length": ({"views": {"y": [[1, 2], [3]]}}, "view 'y' = a list of rows of unequal"),
    "empty path": ({"views": ""}, "views = an empty path"),
    "empty path of a view": ({"views": {"y": ""}}, "views = an empty path"),
    "no file": ({"views": "nowhere.csv"}, "a file or folder that exists"),
    "no file of a view": ({"views": {"y": "nowhere.csv"}}, "a file or folder that exists"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    arguments, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        write_dataset(tmp_path / "s", **arguments)
    assert caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_python_objects_in_an_npz_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", y=Y, names=np.array(NAMES, dtype=object))
    with pytest.raises(InputError, match=r"array 'names' of .*o.npz = Python objects.*astype\(str\)"):
        write_dataset(tmp_path / "s", tmp_path / "o.npz")


def test_metadata_of_other_tables(tmp_path: Path) -> None:
    """Tables of metadata are told apart as those of values are; samples they lack are warned of."""
    frame = pd.DataFrame({"batch": ["a", "b"] * 15, "age": range(30)}, index=NAMES)
    frame.to_csv(tmp_path / "obs.csv", sep=";", encoding="utf-8-sig")
    dataset = write_dataset(tmp_path / "s", {"y": FRAME}, obs=tmp_path / "obs.csv", groups="batch")
    assert dataset.obs["age"].tolist() == list(range(30))
    with pytest.warns(DataWarning, match=r"obs lacks 28 of 30 samples \('p2', .* and 23 more\)"):
        write_dataset(tmp_path / "t", {"y": FRAME}, obs=frame.iloc[:2])


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    FRAME.to_csv(tmp_path / "y.csv")
    assert write_dataset("~/s", {"y": "~/y.csv"}).path == tmp_path / "s"


TABLES = {
    "text cell": ("id,a,b\nx,1,2\ny,3,oops\n", "column 'b' of .*table.csv, line 3 = oops"),
    "no header": ("x,1.5,2.5\ny,3.5,4.5\n", "names of the features"),
    "duplicate header": ("id,a,a\nx,1,2\ny,3,4\n", "feature names of view 'table' = 'a'"),
    "duplicate sample": ("id,a,b\nx,1,2\nx,3,4\n", "sample names of view 'table' = 'x'"),
    "sample without a name": ("id,a,b\nx,1,2\n,3,4\n", "sample names"),
    "one column": ("id\nx\ny\n", "columns separated by"),
    "empty": ("", "header"),
    "header only": ("id,a,b\n", "no values"),
    "decimal comma": ("id;a\nx;1,500\ny;2\n", "1,500: expected a number.*Say decimal=','.*with a point"),
    "decimals of both kinds": ("id;a\nx;1,5\ny;2.5\n", "1,5: expected a number"),
    "too large": ("id,a,b\nx,1,2\ny,1e300,4\n", "sample 'y', feature 'a'"),
    "long line": ("id,a\nx,1\ny,2,3,4\n", "line 3 of .* = 4 fields: expected 2, as in the header, or 3"),
    "no such column": ("id,a\nx,1\ny,2\n", "index_col = who: expected a column of .*table.csv: id, a"),
}


def test_header_of_numbers(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="1, 2, 4, "):
        write_dataset(tmp_path / "s", table("1,2,4\n4,5,6\n7,8,9\n")(tmp_path))


@pytest.mark.parametrize("case", TABLES)
def test_refused_table(tmp_path: Path, case: str) -> None:
    text, message = TABLES[case]
    column = "who" if case == "no such column" else None
    with pytest.raises(InputError, match=message):
        write_dataset(tmp_path / "s", table(text)(tmp_path), index_col=column)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("name", ["a.npz", "a.parquet", "a.h5ad", "a.csv.gz", "a.xyz", "a.npy"])
def test_refused_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\xffnonsense")
    with pytest.raises(InputError):
        write_dataset(tmp_path / "s", tmp_path / name)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match="one file a view"):
        write_dataset(tmp_path / "s", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_with_several_views_under_one_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=Y, b=B)
    with pytest.raises(InputError, match="with views a, b"):
        write_dataset(tmp_path / "s", {"y": tmp_path / "two.npz"})


def test_warnings(tmp_path: Path) -> None:
    constant = changed(Y, 0, 1, 0.0)
    constant[:, 1] = 7.0
    with pytest.warns(DataWarning, match=r"view 'y': 1 of 4 features is constant \('feature1'\)"):
        write_dataset(tmp_path / "a", {"y": constant})
    absent = Y.copy()
    absent[5] = np.nan
    with pytest.warns(DataWarning, match=r"1 sample without a value in any view \('sample5'\)"):
        write_dataset(tmp_path / "b", {"y": absent, "z": absent})
    empty = Y.copy()
    empty[:, [0, 2]] = np.nan
    with pytest.warns(DataWarning, match=r"2 features without any observed value left out"):
        dataset = write_dataset(tmp_path / "c", {"y": empty, "z": Y}, drop_empty_features=True)
    assert dataset.features("y").tolist() == ["feature1", "feature3"]
    np.testing.assert_array_equal(dataset.values("y"), Y[:, [1, 3]].astype(np.float32))
    with pytest.warns(DataWarning, match="view '[yz]' has no sample in common"):
        write_dataset(tmp_path / "d", {"y": FRAME, "z": FRAME.rename(lambda name: f"other {name}")})
    with pytest.warns(DataWarning, match=r"30 samples of view 'y' and of .* differ in case.*'p0' and 'P0'"):
        write_dataset(tmp_path / "e", {"y": FRAME, "z": FRAME.rename(str.upper)})


@pytest.mark.parametrize("what", ["groups", "sequences"])
def test_groups_and_sequences_of_one_sample_are_said(tmp_path: Path, what: str) -> None:
    values = np.random.default_rng(0).standard_normal((10, 3))
    with pytest.warns(DataWarning, match=f"every sample is a {what[:-1]} of its own"):
        write_dataset(tmp_path / "a", {"y": values}, **{what: list("abcdefghij")})
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        write_dataset(tmp_path / "b", {"y": values}, **{what: list("abcdefghii")})
        write_dataset(tmp_path / "c", {"y": values[:3]}, **{what: list("abc")})  # a few to be projected
