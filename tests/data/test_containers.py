"""Files of xarray, AnnData and MuData are read as their own libraries read them."""

from __future__ import annotations

import shutil
import tracemalloc
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

from factorflow import write_dataset
from factorflow.data import DataWarning
from factorflow.errors import InputError

pytestmark = pytest.mark.filterwarnings("default:::anndata", "default:::mudata", "default:::zarr")


@pytest.fixture
def labelled() -> xr.Dataset:
    values = np.round(np.random.default_rng(0).normal(size=(30, 6)), 2)
    values[3, 2] = np.nan
    return xr.Dataset(
        {"x": (("obs", "gene"), values), "batch": ("obs", ["a", "b"] * 15)},
        coords={
            "obs": [f"c{i}" for i in range(30)],
            "gene": [f"g{j}" for j in range(6)],
            "age": ("obs", np.arange(30.0)),
        },
    )


PACKED = {"x": {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999}}


def assert_is_labelled(dataset: Any, labelled: xr.Dataset, columns: bool = True) -> None:
    (view,) = dataset.views
    np.testing.assert_allclose(dataset.values(view), labelled["x"], atol=1e-6)
    assert dataset.obs_names.tolist() == labelled["obs"].values.tolist()
    assert dataset.features(view).tolist() == labelled["gene"].values.tolist()
    if columns:
        assert dataset.obs["age"].tolist() == labelled["age"].values.tolist()
        assert dataset.obs["batch"].tolist() == labelled["batch"].values.tolist()


@pytest.mark.parametrize("encoding", [{}, PACKED, {"x": {"dtype": "int16", "_FillValue": -9999}}])
@pytest.mark.parametrize("version", [2, 3])
def test_a_zarr_store_of_xarray(tmp_path: Path, labelled: xr.Dataset, version: Any, encoding: Any) -> None:
    if encoding and encoding is not PACKED:
        labelled["x"] = np.round(labelled["x"])
    path = tmp_path / "x.zarr"
    labelled.to_zarr(path, encoding=encoding, zarr_format=version, consolidated=False)
    shutil.make_archive(str(path), "zip", path)
    shutil.make_archive(str(tmp_path / "nested.zarr"), "zip", tmp_path, "x.zarr")
    opened = xr.open_zarr(path, consolidated=False)
    sources = [path, opened, tmp_path / "x.zarr.zip", tmp_path / "nested.zarr.zip"]
    for number, source in enumerate(sources):
        assert_is_labelled(write_dataset(tmp_path / f"a{number}", source), labelled)
    arrays = [path / "x", zarr.open_group(path, mode="r")["x"], opened["x"]]
    for number, array in enumerate(arrays):
        dataset = write_dataset(tmp_path / f"b{number}", {"x": array})
        assert_is_labelled(dataset, labelled, columns=False)


def test_packed_values_without_their_names_are_refused(tmp_path: Path, labelled: xr.Dataset) -> None:
    labelled.to_zarr(tmp_path / "x.zarr", encoding=PACKED)
    alone = zarr.open_array(tmp_path / "x.zarr" / "x", mode="r")
    raw = xr.open_zarr(tmp_path / "x.zarr", mask_and_scale=False)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.ones((4, 2), "int16")
        file["x"].attrs["missing_value"] = -1
        for source, what in (
            (alone, "scale_factor"),
            (raw["x"], "scale_factor"),
            (file["x"], "missing_value"),
        ):
            with pytest.raises(InputError, match=rf"view 'x' = values that are packed, with .*{what}"):
                write_dataset(tmp_path / "s", {"x": source})
    labelled.to_zarr(tmp_path / "plain.zarr")
    plain = zarr.open_array(tmp_path / "plain.zarr" / "x", mode="r")  # its fill value is NaN
    assert write_dataset(tmp_path / "s", {"x": plain}).n_rows == 30


