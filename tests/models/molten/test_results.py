"""What is found: predictions against draws from q, levels nobody saw, summaries, dead components, starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import factorflow
from factorflow.analysis import find_anomalies
from factorflow.errors import InputError
from factorflow.models import MoltenNormal, MoltenPoisson
from factorflow.models.contract import Block

SIZES = {"site": 6, "species": 4, "year": 3}


def made(tmp_path: Path, response: str, n_samples: int = 200, **settings: Any) -> Any:
    path = tmp_path / f"{response}.zarr"
    settings = {"variables": SIZES, "n_components": 2, **settings}
    return factorflow.simulate("table", path, n_samples=n_samples, seed=5, response=response, **settings)


@pytest.fixture(scope="module")
def counts(tmp_path_factory: Any) -> Any:
    data = made(tmp_path_factory.mktemp("counts"), "poisson", exposure=True, missing_codes={"site": 0.05})
    config = MoltenPoisson(n_components=2, n_starts=2, max_iter=40, additive=True, overdispersed=True)
    return factorflow.fit(data, config)


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: Any) -> Any:
    data = made(tmp_path_factory.mktemp("measurements"), "gaussian")
    return factorflow.fit(data, MoltenNormal(n_components=2, n_starts=2, max_iter=40))


def drawn(posterior: Any, codes: dict[str, int], n: int, rng: Any) -> Any:
    """Return draws of the sum of products (and additive parts) of one row; code -1: a missing level."""

    def stored(name: str) -> Any:
        return posterior.variable(name).values

    counts, product, added = posterior.config.model == "molten_poisson", 1.0, 0.0
    for name, code in codes.items():
        where = ("loadings", code) if code >= 0 else ("missing", slice(None))
        mean, variance = (
            stored(f"{where[0]}_{name}")[where[1]],
            stored(f"{where[0]}_variance_{name}")[where[1]],
        )
        if counts:
            product = product * rng.gamma(mean**2 / variance, variance / mean, (n, len(mean)))
            which, at = (name, code) if code >= 0 else (f"missing_{name}", ())
            w, v = stored(f"additive_{which}")[at], stored(f"additive_variance_{which}")[at]
            added = added + rng.gamma(w**2 / v, v / w, n)
        else:
            product = product * rng.normal(mean, np.sqrt(variance), (n, len(mean)))
    return product.sum(axis=1) + added


@pytest.mark.parametrize("codes", [(2, 1, 0), (5, 3, 2), (-1, 0, 1)])
def test_predictions_of_counts_against_draws(codes: tuple[int, ...], counts: Any) -> None:
    rng, n, t = np.random.default_rng(1), 400_000, 2.5
    rate = t * drawn(counts, dict(zip(SIZES, codes, strict=True)), n, rng)
    c = float(counts.variable("dispersion"))
    y = rng.poisson(rate * rng.gamma(c, 1 / c, n))
    block = Block(0, 0, 1, 1, inputs(codes) | {"exposure": np.array([[t]])})
    record = {v.name: counts.variable(v.name).values for v in counts.model.variables()}
    mean, sd = counts.model.predict(block, {}, record, "y")
    assert mean[0, 0] == pytest.approx(y.mean(), abs=5 * y.std() / np.sqrt(n))
    assert sd[0, 0] == pytest.approx(y.std(), rel=0.02)


@pytest.mark.parametrize("codes", [(2, 1, 0), (5, 3, 2), (-1, 0, 1)])
def test_predictions_of_measurements_against_draws(codes: tuple[int, ...], measurements: Any) -> None:
    rng, n = np.random.default_rng(1), 400_000
    mean = drawn(measurements, dict(zip(SIZES, codes, strict=True)), n, rng)
    beta = rng.normal(
        measurements.variable("intercept"), np.sqrt(measurements.variable("intercept_variance")), n
    )
    y = mean + beta + np.sqrt(float(measurements.variable("noise_variance"))) * rng.normal(size=n)
    block = Block(0, 0, 1, 1, inputs(codes))
    record = {v.name: measurements.variable(v.name).values for v in measurements.model.variables()}
    mean, sd = measurements.model.predict(block, {}, record, "y")
    assert mean[0, 0] == pytest.approx(y.mean(), abs=5 * y.std() / np.sqrt(n))
    assert sd[0, 0] == pytest.approx(y.std(), rel=0.02)


def inputs(codes: tuple[int, ...]) -> dict[str, Any]:
    return {name: np.array([code], dtype=np.int32) for name, code in zip(SIZES, codes, strict=True)}


def test_noise_variance_is_the_mean_of_one_over_the_precision(tools: Any) -> None:
    """Few rows, for which E 1 / lambda is not 1 / E lambda."""
    meta, blocks = tools.table([[0], [1], [0], [1]], [0.3, 1.0, -0.4, 2.0], "gaussian")
    config = MoltenNormal(n_components=1, n_starts=1, noise_prior=(3.0, 2.0))
    found, _ = list(tools.rounds(config, meta, blocks, 20))[-1]
    shape, rate = found.noise[:, 0]
    drawn = 1.0 / np.random.default_rng(0).gamma(shape, 1.0 / rate, 1_000_000)
    record = config.build(meta).record(found)
    assert float(record["noise_variance"]) == pytest.approx(drawn.mean(), rel=5e-3)


@pytest.mark.thorough
def test_a_level_that_no_row_has_keeps_the_prior(measurements: Any, tmp_path: Path) -> None:
    """No missing levels were there: a missing or unknown one is the prior, scale step or not."""
    for name in SIZES:
        assert (measurements.variable(f"missing_{name}").values == 0).all()
        tau = measurements.variable("scale").values
        np.testing.assert_allclose(measurements.variable(f"missing_variance_{name}"), 1 / tau, rtol=0.1)
    posterior = factorflow.fit(made(tmp_path, "poisson"), MoltenPoisson(n_components=2, shape=0.8, rate=1.6))
    for name in SIZES:
        np.testing.assert_allclose(posterior.variable(f"missing_{name}"), 0.5, rtol=1e-12)
        np.testing.assert_allclose(posterior.variable(f"missing_variance_{name}"), 0.8 / 1.6**2, rtol=1e-12)


def test_hidden_levels_keep_the_prior(tools: Any) -> None:
    """A level whose rows have no response is as good as unseen."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(0, 4, 60), rng.integers(0, 3, 60)])
    y = rng.poisson(3.0, 60).astype(float)
    y[x[:, 0] == 2] = np.nan
    meta, blocks = tools.table(x, y, "poisson")
    config = MoltenPoisson(n_components=2, shape=0.8, rate=1.6, n_starts=1)
    found, _ = list(tools.rounds(config, meta, blocks, 20))[-1]
    assert (found.levels["a"].one[2] == 0.8).all()
    assert (found.levels["a"].two[2] == 1.6).all()


