"""Damaged sparse matrices are refused by file, array and position; values of one place are added."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from factorflow import write_dataset
from factorflow.data import DataWarning
from factorflow.data.ingest import sparse
from factorflow.errors import InputError, RunError

COUNTS = sp.random(60, 30, 0.2, format="csr", rng=np.random.default_rng(0))
COUNTS.data = np.arange(1.0, COUNTS.nnz + 1) % 7 + 1
COUNTS.sort_indices()

Arrays = dict[str, np.ndarray]


def falling(x: Arrays) -> None:
    x["indptr"][10] = x["indptr"][11] + 3


def late(x: Arrays) -> None:
    x["indptr"][0] = 1


def short(x: Arrays) -> None:
    x["indptr"][-1] -= 1


def beyond(x: Arrays) -> None:
    x["indices"][25] = 60


def negative(x: Arrays) -> None:
    x["indices"][25] = -1


DAMAGE = {
    falling: r"indptr\[10\] = \d+, then \d+: expected row pointers that never fall",
    late: r"indptr\[0\] = 1: expected 0",
    short: r"indptr ends at \d+: expected \d+, the number of indices",
    beyond: r"indices\[25\] = 60: expected 0 to (29|59)",
    negative: r"indices\[25\] = -1: expected 0 to (29|59)",
}


def parts(form: str, change: Callable[[Arrays], None]) -> Arrays:
    matrix = COUNTS.asformat(form)
    arrays = {name: getattr(matrix, name).copy() for name in ("data", "indices", "indptr")}
    change(arrays)
    return arrays


def saved_npz(folder: Path, form: str, arrays: Arrays) -> Path:
    np.savez(folder / "x.npz", format=form.encode(), shape=COUNTS.shape, **arrays)
    return folder / "x.npz"


def saved_h5ad(folder: Path, form: str, arrays: Arrays) -> Path:
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(COUNTS.asformat(form)).write_h5ad(folder / "x.h5ad")
    with h5py.File(folder / "x.h5ad", "r+") as file:
        for name, values in arrays.items():
            file["X"][name][...] = values
    return folder / "x.h5ad"


def saved_zarr(folder: Path, form: str, arrays: Arrays) -> Path:
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(COUNTS.asformat(form)).write_zarr(folder / "x.zarr")
    group = zarr.open_group(folder / "x.zarr", mode="r+")
    for name, values in arrays.items():
        group["X"][name][...] = values  # type: ignore[index]
    return folder / "x.zarr"


@pytest.mark.parametrize("save", [saved_npz, saved_h5ad, saved_zarr])
@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("change", DAMAGE)
@pytest.mark.filterwarnings("default")  # AnnData warns of its own future
def test_damaged_files(tmp_path: Path, save: Any, form: str, change: Any) -> None:
    path = save(tmp_path, form, parts(form, change))
    with pytest.raises(InputError, match=rf"x\.\w+ = {DAMAGE[change]}"):
        write_dataset(tmp_path / "s", {"rna": path})


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("change", DAMAGE)
def test_damaged_matrices_in_memory(tmp_path: Path, form: str, change: Any) -> None:
    matrix = COUNTS.asformat(form, copy=True)
    for name, values in parts(form, change).items():
        setattr(matrix, name, values)
    if change is short:  # SciPy's arrays may be longer than what is used of them
        write_dataset(tmp_path / "s", {"rna": matrix})
        return
    with pytest.raises(InputError, match=rf"view 'rna' = {DAMAGE[change]}"):
        write_dataset(tmp_path / "s", {"rna": matrix})


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.filterwarnings("default")
def test_numbers_of_extended_precision(tmp_path: Path, form: str) -> None:
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(COUNTS.asformat(form).astype(np.longdouble)).write_h5ad(tmp_path / "x.h5ad")
    dataset = write_dataset(tmp_path / "s", {"rna": tmp_path / "x.h5ad"})
    np.testing.assert_array_equal(dataset.values("rna"), COUNTS.toarray())


@pytest.mark.parametrize("save", [saved_npz, saved_h5ad])
@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.filterwarnings("default")
def test_values_of_one_place_are_added(tmp_path: Path, save: Any, form: str) -> None:
    def twice(x: Arrays) -> None:
        first = x["indptr"][20]
        x["indices"][first + 1] = x["indices"][first]

    arrays = parts(form, twice)
    path = save(tmp_path, form, arrays)
    with pytest.warns(DataWarning, match=r"x\.\w+: a column occurs several times in row \d+") as said:
        dataset = write_dataset(tmp_path / "s", {"rna": path}, {"rna": "poisson"}, block_rows=16)
    assert len([w for w in said if "several times" in str(w.message)]) == 1  # although it is read twice
    kind = sp.csr_array if form == "csr" else sp.csc_array
    wanted = kind((arrays["data"], arrays["indices"], arrays["indptr"]), shape=COUNTS.shape).toarray()
    np.testing.assert_array_equal(dataset.values("rna"), wanted)
    assert not np.array_equal(wanted, COUNTS.toarray())


def test_columns_in_any_order(tmp_path: Path) -> None:
    backwards = COUNTS.copy()
    for row in range(60):
        where = slice(backwards.indptr[row], backwards.indptr[row + 1])
        backwards.indices[where] = backwards.indices[where][::-1]
        backwards.data[where] = backwards.data[where][::-1]
    dataset = write_dataset(tmp_path / "s", {"rna": backwards}, block_rows=16)
    np.testing.assert_array_equal(dataset.values("rna"), COUNTS.toarray())


def test_coordinates_that_occur_twice(tmp_path: Path) -> None:
    matrix = sp.coo_array((np.ones(4), ([0, 0, 1, 2], [1, 1, 0, 1])), shape=(3, 2))
    with pytest.warns(DataWarning, match="view 'x': 1 entries of places that occur before"):
        dataset = write_dataset(tmp_path / "s", {"x": matrix})
    np.testing.assert_array_equal(dataset.values("x"), [[0, 2], [1, 0], [0, 1]])


@pytest.mark.parametrize("save", [None, saved_npz, saved_h5ad])
@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.filterwarnings("default")
def test_features_in_rows(tmp_path: Path, save: Any, form: str) -> None:
    source = COUNTS.asformat(form) if save is None else save(tmp_path, form, parts(form, lambda x: None))
    dataset = write_dataset(tmp_path / "s", {"rna": source}, transpose=True)
    np.testing.assert_array_equal(dataset.values("rna"), COUNTS.toarray().T)
    broken = save(tmp_path, form, parts(form, beyond)) if save is not None else None
    if broken is not None:
        with pytest.raises(InputError, match=r"indices\[25\] = 60"):
            write_dataset(tmp_path / "t", {"rna": broken}, transpose=True)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While entries are sorted by rows: what NumPy says of it is a number of items."""
    monkeypatch.setattr(sparse.BucketedRows, "_file", lambda *_: Path("/dev/full"))
    file = saved_h5ad(tmp_path, "csc", parts("csc", lambda _: None))
    with pytest.raises(RunError, match="No space left on device"):
        write_dataset(tmp_path / "d", {"x": file})


@pytest.mark.parametrize("form", ["csr", "coo"])
def test_sums_of_small_integers_do_not_overflow(tmp_path: Path, form: str) -> None:
    rows, columns = np.array([0, 0, 1, 2]), np.array([0, 0, 1, 1])
    matrix = sp.coo_matrix((np.array([100, 100, 1, 3], np.int8), (rows, columns)), shape=(3, 2))
    if form == "csr":
        matrix = sp.csr_matrix((matrix.data, matrix.col, [0, 2, 3, 4]), shape=(3, 2))
    with pytest.warns(DataWarning, match="added up"):
        dataset = write_dataset(tmp_path / "d", {"rna": matrix}, {"rna": "poisson"})
    np.testing.assert_array_equal(dataset.values("rna"), [[200, 0], [0, 1], [0, 3]])
