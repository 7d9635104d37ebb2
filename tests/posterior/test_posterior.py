"""The public surface of a posterior, on numbers that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bayesian_pca
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import factorflow
from factorflow import Posterior, open_posterior
from factorflow.data import Holdout
from factorflow.errors import InputError
from factorflow.models import SparseGFA, registry


def _direct(given: Any, view: str) -> tuple[Any, Any]:
    mean, sd = given.model.predict(None, given.rows, given.record, view)
    return mean, sd


def test_predictions_are_computed_for_the_rows_that_are_looked_at(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    original = type(given.model).predict

    def watch(self: Any, block: Any, rows: Any, record: Any, view: str) -> Any:
        asked.append(len(rows["scores"]))
        return original(self, block, rows, record, view)

    monkeypatch.setattr(type(given.model), "predict", watch)
    predicted = given.posterior.predict("rna")
    assert dict(predicted.sizes) == {"obs": 70, "feature_rna": 12}
    repr(predicted)
    assert asked == []
    part = predicted.isel(obs=slice(3, 9))
    mean, sd = _direct(given, "rna")
    asked.clear()
    np.testing.assert_allclose(part["mean"].values, mean[3:9])
    np.testing.assert_allclose(part["sd"].values, sd[3:9])
    assert asked == [6]  # mean and sd from one computation
    np.testing.assert_allclose(predicted["mean"].sel(obs="sample 7"), mean[7])
    np.testing.assert_allclose(predicted["mean"].sel(feature_rna="rna 4"), mean[:, 4])


def test_predictions_by_rows_and_by_name(given: Any, tmp_path: Path) -> None:
    given.posterior.save(tmp_path / "p.zarr")
    for posterior in (given.posterior, open_posterior(tmp_path / "p.zarr")):
        mean, sd = _direct(given, "mutation")
        some = posterior.predict("mutation", obs=["sample 50", "sample 2"])
        assert list(some.obs.values) == ["sample 50", "sample 2"]
        np.testing.assert_allclose(some["mean"], mean[[50, 2]])
        np.testing.assert_allclose(some["sd"], sd[[50, 2]])
        np.testing.assert_allclose(posterior.predict("mutation", 10, 12)["mean"], mean[10:12])
        assert posterior.predict("mutation", 5, 5)["mean"].shape == (0, 7)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.integers(0, 69), min_size=0, max_size=6),
    columns=st.lists(st.integers(0, 11), max_size=5),
)
def test_any_selection_of_a_lazy_prediction(make_given: Any, rows: list[int], columns: list[int]) -> None:
    registry.registered_models()
    made = _cached(make_given)
    mean, _ = _direct(made, "rna")
    selected = made.posterior.predict("rna")["mean"].isel(obs=rows, feature_rna=columns)
    np.testing.assert_allclose(selected.values, mean[np.ix_(rows, columns)])


_made: list[Any] = []


def _cached(make_given: Any) -> Any:
    if not _made:
        _made.append(make_given())
    made = _made[0]
    made.posterior.__dict__["model"] = made.model  # the family is not registered here
    return made


def test_predictions_by_some_factors(given: Any) -> None:
    """The intercepts and what each factor adds make up the whole."""
    posterior = given.posterior
    base = posterior.predict("rna", factors=[])["mean"].values
    parts = [posterior.predict("rna", factors=[k])["mean"].values - base for k in np.arange(1, 4)]
    np.testing.assert_allclose(base + sum(parts), posterior.predict("rna")["mean"].values)
    two = posterior.predict("rna", 3, 9, factors=["Factor3", 1])["mean"].values
    np.testing.assert_allclose(two, (base + parts[0] + parts[2])[3:9])
    with pytest.raises(InputError, match="factor = 9"):
        posterior.predict("rna", factors=[9])


@pytest.mark.parametrize("rows", [1, 5, 13, 1000])
def test_predictions_in_pieces(given: Any, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Also where the last piece is of one row, and where one row is asked for."""
    monkeypatch.setattr("factorflow.posterior.prediction.PIECE_ENTRIES", rows * 12)
    for n in range(1, 2 * rows + 2) if rows < 100 else ():
        assert given.posterior.predict("rna", 0, n)["mean"].values.shape == (n, 12)
    mean, _ = _direct(given, "rna")
    np.testing.assert_allclose(given.posterior.predict("rna")["mean"].values, mean)


