"""Every kind of source gives the same store."""

from __future__ import annotations

import gzip
import tracemalloc
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr

from factorflow.data import Dataset, DataWarning, write_dataset
from factorflow.data.ingest.sources import Source
from factorflow.data.ingest.text import TextTable
from factorflow.errors import InputError


def assert_holds(dataset: Dataset, name: str, values: np.ndarray) -> None:
    np.testing.assert_array_equal(dataset.values(name), values.astype(np.float32))


@pytest.fixture
def frame(rng: np.random.Generator) -> pd.DataFrame:
    values = rng.standard_normal((40, 3)).astype(np.float32)
    values[2, 1] = np.nan
    return pd.DataFrame(values, index=[f"p{i}" for i in range(40)], columns=["g1", "g2", "g3"])


def lazy(values: np.ndarray) -> object:
    import dask.array as da

    return da.from_array(values, chunks=(7, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda y: y,
        lambda y: y.tolist(),
        lambda y: y.astype(np.float64),
        lambda y: np.ma.masked_invalid(np.nan_to_num(y, nan=np.inf)),
        pd.DataFrame,
        lambda y: pd.DataFrame(y).astype("Float64"),
        lambda y: xr.DataArray(y, dims=("obs", "feature")),
        lambda y: xr.DataArray(y, dims=("obs", "feature")).chunk({"obs": 9}),
        scipy.sparse.csr_matrix,
        scipy.sparse.csc_array,
        scipy.sparse.coo_array,
        lazy,
    ],
)
def test_arrays(tmp_path: Path, frame: pd.DataFrame, make: object) -> None:
    y = frame.to_numpy()
    dataset = write_dataset(tmp_path / "s", {"y": make(y)}, block_rows=16)  # type: ignore[operator]
    assert_holds(dataset, "y", y)
    assert dataset.views["y"].likelihood == "gaussian"


def test_one_call_for_every_array_of_zarr(tmp_path: Path, frame: pd.DataFrame) -> None:
    y = frame.to_numpy()
    array = zarr.create_array(str(tmp_path / "y.zarr"), shape=y.shape, dtype=y.dtype, chunks=(8, 2))
    array[...] = y
    assert_holds(write_dataset(tmp_path / "a", {"y": array}), "y", y)
    assert_holds(write_dataset(tmp_path / "b", {"y": tmp_path / "y.zarr"}), "y", y)
    group = zarr.create_group(
        str(tmp_path / "group.zarr"), attributes={"view_names": ["one"], "likelihoods": ["gaussian"]}
    )
    for key, values in {"Y_one": y, "Yfull_one": y, "obs_age": np.arange(40)}.items():
        group.create_array(key, data=values)
    group.attrs["samples"] = frame.index.tolist()
    dataset = write_dataset(tmp_path / "c", tmp_path / "group.zarr")
    assert list(dataset.views) == ["one"]
    assert dataset.obs["age"].loc["p7"] == 7
    with pytest.raises(InputError, match="use it as it is"):
        write_dataset(tmp_path / "d", tmp_path / "c")


def test_npz_convention(tmp_path: Path, frame: pd.DataFrame) -> None:
    y = frame.to_numpy()
    binary = (y > 0).astype(np.float32)
    np.savez_compressed(
        tmp_path / "data.npz",
        view_names=["rna", "mut"],
        likelihoods=["gaussian", "bernoulli"],
        samples=np.asarray(frame.index, dtype=str),
        features_rna=["a", "b", "c"],
        Y_rna=y,
        Y_mut=binary,
        Yfull_rna=y,
        obs_tissue=["liver"] * 40,
    )
    dataset = write_dataset(tmp_path / "s", tmp_path / "data.npz")
    assert list(dataset.views) == ["rna", "mut"]
    assert dataset.features("rna").tolist() == ["a", "b", "c"]
    assert dataset.obs_names[3] == "p3"
    assert dataset.obs["tissue"].tolist() == ["liver"] * 40
    assert {v.likelihood_from for v in dataset.manifest.views} == {"file"}
    dataset = write_dataset(tmp_path / "s", tmp_path / "data.npz", {"mut": "gaussian"}, overwrite=True)
    assert dataset.views["mut"].likelihood == "gaussian"  # what the user says wins
    np.savez(tmp_path / "plain.npz", first=y, second=binary)
    assert list(write_dataset(tmp_path / "p", tmp_path / "plain.npz").views) == ["first", "second"]


