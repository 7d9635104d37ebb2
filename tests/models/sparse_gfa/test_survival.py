"""Times to an event as an outcome: risks, curves, held-out concordance, new samples, censoring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow
from factorflow.errors import InputError
from factorflow.likelihoods import get_likelihood
from factorflow.likelihoods.predictive import Predictive
from factorflow.likelihoods.survival import Survival
from factorflow.models import SparseGFA
from factorflow.posterior.ranks import concordance

N, SHOWN = 360, 240


def simulate(seed: int = 5) -> tuple[np.ndarray, np.ndarray, pd.DataFrame]:
    """Return entries, log hazard ratios, and times with events of which a third is censored."""
    rng = np.random.default_rng(seed)
    z, w = rng.standard_normal((N, 3)), rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.5)
    y, x = z @ w.T + rng.standard_normal((N, 40)), 0.9 * z[:, 0] - 0.6 * z[:, 1]
    event, end = 25.0 * rng.exponential(np.exp(-x)), 60.0 * rng.exponential(size=N)
    return y, x, pd.DataFrame({"time": np.minimum(event, end), "event": (event <= end).astype(float)})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    folder = tmp_path_factory.mktemp("survival")
    y, x, times = simulate()
    hidden = times.where(np.repeat(np.arange(N)[:, None] < SHOWN, 2, axis=1))
    views = {"rna": y, "death": hidden}
    data = factorflow.write_dataset(folder / "d", views, likelihoods={"death": "survival"}, block_rows=64)
    posterior = factorflow.fit(data, SparseGFA(n_factors=5), progress=False)
    return folder, y, x, times, posterior


@pytest.mark.thorough
def test_risks_of_samples_without_a_time_are_right(fitted: tuple[Any, ...]) -> None:
    _, _, x, times, posterior = fitted
    risk = posterior.risk("death")
    assert risk.dims == ("obs",)
    new = slice(SHOWN, None)
    assert np.corrcoef(risk[new], x[new])[0, 1] > 0.9
    slope = np.polyfit(risk[new], x[new], 1)[0]
    assert 0.75 < slope < 1.35
    time, event = times["time"].to_numpy(), times["event"].to_numpy() > 0
    best = concordance(time[new], event[new], x[new])
    assert concordance(time[new], event[new], risk[new].to_numpy()) > best - 0.03
    assert posterior.tree["variational"]["intercept_death"].values == 0.0
    share = posterior.variance_explained().sel(view="death")
    assert 0.0 < float(share.max()) < 1.0
    one = posterior.variance_explained(by="feature", view="death")[0]
    np.testing.assert_allclose(one, share, atol=1e-6)
    by_sample = posterior.variance_explained_total(by="sample").sel(view="death")
    assert (by_sample.notnull() == (np.arange(N) < SHOWN)).all()


def test_survival_curves_are_calibrated(fitted: tuple[Any, ...]) -> None:
    """Of samples whose event was hidden: as many are without it as is said, in each third of the risks."""
    _, _, x, _, posterior = fitted
    times = [0.0, 5.0, 15.0, 40.0]
    curves = posterior.survival("death", times)
    assert curves.dims == ("obs", "time")
    np.testing.assert_allclose(curves[:, 0], 1.0, rtol=1e-12)
    assert curves.max() <= 1.0
    assert (np.diff(curves, axis=1) < 0).all()
    truth = np.exp(-np.array(times) / 25.0 * np.exp(x)[:, None])
    order = np.argsort(posterior.risk("death").to_numpy())
    for third in np.array_split(order[order >= SHOWN], 3):
        np.testing.assert_allclose(curves.values[third].mean(axis=0), truth[third].mean(axis=0), atol=0.1)
    whole = posterior.survival("death", obs=["sample3"])
    density = posterior.model.likelihood("death")
    assert isinstance(density, Survival)
    np.testing.assert_array_equal(whole["time"], density.edges)
    ends = posterior.predict("death", interval=0.8)
    low = posterior.survival("death", [float(ends["lower"][3, 0])], obs=["sample3"])
    assert float(low[0, 0]) == pytest.approx(0.9, abs=1e-5)
    with pytest.raises(InputError, match="times"):
        posterior.survival("death", [-1.0])
    with pytest.raises(InputError, match="fitted under the likelihood survival"):
        posterior.risk("rna")


def test_the_expected_time_after_one_that_nobody_reaches_is_soon_after_it() -> None:
    """Not NaN: the probability of being without an event there is 0 in double precision."""
    density = get_likelihood("survival(times=, hazards=1.0)")
    x, y = np.array([0.0, 8.0]), np.array([2.0, 3.0])
    mean, sd = Predictive(density, x, np.full(2, 1e-4), np.zeros((1, 2))).mean_and_sd_after(y)
    np.testing.assert_allclose(mean - y, np.exp(-x), rtol=1e-3)  # without memory
    np.testing.assert_allclose(sd, np.exp(-x), rtol=1e-3)


@pytest.mark.thorough
def test_times_without_an_event_are_imputed_after_them(fitted: tuple[Any, ...]) -> None:
    """As the area below the survival curve says: E T = c + int_c S(t) dt / S(c), E T^2 likewise."""
    _, _, _, times, posterior = fitted
    filled = posterior.impute("death").isel(feature_death=0)
    shown, seen = np.arange(N) < SHOWN, times["event"].to_numpy() == 1.0
    np.testing.assert_array_equal(filled["observed"], shown & seen)
    np.testing.assert_allclose(filled["mean"][shown & seen], times["time"][shown & seen], rtol=1e-6)
    one = int(np.flatnonzero(shown & ~seen)[1])
    last = float(times["time"].iloc[one])
    after = np.concatenate([[0.0], np.geomspace(1e-2, 1e5, 500)])
    alive = posterior.survival("death", list(last + after), obs=[f"sample{one}"]).values[0]
    mean = np.trapezoid(alive, after) / alive[0]
    square = 2.0 * np.trapezoid(alive * after, after) / alive[0]
    assert float(filled["mean"][one]) == pytest.approx(last + mean, rel=3e-3)
    assert float(filled["sd"][one]) == pytest.approx(np.sqrt(square - mean**2), rel=3e-3)


def test_the_baseline_is_breslows_of_the_fit(fitted: tuple[Any, ...]) -> None:
    """Events, and half of one, over exposures times E e^x, in each interval."""
    _, _, _, times, posterior = fitted
    density, record = posterior.model.likelihood("death"), posterior.tree["variational"]
    shown = times[:SHOWN].to_numpy()
    rows = np.arange(SHOWN)
    predictive = posterior_predictive(posterior, rows)
    rate = np.exp(predictive.mean + 0.5 * predictive.variance)[:, 0]
    for j, (inside, spent) in enumerate(
        zip(density.within(shown[:, 0]), density.exposures(shown[:, 0]), strict=True)
    ):
        expected = (shown[inside, 1].sum() + 0.1) / (rate * spent).sum()
        assert record[f"hazard_{j + 1}_death"].values[0] == pytest.approx(expected, rel=0.06)


def posterior_predictive(posterior: Any, rows: np.ndarray) -> Any:
    from factorflow.posterior.prediction import Predictor

    return Predictor(posterior, "death").predictive(rows)


@pytest.mark.thorough
def test_new_samples_and_held_out_times(fitted: tuple[Any, ...]) -> None:
    folder, y, x, times, posterior = fitted
    new = factorflow.write_dataset(
        folder / "new", {"rna": y[SHOWN:]}, samples=[f"n{i}" for i in range(N - SHOWN)]
    )
    projected = posterior.project(new).risk("death")
    np.testing.assert_allclose(projected, posterior.risk("death")[SHOWN:], atol=1e-3)
    alike = factorflow.write_dataset(
        folder / "alike",
        {"rna": y[SHOWN:], "death": times[SHOWN:].reset_index(drop=True)},
        {"death": "survival"},
    )
    assert np.corrcoef(posterior.project(alike).risk("death"), x[SHOWN:])[0, 1] > 0.9
    views = {"rna": y, "death": times}
    data = factorflow.write_dataset(folder / "all", views, likelihoods={"death": "survival"}, block_rows=64)
    scores = factorflow.fit(data, SparseGFA(n_factors=5), holdout=0.25, progress=False).holdout_scores()
    row = scores.loc["death"]
    assert row["concordance"] > 0.65
    assert row["log_likelihood"] > row["baseline_log_likelihood"] + 0.1
    assert np.isnan(row["r2"])
    assert np.isnan(scores.loc["rna", "concordance"])
    config = SparseGFA(n_factors=5, n_draws=20, n_burn_in=20, chains=1)
    sampled = factorflow.fit(data, config, progress=False)
    risk = sampled.scores().values @ sampled.loadings("death").values.ravel()
    assert np.corrcoef(risk, x)[0, 1] > 0.8
    assert sampled.draws("hazard_1_death").std() > 0.0


@pytest.mark.thorough
def test_censoring_biases_nothing(fitted: tuple[Any, ...]) -> None:
    """Times of censoring taken for those of events would have loadings too small."""
    folder, y, x, times, _ = fitted
    slopes = []
    for name, event in (("right", times["event"]), ("wrong", 1.0)):
        views = {"rna": y, "death": times.assign(event=event)}
        data = factorflow.write_dataset(
            folder / name, views, likelihoods={"death": "survival"}, block_rows=64
        )
        risk = factorflow.fit(data, SparseGFA(n_factors=5), progress=False).risk("death")
        slopes.append(np.polyfit(x, risk, 1)[0])
    assert slopes[0] > 0.75
    assert slopes[1] < slopes[0] - 0.15


def test_covariates_shift_the_hazard(tmp_path: Path) -> None:
    y, x, _ = simulate()
    rng = np.random.default_rng(9)
    age = rng.standard_normal(N)
    times = pd.DataFrame({"time": rng.exponential(np.exp(-x - 0.8 * age)), "event": 1.0})
    data = factorflow.write_dataset(
        tmp_path / "d", {"rna": y, "death": times}, {"death": "survival"}, obs={"age": age}
    )
    posterior = factorflow.fit(data, SparseGFA(n_factors=5, covariates="age"), progress=False)
    found = posterior.coefficients("death")["mean"]
    sd = age.std()
    assert float(found.squeeze()) / sd == pytest.approx(0.8, abs=0.25)


def test_a_censored_time_is_improbable_where_so_long_a_time_is(fitted: tuple[Any, ...]) -> None:
    """Not where it is short; and the probabilities of what was seen, censored ones at random, are even."""
    from factorflow.posterior.prediction import Predictor

    _, _, _, times, posterior = fitted
    shown, rows = times[:SHOWN].to_numpy(), np.arange(SHOWN)
    low, high, at = (part[:, 0] for part in Predictor(posterior, "death").tails(rows, shown[:, :1]))
    np.testing.assert_allclose(low + high + at, 1.0, atol=1e-6)
    censored = shown[:, 1] == 0
    assert not high[censored].any()
    assert not at[~censored].any()
    found = factorflow.analysis.find_anomalies(posterior, "death", SHOWN).set_index("obs")["p_value"]
    expected = np.minimum(1.0, at[censored])
    names = np.array(posterior.obs_names[:SHOWN])[censored]
    np.testing.assert_allclose(found[names], expected, atol=1e-6)
    probability = low + np.random.default_rng(0).random(SHOWN) * at
    assert abs(probability.mean() - 0.5) < 0.06
    assert np.quantile(probability, 0.9) == pytest.approx(0.9, abs=0.06)
