"""View kinds decide how entries are held, stored and refused; categorical and covariate views end to end."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from factorflow.core.block import Meta
from factorflow.core.kinds import INPUTS, KINDS, VALUES, kind_of
from factorflow.data import Dataset, DataWarning, Holdout, ViewMeta, write_dataset
from factorflow.errors import InputError
from factorflow.models import configure

N = 60
SITES = np.array(["north", "south", "east"])


@pytest.fixture
def y(rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(2.0, (N, 1)).astype(float)


def codes(dataset: Dataset, view: str) -> np.ndarray:
    return np.concatenate([dataset.block(i).data[view] for i in range(dataset.n_blocks)])


def written(folder: Path, y: np.ndarray, samples: list[str] | None = None, **given: object) -> Dataset:
    """A dataset with counts and inputs; what is given once is categorical, except effort."""
    kinds = {name: "covariate" if name == "effort" else "categorical" for name in given}
    views = {"y": y, **given}
    return write_dataset(folder, views, inputs=kinds, samples=samples, block_rows=16, overwrite=True)


def test_table_of_kinds() -> None:
    assert VALUES == ("gaussian", "bernoulli", "poisson")
    assert INPUTS == ("categorical", "covariate")
    held = {name: (kind.dtype, kind.entry_bytes, kind.row_bytes(7)) for name, kind in KINDS.items()}
    assert held == {
        "gaussian": ("float32", 4, 28),
        "bernoulli": ("int8", 1, 7),
        "poisson": ("float32", 4, 28),
        "categorical": ("int32", 4, 4),
        "covariate": ("float64", 8, 56),
    }
    for name, kind in KINDS.items():
        assert ViewMeta("v", name, 7, "none").kind is kind
        assert pickle.loads(pickle.dumps(kind)) is kind
        blank = kind.blank(3, 7)
        assert blank.shape == ((3,) if name == "categorical" else (3, 7))
        assert blank.dtype == kind.dtype
        assert not kind.observed(blank).any()
        assert kind.observed(np.zeros_like(blank)).all()
        assert kind_of("v", name) is kind
    with pytest.raises(InputError, match="likelihood of view 'v' = normal: expected one of gaussian"):
        kind_of("v", "normal")


@pytest.mark.parametrize(
    ("largest", "dtype"), [(0, "uint8"), (255, "uint8"), (256, "uint16"), (65536, "uint32")]
)
def test_smallest_type_of_counts(largest: int, dtype: str) -> None:
    assert KINDS["poisson"].storage_dtype(largest) == dtype
    with pytest.raises(ValueError, match="largest"):
        KINDS["poisson"].storage_dtype()


@pytest.mark.parametrize(
    ("largest", "dtype"), [(0, "int8"), (127, "int8"), (128, "int16"), (32767, "int16"), (32768, "int32")]
)
def test_smallest_type_of_codes(largest: int, dtype: str) -> None:
    assert KINDS["categorical"].storage_dtype(largest) == dtype
    with pytest.raises(ValueError, match="largest"):
        KINDS["categorical"].storage_dtype()


@pytest.mark.parametrize("name", ["gaussian", "poisson", "covariate", "bernoulli"])
def test_misfits(name: str) -> None:
    kind = KINDS[name]
    bad = {"gaussian": [], "covariate": [], "poisson": [0.5, -1.0, 2.0**32], "bernoulli": [2.0, 0.5]}[name]
    good = {"poisson": [2.0**32 - 1], "bernoulli": [-1.0]}.get(name, [0.5, -1.0])
    assert kind.invalid(np.array([[0.0, 1.0, np.nan, *good]])) is None
    for value in [*bad, np.inf, -np.inf]:
        found = kind.invalid(np.array([[0.0, value, np.nan]]))
        assert found is not None
        assert found.tolist() == [[False, True, False]]


def test_inputs_round_trip(tmp_path: Path, y: np.ndarray, rng: np.random.Generator) -> None:
    site = rng.integers(0, 3, N)
    labels = SITES[site].astype(object)
    labels[[3, 17]] = None, np.nan
    effort = rng.standard_normal((N, 2)) * 1e-9 + 1.0  # float64 is kept
    effort[5, 1] = np.nan
    dataset = written(tmp_path / "s", y, site=labels, effort=effort)
    assert dataset.features("site").tolist() == ["east", "north", "south"]
    view, covariate = dataset.views["site"], dataset.views["effort"]
    assert (view.likelihood, view.n_features, view.missing) == ("categorical", 3, "samples")
    assert (covariate.likelihood, covariate.n_features, covariate.missing) == ("covariate", 2, "scattered")
    block = dataset.block(0)
    assert block.data["site"].dtype == np.int32
    assert block.data["site"].shape == (16,)
    assert block.data["effort"].dtype == np.float64
    assert not block.data["site"].flags.writeable
    wanted = np.array([1, 2, 0])[site]  # north 1, south 2, east 0
    wanted[[3, 17]] = -1
    np.testing.assert_array_equal(codes(dataset, "site"), wanted)
    np.testing.assert_array_equal(dataset.values("site", 10, 40), wanted[10:40])
    np.testing.assert_array_equal(dataset.values("effort"), effort)
    counts = np.bincount(wanted[wanted >= 0], minlength=3)
    assert set(dataset.moments("site")) == {"n_observed"}
    with pytest.raises(InputError, match="names = mean, zz: expected moments of view 'site': n_observed"):
        dataset.moments("site", "n_observed", "mean", "zz")
    np.testing.assert_array_equal(dataset.moments("site")["n_observed"], counts)
    np.testing.assert_allclose(dataset.moments("effort")["mean"], np.nanmean(effort, axis=0), rtol=1e-14)
    group = zarr.open_group(str(tmp_path / "s"), mode="r")
    assert group["site/values"].dtype == np.int8
    assert group["site/values"].shape == (N,)
    assert "observed" not in group["site"]
    assert dataset.tree["site/values"].dims == ("obs",)
    facts = {v["name"]: v for v in dataset.describe()["views"]}
    assert facts["site"]["missing_percent"] == pytest.approx(100 * 2 / N, abs=1e-3)
    assert facts["site"]["nbytes"] == 4 * N
    assert facts["effort"]["nbytes"] == 16 * N
    dataset.verify()
    meta = dataset.meta()
    assert [view.name for view in meta.value_views] == ["y"]
    assert [view.name for view in meta.input_views] == ["site", "effort"]
    assert meta.row_bytes == 4 + 4 + 16


def test_inputs_stay_visible(tmp_path: Path, y: np.ndarray, rng: np.random.Generator) -> None:
    dataset = written(tmp_path / "s", y, site=SITES[rng.integers(0, 3, N)], effort=np.ones(N))
    holdout = Holdout(0.5, seed=1)
    kinds = {view.name: view.missing for view in dataset.meta(holdout=holdout).views}
    assert kinds == {"y": "scattered", "site": "none", "effort": "none"}
    whole, block = dataset.block(0), dataset.block(0, holdout=holdout)
    assert set(block.hidden) == {"y"}
    for view in ("site", "effort"):
        np.testing.assert_array_equal(block.data[view], whole.data[view])
    assert np.isnan(block.data["y"]).any()


def labels_in_every_form(site: np.ndarray, tmp_path: Path) -> dict[str, object]:
    import dask.array as da

    labels = SITES[site]
    pd.DataFrame({"site": labels}).to_csv(tmp_path / "site.csv", index=False)
    named = pd.DataFrame({"site": labels}, index=pd.Index([f"sample{i}" for i in range(N)], name="id"))
    named.to_csv(tmp_path / "named.csv.gz")
    named.to_parquet(tmp_path / "named.parquet")
    array = zarr.create_array(str(tmp_path / "site.zarr"), shape=(N,), dtype="string", chunks=(7,))
    array[:] = labels.astype(object)
    return {
        "array": labels,
        "column": labels[:, None],
        "list": labels.tolist(),
        "bytes": labels.astype("S"),
        "series": pd.Series(labels),
        "categories": pd.Series(pd.Categorical(labels)),
        "frame": pd.DataFrame({"site": labels}),
        "named": named.iloc[::-1],
        "dataarray": xr.DataArray(labels, dims=("obs",)),
        "dask": da.from_array(labels.astype(object), chunks=7),
        "zarr": array,
        "csv": tmp_path / "site.csv",
        "named csv": tmp_path / "named.csv.gz",
        "parquet": tmp_path / "named.parquet",
        "zarr path": tmp_path / "site.zarr",
    }


@pytest.mark.thorough
def test_labels_in_every_form(
    tmp_path: Path, y: np.ndarray, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.data.ingest.tables.PIECE_VALUES", 14)
    monkeypatch.setattr("factorflow.data.ingest.levels.PIECE_ROWS", 11)
    site = rng.integers(0, 3, N)
    frame = pd.DataFrame(y, index=[f"sample{i}" for i in range(N)])
    wanted = np.array([1, 2, 0])[site]
    fingerprints = set()
    for name, labels in labels_in_every_form(site, tmp_path).items():
        dataset = written(tmp_path / "s", frame, site=labels, samples=frame.index.tolist())
        np.testing.assert_array_equal(codes(dataset, "site"), wanted, err_msg=name)
        assert dataset.features("site").tolist() == ["east", "north", "south"], name
        fingerprints.add(dataset.fingerprint)
    assert len(fingerprints) == 1


def test_labels_that_are_missing(tmp_path: Path, y: np.ndarray) -> None:
    missing: list[object] = [None, np.nan, "", pd.NA]
    for gap in missing:
        labels = np.array(["a", "b"] * (N // 2), dtype=object)
        labels[7] = gap
        assert np.flatnonzero(codes(written(tmp_path / "s", y, site=labels), "site") < 0).tolist() == [7]
    (tmp_path / "site.csv").write_text("site\n" + "\n".join(["a", "NA", "b", ""] * (N // 4)) + "\n")
    (tmp_path / "named.csv").write_text(
        "id,site\n" + "".join(f"s{i},{label}\n" for i, label in enumerate(["a", "NA", "b", ""] * (N // 4)))
    )
    dataset = written(
        tmp_path / "s", pd.DataFrame(y, index=[f"s{i}" for i in range(N)]), site=tmp_path / "named.csv"
    )
    assert codes(dataset, "site").tolist() == [0, -1, 1, -1] * (N // 4)
    only = pd.DataFrame({"site": ["a"]}, index=["s3"])  # samples that a view lacks have no level
    with pytest.warns(DataWarning, match="single level"):
        dataset = written(tmp_path / "s", pd.DataFrame(y, index=[f"s{i}" for i in range(N)]), site=only)
    assert np.flatnonzero(codes(dataset, "site") == 0).tolist() == [3]
    assert dataset.views["site"].missing == "samples"


def test_order_of_levels(tmp_path: Path, y: np.ndarray) -> None:
    def levels(labels: object, **options: object) -> list[str]:
        views = {"y": y, "site": labels}
        dataset = write_dataset(
            tmp_path / "s", views, inputs={"site": "categorical"}, overwrite=True, **options
        )
        found = dataset.features("site")
        given = pd.Series(labels).map(lambda x: str(int(x)) if isinstance(x, float) else str(x))
        np.testing.assert_array_equal(found[codes(dataset, "site")], given)
        return found.tolist()

    assert levels(np.array([10, 9, 2] * 20)) == ["2", "9", "10"]
    assert levels(np.array([10.0, 9.0, 2.0] * 20)) == ["2", "9", "10"]
    assert levels(np.array(["10", "9", "2"] * 20)) == ["2", "9", "10"]
    assert levels(np.array(["10", "9", "x2"] * 20)) == ["10", "9", "x2"]
    assert levels(np.array([True, False, True] * 20)) == ["False", "True"]
    own = pd.Categorical(["low", "high", "mid"] * 20, categories=["low", "mid", "high"])
    assert levels(own) == ["low", "mid", "high"]
    assert levels(pd.Series(own)) == ["low", "mid", "high"]
    assert levels(["a", "b", "c"] * 20, features={"site": list("cab")}) == ["c", "a", "b"]
    wider = pd.Series(pd.Categorical(["a", "b"] * 30, categories=["b", "none", "a"]))
    with pytest.warns(DataWarning, match="1 level without a sample \\('none'\\)"):
        assert levels(wider) == ["b", "none", "a"]
    assert levels(wider, drop_empty_features=True) == ["b", "a"]


def test_containers_hold_inputs(tmp_path: Path, y: np.ndarray, rng: np.random.Generator) -> None:
    site, effort = SITES[rng.integers(0, 3, N)], rng.random(N) + 1.0
    given = {"site": "categorical", "effort": "covariate"}
    np.savez(tmp_path / "plain.npz", y=y, site=site, effort=effort, samples=[f"s{i}" for i in range(N)])
    np.savez(
        tmp_path / "told.npz",
        view_names=["y", "site", "effort"],
        likelihoods=["poisson", "categorical", "covariate"],
        Y_y=y,
        Y_site=site,
        Y_effort=effort,
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    names = pd.Index([f"s{i}" for i in range(N)], name="id")
    pd.DataFrame(y, index=names, columns=["count"]).to_csv(folder / "y.csv")
    pd.DataFrame({"site": site}, index=names).to_csv(folder / "site.csv")
    np.save(folder / "effort.npy", effort)
    table = xr.Dataset(
        {"y": (("row", "one"), y), "site": ("row", site), "effort": ("row", effort), "age": ("row", effort)}
    )
    for source, inputs in (
        (tmp_path / "plain.npz", given),
        (tmp_path / "told.npz", None),
        (folder, given),
        (table, given),
    ):
        samples = {"effort": list(names)} if source is folder else None
        dataset = write_dataset(tmp_path / "s", source, inputs=inputs, samples=samples, overwrite=True)
        assert {view.likelihood for view in dataset.views.values()} == {"poisson", "categorical", "covariate"}
        np.testing.assert_array_equal(dataset.features("site")[codes(dataset, "site")], site)
        np.testing.assert_array_equal(dataset.values("effort")[:, 0], effort)
    assert list(dataset.obs.columns) == ["age"]


REFUSED: dict[str, tuple[dict, dict, str]] = {
    "two columns": ({"site": np.full((N, 2), "a")}, {}, "columns of view 'site' = 2: expected one"),
    "two columns of a frame": (
        {"site": pd.DataFrame({"a": [1] * N, "b": [2] * N})},
        {},
        "columns of view 'site' = 2",
    ),
    "no label": ({"site": np.full(N, None)}, {}, "labels of view 'site' = all of them missing"),
    "another level": (
        {"site": np.array(["a", "b"] * 30)},
        {"features": {"site": ["a", "c"]}},
        "labels of view 'site' = 'b': expected levels among 'a', 'c'",
    ),
    "level twice": (
        {"site": np.array(["a", "b"] * 30)},
        {"features": {"site": ["a", "b", "a"]}},
        "feature names of view 'site' = 'a'",
    ),
    "text as a covariate": ({"effort": np.array(["a"] * N)}, {}, "type of view 'effort'.*'categorical'"),
    "infinite covariate": (
        {"effort": np.where(np.arange(N) == 3, np.inf, 1.0)},
        {},
        "'sample3'.*finite number",
    ),
    "empty covariate": ({"effort": np.full(N, np.nan)}, {}, "features of view 'effort'"),
    "three dimensions": ({"site": np.zeros((N, 1, 1))}, {}, "shape of view 'site'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_inputs(tmp_path: Path, y: np.ndarray, case: str) -> None:
    inputs, options, message = REFUSED[case]
    kinds = {name: "covariate" if name == "effort" else "categorical" for name in inputs}
    with pytest.raises(InputError, match=message):
        write_dataset(tmp_path / "s", {"y": y, **inputs}, inputs=kinds, **options)
    assert list(tmp_path.iterdir()) == []


def test_only_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one view of values"):
        write_dataset(tmp_path / "s", {"site": np.array(["a", "b"])}, inputs={"site": "categorical"})


def test_inputs_make_a_row_without_values_useful(tmp_path: Path, y: np.ndarray) -> None:
    y[4] = np.nan  # to be predicted
    assert written(tmp_path / "s", y, site=np.array(["a", "b"] * 30)).views["y"].missing == "samples"
    with pytest.warns(DataWarning, match="1 sample without a value in any view"):
        write_dataset(tmp_path / "t", {"y": y})


@pytest.mark.parametrize("family", ["sparse_gfa", "probit"])
def test_models_without_inputs_refuse_them(family: str) -> None:
    views = (
        ViewMeta("y", "bernoulli", 5, "none"),
        ViewMeta("site", "categorical", 3, "none"),
        ViewMeta("effort", "covariate", 1, "none"),
    )
    config = configure({"model": family, "n_factors": 2})
    message = r"site \(categorical\), effort \(covariate\).*views=\['y'\]"
    with pytest.raises(InputError, match=message):
        config.build(Meta(100, 2, 64, views))
    config.build(Meta(100, 2, 64, views[:1]))


def test_what_is_missing_is_shown_as_zero() -> None:
    values = {"gaussian": [[1.5, np.nan]], "poisson": [[3.0, np.nan]], "bernoulli": [[1, -1]]}
    for name, given in values.items():
        y, seen = KINDS[name].fill_missing(np.array(given, KINDS[name].dtype))
        assert y.tolist() == [[given[0][0], 0.0]]
        assert seen.tolist() == [[1.0, 0.0]]
        assert y.dtype == seen.dtype == np.float64


def test_numbers_of_rows_and_features(tmp_path: Path, y: np.ndarray) -> None:
    """Of a row among all rows, of a feature among those of all views."""
    dataset = written(tmp_path / "d.zarr", y, site=np.resize(SITES, N))
    meta = dataset.meta()
    assert np.concatenate([dataset.block(i).rows for i in range(dataset.n_blocks)]).tolist() == list(range(N))
    assert (meta.numbers("y"), meta.numbers("site")) == (range(1), range(1, 4))
    with pytest.raises(KeyError):
        meta.numbers("nothing")


@pytest.mark.parametrize("largest", [1, 2, 3])
def test_codes_of_new_rows_are_those_of_the_fit(largest: int) -> None:
    """A level that the fit has not, and no level, are missing, whichever codes there are."""
    kind, theirs, ours = KINDS["categorical"], np.array([0, 2]), np.array([1, 0])
    codes = np.array([-1, *range(largest + 1)], np.int32)
    found = kind.reindex(codes, ours, theirs, 2)
    assert found.tolist() == [-1, 1, -1, 0, -1][: largest + 2]
    assert found.dtype == codes.dtype
    wanted = [-1] * len(codes)
    assert kind.reindex(codes, ours[:0], theirs[:0], 2).tolist() == wanted
