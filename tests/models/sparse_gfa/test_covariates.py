"""Covariates of the sample metadata: coding, coefficients, factors beside them, new samples."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import factorflow as ff
from factorflow.core.covariates import Covariates
from factorflow.core.records import from_record
from factorflow.core.trees import replace
from factorflow.data.covariates import code_covariates
from factorflow.errors import InputError
from factorflow.models.sparse_gfa import elbo
from factorflow.posterior.variance import terms_from_data

N, D = 160, 40


def metadata(rng: np.random.Generator, n: int = N) -> pd.DataFrame:
    names = [f"s{i}" for i in range(n)]
    batch = np.array(["A", "B", "C"])[np.arange(n) % 3]
    day = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D")
    frame = {"age": 50 + 10 * rng.standard_normal(n), "batch": batch, "sex": rng.random(n) < 0.5, "day": day}
    return pd.DataFrame(frame, index=names)


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    obs = metadata(rng)
    age = (obs["age"].to_numpy() - 50) / 10
    z = rng.standard_normal((N, 2))
    z[:, 0] = 0.6 * age + 0.8 * z[:, 0]
    w = rng.standard_normal((D, 2)) * (rng.random((D, 2)) < 0.6)
    slopes, shifts = rng.standard_normal(D) * (rng.random(D) < 0.5), 0.8 * rng.standard_normal((3, D))
    codes = pd.Categorical(obs["batch"]).codes
    x = 2 + np.outer(age, slopes) + shifts[codes] + z @ w.T
    y = x + 0.7 * rng.standard_normal((N, D))
    y[rng.random((N, D)) < 0.05] = np.nan
    return {"obs": obs, "x": x, "y": y, "z": z, "w": w, "slopes": slopes, "shifts": shifts, "age": age}


def write(folder: Path, truth: dict[str, Any], rows: slice = slice(None), **views: Any) -> ff.Dataset:
    obs = truth["obs"].iloc[rows]
    frame = pd.DataFrame(truth["y"][rows], index=obs.index, columns=[f"f{i}" for i in range(D)])
    return ff.write_dataset(folder, {"rna": frame, **views}, obs=obs)


@pytest.fixture(scope="module")
def fitted(truth: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("covariates")
    dataset = write(folder / "data.zarr", truth)
    model = ff.models.SparseGFA(n_factors=5, covariates=["age", "batch"])
    return {"dataset": dataset, "folder": folder, "posterior": ff.fit(dataset, model, progress=False)}


def check_regression(posterior: ff.Posterior) -> None:
    """Slopes of the scores are those of least squares; of collinear covariates, what they predict is."""
    given, scores = posterior.variable("covariates").values, posterior.scores().values
    design = np.column_stack([np.ones(len(given)), given])
    expected = design @ np.linalg.lstsq(design, scores, rcond=None)[0]
    found = given @ posterior.variable("score_regression").values
    np.testing.assert_allclose(found - found.mean(axis=0), expected - expected.mean(axis=0), atol=1e-4)


def full_covariances(posterior: ff.Posterior) -> Any:
    """Return Cov (intercept, coefficients) of each feature, (D, 5, 5)."""
    full = np.zeros((D, 5, 5))
    full[:, *np.tril_indices(5)] = posterior.variable("coefficients_covariance_rna").values
    return full + np.tril(full, -1).transpose(0, 2, 1)


def test_numbers_have_variance_one_and_categories_an_indicator_each(fitted: dict[str, Any]) -> None:
    dataset = fitted["dataset"]
    found = code_covariates(dataset, "~ age + C(batch) + sex + day + age:sex")
    assert found.labels == [
        "age", "batch[A]", "batch[B]", "batch[C]", "sex[False]", "sex[True]", "day",
        "age:sex[False]", "age:sex[True]",
    ]  # fmt: skip
    assert found.names == ["age", "batch", "sex", "day", "age:sex"]
    assert found.groups.tolist() == [0, 1, 1, 1, 2, 2, 3, 4, 4]
    obs = dataset.obs
    table = {c.name: obs[c.name].astype(str).to_numpy() if c.levels else None for c in found.columns}
    table["age"] = obs["age"].to_numpy()
    table["day"] = ((obs["day"] - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy()
    coded = found.encode(table)
    np.testing.assert_allclose(coded.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(coded[:, [0, 6]].std(axis=0), 1.0)
    np.testing.assert_allclose(found.units[[0, 6]], [obs["age"].std(ddof=0), table["day"].std()])
    products = (coded.T @ coded / N)[np.tril_indices(9)]
    np.testing.assert_allclose(found.second, products, atol=1e-12)
    assert from_record(Covariates, asdict(found)) == found


@pytest.mark.thorough
def test_draws_have_the_effects_of_covariates(truth: dict[str, Any], fitted: dict[str, Any]) -> None:
    """Total effects, which the data say, agree with the truth; predictions know the covariates."""
    options = {"n_factors": 5, "covariates": ["age", "batch"]}
    model = ff.models.SparseGFA(**options, n_draws=40, n_burn_in=40, chains=1)
    sampled = ff.fit(fitted["dataset"], model, progress=False)
    found = sampled.coefficients("rna").sel(covariate="age")
    draws = sampled.draws("coefficients_rna").sel(covariate="age") / truth["obs"]["age"].std(ddof=0)
    np.testing.assert_allclose(found["mean"], draws.mean(("chain", "draw")))
    np.testing.assert_allclose(found["sd"], draws.std(("chain", "draw")))
    coded = sampled.variable("covariates").values
    design, scores = np.column_stack([np.ones(N), coded]), sampled.draws("scores_draws").values[0]
    direct, loadings = (sampled.draws(name).values[0] for name in ("coefficients_rna", "loadings_rna"))
    slopes = np.stack([np.linalg.lstsq(design, z, rcond=None)[0][1:] for z in scores])
    total = (direct + loadings @ slopes.transpose(0, 2, 1)) / code_covariates(
        fitted["dataset"], ["age", "batch"]
    ).units
    found = sampled.coefficients("rna", total=True).transpose(..., "covariate")
    np.testing.assert_allclose(found["mean"], total.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found["sd"], total.std(axis=0), atol=1e-5)
    expected = truth["slopes"] + 0.6 * truth["w"][:, 0]
    assert np.corrcoef(found["mean"].sel(covariate="age"), expected)[0, 1] > 0.98
    assert np.abs(coded.T @ sampled.scores(adjusted=True).values).max() < 1e-3 * N
    mean = sampled.predict("rna")["mean"].values
    assert np.sqrt(((mean - truth["x"]) ** 2).mean()) < 0.25
    assert sampled.variable("coefficient_precision").dims == ("view", "term")
    given = sampled.sample_metadata()["age"].to_numpy()
    adjusted = sampled.adjusted("rna", remove="age", stop=9)
    effect = sampled.coefficients("rna")["mean"].sel(covariate="age")
    np.testing.assert_allclose(
        mean[:9] - adjusted["mean"], np.outer(given - given.mean(), effect)[:9], atol=1e-6
    )
    entries = sampled.to_arviz("rna", stop=9)["log_likelihood"]["rna"]
    expected = stats.norm(mean[:9], sampled.predict("rna", stop=9)["sd"]).logpdf(truth["y"][:9])
    assert float(entries.mean()) == pytest.approx(np.nanmean(expected), abs=0.1)
    shares, fit = (p.variance_explained(terms="covariate") for p in (sampled, fitted["posterior"]))
    np.testing.assert_allclose(shares.sel(term="batch"), fit.sel(term="batch"), atol=0.02)


def test_what_is_missing_or_unknown_is_the_average(fitted: dict[str, Any]) -> None:
    found = code_covariates(fitted["dataset"], ["age", "batch"])
    table = {"age": np.array([np.nan, 50.0, np.inf]), "batch": np.array(["A", "", "Z"])}
    coded = found.encode(table)
    assert coded[0, 0] == coded[2, 0] == 0.0
    assert not coded[1:, 1:].any()
    assert coded[0, 1:].any()


def test_factors_and_effects_are_found_beside_each_other(
    truth: dict[str, Any], fitted: dict[str, Any]
) -> None:
    posterior = fitted["posterior"]
    assert len(posterior.factors) == 2
    found = posterior.coefficients("rna")
    assert found["mean"].dims == ("covariate", "feature_rna")
    sd = truth["obs"]["age"].std(ddof=0)
    total = posterior.coefficients("rna", total=True)["mean"].sel(covariate="age") * sd
    expected = (truth["slopes"] + 0.6 * truth["w"][:, 0]) * sd / 10
    assert np.corrcoef(total, expected)[0, 1] > 0.98
    assert np.polyfit(expected, total, 1)[0] == pytest.approx(1.0, abs=0.1)
    expected_sd = posterior.variable("coefficients_variance_rna").values[:, 0] ** 0.5 / sd
    np.testing.assert_allclose(found["sd"].sel(covariate="age"), expected_sd)
    batch = found["mean"].sel(covariate=["batch[A]", "batch[B]", "batch[C]"]).values
    centred = truth["shifts"] - truth["shifts"].mean(axis=0)
    assert np.corrcoef(batch.ravel(), centred.ravel())[0, 1] > 0.95
    check_regression(posterior)
    scores = posterior.scores(adjusted=True)
    np.testing.assert_allclose(np.corrcoef(scores.values.T, truth["age"])[-1, :-1], 0.0, atol=0.02)
    explained = posterior.variance_explained(terms="all")
    assert explained.term.values.tolist() == ["age", "batch", "covariates", "Factor1", "Factor2"]
    mean = posterior.predict("rna")["mean"].values
    effect = posterior.variable("covariates").values @ posterior.variable("coefficients_rna").values.T
    y = truth["y"] - np.nanmean(truth["y"], axis=0)
    seen = ~np.isnan(y)
    none = truth["y"] - posterior.intercept("rna").values
    share = ((none[seen] ** 2).sum() - ((none - effect)[seen] ** 2).sum()) / (y[seen] ** 2).sum()
    assert float(explained.sel(view="rna", term="covariates")) == pytest.approx(share, abs=1e-6)
    total_share = 1 - ((truth["y"] - mean)[seen] ** 2).sum() / (y[seen] ** 2).sum()
    assert float(posterior.variance_explained_total()[0]) == pytest.approx(total_share, abs=1e-6)
    assert total_share > 0.8


def test_the_bound_never_falls_and_is_higher_than_without(fitted: dict[str, Any]) -> None:
    posterior = fitted["posterior"]
    bound = posterior.trace["objective"].values[1:]
    without = ff.fit(fitted["dataset"], ff.models.SparseGFA(n_factors=5), progress=False)
    assert bound[-1] > without.trace["objective"].values[-1] + 100
    last = np.nonzero(posterior.trace["stage"].values == "sparse")[0]
    steps = np.diff(posterior.trace["objective"].values[last])
    assert (steps > -1e-9 * abs(bound[-1])).all()


def test_slopes_of_the_scores_are_in_the_order_of_the_factors(fitted: dict[str, Any]) -> None:
    """Also where the last pass puts them into another."""
    options = {"start": "random", "drop": 0.0, "warmup_iter": 2, "max_iter": 2}
    model = ff.models.SparseGFA(n_factors=5, covariates=["age", "batch"], **options)
    check_regression(ff.fit(fitted["dataset"], model, progress=False))


def test_predictions_vary_by_coefficients_too(truth: dict[str, Any], fitted: dict[str, Any]) -> None:
    """Their variance is that of a direct evaluation, covariances of intercept and coefficients among it."""
    posterior = fitted["posterior"]
    mean, sd = (posterior.predict("rna")[name].values for name in ("mean", "sd"))
    z, v = posterior.scores().values, posterior.variable("scores_variance").values
    w, s = (posterior.variable(f"{name}_rna").values for name in ("loadings", "loadings_variance"))
    full = full_covariances(posterior)
    design = np.column_stack([np.ones(N), posterior.variable("covariates").values])
    variance = (z**2 + v) @ s.T + v @ (w**2).T + np.einsum("nc,dce,ne->nd", design, full, design)
    degrees = posterior.variable("noise_degrees_rna").values
    noise = degrees / (degrees - 2) / posterior.variable("noise_precision_rna").values
    np.testing.assert_allclose(sd, np.sqrt(variance + noise), rtol=1e-9)
    assert np.corrcoef(mean.ravel(), truth["x"].ravel())[0, 1] > 0.97


def test_log_likelihood_of_draws_counts_no_variance_twice(
    truth: dict[str, Any], fitted: dict[str, Any]
) -> None:
    """Given a draw entries vary by their noise alone."""
    drawn = fitted["posterior"].sample(2)
    entries = drawn.to_arviz("rna", stop=3)["log_likelihood"]["rna"].values[0]
    parts = ("scores", "loadings_rna", "coefficients_rna", "intercept_rna")
    z, w, b, b0 = (drawn.draws(name).values[0] for name in parts)
    given, y = drawn.variable("covariates").values[:3], truth["y"][:3]
    x = np.einsum("mnk,mdk->mnd", z[:, :3], w) + np.einsum("nc,mdc->mnd", given, b) + b0[:, None]
    degrees = drawn.variable("noise_degrees_rna").values
    noise = degrees / (degrees - 2) / drawn.variable("noise_precision_rna").values
    expected = stats.norm(x, np.sqrt(noise)).logpdf(y)[:, ~np.isnan(y)]
    np.testing.assert_allclose(entries, expected, atol=1e-4)


def test_precisions_follow_from_the_coefficients(fitted: dict[str, Any]) -> None:
    posterior = fitted["posterior"]
    scale = posterior.variable("scale_rna").values[:, None]
    mean, variance = (posterior.variable(f"coefficients{n}_rna").values for n in ("", "_variance"))
    second = ((mean / scale) ** 2 + variance / scale**2).sum(axis=0)
    for term, columns in (("age", slice(0, 1)), ("batch", slice(1, 4))):
        shape, rate = 1e-3 + 0.5 * D * len(second[columns]), 1e-3 + 0.5 * second[columns].sum()
        found = float(posterior.variable("coefficient_precision").sel(view="rna", term=term))
        assert found == pytest.approx(shape / rate, rel=1e-6)


def test_terms_of_the_bound_equal_monte_carlo(fitted: dict[str, Any]) -> None:
    """E log p(B | lambda) p(lambda) - log q, B and lambda drawn from q."""
    settings, rng, n = fitted["posterior"].model.settings, np.random.default_rng(1), 200_000
    shape, rate = np.array([21.0, 61.0]), np.array([14.0, 35.0])
    spread = {"intercepts": 0.0, "intercept_squares": 0.0}
    mean, variance = rng.standard_normal((D, 4)), rng.uniform(0.1, 0.5, (D, 4))
    squares = (mean**2 + variance).sum(axis=0)
    sums = SimpleNamespace(
        **spread,
        coefficient_squares=np.array([squares[0], squares[1:].sum()]),
        coefficient_entropy=0.5 * np.log(variance).sum(),
    )
    view = SimpleNamespace(coefficient_shape=shape, coefficient_rate=rate)
    only = replace(settings, intercepts=False)
    found = elbo._coefficients_term(only, view, SimpleNamespace(n_features=D), sums)  # type: ignore[arg-type]
    lam = rng.gamma(shape, 1.0 / rate, (n, 2))
    of = lam[:, [0, 1, 1, 1]]
    # Given lambda the average over B is exact.
    inner = 0.5 * (D * np.log(of) - of * squares).sum(axis=1) + 0.5 * (4 * D + np.log(variance).sum())
    prior, q = stats.gamma(1e-3, scale=1e3), stats.gamma(shape, scale=1.0 / rate)
    values = inner + (prior.logpdf(lam) - q.logpdf(lam)).sum(axis=1)
    assert found == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(n))


def test_adjusted_data_have_no_batches(truth: dict[str, Any], fitted: dict[str, Any]) -> None:
    posterior = fitted["posterior"]
    found = posterior.adjusted("rna", remove=["batch"], start=10)
    assert found["observed"].shape == (N - 10, D)
    codes = pd.Categorical(truth["obs"]["batch"]).codes

    def between(y: Any) -> float:
        return float(
            np.mean([np.nanvar([np.nanmean(y[codes[10:] == g, d]) for g in range(3)]) for d in range(D)])
        )

    assert between(found["observed"].values) < 0.1 * between(truth["y"][10:])
    np.testing.assert_array_equal(np.isnan(found["observed"].values), np.isnan(truth["y"][10:]))
    everything = posterior.adjusted("rna")["mean"].values
    z, w = posterior.scores().values, posterior.loadings("rna").values
    np.testing.assert_allclose(everything, z @ w.T + posterior.intercept("rna").values, atol=1e-9)
    with pytest.raises(InputError, match="terms among age, batch"):
        posterior.adjusted("rna", remove=["sex"])


def test_coefficients_are_exported_in_units_of_the_column(fitted: dict[str, Any], tmp_path: Path) -> None:
    ff.analysis.export_tables(fitted["posterior"], tmp_path / "tables")
    found = pd.read_csv(tmp_path / "tables" / "coefficients_rna.csv", index_col=0)
    expected = fitted["posterior"].coefficients("rna")["mean"]
    assert found.columns.tolist() == ["age", "batch[A]", "batch[B]", "batch[C]"]
    np.testing.assert_allclose(found.to_numpy().T, expected)


def test_new_samples_with_and_without_covariates(truth: dict[str, Any], fitted: dict[str, Any]) -> None:
    """The effect of covariates that are not known is not read as scores of factors."""
    posterior, folder = fitted["posterior"], fitted["folder"]
    rows = slice(0, 60)
    new = write(folder / "new.zarr", truth, rows)
    known = posterior.project(new, progress=False)
    np.testing.assert_allclose(known.scores(), posterior.scores()[rows], atol=1e-6)
    bare = ff.write_dataset(
        folder / "bare.zarr",
        {
            "rna": pd.DataFrame(
                truth["y"][rows], index=truth["obs"].index[rows], columns=[f"f{i}" for i in range(D)]
            )
        },
    )
    frame = truth["obs"][["batch", "age"]]
    given = posterior.project(bare, covariates=frame, progress=False)
    np.testing.assert_allclose(given.scores(), known.scores(), atol=1e-9)
    unknown = posterior.project(bare, progress=False)
    refused = posterior.project(new, covariates=False, progress=False)
    np.testing.assert_array_equal(unknown.scores(), refused.scores())
    average = truth["obs"].assign(age=np.nan, batch="")
    as_average = posterior.project(bare, covariates=average, progress=False)

    np.testing.assert_array_equal(as_average.scores(), unknown.scores())
    zero = np.zeros((60, len(posterior.factors)))
    error = [float(((p - known.scores().values) ** 2).mean()) for p in (unknown.scores().values, zero)]
    assert error[0] < 0.3 * error[1]
    ages = unknown.variable("covariates").values[:, 0]
    assert np.corrcoef(ages, truth["age"][rows])[0, 1] > 0.8
    assert (unknown.variable("scores_variance") > known.variable("scores_variance")).all()
    with pytest.raises(InputError, match="no column age"):
        posterior.project(bare, covariates=frame[["batch"]])
    with pytest.raises(InputError, match="two rows s0"):
        posterior.project(bare, covariates=pd.concat([frame, frame.iloc[:1]]))
    y, mean = truth["y"][rows], unknown.predict("rna")["mean"].values
    seen, centred = ~np.isnan(y), y - np.nanmean(y, axis=0)
    share = 1 - ((y - mean)[seen] ** 2).sum() / (centred[seen] ** 2).sum()
    assert float(unknown.variance_explained_total()[0]) == pytest.approx(share, abs=1e-6)
    terms = known.variance_explained(terms="covariate")  # of the new samples
    np.testing.assert_allclose(terms, terms_from_data(known, None, None), atol=1e-6)
    assert not np.allclose(terms, posterior.variance_explained(terms="covariate"), atol=1e-3)
    with pytest.raises(InputError, match="no row s3"):
        posterior.project(bare, covariates=frame.drop(index="s3"))


def test_unknown_covariates_have_the_prior_of_the_fit(
    truth: dict[str, Any], fitted: dict[str, Any], tmp_path: Path
) -> None:
    """Of a sample with few measurements: scores and covariates are those of dense linear algebra."""
    posterior = fitted["posterior"]
    y, columns = truth["y"][:3, :4], [f"f{i}" for i in range(4)]
    new = ff.write_dataset(tmp_path / "few.zarr", {"rna": pd.DataFrame(y, list("abc"), columns)})
    found = posterior.project(new, covariates=False, progress=False)
    ages = pd.DataFrame({"age": truth["obs"]["age"].to_numpy()[:3], "batch": ""}, list("abc"))
    aged = posterior.project(new, covariates=ages, progress=False)
    k, covariance = len(posterior.factors), full_covariances(posterior)
    w, b = posterior.loadings("rna").values, posterior.variable("coefficients_rna").values
    b0, tau = posterior.intercept("rna").values, posterior.variable("noise_precision_rna").values
    second = np.zeros((4, 4))
    second[np.tril_indices(4)] = posterior.meta.covariates.second
    second = second + np.tril(second, -1).T + 1e-6 * np.eye(4)
    for n in range(3):
        precision, linear = np.eye(k + 4), np.zeros(k + 4)
        precision[k:, k:] = np.linalg.inv(second)
        for d in np.flatnonzero(~np.isnan(y[n])):
            v = np.append(w[d], b[d])
            spread = np.zeros((k + 4, k + 4))
            spread[:k, :k] = np.diag(posterior.variable("loadings_variance_rna").values[d])
            spread[k:, k:] = covariance[d, 1:, 1:]
            precision += tau[d] * (np.outer(v, v) + spread)
            linear += tau[d] * ((y[n, d] - b0[d]) * v - np.append(np.zeros(k), covariance[d, 1:, 0]))
        expected = np.linalg.solve(precision, linear)
        np.testing.assert_allclose(found.scores().values[n], expected[:k], atol=1e-3)
        np.testing.assert_allclose(found.variable("covariates").values[n], expected[k:], atol=1e-3)
        inverse = np.linalg.inv(precision)[np.tril_indices(k + 4)]
        np.testing.assert_allclose(
            found.variable("scores_covariance").values[n], inverse, rtol=0.01, atol=1e-5
        )
        known, free = [k], [i for i in range(k + 4) if i != k]  # the age alone
        given = truth["obs"]["age"].to_numpy()[n] - posterior.meta.covariates.columns[0].mean
        given = given / posterior.meta.covariates.columns[0].sd
        less = linear[free] - precision[np.ix_(free, known)][:, 0] * given
        expected = np.linalg.solve(precision[np.ix_(free, free)], less)
        np.testing.assert_allclose(aged.scores().values[n], expected[:k], atol=1e-3)
        np.testing.assert_allclose(aged.variable("covariates").values[n], [given, *expected[k:]], atol=1e-3)


def test_a_warm_start_keeps_the_coding(truth: dict[str, Any], fitted: dict[str, Any]) -> None:
    posterior, folder = fitted["posterior"], fitted["folder"]
    part = write(folder / "part.zarr", truth, slice(0, 120))
    model = ff.models.SparseGFA(n_factors=5, covariates=["age", "batch"])
    first = ff.fit(part, model, progress=False)
    warm = ff.fit(fitted["dataset"], model, warm_start=first, progress=False)
    ours, theirs = warm.meta.covariates, first.meta.covariates
    assert [c.mean for c in ours.columns] == [c.mean for c in theirs.columns]
    assert [c.digest for c in ours.columns] != [c.digest for c in theirs.columns]
    assert warm.trace["objective"].values[-1] == pytest.approx(
        posterior.trace["objective"].values[-1], abs=5.0
    )


def test_counts_and_binary_views_have_covariates(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    obs = metadata(rng, 200)
    age = (obs["age"].to_numpy() - 50) / 10
    z, slopes = rng.standard_normal((200, 1)), rng.choice([-0.7, 0.0, 0.7], 30)
    x = np.outer(age, slopes) + z @ rng.standard_normal((1, 30))
    counts = rng.poisson(np.exp(1.5 + 0.5 * x))
    binary = (rng.random(x.shape) < 1 / (1 + np.exp(-2 * x))).astype(int)
    frames = {k: pd.DataFrame(v, index=obs.index) for k, v in (("counts", counts), ("binary", binary))}
    dataset = ff.write_dataset(tmp_path / "data.zarr", frames, obs=obs)
    posterior = ff.fit(dataset, ff.models.SparseGFA(n_factors=3, covariates="age"), progress=False)
    check_regression(posterior)
    unit = obs["age"].std(ddof=0) / 10
    for view, factor in (("counts", 0.5), ("binary", 2.0)):
        found = posterior.coefficients(view, total=True)["mean"].values[0] * 10 * unit
        assert np.corrcoef(found, slopes)[0, 1] > (0.95 if view == "counts" else 0.85)
        assert np.polyfit(factor * unit * slopes, found, 1)[0] == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["agee"], "Did you mean age?"),
        ("~ age +", "formula"),
        ("~ log(age)", "Make a column of it"),
        ("y ~ age", "without a response"),
        (["constant"], "differs between samples"),
        (["name"], "at most 60 levels"),
    ],
)
def test_columns_that_cannot_be_covariates(
    given: Any, message: str, truth: dict[str, Any], tmp_path: Path
) -> None:
    obs = truth["obs"].assign(constant=1.0, name=truth["obs"].index)
    dataset = write(tmp_path / "data.zarr", {**truth, "obs": obs})
    with pytest.raises(InputError) as error:
        ff.fit(dataset, ff.models.SparseGFA(n_factors=2, covariates=given), progress=False)
    assert message in str(error.value)
    assert "covariates" in str(error.value)


def test_posteriors_without_covariates_say_so(truth: dict[str, Any], tmp_path: Path) -> None:
    dataset = write(tmp_path / "data.zarr", truth)
    posterior = ff.fit(dataset, ff.models.SparseGFA(n_factors=2, max_iter=2, warmup_iter=2), progress=False)
    for call in (
        lambda: posterior.coefficients("rna"),
        lambda: posterior.adjusted("rna"),
        lambda: posterior.scores(adjusted=True),
        lambda: posterior.variance_explained(terms="covariate"),
    ):
        with pytest.raises(InputError, match="covariates"):
            call()


def test_a_formula_without_its_sign_is_told_how_it_is_one(truth: dict[str, Any], tmp_path: Path) -> None:
    dataset = write(tmp_path / "data.zarr", truth)
    for given in ("age + batch", ["age + batch"]):
        with pytest.raises(InputError, match=r"age \+ batch.*As a formula: '~ age \+ batch'"):
            code_covariates(dataset, given)


def test_a_changed_covariate_is_another_run(truth: dict[str, Any], tmp_path: Path) -> None:
    out, model = tmp_path / "fit", ff.models.SparseGFA(n_factors=2, covariates="age", warmup_iter=2)
    dataset = write(tmp_path / "data.zarr", truth)
    first = ff.fit(dataset, model, out=out, max_iter=2, progress=False)
    again = ff.fit(dataset, model, out=out, max_iter=2, resume="auto", progress=False)
    assert again.run["created_at"] == first.run["created_at"]
    obs = truth["obs"].assign(age=truth["obs"]["age"].to_numpy()[::-1])
    changed = write(tmp_path / "changed.zarr", {**truth, "obs": obs})
    assert changed.fingerprint == dataset.fingerprint
    with pytest.raises(InputError, match="does not exist"):
        ff.fit(changed, model, out=out, max_iter=2, resume="auto", progress=False)


def test_levels_that_the_fit_did_not_know_are_warned_of(tmp_path: Path) -> None:
    """Of samples known by metadata alone and of projections, of their own metadata and of a table."""
    rng = np.random.default_rng(0)
    obs = pd.DataFrame({"habitat": ["bog", "wood"] * 20}, [f"s{i}" for i in range(40)])
    y = pd.DataFrame(rng.standard_normal((40, 5)), obs.index, [f"f{i}" for i in range(5)])
    dataset = ff.write_dataset(tmp_path / "d", {"y": y}, obs=obs)
    config = {"model": "sparse_gfa", "covariates": ["habitat"], "n_factors": 1, "drop": 0.0}
    posterior = ff.fit(dataset, config, max_iter=5, progress=False)
    other = obs.iloc[:6].assign(habitat=["bog", "Bog", "sea"] * 2)
    with pytest.warns(UserWarning, match=r"'Bog', 'sea' of column habitat .*\('bog', 'wood'\)"):
        posterior.predict("y", new_obs=other)
    with pytest.warns(UserWarning, match="'Bog', 'sea' of column habitat"):
        posterior.project(ff.write_dataset(tmp_path / "new", {"y": y.iloc[:6]}, obs=other), progress=False)
    known = ff.write_dataset(tmp_path / "known", {"y": y.iloc[:6]}, obs=obs.iloc[:6])
    posterior.project(known, progress=False)  # without a word
    with pytest.warns(UserWarning, match="'Bog', 'sea' of column habitat"):
        posterior.project(known, covariates=other, progress=False)


def test_many_levels_and_a_column_that_acted_on_features_before(tmp_path: Path) -> None:
    """The rows on which memory is measured have covariates as alike as the samples'; blocks stay apart."""
    rng = np.random.default_rng(0)
    plate = [f"p{i}" for i in np.arange(200) % 20]
    obs = pd.DataFrame({"plate": plate}, index=[f"s{i}" for i in range(200)])
    values = pd.DataFrame(rng.standard_normal((200, 6)), index=obs.index)
    dataset = ff.write_dataset(tmp_path / "data.zarr", {"rna": values}, obs=obs)
    few = {"n_factors": 1, "max_iter": 2, "warmup_iter": 2}
    on_features = ff.fit(dataset, ff.models.SparseGFA(covariates=["plate"], **few), progress=False)
    assert on_features.coefficients("rna").sizes["covariate"] == 20
    on_scores = ff.fit(dataset, ff.models.SparseGFA(score_covariates=["plate"], **few), progress=False)
    assert on_scores.score_coefficients().sizes["score_covariate"] == 20


