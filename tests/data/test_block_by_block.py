"""Files of sparse counts are read block by block: whatever their format, and never whole."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from factorflow import write_dataset
from factorflow.data.ingest import sparse
from factorflow.errors import InputError

anndata = pytest.importorskip("anndata")
h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

pytestmark = pytest.mark.filterwarnings("default")  # AnnData warns of its own future

N, D, SHARE = 2000, 1500, 0.3


def counts(n: int, d: int, share: float = SHARE) -> Any:
    made = sp.random_array(
        (n, d), density=share, format="csr", dtype=np.float32, rng=np.random.default_rng(0)
    )
    made.data = (1 + np.arange(made.nnz) % 5).astype(np.float32)
    made.sort_indices()
    return made


def annotated(matrix: Any, where: str) -> Any:
    """Return AnnData with a matrix as X, a layer, or raw."""
    n, d = matrix.shape
    empty = sp.csr_array((n, d), dtype=np.float32)
    data = anndata.AnnData(matrix if where == "X" else empty)
    data.obs_names, data.var_names = [f"c{i}" for i in range(n)], [f"g{i}" for i in range(d)]
    if where == "layer":
        data.layers["counts"] = matrix
    if where == "raw":
        raw = anndata.AnnData(matrix)
        raw.obs_names, raw.var_names = data.obs_names, data.var_names
        data.raw = raw
    return data


def h5ad(folder: Path, matrix: Any, where: str) -> Path:
    annotated(matrix, where).write_h5ad(folder / "x.h5ad")
    return folder / "x.h5ad"


def zarr_of(version: int) -> Callable[[Path, Any, str], Path]:
    def write(folder: Path, matrix: Any, where: str) -> Path:
        group = zarr.open_group(folder / "x.zarr", mode="w", zarr_format=version)
        n = min(50_000, matrix.nnz)
        anndata.experimental.write_dispatched(group, "/", annotated(matrix, where), callback=chunked(n))
        return folder / "x.zarr"

    return write


def chunked(n: int) -> Any:
    """Return what writes sparse arrays in chunks, as large ones are."""

    def write(func: Any, store: Any, key: str, element: Any, dataset_kwargs: Any, **_: Any) -> None:
        given = {"chunks": (n,)} if sp.issparse(element) else {}
        func(store, key, element, dataset_kwargs={**dataset_kwargs, **given})

    return write


def tenx_h5(folder: Path, matrix: Any, where: str) -> Path:
    with h5py.File(folder / "x.h5", "w") as file:
        group = file.create_group("matrix")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(matrix, name)
        group["shape"] = matrix.shape[::-1]
        group["barcodes"] = np.array([f"c{i}" for i in range(matrix.shape[0])], "S")
        group["features/id"] = np.array([f"g{i}" for i in range(matrix.shape[1])], "S")
    return folder / "x.h5"


def market(folder: Path, matrix: Any, where: str) -> Path:
    """Return a folder of 10x; where it is compressed there are comments, and numbers are real."""
    made = folder / "x"
    made.mkdir()
    rows, columns = matrix.nonzero()
    lines = np.column_stack([columns + 1, rows + 1, matrix.data.astype(int)])
    fields = "real" if where == "gz" else "integer"
    head = f"%%MatrixMarket matrix coordinate {fields} general\n"
    head += "%metadata_json: {}\n%\n" if where == "gz" else ""
    head += f"{matrix.shape[1]} {matrix.shape[0]} {matrix.nnz}\n"
    opened = gzip.open(made / "matrix.mtx.gz", "wt", 1) if where == "gz" else (made / "matrix.mtx").open("w")
    with opened as stream:
        stream.write(head)
        np.savetxt(stream, lines, fmt="%d")
    (made / "barcodes.tsv").write_text("".join(f"c{i}\n" for i in range(matrix.shape[0])))
    (made / "features.tsv").write_text(
        "".join(f"g{i}\tname\tGene Expression\n" for i in range(matrix.shape[1]))
    )
    return made


SOURCES = {
    **{f"h5ad {where}": (h5ad, where, "csr") for where in ("X", "layer", "raw")},
    "h5ad layer, by columns": (h5ad, "layer", "csc"),
    **{f"zarr {v} {where}": (zarr_of(v), where, "csr") for v in (2, 3) for where in ("X", "layer", "raw")},
    "zarr 3 raw, by columns": (zarr_of(3), "raw", "csc"),
    "10x h5": (tenx_h5, "", "csr"),
    "10x mtx": (market, "", "csr"),
    "10x mtx.gz": (market, "gz", "csr"),
}

OPTIONS: dict[str, dict[str, str]] = {"layer": {"layer": "counts"}, "raw": {"layer": "raw"}}


@pytest.mark.parametrize("case", SOURCES)
def test_all_say_the_same(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fingerprint, however small the parts are in which entries are sorted."""
    monkeypatch.setattr(sparse, "PART", 37)
    make, where, form = SOURCES[case]
    matrix = counts(90, 40, 0.2)
    names = {"samples": [f"c{i}" for i in range(90)], "features": {"x": [f"g{i}" for i in range(40)]}}
    expected = write_dataset(tmp_path / "a", {"x": matrix.toarray()}, block_rows=32, **names)
    path = make(tmp_path, matrix.asformat(form), where)
    found = write_dataset(tmp_path / "b", {"x": path}, block_rows=32, **OPTIONS.get(where, {}))
    assert found.fingerprint == expected.fingerprint
    assert found.manifest.views[0].layout == "sparse"
    assert not (tmp_path / "b" / "spool").exists()


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_features_in_rows(
    form: str, transpose: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "PART", 37)
    matrix = counts(90, 40, 0.2)
    path = h5ad(tmp_path, matrix.asformat(form), "X")
    dataset = write_dataset(tmp_path / "b", {"x": path}, block_rows=32, transpose=transpose)
    expected = matrix.toarray().T if transpose else matrix.toarray()
    np.testing.assert_array_equal(dataset.values("x"), expected)
    assert dataset.obs_names[0] == ("g0" if transpose else "c0")


