"""Fits: programs, batches and sizes that were simulated are found; predictions, scores and projections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix

import factorflow
from factorflow.errors import InputError
from factorflow.models import PoissonFactors

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")


def correlations(found: Any, truth: Any) -> np.ndarray:
    """Return the correlation of each true column with the one that is matched to it."""
    between = np.nan_to_num(np.corrcoef(np.asarray(found).T, np.asarray(truth).T))
    between = between[: found.shape[1], found.shape[1] :]
    rows, columns = linear_sum_assignment(-between)
    return between[rows, columns][np.argsort(columns)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two views, two batches, a tenth of the cells without the second view."""
    path = tmp_path_factory.mktemp("cells") / "d.zarr"
    settings: dict[str, Any] = {"batches": 2, "missing_samples": {"protein": 0.1}, "dispersion": 0.1}
    views = {"rna": 300, "protein": 60}
    return factorflow.simulate(
        "poisson_factors", path, 800, seed=2, views=views, n_factors=4, depth=0.6, block_rows=256, **settings
    )


@pytest.fixture(scope="module")
def posterior(dataset: Any) -> Any:
    model = PoissonFactors(n_factors=4, batch="batch", settling_iter=40, max_iter=60)
    return factorflow.fit(dataset, model, seed=1, progress=False)


def test_programs_batches_and_usages_are_found(dataset: Any, posterior: Any) -> None:
    truth = dataset.truth
    found = correlations(posterior.loadings("rna").values, truth["loadings_rna"].values)
    assert found[1:].min() > 0.9, found
    usage = correlations(posterior.scores().values, truth["scores"].values[:, 1:])
    assert usage.min() > 0.8, usage
    log_gamma = np.log(posterior.variable("batch_rna").values)
    expected = np.log(truth["batch_rna"].values)
    difference = np.corrcoef(log_gamma[0] - log_gamma[1], expected[0] - expected[1])[0, 1]
    assert difference > 0.9
    without = factorflow.fit(
        dataset, PoissonFactors(n_factors=4, settling_iter=40, max_iter=60), seed=1, progress=False
    )
    assert (
        without.tree["optimization/objective"].values[-1]
        < posterior.tree["optimization/objective"].values[-1]
    )


def test_results_are_told_in_units_of_their_own(dataset: Any, posterior: Any) -> None:
    """Programs sum to one over the features of all views, scores are expected counts, shares sum to one."""
    total = sum(posterior.loadings(view).sum(f"feature_{view}") for view in ("rna", "protein"))
    np.testing.assert_allclose(total.values, 1.0, rtol=1e-6)
    np.testing.assert_allclose(posterior.variable("share").sum("factor").values, 1.0, rtol=1e-4)
    order = (posterior.variable("share").values * [[300.0], [60.0]]).sum(axis=0)
    assert (np.diff(order) <= 0.05 * order.max()).all()
    sizes = posterior.size_factors("rna").values
    totals = dataset.values("rna").sum(axis=1)
    np.testing.assert_allclose(sizes, totals / totals.mean(), rtol=1e-5)
    mean = np.nanmean(dataset.values("rna"), axis=0)
    np.testing.assert_allclose(posterior.variable("scale_rna").values, np.sqrt(mean), atol=0.03)
    top = posterior.top_features("rna", "Factor2", 5)
    assert list(top.columns[:1]) == ["loading"]
    assert posterior.variance_explained().sizes["view"] == 2


def test_predictions_are_those_of_draws(posterior: Any) -> None:
    """Mean and variance of counts, by draws of theta, beta and gamma from q."""
    rng, n = np.random.default_rng(0), 4000
    rows = np.array([3, 500])

    def drawn(mean: Any, variance: Any) -> np.ndarray:
        mean, variance = np.asarray(mean, float), np.asarray(variance, float)
        return rng.gamma(mean**2 / variance, variance / mean, (n, *mean.shape))

    theta = drawn(posterior.scores().values[rows], posterior.variable("scores_variance").values[rows])
    beta = drawn(
        posterior.loadings("rna").values[:20], posterior.variable("loadings_variance_rna").values[:20]
    )
    code = posterior.variable("batch_code").values[rows]
    gamma = drawn(
        posterior.variable("batch_rna").values[:, :20],
        posterior.variable("batch_variance_rna").values[:, :20],
    )[:, code]
    size = posterior.size_factors("rna").values[rows]
    mean = size[:, None] * gamma * np.einsum("nbk,ndk->nbd", theta, beta)
    y = rng.poisson(mean)
    found = posterior.predict("rna")
    error = y.std(axis=0) / np.sqrt(n)
    assert (np.abs(found["mean"].values[rows][:, :20] - y.mean(axis=0)) < 5.0 * error).all()
    np.testing.assert_allclose(found["sd"].values[rows][:, :20], y.std(axis=0), rtol=0.3)
    big = mean.mean(axis=0) > 0.5
    np.testing.assert_allclose(found["sd"].values[rows][:, :20][big], y.std(axis=0)[big], rtol=0.07)


def test_held_out_zeros_are_no_zeros(dataset: Any) -> None:
    """Predictions of held-out counts add up to them; they would lie below if they were taken for 0."""
    model = PoissonFactors(n_factors=5, batch="batch", settling_iter=40, max_iter=20)
    fitted = factorflow.fit(dataset, model, seed=1, holdout=0.2, progress=False)
    scores = fitted.holdout_scores()
    assert scores.loc["rna", "log_likelihood"] > scores.loc["rna", "baseline_log_likelihood"] + 0.01
    predicted, held = 0.0, 0.0
    mean = fitted.predict("rna")["mean"].values
    from factorflow.data import Holdout

    for number in range(dataset.n_blocks):
        block, truth = dataset.read(number, ["rna"], Holdout(0.2, 1))
        rows, columns = block.hidden["rna"]
        predicted += mean[block.start + rows, columns].sum()
        held += truth["rna"].sum()
    assert predicted / held == pytest.approx(1.0, abs=0.03)


