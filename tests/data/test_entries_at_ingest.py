"""Sparse matrices are looked at and written by their entries: the dataset is that of the dense matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from factorflow import write_dataset
from factorflow.data.ingest.sources import Source
from factorflow.data.store.derived import DerivedView
from factorflow.data.store.moments import Survey
from factorflow.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

N, D = 150, 40


def _counts() -> np.ndarray:
    values = np.random.default_rng(1).poisson(0.1, (N, D)).astype(np.float64)
    values[[3, 149]] = 0
    values[32:64] = 0
    values[:, 7] = 0
    values[:, 9] = 2
    values[100, 12] = 70_000
    return values


def _numbers(offset: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(2)
    values = np.where(rng.random((N, D)) < 0.1, rng.standard_normal((N, D)), 0.0)
    values[5, 3], values[6, 3] = -0.0, 4000.0
    values[:, 8] = offset + rng.standard_normal(N)
    return values


CASES = {
    "counts": (_counts(), "poisson"),
    "counts of float32": (_counts().astype(np.float32), None),
    "binary": ((_counts() > 0) * 1.0, "bernoulli"),
    "numbers": (_numbers(), "gaussian"),
    "numbers that need double precision": (_numbers(1e9), "gaussian"),
    "float32": (_numbers().astype(np.float32), None),
}


@pytest.mark.parametrize("layout", ["auto", "sparse", "dense"])
@pytest.mark.parametrize("case", CASES)
def test_as_the_dense_matrix(case: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values, likelihood = CASES[case]
    options: dict[str, Any] = {"layout": {"v": layout}, "block_rows": 32}
    options["likelihoods"] = None if likelihood is None else {"v": likelihood}
    dense = write_dataset(tmp_path / "dense.zarr", {"v": values + 0}, **options)
    present = values.view(f"u{values.itemsize}") != 0  # -0.0 is an entry, of value 0
    matrix = sp.csr_array((values[present], np.nonzero(present)), shape=values.shape)
    if dense.manifest.views[0].layout == "sparse":
        monkeypatch.setattr(Survey, "update", lambda *_: pytest.fail("went by all entries"))
    sparse = write_dataset(tmp_path / "sparse.zarr", {"v": matrix}, **options)
    assert sparse.fingerprint == dense.fingerprint
    assert sparse.manifest.views == dense.manifest.views
    for name in ("n_observed", "mean", "min", "max"):
        np.testing.assert_array_equal(sparse.moments("v", name)[name], dense.moments("v", name)[name])
    np.testing.assert_allclose(
        sparse.moments("v", "variance")["variance"], dense.moments("v", "variance")["variance"], rtol=1e-12
    )


def test_zeros_that_are_stored_and_missing_entries(tmp_path: Path) -> None:
    """Zeros among the entries are no entries; NaN among them is missing; what is wrong is named."""
    values = _counts()
    matrix = sp.csr_array(values)
    zeros = sp.csr_array((matrix.data.copy(), matrix.indices, matrix.indptr), matrix.shape)
    zeros.data[3] = 0
    place = tuple(int(i) for i in np.argwhere(values)[3])
    expected = values.copy()
    expected[place] = 0
    kinds = {"v": "poisson"}
    assert (
        write_dataset(tmp_path / "a.zarr", {"v": zeros}, kinds).fingerprint
        == write_dataset(tmp_path / "b.zarr", {"v": expected}, kinds).fingerprint
    )
    expected[place] = zeros.data[3] = np.nan
    assert (
        write_dataset(tmp_path / "c.zarr", {"v": zeros}, kinds).fingerprint
        == write_dataset(tmp_path / "d.zarr", {"v": expected}, kinds).fingerprint
    )
    for wrong in (-1, 0.5, np.inf):
        zeros.data[3] = wrong
        with pytest.raises(InputError, match=rf"sample 'sample{place[0]}', feature 'feature{place[1]:02d}'"):
            write_dataset(tmp_path / "e.zarr", {"v": zeros}, kinds)


@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_entries_of_one_place_are_added_up_and_the_matrix_stays(layout: str, tmp_path: Path) -> None:
    """It is read several times. SciPy copies the arrays of a block that is less than half of the matrix."""
    values = _counts()
    once = sp.csr_array(values)
    data = np.stack([np.floor(once.data / 2), np.ceil(once.data / 2)], axis=1).ravel()
    matrix = sp.csr_array((data, np.repeat(once.indices, 2), 2 * once.indptr), values.shape)
    before = matrix.data.copy(), matrix.indices.copy()
    options: dict[str, Any] = {"layout": {"v": layout}, "likelihoods": {"v": "poisson"}, "block_rows": 128}
    dataset = write_dataset(tmp_path / "a.zarr", {"v": matrix}, **options)
    assert dataset.fingerprint == write_dataset(tmp_path / "b.zarr", {"v": values}, **options).fingerprint
    for array, old in zip((matrix.data, matrix.indices), before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize("transform", ["log1p", "binarize"])
def test_a_view_with_zeros_is_surveyed_by_entries(
    transform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from factorflow.data import add_view

    kinds, values = {"v": "poisson"}, sp.csr_array(_counts())
    dense = write_dataset(tmp_path / "a.zarr", {"v": values}, kinds, layout={"v": "dense"})
    sparse = write_dataset(tmp_path / "b.zarr", {"v": values}, kinds, layout={"v": "sparse"})
    dense = add_view(dense, "log", "v", transform)
    with monkeypatch.context() as patched:
        patched.setattr(DerivedView, "block", lambda *_: pytest.fail("went by all entries"))
        sparse = add_view(sparse, "log", "v", transform)
    for name in ("n_observed", "mean", "min", "max", "variance"):
        found, expected = (data.moments("log", name)[name] for data in (sparse, dense))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(sparse.block(0).data["log"], dense.block(0).data["log"])


def test_samples_in_another_order_are_read_by_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the rows of another view order them, some runs of them neighbours."""
    names = [f"c{i}" for i in range(N)]
    order = np.random.default_rng(3).permutation(N)
    order[20:90] = np.sort(order[20:90])
    other = np.random.default_rng(4).standard_normal((N, 3))
    datasets = []
    for name, values in (("dense", _counts()), ("sparse", sp.csr_array(_counts()))):
        if name == "sparse":
            monkeypatch.setattr(Source, "take", lambda *_: pytest.fail("went by all entries"))
        datasets.append(
            write_dataset(
                tmp_path / name,
                {"other": other, "v": values},
                {"other": "gaussian", "v": "poisson"},
                samples={"other": names, "v": [names[i] for i in order]},
                layout={"v": "sparse"},
                block_rows=32,
            )
        )
    assert datasets[0].fingerprint == datasets[1].fingerprint
    assert datasets[0].manifest.views == datasets[1].manifest.views


