"""Exported files hold the posterior's numbers under the names that other programs look for."""

from __future__ import annotations

import errno
import json
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bayesian_pca
import h5py
import numpy as np
import pandas as pd
import pytest
from dying import Died, failing

import factorflow
from factorflow.analysis import annotate_anndata, annotate_mudata, export_mofa, export_tables
from factorflow.analysis.export import INCOMPLETE
from factorflow.analysis.mofa_file import Groups, _write_data
from factorflow.errors import ExportWarning, InputError, RunError
from factorflow.likelihoods import get_likelihood

MOFA_OPTIONS = {
    "spikeslab_factors": "False", "spikeslab_weights": "True", "ard_factors": "False", "ard_weights": "True",
}  # fmt: skip


def test_mofa_layout(given: Any, tmp_path: Path) -> None:
    path = export_mofa(given.posterior, tmp_path / "model.hdf5")
    with h5py.File(path) as file:
        assert [g.decode() for g in file["groups/groups"][:]] == ["a", "b"]
        assert [v.decode() for v in file["views/views"][:]] == ["rna", "mutation"]
        z = np.concatenate([file[f"expectations/Z/{g}"][:].T for g in "ab"])
        np.testing.assert_array_equal(z, given.rows["scores"])
        assert file["expectations/W/rna"].shape == (3, 12)
        assert [s.decode() for s in file["samples/b"][:2]] == ["sample 35", "sample 36"]
        data = np.concatenate([file[f"data/rna/{g}"][:] for g in "ab"])
        expected = given.dataset.values("rna") - given.record["intercept_rna"]
        np.testing.assert_allclose(data, expected, rtol=1e-5, atol=1e-6)
        binary = np.concatenate([file[f"data/mutation/{g}"][:] for g in "ab"])
        np.testing.assert_array_equal(binary, given.dataset.values("mutation"))
        share = 100 * given.posterior.variance_explained(by="group")
        np.testing.assert_allclose(file["variance_explained/r2_per_factor/b"], share.sel(group="b"))
        total = 100 * given.posterior.variance_explained_total(by="group")
        np.testing.assert_allclose(file["variance_explained/r2_total/a"], total.sel(group="a"))
        np.testing.assert_array_equal(file["training_stats/elbo"][:], np.arange(-100.0, -95.0))
        np.testing.assert_array_equal(file["training_stats/number_factors"][:], 3.0)
        for group in "ab":
            np.testing.assert_array_equal(
                file[f"intercepts/mutation/{group}"], given.record["intercept_mutation"]
            )
        options = {name: file[f"model_options/{name}"][()].decode() for name in MOFA_OPTIONS}
        assert options == MOFA_OPTIONS
        training = dict(zip(file["training_opts"].attrs["names"], file["training_opts"][:], strict=True))
        assert training[b"maxiter"] == 5
        assert training[b"freqELBO"] == 1
        np.testing.assert_allclose(file["training_stats/time"], 0.1)
        assert [v.decode() for v in file["model_options/likelihoods"][:]] == ["gaussian", "bernoulli"]
        assert [v.decode() for v in file["samples_metadata/a/sex"][:2]] == ["m", "f"]


def test_mofax_opens_it(given: Any, tmp_path: Path) -> None:
    mofax = pytest.importorskip("mofax")
    export_mofa(given.posterior, tmp_path / "model.hdf5")
    model = mofax.mofa_model(str(tmp_path / "model.hdf5"))
    np.testing.assert_allclose(model.get_factors(), given.rows["scores"])
    np.testing.assert_allclose(model.get_weights("rna"), given.record["loadings_rna"])
    for view in ("rna", "mutation"):  # one at a time: see `export_mofa`
        found = model.get_data(views=view, df=True)
        assert list(found.index) == list(given.dataset.obs_names)
        assert list(found.columns) == list(given.dataset.features(view))
        centre = given.record["intercept_rna"] if view == "rna" else 0.0
        np.testing.assert_allclose(found, given.dataset.values(view) - centre, rtol=1e-5, atol=1e-6)
    model.close()


