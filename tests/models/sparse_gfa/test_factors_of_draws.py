"""Predictions by some factors of draws, and variance explained, whatever their order in a chain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.posterior.variance import terms_from_data

pytestmark = pytest.mark.filterwarnings("ignore:The chains have not mixed", "ignore:The run was ended")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A short run of two chains, the factors of the second exchanged in what is stored."""
    rng = np.random.default_rng(15_300)
    scores, loadings = rng.standard_normal((60, 2)), rng.standard_normal((2, 9))
    values = scores @ loadings + rng.standard_normal((60, 9))
    values[rng.random(values.shape) < 0.1] = np.nan
    counts = rng.poisson(np.exp(0.5 * scores @ rng.standard_normal((2, 6)))).astype(float)
    data = factorflow.write_dataset(
        tmp_path_factory.mktemp("draws") / "d.zarr", {"a": values, "c": counts}, {"c": "poisson"}
    )
    config = SparseGFA(n_factors=3, n_draws=40, n_burn_in=20, chains=2)
    posterior = factorflow.fit(data, config, seed=1, progress=False)
    tree = posterior.tree.copy(deep=True)
    order = np.arange(len(posterior.factors))[::-1]
    for name in ("loadings_a", "loadings_c", "scores_draws"):
        group = next(str(g) for g in tree.children if name in tree[str(g)].data_vars)
        tree[group][name].values[1] = tree[group][name].values[1][..., order]
    exchanged = type(posterior)(tree, posterior.path)
    return SimpleNamespace(posterior=posterior, exchanged=exchanged, values=values)


@pytest.mark.thorough
def test_by_one_factor_they_are_means_over_aligned_draws(given: Any) -> None:
    for posterior in (given.posterior, given.exchanged):
        scores, loadings = posterior.draws("scores_draws").values, posterior.draws("loadings_a").values
        intercept = posterior.draws("intercept_a").values[:, :, None]
        for k in range(len(posterior.factors)):
            each = np.einsum("cmn,cmd->cmnd", scores[..., k], loadings[..., k]) + intercept
            found = posterior.predict("a", factors=[k + 1])["mean"].values
            np.testing.assert_allclose(found, each.mean(axis=(0, 1)), rtol=1e-5, atol=1e-6)


def test_variance_explained_is_the_formula(given: Any) -> None:
    y, posterior = given.values, given.posterior
    total = np.nansum((y - np.nanmean(y, axis=0)) ** 2)
    none = np.broadcast_to(posterior.intercept("a").values, y.shape)
    shares = posterior.variance_explained().sel(view="a").values
    for k, share in enumerate(shares):
        alone = posterior.predict("a", factors=[k + 1])["mean"].values
        gain = np.nansum((y - none) ** 2) - np.nansum((y - alone) ** 2)
        assert share == pytest.approx(gain / total, abs=1e-6)
    whole = np.nansum((y - posterior.predict("a")["mean"].values) ** 2)
    found = posterior.variance_explained_total()
    assert found.sel(view="a") == pytest.approx(1.0 - whole / total, abs=1e-6)
    assert 0.4 < found.sel(view="a") < 0.95
    assert found.sel(view="c") > 0.2


def test_the_order_of_factors_in_a_chain_does_not_matter(given: Any) -> None:
    np.testing.assert_allclose(
        given.exchanged.variance_explained().values, given.posterior.variance_explained().values, atol=1e-6
    )


@pytest.fixture(scope="module")
def with_covariates(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A fit with covariates, and chains of the same model."""
    rng, n, d = np.random.default_rng(3), 200, 12
    batch = rng.integers(0, 3, n)
    obs = pd.DataFrame({"age": rng.standard_normal(n), "batch": np.array(["A", "B", "C"])[batch]})
    effects = np.outer(obs["age"], rng.standard_normal(d)) + (0.6 * rng.standard_normal((3, d)))[batch]
    factors = rng.standard_normal((n, 2)) @ rng.standard_normal((2, d))
    y = 2.0 + effects + factors + rng.standard_normal((n, d))
    y[rng.random(y.shape) < 0.05] = np.nan
    folder = tmp_path_factory.mktemp("covariates")
    data = factorflow.write_dataset(folder / "d.zarr", {"a": y}, obs=obs)
    options: dict[str, Any] = {"n_factors": 2, "covariates": ["age", "batch"]}
    fit = factorflow.fit(data, SparseGFA(**options), progress=False)
    chains = SparseGFA(**options, n_draws=40, n_burn_in=20, chains=1)
    sampled = factorflow.fit(data, chains, seed=1, progress=False)
    return SimpleNamespace(fit=fit, sampled=sampled, y=y)


def share_of_terms(y: Any, intercepts: Any, effects: Any) -> Any:
    """Return the share of y that effects, (n, d), explain beside the intercepts."""
    about = np.nansum((y - np.nanmean(y, axis=0)) ** 2)
    left, none = (np.nansum((y - intercepts - part) ** 2) for part in (effects, 0.0))
    return (none - left) / about


@pytest.mark.thorough
def test_terms_of_covariates_of_draws_are_the_formula(with_covariates: Any) -> None:
    y, posterior = with_covariates.y, with_covariates.sampled
    found = posterior.variance_explained(terms="all").sel(view="a")
    assert found.term.values.tolist() == ["age", "batch", "covariates", *posterior.factors]
    given, slopes = posterior.variable("covariates").values, posterior.variable("coefficients_a").values
    intercepts = posterior.variable("intercept_a").values
    for term, columns in {"age": [0], "batch": [1, 2, 3], "covariates": [0, 1, 2, 3]}.items():
        expected = share_of_terms(y, intercepts, given[:, columns] @ slopes[:, columns].T)
        assert float(found.sel(term=term)) == pytest.approx(expected, abs=1e-6)
    shares = posterior.variance_explained().sel(view="a").values
    np.testing.assert_array_equal(found.sel(term=posterior.factors).values, shares)
    by_feature = posterior.variance_explained("feature", terms="covariate")
    assert by_feature.dims == ("feature_a", "term")
    weights = np.nansum((y - np.nanmean(y, axis=0)) ** 2, axis=0)
    together = np.average(by_feature.values, axis=0, weights=weights)
    np.testing.assert_allclose(together, found.values[:3], atol=1e-6)


def test_terms_of_draws_are_those_of_the_fit(with_covariates: Any) -> None:
    """The mean's share within a standard deviation of that of single draws."""
    y, sampled = with_covariates.y, with_covariates.sampled
    given, slopes = sampled.variable("covariates").values, sampled.draws("coefficients_a").values[0]
    intercepts = sampled.draws("intercept_a").values[0]
    fitted = with_covariates.fit.variance_explained(terms="covariate").sel(view="a").values
    found = sampled.variance_explained(terms="covariate").sel(view="a").values
    for share, expected, columns in zip(found, fitted, ([0], [1, 2, 3], [0, 1, 2, 3]), strict=True):
        each = [
            share_of_terms(y, b, given[:, columns] @ slope[:, columns].T)
            for b, slope in zip(intercepts, slopes, strict=True)
        ]
        assert np.std(each) < 0.02
        assert share == pytest.approx(expected, abs=np.std(each))


def test_terms_from_the_data_are_those_that_a_fit_records(with_covariates: Any) -> None:
    fit = with_covariates.fit
    again = terms_from_data(fit, None, None)
    np.testing.assert_allclose(again.values, fit.variance_explained(terms="covariate").values, atol=1e-6)
