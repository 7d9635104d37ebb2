"""Counts as Cell Ranger writes them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmwrite

from factorflow import write_dataset
from factorflow.data import DataWarning
from factorflow.errors import InputError

COUNTS = sp.csc_array(np.random.default_rng(0).poisson(0.7, (9, 25)))  # features x barcodes
COUNTS.sort_indices()
IDS = [f"ENSG{i}" for i in range(9)]
BARCODES = [f"ACGT{i}-1" for i in range(25)]
TYPES = ["Gene Expression"] * 6 + ["Antibody Capture"] * 3


def text(path: Path, lines: list[str]) -> None:
    whole = "".join(f"{line}\n" for line in lines)
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as stream:
            stream.write(whole)
    else:
        path.write_text(whole)


def folder_of(folder: Path, version: int, types: list[str], prefix: str = "") -> Path:
    folder.mkdir()
    end = ".gz" if version == 3 else ""
    mmwrite(folder / "m.mtx", COUNTS)
    text(folder / f"{prefix}matrix.mtx{end}", (folder / "m.mtx").read_text().splitlines())
    (folder / "m.mtx").unlink()
    lines = [
        f"{i}\tname{i}\t{t}" if version == 3 else f"{i}\tname{i}" for i, t in zip(IDS, types, strict=True)
    ]
    text(folder / f"{prefix}{'features' if version == 3 else 'genes'}.tsv{end}", lines)
    text(folder / f"{prefix}barcodes.tsv{end}", BARCODES)
    return folder


def h5_of(path: Path, version: int, types: list[str]) -> Path:
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix" if version == 3 else "GRCh38")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(COUNTS, name)
        group["shape"] = COUNTS.shape
        group["barcodes"] = np.array(BARCODES, "S")
        if version == 3:
            group["features/id"] = np.array(IDS, "S")
            group["features/name"] = np.array([f"name{i}" for i in IDS], "S")
            group["features/feature_type"] = np.array(types, "S")
            group["features/genome"] = np.array(["GRCh38"] * 5 + ["mm10"] * 4, "S")
        else:
            group["genes"] = np.array(IDS, "S")
            group["gene_names"] = np.array([f"name{i}" for i in IDS], "S")
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("form", ["folder", "h5", "prefixed"])
def test_one_type_of_features_is_one_view(tmp_path: Path, form: str, version: int) -> None:
    types = ["Gene Expression"] * 9
    path = {
        "folder": lambda: folder_of(tmp_path / "cells", version, types),
        "prefixed": lambda: folder_of(tmp_path / "cells", version, types, "GSM1_"),
        "h5": lambda: h5_of(tmp_path / "cells.h5", version, types),
    }[form]()
    dataset = write_dataset(tmp_path / "s", path, block_rows=8)
    assert list(dataset.views) == ["cells"]
    np.testing.assert_array_equal(dataset.values("cells"), COUNTS.toarray().T)
    assert dataset.obs_names.tolist() == BARCODES
    assert dataset.features("cells").tolist() == IDS
    described = dataset.feature_metadata("cells")
    assert described["gene_name"].tolist() == [f"name{i}" for i in IDS]
    if form == "h5" and version == 3:  # of mixtures of species
        assert described["genome"].tolist() == ["GRCh38"] * 5 + ["mm10"] * 4
    assert list(write_dataset(tmp_path / "t", {"rna": path}).views) == ["rna"]


@pytest.mark.parametrize("form", ["folder", "h5"])
def test_types_of_features_are_views(tmp_path: Path, form: str) -> None:
    path = folder_of(tmp_path / "c", 3, TYPES) if form == "folder" else h5_of(tmp_path / "c.h5", 3, TYPES)
    dataset = write_dataset(tmp_path / "s", path)
    values = COUNTS.toarray().T
    assert list(dataset.views) == ["rna", "prot"]
    np.testing.assert_array_equal(dataset.values("rna"), values[:, :6])
    np.testing.assert_array_equal(dataset.values("prot"), values[:, 6:])
    assert dataset.features("prot").tolist() == IDS[6:]
    dataset = write_dataset(tmp_path / "t", {"prot": path})
    np.testing.assert_array_equal(dataset.values("prot"), values[:, 6:])
    with pytest.raises(InputError, match="with views rna, prot"):
        write_dataset(tmp_path / "u", {"x": path})


def test_folders_of_10x_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    folder_of(tmp_path / "all" / "gex", 3, ["Gene Expression"] * 9)
    table = "\n".join(["id,a,b", *(f"{name},{i}.5,{i}.25" for i, name in enumerate(BARCODES))]) + "\n"
    (tmp_path / "all" / "prot.csv").write_text(table)
    assert list(write_dataset(tmp_path / "s", tmp_path / "all").views) == ["gex", "prot"]
    (tmp_path / "all" / "gex" / "prot.csv").write_text(table)
    assert list(write_dataset(tmp_path / "t", tmp_path / "all" / "gex").views) == ["gex", "prot"]


def without(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def shorter(folder: Path) -> None:
    text(folder / "barcodes.tsv.gz", BARCODES[:-1])


def beyond(folder: Path) -> None:
    lines = gzip.decompress((folder / "matrix.mtx.gz").read_bytes()).decode().splitlines()
    text(folder / "matrix.mtx.gz", [*lines[:-1], "10 3 1"])


def cut(folder: Path) -> None:
    whole = (folder / "matrix.mtx.gz").read_bytes()
    (folder / "matrix.mtx.gz").write_bytes(whole[: len(whole) // 2])


def fewer(folder: Path) -> None:
    lines = gzip.decompress((folder / "matrix.mtx.gz").read_bytes()).decode().splitlines()
    text(folder / "matrix.mtx.gz", lines[:-2])


def without_values(folder: Path) -> None:
    lines = gzip.decompress((folder / "matrix.mtx.gz").read_bytes()).decode().splitlines()
    text(folder / "matrix.mtx.gz", lines[:3] + [line.rpartition(" ")[0] for line in lines[3:]])


def with_more(folder: Path) -> None:
    lines = gzip.decompress((folder / "matrix.mtx.gz").read_bytes()).decode().splitlines()
    text(folder / "matrix.mtx.gz", lines[:3] + [f"1 {line}" for line in lines[3:]])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without("features.tsv.gz"), r"no such file: expected features.tsv or .*beside the matrix"),
        (without("barcodes.tsv.gz"), r"no such file: expected barcodes.tsv"),
        (shorter, r"barcodes.tsv.gz = 24 lines: expected 25"),
        (beyond, r"matrix.mtx.gz = .*row index out of bounds"),
        (cut, r"matrix.mtx.gz = "),
        (fewer, r"matrix.mtx.gz = .*[Tt]runcated"),
        (without_values, r"matrix.mtx.gz = could not convert"),
        (with_more, r"matrix.mtx.gz = more than 3 numbers in a line, of integer entries"),
    ],
)
def test_damaged_folders(tmp_path: Path, damage: Any, said: str) -> None:
    damage(folder_of(tmp_path / "cells", 3, TYPES))
    with pytest.raises(InputError, match=f"(?i){said}"):
        write_dataset(tmp_path / "s", tmp_path / "cells")


def test_entries_that_occur_twice(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "cells", 3, ["Gene Expression"] * 9)
    lines = gzip.decompress((folder / "matrix.mtx.gz").read_bytes()).decode().splitlines()
    text(folder / "matrix.mtx.gz", [*lines[:-1], lines[-2]])
    with pytest.warns(DataWarning, match=r"matrix.mtx.gz: a column occurs several times in row 24"):
        write_dataset(tmp_path / "s", folder)


def test_damaged_h5(tmp_path: Path) -> None:
    path = h5_of(tmp_path / "c.h5", 3, TYPES)
    with h5py.File(path, "r+") as file:
        file["matrix/indices"][11] = 9
    with pytest.raises(InputError, match=r"array 'matrix' of .*c\.h5 = indices\[11\] = 9: expected 0 to 8"):
        write_dataset(tmp_path / "s", path)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.ones((3, 2))
    with pytest.raises(InputError, match=r"other\.h5 = groups x: expected an .h5 of Cell Ranger"):
        write_dataset(tmp_path / "s", tmp_path / "other.h5")
    with h5py.File(path, "r+") as file:
        del file["matrix/features/id"]
    with pytest.raises(InputError, match=r"c\.h5.*expected an HDF5 file of Cell Ranger"):
        write_dataset(tmp_path / "s", path)


@pytest.mark.filterwarnings("default:::anndata")
def test_annotated_data_with_that_ending(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    data = anndata.AnnData(COUNTS.toarray().T.astype("f4"))
    data.write_h5ad(tmp_path / "x.h5")
    np.testing.assert_array_equal(write_dataset(tmp_path / "s", tmp_path / "x.h5").values("x"), data.X)


def test_files_with_barcodes_in_common(tmp_path: Path) -> None:
    """They are of different cells: the names of the files tell them apart."""
    kinds = ["Gene Expression"] * 9
    parts = [h5_of(tmp_path / f"run{i}.h5", 3, kinds) for i in (1, 2)]
    with pytest.warns(DataWarning, match="view 'rna': barcodes are in several files"):
        dataset = write_dataset(tmp_path / "s", {"rna": parts})
    assert dataset.obs_names.tolist() == [f"run{i}_{name}" for i in (1, 2) for name in BARCODES]
    assert dataset.obs["file"].tolist() == ["run1.h5"] * 25 + ["run2.h5"] * 25
    np.testing.assert_array_equal(dataset.values("rna")[25:], COUNTS.toarray().T)
    for i in (1, 2):
        (tmp_path / f"patient{i}" / "outs").mkdir(parents=True)
    folders = [folder_of(tmp_path / f"patient{i}" / "outs" / "filtered", 3, kinds) for i in (1, 2)]
    with pytest.warns(DataWarning, match="barcodes are in several files"):
        dataset = write_dataset(tmp_path / "u", {"rna": folders})
    assert dataset.obs_names[::25].tolist() == [f"patient{i}_{BARCODES[0]}" for i in (1, 2)]
    folder = folder_of(tmp_path / "cells", 3, kinds)
    text(folder / "barcodes.tsv.gz", [f"other{i}" for i in range(25)])
    other = write_dataset(tmp_path / "t", {"rna": [parts[0], folder]})
    assert other.obs_names.tolist() == [*BARCODES, *(f"other{i}" for i in range(25))]
