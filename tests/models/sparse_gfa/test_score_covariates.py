"""Covariates of the scores, sums of courses, samples known by covariates alone, intercepts by group."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.core.covariates import Column, Covariates, Term
from factorflow.core.places import Places
from factorflow.data.sample_tables import SampleTables, model_meta
from factorflow.errors import InputError
from factorflow.kernels.linalg import pack
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.smooth.composite import LEAST_SD, Linear, Sum, linear_part, smooth_part
from factorflow.models.sparse_gfa.smooth.cosines import Cosines
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.processes import LEVELS

N_SUBJECTS, N_VISITS, N_FEATURES = 60, 5, 60
ARMS = {"a": -1.0, "b": 0.0, "c": 1.0}

TIME = Places(("t",), (0,), low=(0.0,), high=(1.0,), nearest=(0.1,), n_known=9)
SUBJECTS = Places(
    ("who",), (0,), low=(0.0,), high=(2.0,), nearest=(1.0,), cells=((0, 0.0), (0, 1.0), (0, 2.0)),
    levels=("x", "y", "z"), n_known=9,
)  # fmt: skip
CODED = Covariates(
    (Column("age", 50.0, 10.0), Column("arm", levels=("a", "b"))),
    (Term(("age",), (0.0,)), Term(("arm",), (0.25, 0.75))),
    tuple(pack(np.diag([1.0, 0.1875, 0.1875])).tolist()),
)


@pytest.fixture
def basis() -> Sum:
    """A course over time, a level for each subject, covariates."""
    return Sum((Cosines(TIME, "matern52", (5,), 1.5), Points(SUBJECTS, LEVELS), Linear(CODED)))


def test_sizes_and_names_of_a_sum(basis: Sum) -> None:
    assert basis.size == 5 + 3 + 3
    assert basis.width == 1 + 1 + 3
    assert basis.labels == ["t", "who", "age", "arm", "sd_smooth", "sd_who", "sd_covariates"]
    assert basis.part_names == ["smooth", "who", "covariates"]
    assert smooth_part(basis) == (basis.parts[0], slice(0, 1))
    assert linear_part(basis) == (basis.parts[2], slice(8, 11))
    assert smooth_part(Linear(CODED)) is None
    assert linear_part(basis.parts[0]) is None
    # A share each; a length scale, how terms share the variance, and how groups do, are parameters too.
    assert [part.n_parameters for part in basis.parts] == [2, 1, 3]
    assert basis.n_parameters == 6


def test_slopes_of_a_sum(basis: Sum) -> None:
    """The covariance is that of independent parts, its slopes those of differences."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(-1.0, 0.3, len(basis.labels)))
    value, slopes = basis.covariance(lengths, np.array([0.9]))
    for row, part in enumerate(basis.part_slices()):
        own = value[part[2], part[2]] / lengths[4 + row] ** 2
        alone = part[0].covariance([lengths[:1], lengths[1:2], lengths[2:4]][row], np.array([0.9]))[0]
        np.testing.assert_allclose(own, alone if alone.ndim == 2 else np.diag(alone), rtol=1e-12)
    assert not value[:5, 5:].any()
    for r in range(len(lengths)):
        step = np.exp(1e-6 * (np.arange(len(lengths)) == r))
        up, down = (basis.covariance(lengths * s, np.array([0.9]))[0] for s in (step, 1.0 / step))
        np.testing.assert_allclose(slopes[r], (up - down) / 2e-6, rtol=1e-6, atol=1e-9)
    assert not slopes[-1].any()  # no groups
    second = np.diag(rng.random(basis.size))
    shares = basis.shares(lengths, np.array([0.9]), second)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[1] == pytest.approx((second * value)[5:8, 5:8].sum() / (second * value).sum())


