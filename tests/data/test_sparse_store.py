"""Views of which only the entries that are not zero are stored: as others above the store, bit by bit."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from google_crc32c import extend

from factorflow import add_view, write_dataset
from factorflow.core.block import SPARSE_BELOW
from factorflow.core.records import from_record
from factorflow.data import Dataset, Holdout
from factorflow.data.ingest.append import append_rows
from factorflow.data.ingest.parts import StackedRows
from factorflow.engine.memory_limits import Footprint, required_bytes
from factorflow.errors import InputError, OptionError
from factorflow.kernels.sparse_rows import SparseRows

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

N, D = 150, 40


def counts(largest: int = 200, n_features: int = D) -> np.ndarray:
    """Counts with empty and full rows, an empty block of 32 rows, a short last block, a large entry."""
    values = np.random.default_rng(1).poisson(0.1, (N, n_features)).astype(np.float64)
    values[[3, 149]] = 0
    values[5] = 1
    values[32:64] = 0
    values[100, n_features - 1] = largest
    return values


def missing_rows(values: np.ndarray) -> np.ndarray:
    out = values.copy()
    out[[0, 70, 149]] = np.nan
    return out


def of_files(values: np.ndarray) -> np.ndarray:
    """Rows of three files of different features, some missing altogether."""
    out = missing_rows(values)
    out[10:60, :7] = np.nan
    out[60:, 5:9] = np.nan
    return out


VIEWS = {
    "uint8": (counts(), "poisson"),
    "uint16": (counts(65535), "poisson"),
    "uint32": (counts(65536), "poisson"),
    "rows missing": (missing_rows(counts()), "poisson"),
    "files": (of_files(counts()), "poisson"),
    "binary files": (of_files(np.minimum(counts(), 1)), "bernoulli"),
    "files of numbers": (of_files(counts() * 0.3), "gaussian"),
    "wide": (counts(9, 70_000), "poisson"),
    "binary": (np.minimum(counts(), 1), "bernoulli"),
    "binary, rows missing": (missing_rows(np.minimum(counts(), 1)), "bernoulli"),
    "signs": (np.where(counts() > 0, 1.0, -1.0), "bernoulli"),
    "numbers": (missing_rows(counts() * -0.37), "gaussian"),
    "numbers in double": (missing_rows(np.where(counts() > 0, 1e6 + 1e-5 * counts(), 0.0)), "gaussian"),
    "zeros": (np.where(np.arange(N * D).reshape(N, D) == 7, 1.0, 0.0), "poisson"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", VIEWS)
def test_blocks_are_those_of_a_dense_view(case: str, tmp_path: Path) -> None:
    values, likelihood = VIEWS[case]
    made = [
        write_dataset(
            tmp_path / layout, {"x": values}, {"x": likelihood}, block_rows=32, layout={"x": layout}
        )
        for layout in ("dense", "sparse")
    ]
    dense, sparse = made
    assert [d.manifest.views[0].layout for d in made] == ["dense", "sparse"]
    assert sparse.fingerprint == dense.fingerprint
    assert sparse.meta() == dense.meta()
    for number in range(dense.n_blocks):
        for holdout in (None, Holdout(0.2)):
            block, truth = sparse.read(number, holdout=holdout)
            expected, hidden = dense.read(number, holdout=holdout)
            assert (block.data["x"].dtype, block.data["x"].shape) == (
                expected.data["x"].dtype,
                expected.data["x"].shape,
            )
            assert block.data["x"].tobytes() == expected.data["x"].tobytes()
            assert not block.data["x"].flags.writeable
            assert block.data["x"].flags.c_contiguous
            if holdout is not None:
                assert truth["x"].tobytes() == hidden["x"].tobytes()
    for rows in ((0, None), (20, 110), (63, 65), (149, 150), (5, 5)):
        assert sparse.values("x", *rows).tobytes() == dense.values("x", *rows).tobytes()
    for name, moment in dense.moments("x").items():
        np.testing.assert_array_equal(sparse.moments("x", name)[name], moment)
    sparse.verify()


def test_other_readers(tmp_path: Path) -> None:
    anndata_io = pytest.importorskip("anndata.io")
    values = counts()
    write_dataset(tmp_path / "d", {"x": missing_rows(values)}, block_rows=32)
    values[[0, 70, 149]] = 0
    group = zarr.open_group(tmp_path / "d" / "x", mode="r")
    matrix = sp.csr_array((group["data"][:], group["indices"][:], group["indptr"][:]), shape=(N, D))
    np.testing.assert_array_equal(matrix.toarray(), values)
    np.testing.assert_array_equal(anndata_io.read_elem(group).toarray(), values)
    np.testing.assert_array_equal(anndata_io.sparse_dataset(group)[60:100].toarray(), values[60:100])
    matrix.eliminate_zeros()
    assert matrix.nnz == np.count_nonzero(values) == group["n_nonzero"][:].sum()
    assert group["data"].chunks == group["indices"].chunks == (group["data"].shape[0] // 5,)
    assert group["row_nnz"].chunks == (32,)


def test_xarray_reads_it(tmp_path: Path) -> None:
    tree = write_dataset(tmp_path / "d", {"x": counts()}).tree
    assert tree["x/data"].dims == ("entry",)
    assert tree["x/row_nnz"].dims == ("obs",)
    assert "values" not in tree["x"]


def test_choice_by_the_share_of_zeros(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    few, many = (
        rng.permuted(np.arange(60 * D) < share * 60 * D).reshape(60, D) * 2.0 for share in (0.25, 0.26)
    )
    one = np.where(np.arange(60) % 9 == 0, 2.0, 0.0)[
        :, None
    ]  # a number for the row takes more than the entry
    gaps = few.copy()
    gaps[np.arange(60), np.arange(60) % D] = np.nan  # their sets take more than a mask
    empty = np.column_stack([few, np.full(60, np.nan)])
    views = {
        "few": few,
        "many": many,
        "one": one,
        "gaps": gaps,
        "binary": few / 2,
        "numbers": few + 0.5 * few,
    }
    kinds = {**dict.fromkeys(views, "poisson"), "binary": "bernoulli", "numbers": "gaussian"}
    dataset = write_dataset(tmp_path / "d", views, kinds)
    found = {view["name"]: view["layout"] for view in dataset.describe()["views"]}
    assert SPARSE_BELOW == 0.25
    assert found == {**dict.fromkeys(views, "dense"), "few": "sparse", "numbers": "sparse"}
    assert "uint8 sparse" in repr(dataset)
    dropped = write_dataset(tmp_path / "e", {"x": empty}, drop_empty_features=True)
    assert dropped.manifest.views[0].layout == "sparse"
    np.testing.assert_array_equal(dropped.values("x"), few)
    guessed = write_dataset(tmp_path / "f", {"x": few}, layout={"x": "auto"})
    assert guessed.manifest.views[0].layout == "sparse"


def test_refused(tmp_path: Path) -> None:
    values = counts()
    values[np.arange(65), np.arange(65) % D] = values[np.arange(40, 65), np.arange(25)] = np.nan
    values[np.arange(40, 65), 39] = np.nan
    sets = r"missing entries that differ from row to row .*at most 64 sets .*'dense'"
    with pytest.raises(InputError, match=f"layout = sparse, of a view with {sets}"):
        write_dataset(tmp_path / "d", {"x": values}, layout={"x": "sparse"})
    views = {"x": counts(), "c": np.arange(N)}
    with pytest.raises(InputError, match="layout = sparse, of a view that is an input"):
        write_dataset(tmp_path / "d", views, inputs={"c": "covariate"}, layout={"c": "sparse"})
    with pytest.raises(InputError, match="layout = sparse, of a view with trials"):
        write_dataset(tmp_path / "d", {"x": counts()}, trials={"x": 300}, layout={"x": "sparse"})
    with pytest.raises(InputError, match="layout"):
        write_dataset(tmp_path / "d", {"x": counts()}, layout={"y": "sparse"})
    with pytest.raises(OptionError, match="csr"):
        write_dataset(tmp_path / "d", {"x": counts()}, layout={"x": "csr"})
    assert not (tmp_path / "d").exists()
    assert (
        write_dataset(tmp_path / "d", {"x": counts()}, trials={"x": 300}).manifest.views[0].layout == "dense"
    )


@pytest.mark.parametrize("array", ["data", "indices", "row_nnz"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "absent", "empty"])
def test_damaged_chunk(array: str, damage: str, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "s", {"counts": counts()}, block_rows=32)
    file = tmp_path / "s" / "counts" / array / "c" / "2"
    content = bytearray(file.read_bytes())
    if damage == "absent":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes({"truncated": content[: len(content) // 2], "empty": b""}.get(damage, content))
    dataset.block(1)
    with pytest.raises(InputError, match=rf"{array}/c/2 .*view 'counts'"):
        dataset.block(2)
    with pytest.raises(InputError, match=rf"{array}/c/2"):
        dataset.verify()


def test_chunks_of_another_view(tmp_path: Path) -> None:
    """Whole chunks, with the right checksum, of other columns or of another size."""
    wide = np.zeros((N, D))
    wide[:, D - 1] = 1
    views = {"narrow": wide[:, -D // 2 :], "wide": wide, "more": counts()}
    layout = dict.fromkeys(views, "sparse")
    dataset = write_dataset(
        tmp_path / "s", views, dict.fromkeys(views, "poisson"), block_rows=32, layout=layout
    )
    folder = tmp_path / "s"
    chunk = folder / "narrow" / "indices" / "c" / "1"
    shutil.copy(folder / "wide" / "indices" / "c" / "1", chunk)
    with pytest.raises(
        InputError, match=rf"indices{os.sep}c{os.sep}1 = entries beyond the 20 features .*narrow"
    ):
        dataset.block(1)
    shutil.copy(folder / "more" / "indices" / "c" / "1", chunk)
    with pytest.raises(InputError, match=r"narrow.indices.c.1 = \d+ bytes instead of 64"):
        dataset.block(1)
    row_nnz = folder / "wide" / "row_nnz" / "c" / "1"
    values = np.full(32, 2, np.uint32).tobytes()
    row_nnz.write_bytes(values + extend(0, values).to_bytes(4, "little"))
    with pytest.raises(InputError, match="entries beyond"):
        dataset.block(1, ["wide"])


def test_rows_that_are_added(tmp_path: Path) -> None:
    values = counts()
    views = {"auto": values, "dense": values, "binary": np.minimum(values, 1)}
    kinds = {"auto": "poisson", "dense": "poisson", "binary": "bernoulli"}
    layout = {"dense": "dense", "binary": "sparse"}
    names = [f"s{i}" for i in range(N)]
    write_dataset(
        tmp_path / "d", {v: x[:80] for v, x in views.items()}, kinds, samples=names[:80], layout=layout
    )
    more = {v: x[80:] for v, x in views.items()}
    import pandas as pd

    rows = {
        v: pd.DataFrame(x, index=names[80:], columns=[f"feature{i}" for i in range(D)])
        for v, x in more.items()
    }
    grown = append_rows(tmp_path / "d", rows)
    whole = write_dataset(tmp_path / "e", views, kinds, samples=names, layout=layout)
    assert [v.layout for v in grown.manifest.views] == ["sparse", "dense", "sparse"]
    assert grown.fingerprint == whole.fingerprint
    rows["auto"] = rows["auto"].mask(np.random.default_rng(0).random((70, D)) < 0.5)
    rows = {view: frame.rename(lambda name: f"t{name}") for view, frame in rows.items()}
    assert append_rows(tmp_path / "d", rows).manifest.views[0].layout == "dense"


def test_memory_of_reading_is_counted(tmp_path: Path) -> None:
    """A block when it has been read, and its compressed and decoded arrays."""
    dense, sparse = (
        write_dataset(tmp_path / layout, {"x": counts()}, layout={"x": layout}, block_rows=32)
        for layout in ("dense", "sparse")
    )
    entry = sparse.manifest.views[0]
    fullest = max(np.count_nonzero(counts()[i : i + 32]) for i in range(0, N, 32))
    assert entry.block_entries == fullest
    footprint = Footprint(0, 0, 0)
    needs = [required_bytes(d.meta(), footprint, 1, 1, 1 << 30) for d in (dense, sparse)]
    assert needs[1] - needs[0] == 2 * 2 * fullest * (2 + 1)  # two blocks read at once


def test_a_block_by_its_entries() -> None:
    values = np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3]], np.uint8)
    missing = np.zeros(values.shape, bool)
    missing[2] = True
    whole, gaps = SparseRows.from_dense(values, None), SparseRows.from_dense(values, missing)
    assert whole.row_nnz.tolist() == [1, 0, 2]
    assert whole.columns.tolist() == [1, 0, 2]
    assert whole.entries.tolist() == [2, 1, 3]
    assert gaps.row_nnz.tolist() == [1, 0, 2**32 - 1]
    assert gaps.columns.tolist() == [1]


def test_files_of_different_features(tmp_path: Path) -> None:
    """Features that a file lacks are missing there, and a set of them takes a number a sample."""
    values = pd.DataFrame(counts(), index=[f"s{i}" for i in range(N)], columns=[f"g{i}" for i in range(D)])
    parts = [values.iloc[:70, :30], values.iloc[70:, 10:]]
    dense, sparse = (
        write_dataset(tmp_path / layout, {"x": parts}, layout={"x": layout}, block_rows=32)
        for layout in ("dense", "auto")
    )
    entry = sparse.manifest.views[0]
    assert (entry.layout, entry.n_patterns, entry.missing) == ("sparse", 2, "scattered")
    assert sparse.fingerprint == dense.fingerprint
    np.testing.assert_array_equal(sparse.values("x"), dense.values("x"))
    assert sparse.tree["x/pattern_missing"].values.sum(axis=1).tolist() == [10, 10]
    file = tmp_path / "auto" / "x" / "row_pattern" / "c" / "1"
    values = np.full(32, 3, np.uint8).tobytes()
    file.write_bytes(values + extend(0, values).to_bytes(4, "little"))
    with pytest.raises(InputError, match="sets of features beyond the 2 of view 'x'"):
        sparse.block(1)
    (tmp_path / "auto" / "x" / "pattern_missing" / "c" / "0" / "0").unlink()
    with pytest.raises(InputError, match="pattern_missing/c/0/0"):
        Dataset(str(tmp_path / "auto")).block(2)


@pytest.mark.parametrize("likelihood", ["poisson", "gaussian"])
@pytest.mark.parametrize("join", ["outer", "inner"])
def test_files_are_read_by_their_entries(likelihood: str, join: str, tmp_path: Path) -> None:
    """Whatever features they lack, and samples that another view has: as dense ones, nothing made dense."""
    anndata = pytest.importorskip("anndata")
    values = (counts() + (np.arange(D) == 2)) * (1.0 if likelihood == "poisson" else 0.3)
    samples, features = (
        np.char.add(name, np.arange(size).astype(str)) for name, size in (("s", N), ("g", D))
    )
    parts = [(slice(0, 70), slice(0, 30)), (slice(70, 120), slice(0, D)), (slice(120, N - 9), slice(10, D))]
    files = {
        kind: [
            anndata.AnnData(
                as_kind(values[part]),
                pd.DataFrame(index=samples[part[0]].astype(object)),
                pd.DataFrame(index=features[part[1]].astype(object)),
            )
            for part in parts
        ]
        for kind, as_kind in (("entries", sp.csr_matrix), ("dense", np.asarray))
    }
    beside = {"y": pd.DataFrame(np.ones((N, 2)), index=samples)}
    made = {}
    for kind, source in files.items():
        with warnings.catch_warnings(), patch.object(StackedRows, "__getitem__", dense_of(kind)):
            warnings.simplefilter("ignore")
            made[kind] = write_dataset(
                tmp_path / kind,
                {"x": source} | beside,
                {"x": likelihood, "y": "gaussian"},
                layout={"x": "sparse"},
                join=join,
                block_rows=32,
            )
    found, wanted = made["entries"], made["dense"]
    assert found.fingerprint == wanted.fingerprint
    np.testing.assert_array_equal(found.values("x"), wanted.values("x"))
    assert np.isnan(found.values("x")[-9:]).all()
    for name, moment in wanted.moments("x", "n_observed", "mean", "variance", "min", "max").items():
        np.testing.assert_allclose(found.moments("x", name)[name], moment, rtol=1e-12, err_msg=name)
    first, second = (
        {k: v for k, v in asdict(d.manifest.views[0]).items() if k != "read_as"} for d in made.values()
    )
    assert first == second
    if likelihood == "poisson":
        logs = [
            add_view(data.path, "log", of="x", transform="log1p", max_value=2.0) for data in (found, wanted)
        ]
        np.testing.assert_allclose(*(data.values("log") for data in logs), rtol=1e-6)
        assert (
            logs[0].manifest.views[-1].n_patterns
            == logs[0].manifest.views[0].n_patterns
            == 2 * (join == "outer")
        )


def dense_of(kind: str) -> Any:
    """Return how rows of files are read dense; of files by their entries not at all."""
    read = StackedRows.__getitem__
    return read if kind == "dense" else lambda self, rows: pytest.fail("dense")


def test_layouts_of_older_stores(tmp_path: Path) -> None:
    """Manifests of before there were layouts are those of dense views."""
    dataset: Dataset = write_dataset(tmp_path / "d", {"x": counts()}, layout={"x": "dense"})
    entry: Any = dataset.manifest.views[0]
    record = {name: value for name, value in asdict(entry).items() if name not in ("layout", "block_entries")}
    assert from_record(type(entry), record) == replace(entry, layout="dense", block_entries=0)
