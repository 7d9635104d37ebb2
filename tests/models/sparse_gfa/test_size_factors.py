"""Size factors of counts: depths of samples that are no factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.errors import InputError

N, D, K = 200, 60, 3


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    z, size = rng.standard_normal((N, K)), np.exp(0.7 * rng.standard_normal(N))
    w = 0.5 * rng.standard_normal((D, K)) * (rng.random((D, K)) < 0.5)
    rate = np.exp(np.log(5) + 0.5 * rng.standard_normal(D) + z @ w.T) * size[:, None]
    y = rng.poisson(rate * rng.gamma(5.0, 0.2, rate.shape)).astype(float)
    y[rng.random(y.shape) < 0.1] = np.nan
    names = [f"s{i}" for i in range(N)]
    frame = pd.DataFrame(y, index=names, columns=[f"f{i}" for i in range(D)])
    folder = tmp_path_factory.mktemp("sizes")
    dataset = ff.write_dataset(folder / "data.zarr", {"rna": frame})
    return {"y": y, "z": z, "size": size, "rate": rate, "dataset": dataset, "frame": frame, "folder": folder}


def fit(truth: dict[str, Any], **options: Any) -> ff.Posterior:
    model = ff.models.SparseGFA(n_factors=6, likelihoods="negative_binomial", **options)
    return ff.fit(truth["dataset"], model, progress=False)


@pytest.mark.parametrize("kind", ["total", "median"])
def test_depths_are_found_and_are_no_factor(kind: str, truth: dict[str, Any]) -> None:
    posterior = fit(truth, size_factors=kind)
    assert (posterior.variance_explained().values[0, K:] < 0.01).all()
    found, y = posterior.size_factors("rna").values, truth["y"]
    seen = ~np.isnan(y)
    if kind == "total":
        expected = np.nansum(y, axis=1) / (seen * np.nanmean(y, axis=0)).sum(axis=1)
    else:
        logs = np.log(y + 0.5)
        expected = np.exp(np.nanmedian(logs - np.nanmean(logs, axis=0), axis=1))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.corrcoef(np.log(found), np.log(truth["size"]))[0, 1] > 0.94
    mean = posterior.predict("rna")["mean"].values
    assert np.corrcoef(np.log(mean).ravel(), np.log(truth["rate"]).ravel())[0, 1] > 0.95
    design = np.column_stack([np.ones(N), posterior.scores()])
    left = truth["z"] - design @ np.linalg.lstsq(design, truth["z"], rcond=None)[0]
    assert (1 - left.var(axis=0) / truth["z"].var(axis=0) > 0.75).all()
    share = 1 - np.nansum((y - mean) ** 2) / np.nansum((y - np.nanmean(y, axis=0)) ** 2)
    assert float(posterior.variance_explained_total()[0]) == pytest.approx(share, abs=0.01)


@pytest.mark.thorough
def test_terms_of_covariates_explain_beside_the_depths(truth: dict[str, Any], tmp_path: Path) -> None:
    frame, dose = truth["frame"].fillna(1.0), truth["z"][:, 0]
    obs = pd.DataFrame({"dose": dose}, frame.index)
    dataset = ff.write_dataset(tmp_path / "data.zarr", {"rna": frame}, obs=obs)
    model = ff.models.SparseGFA(n_factors=4, size_factors="total", covariates="dose")
    posterior = ff.fit(dataset, model, progress=False)
    x = posterior.intercept("rna").values + (
        posterior.variable("covariates").values @ posterior.variable("coefficients_rna").values.T
    )
    sizes, y = posterior.size_factors("rna").values[:, None], frame.to_numpy()
    levels = posterior.intercept("rna").values + 0.0 * x
    left, none = (((y - sizes * np.exp(predictor)) ** 2).sum() for predictor in (x, levels))
    share = (none - left) / ((y - y.mean(axis=0)) ** 2).sum()
    found = posterior.variance_explained(terms="covariate").sel(view="rna", term=["dose", "covariates"])
    np.testing.assert_allclose(found, share, atol=1e-6)


def test_new_samples_have_their_own_by_the_averages_of_the_fit(truth: dict[str, Any]) -> None:
    posterior = fit(truth, size_factors={"rna": "total"})
    rows = truth["frame"].iloc[:20]
    new = ff.write_dataset(truth["folder"] / "new.zarr", {"rna": rows}, likelihoods={"rna": "poisson"})
    found = posterior.project(new, progress=False)
    np.testing.assert_allclose(found.size_factors("rna"), posterior.size_factors("rna")[:20], rtol=1e-6)
    np.testing.assert_allclose(found.scores(), posterior.scores()[:20], atol=0.05)


def test_a_sample_without_counts_says_nothing(truth: dict[str, Any], tmp_path: Path) -> None:
    frame = truth["frame"].copy()
    frame.iloc[3] = 0.0
    dataset = ff.write_dataset(tmp_path / "data.zarr", {"rna": frame})
    posterior = ff.fit(dataset, ff.models.SparseGFA(n_factors=4, size_factors="total"), progress=False)
    assert (np.abs(posterior.scores().values[3]) < 1.0).all()
    assert (posterior.variable("scores_variance").values[3] > 0.5).all()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["total", "median"])
def test_a_sample_that_a_view_lacks_is_predicted_as_the_average(
    kind: str, truth: dict[str, Any], tmp_path: Path
) -> None:
    frame = truth["frame"].copy()
    frame.iloc[3] = np.nan
    other = pd.DataFrame(np.random.default_rng(0).standard_normal((N, 5)), frame.index)
    dataset = ff.write_dataset(tmp_path / "data.zarr", {"rna": frame, "other": other})
    posterior = ff.fit(dataset, ff.models.SparseGFA(n_factors=4, size_factors=kind), progress=False)
    assert posterior.size_factors("rna").values[3] == 1.0
    ratio = posterior.predict("rna")["mean"].values[3] / frame.mean()
    assert ratio.between(0.2, 5.0).all()


@pytest.fixture(scope="module")
def learned(truth: dict[str, Any]) -> ff.Posterior:
    frame = truth["frame"].copy()
    frame.iloc[3] = np.nan
    other = pd.DataFrame(np.random.default_rng(0).standard_normal((N, 5)), frame.index)
    views, path = {"other": other, "rna": frame}, truth["folder"] / "learned.zarr"
    dataset = ff.write_dataset(path, views, likelihoods={"rna": "negative_binomial"})
    return ff.fit(dataset, ff.models.SparseGFA(n_factors=6, size_factors="learned"), progress=False)


def test_learned_ones_are_closer_than_totals_and_leave_no_factor(
    learned: ff.Posterior, truth: dict[str, Any]
) -> None:
    seen = np.arange(N) != 3
    size = np.log(learned.size_factors("rna").values)
    assert np.corrcoef(size[seen], np.log(truth["size"][seen]))[0, 1] > 0.985
    assert size[seen].mean() == pytest.approx(0.0, abs=1e-4)
    assert len(learned.factors) == K
    totals = np.nansum(truth["y"], axis=1)[seen]
    assert np.corrcoef(np.log(totals), np.log(truth["size"][seen]))[0, 1] < 0.97
    objective = learned.trace["objective"].values
    assert (np.diff(objective[~np.isnan(objective)]) > -1e-6).all()


def test_the_learned_one_of_a_sample_is_where_its_density_is_highest(
    learned: ff.Posterior, truth: dict[str, Any]
) -> None:
    """E log p(y) + log p(log s) has a slope of 0 in log s, the expectation over x ~ N(mean, variance)."""
    rows, y = np.delete(np.arange(N), 3), np.delete(truth["y"], 3, axis=0)
    record = {v.name: learned.variable(v.name).values for v in learned.model.table if not v.rows}
    of_size = learned.variable("log_size_factors_variance").sel(view="rna").values
    log_size, scores = np.log(learned.size_factors("rna").values)[rows], learned.scores().values[rows]
    spread, loadings = learned.variable("scores_variance").values[rows], record["loadings_rna"]
    x = record["intercept_rna"] + scores @ loadings.T + log_size[:, None]
    variance = (scores**2 + spread) @ record["loadings_variance_rna"].T + spread @ (loadings**2).T
    variance += record["intercept_variance_rna"] + of_size[rows, None]
    nodes, share = np.polynomial.hermite_e.hermegauss(15)
    rate = np.exp(x[:, :, None] + np.sqrt(variance)[:, :, None] * nodes)
    r = 1.0 / record["dispersion_rna"]
    slope = y - (y + r) * ((rate / (rate + r[:, None])) @ share / share.sum())
    curvature = (y + r) * ((rate * r[:, None] / (rate + r[:, None]) ** 2) @ share / share.sum())
    beta = 1.0 / of_size[3]
    step = (np.nansum(slope, axis=1) - beta * log_size) / (np.nansum(curvature, axis=1) + beta)
    assert np.abs(step).max() < 0.02
    assert np.abs(step).mean() < 0.005
    np.testing.assert_allclose(1.0 / (np.nansum(curvature, axis=1) + beta), of_size[rows], rtol=0.1)


def test_intercepts_have_the_mean_that_is_reported(learned: ff.Posterior) -> None:
    """Both with the mean logarithm of the size factors."""
    mean = float(learned.intercept("rna").mean())
    assert float(learned.variable("intercept_mean").sel(view="rna")) == pytest.approx(mean, abs=0.1)
    assert abs(mean) > 0.5


def test_a_learned_one_is_that_of_the_average_where_the_view_is_missing(learned: ff.Posterior) -> None:
    size = learned.size_factors("rna").values
    assert size[3] == pytest.approx(1.0)
    variance = learned.variable("log_size_factors_variance").sel(view="rna").values
    assert variance[3] == pytest.approx(np.log(size).var(), rel=0.1)
    assert (np.delete(variance, 3) < 0.05).all()
    assert learned.variable("log_size_factors_variance").sel(view="other").values.max() == 0.0
    sd = learned.predict("rna")["sd"].values / learned.predict("rna")["mean"].values
    assert sd[3].mean() > 1.3 * np.delete(sd, 3, axis=0).mean()


def test_new_samples_learn_theirs(learned: ff.Posterior, truth: dict[str, Any]) -> None:
    rows = truth["frame"].iloc[10:30]
    new = ff.write_dataset(truth["folder"] / "newer.zarr", {"rna": rows}, likelihoods={"rna": "poisson"})
    found = learned.project(new, progress=False)
    np.testing.assert_allclose(found.size_factors("rna"), learned.size_factors("rna")[10:30], rtol=0.03)
    np.testing.assert_allclose(found.scores(), learned.scores()[10:30], atol=0.1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("totals", "none, total, median, learned, total+learned, a column of the sample metadata"),
        ({"x": "total"}, "views among"),
        ({"b": "total"}, "no rates"),
    ],
)
def test_what_is_refused(given: Any, message: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    views = {"a": rng.poisson(5, (30, 6)).astype(float), "b": (rng.random((30, 6)) < 0.5).astype(float)}
    dataset = ff.write_dataset(tmp_path / "data.zarr", views)
    with pytest.raises(InputError, match="size_factors") as error:
        ff.fit(dataset, ff.models.SparseGFA(n_factors=2, size_factors=given), progress=False)
    assert message in str(error.value)
    with pytest.raises(InputError, match="size factors"):
        ff.fit(dataset, ff.models.SparseGFA(n_factors=2, max_iter=2), progress=False).size_factors("a")


@pytest.mark.thorough
def test_draws_know_the_depths_of_counts(truth: dict[str, Any]) -> None:
    """Draws and the fit agree where an outcome of the same samples is open, as it is without draws."""
    frame = truth["frame"].iloc[:80, :20]
    outcome = pd.DataFrame({"y": truth["z"][:80, 0] + 0.3}, frame.index)
    path, likelihoods = truth["folder"] / "sampled.zarr", {"rna": "poisson"}
    views = {"outcome": outcome, "rna": frame}
    dataset = ff.write_dataset(path, views, likelihoods=likelihoods)
    short = {"n_factors": 3, "size_factors": "total", "max_iter": 30}
    fitted = ff.fit(dataset, ff.models.SparseGFA(**short), progress=False)
    model = ff.models.SparseGFA(**short, n_draws=30, n_burn_in=20, chains=1)
    sampled = ff.fit(dataset, model, progress=False)
    np.testing.assert_allclose(sampled.size_factors("rna"), fitted.size_factors("rna"), rtol=1e-12)
    means = [np.log(p.predict("rna")["mean"].values) for p in (fitted, sampled)]
    assert np.abs(means[0] - means[1]).mean() < 0.1
    assert "inclusion_rna" in [v.name for v in sampled.model.table]
    assert "inclusion_outcome" not in [v.name for v in sampled.model.table]
    new = ff.write_dataset(truth["folder"] / "drawn.zarr", {"rna": frame.iloc[:20]}, likelihoods=likelihoods)
    found = sampled.project(new, progress=False, iterations=30)
    np.testing.assert_allclose(found.size_factors("rna"), sampled.size_factors("rna")[:20], rtol=1e-9)


@pytest.mark.thorough
def test_draws_learn_size_factors(learned: ff.Posterior, truth: dict[str, Any]) -> None:
    """They agree with those of the fit; predictions know them, and those of new samples are learned again."""
    rows = truth["frame"].iloc[:60, :20]
    path, likelihoods = truth["folder"] / "learned_draws.zarr", {"rna": "poisson"}
    dataset = ff.write_dataset(path, {"rna": rows}, likelihoods=likelihoods)
    short = {"n_factors": 3, "size_factors": "learned", "max_iter": 30}
    fitted = ff.fit(dataset, ff.models.SparseGFA(**short), progress=False)
    model = ff.models.SparseGFA(**short, n_draws=40, n_burn_in=40, chains=1)
    sampled = ff.fit(dataset, model, progress=False)
    found, expected = (np.log(p.size_factors("rna").values) for p in (sampled, fitted))
    assert np.corrcoef(found, expected)[0, 1] > 0.99
    means = [np.log(p.predict("rna")["mean"].values) for p in (fitted, sampled)]
    assert np.abs(means[0] - means[1]).mean() < 0.15
    draws = sampled.draws("log_size_factors").sel(view="rna")
    np.testing.assert_allclose(draws.mean(("chain", "draw")), found, atol=1e-5)
    variance = sampled.variable("log_size_factors_variance").sel(view="rna")
    np.testing.assert_allclose(draws.var(("chain", "draw")), variance, atol=1e-5)
    new = ff.write_dataset(truth["folder"] / "few.zarr", {"rna": rows.iloc[:10]}, likelihoods=likelihoods)
    again = sampled.project(new, progress=False, iterations=5)
    assert np.corrcoef(np.log(again.size_factors("rna")), found[:10])[0, 1] > 0.95