def test_noise_of_a_trial_has_the_products_of_the_samples(fitted: dict[str, Any]) -> None:
    covariates = code_covariates(fitted["dataset"], "~ age*batch")
    rows = covariates.sample(np.random.default_rng(0), 20_000)
    products = (rows.T @ rows / len(rows))[np.tril_indices(len(covariates))]
    np.testing.assert_allclose(products, covariates.second, atol=0.05)


def test_features_with_fewer_entries_than_covariates(tmp_path: Path) -> None:
    """Their regression would explain more than their variance; the start leaves it out."""
    rng = np.random.default_rng(1)
    obs = pd.DataFrame(rng.standard_normal((60, 40)), index=[f"s{i}" for i in range(60)]).add_prefix("c")
    values = rng.standard_normal((60, 6))
    values[np.arange(60)[:, None] % 3 != np.arange(6) % 3] = np.nan
    frame = pd.DataFrame(values, index=obs.index)
    dataset = ff.write_dataset(tmp_path / "data.zarr", {"rna": frame}, obs=obs)
    model = ff.models.SparseGFA(n_factors=1, covariates=list(obs), max_iter=2, warmup_iter=2)
    posterior = ff.fit(dataset, model, progress=False)
    assert np.isfinite(posterior.coefficients("rna")["mean"]).all()