def test_imputation_keeps_what_was_observed(given: Any) -> None:
    filled = given.posterior.impute("rna")
    values = given.dataset.values("rna")
    seen = ~np.isnan(values)
    mean, sd = _direct(given, "rna")
    np.testing.assert_array_equal(filled["observed"], seen)
    np.testing.assert_allclose(filled["mean"].values[seen], values[seen])
    np.testing.assert_allclose(filled["mean"].values[~seen], mean[~seen])
    assert (filled["sd"].values[seen] == 0).all()
    np.testing.assert_allclose(filled["sd"].values[~seen], sd[~seen])
    np.testing.assert_allclose(filled["mean"].isel(obs=[40, 3]).values, filled["mean"].values[[40, 3]])
    assert set(np.unique(given.posterior.impute("mutation", 0, 5)["sd"])) == {0.0}


def test_variance_explained_is_the_formula(given: Any) -> None:
    share = given.posterior.variance_explained()
    assert share.dims == ("view", "factor")
    y = given.dataset.values("rna").astype(float)
    y[Holdout(0.1, 0).mask(0, 0, *y.shape)] = np.nan  # what was held out of the run does not count
    seen = ~np.isnan(y)
    centre = np.nanmean(y, axis=0)
    total = np.where(seen, y - centre, 0.0)
    alone = np.where(seen, y - given.record["intercept_rna"], 0.0)
    for k, factor in enumerate(given.posterior.factors):
        fit = (
            given.rows["scores"][:, [k]] @ given.record["loadings_rna"][:, [k]].T
            + given.record["intercept_rna"]
        )
        residual = np.where(seen, y - fit, 0.0)
        expected = ((alone**2).sum() - (residual**2).sum()) / (total**2).sum()
        assert float(share.sel(view="rna", factor=factor)) == pytest.approx(expected)
    mean, _ = _direct(given, "rna")
    residual = np.where(seen, y - mean, 0.0)
    everything = given.posterior.variance_explained_total()
    assert float(everything.sel(view="rna")) == pytest.approx(1 - (residual**2).sum() / (total**2).sum())
    assert float(everything.sel(view="rna")) > 0.7


def test_variance_explained_by_group_adds_up(given: Any) -> None:
    by_group = given.posterior.variance_explained(by="group")
    assert by_group.dims == ("group", "view", "factor")
    assert list(by_group["group"].values) == ["a", "b"]
    low = by_group.min("group") - 1e-12 <= given.posterior.variance_explained()
    high = given.posterior.variance_explained() <= by_group.max("group") + 1e-12
    assert bool((low & high).all())  # the share over all samples lies between those of the groups


def test_holdout_scores(given: Any, make_given: Any) -> None:
    table = given.posterior.holdout_scores()
    assert list(table.index) == ["rna", "mutation"]
    assert table.loc["mutation", "auc"] == 0.8
    assert np.isnan(table.loc["rna", "auc"])
    with pytest.raises(InputError, match="holdout"):
        make_given().posterior.holdout_scores()


def test_top_features_of_all_views(given: Any) -> None:
    table = given.posterior.top_features(factor=2, n=3)
    assert table["view"].tolist() == ["rna"] * 3 + ["mutation"] * 3
    for view in ("rna", "mutation"):
        pd.testing.assert_frame_equal(
            table[table["view"] == view].drop(columns="view"), given.posterior.top_features(view, 2, 3)
        )


