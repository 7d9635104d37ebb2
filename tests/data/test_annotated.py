"""What of AnnData becomes views; sparse matrices as SciPy saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from factorflow import write_dataset
from factorflow.errors import InputError

anndata = pytest.importorskip("anndata")


@pytest.fixture
def adata() -> Any:
    rng = np.random.default_rng(0)
    made = anndata.AnnData(scipy.sparse.csr_matrix(rng.poisson(2.0, (12, 5)).astype(np.float32)))
    made.obs_names = [f"cell{i}" for i in range(12)]
    made.var_names = [f"gene{i}" for i in range(5)]
    made.layers["log"] = rng.standard_normal((12, 5)).astype(np.float32)
    made.obsm["protein"] = rng.standard_normal((12, 3)).astype(np.float32)
    made.var["highly_variable"] = [True, False, True, False, True]
    return made


def stored(adata: Any, tmp_path: Path, backed: bool) -> Any:
    if not backed:
        return adata
    adata.write_h5ad(tmp_path / "cells.h5ad")
    return tmp_path / "cells.h5ad"


@pytest.mark.parametrize("backed", [False, True])
def test_a_layer_beside_obsm_of_marked_features(adata: Any, tmp_path: Path, backed: bool) -> None:
    source = stored(adata, tmp_path, backed)
    dataset = write_dataset(tmp_path / "a", source, layer="log", obsm=["protein"], highly_variable=True)
    name = "cells" if backed else "X"
    assert list(dataset.views) == [name, "protein"]
    np.testing.assert_array_equal(dataset.values(name), adata.layers["log"][:, ::2])
    assert list(dataset.features(name)) == ["gene0", "gene2", "gene4"]
    np.testing.assert_array_equal(dataset.values("protein"), adata.obsm["protein"])
    assert list(dataset.obs_names) == list(adata.obs_names)
    marked = write_dataset(tmp_path / "b", source, highly_variable=True)
    np.testing.assert_array_equal(marked.values(name), adata.X.toarray()[:, ::2])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"layer": "counts"}, "layer = counts: expected a layer of 'X' .log."),
        ({"obsm": "X_pca"}, "obsm = X_pca: expected a key of obsm .protein."),
    ],
)
def test_what_is_not_there_is_named(adata: Any, tmp_path: Path, options: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        write_dataset(tmp_path / "a", adata, **options)
    with pytest.raises(InputError, match="no view is AnnData|by itself"):
        write_dataset(tmp_path / "a", {"x": np.ones((4, 2))}, **options)
    del adata.var["highly_variable"]
    with pytest.raises(InputError, match="highly_variable"):
        write_dataset(tmp_path / "a", adata, highly_variable=True)


def test_obsm_of_a_view_in_a_mapping_is_not_left_out(adata: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"obsm = protein: .*'protein': adata.obsm\['protein'\]"):
        write_dataset(tmp_path / "a", {"rna": adata}, obsm=["protein"])


def test_objects_that_cannot_be_read(adata: Any, tmp_path: Path) -> None:
    """Lazy tables are no data frames, and HDF5 has no rows from behind."""
    anndata = pytest.importorskip("anndata")
    adata.X = adata.X.toarray()
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    for views in ({"rna": backed[::-1]}, backed[::-1]):
        with pytest.raises(InputError, match=r"Give the path of its file, or .*to_memory"):
            write_dataset(tmp_path / "a", views)
    backed.file.close()


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_saved_sparse_matrices(tmp_path: Path, form: str) -> None:
    values = scipy.sparse.random(20, 6, 0.4, format=form, rng=np.random.default_rng(0))
    scipy.sparse.save_npz(tmp_path / "counts.npz", values)
    dataset = write_dataset(tmp_path / "a", tmp_path / "counts.npz", likelihoods={"counts": "gaussian"})
    np.testing.assert_array_equal(dataset.values("counts"), values.toarray().astype(np.float32))
    named = write_dataset(tmp_path / "b", {"rna": tmp_path / "counts.npz"}, likelihoods={"rna": "gaussian"})
    np.testing.assert_array_equal(named.values("rna"), dataset.values("counts"))


@pytest.mark.parametrize("name", ["", None, np.nan])
def test_names_that_are_none(tmp_path: Path, name: Any) -> None:
    values, names = np.ones((3, 3)) * np.arange(3)[:, None], ["a", name, "b"]
    with pytest.raises(InputError, match="feature names of view 'x' = none for number 2"):
        write_dataset(tmp_path / "a", {"x": values}, features={"x": names})
    with pytest.raises(InputError, match="sample names of view 'x' = none for number 2"):
        write_dataset(tmp_path / "a", {"x": values}, samples=names)


@pytest.mark.parametrize("backed", [False, True])
def test_features_in_rows(adata: Any, tmp_path: Path, backed: bool) -> None:
    adata.obs["gene_type"] = ["a", "b"] * 6
    adata.var["age"] = range(5)
    dataset = write_dataset(tmp_path / "a", stored(adata, tmp_path, backed), transpose=True)
    (view,) = dataset.views
    np.testing.assert_array_equal(dataset.values(view), adata.X.toarray().T)
    assert list(dataset.obs_names) == list(adata.var_names)
    assert dataset.obs["age"].tolist() == list(range(5))
    assert "gene_type" not in dataset.obs


@pytest.mark.parametrize("backed", [False, True])
def test_places_are_columns(adata: Any, tmp_path: Path, backed: bool) -> None:
    places = np.random.default_rng(1).random((12, 3))
    adata.obsm["spatial"] = places[:, :2]
    adata.obsm["other"] = places
    adata.obs["y"] = np.arange(12.0)
    source = stored(adata, tmp_path, backed)
    obs = write_dataset(tmp_path / "a", source).obs
    np.testing.assert_array_equal(obs["x"], places[:, 0])
    np.testing.assert_array_equal(obs["y"], np.arange(12.0))  # as obs has it
    assert "z" not in obs
    obs = write_dataset(tmp_path / "b", source, spatial="other").obs
    np.testing.assert_array_equal(obs["z"], places[:, 2])
    with pytest.raises(InputError, match="a key of obsm"):
        write_dataset(tmp_path / "c", source, spatial="space")
    adata.obsm["spatial"] = np.ones((12, 5))
    with pytest.raises(InputError, match="two or three numbers"):
        write_dataset(tmp_path / "c", adata)


def test_a_file_is_closed_after_a_refusal(adata: Any, tmp_path: Path) -> None:
    h5py, source = pytest.importorskip("h5py"), stored(adata, tmp_path, backed=True)
    with pytest.raises(InputError, match="layer = counts") as refused:
        write_dataset(tmp_path / "b", source, layer="counts")
    h5py.File(source, "r+").close()  # HDF5 refuses it while the file is open for reading
    assert refused.tb is not None  # whose frames still refer to it
