"""Metadata of features: those of AnnData and 10x are stored with the view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factorflow import add_view, write_dataset
from factorflow.data.ingest.append import append_rows

anndata = pytest.importorskip("anndata")

pytestmark = pytest.mark.filterwarnings("default")  # AnnData warns of its own future

N, D = 30, 8


def annotated(first: int = 0, name: str = "c") -> Any:
    rng = np.random.default_rng(first)
    data = anndata.AnnData(rng.poisson(1.0, (N, D)).astype(np.float32) + np.eye(N, D, dtype=np.float32))
    data.obs_names = [f"{name}{i}" for i in range(N)]
    data.var_names = [f"g{i}" for i in range(first, first + D)]
    data.var["symbol"] = [f"S{i}" for i in range(first, first + D)]
    data.var["chromosome"] = pd.Categorical(["1", "X"] * 4, categories=["X", "1"], ordered=True)
    data.var["length in bp"] = np.arange(D) * 10
    data.var["highly_variable"] = np.arange(D) % 2 == 0
    return data


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, expected, check_names=False)


@pytest.mark.parametrize("form", ["object", "h5ad", "zarr"])
def test_var_of_anndata(form: str, tmp_path: Path) -> None:
    data = annotated()
    source: Any = data
    if form != "object":
        source = tmp_path / f"x.{form}"
        (data.write_h5ad if form == "h5ad" else data.write_zarr)(source)
    dataset = write_dataset(tmp_path / "d", {"rna": source})
    same(dataset.feature_metadata("rna"), data.var)
    assert dataset.tree["rna/var/symbol"].dims == ("feature",)
    marked = write_dataset(tmp_path / "e", {"rna": source}, highly_variable=True)
    same(marked.feature_metadata("rna"), data.var[::2])
    plain = write_dataset(tmp_path / "f", {"rna": data.to_df()})
    assert plain.feature_metadata("rna").shape == (D, 0)
    assert plain.fingerprint == write_dataset(tmp_path / "g", {"rna": data}).fingerprint


def test_views_that_come_of_others(tmp_path: Path) -> None:
    """Dropped and cut features, appended rows, derived views, features in rows."""
    data = annotated()
    data.X[:, 3] = np.nan
    given = {"rna": data[:20].copy()}
    with pytest.warns(match="left out"):
        dropped = write_dataset(
            tmp_path / "d", given, {"rna": {"g1": "negative_binomial"}}, drop_empty_features=True
        )
    kept = [i for i in range(D) if i not in (1, 3)]
    same(dropped.feature_metadata("rna"), data.var.iloc[kept])
    same(dropped.feature_metadata("rna_negative_binomial"), data.var.iloc[[1]])
    counts = annotated()
    grown = write_dataset(tmp_path / "e", {"rna": counts[:20].copy()})
    grown = append_rows(tmp_path / "e", {"rna": counts[20:].to_df()})
    same(grown.feature_metadata("rna"), counts.var)
    assert grown.n_rows == N
    same(add_view(grown, "log", of="rna", transform="log1p").feature_metadata("log"), counts.var)
    turned = counts.T.copy()
    dataset = write_dataset(tmp_path / "f", {"rna": turned}, transpose=True)
    same(dataset.feature_metadata("rna"), turned.obs)


def test_several_files(tmp_path: Path) -> None:
    parts = [annotated(), annotated(4, "d")]
    dataset = write_dataset(tmp_path / "d", {"rna": parts})
    found = dataset.feature_metadata("rna")
    assert found.index.tolist() == [f"g{i}" for i in range(12)]
    assert found["symbol"].tolist() == [f"S{i}" for i in range(12)]
    inner = write_dataset(tmp_path / "e", {"rna": parts}, join="inner").feature_metadata("rna")
    assert inner["symbol"].tolist() == [f"S{i}" for i in range(4, 8)]
    half = write_dataset(tmp_path / "f", {"rna": [parts[0], parts[1].to_df()]}).feature_metadata("rna")
    assert half["symbol"].tolist()[:8] == [f"S{i}" for i in range(8)]
    assert half["symbol"].isna().tolist() == [False] * 8 + [True] * 4


def test_files_of_10x(tmp_path: Path) -> None:
    import scipy.io
    import scipy.sparse as sp

    (tmp_path / "x").mkdir()
    scipy.io.mmwrite(tmp_path / "x" / "matrix.mtx", sp.coo_array(annotated().X.T.astype(int)))
    kinds = ["Gene Expression"] * 6 + ["Antibody Capture"] * 2
    lines = [f"id{i}\tname{i}\t{kind}\n" for i, kind in enumerate(kinds)]
    (tmp_path / "x" / "features.tsv").write_text("".join(lines))
    (tmp_path / "x" / "barcodes.tsv").write_text("".join(f"c{i}\n" for i in range(N)))
    found = write_dataset(tmp_path / "d", tmp_path / "x").feature_metadata("prot")
    assert found.index.tolist() == ["id6", "id7"]
    assert found["gene_name"].tolist() == ["name6", "name7"]
    assert found["feature_type"].tolist() == ["Antibody Capture"] * 2