def test_components_come_strongest_first_with_their_levels(counts: Any) -> None:
    table = counts.components(n=3)
    assert list(table.index) == counts.factors
    assert (np.diff(table["weight"]) <= 0).all()
    for name in SIZES:
        first = counts.loadings(name).values[:, 0]
        assert table[name].iloc[0][0] == counts.features(name)[np.argmax(first)]
        assert len(table[name].iloc[0]) == min(3, SIZES[name])
    assert 0 < table["weight"].sum() <= 1
    assert counts.loadings("site").dims == ("feature_site", "factor")


@pytest.mark.thorough
def test_weights_are_shares_of_the_expected_counts(tmp_path: Path) -> None:
    data = made(tmp_path, "poisson", n_samples=400)
    posterior = factorflow.fit(data, MoltenPoisson(n_components=2, n_starts=2, max_iter=100))
    codes = [np.concatenate([data.block(b, [v]).data[v] for b in range(data.n_blocks)]) for v in SIZES]
    t = data.values("exposure")[:, 0]
    product = t[:, None] * np.prod(
        [posterior.loadings(v).values[c] for v, c in zip(SIZES, codes, strict=True)], axis=0
    )
    np.testing.assert_allclose(posterior.variable("weight"), product.sum(0) / product.sum(), atol=0.02)


def test_a_missing_level_may_have_factor_one(tmp_path: Path) -> None:
    data = made(tmp_path, "poisson", missing_codes={"site": 0.1})
    posterior = factorflow.fit(data, MoltenPoisson(n_components=2, n_starts=1, max_iter=20, missing="one"))
    assert (posterior.variable("missing_site").values == 1).all()
    assert (posterior.variable("missing_variance_site").values == 0).all()