def test_large_npz_member_goes_to_disk(
    tmp_path: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.data.ingest.npz.UNPACKED_BYTES", 100)
    np.savez(tmp_path / "d.npz", y=frame.to_numpy())
    assert_holds(write_dataset(tmp_path / "s", tmp_path / "d.npz"), "y", frame.to_numpy())
    assert not (tmp_path / "s" / "spool").exists()


def test_an_npz_that_declares_more_than_there_is_room_for_is_refused(
    tmp_path: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any of it is unpacked: on the disk, and in memory."""
    np.savez_compressed(tmp_path / "d.npz", y=np.zeros((1000, 100)))
    scipy.sparse.save_npz(tmp_path / "s.npz", scipy.sparse.csr_array(np.ones((50, 10))))

    def unpack(*given: object) -> None:
        raise AssertionError("unpacked")

    monkeypatch.setattr("factorflow.data.ingest.npz._unpack", unpack)
    monkeypatch.setattr("factorflow.data.ingest.npz._load_sparse", unpack)
    monkeypatch.setattr("factorflow.data.ingest.npz._physical_memory", lambda: 1000)
    for name in ("d.npz", "s.npz"):
        with pytest.raises(InputError, match=r"bytes unpacked: expected at most the 1,000 bytes of memory"):
            write_dataset(tmp_path / "o", tmp_path / name)
    monkeypatch.setattr("factorflow.data.ingest.npz.UNPACKED_BYTES", 100)
    usage = SimpleNamespace(free=2000)
    monkeypatch.setattr("factorflow.data.ingest.npz.shutil.disk_usage", lambda _: usage)
    with pytest.raises(
        InputError, match=r"d\.npz = 800,128 bytes unpacked: expected at most the 2,000 bytes free"
    ):
        write_dataset(tmp_path / "o", tmp_path / "d.npz")


@pytest.mark.parametrize("name", ["y.csv", "y.tsv", "y.csv.gz", "y.txt", "y.tsv.bz2", "y.parquet"])
def test_tables(tmp_path: Path, frame: pd.DataFrame, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.data.ingest.tables.PIECE_VALUES", 28)  # seven rows at a time
    monkeypatch.setattr("factorflow.data.ingest.text.BLOCK_BYTES", 300)
    if name.endswith("parquet"):
        frame.to_parquet(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, sep="," if "csv" in name else "\t")
    dataset = write_dataset(tmp_path / "s", {"y": tmp_path / name}, block_rows=16)
    assert_holds(dataset, "y", frame.to_numpy())
    assert dataset.obs_names.tolist() == frame.index.tolist()
    assert dataset.features("y").tolist() == ["g1", "g2", "g3"]
    assert list(write_dataset(tmp_path / "t", tmp_path / name).views) == ["y"]
    assert not (tmp_path / "s" / "spool").exists()


def test_a_table_that_may_have_been_cut_off(tmp_path: Path) -> None:
    whole = tmp_path / "whole.csv"
    whole.write_text("id,a,b\ns1,1.5,2.5\ns2,3.25,4.75\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TextTable(whole)
    cut = tmp_path / "cut.csv"
    cut.write_bytes(whole.read_bytes()[:-2])  # 4.7: a number like any other
    with pytest.warns(DataWarning, match=r"cut\.csv: the last line has no line break.*cut off"):
        TextTable(cut)


def test_other_shapes_of_tables(tmp_path: Path, frame: pd.DataFrame) -> None:
    values = frame.to_numpy()
    (tmp_path / "r.csv").write_text(  # as write.table of R: no header above the names
        "g1,g2,g3\n"
        + "\n".join(
            f"p{i}," + ",".join("NA" if np.isnan(v) else repr(float(v)) for v in row)
            for i, row in enumerate(values)
        )
        + "\n"
    )
    assert_holds(write_dataset(tmp_path / "a", {"y": tmp_path / "r.csv"}), "y", values)
    frame.to_csv(tmp_path / "semicolon.csv", sep=";", encoding="utf-8-sig")
    assert_holds(write_dataset(tmp_path / "b", {"y": tmp_path / "semicolon.csv"}), "y", values)
    frame.reset_index(drop=True).to_csv(tmp_path / "bare.csv", index=False)
    dataset = write_dataset(tmp_path / "c", {"y": tmp_path / "bare.csv"})
    assert_holds(dataset, "y", values)
    assert dataset.obs_names[0] == "sample0"
    assert_holds(write_dataset(tmp_path / "d", {"y": tmp_path / "bare.csv"}, index_col=False), "y", values)
    frame.assign(id=[f"q{i}" for i in range(40)]).to_csv(tmp_path / "id.csv", index=False)
    dataset = write_dataset(tmp_path / "e", {"y": tmp_path / "id.csv"}, index_col="id")
    assert dataset.obs_names[1] == "q1"
    assert_holds(dataset, "y", values)
    frame.reset_index(names="sample").to_parquet(tmp_path / "flat.parquet")
    dataset = write_dataset(tmp_path / "f", {"y": tmp_path / "flat.parquet"})
    assert dataset.obs_names[1] == "p1"
    assert_holds(dataset, "y", values)


def test_samples_are_matched_by_name(tmp_path: Path, frame: pd.DataFrame, rng: np.random.Generator) -> None:
    folder = tmp_path / "views"
    folder.mkdir()
    shuffled = frame.iloc[rng.permutation(40)]
    fewer = frame.iloc[rng.permutation(40)[:25]]
    other = fewer.rename(index={fewer.index[0]: "only here"})
    frame.to_csv(folder / "a.csv")
    shuffled.to_csv(folder / "b.tsv", sep="\t")
    other.to_parquet(folder / "c-d.parquet")
    pd.DataFrame({"age": range(41)}, index=[*frame.index[::-1], "only here"]).to_csv(folder / "obs.csv")
    with gzip.open(folder / "notes.md.gz", "wt") as stream:
        stream.write("no table")
    with pytest.warns(DataWarning, match="'c_d'"):
        dataset = write_dataset(tmp_path / "s", folder, block_rows=8)
    assert list(dataset.views) == ["a", "b", "c_d"]
    assert dataset.obs_names.tolist() == [*frame.index, "only here"]
    union = frame.reindex(dataset.obs_names)
    assert_holds(dataset, "a", union.to_numpy())
    assert_holds(dataset, "b", union.to_numpy())
    assert_holds(dataset, "c_d", other.reindex(dataset.obs_names).to_numpy())
    assert dataset.obs["age"].loc["p0"] == 39
    facts = {v["name"]: v["n_missing_samples"] for v in dataset.describe()["views"]}
    assert facts == {"a": 1, "b": 1, "c_d": 16}


def test_names_given_for_arrays(tmp_path: Path, frame: pd.DataFrame) -> None:
    y = frame.to_numpy()
    backwards = frame.index[::-1].tolist()
    dataset = write_dataset(
        tmp_path / "s", {"a": y, "b": y[:10]}, samples={"a": backwards, "b": frame.index[:10].tolist()}
    )
    assert dataset.obs_names.tolist() == backwards
    assert_holds(dataset, "a", y)
    np.testing.assert_array_equal(dataset.values("b")[-10:], y[:10][::-1])
    dataset = write_dataset(tmp_path / "t", {"a": frame, "b": y}, samples=backwards)
    assert_holds(dataset, "a", y[::-1])  # named rows follow the order that was given, others have it already
    assert_holds(dataset, "b", y)
    with pytest.raises(InputError, match="samples of view 'b' = 40 rows without names.*'a' has them"):
        write_dataset(tmp_path / "u", {"a": frame, "b": y})


def test_xarray_dataset(tmp_path: Path, frame: pd.DataFrame) -> None:
    y = frame.to_numpy()
    source = xr.Dataset(
        {"rna": (("patient", "gene"), y, {"likelihood": "gaussian"}), "mut": (("patient", "site"), y > 0)},
        coords={"patient": frame.index, "gene": ["a", "b", "c"], "age": ("patient", np.arange(40) // 2)},
    )
    source.to_zarr(tmp_path / "x.zarr", zarr_format=2)
    lazily = xr.open_dataset(tmp_path / "x.zarr", engine="zarr")
    for number, given in enumerate([source, xr.open_zarr(tmp_path / "x.zarr"), lazily]):
        dataset = write_dataset(tmp_path / str(number), given, groups="age")
        assert_holds(dataset, "rna", y)
        assert dataset.views["mut"].likelihood == "bernoulli"
        assert dataset.obs_names[2] == "p2"
        assert dataset.features("rna").tolist() == ["a", "b", "c"]
        assert len(dataset.groups) == 20


def test_xarray_dataset_with_dimensions_in_any_order(tmp_path: Path) -> None:
    """Without names of samples nothing else tells how a square variable lies."""
    rng = np.random.default_rng(0)
    y, z = rng.normal(size=(40, 5)), rng.normal(size=(40, 40))
    source = xr.Dataset({"z": (("site", "patient"), z.T), "y": (("patient", "gene"), y)})
    dataset = write_dataset(tmp_path / "first", source)
    assert_holds(dataset, "z", z)
    assert_holds(dataset, "y", y)
    both = xr.Dataset({"y": (("patient", "gene"), y), "w": (("gene", "patient"), -y.T)})
    assert_holds(write_dataset(tmp_path / "both", both), "w", -y)
    apart = xr.Dataset({"y": (("patient", "gene"), y), "w": (("case", "gene"), -y)})
    assert_holds(write_dataset(tmp_path / "apart", apart), "w", -y)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")  # AnnData and MuData warn of their own future
def test_anndata_and_mudata(tmp_path: Path, frame: pd.DataFrame, rng: np.random.Generator) -> None:
    anndata, mudata = pytest.importorskip("anndata"), pytest.importorskip("mudata")
    counts = rng.poisson(0.2, (40, 6)).astype(np.float32)
    one = anndata.AnnData(frame.to_numpy(), obs=pd.DataFrame({"age": range(40)}, index=frame.index))
    kinds = {"dense": counts, "csr": scipy.sparse.csr_matrix(counts), "csc": scipy.sparse.csc_matrix(counts)}
    for kind, matrix in kinds.items():
        data = anndata.AnnData(matrix, obs=pd.DataFrame({"batch": ["a", "b"] * 20}, index=frame.index))
        data.write_h5ad(tmp_path / f"{kind}.h5ad")
        dataset = write_dataset(tmp_path / kind, tmp_path / f"{kind}.h5ad", groups="batch", block_rows=16)
        assert_holds(dataset, kind, counts)
        assert dataset.groups == ("a", "b")
        data.write_h5ad(tmp_path / f"{kind}.h5ad")  # the file was closed
    both = {"rna-seq": one, "counts": data[:30].copy()}
    one.var_names = ["g1", "g2", "g3"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MuData announces changes of its own defaults
        mudata.MuData(both).write_h5mu(tmp_path / "m.h5mu")
    with pytest.warns(DataWarning, match="rna_seq"):
        dataset = write_dataset(tmp_path / "m", tmp_path / "m.h5mu")
    assert_holds(dataset, "rna_seq", frame.to_numpy())
    np.testing.assert_array_equal(dataset.values("counts")[:30], counts[:30])
    assert np.isnan(dataset.values("counts")[30:]).all()
    dataset = write_dataset(tmp_path / "n", {"a": one, "b": tmp_path / "csr.h5ad"})
    assert_holds(dataset, "a", frame.to_numpy())


def test_likelihoods_are_guessed(tmp_path: Path, rng: np.random.Generator) -> None:
    some = rng.random((50, 3))
    signs = np.sign(some - 0.5)
    signs[0, 0] = np.nan
    dataset = write_dataset(
        tmp_path / "s",
        {
            "real": some - 0.5,
            "binary": some > 0.5,
            "signs": signs,
            "counts": (10 * some).astype(int),
            "negative": (10 * some).astype(int) - 5,
        },
    )
    assert {name: view.likelihood for name, view in dataset.views.items()} == {
        "real": "gaussian",
        "binary": "bernoulli",
        "signs": "bernoulli",
        "counts": "poisson",
        "negative": "gaussian",
    }
    assert dataset.describe()["views"][2]["recoded"] == {"-1": 0}
    np.testing.assert_array_equal(dataset.values("signs"), np.where(np.isnan(signs), -1, signs > 0))


@pytest.mark.thorough
def test_memory_mapped_source_larger_than_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "big.npy"
    big = np.lib.format.open_memmap(path, "w+", np.float32, (60000, 250))  # 60 MB
    for start in range(0, 60000, 5000):
        big[start : start + 5000] = np.random.default_rng(start).standard_normal((5000, 250))
    big.flush()
    write_dataset(tmp_path / "warm", {"y": np.ones((2, 2)) * [[1], [0.5]]})
    tracemalloc.start()
    dataset = write_dataset(tmp_path / "s", path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 45e6, f"{peak / 1e6:.0f} MB for blocks of 4 MB"
    assert_holds(dataset, "big", np.asarray(big))


@pytest.mark.thorough
def test_text_table_in_pieces(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a file Arrow reads up to 32 blocks ahead.
    monkeypatch.setattr("factorflow.data.ingest.text.BLOCK_BYTES", 2**17)
    frame = pd.DataFrame(
        rng.standard_normal((8000, 200)).astype(np.float32), index=[f"s{i}" for i in range(8000)]
    )
    frame.to_csv(tmp_path / "big.csv")
    write_dataset(tmp_path / "warm", {"y": np.ones((2, 2)) * [[1], [0.5]]})
    tracemalloc.start()
    dataset = write_dataset(tmp_path / "s", tmp_path / "big.csv", block_rows=128)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 14e6, f"{peak / 1e6:.0f} MB for a text of 16 MB"
    assert_holds(dataset, "big", frame.to_numpy())


def test_moments_do_not_depend_on_the_chunks_of_a_source(tmp_path: Path, rng: np.random.Generator) -> None:
    import dask.array as da

    y = rng.standard_normal((500, 6)) * 1e4
    sources = [
        y,
        da.from_array(y, chunks=(13, 6)),
        da.from_array(y, chunks=(500, 1)),
        scipy.sparse.csr_array(y),
    ]
    made = [write_dataset(tmp_path / str(i), {"y": source}) for i, source in enumerate(sources)]
    for dataset in made[1:]:
        assert dataset.fingerprint == made[0].fingerprint
        for name, values in dataset.moments("y").items():
            assert values.tobytes() == made[0].moments("y")[name].tobytes()


DATA = ["breast_tcga", "uci_multifeature", "nci60_multidrug", "hmp_diverse16s", "pbmc68k_reduced"]


@pytest.mark.data
@pytest.mark.parametrize("name", DATA)
def test_real_files(tmp_path: Path, data_folder: Path, name: str) -> None:
    file = data_folder / "views" / f"{name}.npz"
    dataset = write_dataset(tmp_path / "s", file)
    with np.load(file) as source:
        assert list(dataset.views) == source["view_names"].tolist()
        assert dataset.obs_names.tolist() == source["samples"].tolist()
        for view, likelihood in zip(
            source["view_names"].tolist(), source["likelihoods"].tolist(), strict=True
        ):
            assert dataset.views[view].likelihood == likelihood
            held = dataset.values(view)
            wanted = source[f"Y_{view}"]
            if likelihood == "bernoulli":
                wanted = np.where(np.isnan(wanted), -1, wanted).astype(np.int8)
            np.testing.assert_array_equal(held, wanted)


@pytest.mark.data
def test_real_binary_table(tmp_path: Path, data_folder: Path) -> None:
    dataset = write_dataset(tmp_path / "s", data_folder / "binary" / "spect.csv")
    assert dataset.features("spect")[0] == "overall_diagnosis"  # numbers are no names of samples
    assert dataset.views["spect"].likelihood == "bernoulli"
    assert (dataset.n_rows, dataset.views["spect"].n_features) == (267, 23)
    other = write_dataset(tmp_path / "t", data_folder / "binary" / "spect.npz")
    np.testing.assert_array_equal(dataset.values("spect"), other.values("data"))


def test_rows_that_a_source_does_not_have() -> None:
    """Numbers are NaN there, labels None."""
    numbers = Source(np.arange(6.0).reshape(3, 2)).take(np.array([2, -1, 0]))
    np.testing.assert_array_equal(numbers, np.array([[4.0, 5.0], [np.nan, np.nan], [0.0, 1.0]], "float32"))
    labels = Source(np.array([["a"], ["b"], ["c"]], dtype=object), dtype="object").take(np.array([-1, 1, -1]))
    assert labels.tolist() == [[None], ["b"], [None]]
    assert Source(np.zeros((3, 2))).take(np.array([-1, -1])).shape == (2, 2)


def test_arrays_of_a_group_are_views_by_their_names(tmp_path: Path) -> None:
    """Of a Zarr store that nobody but its author knows: no `view_names`, no dimensions of xarray."""
    group = zarr.open_group(str(tmp_path / "plain.zarr"), mode="w")
    rng = np.random.default_rng(0)
    for name, columns in (("rna", 4), ("atac", 3)):
        values = rng.standard_normal((20, columns))
        group.create_array(name, shape=values.shape, dtype=values.dtype)[:] = values
    dataset = write_dataset(tmp_path / "d", tmp_path / "plain.zarr")
    assert {name: view.n_features for name, view in dataset.views.items()} == {"rna": 4, "atac": 3}
    np.testing.assert_allclose(dataset.values("rna"), np.asarray(group["rna"]), rtol=1e-6)


def test_two_tables_of_metadata_in_a_folder(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.eye(3) + 0.5, index=list("abc"), columns=list("xyz"))
    for name in ("rna", "obs", "Metadata"):
        frame.to_csv(tmp_path / f"{name}.csv")
    with pytest.raises(InputError, match="Metadata.csv and obs.csv: expected one table"):
        write_dataset(tmp_path / "d", tmp_path)
