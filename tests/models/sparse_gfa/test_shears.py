"""Shears of smooth factors: what they gain, what they leave as it is, and that the next pass judges them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

import factorflow as ff
from factorflow.core.places import Places
from factorflow.core.trees import replace
from factorflow.models.sparse_gfa.smooth import sweeps as sweeps_module
from factorflow.models.sparse_gfa.smooth.cosines import choose_basis
from factorflow.models.sparse_gfa.smooth.courses import open_courses
from factorflow.models.sparse_gfa.smooth.shears import _scaled_course
from factorflow.models.sparse_gfa.state import Globals


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ff.Dataset:
    """Two curves of correlation .5, which a plain fit takes for others that have none."""
    rng = np.random.default_rng(1)
    n, n_features = 300, 120
    t = np.linspace(0.0, 1.0, n)
    one, two = np.sin(7 * t), np.cos(11 * t + 1)
    curves = np.column_stack([one, one + two])
    scores = (curves - curves.mean(axis=0)) / curves.std(axis=0) + 0.3 * rng.standard_normal((n, 2))
    loadings = rng.standard_normal((n_features, 2)) * (rng.random((n_features, 2)) < 0.2)
    names = [f"s{i}" for i in range(n)]
    frame = pd.DataFrame(scores @ loadings.T + 0.7 * rng.standard_normal((n, n_features)), names)
    obs = pd.DataFrame({"time": t}, names)
    return ff.write_dataset(tmp_path_factory.mktemp("shears") / "data.zarr", {"a": frame}, obs=obs)


def fit(dataset: ff.Dataset) -> Any:
    model = ff.models.SparseGFA(n_factors=2, smooth_covariates="time", n_functions=20)
    return ff.fit(dataset, model, progress=False)


def bounds(posterior: Any) -> Any:
    trace = posterior.trace.to_dataframe()
    return trace.loc[trace["stage"] == "smooth or not", "objective"].to_numpy()


@pytest.fixture(scope="module")
def slow(dataset: ff.Dataset) -> Any:
    """Bounds of the passes without shears."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps_module, "SHEAR_ROUNDS", ())
        return bounds(fit(dataset))


@pytest.mark.thorough
def test_shears_spare_passes(dataset: ff.Dataset, slow: Any) -> None:
    found = bounds(fit(dataset))
    assert len(found) < 0.6 * len(slow)
    assert found[-1] > slow[-1] - 1.0
    assert (np.diff(found) > -1e-9 * np.abs(found[:-1])).all()


def test_shears_that_lower_the_bound_are_taken_back(
    dataset: ff.Dataset, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(settings: Any, globals_: Globals, *_: Any) -> Globals:
        weights = {name: replace(w, mean=w.mean[::-1].copy()) for name, w in globals_.weights.items()}
        return replace(globals_, weights=weights)

    monkeypatch.setattr(sweeps_module, "SHEAR_ROUNDS", (1,))
    monkeypatch.setattr(sweeps_module, "shear_factors", spoil)
    found = bounds(fit(dataset))
    assert found[1] == found[0]
    assert (np.diff(found) >= -1e-9 * np.abs(found[:-1])).all()
    assert abs(found[-1] - slow[-1]) < 1.0


@pytest.mark.parametrize("functions", [None, 20])
def test_a_scaled_course_is_consistent(functions: int | None) -> None:
    """E |v|^2 and log |Cov v| are those of the course, and its share is where the evidence is highest."""
    x = np.linspace(0.0, 1.0, 30)
    cells = tuple((0.0, float(value)) for value in x)
    places = Places(("t",), (0,), low=(0.0,), high=(1.0,), nearest=(0.03,), cells=cells)
    basis = choose_basis(places, "matern52", functions)
    phi = basis.functions(x[:, None], np.zeros(30, int))
    centre = phi.mean(axis=0)
    phi = phi - centre
    second = phi.T @ phi / 30.0
    courses = open_courses(basis, centre, second, 30.0, 1)
    z = np.sin(6 * x) + 0.3 * np.random.default_rng(0).standard_normal(30)
    z -= z.mean()
    new, scale = _scaled_course(basis, courses, 0, (phi.T @ z, float(z @ z)), 5.0)
    covariance = basis.scaled_covariance(new.lengths[0], new.sharing[0], second)[0]
    covariance = (1.0 - new.noise[0]) * (np.diag(covariance) if covariance.ndim == 1 else covariance)
    energy = new.mean[0] @ np.linalg.solve(covariance, new.mean[0])
    energy += np.trace(np.linalg.solve(covariance, new.covariance[0]))
    assert new.energy[0] == pytest.approx(energy, rel=1e-6)
    logdet = np.linalg.slogdet(np.linalg.solve(covariance, new.covariance[0]))[1]
    assert new.logdet[0] == pytest.approx(logdet, abs=1e-6 * len(centre))

    def density(share: float, size: float) -> float:
        prior = (1.0 - share) * np.eye(30) + share * phi @ (covariance / (1.0 - new.noise[0])) @ phi.T
        return float(multivariate_normal.logpdf(size * z, np.zeros(30), prior) + 30.0 * np.log(size))

    best = density(1.0 - new.noise[0], scale)
    for share, size in ((0.01, 1.0), (-0.01, 1.0), (0.0, 1.01), (0.0, 0.99), (0.01, 1.01), (-0.01, 0.99)):
        assert density(1.0 - new.noise[0] + share, scale * size) < best
    assert abs(new.mean[0] @ phi.T - scale * np.sin(6 * x)).mean() < 0.3
    rough = np.tile([1.0, -1.0], 15)
    white = _scaled_course(basis, courses, 0, (phi.T @ rough, float(rough @ rough)), 0.5)[0]
    assert white.noise[0] > 0.99  # and q of its coefficients is near their prior
    assert white.energy[0] + len(centre) * 0.01 > len(centre) > white.energy[0] - 1.0