def test_rows_that_tell_of_some_parts(basis: Sum) -> None:
    """Functions of what is not known are 0, and its prior variance is told apart."""
    rng = np.random.default_rng(1)
    lengths = np.exp(rng.normal(-1.0, 0.3, len(basis.labels)))
    places = np.array(
        [[0.5, 1.0, 0.3, 0.75, -0.75], [0.5, np.nan, 0.3, 0.75, -0.75], [np.nan] * 5, [9.0, 1.0] + [0.0] * 3]
    )
    codes, centre = np.zeros(4, np.int64), rng.random(basis.size)
    assert basis.inside(places).tolist() == [True, True, False, True]
    functions, beside, unknown = basis.at(places, codes, lengths, np.array([0.9]), centre)
    np.testing.assert_allclose(functions[0] + centre, basis.functions(places[:1], codes[:1])[0], atol=1e-7)
    assert not functions[1, 5:8].any()
    np.testing.assert_array_equal(np.delete(functions[1], [5, 6, 7]), np.delete(functions[0], [5, 6, 7]))
    assert not functions[2].any()
    assert not functions[3, :5].any()  # beyond the box
    sds = lengths[4:] ** 2
    of_covariates = sds[2] * Linear(CODED).variance(lengths[2:4])
    assert of_covariates == pytest.approx(sds[2] * (lengths[2] ** 2 + 0.1875 * lengths[3] ** 2))
    np.testing.assert_allclose(unknown, [0.0, sds[1], sds[0] + sds[1] + of_covariates, sds[0]], rtol=1e-6)
    np.testing.assert_allclose(beside, 0.0, atol=1e-8)