@pytest.mark.parametrize("ordered", [True, False])
def test_files_are_read_by_entries(ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below each other, with features in the same order or another."""
    anndata = pytest.importorskip("anndata")
    values, order = _counts(), np.arange(D) if ordered else np.random.default_rng(5).permutation(D)
    features = np.array([f"g{i}" for i in range(D)])
    files: dict[str, list[Path]] = {"dense": [], "sparse": []}
    for part, (rows, columns) in enumerate(((slice(0, 70), np.arange(D)), (slice(70, N), order))):
        for name, form in (("dense", np.asarray), ("sparse", sp.csr_matrix)):
            names = pd.DataFrame(index=[f"c{i}" for i in range(N)][rows])
            data = anndata.AnnData(
                form(values[rows][:, columns]), names, pd.DataFrame(index=features[columns])
            )
            files[name].append(tmp_path / f"{name}{part}.h5ad")
            data.write_h5ad(files[name][-1])
    options: dict[str, Any] = {"likelihoods": {"v": "poisson"}, "layout": {"v": "sparse"}, "block_rows": 32}
    obs = pd.DataFrame({"one": 1}, [f"c{i}" for i in range(N)])
    dense = write_dataset(tmp_path / "dense.zarr", {"v": files["dense"]}, obs=obs, **options)
    monkeypatch.setattr(Survey, "update", lambda *_: pytest.fail("went by all entries"))
    sparse = write_dataset(tmp_path / "sparse.zarr", {"v": files["sparse"]}, obs=obs, **options)
    for name in ("n_observed", "mean", "min", "max"):
        np.testing.assert_array_equal(sparse.moments("v", name)[name], dense.moments("v", name)[name])
    for number in range(dense.n_blocks):
        np.testing.assert_array_equal(sparse.block(number).data["v"], dense.block(number).data["v"])