def test_mofa_is_written_at_once(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.hdf5"
    path.write_text("mine")
    with pytest.raises(InputError, match="path"):
        export_mofa(given.posterior, path)
    monkeypatch.setattr("factorflow.analysis.mofa_file._write_data", _fails)
    with pytest.raises(RuntimeError):
        export_mofa(given.posterior, path, overwrite=True)
    assert path.read_text() == "mine"
    export_mofa(given.posterior, path, data=False, overwrite=True)
    with h5py.File(path) as file:
        assert "data" not in file


def _fails(*args: Any) -> None:
    raise RuntimeError


def test_anndata(given: Any) -> None:
    anndata = pytest.importorskip("anndata")
    names = list(given.dataset.obs_names)[::-1][:40] + ["new"]
    adata = anndata.AnnData(
        np.zeros((41, 13), np.float32),
        obs=pd.DataFrame(index=names),
        var=pd.DataFrame(index=[*given.dataset.features("rna"), "other"]),
    )
    annotate_anndata(given.posterior, adata, "rna")
    np.testing.assert_array_equal(adata.obsm["X_factorflow"][:40], given.rows["scores"][::-1][:40])
    assert np.isnan(adata.obsm["X_factorflow"][40]).all()
    np.testing.assert_array_equal(adata.varm["factorflow"][:12], given.record["loadings_rna"])
    assert json.loads(adata.uns["factorflow"]["config"])["model"] == "given"
    with pytest.raises(InputError, match="view"):
        annotate_anndata(given.posterior, adata)
    adata.obs_names = [f"q{i}" for i in range(41)]
    with pytest.raises(InputError, match="samples"):
        annotate_anndata(given.posterior, adata, "rna")


def test_mudata_survives_its_file(given: Any, tmp_path: Path) -> None:
    mudata = pytest.importorskip("mudata")
    anndata = pytest.importorskip("anndata")
    obs = pd.DataFrame(index=list(given.dataset.obs_names))
    parts = {
        view: anndata.AnnData(
            np.zeros((70, len(given.dataset.features(view))), np.float32),
            obs=obs.copy(),
            var=pd.DataFrame(index=list(given.dataset.features(view))),
        )
        for view in ("rna", "mutation")
    }
    # From mudata 0.4 on the new behaviour is the only one; before, it warns unless it is chosen.
    chosen = mudata.set_options(pull_on_update=False) if hasattr(mudata, "set_options") else nullcontext()
    with chosen:
        mdata = annotate_mudata(given.posterior, mudata.MuData(parts))
        mdata.write(tmp_path / "data.h5mu")
        again = mudata.read_h5mu(tmp_path / "data.h5mu")
    np.testing.assert_array_equal(again.obsm["X_factorflow"], given.rows["scores"])
    np.testing.assert_array_equal(again.mod["mutation"].varm["factorflow"], given.record["loadings_mutation"])
    assert again.uns["factorflow"]["status"] == "complete"


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_tables(given: Any, tmp_path: Path, file_format: Any) -> None:
    paths = export_tables(given.posterior, tmp_path / "tables", file_format)
    assert {path.stem for path in paths} >= {"scores", "loadings_rna", "inclusion_mutation", "holdout_scores"}
    file = tmp_path / "tables" / f"scores.{file_format}"
    scores = pd.read_csv(file, index_col=0) if file_format == "csv" else pd.read_parquet(file)
    np.testing.assert_allclose(scores, given.rows["scores"])
    assert list(scores.index) == list(given.dataset.obs_names)
    with pytest.raises(InputError, match="path"):
        export_tables(given.posterior, tmp_path / "tables", file_format)
    with pytest.raises(InputError, match="file_format"):
        export_tables(given.posterior, tmp_path / "other", "xlsx")  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize("existing", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_tables_are_whole_or_said_not_to_be(given: Any, tmp_path: Path, existing: bool) -> None:
    """A process that dies before any operation on the disk: the tables of one posterior, all or a marker."""
    names = {path.name for path in export_tables(given.posterior, tmp_path / "all")}
    with failing(10**9, Died()) as done:
        export_tables(given.posterior, tmp_path / "all", overwrite=True)
    seen = set()
    for number in range(len(done) + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names if existing else ():
            (folder / name).write_text("old")
        with failing(number, Died()), suppress(Died):
            export_tables(given.posterior, folder, overwrite=True)
        found = {name: (folder / name).read_text() == "old" for name in names if (folder / name).is_file()}
        assert len(set(found.values())) <= 1, f"step {number}: of two posteriors"
        marked = (folder / INCOMPLETE).is_file()
        before = set() if not existing else names
        assert marked or set(found) == (before if all(found.values()) else names), f"step {number}"
        seen.add((marked, *set(found.values())))
        if number % 9:
            continue
        export_tables(given.posterior, folder, overwrite=True)
        assert {path.name for path in folder.iterdir()} == names, f"step {number}"
        assert all((folder / name).read_text() != "old" for name in names)
    assert seen >= {(True,), (True, False), (False, False)}
    assert not existing or seen >= {(True, True), (False, True)}


def test_an_export_that_fails_says_so(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While tables are written nothing is touched; later the marker stays."""
    paths = export_tables(given.posterior, tmp_path)
    for path in paths:
        path.write_text("old")
    written = pd.DataFrame.to_csv

    def full(table: Any, file: Any) -> None:
        if "holdout" in str(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        written(table, file)

    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_csv", full)
        with pytest.raises(RunError, match="Free some space"):
            export_tables(given.posterior, tmp_path, overwrite=True)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert {path.read_text() for path in paths} == {"old"}


def test_mofa_layout_of_a_sampler(tmp_path: Path) -> None:
    example = bayesian_pca.BayesianPCA.examples()["default"].data
    data = factorflow.simulate(
        "sparse_gfa", tmp_path / "data.zarr", n_samples=40, block_rows=32, seed=7, **example
    )
    posterior = factorflow.fit(data, bayesian_pca.BayesianPCA())
    with h5py.File(export_mofa(posterior, tmp_path / "model.hdf5")) as file:
        np.testing.assert_array_equal(file["expectations/W/a"][:].T, posterior.loadings("a"))
        assert file["data/a/group1"].shape == (40, 7)
        assert "variance_explained" not in file
    names = {path.stem for path in export_tables(posterior, tmp_path / "tables")}
    assert names == {"scores", "loadings_a", "loadings_b", "intercept_a", "intercept_b"}


def test_mofa_data_of_several_blocks(tmp_path: Path) -> None:
    """Groups follow block by block; what is missing is NaN, in binary views too."""
    rng = np.random.default_rng(0)
    views = {"x": rng.normal(size=(100, 3)), "b": rng.integers(0, 2, (100, 4)).astype(float)}
    for values in views.values():
        values[rng.random(values.shape) < 0.2] = np.nan
    group = np.array(["u", "v", "v"] * 33 + ["u"])
    kinds = {"x": "gaussian", "b": "bernoulli"}
    dataset = factorflow.write_dataset(tmp_path / "d", views, kinds, groups=group, block_rows=16)
    posterior = SimpleNamespace(
        data=dataset,
        meta=dataset.meta(),
        features=dataset.features,
        model=SimpleNamespace(likelihood=lambda view: get_likelihood(kinds[view])),
    )
    with h5py.File(tmp_path / "m.hdf5", "w") as file:
        for view, values in views.items():
            groups = Groups(["u", "v"], ["u", "v"], (group == "v").astype(int))
            intercepts = np.arange(2.0 * values.shape[1]).reshape(2, -1)
            _write_data(file, posterior, view, groups, intercepts)  # type: ignore[arg-type]
            for name, intercept in zip("uv", intercepts, strict=True):
                found = file[f"data/{view}/{name}"][:]
                expected = (values - (intercept if view == "x" else 0.0))[group == name]
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


N = 40
IDS = [f"s{i}" for i in range(N)]
SMALL = factorflow.models.SparseGFA(n_factors=2, max_iter=5, warmup_iter=2, drop=0.0)


def small(path: Path, view: str = "x", **options: Any) -> Any:
    values = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 6)), IDS, list("abcdef"))
    data = factorflow.write_dataset(path / "d.zarr", {view: values}, overwrite=True, **options)
    return factorflow.fit(data, SMALL, progress=False)


@pytest.mark.parametrize("stored", [False, True])
def test_groups_are_those_of_groups(tmp_path: Path, stored: bool) -> None:
    """A column that is called group is metadata like any other."""
    obs = pd.DataFrame({"site": ["A"] * 25 + ["B"] * 15, "group": ["B"] * 10 + ["A"] * 30}, IDS)
    with pytest.warns(UserWarning, match="column 'group' of its own"):
        posterior = small(tmp_path, obs=obs, groups="site")
    if stored:
        posterior.save(tmp_path / "p.zarr")
        posterior = factorflow.open_posterior(tmp_path / "p.zarr")
    assert posterior.sample_metadata()["group"].tolist() == obs["group"].tolist()
    export_mofa(posterior, tmp_path / "m.hdf5")
    with h5py.File(tmp_path / "m.hdf5") as file:
        assert file["samples/A"].asstr()[:].tolist() == IDS[:25]
        assert file["samples_metadata/B/group"].asstr()[:].tolist() == ["A"] * 15
        assert file["expectations/Z/B"].shape[1] == 15


def test_nothing_of_another_posterior_stays(tmp_path: Path) -> None:
    """Neither inclusion probabilities nor held-out scores, where the new one has none."""
    anndata = pytest.importorskip("anndata")
    data = small(tmp_path).dataset
    first = factorflow.fit(data, SMALL, holdout=0.1, progress=False)
    second = factorflow.fit(data, SMALL.model_copy(update={"loadings": "ard"}), progress=False)
    adata = anndata.AnnData(pd.DataFrame(0.0, IDS, list("abcdef")))
    annotate_anndata(first, adata)
    assert "factorflow_inclusion" in adata.varm
    annotate_anndata(second, adata)
    assert set(adata.varm) == {"factorflow"}
    export_tables(first, tmp_path / "tables")
    (tmp_path / "tables" / "inclusion_other.csv").write_text("of somebody else")
    paths = export_tables(second, tmp_path / "tables", overwrite=True)
    found = {path.name for path in (tmp_path / "tables").iterdir()}
    assert "holdout_scores.csv" not in found
    assert found == {path.name for path in paths} | {"inclusion_other.csv"}


def test_what_does_not_match_changes_nothing(tmp_path: Path) -> None:
    anndata, mudata = pytest.importorskip("anndata"), pytest.importorskip("mudata")
    posterior = small(tmp_path)
    adata = anndata.AnnData(pd.DataFrame(0.0, IDS, list("uvwxyz")))
    with pytest.raises(InputError, match="features"):
        annotate_anndata(posterior, adata)
    assert not adata.obsm
    chosen = mudata.set_options(pull_on_update=False) if hasattr(mudata, "set_options") else nullcontext()
    with chosen:
        mdata = mudata.MuData({"x": adata})
        with pytest.raises(InputError, match="features"):
            annotate_mudata(posterior, mdata)
    assert "X_factorflow" not in mdata.obsm


def test_a_dataset_that_has_moved_changes_nothing(tmp_path: Path) -> None:
    """Shares over all groups are computed from it: they are asked for before anything is put in."""
    anndata, mudata = pytest.importorskip("anndata"), pytest.importorskip("mudata")
    posterior = small(tmp_path, groups=["u", "v"] * 20)
    posterior.save(tmp_path / "p.zarr")
    (tmp_path / "d.zarr").rename(tmp_path / "moved.zarr")
    posterior = factorflow.open_posterior(tmp_path / "p.zarr")
    adata = anndata.AnnData(pd.DataFrame(0.0, IDS, list("abcdef")))
    chosen = mudata.set_options(pull_on_update=False) if hasattr(mudata, "set_options") else nullcontext()
    with chosen:
        mdata = mudata.MuData({"x": adata})
        for annotate, data in ((annotate_anndata, adata), (annotate_mudata, mdata)):
            with pytest.raises(InputError, match="expected the dataset of the fit"):
                annotate(posterior, data)
            assert "X_factorflow" not in data.obsm
            assert not adata.varm
        posterior.dataset = factorflow.open_dataset(tmp_path / "moved.zarr")
        annotate_mudata(posterior, mdata)
    np.testing.assert_array_equal(mdata.obsm["X_factorflow"], posterior.scores())


def test_names_that_hdf5_cannot_have(tmp_path: Path) -> None:
    names = ["dose mg/kg", "dose mg_kg", "", ".", "x/", "a\0b"]
    obs = pd.DataFrame({name: np.arange(N) + i for i, name in enumerate(names)}, index=IDS)
    posterior = small(tmp_path, obs=obs, groups=["T/NK", "T", "T_NK", "B"] * 10)
    with pytest.warns(ExportWarning) as said:
        export_mofa(posterior, tmp_path / "m.hdf5")
    assert {str(w.message) for w in said} == {
        "HDF5 cannot have such a name of a group: 'T/NK' is called 'T_NK_'",
        "HDF5 cannot have such a name of a column: 'dose mg/kg' is called 'dose mg_kg_', '' is called '_', "
        "'.' is called '__', 'x/' is called 'x_', 'a\\x00b' is called 'a_b'",
    }
    with h5py.File(tmp_path / "m.hdf5") as file:
        groups = file["groups/groups"].asstr()[:].tolist()
        assert sorted(groups) == sorted(file["samples"]) == ["B", "T", "T_NK", "T_NK_"]
        columns = file["samples_metadata/T_NK_"]
        assert all(isinstance(column, h5py.Dataset) for column in columns.values())
        assert columns["dose mg_kg_"][:].tolist() == [*range(0, N, 4)]
        assert columns["dose mg_kg"][:].tolist() == [*range(1, N + 1, 4)]


@pytest.mark.parametrize(
    "options", [{"max_iter": 5, "warmup_iter": 2}, {"n_draws": 20, "n_burn_in": 20, "chains": 2}]
)
def test_intercepts_by_group(tmp_path: Path, options: dict[str, Any]) -> None:
    """Where a fit has them, what the factors leave of predictions are the intercepts of the group."""
    rng, site = np.random.default_rng(0), np.array(["b", "a", "a", "a"] * 10)
    levels = np.array([4.0, -3.0, 2.0, 0.0, 1.0, 5.0])
    values = pd.DataFrame(rng.normal(size=(N, 6)), IDS, list("abcdef")) + np.outer(site == "b", levels)
    data = factorflow.write_dataset(
        tmp_path / "d.zarr", {"x": values}, obs=pd.DataFrame({"site": site}, IDS), groups="site"
    )
    model = factorflow.models.SparseGFA(n_factors=2, drop=0.0, intercepts="group", **options)
    posterior = factorflow.fit(data, model, progress=False)
    export_mofa(posterior, tmp_path / "m.hdf5")
    with h5py.File(tmp_path / "m.hdf5") as file:
        intercepts = {name: file[f"intercepts/x/{name}"][:] for name in "ab"}
        for name, intercept in intercepts.items():
            found = file[f"data/x/{name}"][:] + intercept
            np.testing.assert_allclose(found, values[site == name], atol=1e-5)
    if "max_iter" in options:
        factors = posterior.scores().values @ posterior.loadings("x").values.T
        left = posterior.predict("x")["mean"].values - factors
        np.testing.assert_allclose(left, [intercepts[name] for name in site], atol=1e-5)
    else:
        assert np.corrcoef(intercepts["b"] - intercepts["a"], levels)[0, 1] > 0.9


def test_mofa_layout_of_programs(tmp_path: Path) -> None:
    """A family without intercepts has 0 for them."""
    counts = np.random.default_rng(0).poisson(2.0, (N, 6))
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"x": counts})
    model = factorflow.models.PoissonFactors(n_factors=2, settling_iter=3, max_iter=3)
    posterior = factorflow.fit(data, model, progress=False)
    with h5py.File(export_mofa(posterior, tmp_path / "m.hdf5")) as file:
        np.testing.assert_array_equal(file["intercepts/x/group1"], np.zeros(6))
        np.testing.assert_array_equal(file["data/x/group1"], counts)
        np.testing.assert_array_equal(file["expectations/W/x"], posterior.loadings("x").values.T)


def test_groups_of_new_samples(tmp_path: Path) -> None:
    """They need not be those of the fit, where these have no parameters of their own."""
    plain = factorflow.models.SparseGFA(n_factors=2, max_iter=5, warmup_iter=2, scores="normal", drop=0.0)
    posterior = factorflow.fit(small(tmp_path, groups=["u", "v"] * 20).dataset, plain, progress=False)
    values = pd.DataFrame(np.random.default_rng(1).normal(size=(9, 6)), columns=list("abcdef"))
    groups = ["v"] * 4 + ["w"] * 5
    new = factorflow.write_dataset(tmp_path / "n.zarr", {"x": values}, groups=groups)
    export_mofa(posterior.project(new, progress=False), tmp_path / "m.hdf5")
    with h5py.File(tmp_path / "m.hdf5") as file:
        assert file["groups/groups"].asstr()[:].tolist() == ["v", "w"]
        assert file["expectations/Z/w"].shape == (2, 5)
        assert np.isfinite(file["variance_explained/r2_total/v"][:]).all()
        assert np.isnan(file["variance_explained/r2_total/w"][:]).all()  # the fit knows no such group


def test_modalities_are_found_by_the_names_they_had(tmp_path: Path) -> None:
    anndata, mudata = pytest.importorskip("anndata"), pytest.importorskip("mudata")
    rng = np.random.default_rng(0)
    parts = {
        name: anndata.AnnData(
            rng.normal(size=(N, 6)).astype(np.float32),
            obs=pd.DataFrame(index=IDS),
            var=pd.DataFrame(index=[f"{name}{i}" for i in range(6)]),
        )
        for name in ("rna", "ADT-seq")
    }
    chosen = mudata.set_options(pull_on_update=False) if hasattr(mudata, "set_options") else nullcontext()
    with chosen:
        mdata = mudata.MuData(parts)
        with pytest.warns(UserWarning, match="'ADT-seq' is called 'ADT_seq'"):
            data = factorflow.write_dataset(tmp_path / "d.zarr", mdata)
        posterior = factorflow.fit(data, SMALL, progress=False)
        annotate_mudata(posterior, mdata)
    found = mdata.mod["ADT-seq"].varm["factorflow"]
    np.testing.assert_array_equal(found, posterior.loadings("ADT_seq").values)
