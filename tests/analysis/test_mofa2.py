"""Files of `export_mofa` pass the checks of MOFA2's `load_model` and `.quality_control` (R, version 1.23).

They are written again here from its source; where R and MOFA2 are installed it opens the files itself.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.models import SparseGFA

N, GENES = 60, 20


def texts(node: Any) -> list[str]:
    return [value.decode() for value in np.asarray(node[()]).ravel().tolist()]


class Loaded:
    """What `load_model(file, load_interpol_Z = TRUE)` reads."""

    def __init__(self, path: Path) -> None:
        with h5py.File(path) as file:
            self.views, self.groups = texts(file["views/views"]), texts(file["groups/groups"])
            self.features = {view: texts(file[f"features/{view}"]) for view in self.views}
            self.samples = {group: texts(file[f"samples/{group}"]) for group in self.groups}
            self.z = {group: file[f"expectations/Z/{group}"][()].T for group in self.groups}
            self.w = {view: file[f"expectations/W/{view}"][()].T for view in self.views}
            self.n_factors = self.z[self.groups[0]].shape[1]
            options = {name: texts(node) for name, node in file["model_options"].items()}
            self.likelihoods = options.pop("likelihoods")
            assert all(value in (["True"], ["False"]) for value in options.values())
            self.columns = {
                group: {name: node[()] for name, node in file[f"samples_metadata/{group}"].items()}
                for group in self.groups
            }
            self.covariates = texts(file["covariates/covariates"]) if "covariates" in file else []
            self.places = self._by_group(file, "cov_samples")
            self.clocks = self._by_group(file, "cov_samples_transformed")
            self.courses = {
                group: {name: node[()] for name, node in file[f"Z_predictions/{group}"].items()}
                for group in self.groups
                if "Z_predictions" in file
            }
            self.grid = file["Z_predictions/new_values"][()] if self.courses else None
            self.smooth = {name: texts(node)[0] for name, node in file.get("smooth_opts", {}).items()}
            self.stats = {name: node[()] for name, node in file["training_stats"].items()}
            self.r2 = {group: file[f"variance_explained/r2_per_factor/{group}"][()] for group in self.groups}
            self.r2_total = {group: file[f"variance_explained/r2_total/{group}"][()] for group in self.groups}
            self.data = {
                view: {group: file[f"data/{view}/{group}"][()] for group in self.groups}
                for view in self.views
            }
            self.intercepts = {
                view: {group: file[f"intercepts/{view}/{group}"][()] for group in self.groups}
                for view in self.views
            }
        self.check()

    def _by_group(self, file: h5py.File, name: str) -> dict[str, Any]:
        return {group: file[f"{name}/{group}"][()] for group in self.groups} if name in file else {}

    def check(self) -> None:
        """Assert what R stops at, or reads wrongly without a word."""
        every_sample = [name for names in self.samples.values() for name in names]
        assert not any("/" in name for name in (*self.views, *self.groups))
        for names in (self.views, self.groups, every_sample, *self.features.values()):
            assert len(set(names)) == len(names)
        assert len(self.likelihoods) == len(self.views)
        for group, samples in self.samples.items():
            n = len(samples)
            assert self.z[group].shape == (n, self.n_factors)
            assert self.r2[group].shape == (len(self.views), self.n_factors)
            assert self.r2_total[group].shape == (len(self.views),)
            assert np.nanmax(self.r2_total[group]) >= 1.0  # below, R takes percents for shares
            assert all(len(column) == n for column in self.columns[group].values())
            for view in self.views:
                assert self.data[view][group].shape == (n, len(self.features[view]))
                assert self.intercepts[view][group].shape == (len(self.features[view]),)
            for places in (self.places, self.clocks):
                assert not places or places[group].shape == (n, len(self.covariates))
            for values in self.courses.get(group, {}).values():
                assert values.shape == (len(self.grid), self.n_factors)
        for view in self.views:
            assert self.w[view].shape == (len(self.features[view]), self.n_factors)
        assert bool(self.covariates) == bool(self.places) == bool(self.clocks) == bool(self.smooth)
        if self.covariates:
            assert set(self.smooth.values()) <= {"True", "False"}
            assert self.stats["scales"].shape == (self.n_factors,)
            assert self.stats["Kg"].shape == (self.n_factors, len(self.groups), len(self.groups))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ff.data.Dataset:
    rng = np.random.default_rng(2)
    time, group = np.tile(np.linspace(0.0, 10.0, N // 2), 2), np.repeat(["control", "high"], N // 2)
    scores = np.column_stack([np.sin(0.9 * time), rng.standard_normal(N)]) + 0.3 * rng.standard_normal((N, 2))
    names = [f"s{i}" for i in range(N)]
    values = scores @ rng.standard_normal((2, GENES)) + rng.standard_normal((N, GENES))
    rna = pd.DataFrame(values, names, [f"gene{i}" for i in range(GENES)])
    obs = pd.DataFrame({"time": time, "x": rng.uniform(0, 3, N), "y": rng.uniform(0, 3, N)}, names)
    mutations = pd.DataFrame((values[:, :5] > 0).astype(int), names, [f"m{i}" for i in range(5)])
    mutations.iloc[3:9] = np.nan
    path = tmp_path_factory.mktemp("mofa2") / "d.zarr"
    return ff.write_dataset(
        path,
        {"rna": rna, "mutations": mutations},
        {"mutations": "bernoulli"},
        obs=obs.assign(group=group),
        groups="group",
    )


def fit(dataset: ff.data.Dataset, **options: Any) -> ff.Posterior:
    return ff.fit(dataset, SparseGFA(n_factors=3, **options), progress=False, max_iter=30)


def export(posterior: ff.Posterior, folder: Path) -> Loaded:
    return Loaded(ff.analysis.export_mofa(posterior, folder / "model.hdf5"))  # type: ignore[arg-type]


@pytest.mark.thorough
def test_groups_and_views(dataset: ff.data.Dataset, tmp_path: Path) -> None:
    posterior = fit(dataset)
    found = export(posterior, tmp_path)
    assert (found.views, found.groups) == (["rna", "mutations"], ["control", "high"])
    assert found.covariates == []
    np.testing.assert_array_equal(np.concatenate(list(found.z.values())), posterior.scores().values)
    assert np.isnan(found.data["mutations"]["control"][3:9]).all()


def test_smooth_scores(dataset: ff.data.Dataset, tmp_path: Path) -> None:
    posterior = fit(dataset, smooth_covariates="time")
    found = export(posterior, tmp_path)
    assert found.covariates == ["time"]
    np.testing.assert_equal(found.clocks, found.places)  # figures of MOFA2 read these
    assert found.smooth == {"scale_cov": "False", "warping": "False", "model_groups": "True"}
    time = posterior.sample_metadata()["time"].to_numpy()
    np.testing.assert_array_equal(np.concatenate(list(found.places.values()))[:, 0], time)
    smooth = posterior.smoothness()
    np.testing.assert_array_equal(found.stats["scales"], smooth["smooth"])
    np.testing.assert_array_equal(found.stats["length_scales"], smooth["length_scale_time"])
    is_smooth = smooth["smooth"].to_numpy() > 0.0
    assert is_smooth.any()
    between = posterior.group_correlation().values
    np.testing.assert_array_equal(found.stats["Kg"][is_smooth], between[is_smooth])
    assert found.grid is not None
    assert (found.grid[0, 0], found.grid[-1, 0], len(found.grid)) == (0.0, 10.0, 100)
    for group in found.groups:
        expected = posterior.interpolate(found.grid, group)
        np.testing.assert_array_equal(found.courses[group]["mean"], expected["f_mean"])
        np.testing.assert_allclose(found.courses[group]["variance"], expected["f_sd"] ** 2)


def test_clocks_of_groups(dataset: ff.data.Dataset, tmp_path: Path) -> None:
    posterior = fit(dataset, smooth_covariates="time", warping=True)
    found = export(posterior, tmp_path)
    assert found.smooth["warping"] == "True"
    np.testing.assert_array_equal(
        np.concatenate(list(found.clocks.values()))[:, 0], posterior.warped().values
    )


def test_places_on_a_plane(dataset: ff.data.Dataset, tmp_path: Path) -> None:
    """One course for all groups: of a plane, with one length scale."""
    found = export(fit(dataset, smooth_covariates=[["x", "y"]], smooth_groups=False), tmp_path)
    assert found.covariates == ["x", "y"]
    assert found.smooth["model_groups"] == "False"
    np.testing.assert_array_equal(found.stats["Kg"], 1.0)
    assert found.stats["length_scales"].shape == (found.n_factors,)
    assert found.grid is not None
    assert found.grid.shape == (900, 2)


def test_random_intercepts_are_no_places(dataset: ff.data.Dataset, tmp_path: Path) -> None:
    assert export(fit(dataset, random_intercepts="group"), tmp_path).covariates == []


READ_IN_R = """
suppressPackageStartupMessages(library(MOFA2))
m <- load_model("model.hdf5", load_interpol_Z = TRUE, remove_inactive_factors = FALSE, sort_factors = FALSE)
pdf(NULL)
print(plot_interpolation_vs_covariate(m, covariate = "time", only_mean = FALSE))
numbers <- c(sum(do.call(rbind, get_factors(m))), sum(get_weights(m)$rna), sum(get_covariates(m)[[1]]))
cat(paste(views_names(m), collapse = ","), length(get_lengthscales(m)), sprintf("%.12f", numbers), "\\n")
"""


def has_mofa2() -> bool:
    if shutil.which("Rscript") is None:
        return False
    command = ["Rscript", "-e", "quit(status = !requireNamespace('MOFA2', quietly = TRUE))"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_mofa2_opens_it(dataset: ff.data.Dataset, tmp_path: Path) -> None:
    if not has_mofa2():
        pytest.skip("needs R and MOFA2")
    posterior = fit(dataset, smooth_covariates="time")
    ff.analysis.export_mofa(posterior, tmp_path / "model.hdf5")
    (tmp_path / "read.R").write_text(READ_IN_R)
    done = subprocess.run(["Rscript", "read.R"], cwd=tmp_path, capture_output=True, text=True, check=True)
    views, n_factors, z, w, time = done.stdout.splitlines()[-1].split()
    assert (views, n_factors) == ("rna,mutations", str(len(posterior.factors)))
    assert float(z) == pytest.approx(float(posterior.scores().sum()), abs=1e-6)
    assert float(w) == pytest.approx(float(posterior.loadings("rna").sum()), abs=1e-6)
    assert float(time) == pytest.approx(posterior.sample_metadata()["time"][: N // 2].sum())