@pytest.mark.thorough
def test_draws_have_the_moments_of_q(counts: Any, measurements: Any) -> None:
    """Factors of counts are Gammas: above 0, skewed; those of measurements are normal."""
    for posterior in (counts, measurements):
        drawn = posterior.sample(1500, seed=1).tree["posterior"]["loadings_site"].values[0]
        mean = posterior.loadings("site").values
        variance = posterior.variable("loadings_variance_site").values
        np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * np.sqrt(variance.max() / 1500))
        np.testing.assert_allclose(drawn.var(0), variance, rtol=0.3)
        assert (drawn > 0).all() == (posterior is counts)


def test_variance_explained_by_each_component(measurements: Any) -> None:
    """From the products of each component alone, computed here from the factors."""
    data = measurements.dataset
    codes = [np.concatenate([data.block(b, [v]).data[v] for b in range(data.n_blocks)]) for v in SIZES]
    product = np.prod([measurements.loadings(v).values[c] for v, c in zip(SIZES, codes, strict=True)], axis=0)
    y = data.values("y")[:, 0].astype(float) - float(measurements.variable("intercept"))
    total = ((y - y.mean()) ** 2).sum()
    expected = ((y**2).sum() - ((y[:, None] - product) ** 2).sum(axis=0)) / total
    found = measurements.variance_explained().sel(view="y")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    whole = 1 - ((y - product.sum(1)) ** 2).sum() / total
    assert float(measurements.variance_explained_total().sel(view="y")) == pytest.approx(whole, rel=1e-4)


def test_starts_are_reported_and_the_best_goes_on(counts: Any) -> None:
    tried = counts.variable("start_objective")
    assert tried.dims == ("start",)
    trace = counts.trace
    last = trace["objective"].values[trace["stage"].values == "starts"][-1]
    assert float(tried.max()) == pytest.approx(last)
    assert tried.values[0] != tried.values[1]


@pytest.mark.thorough
def test_dead_components_are_removed(tmp_path: Path) -> None:
    """Of one component that is there, few of eight are left, and the bound is higher than with all."""
    data = made(tmp_path, "poisson", n_samples=600, n_components=1)
    bounds = {}
    for drop in (0.0, 1e-2):
        config = MoltenPoisson(n_components=8, drop=drop, n_starts=1, max_iter=150)
        posterior = factorflow.fit(data, config)
        bounds[drop] = posterior.trace["objective"].values[-1], len(posterior.factors)
    assert bounds[0.0][1] == 8
    assert bounds[1e-2][1] <= 5
    assert bounds[1e-2][0] > bounds[0.0][0]


def test_anomalies_are_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    site, year = rng.integers(0, 5, 300), rng.integers(0, 4, 300)
    y = rng.poisson(np.exp(0.3 * site) * (1 + year)).astype(float)
    y[17], y[123] = 60.0, 45.0
    data = factorflow.write_dataset(
        tmp_path / "d.zarr",
        {"y": y[:, None], "site": site.astype(str), "year": year.astype(str)},
        {"y": "poisson"},
        inputs={"site": "categorical", "year": "categorical"},
        block_rows=64,
    )
    posterior = factorflow.fit(data, MoltenPoisson(n_components=1, n_starts=1))
    table = find_anomalies(posterior, n=5)
    assert list(table["obs"][:2]) == ["sample17", "sample123"] or set(table["obs"][:2]) == {
        "sample17",
        "sample123",
    }
    assert list(table["value"][:2]) in ([60.0, 45.0], [45.0, 60.0])
    assert (np.diff(table["p_value"]) >= 0).all()
    assert table["p_value"][0] < 1e-6
    with pytest.raises(InputError, match="at least 1"):
        find_anomalies(posterior, n=0)
    assert isinstance(table, pd.DataFrame)


