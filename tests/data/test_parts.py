"""Several files of one view."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from factorflow import write_dataset
from factorflow.data import DataWarning
from factorflow.data.ingest.parts import FILE, _metadata
from factorflow.data.ingest.sources import Source
from factorflow.errors import InputError


def table(first: int, last: int, features: str) -> pd.DataFrame:
    values = {f: 100.0 * ord(f) + np.arange(first, last) + 0.5 for f in features}
    return pd.DataFrame(values, index=[f"c{i}" for i in range(first, last)])


A, B = table(0, 20, "abcd"), table(20, 35, "dceb")
WHOLE = pd.concat([A, B])


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    A.to_csv(tmp_path / "one.csv")
    B.to_parquet(tmp_path / "two.parquet")
    return [tmp_path / "one.csv", tmp_path / "two.parquet"]


@pytest.mark.parametrize("join", ["outer", "inner"])
def test_features_are_matched_by_name(tmp_path: Path, paths: list[Path], join: str) -> None:
    dataset = write_dataset(tmp_path / "s", {"rna": paths}, join=join, block_rows=8)
    wanted = WHOLE if join == "outer" else WHOLE[["b", "c", "d"]]
    assert dataset.features("rna").tolist() == list(wanted.columns)
    assert dataset.obs_names.tolist() == list(WHOLE.index)
    np.testing.assert_array_equal(dataset.values("rna"), wanted.to_numpy(np.float32))
    assert dataset.obs["file"].tolist() == ["one.csv"] * 20 + ["two.parquet"] * 15
    texts = write_dataset(tmp_path / "t", {"rna": [str(path) for path in paths]}, join=join, block_rows=8)
    assert texts.fingerprint == dataset.fingerprint
    grouped = write_dataset(tmp_path / "u", {"rna": paths}, groups="file")
    assert grouped.groups == ("one.csv", "two.parquet")


def test_parts_of_several_views(tmp_path: Path, paths: list[Path]) -> None:
    views = {"rna": paths, "prot": [B.add_prefix("p"), A.add_prefix("p")], "site": ["x", "y"] * 17 + ["x"]}
    dataset = write_dataset(tmp_path / "s", views, inputs={"site": "categorical"}, samples=list(WHOLE.index))
    assert sorted(dataset.obs.columns) == ["prot:file", "rna:file"]
    assert dataset.obs["prot:file"].loc["c0"] == "1"
    prot = pd.concat([B, A]).reindex(WHOLE.index).add_prefix("p")
    np.testing.assert_array_equal(dataset.values("prot"), prot.to_numpy(np.float32))


def test_objects_of_any_kind_are_parts(tmp_path: Path) -> None:
    rows = np.arange(12.0).reshape(4, 3) + 0.5
    dataset = write_dataset(tmp_path / "a", {"x": [rows, sp.csr_array(rows[:2])]})
    np.testing.assert_array_equal(dataset.values("x"), np.vstack([rows, rows[:2]]))
    assert dataset.obs["file"].tolist() == ["0"] * 4 + ["1"] * 2
    dataset = write_dataset(tmp_path / "b", {"x": rows.tolist()})  # a list of rows is one array
    np.testing.assert_array_equal(dataset.values("x"), rows)
    labels = [pd.DataFrame({"site": ["x", "y"]}), pd.DataFrame({"place": ["y", "z"]})]
    views = {"x": rows, "site": labels}
    dataset = write_dataset(tmp_path / "c", views, inputs={"site": "categorical"})
    assert dataset.features("site").tolist() == ["x", "y", "z"]
    with pytest.raises(InputError, match="b.cvs"):
        write_dataset(tmp_path / "d", {"x": [A, "b.cvs"]})


def test_sparse_parts_of_which_some_have_features_of_their_own(tmp_path: Path) -> None:
    counts = [sp.csr_array(np.arange(12).reshape(4, 3) % 5), sp.csr_array(np.arange(8).reshape(2, 4) % 3)]
    frames = [
        pd.DataFrame.sparse.from_spmatrix(counts[0], ["c0", "c1", "c2", "c3"], list("abx")),
        pd.DataFrame.sparse.from_spmatrix(counts[1], ["c4", "c5"], list("byza")),
    ]
    ad = pytest.importorskip("anndata")
    parts = [ad.AnnData(c, f[[]], f.T[[]]) for c, f in zip(counts, frames, strict=True)]
    layout = {"rna": "sparse"}
    dataset = write_dataset(tmp_path / "d", {"rna": parts}, {"rna": "poisson"}, join="inner", layout=layout)
    wanted = pd.concat([frame.sparse.to_dense() for frame in frames], join="inner")
    assert dataset.features("rna").tolist() == list(wanted.columns)
    np.testing.assert_array_equal(dataset.values("rna"), wanted.to_numpy())


@pytest.mark.parametrize(
    ("parts", "join", "said"),
    [
        (
            [A, B.rename(index={"c20": "c3"})],
            "outer",
            "'c3', in '0' and in '1': expected every sample in one",
        ),
        ([A, B.reset_index(drop=True)], "outer", "no names in '1': expected names of the samples"),
        ([A, B.add_prefix("x")], "inner", "no feature that is in all of '0', '1'"),
        ([A, A.to_numpy()], "outer", "no names in '1'"),
        (
            [A.to_numpy(), B.to_numpy()[:, 1:]],
            "outer",
            "no names in '0', '1': expected names of the features",
        ),
        ([A, B.rename(columns={"b": "c"})], "outer", "feature names of '1' = 'c'"),
        ([A, B], "left", "join = left: expected 'outer' or 'inner'"),
    ],
)
def test_what_cannot_be_joined(tmp_path: Path, parts: Any, join: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        write_dataset(tmp_path / "s", {"rna": parts}, join=join)


def test_parts_of_one_counted_frame(tmp_path: Path) -> None:
    """Cut with iloc, they keep the numbers of their rows."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(9, 3)), columns=list("abc"))
    dataset = write_dataset(tmp_path / "s", {"x": [frame.iloc[:4], frame.iloc[4:]]})
    assert dataset.obs_names.tolist() == [str(i) for i in range(9)]
    assert dataset.obs["file"].tolist() == ["0"] * 4 + ["1"] * 5
    np.testing.assert_array_equal(dataset.values("x"), frame.to_numpy(np.float32))


