"""Figures that hold counts and measurements of a table against what the model expects of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import factorflow
from factorflow.errors import InputError
from factorflow.models import MoltenNormal, MoltenPoisson
from factorflow.posterior.predictive import tails, two_sided
from factorflow.report import write_report
from factorflow.report.checks import plot_calibration, plot_rootogram


@pytest.fixture(scope="module", params=["poisson", "gaussian"])
def posterior(request: Any, tmp_path_factory: Any) -> Any:
    path = tmp_path_factory.mktemp("table") / "d.zarr"
    data = factorflow.simulate("table", path, n_samples=600, seed=2, response=request.param)
    model = {"poisson": MoltenPoisson, "gaussian": MoltenNormal}[request.param]
    return factorflow.fit(data, model(n_components=2, n_starts=1, max_iter=60))


def bars(ax: Any) -> Any:
    return np.array([[bar.get_x() + bar.get_width() / 2, bar.get_height()] for bar in ax.patches])


@pytest.mark.thorough
def test_rootogram_shows_how_often_counts_were_there(posterior: Any) -> None:
    if posterior.meta.value_views[0].likelihood != "poisson":
        pytest.skip("no counts")
    ax = plot_rootogram(posterior, "y", Figure().subplots())
    y = posterior.dataset.values("y")[:, 0]
    for count, height in bars(ax):
        assert height**2 == pytest.approx((y == round(count)).sum(), abs=1e-6)
    expected = ax.lines[0].get_ydata() ** 2
    assert expected[:10].sum() == pytest.approx((y < 10).sum(), rel=0.1)


def test_calibration_is_a_density(posterior: Any) -> None:
    ax = plot_calibration(posterior, "y", Figure().subplots())
    heights = bars(ax)[:, 1]
    assert heights.mean() == pytest.approx(1.0)
    assert np.abs(heights - 1.0).max() < 0.8


def test_views_that_cannot_be_checked(tmp_path: Path) -> None:
    """Measurements have no rootogram; without a value there is nothing to draw, and no empty figure."""
    import pandas as pd

    rng = np.random.default_rng(0)
    names = [f"s{i}" for i in range(40)]
    views = {view: pd.DataFrame(rng.normal(size=(40, 5)), names, list("abcde")) for view in ("one", "other")}
    data = factorflow.write_dataset(tmp_path / "d", views)
    model = factorflow.models.SparseGFA(n_factors=1, max_iter=3, drop=0)
    fitted = factorflow.fit(data, model, progress=False)
    with pytest.raises(InputError, match=r"view = one \(gaussian\): expected a view of counts"):
        plot_rootogram(fitted, "one")
    new = fitted.project(factorflow.write_dataset(tmp_path / "n", {"one": views["one"][:9]}))
    with pytest.raises(InputError, match="view = other: expected a view with observed values"):
        plot_calibration(new, "other")
    counts = views["one"][:1].abs().round()
    with pytest.raises(InputError, match=r"Write the new samples with likelihoods=\{'one': 'gaussian'\}"):
        fitted.project(factorflow.write_dataset(tmp_path / "c", {"one": counts}, {"one": "poisson"}))


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_report_has_the_checks(posterior: Any, tmp_path: Path) -> None:
    text = write_report(posterior, tmp_path / "r.html").read_text()
    for words in ("Checks of the response", "Surprising rows", "Weights", "Predictive probabilities"):
        assert words in text
    assert ("Rootogram" in text) == (posterior.config.model == "molten_poisson")


def test_probabilities_of_new_values() -> None:
    y, mean = np.array([0.0, 3.0, np.nan]), np.array([2.0, 2.0, 2.0])
    low, _, at = tails("poisson", y, mean, np.sqrt(mean))
    np.testing.assert_allclose(low[:2], [0.0, stats.poisson.cdf(2, 2.0)])
    np.testing.assert_allclose(at[:2], stats.poisson.pmf([0, 3], 2.0))
    assert np.isnan([low[2], at[2]]).all()
    low, _, at = tails("poisson", y, mean, np.sqrt(mean + mean**2 / 4.0))  # Gamma(4, 2) rates
    np.testing.assert_allclose(at[:2], stats.nbinom.pmf([0, 3], 4.0, 4.0 / 6.0))
    np.testing.assert_allclose(low[:2], [0.0, stats.nbinom.cdf(2, 4.0, 4.0 / 6.0)])
    low, _, at = tails("gaussian", np.array([1.0]), np.array([0.0]), np.array([1.0]))
    assert (low[0], at[0]) == (pytest.approx(stats.norm.cdf(1.0)), 0.0)
    low, _, at = tails("bernoulli", np.array([0.0, 1.0]), np.array([0.3, 0.3]), np.array([0.0, 0.0]))
    np.testing.assert_allclose([low, at], [[0.0, 0.7], [0.7, 0.3]])


def test_surprise_is_two_sided() -> None:
    p = two_sided(*tails("gaussian", np.array([-1.96, 0.0, 1.96]), np.zeros(3), np.ones(3)))
    np.testing.assert_allclose(p, [0.05, 1.0, 0.05], atol=1e-4)
    assert two_sided(*tails("poisson", np.array([30.0]), np.array([2.0]), np.array([1.5])))[0] < 1e-10
