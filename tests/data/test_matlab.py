"""Files of MATLAB, as SciPy and as MATLAB 7.3 write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import savemat

from factorflow import write_dataset
from factorflow.data import DataWarning
from factorflow.errors import InputError

VALUES = np.random.default_rng(0).normal(size=(20, 4))
COUNTS = sp.csc_matrix(np.random.default_rng(1).poisson(0.6, (20, 3)).astype(float))
NAMES = [f"s{i}" for i in range(20)]


def version_7_3(path: Path, contents: dict[str, Any]) -> None:
    """Write what MATLAB's ``save -v7.3`` would."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for key, value in contents.items():
            if sp.issparse(value):
                group = file.create_group(key)
                group.attrs["MATLAB_sparse"] = np.uint64(value.shape[0])
                group.attrs["MATLAB_class"] = np.bytes_("double")
                group["data"], group["ir"] = value.data, value.indices.astype("u8")
                group["jc"] = value.indptr.astype("u8")
                continue
            value = np.asarray(value)
            if value.dtype == object:
                references = np.empty((1, value.size), h5py.ref_dtype)
                for number, cell in enumerate(value.ravel()):
                    text = np.array([[ord(c)] for c in cell], "u2")
                    references[0, number] = file.create_dataset(f"#refs#/{key}{number}", data=text).ref
                file[key] = references
                file[key].attrs["MATLAB_class"] = np.bytes_("cell")
                continue
            pairs = np.dtype([("real", "f8"), ("imag", "f8")])
            file[key] = np.ascontiguousarray(value.T).view(pairs) if value.dtype.kind == "c" else value.T
            file[key].attrs["MATLAB_class"] = np.bytes_("double")


SAVE = {"scipy": savemat, "7.3": version_7_3}


@pytest.mark.parametrize("version", SAVE)
def test_matrices_and_their_names(tmp_path: Path, version: str) -> None:
    contents = {
        "rna": VALUES,
        "counts": COUNTS,
        "samples": np.array(NAMES, dtype=object),
        "features_rna": np.array(list("abcd"), dtype=object),
        "obs_age": np.arange(20.0)[:, None],
    }
    SAVE[version](tmp_path / "x.mat", contents)
    dataset = write_dataset(tmp_path / "s", tmp_path / "x.mat", block_rows=8)
    assert sorted(dataset.views) == ["counts", "rna"]
    np.testing.assert_array_equal(dataset.values("rna"), VALUES.astype("f4"))
    np.testing.assert_array_equal(dataset.values("counts"), COUNTS.toarray())
    assert dataset.obs_names.tolist() == NAMES
    assert dataset.features("rna").tolist() == list("abcd")
    assert dataset.obs["age"].tolist() == list(range(20))


@pytest.mark.parametrize("version", SAVE)
def test_vectors_are_no_views(tmp_path: Path, version: str) -> None:
    SAVE[version](tmp_path / "x.mat", {"rna": VALUES, "k": np.array([[3.0]]), "age": np.ones((20, 1))})
    with pytest.warns(DataWarning, match=r"x\.mat: '(age|k)', '(age|k)' left out"):
        dataset = write_dataset(tmp_path / "s", tmp_path / "x.mat")
    assert list(dataset.views) == ["rna"]
    with pytest.warns(DataWarning, match=r"x\.mat: 'k' left out"):
        dataset = write_dataset(tmp_path / "t", tmp_path / "x.mat", inputs={"age": "covariate"})
    assert sorted(dataset.views) == ["age", "rna"]


@pytest.mark.parametrize("version", SAVE)
def test_complex_numbers_are_refused(tmp_path: Path, version: str) -> None:
    SAVE[version](tmp_path / "x.mat", {"rna": VALUES, "fourier": VALUES * 1j})
    with pytest.raises(InputError, match="type of view 'fourier' = complex128"):
        write_dataset(tmp_path / "s", tmp_path / "x.mat")


def test_complex_numbers_of_an_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", rna=VALUES, fourier=VALUES * 1j)
    with pytest.raises(InputError, match="type of view 'fourier' = complex128"):
        write_dataset(tmp_path / "s", tmp_path / "x.npz")


@pytest.mark.parametrize("content", [b"something else, of some length, " * 10, b"short", b""])
def test_what_is_no_file_of_matlab(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.mat").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.mat.*expected a \.mat file"):
        write_dataset(tmp_path / "s", tmp_path / "x.mat")


def test_damaged_sparse_matrix(tmp_path: Path) -> None:
    version_7_3(tmp_path / "x.mat", {"counts": COUNTS})
    with h5py.File(tmp_path / "x.mat", "r+") as file:
        file["counts/ir"][5] = 20
    with pytest.raises(InputError, match=r"array 'counts' of .*x\.mat = indices\[5\] = 20"):
        write_dataset(tmp_path / "s", tmp_path / "x.mat")
