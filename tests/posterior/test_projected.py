"""New samples are described by their own values, joined with the fit by name, whatever reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.analysis import export_mofa, find_anomalies
from factorflow.errors import InputError
from factorflow.report import plot_data, plot_presence, write_report

FEATURES = [f"g{i}" for i in range(12)]
MODEL = ff.models.SparseGFA(n_factors=2, max_iter=40)


def table(seed: int, n: int) -> pd.DataFrame:
    """Return samples of two factors, the features of means of their own."""
    loadings = np.random.default_rng(0).normal(size=(2, 12))
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, 2)) @ loadings + 0.3 * rng.normal(size=(n, 12)) + np.arange(12)
    return pd.DataFrame(values, columns=FEATURES, index=[f"s{seed}_{i}" for i in range(n)])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("fit")
    b = (table(2, 60) - np.arange(12)).iloc[:, :9].set_axis([f"s1_{i}" for i in range(60)]) > 0
    views = {"a": table(1, 60), "b": b.astype(float)}
    return ff.fit(ff.write_dataset(path / "d.zarr", views), MODEL, progress=False)


@pytest.fixture
def new(tmp_path: Path) -> pd.DataFrame:
    """Samples with two features fewer, the others in reverse, and one more; a few entries missing."""
    frame = table(3, 20).iloc[:, :1:-1].copy()
    frame.insert(0, "other", 7.0 + np.arange(20))
    frame.iloc[3, 4] = np.nan
    return frame


@pytest.fixture
def projected(fitted: Any, new: pd.DataFrame, tmp_path: Path) -> Any:
    return fitted.project(ff.write_dataset(tmp_path / "n.zarr", {"a": new}), progress=False)


@pytest.mark.thorough
def test_values_are_joined_by_name(projected: Any, new: pd.DataFrame) -> None:
    wanted = new.reindex(columns=FEATURES).to_numpy(np.float32)
    imputed = projected.impute("a")
    seen = ~np.isnan(wanted)
    np.testing.assert_array_equal(imputed["observed"].values, seen)
    np.testing.assert_array_equal(imputed["mean"].values[seen], wanted[seen])
    odd = find_anomalies(projected, "a", n=5)
    for row in odd.itertuples():
        assert row.value == pytest.approx(new.loc[row.obs, row.feature], rel=1e-6)
    with pytest.raises(InputError, match="--|view"):
        find_anomalies(projected, "c")
    assert find_anomalies(projected, "b").empty  # not measured


@pytest.mark.thorough
def test_figures_and_exports_take_the_features_of_the_fit(
    projected: Any, new: pd.DataFrame, tmp_path: Path
) -> None:
    import h5py
    from matplotlib.figure import Figure

    names = projected.top_features("a", 1, 12).index
    ax = plot_data(projected, "a", 1, 12, ax=Figure().subplots())
    drawn = np.ma.filled(ax.images[0].get_array(), np.nan)
    empty = {name for name, row in zip(names, drawn, strict=True) if np.isnan(row).all()}
    assert empty == {"g0", "g1"}
    shares = plot_presence(projected, Figure().subplots()).images[0].get_array()
    assert shares[0].max() == pytest.approx(10 / 12)
    assert (shares[1] == 0).all()
    export_mofa(projected, tmp_path / "m.hdf5")
    with h5py.File(tmp_path / "m.hdf5") as file:
        data, features = file["data/a/group1"][:], file["features/a"].asstr()[:].tolist()
    assert features == FEATURES
    centre = projected.intercept("a").values
    np.testing.assert_allclose(data + centre, new.reindex(columns=FEATURES).to_numpy(), rtol=1e-5)
    text = write_report(projected, tmp_path / "r.html").read_text()
    assert "17.1 %" in text  # 41 of 240 entries of a are not there
    assert "100 %" in text  # and none of b


def test_variance_explained_is_that_of_the_new_samples(fitted: Any, projected: Any, tmp_path: Path) -> None:
    total = projected.variance_explained_total()
    values = np.concatenate(
        [projected.data.block(i, ["a"]).data["a"] for i in range(projected.data.n_blocks)]
    )
    seen = ~np.isnan(values)
    residual = (np.where(seen, values - projected.predict("a")["mean"].values, 0.0) ** 2).sum()
    about = np.nansum((values[:, 2:] - np.nanmean(values[:, 2:], axis=0)) ** 2)
    assert float(total.sel(view="a")) == pytest.approx(1.0 - residual / about, rel=1e-4)
    assert np.isnan(float(total.sel(view="b")))
    assert np.isnan(projected.variance_explained().sel(view="b").values).all()
    assert not np.allclose(
        projected.variance_explained().sel(view="a"), fitted.variance_explained().sel(view="a")
    )
    assert projected.summary()["variance_explained"]["a"] == pytest.approx(
        float(total.sel(view="a")), abs=1e-6
    )
    stored = fitted.project(str(projected.dataset.path), out=tmp_path / "p.zarr", progress=False)
    np.testing.assert_array_equal(stored.variance_explained_total().values, total.values)


@pytest.mark.thorough
def test_what_is_not_described_is_said(fitted: Any, projected: Any, tmp_path: Path) -> None:
    def found(views: dict[str, Any]) -> dict[str, str]:
        data = ff.write_dataset(tmp_path / "x.zarr", views, overwrite=True)
        return {f.kind: f.message for f in fitted.project(data, progress=False).findings}

    same = table(4, 30)
    assert found({"a": same}) == {}
    assert "standard deviations" in found({"a": 1000 * same})["not described"]
    centred = same - same.mean() + fitted.intercept("a").values
    small = fitted.intercept("a").values + (centred - fitted.intercept("a").values) / 1000
    assert "are only" in found({"a": small})["not described"]
    rng = np.random.default_rng(5)
    noise = pd.DataFrame(rng.normal(size=(30, 12)) * 9, columns=FEATURES)
    assert "not described" in found({"a": noise})
    said = {f.kind: f.message for f in projected.findings}["features"]
    assert "2 of 12 features of a" in said
    assert "g0, g1" in said
    assert "1 feature that it does not know" in said


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_samples_are_projected(fitted: Any, tmp_path: Path, n: int) -> None:
    many = ff.fit(fitted.dataset, ff.models.SparseGFA(n_factors=9, max_iter=10, drop=0.0), progress=False)
    data = ff.write_dataset(tmp_path / "n.zarr", {"a": table(3, 20).iloc[:n]})
    found = many.project(data, progress=False)
    assert found.scores().shape == (n, 9)
    assert np.isfinite(found.predict("a")["mean"].values).all()
    assert np.isnan(float(found.variance_explained_total().sel(view="a"))) == (n == 1)
    every = many.project(ff.write_dataset(tmp_path / "m.zarr", {"a": table(3, 20)}), progress=False)
    np.testing.assert_allclose(found.scores().values, every.scores().values[:n], atol=1e-3)
    text = write_report(found, tmp_path / "r.html").read_text()
    assert ">nan" not in text
    assert "nan" not in repr(found)
    if n == 1:
        with pytest.raises(InputError, match="at least 2"):
            ff.fit(data, MODEL)


def test_another_dataset_is_refused_in_python(fitted: Any, tmp_path: Path) -> None:
    other = ff.write_dataset(tmp_path / "o.zarr", {"a": table(9, 60)})
    with pytest.raises(InputError, match="fingerprint"):
        fitted.dataset = other
    with pytest.raises(InputError, match="fingerprint"):
        fitted.dataset = str(tmp_path / "o.zarr")
    fitted.dataset = str(fitted.dataset.path)
    assert fitted.impute("a")["observed"].values.all()


@pytest.mark.thorough
def test_new_samples_of_a_view_of_several_likelihoods_are_cut_as_it_was(tmp_path: Path) -> None:
    """Every feature counts, some may be missing, and one sample says enough."""
    frame = table(1, 60)
    frame["g0"], frame["g1"] = np.exp(frame["g0"]), np.maximum(frame["g1"], 0.5)
    likelihoods = {"a": {"g0": "lognormal", "g1": "censored"}}
    data = ff.write_dataset(tmp_path / "d.zarr", {"a": frame}, likelihoods, limits={"a": (0.5, None)})
    posterior = ff.fit(data, MODEL, progress=False)

    def scores(**changes: Any) -> Any:
        one = frame.iloc[:1].astype(object).assign(**changes)
        one = one[[name for name in one if one[name].notna().all()]]
        return posterior.project({"a": one}, progress=False).scores().to_numpy()

    for name, value in (("g0", 9.0), ("g1", "<0.5"), ("g1", None), ("g2", 9.0)):
        assert abs(scores(**{name: value}) - scores(g1=5.0)).max() > 1e-3, name
    one = frame.iloc[:1, :3].assign(g1=5.0)
    one.to_csv(tmp_path / "a.csv", index_label="sample")
    of_file = posterior.project(tmp_path / "a.csv", progress=False)
    assert list(of_file.dataset.views) == ["a", "a_censored", "a_lognormal"]
    np.testing.assert_array_equal(of_file.scores(), posterior.project({"a": one}, progress=False).scores())
    whole = {name: 1.0 + i for i, name in enumerate(FEATURES)}  # counts, for all one sees
    assert np.isfinite(scores(**whole)).all()
