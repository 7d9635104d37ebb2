"""Samples of which covariates are not known: their distribution, and the intervals of predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.kernels.linalg import pack, unpack
from factorflow.kernels.random import Step
from factorflow.likelihoods import get_likelihood
from factorflow.models.sparse_gfa.prediction import _predictor
from factorflow.models.sparse_gfa.sampler.metropolis import Entries, stand_ins
from factorflow.models.sparse_gfa.sampler.score_prior import ScorePrior
from factorflow.models.sparse_gfa.sampler.unknown_covariates import draw_covariates

N, D, SHOWN = 300, 24, 200


@dataclass(frozen=True)
class Study:
    """Samples with strong effects of covariates, by which the entries of new ones are mostly to be predicted.

    ``hidden``: entries that no dataset shows; ``partial``: metadata with most ages missing.
    """

    folder: Path
    y: Any
    obs: pd.DataFrame
    partial: pd.DataFrame
    hidden: Any

    def write(self, name: str, rows: slice, obs: pd.DataFrame, hidden: Any = None) -> ff.Dataset:
        y = self.y if hidden is None else np.where(hidden, np.nan, self.y)
        frame = pd.DataFrame(y[rows], obs.index[rows], [f"f{i}" for i in range(D)])
        return ff.write_dataset(self.folder / f"{name}.zarr", {"a": frame}, obs=obs.iloc[rows])

    def coverage(self, predicted: Any, rows: slice, entries: Any = None) -> float:
        """Return the share of entries in 90 % intervals."""
        y = self.y[rows]
        inside = (y >= predicted["lower"].values) & (y <= predicted["upper"].values)
        return float((inside if entries is None else inside[entries]).mean())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    rng = np.random.default_rng(5)
    batch = rng.integers(0, 3, N)
    columns = {"age": rng.standard_normal(N), "batch": np.array(["A", "B", "C"])[batch]}
    obs = pd.DataFrame(columns, [f"s{i}" for i in range(N)])
    x = 1.5 * np.outer(obs["age"], rng.standard_normal(D)) + rng.standard_normal((3, D))[batch]
    x += rng.standard_normal((N, 2)) @ rng.standard_normal((2, D))
    y = 2.0 + x + 0.7 * rng.standard_normal((N, D))
    hidden = rng.random((N, D)) < 0.85
    hidden[:, 0] = False
    partial = obs.assign(age=obs["age"].where(rng.random(N) < 0.3))
    return Study(tmp_path_factory.mktemp("unknown"), y, obs, partial, hidden)


OPTIONS: dict[str, Any] = {"n_factors": 3, "covariates": ["age", "batch"]}


@pytest.fixture(scope="module")
def fit(study: Study) -> ff.Posterior:
    data = study.write("fit", slice(SHOWN), study.obs)
    return ff.fit(data, ff.models.SparseGFA(**OPTIONS), progress=False)


def test_variance_is_that_of_all_products() -> None:
    """By draws of scores and covariates together, of loadings, and of intercept and coefficients together."""
    rng, n, k, size, d = np.random.default_rng(1), 200_000, 2, 2, 3

    def covariance(m: int) -> Any:
        root = rng.standard_normal((m, m))
        return 0.3 * root @ root.T

    joint, mean = covariance(k + size), rng.standard_normal(k + size)
    of_features = np.stack([covariance(1 + size) for _ in range(d)])
    record = {
        "loadings_a": rng.standard_normal((d, k)),
        "loadings_variance_a": rng.uniform(0.1, 0.3, (d, k)),
        "intercept_a": rng.standard_normal(d),
        "coefficients_a": rng.standard_normal((d, size)),
        "coefficients_covariance_a": pack(of_features),
    }
    rows = {
        "scores": np.tile(mean[:k], (2, 1)),
        "scores_variance": np.tile(np.diag(joint)[:k], (2, 1)),
        "covariates": np.tile(mean[k:], (2, 1)),
        "scores_covariance": np.stack([pack(joint), 0.0 * pack(joint)]),
    }
    found_mean, found = _predictor(rows, record, "a")
    drawn = rng.multivariate_normal(mean, joint, n)
    for i in range(d):
        w = rng.normal(record["loadings_a"][i], np.sqrt(record["loadings_variance_a"][i]), (n, k))
        centre = np.append(record["intercept_a"][i], record["coefficients_a"][i])
        b = rng.multivariate_normal(centre, of_features[i], n)
        x = (drawn[:, :k] * w).sum(axis=1) + b[:, 0] + (drawn[:, k:] * b[:, 1:]).sum(axis=1)
        squares = (x - x.mean()) ** 2
        assert found_mean[0, i] == pytest.approx(x.mean(), abs=4.0 * x.std() / np.sqrt(n))
        assert found[0, i] == pytest.approx(squares.mean(), abs=4.0 * squares.std() / np.sqrt(n))
    known = {name: values for name, values in rows.items() if name != "scores_covariance"}
    np.testing.assert_array_equal(found[1], _predictor(known, record, "a")[1][1])


def test_what_is_known_tells_of_the_rest(fit: ff.Posterior) -> None:
    """Mean and covariance are those that follow from the inverse of the covariance of all."""
    covariates = fit.meta.covariates
    values = covariates.encode_known({"age": np.array([1.0, np.nan]), "batch": np.array(["", "B"])})
    mean, covariance = covariates.given_known(values)
    precision = np.linalg.inv(covariates.covariance)
    np.testing.assert_allclose(np.linalg.inv(covariance[0, 1:, 1:]), precision[1:, 1:], rtol=1e-4)
    expected = -np.linalg.solve(precision[1:, 1:], precision[1:, 0] * values[0, 0])
    np.testing.assert_allclose(mean[0, 1:], expected, rtol=1e-4)
    assert mean[0, 0] == values[0, 0]
    assert not covariance[0, 0].any()
    assert not covariance[1, 1:].any()
    np.testing.assert_allclose(covariance[1, 0, 0], 1.0 / precision[0, 0], rtol=1e-6)


@pytest.mark.parametrize("case", ["not at all", "in part"])
def test_intervals_of_projected_samples_hold(study: Study, fit: ff.Posterior, case: str) -> None:
    rows = slice(SHOWN, N)
    obs = study.obs if case == "not at all" else study.partial
    data = study.write(case, rows, obs, study.hidden)
    new = fit.project(data, covariates=False if case == "not at all" else None, progress=False)
    found = study.coverage(new.predict("a", interval=0.9), rows, study.hidden[rows])
    assert 0.87 < found < 0.93
    covariance = new.variable("scores_covariance").values
    is_incomplete = obs["age"].isna().to_numpy()[rows] | (case == "not at all")
    np.testing.assert_array_equal(covariance.any(axis=1), is_incomplete)
    own = np.arange(len(fit.factors))
    variances = covariance[:, own * (own + 3) // 2]
    expected = new.variable("scores_variance")[is_incomplete]
    np.testing.assert_allclose(variances[is_incomplete], expected, rtol=1e-6)


def test_rows_with_all_covariates_are_as_without_others(study: Study, fit: ff.Posterior) -> None:
    rows = slice(SHOWN, N)
    whole = fit.project(study.write("whole", rows, study.obs, study.hidden), progress=False)
    part = fit.project(study.write("some", rows, study.partial, study.hidden), progress=False)
    assert not whole.has("scores_covariance")
    complete = study.partial["age"].notna().to_numpy()[rows]
    for name in ("mean", "sd"):
        expected, found = (p.predict("a")[name].values[complete] for p in (whole, part))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_intervals_of_samples_known_by_metadata_alone_hold(study: Study, fit: ff.Posterior) -> None:
    rows = slice(SHOWN, N)
    nothing = study.obs.assign(age=np.nan, batch="")
    for obs in (study.obs, study.partial, nothing):
        predicted = fit.predict("a", new_obs=obs.iloc[rows], interval=0.9)
        assert 0.87 < study.coverage(predicted, rows) < 0.93
    effects = fit.variable("coefficients_a").values
    known, unknown = (
        fit.predict("a", new_obs=obs.iloc[rows])["sd"].values ** 2 for obs in (study.obs, nothing)
    )
    covariance = fit.meta.covariates.covariance
    spread = np.einsum("di,ij,dj->d", effects, covariance, effects)
    np.testing.assert_allclose((unknown - known).mean(axis=0), spread, rtol=0.02)


@pytest.mark.thorough
def test_intervals_of_samples_of_the_fit_hold(study: Study) -> None:
    """Where ages are missing, which the noise of the fit has a part of; of others a tenth is hidden."""
    missing = study.partial["age"].isna().to_numpy() & (np.arange(N) % 2 > 0)
    obs = study.obs.assign(age=study.obs["age"].where(~missing))
    hidden = np.where(missing[:, None], study.hidden, np.random.default_rng(0).random((N, D)) < 0.1)
    data = study.write("missing", slice(None), obs, hidden)
    posterior = ff.fit(data, ff.models.SparseGFA(**OPTIONS), progress=False)
    predicted = posterior.predict("a", interval=0.9)
    for rows in (missing, ~missing):
        assert 0.87 < study.coverage(predicted, slice(None), hidden & rows[:, None]) < 0.95
    ages = posterior.variable("covariates").values[missing, 0]
    assert np.corrcoef(ages, study.obs["age"][missing])[0, 1] > 0.6
    y, mean = np.where(hidden, np.nan, study.y), predicted["mean"].values
    share = 1.0 - np.nansum((y - mean) ** 2) / np.nansum((y - np.nanmean(y, axis=0)) ** 2)
    assert float(posterior.variance_explained_total()[0]) == pytest.approx(share, abs=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"likelihoods": {"a": "student_t"}},
        {"scores": "spike"},
        {"scores": "nonnegative"},
        {"noise": "sample"},
        {"grouped_noise": True},
    ],
    ids=str,
)
def test_every_kind_of_scores_has_the_spread(study: Study, options: Any, tmp_path: Path) -> None:
    """Predictions of samples whose covariates are not known vary by them."""
    y = study.y[:120]
    obs, groups = study.obs.iloc[:120], np.array(["g", "h"])[np.arange(120) % 2]
    frame = pd.DataFrame(y, obs.index, [f"f{i}" for i in range(D)])
    data = ff.write_dataset(tmp_path / "d", {"a": frame}, obs=obs, groups=groups)
    model = ff.models.SparseGFA(**OPTIONS, **options)
    posterior = ff.fit(data, model, max_iter=5, progress=False)
    new = ff.write_dataset(
        tmp_path / "new",
        {"a": frame.where(~study.hidden[:120])},
        obs=obs.assign(age=obs["age"].where(np.arange(120) % 3 > 0)),
        groups=groups,
    )
    known = posterior.project(new, covariates=obs, progress=False)
    unknown = posterior.project(new, progress=False)
    feature = int(np.abs(posterior.variable("coefficients_a").values[:, 0]).argmax())
    ratio = (unknown.predict("a")["sd"] / known.predict("a")["sd"]).values[:, feature]
    lacks = np.arange(120) % 3 == 0
    np.testing.assert_allclose(ratio[~lacks], 1.0, rtol=1e-3)
    assert np.median(ratio[lacks]) > 1.1


# Draws


@pytest.mark.thorough
def test_draws_from_the_fit_have_its_covariances(study: Study, fit: ff.Posterior) -> None:
    """Of scores and covariates together where some are not known; else of the scores alone."""
    rows = slice(SHOWN, SHOWN + 40)
    new = fit.project(study.write("drawn", rows, study.partial, study.hidden), progress=False)
    lacks, n, k = study.partial["age"].isna().to_numpy()[rows], 2000, len(fit.factors)
    assert 0 < lacks.sum() < 40
    drawn = new.sample(n, seed=1).tree["posterior"]
    both = np.concatenate([drawn[name].values[0] for name in ("scores", "covariates")], axis=-1)
    covariance = unpack(new.variable("scores_covariance").values.astype(float), both.shape[-1])
    mean = np.concatenate([new.variable(name).values for name in ("scores", "covariates")], axis=-1)
    assert (both[:, ~lacks, k:] == mean[~lacks, k:]).all()
    strongest = 0.0
    for row in np.flatnonzero(lacks):
        found, wanted = both[:, row], covariance[row]
        sd = np.sqrt(np.diag(wanted))
        assert (np.abs(found.mean(axis=0) - mean[row]) <= 5.0 * sd / np.sqrt(n) + 1e-6).all()
        np.testing.assert_allclose(np.cov(found.T), wanted, atol=0.12 * sd.max() ** 2)
        strongest = max(strongest, np.abs(wanted[:k, k] / (sd[:k] * sd[k])).max())
    assert strongest > 0.3


def test_drawn_covariates_have_the_moments_of_the_equations(fit: ff.Posterior) -> None:
    """Scores integrated out, and given them: of many rows with the same equations, one age known."""
    settings, n, k, size = fit.model.settings, 40_000, 2, 4
    rng = np.random.default_rng(2)
    root = rng.standard_normal((9, k + 1 + size))
    pairs, linear = pack(root.T @ root)[None], np.tile(3.0 * rng.standard_normal(k + 1 + size), (n, 1))
    values = np.full((n, size), np.nan)
    values[:, 0] = 0.7
    own_prior = np.array([[1.0, 2.0]])
    prior = ScorePrior(np.tile([0.3, -0.2], (n, 1)), own_prior, np.zeros(n, int))
    scores, design = np.tile([0.5, -1.0], (n, 1)), np.column_stack([np.ones(n), np.zeros((n, size))])
    own = values, prior, (pairs, linear), (scores, design), [], np.arange(n), Step(0, 0, 1)
    whole = root.T @ root
    precision, h = whole.copy(), linear[0].copy()
    precision[:k, :k] += np.diag(own_prior[0])
    h[:k] += own_prior[0] * prior.mean[0]
    precision[k + 1 :, k + 1 :] += np.linalg.inv(settings.covariates.covariance)
    for integrate in (True, False):
        drawn = draw_covariates(settings, *own, integrate=integrate)
        given = [k, k + 1] if integrate else [0, 1, k, k + 1]
        at = np.append([] if integrate else scores[0], [1.0, 0.7])
        free = [i for i in range(k + 1 + size) if i not in given]
        covariance = np.linalg.inv(precision[np.ix_(free, free)])
        mean = (covariance @ (h[free] - precision[np.ix_(free, given)] @ at))[-3:]
        covariance = covariance[-3:, -3:]
        np.testing.assert_array_equal(drawn[:, :2], np.tile([1.0, 0.7], (n, 1)))
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_array_less(np.abs(drawn[:, 2:].mean(axis=0) - mean), 4.0 * sd / np.sqrt(n) + 1e-5)
        found = np.cov(drawn[:, 2:].T)
        np.testing.assert_allclose(found, covariance, atol=0.03 * covariance.max())


def test_drawn_covariates_of_counts_have_their_posterior(fit: ff.Posterior) -> None:
    """By slices: mean and variance of an age are those of a sum over a grid."""
    settings, n, size = fit.model.settings, 4000, 4
    rng = np.random.default_rng(3)
    weights = np.column_stack([rng.standard_normal((6, 1)), np.full(6, 0.5), rng.standard_normal((6, size))])
    values = np.tile([np.nan, 0.6, -0.3, -0.3], (n, 1))
    scores, counts = np.full((n, 1), 0.4), np.tile(rng.poisson(2.0, 6).astype(float), (n, 1))
    density = get_likelihood("poisson")
    x = np.tile(weights[:, :2] @ [0.4, 1.0] + weights[:, 3:] @ values[0, 1:], (n, 1))
    u, r = stand_ins(settings, density, counts, x, np.empty((6, 0)))
    entries = [Entries(density, counts, u, r, weights, np.empty((6, 0)))]
    products = np.einsum("di,dj->dij", weights, weights).reshape(6, -1)
    packed = (u @ products).reshape(n, 6, 6)[:, *np.tril_indices(6)].astype(float)
    prior = ScorePrior(np.zeros((n, 1)), np.ones((1, 1)), np.zeros(n, int))
    design = np.column_stack([np.ones(n), rng.standard_normal(n), values[:, 1:]])
    for i in range(25):
        before = scores, design
        own = values, prior, (packed, (r @ weights).astype(float)), before, entries, np.arange(n)
        design = draw_covariates(settings, *own, Step(0, 0, i), integrate=False)
    grid = np.linspace(-6.0, 6.0, 2001)
    at = x[0] + grid[:, None] * weights[:, 2]
    precision = np.linalg.inv(settings.covariates.covariance)
    log_density = (counts[0] * at - np.exp(at)).sum(axis=1)
    log_density -= 0.5 * precision[0, 0] * grid**2 + grid * (precision[0, 1:] @ values[0, 1:])
    p = np.exp(log_density - log_density.max())
    mean = (p * grid).sum() / p.sum()
    variance = (p * (grid - mean) ** 2).sum() / p.sum()
    assert design[:, 1].mean() == pytest.approx(mean, abs=4.0 * np.sqrt(variance / n))
    assert design[:, 1].var() == pytest.approx(variance, rel=0.1)


@pytest.mark.slow
def test_intervals_of_draws_hold(study: Study) -> None:
    """Of samples of the fit, projected ones, and those that are known by metadata alone."""
    missing = study.partial["age"].isna().to_numpy() & (np.arange(N) % 2 > 0)
    obs = study.obs.assign(age=study.obs["age"].where(~missing))
    rows, new = slice(SHOWN), slice(SHOWN, N)
    hidden = study.hidden & missing[:, None]
    model = ff.models.SparseGFA(**OPTIONS, n_draws=40, n_burn_in=30, chains=1)
    posterior = ff.fit(study.write("draws", rows, obs, hidden), model, progress=False)
    predicted = posterior.predict("a", interval=0.9)
    assert 0.87 < study.coverage(predicted, rows, hidden[rows]) < 0.95
    drawn = posterior.draws("covariates_draws").values[0]
    np.testing.assert_allclose(posterior.variable("covariates"), drawn.mean(axis=0), atol=1e-5)
    assert (drawn[:, ~missing[rows]].std(axis=0) == 0.0).all()
    assert (drawn[:, missing[rows], 0].std(axis=0) > 0.01).all()
    assert (
        np.corrcoef(drawn.mean(axis=0)[missing[rows], 0], study.obs["age"][rows][missing[rows]])[0, 1] > 0.6
    )
    data = study.write("new of draws", new, study.partial, study.hidden)
    for covariates in (None, False):
        projected = posterior.project(data, covariates=covariates, iterations=5, progress=False)
        found = study.coverage(projected.predict("a", interval=0.9), new, study.hidden[new])
        assert 0.87 < found < 0.95
    known = posterior.predict("a", new_obs=study.partial.iloc[new], interval=0.9)
    assert 0.87 < study.coverage(known, new) < 0.95