def test_top_features(given: Any) -> None:
    table = given.posterior.top_features("rna", "Factor1", 3)
    loadings = given.record["loadings_rna"][:, 0]
    order = np.argsort(-np.abs(loadings))[:3]
    assert list(table.index) == [f"rna {j}" for j in order]
    np.testing.assert_allclose(table["loading"], loadings[order])
    np.testing.assert_allclose(table["inclusion"], given.record["inclusion_rna"][order, 0])
    np.testing.assert_allclose(table["sd"], 0.2)
    assert given.posterior.top_features("rna", 1, 3).equals(table)


def test_intervals_of_top_features(given: Any) -> None:
    """Normal, of this sd; where a fit says what it leaves open, of that."""
    table = given.posterior.top_features("rna", 1, 3, interval=0.9)
    np.testing.assert_allclose(table["upper"] - table["loading"], 1.6449 * 0.2, rtol=1e-4)
    np.testing.assert_allclose(table["loading"] - table["lower"], 1.6449 * 0.2, rtol=1e-4)
    with pytest.raises(InputError, match="interval = 95: expected a share between 0 and 1"):
        given.posterior.top_features("rna", 1, interval=95)


def test_summary_is_plain(given: Any) -> None:
    facts = given.posterior.summary()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["n_factors"] == 3
    assert facts["status"] == "complete"
    assert facts["holdout_scores"]["mutation"]["auc"] == 0.8
    assert facts["factors"][0]["top_features"]["rna"][0] == given.posterior.top_features("rna", 1, 1).index[0]


def test_faces(given: Any) -> None:
    text = repr(given.posterior)
    for word in ("given", "70 samples", "Factor", "rna (gaussian, 12)", "0.8000"):
        assert word in text or word == "Factor"
    html = given.posterior._repr_html_()
    assert "<table>" in html
    assert "mutation" in html
    assert max(len(line) for line in text.splitlines()) < 160


def test_sample_metadata_travels_along(given: Any) -> None:
    columns = given.posterior.sample_metadata()
    assert list(columns.columns) == ["group", "age", "sex"]
    np.testing.assert_allclose(columns["age"], 50 + 10 * given.rows["scores"][:, 0])
    assert list(columns.index) == list(given.dataset.obs_names)


@pytest.mark.thorough
def test_metadata_have_whatever_names_they_were_given(tmp_path: Path) -> None:
    """Also names that no array of a store, or that another one, can have."""
    names = [f"s{i}" for i in range(40)]
    obs = pd.DataFrame(
        {name: [f"{name}{i % 3}" for i in range(40)] for name in ("a/b", "", ".", "obs", "factor")}
    )
    data = factorflow.write_dataset(
        tmp_path / "d.zarr", {"x": np.random.default_rng(0).normal(size=(40, 6))}, obs=obs, samples=names
    )
    config = SparseGFA(n_factors=2, warmup_iter=2, max_iter=2)
    stored = factorflow.fit(data, config, out=tmp_path / "p.zarr")
    for posterior in (stored, factorflow.open_posterior(tmp_path / "p.zarr"), factorflow.fit(data, config)):
        assert list(posterior.obs_names) == names
        found = posterior.sample_metadata()
        assert set(found) == set(obs)
        for name in obs:
            assert found[name].tolist() == obs[name].tolist()


@pytest.mark.thorough
def test_draws_from_q_have_its_moments(given: Any) -> None:
    drawn = given.posterior.sample(400, seed=1)
    loadings = drawn.tree["posterior"]["loadings_rna"]
    assert loadings.dims == ("chain", "draw", "feature_rna", "factor")
    expected = given.record["loadings_rna"]
    error = np.sqrt(given.record["loadings_variance_rna"] / 400)
    assert (np.abs(loadings.mean(("chain", "draw")) - expected) < 5 * error).all()
    spread = loadings.var(("chain", "draw")).values
    included = given.record["inclusion_rna"] > 0
    np.testing.assert_allclose(spread[included], 0.04, rtol=0.5)
    assert (loadings.values[:, :, ~included] == 0).all()
    again = given.posterior.sample(400, seed=1)
    np.testing.assert_array_equal(again.tree["posterior"]["scores"], drawn.tree["posterior"]["scores"])
    assert drawn.tree["posterior"].attrs["inference_method"] == "variational"