def test_netcdf(tmp_path: Path, labelled: xr.Dataset) -> None:
    labelled = labelled.drop_vars("batch").assign(batch=labelled["batch"])
    for number, (form, engine) in enumerate([("NETCDF3_64BIT", "scipy"), ("NETCDF4", "h5netcdf")]):
        if engine == "h5netcdf":
            pytest.importorskip("h5netcdf")
        path = tmp_path / f"x{number}.nc"
        labelled.to_netcdf(path, engine=engine, format=form, encoding=PACKED)  # type: ignore[call-overload]
        assert_is_labelled(write_dataset(tmp_path / f"s{number}", path), labelled)
    (tmp_path / "broken.nc").write_bytes(b"no file of this kind")
    with pytest.raises(InputError, match=r"broken\.nc.*h5netcdf"):
        write_dataset(tmp_path / "s", tmp_path / "broken.nc")


def test_samples_of_xarray_that_are_dates(tmp_path: Path) -> None:
    days = xr.Dataset(
        {
            "y": (("time", "gene"), np.eye(6) + 0.5),
            "day": ("time", list("abcabc")),
            "length": ("gene", np.ones(6)),
        },
        {"time": pd.date_range("2020-01-01", periods=6)},
    )
    with pytest.warns(DataWarning, match="left out: 'length', neither samples x features nor along 'time'"):
        dataset = write_dataset(tmp_path / "s", days)
    assert dataset.obs_names[0] == "2020-01-01"
    assert dataset.obs["day"].tolist() == list("abcabc")


def modality(first: int, last: int, d: int) -> Any:
    anndata = pytest.importorskip("anndata")
    made = anndata.AnnData(np.random.default_rng(d).normal(size=(last - first, d)).astype("float32"))
    made.obs_names = [f"c{i}" for i in range(first, last)]
    made.var_names = [f"v{d}_{j}" for j in range(d)]
    made.obs["age"] = np.arange(first, last)
    made.obs["batch"] = pd.Categorical([f"b{i % 2}" for i in range(first, last)])
    return made


@pytest.mark.parametrize("stored", [False, True])
def test_metadata_of_several_views_of_other_samples(tmp_path: Path, stored: bool) -> None:
    rna, prot = modality(0, 20, 6), modality(10, 30, 4)
    prot.obs["plate"] = "p1"
    views: Any = {"rna": rna, "prot": prot}
    if stored:
        (tmp_path / "views").mkdir()
        for name, data in views.items():
            data.write_h5ad(tmp_path / "views" / f"{name}.h5ad")
        views = tmp_path / "views"
    dataset = write_dataset(tmp_path / "s", views, groups="batch")
    obs = dataset.obs
    assert sorted(obs.columns.drop("group")) == ["age", "batch", "plate"]
    assert {name: obs["age"].loc[name] for name in obs.index} == {f"c{i}": i for i in range(30)}
    assert (obs["plate"] == "p1").sum() == 20
    assert sorted(dataset.groups) == ["b0", "b1"]


def test_metadata_that_disagree(tmp_path: Path) -> None:
    rna, prot = modality(0, 20, 6), modality(10, 30, 4)
    prot.obs["age"] += 1
    with pytest.warns(DataWarning, match=r"disagree in 'age' \(sample 'c10': 10 and 11\)"):
        dataset = write_dataset(tmp_path / "s", {"rna": rna, "prot": prot})
    assert sorted(dataset.obs.columns) == ["batch", "prot:age", "rna:age"]
    assert dataset.obs["rna:age"].loc["c10"] == 10
    assert dataset.obs["prot:age"].loc["c10"] == 11