def test_effects_of_levels_are_against_the_average() -> None:
    effects = Linear(CODED).effects()
    coefficients = np.array([2.0, 1.0, -1.0])
    np.testing.assert_allclose(effects @ coefficients, [2.0, 1.5, -0.5])  # the average: .25 - .75
    np.testing.assert_allclose(effects @ np.array([0.0, 1.0, 1.0]), 0.0, atol=1e-15)
    assert Linear(CODED).shortest.tolist() == [LEAST_SD, LEAST_SD]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Visits: a factor of age, one of the arm and the subject, one of nothing, one of time."""
    rng = np.random.default_rng(3)
    n = N_SUBJECTS * N_VISITS
    subject = np.repeat(np.arange(N_SUBJECTS), N_VISITS)
    obs = pd.DataFrame(
        {
            "age": rng.normal(50.0, 10.0, N_SUBJECTS)[subject],
            "arm": rng.choice(list(ARMS), N_SUBJECTS)[subject],
            "subject": [f"p{i}" for i in subject],
            "time": np.tile(np.linspace(0.0, 1.0, N_VISITS), N_SUBJECTS),
        },
        index=[f"s{i}" for i in range(n)],
    )
    arm = np.array([ARMS[a] for a in obs["arm"]])
    z = rng.standard_normal((n, 4))
    z[:, 0] = 0.08 * (obs["age"] - 50.0) + 0.6 * z[:, 0]
    z[:, 1] = 0.7 * arm + 0.6 * rng.standard_normal(N_SUBJECTS)[subject] + 0.5 * z[:, 1]
    z[:, 3] = 1.3 * np.sin(np.pi * obs["time"] * 2.0) + 0.3 * z[:, 3]
    w = rng.standard_normal((N_FEATURES, 4)) * (rng.random((N_FEATURES, 4)) < 0.5) * 0.6
    frame = pd.DataFrame(z @ w.T + rng.standard_normal((n, N_FEATURES)), index=obs.index)
    seen = subject < 50
    path = tmp_path_factory.mktemp("cohort") / "data.zarr"
    data = ff.write_dataset(path, {"a": frame[seen]}, obs=obs[seen])
    return SimpleNamespace(obs=obs, z=z, w=w, frame=frame, seen=seen, data=data, x=z @ w.T)


@pytest.fixture(scope="module")
def fitted(cohort: SimpleNamespace) -> Any:
    model = SparseGFA(
        n_factors=7,
        score_covariates="~ age + arm",
        random_intercepts="subject",
        smooth_covariates="time",
    )
    return ff.fit(cohort.data, model, progress=False)


@pytest.mark.thorough
def test_effects_on_the_scores(cohort: SimpleNamespace, fitted: Any) -> None:
    """Each factor has to do with what it was made of, and with nothing else."""
    scores = fitted.scores().values
    corr = np.corrcoef(cohort.z[cohort.seen].T, scores.T)[:4, 4:]
    best = np.abs(corr).argmax(axis=1)
    assert len(fitted.factors) == 4
    assert np.abs(corr).max(axis=1).min() > 0.9
    coefficients = fitted.score_coefficients()
    assert coefficients["score_covariate"].values.tolist() == ["age", "arm[a]", "arm[b]", "arm[c]"]
    mean, sd = (coefficients[name].transpose("factor", "score_covariate").values for name in ("mean", "sd"))
    # Scores have variance 1 about: so are the true effects, by the standard deviation of a true factor.
    size = np.sign(corr[range(4), best]) / cohort.z[cohort.seen].std(axis=0)
    assert mean[best[0], 0] == pytest.approx(0.08 * size[0], rel=0.15)
    assert abs(mean[best[0], 0]) > 8.0 * sd[best[0], 0]
    average = np.mean([ARMS[a] for a in cohort.obs["arm"][cohort.seen]])
    expected = 0.7 * (np.array([-1.0, 0.0, 1.0]) - average) * size[1]
    assert np.abs(mean[best[1], 1:] - expected).max() < 3.0 * sd[best[1], 1:].max() + 0.1
    assert np.corrcoef(mean[best[1], 1:], expected)[0, 1] > 0.98
    assert sd[best[1], 1:].max() < 0.35  # what all levels have in common has no effect, and no part in it
    assert np.abs(mean[best[2]]).max() < 0.02
    table = fitted.smoothness()
    assert list(table.columns[:4]) == ["smooth", "subject", "covariates", "rest"]
    np.testing.assert_allclose(table.iloc[:, :4].sum(axis=1), 1.0, atol=1e-6)
    assert table["covariates"].iloc[best[0]] > 0.4
    assert table["smooth"].iloc[best[3]] > 0.6
    assert table["smooth"].drop(table.index[best[3]]).max() < 0.1
    assert table["rest"].iloc[best[2]] > 0.9
    between = fitted.intraclass_correlation()
    assert between.dims == ("random_intercept", "factor")
    assert 0.1 < float(between[0, best[1]]) < 0.6
    curve = fitted.interpolate(np.linspace(0.0, 1.0, 5))["f_mean"].values[:, best[3]]
    assert np.corrcoef(curve, np.sin(2.0 * np.pi * np.linspace(0.0, 1.0, 5)))[0, 1] ** 2 > 0.97


@pytest.mark.slow
def test_draws_have_the_effects_on_the_scores(cohort: SimpleNamespace, fitted: Any, tmp_path: Path) -> None:
    """Their means are near those of the fit, and so are courses; loadings are uncertain, too."""
    options = {"score_covariates": "~ age + arm", "random_intercepts": "subject", "smooth_covariates": "time"}
    config = SparseGFA(n_factors=7, **options, n_draws=60, n_burn_in=40, chains=1)
    sampled = ff.fit(cohort.data, config, progress=False)
    found, expected = (p.score_coefficients().transpose("factor", ...) for p in (sampled, fitted))
    assert np.abs(found["mean"].values - expected["mean"].values).max() < 0.3
    assert 0.7 < found["sd"].mean() / expected["sd"].mean() < 1.6
    f, of_fit = (p.smooth_scores()["mean"].values for p in (sampled, fitted))
    alike = [np.corrcoef(f[:, k], of_fit[:, k])[0, 1] for k in np.flatnonzero(of_fit.std(axis=0) > 0.3)]
    assert len(alike) == 3
    assert min(alike) > 0.97
    np.testing.assert_allclose(sampled.smoothness(), fitted.smoothness())
    # between the visits, and beyond, courses are about those of the fit, and as uncertain
    with pytest.warns(UserWarning, match="beyond the samples"):
        drawn, curve = (p.interpolate([0.1, 0.6, 3.5]) for p in (sampled, fitted))
    smooth = np.flatnonzero(sampled.smoothness()["smooth"] > 0.3)
    for part, reach in (("f", 0.35), ("z", 0.1)):
        sd, of_fit = (c[f"{part}_sd"].values[:, smooth] for c in (drawn, curve))
        assert np.abs(np.log(sd / of_fit)).max() < reach
        assert np.abs(drawn[f"{part}_mean"] - curve[f"{part}_mean"]).max() < 0.25
    unseen = cohort.obs[~cohort.seen]  # of subjects of which nothing was measured
    predicted, expected = (p.predict("a", new_obs=unseen, interval=0.9) for p in (sampled, fitted))
    y = cohort.frame[~cohort.seen].to_numpy()
    inside = (predicted["lower"].values < y) & (y < predicted["upper"].values)
    assert 0.87 < inside.mean() < 0.94
    assert np.mean((predicted["mean"] - expected["mean"]) ** 2) < 0.05 * np.mean(expected["sd"] ** 2)
    later = unseen.iloc[:1].assign(time=3.5)  # where the course is not known, new data are as uncertain
    sd, of_fit = (p.predict("a", new_obs=later)["sd"].values for p in (sampled, fitted))
    assert np.abs(np.log(sd / of_fit)).max() < 0.15
    new = ff.write_dataset(tmp_path / "d.zarr", {"a": cohort.frame.iloc[-20:]}, obs=cohort.obs.iloc[-20:])
    projected = sampled.project(new, progress=False, iterations=2).scores().values
    corr = np.abs(np.corrcoef(cohort.z[-20:].T, projected.T)[:4, 4:]).max(axis=1)
    assert corr.min() > 0.8


def test_samples_known_by_covariates_alone(cohort: SimpleNamespace, fitted: Any) -> None:
    """Of subjects of which nothing was measured: expected values, and intervals that hold."""
    new = cohort.obs[~cohort.seen]
    found = fitted.predict("a", new_obs=new, interval=0.9)
    assert found["mean"].dims == ("obs", "feature_a")
    assert found["obs"].values.tolist() == list(new.index)
    truth, y = cohort.x[~cohort.seen], cohort.frame[~cohort.seen].to_numpy()
    known = cohort.z.copy()
    known[:, 0] = 0.08 * (cohort.obs["age"] - 50.0)
    known[:, 1] = 0.7 * np.array([ARMS[a] for a in cohort.obs["arm"]])
    known[:, 2] = 0.0
    known[:, 3] = 1.3 * np.sin(2.0 * np.pi * cohort.obs["time"])
    best = (known @ cohort.w.T)[~cohort.seen]
    at_average = cohort.frame[cohort.seen].to_numpy().mean(axis=0)

    def error(mean: Any) -> float:
        return float(np.mean((mean - truth) ** 2))

    assert error(found["mean"].values) < 1.1 * error(best)
    assert error(found["mean"].values) < 0.75 * error(at_average)
    inside = (found["lower"].values < y) & (y < found["upper"].values)
    assert 0.87 < inside.mean() < 0.94
    # What is not known is integrated over, and makes predictions less certain.
    fewer = fitted.predict("a", new_obs=new.drop(columns=["age", "subject"]), interval=0.9)
    assert error(found["mean"].values) < error(fewer["mean"].values) < error(at_average)
    assert np.mean(fewer["sd"].values ** 2) > 1.02 * np.mean(found["sd"].values ** 2)
    aged = fitted.predict("a", new_obs=new[["age"]], interval=0.9)  # part of the covariates
    assert error(found["mean"].values) < error(aged["mean"].values) < error(at_average)
    # A subject of the fit is expected at its own level.
    one = fitted.predict("a", new_obs=cohort.obs[cohort.seen])
    other = fitted.predict("a", new_obs=cohort.obs[cohort.seen].assign(subject="nobody"))
    there = cohort.x[cohort.seen]
    assert np.mean((one["mean"].values - there) ** 2) < np.mean((other["mean"].values - there) ** 2)
    table = fitted.predict("a", new_obs={"age": 60.0, "arm": "c"})
    assert table.sizes["obs"] == 1


def test_projection_reads_all_columns(cohort: SimpleNamespace, fitted: Any, tmp_path: Path) -> None:
    """New visits of which 4 features are measured: metadata take part in the scores."""
    new, obs = cohort.frame[~cohort.seen].iloc[:, :4], cohort.obs[~cohort.seen]
    data = ff.write_dataset(tmp_path / "new.zarr", {"a": new}, obs=obs)
    truth = cohort.z[~cohort.seen][:, 3]
    corr = [
        np.abs(
            np.corrcoef(truth, fitted.project(data, progress=False, **known).scores().values.T)[0, 1:]
        ).max()
        for known in ({}, {"covariates": False})
    ]
    assert corr[0] > corr[1] + 0.1


def test_rows_without_a_level_are_not_all_alike(cohort: SimpleNamespace, tmp_path: Path) -> None:
    """Complete measurements are not enough for one posterior covariance of all rows."""
    obs = cohort.obs.copy()
    for n_missing in (0, 5):
        obs.iloc[:n_missing, obs.columns.get_loc("subject")] = None
        data = ff.write_dataset(tmp_path / f"{n_missing}.zarr", {"a": cohort.frame}, obs=obs)
        config = SparseGFA(random_intercepts="subject", score_covariates="age")
        smooth = config.build(model_meta(data, config)).settings.smooth
        assert smooth is not None
        assert smooth.complete == (n_missing == 0)


def test_each_column_belongs_to_the_identity_of_a_run(cohort: SimpleNamespace, tmp_path: Path) -> None:
    """A changed covariate, level or time is another run."""
    config = SparseGFA(random_intercepts="subject", score_covariates="age", smooth_covariates="time")
    digests = set()
    for number, column in enumerate((None, "age", "subject", "time")):
        obs = cohort.obs.copy()
        if column is not None:
            obs.iloc[:5, obs.columns.get_loc(column)] = obs[column].iloc[5]
        data = ff.write_dataset(tmp_path / f"{number}.zarr", {"a": cohort.frame}, obs=obs)
        digests.add(SampleTables.of(model_meta(data, config)).digest)
    assert len(digests) == 4


def test_what_is_refused(cohort: SimpleNamespace, fitted: Any) -> None:
    with pytest.raises(InputError, match=r"score_covariates = agee: .*Did you mean age"):
        ff.fit(cohort.data, SparseGFA(score_covariates="agee"), progress=False)
    for given, match in (
        ({"height": [1.0]}, "no column time"),
        (pd.DataFrame({"age": []}), "at least one sample"),
        (5, "a frame, a mapping or the path"),
        ({"age": ["old"]}, "numbers, dates or durations"),
        ({"age": [50.0, 60.0], "arm": ["a"]}, "columns of 1 and 2 rows"),
    ):
        with pytest.raises(InputError, match=match):
            fitted.predict("a", new_obs=given)
    with pytest.raises(InputError, match="beside new_obs"):
        fitted.predict("a", stop=5, new_obs={"age": [50.0]})
    with pytest.raises(InputError, match="size_factor = 0"):
        fitted.predict("a", new_obs={"age": [50.0]}, size_factor=0)
    with pytest.raises(InputError, match="1 where the model has no size factors"):
        fitted.predict("a", new_obs={"age": [50.0]}, size_factor=2.0)
    with pytest.raises(InputError, match="a share between 0 and 1"):
        fitted.predict("a", new_obs={"age": [50.0]}, interval=2.0)


@pytest.mark.thorough
def test_features_with_covariates(cohort: SimpleNamespace, tmp_path: Path) -> None:
    """Without covariates of the scores these are N(0, 1); those of the features have to be known."""
    counts = np.random.default_rng(0).poisson(
        np.exp(1.0 + 0.5 * (cohort.obs["age"].to_numpy()[:, None] - 50) / 10), (300, 20)
    )
    data = ff.write_dataset(
        tmp_path / "counts.zarr", {"n": pd.DataFrame(counts, index=cohort.obs.index)}, obs=cohort.obs
    )
    model = SparseGFA(n_factors=2, covariates="age", size_factors="none")
    posterior = ff.fit(data, model, progress=False)
    found = posterior.predict("n", new_obs={"age": [40.0, 60.0]})["mean"].values
    np.testing.assert_allclose(found.mean(axis=1), np.exp([0.5, 1.5]), rtol=0.1)
    with pytest.raises(InputError, match="no column age"):
        posterior.predict("n", new_obs={"agee": [40.0]})
    with pytest.raises(InputError, match="one with them"):
        posterior.score_coefficients()
    sized = ff.fit(data, SparseGFA(n_factors=2, covariates="age", size_factors="total"), progress=False)
    once, twice = (
        sized.predict("n", new_obs={"age": [50.0]}, size_factor=f)["mean"].values for f in (1.0, 2.0)
    )
    np.testing.assert_allclose(twice, 2.0 * once, rtol=1e-6)
    views = {name: pd.DataFrame(counts, index=cohort.obs.index) for name in "nm"}
    both = ff.write_dataset(tmp_path / "both.zarr", views, obs=cohort.obs)
    model = SparseGFA(n_factors=2, covariates="age", size_factors={"n": "total"}, max_iter=2, warmup_iter=2)
    one = ff.fit(both, model, progress=False)
    one.predict("n", new_obs={"age": [50.0]}, size_factor=2.0)
    with pytest.raises(InputError, match=r"1 where the model has no size factors of the view \(m\)"):
        one.predict("m", new_obs={"age": [50.0]}, size_factor=2.0)


def test_size_factors_of_a_column_of_new_samples(cohort: SimpleNamespace, tmp_path: Path) -> None:
    """Relative to the mean of the fit, as those of its own samples; of average size where it is not there."""
    effort = np.random.default_rng(1).uniform(0.5, 4.0, 300)
    counts = np.random.default_rng(0).poisson(3.0 * effort[:, None], (300, 20))
    obs = cohort.obs.assign(effort=effort)
    data = ff.write_dataset(
        tmp_path / "counts.zarr", {"n": pd.DataFrame(counts, index=obs.index)}, {"n": "poisson"}, obs=obs
    )
    posterior = ff.fit(
        data, SparseGFA(n_factors=1, covariates="age", size_factors={"n": "effort"}), progress=False
    )
    new = pd.DataFrame({"age": 50.0, "effort": [1.0, 4.0]})
    found = posterior.predict("n", new_obs=new, interval=0.9)
    np.testing.assert_allclose(found["mean"].mean("feature_n"), [3.0, 12.0], rtol=0.1)
    average = posterior.predict("n", new_obs=new[["age"]])["mean"].values
    np.testing.assert_allclose(
        found["mean"].values, average * new[["effort"]].values / effort.mean(), rtol=1e-6
    )
    for column, given, match in (
        ([1.0, 0.0], {}, "0 of sample 1 in column effort: expected a number above 0"),
        ([1.0, 2.0], {"size_factor": 2.0}, "size_factor = 2.0: expected left out beside column effort"),
    ):
        with pytest.raises(InputError, match=match):
            posterior.predict("n", new_obs=new.assign(effort=column), **given)


@pytest.mark.thorough
def test_intercepts_by_group(tmp_path: Path) -> None:
    """Levels of groups are not factors; what groups differ by comes out as coefficients."""
    rng = np.random.default_rng(2)
    group = np.repeat(["g1", "g2", "g3"], 60)
    level = {g: rng.standard_normal(30) for g in ("g1", "g2", "g3")}
    z, w = rng.standard_normal((180, 1)), rng.standard_normal((1, 30))
    y = z @ w + np.array([level[g] for g in group]) + 0.5 * rng.standard_normal((180, 30))
    names = [f"s{i}" for i in range(180)]
    data = ff.write_dataset(
        tmp_path / "d.zarr", {"a": pd.DataFrame(y, names)}, groups=pd.Series(group, names)
    )
    plain = ff.fit(data, SparseGFA(n_factors=5), progress=False)
    posterior = ff.fit(data, SparseGFA(n_factors=5, intercepts="group"), progress=False)
    assert len(posterior.factors) == 1 < len(plain.factors)
    assert np.abs(np.corrcoef(posterior.scores().values[:, 0], z[:, 0])[0, 1]) > 0.97
    found = posterior.coefficients("a")["mean"]
    assert found["covariate"].values.tolist() == ["group[g1]", "group[g2]", "group[g3]"]
    average = np.mean(list(level.values()), axis=0)
    for g in level:
        own = found.sel(covariate=f"group[{g}]").values
        assert np.corrcoef(own, level[g] - average)[0, 1] > 0.98
    lonely = ff.write_dataset(tmp_path / "e.zarr", {"a": pd.DataFrame(y, names)})
    with pytest.raises(InputError, match="intercepts = group: expected True where the dataset has no groups"):
        ff.fit(lonely, SparseGFA(intercepts="group"), progress=False)