def test_no_r_hat_for_variational(given: Any) -> None:
    with pytest.raises(InputError, match="variational"):
        given.posterior.diagnostics()


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("sampled")
    data = factorflow.simulate(
        "sparse_gfa",
        folder / "data.zarr",
        n_samples=60,
        block_rows=32,
        seed=7,
        **bayesian_pca.BayesianPCA.examples()["default"].data,
    )
    return factorflow.fit(data, bayesian_pca.BayesianPCA(n_draws=20), out=folder / "p.zarr", holdout=0.1)


@pytest.mark.thorough
def test_a_sampler_in_arviz(sampled: Any) -> None:
    import arviz_base

    assert {"posterior", "sample_stats", "iterations"} <= set(sampled.tree.children)
    assert dict(sampled.tree["posterior"].sizes)["draw"] == 20
    extracted = arviz_base.extract(sampled.tree, var_names=["tau"])
    assert extracted.sizes["sample"] == 40
    table = sampled.diagnostics()
    assert {"tau", "alpha[intercept]", "intercept_a[feature 1]"} & set(table.index)
    assert np.isfinite(table.loc["tau", "r_hat"])
    assert (table["ess_bulk"].dropna() > 0).all()


def test_a_samplers_means(sampled: Any) -> None:
    drawn = sampled.tree["posterior"]["intercept_a"]
    np.testing.assert_allclose(sampled.intercept("a"), drawn.mean(("chain", "draw")))
    assert sampled.predict("a").isel(obs=slice(0, 5))["mean"].shape == (5, 7)
    assert sampled.trace["objective"].dims == ("chain", "iteration")
    assert json.dumps(sampled.summary())
    assert "monte carlo" in repr(sampled)
    with pytest.raises(InputError, match="draws"):
        sampled.sample()