@pytest.mark.parametrize("form", ["object", "h5mu", "zarr"])
@pytest.mark.parametrize("pull", [False, True])
def test_metadata_of_modalities(tmp_path: Path, form: str, pull: bool) -> None:
    mudata = pytest.importorskip("mudata")
    with warnings.catch_warnings(), mudata.set_options(pull_on_update=pull):
        warnings.simplefilter("ignore")  # MuData announces changes of its own defaults
        data = mudata.MuData({"rna": modality(0, 30, 6), "prot": modality(10, 30, 4)})
        data.obs["site"] = ["x", "y"] * 15
        source: Any = data
        if form != "object":
            source = tmp_path / f"m.{form}"
            (data.write_h5mu if form == "h5mu" else data.write_zarr)(source)
    assert list(data.mod) == ["rna", "prot"]
    for column in ("batch", "rna:batch"):
        dataset = write_dataset(tmp_path / "s", source, groups=column, overwrite=True)
        assert dataset.groups == ("b0", "b1")
    assert list(dataset.views) == ["rna", "prot"]
    assert dataset.features("prot").tolist() == [f"v4_{j}" for j in range(4)]
    assert dataset.obs["age"].tolist() == list(range(30))
    assert dataset.obs["site"].tolist() == ["x", "y"] * 15
    np.testing.assert_array_equal(dataset.values("prot")[10:], modality(10, 30, 4).X)
    one = write_dataset(tmp_path / "one", {"prot": source})  # by its name, as of a file
    np.testing.assert_array_equal(one.values("prot"), modality(10, 30, 4).X)


def test_modalities_that_share_features(tmp_path: Path) -> None:
    mudata = pytest.importorskip("mudata")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = mudata.MuData({"a": modality(0, 10, 6), "b": modality(10, 30, 6)}, axis=1)
    with pytest.raises(InputError, match="axis=1"):
        write_dataset(tmp_path / "s", data)


@pytest.fixture
def cells() -> Any:
    anndata = pytest.importorskip("anndata")
    rng = np.random.default_rng(0)
    counts = sp.csr_matrix(rng.poisson(0.4, (40, 8)).astype("float32"))
    made = anndata.AnnData(counts, obs=pd.DataFrame({"age": range(40)}, index=[f"c{i}" for i in range(40)]))
    made.var_names = [f"g{j}" for j in range(8)]
    made.raw = made.copy()
    made = made[:, 2:].copy()
    made.X = np.log1p(made.X.toarray())
    made.layers["counts"] = counts[:, 2:].tocsc()
    made.var["highly_variable"] = [True, False, True, False, False, False]
    return made


@pytest.mark.parametrize("form", ["object", "h5ad", "zarr", "zarr.zip", "backed"])
def test_layers_and_raw_values(tmp_path: Path, cells: Any, form: str) -> None:
    source: Any = cells if form == "object" else tmp_path / f"rna.{form}"
    if form == "h5ad":
        cells.write_h5ad(source)
    elif form == "backed":
        import anndata

        cells.write_h5ad(tmp_path / "rna.h5ad")
        source = anndata.read_h5ad(tmp_path / "rna.h5ad", backed="r")
    elif form != "object":
        cells.write_zarr(tmp_path / "rna.zarr")
        shutil.make_archive(str(tmp_path / "rna.zarr"), "zip", tmp_path / "rna.zarr")
    raw = cells.raw.X.toarray()
    for number, (options, values, names) in enumerate(
        [
            ({}, cells.X, cells.var_names),
            ({"layer": "counts"}, raw[:, 2:], cells.var_names),
            ({"layer": {"rna": "counts"}}, raw[:, 2:], cells.var_names),
            ({"layer": "raw"}, raw, cells.raw.var_names),
            ({"layer": "raw", "highly_variable": True}, raw[:, [2, 4]], ["g2", "g4"]),
            ({"highly_variable": "rna"}, cells.X[:, [0, 2]], ["g2", "g4"]),
        ]
    ):
        dataset = write_dataset(tmp_path / str(number), {"rna": source}, **options)
        np.testing.assert_array_equal(dataset.values("rna"), values)
        assert dataset.features("rna").tolist() == list(names)
        assert dataset.obs["age"].tolist() == list(range(40))