@pytest.mark.parametrize(
    ("views", "config", "match"),
    [
        (("y", "site", "exposure"), MoltenNormal(), "molten|likelihood|gaussian"),
        (("y",), MoltenPoisson(), "categorical variable"),
        (("y", "site"), MoltenPoisson(variables=("site", "site")), "each variable once"),
        (("y", "site"), MoltenPoisson(variables=("nowhere",)), "one of y, site"),
        (("y", "site", "exposure"), MoltenPoisson(variables=("exposure",)), "bin them"),
        (("y", "site", "exposure"), MoltenPoisson(exposure="site"), "covariate"),
        (("site", "species"), MoltenPoisson(), "one view of likelihood poisson"),
        (("y", "site"), MoltenPoisson(additive=True, missing="one"), "additive part"),
    ],
)
def test_what_does_not_suit_is_refused(views: Any, config: Any, match: str, tmp_path: Path) -> None:
    data = made(tmp_path, "poisson", n_samples=40, exposure=True)
    with pytest.raises(InputError, match=match):
        config.build(data.meta(views))


def test_overdispersion_is_of_rows(tmp_path: Path) -> None:
    """Rows that were merged would share a factor; of rows by themselves the dispersion is the true one."""
    rng, n = np.random.default_rng(11), 3000
    table = pd.DataFrame({"a": rng.integers(0, 4, n), "b": rng.integers(0, 3, n)})
    table["y"] = rng.poisson(rng.gamma(0.8, 1 / 0.8, n) * (1 + table["a"]) * (2 + table["b"]))
    merged = factorflow.write_table(tmp_path / "merged", table, "y ~ a + b", "poisson")
    config = MoltenPoisson(n_components=1, n_starts=1, overdispersed=True)
    with pytest.raises(InputError, match=r"rows were merged \(2988 into others\).*merge=False"):
        factorflow.fit(merged, config)
    rows = factorflow.write_table(tmp_path / "rows", table, "y ~ a + b", "poisson", merge=False)
    assert float(factorflow.fit(rows, config).variable("dispersion")) == pytest.approx(0.8, rel=0.1)


def test_new_rows_that_lack_something(tmp_path: Path) -> None:
    """An unknown level has the spread of the prior, an unknown exposure is 1; each with a warning."""
    rng, n = np.random.default_rng(12), 400
    table = pd.DataFrame(
        {"a": rng.integers(0, 4, n), "b": rng.integers(0, 3, n), "t": rng.gamma(2.0, 1.0, n)}
    )
    table["y"] = rng.poisson(table["t"] * (1 + table["a"]) * (2 + table["b"]))
    data = factorflow.write_table(tmp_path / "d", table, "y ~ a + b + offset(log(t))", "poisson")
    posterior = factorflow.fit(data, MoltenPoisson(n_components=1, n_starts=1))
    new = table[["a", "b", "t"]][:3].assign(t=1.0)
    known = posterior.predict(new)
    with pytest.warns(UserWarning, match="'t': rows without a number are taken to have exposure 1"):
        unknown = posterior.predict(new.assign(t=np.nan))
    np.testing.assert_array_equal(unknown["mean"], known["mean"])
    with pytest.warns(UserWarning, match="'a': 1 level that the dataset did not have"):
        unseen = posterior.predict(new.assign(a=99))
    assert (unseen["sd"] / unseen["mean"] > known["sd"] / known["mean"]).all()
    for wrong in ([1, 2], [new]):
        with pytest.raises(InputError, match="a path or a list of paths, a pandas DataFrame"):
            posterior.predict(wrong)


@pytest.mark.parametrize("response", ["poisson", "normal"])
def test_baseline_of_held_out_rows_is_that_of_the_table(response: str, tmp_path: Path) -> None:
    """Shown rows were merged: their mean, or counts by exposure, is that of the rows of the table."""
    rng, n = np.random.default_rng(8), 300
    table = pd.DataFrame(
        {"a": rng.integers(0, 4, n), "b": rng.integers(0, 3, n), "t": rng.gamma(2.0, 1.0, n)}
    )
    table["y"] = rng.poisson(3.0 * table["t"]) if response == "poisson" else rng.normal(5.0 + table["t"], 0.5)
    offset = "offset(log(t))" if response == "poisson" else "offset(t)"
    data = factorflow.write_table(tmp_path / "d", table, f"y ~ a + b + {offset}", response, holdout=0.3)
    config: Any = MoltenPoisson if response == "poisson" else MoltenNormal
    scores = factorflow.fit(data, config(n_components=1, n_starts=1, max_iter=2)).holdout_scores().loc["y"]
    hidden = factorflow.data.Holdout(0.3, 0, "row").rows(0, n)
    y, t = table["y"].to_numpy(), table["t"].to_numpy()
    if response == "poisson":
        log_p = stats.poisson.logpmf(y, t * y[~hidden].sum() / t[~hidden].sum())
    else:
        shown = (y - t)[~hidden]
        log_p = stats.norm.logpdf(y, t + shown.mean(), shown.std())
    assert scores["n_entries"] == hidden.sum()
    assert scores["baseline_log_likelihood"] == pytest.approx(log_p[hidden].mean(), rel=1e-5)