@pytest.mark.parametrize("stored", [True, False])
def test_factors_are_aligned_before_means_are_taken(
    sampled: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stored: bool
) -> None:
    """Draws whose factors were renamed and turned over at random give the means of the original ones."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(bayesian_pca.Model, "symmetry", "sign", raising=False)
    groups = {n.path: n.to_dataset(inherit=False).load().copy(deep=True) for n in sampled.tree.subtree}
    drawn = groups["/posterior"]
    plain = Posterior(xr.DataTree.from_dict(groups))
    expected = np.abs(plain.loadings("a").values)
    expected_scores = np.abs(plain.variable("scores_draws").values)
    for chain in range(2):
        for draw in range(20):
            order, sign = rng.permutation(2), rng.choice([-1.0, 1.0], 2)
            for name in ("loadings_a", "loadings_b", "scores_draws"):
                values = drawn[name].values
                values[chain, draw] = values[chain, draw][:, order] * sign
    shuffled = Posterior(xr.DataTree.from_dict(groups))
    if stored:
        shuffled.save(tmp_path / "p.zarr")
        shuffled = open_posterior(tmp_path / "p.zarr")
    found = np.abs(shuffled.loadings("a").values)
    order = [0, 1] if np.allclose(found[:, 0], expected[:, 0]) else [1, 0]
    np.testing.assert_allclose(found[:, order], expected)
    scores = np.abs(shuffled.variable("scores_draws").values)[:, order]
    np.testing.assert_allclose(scores, expected_scores)


@pytest.mark.thorough
def test_draws_of_spikes_and_slabs(make_given: Any) -> None:
    """Share of zeros, mean and variance of every entry, against the stored moments; entries independent.

    Errors over standard errors lie below 6 (normal, 2e-9 a comparison), correlations of 2000 draws below
    0.14 (6 / sqrt(2000)).
    """
    made, n = make_given(seed=3, n=20), 2000
    made.posterior.__dict__["model"] = made.model  # the family is not registered here
    rng = np.random.default_rng(0)
    group = made.posterior.tree["variational"]
    shape = made.record["loadings_rna"].shape
    share, slab, width = rng.uniform(0.1, 0.9, shape), rng.normal(size=shape), rng.uniform(0.2, 2.0, shape)
    mean = share * slab
    variance = share * (width + slab**2) - mean**2
    group["inclusion_rna"].values[...] = share
    group["loadings_rna"].values[...] = mean
    group["loadings_variance_rna"].values[...] = variance
    drawn = made.posterior.sample(n, seed=1).tree["posterior"]
    w, z = drawn["loadings_rna"].values[0], drawn["scores"].values[0]
    on = w != 0
    assert (np.abs(on.mean(0) - share) < 6 * np.sqrt(share * (1 - share) / n)).all()
    assert (np.abs(w.mean(0) - mean) < 6 * np.sqrt(variance / n)).all()
    fourth = ((w - mean) ** 4).mean(0)
    assert (np.abs(((w - mean) ** 2).mean(0) - variance) < 6 * np.sqrt((fourth - variance**2) / n)).all()
    given_on = np.where(on, w, np.nan)
    count = on.sum(0)
    assert (np.abs(np.nanmean(given_on, 0) - slab) < 6 * np.sqrt(width / count)).all()
    assert (np.abs(z.mean(0) - made.rows["scores"]) < 6 * np.sqrt(0.01 / n)).all()
    columns = np.concatenate([w.reshape(n, -1), z.reshape(n, -1), on.reshape(n, -1)[:, :3]], axis=1)
    correlation = np.corrcoef(columns.T)
    np.fill_diagonal(correlation, 0.0)
    for i in range(3):  # a value and whether it is there go together
        correlation[i, -3 + i] = correlation[-3 + i, i] = 0.0
    assert np.abs(correlation).max() < 0.14
    other = made.posterior.sample(n, seed=2).tree["posterior"]["loadings_rna"].values[0]
    assert np.abs(np.corrcoef(other[:, 0, 0], w[:, 0, 0])[0, 1]) < 0.14
    assert made.posterior.sample(1, seed=1).tree["posterior"]["scores"].shape == (1, 1, 20, 3)
    with pytest.raises(InputError, match="n_draws"):
        made.posterior.sample(0)


def test_shares_of_binary_views_and_by_group_are_the_formula(given: Any) -> None:
    """From predictions: 1 - residual / total about the means over all samples, of each group's entries."""
    y = given.dataset.values("mutation").astype(float)
    y[y < 0] = np.nan
    y[Holdout(0.1, 0).mask(1, 0, *y.shape)] = np.nan
    z, w = given.rows["scores"], given.record["loadings_mutation"]
    b, groups = given.record["intercept_mutation"], np.array(["a"] * 35 + ["b"] * 35)

    def squares(factors: list[int], rows: Any) -> float:
        p = 1 / (1 + np.exp(-(b + z[:, factors] @ w[:, factors].T)))
        return float(np.nansum((y - p)[rows] ** 2))

    share = given.posterior.variance_explained(by="group").sel(view="mutation")
    total = given.posterior.variance_explained_total(by="group").sel(view="mutation")
    for name in ("a", "b"):
        rows = groups == name
        about = float(np.nansum((y - np.nanmean(y, axis=0))[rows] ** 2))
        assert float(total.sel(group=name)) == pytest.approx(1 - squares([0, 1, 2], rows) / about)
        for k, factor in enumerate(given.posterior.factors):
            expected = (squares([], rows) - squares([k], rows)) / about
            assert float(share.sel(group=name, factor=factor)) == pytest.approx(expected)