@pytest.mark.filterwarnings("ignore:The chains have not mixed")
def test_draws_of_a_factor_without_loadings_beside_a_category(tmp_path: Path) -> None:
    """Its levels add up to a constant: what the scores shift by has no precision along that."""
    rng = np.random.default_rng(0)
    values, sex = {"a": rng.normal(size=(40, 4))}, {"sex": rng.choice(["m", "f"], 40)}
    options = {"n_factors": 3, "covariates": ["sex"], "drop": 0.0, "n_draws": 20, "n_burn_in": 10}
    model = ff.models.SparseGFA(**options, chains=1)
    posterior = ff.fit(ff.write_dataset(tmp_path / "d", values, obs=sex), model, progress=False)
    draws = posterior.array("loadings_a").values
    assert (draws == 0.0).all(axis=-2).any()  # of some factor in some draw, if not there is nothing to see
    assert np.isfinite(posterior.array("coefficients_a").values).all()


@pytest.mark.parametrize("factors", [True, False])
def test_a_covariate_without_an_effect_explains_nothing(tmp_path: Path, factors: bool) -> None:
    """Also where rates at the intercepts are far below the means: E e^x is not e^(E x)."""
    rng = np.random.default_rng(0)
    x = 1.0 + (rng.normal(size=(200, 1)) @ rng.normal(size=(1, 15)) if factors else np.zeros((200, 15)))
    data = ff.write_dataset(
        tmp_path / "d.zarr", {"n": rng.poisson(np.exp(x))}, obs={"age": rng.normal(size=200)}
    )
    posterior = ff.fit(data, ff.models.SparseGFA(n_factors=2, covariates="age"), progress=False)
    for by in (None, "feature", "sample"):
        view = "n" if by == "feature" else None
        shares = posterior.variance_explained(by, view=view, terms="covariate")
        assert abs(float(shares.sel(term="age").median())) < 0.01