TYPES = [
    ("uint16", "uint64", "uint8"),
    ("int64", "int64", "float64"),
    (">i4", ">i8", ">f4"),
    ("uint32", "int32", "float16"),
    ("int8", "uint32", "bool"),
    ("int32", "int32", "int64"),
]


@pytest.mark.parametrize(("indices", "indptr", "data"), TYPES)
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_odd_types(form: str, indices: str, indptr: str, data: str, tmp_path: Path) -> None:
    matrix = counts(90, 40, 0.2)
    matrix.data[:] = np.minimum(matrix.data, 1) if data == "bool" else matrix.data
    made = matrix.asformat(form)
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        anndata.io.write_elem(file, "/", annotated(matrix, "X"))
        del file["X"]
        group = file.create_group("X")
        group.attrs.update(
            {"encoding-type": f"{form}_matrix", "encoding-version": "0.1.0", "shape": (90, 40)}
        )
        for name, dtype in (("indices", indices), ("indptr", indptr), ("data", data)):
            group[name] = getattr(made, name).astype(dtype)
    dataset = write_dataset(tmp_path / "b", {"x": tmp_path / "x.h5ad"}, block_rows=32)
    np.testing.assert_array_equal(dataset.values("x"), matrix.toarray())


CHILD = """
import json, sys, tracemalloc, warnings
import factorflow
from factorflow.data.ingest import sparse
sparse.PART = 2**13
warnings.simplefilter("ignore")
peaks = {}
for case, (small, large, out, options) in json.loads(sys.argv[1]).items():
    factorflow.write_dataset(out + "-small", {"x": small}, block_rows=32, **options)
    tracemalloc.start()
    factorflow.write_dataset(out, {"x": large}, block_rows=32, **options)
    peaks[case] = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
print(json.dumps(peaks))
"""
"""Prints the peaks of ingests; a small one before each imports what it needs."""


