"""`fit` of what is no dataset yet: files and objects in memory, with options of two kinds."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.errors import InputError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FACTORFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "datasets"


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 8)) + 0.3 * rng.normal(size=(40, 8))
    return pd.DataFrame(values, [f"s{i}" for i in range(40)], [f"g{i}" for i in range(8)])


QUICK: dict[str, Any] = {"n_factors": 2, "max_iter": 5, "progress": False}


def test_frames(frame: pd.DataFrame, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The dataset is in the cache, where the log says; the same data are there once, others beside them."""
    obs = pd.DataFrame({"age": range(40)}, frame.index)
    with caplog.at_level(logging.INFO, "factorflow"):
        found = ff.fit({"rna": frame}, obs=obs, **QUICK)
    assert found.run["config"]["model"] == "sparse_gfa"
    assert found.run["config"]["n_factors"] == 2
    assert found.sample_metadata()["age"].tolist() == list(range(40))
    written = Path(found.run["dataset"])
    assert written.parent == cache
    assert written.name.startswith("rna-")
    assert str(written) in caplog.text
    again = ff.fit({"rna": frame}, obs=obs, **QUICK)
    assert again.run["dataset"] == str(written)
    np.testing.assert_array_equal(again.scores().values, found.scores().values)
    other = ff.fit({"rna": frame}, obs=obs + 1, **QUICK)
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        Path(run["dataset"]).name for run in (found.run, other.run)
    )


@pytest.mark.thorough
def test_an_option_of_both_goes_to_what_is_written_first(frame: pd.DataFrame, tmp_path: Path) -> None:
    counts = {"a": (np.abs(frame) * 3).round()}
    found = ff.fit(counts, likelihoods={"a": "gaussian"}, **QUICK)
    assert found.meta.views[0].likelihood == "gaussian"
    stored = ff.write_dataset(tmp_path / "d.zarr", counts)
    likelihoods = {"a": "negative_binomial"}
    assert ff.fit(stored, likelihoods=likelihoods, **QUICK).run["config"]["likelihoods"] == likelihoods


def test_one_likelihood_for_all_views_is_the_models(frame: pd.DataFrame) -> None:
    """Findings say so: likelihoods='negative_binomial'."""
    counts = {"a": (np.abs(frame) * 3).round()}
    found = ff.fit(counts, likelihoods="negative_binomial", **QUICK)
    assert found.run["config"]["likelihoods"] == "negative_binomial"
    assert found.dataset.views["a"].likelihood == "poisson"


def test_new_samples_as_fit_takes_data(frame: pd.DataFrame, tmp_path: Path) -> None:
    """Frames, files and objects are projected like a dataset of them; likelihoods are those of the fit."""
    anndata, mudata = pytest.importorskip("anndata"), pytest.importorskip("mudata")
    counts = (np.abs(frame) * 3).round()
    fitted = ff.fit({"a": counts}, **QUICK)
    first = frame.iloc[:20]
    new = (first > first.median()).astype(int)  # alone they would be taken for binary
    dataset = ff.write_dataset(tmp_path / "new.zarr", {"a": new}, {"a": "poisson"})
    expected = fitted.project(dataset, progress=False)
    adata = anndata.AnnData(new.astype(np.float32))
    with mudata.set_options(pull_on_update=False):
        several = mudata.MuData({"a": adata})
    for data in ({"a": new}, several):
        found = fitted.project(data, progress=False)
        np.testing.assert_array_equal(found.scores().values, expected.scores().values)
        assert found.obs_names.tolist() == new.index.tolist()
    counts.iloc[:20].to_csv(tmp_path / "a.csv")
    assert ff.project(fitted, tmp_path / "a.csv", progress=False).scores().shape == (20, 2)
    with pytest.raises(InputError, match="fitted views a"):
        fitted.project({"b": new}, progress=False)


def test_anndata_and_mudata(frame: pd.DataFrame) -> None:
    anndata, mudata = pytest.importorskip("anndata"), pytest.importorskip("mudata")
    adata = anndata.AnnData(frame.astype(np.float32), obs=pd.DataFrame({"sex": ["f", "m"] * 20}, frame.index))
    adata.layers["twice"] = 2 * adata.X
    found = ff.fit(adata, layer="twice", **QUICK)
    np.testing.assert_allclose(found.dataset.values(found.views[0]), 2 * adata.X, rtol=1e-6)
    assert found.sample_metadata()["sex"].tolist() == ["f", "m"] * 20
    other = adata[:, :4].copy()
    other.var_names = [f"p{i}" for i in range(4)]
    with mudata.set_options(pull_on_update=False):
        both = mudata.MuData({"rna": adata, "protein": other})
    fitted = ff.fit(both, **QUICK)
    assert fitted.views == ("rna", "protein")
    assert set(fitted.associate()["column"]) == {"sex"}  # not rna:sex and protein:sex beside it
    assert set(fitted.associate("rna:sex")["column"]) == {"rna:sex"}


def test_files_and_stores(frame: pd.DataFrame, tmp_path: Path, cache: Path) -> None:
    frame.to_csv(tmp_path / "rna.csv")
    assert ff.fit(tmp_path / "rna.csv", **QUICK).dataset.n_rows == 40
    stored = ff.write_dataset(tmp_path / "d.zarr", {"rna": frame})
    n_cached = len(list(cache.iterdir()))
    for data in (stored, tmp_path / "d.zarr", str(tmp_path / "d.zarr")):
        assert ff.fit(data, **QUICK).run["dataset"] == str(tmp_path / "d.zarr")
    assert len(list(cache.iterdir())) == n_cached


def test_refusals(frame: pd.DataFrame, tmp_path: Path, cache: Path) -> None:
    """Before anything is written."""
    data = {"rna": frame}
    with pytest.raises(InputError, match=r"n_factor = 3: .*Did you mean n_factors\?"):
        ff.fit(data, n_factor=3)
    with pytest.raises(InputError, match=r"holdot = 0.1: .*Did you mean holdout\?"):
        ff.fit(data, holdot=0.1)
    with pytest.raises(InputError, match=r"likelihood = x: .*Did you mean likelihoods\?"):
        ff.fit(data, likelihood="x")
    with pytest.raises(InputError, match="n_factors"):
        ff.fit(data, n_factors=-1)
    with pytest.raises(InputError, match=r"n_factors = 3: .*SparseGFA\(n_factors"):
        ff.fit(data, ff.models.SparseGFA(), n_factors=3)
    with pytest.raises(InputError, match=r"n_factors = 3: .*PoissonFactors\(n_factors"):
        ff.fit(data, {"model": "poisson_factors"}, n_factors=3)
    with pytest.raises(InputError, match=r"missing a required argument: 'data'"):
        ff.fit(views=data)  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"holdot = an object of type DataFrame: "):
        ff.fit(data, holdot=frame)
    stored = ff.write_dataset(tmp_path / "d.zarr", data)
    with pytest.raises(InputError, match="groups = .*written already"):
        ff.fit(stored, groups=["a", "b"] * 20)
    with pytest.raises(InputError, match="does not exist"):
        ff.fit(tmp_path / "absent.zarr")
    assert not cache.exists()
    with pytest.raises(InputError):
        ff.fit({"rna": "absent.csv"})
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_made(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FACTORFLOW_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="FACTORFLOW_CACHE"):
        ff.fit({"rna": frame}, **QUICK)