def test_new_cells_are_projected(dataset: Any, posterior: Any, tmp_path: Path) -> None:
    """The cells of the fit, under other names and without some features, have about the scores of the fit."""
    counts = dataset.values("rna")[:100]
    names = dataset.features("rna")
    batch = np.asarray(dataset.obs_columns(["batch"])["batch"])[:100]
    new = factorflow.write_dataset(
        tmp_path / "new.zarr",
        {"rna": pd.DataFrame(counts[:, ::-1], [f"new{i}" for i in range(100)], names[::-1])},
        likelihoods={"rna": "poisson"},
        obs=pd.DataFrame({"batch": batch}, [f"new{i}" for i in range(100)]),
        layout={"rna": "sparse"},
    )
    found = posterior.project(new)
    expected = posterior.scores().values[:100]
    assert correlations(found.scores().values, expected).min() > 0.9
    mean = found.predict("rna")["mean"].values
    assert np.corrcoef(mean.ravel(), counts.ravel())[0, 1] > 0.5
    unknown = posterior.project(new, covariates=False)
    assert (unknown.variable("batch_code").values == 2).all()


def test_layout_does_not_matter(tmp_path: Path) -> None:
    """Dense blocks are read as sparse ones are: bit by bit."""
    counts = np.random.default_rng(0).poisson(0.3, (90, 40))
    found = []
    for layout, given in (("dense", counts), ("sparse", csr_matrix(counts))):
        dataset = factorflow.write_dataset(
            tmp_path / layout, {"x": given}, likelihoods={"x": "poisson"}, layout={"x": layout}
        )
        model = PoissonFactors(n_factors=3, settling_iter=5, max_iter=5)
        found.append(factorflow.fit(dataset, model, progress=False))
    np.testing.assert_array_equal(found[0].scores().values, found[1].scores().values)
    np.testing.assert_array_equal(found[0].loadings("x").values, found[1].loadings("x").values)


def test_a_size_factor_of_another_view_is_refused(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).poisson(0.5, (60, 20))
    dataset = factorflow.write_dataset(tmp_path / "d", {"x": counts}, likelihoods={"x": "poisson"})
    with pytest.raises(InputError, match="size_factors = y: expected views x"):
        factorflow.fit(dataset, PoissonFactors(size_factors={"y": "none"}), progress=False)


def test_other_views_are_refused(tmp_path: Path) -> None:
    dataset = factorflow.write_dataset(tmp_path / "d", {"y": np.random.default_rng(0).normal(size=(9, 3))})
    with pytest.raises(InputError, match="views = y: expected views of counts"):
        factorflow.fit(dataset, PoissonFactors(), progress=False)


def test_programs_without_counts_are_left_out(tmp_path: Path) -> None:
    """Those below the share are not told of; the largest is in any case."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(2.0, 1.0, 200)[:, None] * rng.gamma(1.0, 1.0, 30))
    dataset = factorflow.write_dataset(tmp_path / "d", {"x": counts}, likelihoods={"x": "poisson"})
    options: dict[str, Any] = {"n_factors": 4, "settling_iter": 60, "max_iter": 200}
    fits = [
        factorflow.fit(dataset, PoissonFactors(drop=drop, **options), progress=False) for drop in (0.0, 0.5)
    ]
    assert [len(fit.factors) for fit in fits] == [4, 1]
    shares = fits[0].variable("share").values[0]
    np.testing.assert_allclose(fits[1].loadings("x").values[:, 0], fits[0].loadings("x").values[:, 0])
    assert (shares < 0.5).all()  # one is left in any case


def test_the_best_of_several_starts_goes_on(dataset: Any) -> None:
    model = PoissonFactors(n_factors=4, n_starts=3, settling_iter=10, start_iter=10, max_iter=5)
    fitted = factorflow.fit(dataset, model, seed=1, progress=False)
    reached = fitted.variable("start_objective").values
    trace = fitted.tree["optimization"].to_dataset()
    starts = trace["objective"].values[trace["stage"].values == "starts"]
    assert reached.shape == (3,)
    assert len(set(reached)) == 3
    assert starts[-1] == reached.max()
    assert reached.argmax() != 0
    assert trace["objective"].values[trace["stage"].values == "programs"][0] >= reached.max()
    assert fitted.variable("start_loadings_rna").shape == (3, 4, 300)
    total = sum(fitted.variable(f"start_loadings_{v}").sum(f"feature_{v}") for v in ("rna", "protein"))
    np.testing.assert_allclose(total.values, 1.0, rtol=1e-5)


def test_shrunken_scores_are_not_taken_for_depth(tmp_path: Path) -> None:
    """With size factors the deeper of like samples are drawn less to the prior, and no option is missing."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.lognormal(0.0, 0.5, (100, 1)) * rng.gamma(1.0, 0.3, 30))
    dataset = factorflow.write_dataset(tmp_path / "d", {"rna": counts}, {"rna": "poisson"})
    model = PoissonFactors(n_factors=1, settling_iter=3, max_iter=3)
    posterior = factorflow.fit(dataset, model, progress=False)
    assert not any("follows the depth" in finding.message for finding in posterior.findings)