def test_features_that_share_no_name(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="no feature that is in all of '0', '1': are they named differently"):
        dataset = write_dataset(tmp_path / "s", {"rna": [A, B.add_prefix("x")]})
    assert dataset.views["rna"].n_features == 8


@pytest.mark.parametrize("join", ["outer", "inner"])
@pytest.mark.filterwarnings("default:::anndata")
def test_highly_variable_features_of_several_files(tmp_path: Path, join: str) -> None:
    anndata = pytest.importorskip("anndata")
    one, two = anndata.AnnData(A.copy()), anndata.AnnData(B.copy())
    one.obs["age"], two.obs["plate"] = range(20), "p"
    one.var["highly_variable"] = [True, True, False, False]  # a, b
    two.var["highly_variable"] = [True, False, False, True]  # d, b
    one.write_h5ad(tmp_path / "one.h5ad")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        dataset = write_dataset(
            tmp_path / "s", {"rna": [tmp_path / "one.h5ad", two]}, highly_variable="rna", join=join
        )
    wanted = WHOLE[["a", "b", "d"]] if join == "outer" else WHOLE[["b"]]  # d of the first file as well
    assert dataset.features("rna").tolist() == list(wanted.columns)
    np.testing.assert_array_equal(dataset.values("rna"), wanted.to_numpy(np.float32))
    assert dataset.obs["age"].tolist()[:20] == list(range(20))
    assert dataset.obs["file"].tolist() == ["one.h5ad"] * 20 + ["1"] * 15


def test_metadata_of_parts_follow_their_samples() -> None:
    """By name, in whatever order they come; by position where samples have no names."""
    frame = pd.DataFrame({"age": [3, 1, 2]}, index=["c", "a", "b"])
    named = Source(np.zeros((2, 1)), np.array(["a", "c"]))
    bare = Source(np.zeros((3, 1)))
    whole = _metadata("y", ["one", "two"], [named, named], [frame, None], np.array(["a", "c", "a", "c"]))
    assert whole["age"].tolist()[:2] == [1, 3]
    assert whole["age"].isna().tolist() == [False, False, True, True]
    assert whole[FILE].tolist() == ["one", "one", "two", "two"]
    assert whole.index.tolist() == ["a", "c", "a", "c"]
    counted = frame.reset_index(drop=True)
    by_place = _metadata("y", ["one", "two"], [bare, bare], [counted, counted], None)
    assert by_place["age"].tolist() == [3, 1, 2, 3, 1, 2]
    assert by_place.index.tolist() == list(range(6))