def _shown(given: Any, view: str) -> tuple[Any, Any]:
    """Return the entries of a view that the fit saw, NaN elsewhere, and predictions by some factors."""
    y = given.dataset.values(view).astype(float)
    y[~given.dataset.views[view].kind.observed(given.dataset.values(view))] = np.nan
    y[Holdout(0.1, 0).mask(["rna", "mutation"].index(view), 0, *y.shape)] = np.nan

    def fit(factors: list[int]) -> Any:
        w = given.record[f"loadings_{view}"]
        x = given.rows["scores"][:, factors] @ w[:, factors].T + given.record[f"intercept_{view}"]
        return x if view == "rna" else 1 / (1 + np.exp(-x))

    return y, fit


@pytest.mark.parametrize(("by", "axis"), [("sample", 1), ("feature", 0)])
def test_shares_by_sample_and_feature_are_the_formula(given: Any, by: Any, axis: int) -> None:
    for view in ("rna", "mutation"):
        y, fit = _shown(given, view)
        total = np.nansum((y - np.nanmean(y, axis=0)) ** 2, axis=axis)
        residual = [
            np.nansum((y - fit(factors)) ** 2, axis=axis) for factors in ([0, 1, 2], [], [0], [1], [2])
        ]
        share = given.posterior.variance_explained(by, view=view)
        assert share.dims == ("obs" if by == "sample" else f"feature_{view}", "factor")
        for k in range(3):
            np.testing.assert_allclose(share[:, k], (residual[1] - residual[2 + k]) / total, rtol=1e-5)
        found = given.posterior.variance_explained_total(by, view=view)
        np.testing.assert_allclose(found, 1 - residual[0] / total, rtol=1e-5)


def test_shares_by_sample_of_all_views(given: Any) -> None:
    share = given.posterior.variance_explained(by="sample")
    assert share.dims == ("obs", "view", "factor")
    assert list(share["obs"].values) == list(given.posterior.obs_names)
    one = given.posterior.variance_explained(by="sample", view="mutation")
    np.testing.assert_array_equal(share.sel(view="mutation").values, one.values)
    with pytest.raises(InputError, match="view = rna, mutation: "):
        given.posterior.variance_explained(by="feature")
    with pytest.raises(InputError, match="by = rows: "):
        given.posterior.variance_explained(by="rows")
    with pytest.raises(InputError, match="view"):
        given.posterior.variance_explained(view="atac")


def test_samples_that_a_view_lacks_have_no_share(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores, names = rng.normal(size=(40, 2)), [f"s{i}" for i in range(40)]
    first, second = (
        pd.DataFrame(scores @ rng.normal(size=(2, 8)) + 0.3 * rng.normal(size=(40, 8)), names) for _ in "ab"
    )
    first.iloc[3] = np.nan
    dataset = factorflow.write_dataset(tmp_path / "d.zarr", {"a": first, "b": second})
    posterior = factorflow.fit(dataset, n_factors=2, drop=0.0, max_iter=20, progress=False)
    share = posterior.variance_explained(by="sample")
    assert np.isnan(share.sel(view="a").values).any(1).tolist() == [i == 3 for i in range(40)]
    assert not np.isnan(share.sel(view="b").values).any()
    contribution = posterior.contribution_scores().values
    np.testing.assert_array_equal(contribution[3], [np.nan, 1.0])
    np.testing.assert_allclose(np.delete(contribution, 3, 0).sum(1), 1.0)


def test_contribution_scores(given: Any) -> None:
    relative = []
    for view in ("rna", "mutation"):
        y, fit = _shown(given, view)
        about, left = (y - np.nanmean(y, axis=0)) ** 2, (y - fit([0, 1, 2])) ** 2
        of_sample = 1 - np.nansum(left, axis=1) / np.nansum(about, axis=1)
        relative.append(np.maximum(of_sample / (1 - np.nansum(left) / np.nansum(about)), 0))
    expected = np.stack(relative, axis=1)
    found = given.posterior.contribution_scores()
    assert found.dims == ("obs", "view")
    whole = expected.sum(1, keepdims=True)
    assert (whole == 0).any()  # of these nothing is known
    expected = np.where(whole > 0, expected, np.nan) / np.where(whole > 0, whole, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