TRACED = ["h5ad X", "zarr 3 raw, by columns", "10x mtx.gz"]
"""By rows, by columns, by entries."""
ALSO_TRACED = ["h5ad layer, by columns", "zarr 2 layer", "10x h5", "10x mtx"]
"""Read by the same code: the place of a matrix in a file takes no memory."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "cases", [TRACED, pytest.param(ALSO_TRACED, marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_peak_of_memory(cases: list[str], tmp_path: Path) -> None:
    """Blocks, names and what is in work to sort a part: the matrix is twice as large."""
    matrix, arguments = counts(N, D), {}
    for number, case in enumerate(cases):
        make, where, form = SOURCES[case]
        small, large = tmp_path / f"small{number}", tmp_path / f"large{number}"
        small.mkdir()
        large.mkdir()
        paths = [make(small, counts(90, D).asformat(form), where), make(large, matrix.asformat(form), where)]
        arguments[case] = [*map(str, paths), str(tmp_path / f"out{number}"), OPTIONS.get(where, {})]
    child = [sys.executable, "-c", CHILD, json.dumps(arguments)]
    run = subprocess.run(child, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    peaks = json.loads(run.stdout)
    most = (matrix.data.nbytes + matrix.indices.nbytes) / 2
    assert {case: peak for case, peak in peaks.items() if peak >= most} == {}
    assert len(peaks) == len(cases)


def test_market_formats_that_are_refused(tmp_path: Path) -> None:
    folder = market(tmp_path, counts(20, 5), "")
    text = (folder / "matrix.mtx").read_text()
    for words, said in (
        (
            ("integer general", "complex general"),
            "complex general: expected integer, real or pattern, general",
        ),
        (("coordinate", "array"), "a dense matrix: expected a sparse one"),
        (("%%MatrixMarket", "matrix"), "no header of Matrix Market"),
        (("5 20 ", "5 20 x"), "matrix.mtx = .*expected a matrix in Matrix Market format"),
    ):
        (folder / "matrix.mtx").write_text(text.replace(*words, 1))
        with pytest.raises(InputError, match=said):
            write_dataset(tmp_path / "a", folder)
    lines = text.splitlines()
    (folder / "matrix.mtx").write_text("\n".join([*lines, lines[-1]]) + "\n")
    with pytest.raises(InputError, match=r"too long: \d+ entries instead of"):
        write_dataset(tmp_path / "a", folder)
    pattern = [
        lines[0].replace("integer", "pattern"),
        lines[1],
        *(line.rpartition(" ")[0] for line in lines[2:]),
    ]
    (folder / "matrix.mtx").write_text("\n".join(pattern) + "\n")
    dataset = write_dataset(tmp_path / "a", folder, likelihoods={"x": "poisson"})
    np.testing.assert_array_equal(dataset.values("x"), counts(20, 5).toarray() > 0)


def test_layers_of_modalities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is aligned by name, whatever the order of its samples and however its matrix is stored."""
    mudata = pytest.importorskip("mudata")
    monkeypatch.setattr(sparse, "PART", 37)
    rna, atac = counts(90, 40, 0.2), counts(70, 25, 0.1)
    data = {"rna": annotated(rna.tocsc(), "layer"), "atac": annotated(atac, "layer")}
    order = np.random.default_rng(1).permutation(70)
    data["atac"] = data["atac"][order].copy()
    mudata.MuData(data).write_h5mu(tmp_path / "m.h5mu")
    dataset = write_dataset(tmp_path / "d", tmp_path / "m.h5mu", layer="counts", block_rows=32)
    rows = {name: i for i, name in enumerate(dataset.obs_names.tolist())}
    for view, matrix in (("rna", rna), ("atac", atac)):
        where = [rows[f"c{i}"] for i in range(matrix.shape[0])]
        np.testing.assert_array_equal(dataset.values(view)[where], matrix.toarray())
        assert {entry.name: entry.layout for entry in dataset.manifest.views}[view] == "sparse"
    assert np.isnan(dataset.values("atac")[[rows[f"c{i}"] for i in range(70, 90)]]).all()