def test_highly_variable_features_of_one_view(tmp_path: Path, cells: Any) -> None:
    prot = modality(0, 40, 5)
    views = {"rna": cells, "prot": prot}
    with pytest.warns(DataWarning, match="all features are taken of 'prot'"):
        dataset = write_dataset(tmp_path / "a", views, highly_variable=True)
    assert {name: view.n_features for name, view in dataset.views.items()} == {"rna": 2, "prot": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        dataset = write_dataset(tmp_path / "b", views, highly_variable=["rna"])
    assert {name: view.n_features for name, view in dataset.views.items()} == {"rna": 2, "prot": 5}
    with pytest.raises(InputError, match="features of 'prot' that are marked"):
        write_dataset(tmp_path / "c", views, highly_variable="prot")
    with pytest.raises(InputError, match=r"highly_variable = atac: expected views of AnnData.*rna, prot"):
        write_dataset(tmp_path / "c", views, highly_variable="atac")
    with pytest.raises(InputError, match=r"layer = atac: expected views of AnnData"):
        write_dataset(tmp_path / "c", views, layer={"atac": "counts"})
    with pytest.raises(InputError, match="a layer of 'prot' .there are none"):
        write_dataset(tmp_path / "c", views, layer="counts")


def test_marks_that_are_text(tmp_path: Path, cells: Any) -> None:
    cells.var["highly_variable"] = cells.var["highly_variable"].astype(str)
    assert write_dataset(tmp_path / "a", cells, highly_variable=True).views["X"].n_features == 2
    cells.var["highly_variable"] = ["yes", *["no"] * 5]
    with pytest.raises(InputError, match=r"highly_variable.*= yes: expected True or False"):
        write_dataset(tmp_path / "b", cells, highly_variable=True)


def test_raw_values_and_a_layer_of_that_name(tmp_path: Path, cells: Any) -> None:
    cells.layers["raw"] = cells.X
    with pytest.raises(InputError, match="rename the layer"):
        write_dataset(tmp_path / "a", cells, layer="raw")
    del cells.raw
    np.testing.assert_array_equal(write_dataset(tmp_path / "a", cells, layer="raw").values("X"), cells.X)


@pytest.mark.thorough
def test_layers_of_files_stay_on_disk(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    rng = np.random.default_rng(0)
    counts = sp.random(40_000, 200, 0.25, format="csr", dtype=np.float32, rng=rng)  # 16 MB
    anndata.AnnData(sp.csr_matrix(counts.shape, dtype="f4"), layers={"c": counts}).write_h5ad(
        tmp_path / "a.h5ad"
    )
    write_dataset(tmp_path / "warm", {"y": np.ones((2, 2)) * [[1], [0.5]]})
    tracemalloc.start()
    dataset = write_dataset(
        tmp_path / "s", tmp_path / "a.h5ad", {"a": "gaussian"}, layer="c", block_rows=1024
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 14e6, f"{peak / 1e6:.0f} MB for blocks of 0.8 MB"  # names of the cells included
    np.testing.assert_array_equal(dataset.values("a", 500, 600), counts[500:600].toarray())


def complex_views() -> dict[str, Any]:
    values = np.ones((4, 2)) * (1 + 2j)
    import dask.array as da

    return {
        "array": values,
        "list": values.tolist(),
        "frame": pd.DataFrame(values),
        "one column": pd.DataFrame({"a": [1.0] * 4, "b": values[:, 0]}),
        "sparse": sp.csr_array(values),
        "dask": da.from_array(values),
        "misled dask": da.from_array(np.ones((4, 2))).map_blocks(lambda x: x * 1j, dtype=float),
        "xarray": xr.DataArray(values, dims=("obs", "feature")),
        "masked": np.ma.masked_invalid(values),
    }


@pytest.mark.parametrize("name", complex_views())
def test_complex_numbers_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"complex|numeric columns"):
        write_dataset(tmp_path / "s", {"x": complex_views()[name]})


def test_complex_numbers_of_annotated_data_are_refused(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    data = anndata.AnnData(np.ones((4, 2)) * (1 + 2j))
    with pytest.raises(InputError, match="complex"):
        write_dataset(tmp_path / "s", data)
    with pytest.raises(InputError, match="complex"):
        write_dataset(
            tmp_path / "s", {"x": np.ones((4, 2)), "dose": np.ones(4) * 1j}, inputs={"dose": "covariate"}
        )


def test_complex_metadata_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="columns of obs 'phase' = complex numbers"):
        write_dataset(tmp_path / "s", {"x": np.ones((4, 2))}, obs={"phase": np.ones(4) * 1j})


def test_objects_that_are_numbers_are_numbers(tmp_path: Path) -> None:
    """As frames and lists give them, with gaps; of text the place is named."""
    values = np.random.default_rng(0).standard_normal((40, 3))
    values[[2, 5], [0, 2]] = np.nan
    objects = values.astype(object)
    objects[2, 0], objects[0, 0], objects[1, 1] = None, Decimal(2), True
    expected = values.copy()
    expected[0, 0], expected[1, 1] = 2.0, 1.0
    given = {
        "array": objects,
        "list": objects.tolist(),
        "masked": np.ma.masked_array(np.where(objects == 2, "x", objects), mask=objects == 2),
        "xarray": xr.DataArray(objects, dims=("obs", "gene")),
    }
    for name, view in given.items():
        found = write_dataset(tmp_path / name, {"y": view}).values("y", 0, 40)
        wanted = np.where(expected == 2, np.nan, expected) if name == "masked" else expected
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    objects[7, 2] = "high"
    with pytest.raises(InputError, match="view 'y' = 'high' in row 7 of column 2: expected numbers, or None"):
        write_dataset(tmp_path / "d", {"y": objects})
    objects[7, 2] = 10**400
    with pytest.raises(InputError, match=r"view 'y' = 10+\.\.\.0+ in row 7 of column 2"):
        write_dataset(tmp_path / "d", {"y": objects})
    coded = np.array(["a", "b", None, "a"] * 10, dtype=object)
    made = write_dataset(tmp_path / "e", {"y": values, "site": coded}, inputs={"site": "categorical"})
    assert made.features("site").tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("key", "samples 0 to 39 = KeyError: 'depth': expected values that can be read. It is an error of a"),
        ("shape", "samples 0 to 39 = rows 0 to 9 are computed as an array of 9 x 3: .* of the Dask array"),
        ("file", r"file /data/plate7\.h5 = "),
    ],
)
def test_errors_of_tasks_are_no_damaged_files(tmp_path: Path, task: str, said: str) -> None:
    import dask.array as da

    def work(block: Any) -> Any:
        if task == "file":
            raise FileNotFoundError(2, "No such file", "/data/plate7.h5")
        return {}["depth"] if task == "key" else block[:-1]

    lazy = da.from_array(np.ones((40, 3)), chunks=(10, 3)).map_blocks(work, meta=np.empty((0, 0)))
    with pytest.raises(InputError, match=said):
        write_dataset(tmp_path / "d", {"y": lazy})


def test_a_dask_array_that_a_cluster_holds(tmp_path: Path) -> None:
    """As `persist` leaves it: its values are on the workers."""
    import dask.array as da
    from distributed import Client, LocalCluster

    values = np.random.default_rng(0).standard_normal((40, 3))
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        held = client.persist(da.from_array(values, chunks=(15, 3)) * 2)
        made = write_dataset(tmp_path / "d", {"y": held, "z": held + 1})
        np.testing.assert_allclose(made.values("y", 0, 40), 2 * values, rtol=1e-6)
        np.testing.assert_allclose(made.values("z", 0, 40), 2 * values + 1, rtol=1e-6)