def test_held_out_counts_are_scored_as_the_model_spreads_them(tmp_path: Path) -> None:
    """Counts with a factor for each row are negative binomial; deviances go by rates, as their baseline."""
    rng, n = np.random.default_rng(9), 600
    table = pd.DataFrame(
        {"a": rng.integers(0, 4, n), "b": rng.integers(0, 3, n), "t": rng.gamma(2.0, 1.0, n)}
    )
    table["y"] = rng.poisson(4.0 * table["t"] * rng.gamma(1.0, 1.0, n))
    data = factorflow.write_table(tmp_path / "d", table, "y ~ a + b + offset(log(t))", merge=False)
    model = MoltenPoisson(n_components=1, n_starts=1, max_iter=30, overdispersed=True)
    posterior = factorflow.fit(data, model, holdout=0.2)
    hidden = posterior.holdout_entries("y")
    predicted = posterior.predict("y", obs=list(hidden["obs"]))
    y, mean, sd = (np.ravel(x) for x in (hidden["value"], predicted["mean"], predicted["sd"]))
    size = mean**2 / (sd**2 - mean)
    scores = posterior.holdout_scores().loc["y"]
    assert scores["log_likelihood"] == pytest.approx(
        stats.nbinom.logpmf(y, size, size / (size + mean)).mean()
    )
    of_rates = 2 * (stats.poisson.logpmf(y, y) - stats.poisson.logpmf(y, mean)).mean()
    assert scores["deviance"] == pytest.approx(of_rates)


def test_merged_measurements_are_as_surprising_as_means_of_several(tmp_path: Path) -> None:
    """A mean of 25 has a fifth of the noise of one: p-values are even, and one cell far off is found."""
    rng = np.random.default_rng(10)
    a, b = (x.ravel() for x in np.meshgrid(np.repeat(np.arange(12), 25), np.arange(10)))
    y = (1.0 + rng.random(12))[a] * (1.0 + rng.random(10))[b] + rng.normal(size=a.size)
    y[(a == 3) & (b == 4)] += 1.2
    data = factorflow.write_table(
        tmp_path / "d", pd.DataFrame({"y": y, "a": a, "b": b}), "y ~ a + b", "normal"
    )
    posterior = factorflow.fit(data, MoltenNormal(n_components=1, n_starts=1, max_iter=100))
    found = find_anomalies(posterior, n=120)
    worst = posterior.obs_names[3 * 10 + 4]
    assert found["obs"][0] == worst
    assert found["p_value"][0] < 1e-4
    assert stats.kstest(found["p_value"][1:], "uniform").pvalue > 0.01
    of_one = float(posterior.predict("y", obs=[worst])["sd"][0, 0])
    noise = float(posterior.variable("noise_variance"))
    assert found["sd"][0] == pytest.approx(np.sqrt(of_one**2 - noise * (1 - 1 / 25)))


def test_values_beside_the_response_are_refused(tmp_path: Path) -> None:
    """They were given the predictions of the response, and scored by them."""
    rng = np.random.default_rng(11)
    views = {"y": rng.poisson(3.0, (40, 1)), "w": rng.normal(size=(40, 3)), "a": rng.integers(0, 3, 40)}
    data = factorflow.write_dataset(
        tmp_path / "d", views, {"y": "poisson"}, inputs={"a": "categorical"}, overwrite=True
    )
    small: dict[str, Any] = {"n_components": 1, "n_starts": 1, "max_iter": 2}
    with pytest.raises(InputError, match=r"views = w: .* Select the others: views=\['y', 'a'\]"):
        factorflow.fit(data, MoltenPoisson(response="y", **small))
    assert factorflow.fit(data, MoltenPoisson(views=("y", "a"), **small)).views == ("y", "a")
