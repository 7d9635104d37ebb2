"""The probit model at work: refusals, predictions, draws, recovery, the switch from burn-in to sampling."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import special

import factorflow
from factorflow import models
from factorflow.core.block import Meta, ViewMeta
from factorflow.errors import InputError
from factorflow.models.probit import ProbitFactors, results
from factorflow.models.probit.kernels.samplers import COLLAPSED, GIBBS
from factorflow.models.probit.sweep import _log_beta


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("probit") / "data.zarr"
    return factorflow.simulate(
        "binary", path, 300, n_features=16, n_factors=2, scale=4.0, missing=0.05, seed=3, block_rows=128
    )


def meta(n_features: int = 5, likelihood: Any = "bernoulli", views: int = 1) -> Meta:
    return Meta(10, 1, 32, tuple(ViewMeta(f"v{i}", likelihood, n_features, "none") for i in range(views)))


@pytest.mark.parametrize(
    ("settings", "shape", "parameter"),
    [
        ({"factors": "spike_slab", "sampler": "collapsed"}, {}, "sampler"),
        ({"factors": "nonnegative", "sampler": "collapsed"}, {}, "sampler"),
        ({"sampler": "hmc", "travel_time": math.pi}, {}, "travel_time"),
        ({"sampler": "hmc", "travel_time": 4 * math.pi}, {}, "travel_time"),
        ({"sampler": "hmc", "travel_time": math.inf}, {}, "travel_time"),
        ({"activity_prior": (math.nan, 1.0)}, {}, "activity_prior"),
        ({"variance_prior": (1.0, 0.0)}, {}, "variance_prior"),
        ({"activity_prior": (-1.0, 1.0), "priors": "improper"}, {}, "activity_prior"),
        ({"density_prior": (math.inf, 1.0)}, {}, "density_prior"),
        ({}, {"n_features": 1}, "features of view v0"),
        ({}, {"likelihood": "gaussian"}, "likelihood of view v0"),
        ({}, {"views": 2}, "views"),
    ],
)
def test_what_does_not_fit_is_refused(settings: Any, shape: Any, parameter: str) -> None:
    with pytest.raises(InputError) as caught:
        ProbitFactors(**settings).build(meta(**shape))
    assert caught.value.parameter == parameter


def test_no_factors_are_refused() -> None:
    with pytest.raises(InputError, match="n_factors"):
        models.configure({"model": "probit", "n_factors": 0})


def test_defaults_are_the_samplers_that_mix_best() -> None:
    kinds: Any = ("binary", "spike_slab", "nonnegative")
    chosen = [ProbitFactors(factors=kind).build(meta()).settings.sampler for kind in kinds]
    assert chosen == [COLLAPSED, GIBBS, GIBBS]


def test_printed_priors_come_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="improper"):
        model = ProbitFactors(priors="paper").build(meta())
    assert model.settings.variance_prior == (1.0, 0.0)


@pytest.mark.parametrize("values", [np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([[0.0, 1.0], [0.5, 1.0]])])
def test_values_other_than_two_are_refused(tmp_path: Path, values: Any) -> None:
    with pytest.raises(InputError):
        factorflow.write_dataset(tmp_path / "d.zarr", views={"x": values}, likelihoods={"x": "bernoulli"})


def test_an_empty_row_or_feature_is_refused(tmp_path: Path) -> None:
    x = (np.random.default_rng(0).random((20, 6)) < 0.5).astype(float)
    row, feature = x.copy(), x.copy()
    row[3], feature[:, 3] = np.nan, np.nan
    with pytest.raises(InputError, match="feature3"):
        factorflow.write_dataset(tmp_path / "a.zarr", views={"x": feature}, likelihoods={"x": "bernoulli"})
    with pytest.warns(UserWarning, match="sample3"):
        data = factorflow.write_dataset(tmp_path / "b.zarr", views={"x": row}, likelihoods={"x": "bernoulli"})
    with pytest.raises(InputError, match="row 3 of view x = all entries missing"):
        factorflow.fit(data, ProbitFactors(n_draws=4, n_burn_in=1, chains=1))


def test_a_feature_held_out_altogether_is_refused(tmp_path: Path) -> None:
    x = np.tile([[0.0], [1.0], [0.0], [1.0]], (1, 40))
    data = factorflow.write_dataset(tmp_path / "d.zarr", views={"x": x}, likelihoods={"x": "bernoulli"})
    with pytest.raises(InputError, match="held out"):
        factorflow.fit(data, ProbitFactors(n_draws=4, n_burn_in=1, chains=1), holdout=0.9)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "factors",
    ["binary", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("spike_slab", "nonnegative"))],
)
def test_held_out_entries_are_predicted(dataset: Any, factors: Any) -> None:
    """Better than the shown frequencies (by .05 to .07 bits); the same for any way of keeping them."""
    config = ProbitFactors(factors=factors, n_factors=2, n_burn_in=150, n_draws=150, chains=2)
    posterior = factorflow.fit(dataset, config, seed=1, holdout=0.1)
    scores = posterior.holdout_scores().loc["binary"]
    assert scores["mnlp"] < scores["baseline_log_loss"] / math.log(2) - 0.03
    few = factorflow.fit(dataset, config.model_copy(update={"predictive": "heldout"}), seed=1, holdout=0.1)
    np.testing.assert_allclose(few.holdout_scores().loc["binary", "mnlp"], scores["mnlp"], rtol=1e-6)
    shown = few.tree["averages"]["probability_binary"].values
    hidden = np.isfinite(shown)
    whole = posterior.tree["averages"]["probability_binary"].values
    np.testing.assert_array_equal(shown[hidden], whole[hidden])
    assert 0.05 < hidden.mean() < 0.15


@pytest.mark.thorough
def test_stored_factors_predict_as_running_means_do(dataset: Any) -> None:
    """Running means are of the states that sweeps start from: one draw later at either end."""
    settings = {"factors": "spike_slab", "n_factors": 2, "n_burn_in": 50, "n_draws": 200, "chains": 2}
    running = factorflow.fit(dataset, ProbitFactors(**settings, predictive="all"), seed=2)
    stored = factorflow.fit(dataset, ProbitFactors(**settings, predictive="none", store_factors=True), seed=2)
    name = "loadings_binary"
    np.testing.assert_array_equal(running.tree["posterior"][name], stored.tree["posterior"][name])
    one, two = running.predict("binary")["mean"].values, stored.predict("binary")["mean"].values
    assert np.abs(one - two).max() <= 1 / 200 + 1e-6
    assert (two > 0).all()
    assert (two < 1).all()
    group = stored.tree["posterior"]
    f, z, o = (group[name].values for name in ("scores_draws", "loadings_binary", "intercept_binary"))
    by_hand = special.ndtr(np.einsum("cmtk,cmnk->cmtn", f.astype(float), z) + o[:, :, None]).mean((0, 1))
    np.testing.assert_allclose(two, by_hand, rtol=1e-10)
    np.testing.assert_allclose(stored.tree["averages"]["scores"], f.mean(1), atol=1e-5)


def test_without_anything_kept_there_is_no_prediction(dataset: Any) -> None:
    config = ProbitFactors(n_factors=2, n_burn_in=2, n_draws=4, chains=1, predictive="none")
    posterior = factorflow.fit(dataset, config)
    with pytest.raises(InputError, match="predictive"):
        posterior.predict("binary")["mean"].values  # noqa: B018


def test_trajectories_report_themselves(dataset: Any) -> None:
    config = ProbitFactors(sampler="hmc", n_factors=2, n_burn_in=5, n_draws=10, chains=2, travel_time=4.0)
    stats = factorflow.fit(dataset, config).tree["sample_stats"]
    assert float(stats["energy_error"].max()) < 1e-9
    assert float(stats["stopped"].sum()) == 0
    assert 0 < float(stats["crossing_rate"].mean()) < 1
    assert float(stats["wall_hits_per_time"].min()) > 2 / math.pi * 0.8  # those of d alone: K / pi


def test_thinned_draws_are_those_of_the_whole_chain(dataset: Any) -> None:
    settings = {"n_factors": 2, "n_burn_in": 3, "chains": 1}
    every = factorflow.fit(dataset, ProbitFactors(**settings, n_draws=12), seed=4)
    third = factorflow.fit(dataset, ProbitFactors(**settings, n_draws=4, thin=3), seed=4)
    name = "loadings_binary"
    np.testing.assert_array_equal(every.tree["posterior"][name][:, 2::3], third.tree["posterior"][name])


@pytest.mark.thorough
@pytest.mark.parametrize("factors", ["binary", pytest.param("nonnegative", marks=pytest.mark.thorough)])
def test_loadings_of_simulated_data_are_found(tmp_path: Path, factors: Any) -> None:
    from scipy.optimize import linear_sum_assignment

    path = tmp_path / "data.zarr"
    data = factorflow.simulate(
        "binary", path, n_samples=2000, n_features=24, n_factors=2, factors=factors, seed=5
    )
    config = ProbitFactors(factors=factors, n_factors=2, n_burn_in=400, n_draws=200, chains=1)
    posterior = factorflow.fit(data, config, seed=1)
    found = posterior.tree["posterior"]["loadings_binary"].values[0].mean(0)
    truth = np.asarray(data.truth["loadings_binary"].values)
    both = np.abs(np.corrcoef(found.T, truth.T)[:2, 2:])
    rows, columns = linear_sum_assignment(-both)
    assert both[rows, columns].min() > 0.9


@pytest.mark.parametrize("prior", [(1.5, 2.0), (0.0, 0.0), (1.5, 0.0), (0.0, 2.0)])
def test_density_of_a_share(prior: tuple[float, float]) -> None:
    """Without its constant where there is none."""
    p = np.array([0.2, 0.9])
    expected = (prior[0] - 1) * np.log(p) + (prior[1] - 1) * np.log(1 - p)
    expected -= 0.0 if 0.0 in prior else special.betaln(*prior)
    np.testing.assert_allclose(_log_beta(p, prior), expected, rtol=1e-12)


@pytest.mark.parametrize("keep_all", [True, False])
def test_what_predictions_are_taken_from(keep_all: bool) -> None:
    """Of all entries where they were averaged; of held-out ones alone only where no factors were stored."""
    rng = np.random.default_rng(0)
    f, z, o = rng.normal(size=(2, 3, 4, 2)), rng.normal(size=(2, 3, 5, 2)), rng.normal(size=(2, 3, 5))
    recorded = {"loadings_v": z, "intercept_v": o}
    averaged = rng.random((2, 4, 5))
    averaged[:, 1:] = averaged[:, 1:] if keep_all else np.nan
    settings: Any = SimpleNamespace(view="v", keep_all=keep_all)
    from_draws = special.ndtr(np.einsum("cmtk,cmnk->cmtn", f, z) + o[:, :, None]).mean((0, 1))
    both = results.predict(settings, {"probability_v": averaged, "scores_draws": f}, recorded)
    np.testing.assert_allclose(both[0], averaged.mean(0) if keep_all else from_draws)
    np.testing.assert_allclose(both[1], np.sqrt(both[0] * (1.0 - both[0])))
    np.testing.assert_allclose(results.predict(settings, {"scores_draws": f}, recorded)[0], from_draws)
    alone = results.predict(settings, {"probability_v": averaged}, recorded)[0]
    np.testing.assert_allclose(alone, averaged.mean(0))
