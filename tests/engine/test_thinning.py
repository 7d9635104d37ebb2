"""A fit sees a part of each count; the rest is scored as its rate predicts, by hand on dense arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import nbinom, norm, poisson

import factorflow
from factorflow.data import Dataset, Holdout, write_dataset
from factorflow.errors import InputError
from factorflow.posterior.globals import StoredGlobals
from factorflow.posterior.prediction import Predictor
from factorflow.report import html, overview

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

SHARE, SEED = 0.2, 5
THINNED: dict[str, Any] = {"holdout": SHARE, "holdout_unit": "count", "seed": SEED}
PROGRAMS = {"model": "poisson_factors", "n_factors": 3, "settling_iter": 5, "max_iter": 10}
FACTORS = {"model": "sparse_gfa", "n_factors": 2, "warmup_iter": 5, "max_iter": 10}


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    rng = np.random.default_rng(4)
    y = rng.poisson(rng.gamma(0.5, 2.0, (200, 3)) @ rng.gamma(0.4, 1.0, (3, 30))).astype(float)
    y[7] = np.nan
    return y


@pytest.fixture(scope="module")
def dataset(counts: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(1)
    levels = rng.integers(0, 4, (200, 3)).astype(float)
    data = {"c": counts, "g": rng.standard_normal((200, 5)), "o": levels}
    path = tmp_path_factory.mktemp("thinning") / "d.zarr"
    dataset = write_dataset(path, data, likelihoods={"o": "ordinal"}, block_rows=32)
    factorflow.add_view(dataset, "log", of="c", transform="log1p")
    return factorflow.open_dataset(path)


@pytest.fixture(scope="module")
def programs(dataset: Dataset) -> factorflow.Posterior:
    return factorflow.fit(dataset, PROGRAMS | {"views": ["c"]}, **THINNED)


def parts(dataset: Dataset, view: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what is seen, and what is held out, (N, D)."""
    y = dataset.values(view).astype(float)
    holdout = Holdout(SHARE, SEED, "count")
    seen = np.concatenate([dataset.block(n, [view], holdout).data[view] for n in range(dataset.n_blocks)])
    return seen.astype(float), y - seen


def check_scores(
    scores: pd.Series, log_p: np.ndarray, mean: np.ndarray, seen: np.ndarray, rest: np.ndarray
) -> None:
    """Compare scores of counts with rates: of the model, and of the means of what was seen."""
    there = ~np.isnan(rest)
    assert scores["n_entries"] == there.sum()
    np.testing.assert_allclose(scores["log_likelihood"], log_p[there].mean(), rtol=1e-6)
    np.testing.assert_allclose(scores["rmse"], np.sqrt(((rest - mean)[there] ** 2).mean()), rtol=1e-6)
    base = np.broadcast_to(SHARE / (1 - SHARE) * np.nanmean(seen, axis=0), rest.shape)
    np.testing.assert_allclose(
        scores["baseline_rmse"], np.sqrt(((rest - base)[there] ** 2).mean()), rtol=1e-6
    )


@pytest.mark.thorough
def test_programs_are_scored_by_hand(dataset: Dataset, programs: factorflow.Posterior) -> None:
    seen, rest = parts(dataset, "c")
    rate = (
        SHARE
        / (1 - SHARE)
        * programs.variable("size_factors").sel(view="c").values[:, None]
        * (programs.scores().values @ programs.loadings("c").values.T)
    )
    scores = programs.holdout_scores().loc["c"]
    check_scores(scores, poisson.logpmf(rest, rate), rate, seen, rest)
    base = SHARE / (1 - SHARE) * np.nanmean(seen, axis=0)
    baseline = poisson.logpmf(rest, base)[~np.isnan(rest)].mean()
    np.testing.assert_allclose(scores["baseline_log_likelihood"], baseline, rtol=1e-6)
    totals = np.maximum(np.nansum(seen, axis=1), 0.5) / np.nanmean(seen, axis=0).sum()  # of what it saw
    there = ~np.isnan(rest).any(axis=1)
    sizes = programs.variable("size_factors").sel(view="c").values
    np.testing.assert_allclose(sizes[there], totals[there], rtol=1e-5)


def test_negative_binomial_counts_are_scored_by_hand(dataset: Dataset) -> None:
    config = FACTORS | {"views": ["c"], "likelihoods": "negative_binomial", "size_factors": "total"}
    posterior = factorflow.fit(dataset, config, **THINNED)
    seen, rest = parts(dataset, "c")
    z, z_variance = (posterior.variable(name).values for name in ("scores", "scores_variance"))
    w, w_variance = (posterior.variable(f"loadings{name}_c").values for name in ("", "_variance"))
    x = z @ w.T + posterior.variable("intercept_c").values
    x = (
        x
        + np.log(posterior.variable("size_factors").sel(view="c").values)[:, None]
        + np.log(SHARE / (1 - SHARE))
    )
    variance = (z**2 + z_variance) @ w_variance.T + z_variance @ (w**2).T
    sd = np.sqrt(variance + posterior.variable("intercept_variance_c").values)
    r = 1 / posterior.variable("dispersion_c").values
    nodes = np.linspace(-6, 6, 241)
    weights = norm.pdf(nodes) / norm.pdf(nodes).sum()
    rates = [np.exp(x + node * sd) for node in nodes]
    p = sum(weight * nbinom.pmf(rest, r, r / (r + rate)) for weight, rate in zip(weights, rates, strict=True))
    mean = sum(weight * rate for weight, rate in zip(weights, rates, strict=True))
    scores = posterior.holdout_scores().loc["c"]
    check_scores(scores, np.log(p), mean, seen, rest)
    assert scores["log_likelihood"] > scores["baseline_log_likelihood"]
    predictor = Predictor(posterior, "c")  # of all counts
    for whole in (predictor(np.arange(200)), predictor.predictive(np.arange(200)).mean_and_sd()):
        np.testing.assert_allclose(SHARE * whole[0], mean, rtol=1e-6)
    alone = posterior.model.alone(StoredGlobals.of(posterior.tree, None).read(0, 0), "c")
    assert alone is not None
    rate, r = np.exp(alone[0]) * SHARE / (1 - SHARE), np.exp(alone[1][0])
    baseline = nbinom.logpmf(rest, r, r / (r + rate))[~np.isnan(rest)].mean()
    np.testing.assert_allclose(scores["baseline_log_likelihood"], baseline, rtol=1e-6)


def test_what_a_posterior_shows_is_of_all_counts_or_of_those_seen(
    dataset: Dataset, counts: np.ndarray, programs: factorflow.Posterior
) -> None:
    """Predictions and intervals are of whole counts, shares of variance of what was seen."""
    from factorflow.posterior.variance import _squares_of_views

    seen, rest = parts(dataset, "c")
    whole = programs.predict("c", interval=0.9)
    there = ~np.isnan(counts)
    mean, sd = whole["mean"].values, whole["sd"].values
    assert abs(mean[there].sum() / counts[there].sum() - 1) < 0.02
    raw = programs.model.predict(*_rows(programs), "c")
    np.testing.assert_allclose(mean, raw[0] / (1 - SHARE), rtol=1e-12)
    extra = raw[1] ** 2 - raw[0]
    np.testing.assert_allclose(sd**2, mean + extra / (1 - SHARE) ** 2, rtol=1e-9)
    inside = (counts >= whole["lower"].values) & (counts <= whole["upper"].values)
    assert inside[there].mean() > 0.88
    residual = _squares_of_views(programs, None, "c", lambda whole: [whole]).residual
    np.testing.assert_allclose(residual[0, 0, 0], np.nansum((seen - raw[0]) ** 2), rtol=1e-9)
    entries = programs.holdout_entries("c")
    np.testing.assert_array_equal(entries["value"], rest[there])
    card = programs.card()
    assert "20 % of the counts held out" in card
    assert "Held-out counts" in card
    assert "held-out counts" in repr(programs)
    summary = programs.summary()
    assert summary["holdout_unit"] == "count"
    assert ("held out", "20 % of the counts") in html._run_record(programs.run)
    assert (table := html._holdout(summary)) is not None
    assert table["is_split"]
    assert "holdout_unit='count'" in overview.reproduce(programs)


def _rows(posterior: factorflow.Posterior) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    values = {v.name: posterior.variable(v.name).values for v in posterior.model.table}
    return None, values, values


def test_layout_blocks_and_workers_do_not_matter(
    dataset: Dataset, counts: np.ndarray, programs: factorflow.Posterior, tmp_path: Path
) -> None:
    threads = factorflow.fit(dataset, PROGRAMS | {"views": ["c"]}, **THINNED, executor="threads", workers=3)
    for name in ("scores", "loadings_c"):
        np.testing.assert_array_equal(threads.variable(name), programs.variable(name))
    assert threads.holdout_scores().equals(programs.holdout_scores())
    for layout in ("dense", "sparse"):
        options: dict[str, Any] = {"layout": {"c": layout}, "likelihoods": {"c": "poisson"}, "block_rows": 32}
        other = write_dataset(tmp_path / layout, {"c": counts}, **options)
        posterior = factorflow.fit(other, PROGRAMS, **THINNED)
        np.testing.assert_array_equal(posterior.scores(), programs.scores())
        assert posterior.holdout_scores().equals(programs.holdout_scores())


def test_an_interrupted_run_is_resumed_and_known_by_its_unit(dataset: Dataset, tmp_path: Path) -> None:
    from factorflow.engine.events import IterationDone

    def stop(event: Any) -> None:
        if isinstance(event, IterationDone) and event.iteration == 3:
            raise KeyboardInterrupt

    config, out = PROGRAMS | {"views": ["c"]}, tmp_path / "p.zarr"
    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(dataset, config, out=out, on_event=stop, checkpoint_every=1, **THINNED)
    with pytest.raises(InputError, match="holdout_unit"):
        factorflow.fit(dataset, config, out=out, resume=True, **THINNED | {"holdout_unit": "entry"})
    resumed = factorflow.resume(out)
    assert resumed.run["holdout_unit"] == "count"
    whole = factorflow.fit(dataset, config, **THINNED)
    assert resumed.holdout_scores()[list(whole.holdout_scores())].equals(whole.holdout_scores())
    np.testing.assert_array_equal(resumed.scores(), whole.scores())


def test_other_views_are_seen_whole_and_a_finding_says_so(dataset: Dataset) -> None:
    posterior = factorflow.fit(dataset, FACTORS | {"views": ["c", "g"]}, **THINNED)
    assert posterior.holdout_scores().index.tolist() == ["c"]
    findings = [finding for finding in posterior.findings if finding.kind == "holdout"]
    assert [finding.message for finding in findings] == [
        "Nothing of g was held out: it has no counts to split."
    ]
    with pytest.raises(InputError, match="view = g: expected a view of counts"):
        posterior.holdout_entries("g")


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        (["g"], "holdout_unit = count: expected a view of counts among g.*holdout_unit='entry'"),
        (["c", "o"], "view o of likelihood ordinal.*expected counts that have a rate.*leave the view out"),
        (["c", "log"], "view log of likelihood gaussian: expected no view computed of the counts of c"),
    ],
)
def test_what_cannot_be_split_is_refused(dataset: Dataset, views: list[str], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        factorflow.fit(dataset, FACTORS | {"views": views}, **THINNED)


def test_counts_of_trials_are_refused(tmp_path: Path) -> None:
    y = np.random.default_rng(0).binomial(9, 0.3, (40, 4)).astype(float)
    dataset = write_dataset(tmp_path / "d", {"y": y}, trials={"y": np.full(y.shape, 9)})
    with pytest.raises(InputError, match="view y of likelihood binomial: expected counts that have a rate"):
        factorflow.fit(dataset, FACTORS, **THINNED)


@pytest.mark.parametrize("formula", ["count ~ a + b", "count ~ a + b + offset(log(t))"])
def test_rows_of_a_table_are_scored_by_their_exposures(tmp_path: Path, formula: str) -> None:
    rng = np.random.default_rng(2)
    a, b, t = rng.integers(0, 9, 300), rng.integers(0, 5, 300), rng.uniform(0.5, 2.0, 300)
    count = rng.poisson(5 * t * np.exp(0.5 * rng.standard_normal(9)[a]))
    table = pd.DataFrame({"a": a.astype(str), "b": b.astype(str), "t": t, "count": count})
    data = factorflow.write_table(tmp_path / "d", table, formula)
    model = {"model": "molten_poisson", "n_components": 2, "max_iter": 10}
    posterior = factorflow.fit(data, model, **THINNED)
    seen, rest = parts(data, "count")
    rate = SHARE * posterior.predict("count")["mean"].values
    scores = posterior.holdout_scores().loc["count"]
    np.testing.assert_allclose(scores["log_likelihood"], poisson.logpmf(rest, rate).mean(), rtol=1e-6)
    roles = [posterior.model.row_roles(data.block(n), "count") for n in range(data.n_blocks)]
    exposed = np.concatenate([of_block["exposure"] for of_block in roles])[:, None]  # merged rows: of all
    assert exposed.min() != exposed.max()
    base = SHARE / (1 - SHARE) * exposed * seen.sum() / exposed.sum()
    np.testing.assert_allclose(
        scores["baseline_log_likelihood"], poisson.logpmf(rest, base).mean(), rtol=1e-6
    )
    held = factorflow.write_table(tmp_path / "held", table, formula, holdout=0.1, seed=1)
    with pytest.raises(InputError, match="another unit for a table that holds rows out"):
        factorflow.fit(held, model, **THINNED)


@pytest.mark.thorough
def test_the_score_rises_up_to_the_true_number_and_is_flat_from_there(tmp_path: Path) -> None:
    """Differences of scores of the same entries: from 3 programs on they are small beside those before."""
    rng = np.random.default_rng(8)
    rates = rng.gamma(0.4, 3.0, (400, 3)) @ rng.gamma(0.3, 1.0, (3, 100))
    data = write_dataset(tmp_path / "d", {"c": rng.poisson(rates).astype(float)})
    scores = {}
    for n_factors in (1, 2, 3, 4, 6):
        model = {"model": "poisson_factors", "n_factors": n_factors, "size_factors": "none", "max_iter": 100}
        score = factorflow.fit(data, model, **THINNED).holdout_scores()
        scores[n_factors] = score.loc["c", "log_likelihood"]
    assert scores[1] < scores[2] < scores[3]
    rise = scores[3] - scores[2]
    assert max(abs(scores[k] - scores[3]) for k in (4, 6)) < 0.1 * rise
    best = poisson.logpmf(parts(data, "c")[1], SHARE * rates).mean()
    assert scores[3] < best
    assert best - scores[3] < rise


def test_a_selection_splits_counts_and_refits_to_all(counts: np.ndarray, tmp_path: Path) -> None:
    from factorflow.settings.runs import SelectOptions
    from factorflow.workflow.select import select

    data = write_dataset(tmp_path / "d", {"c": counts[:60]}, likelihoods={"c": "poisson"})
    options = SelectOptions(holdout=SHARE, holdout_unit="count", max_iter=5)
    found = select(data, PROGRAMS, {"n_factors": [1, 2]}, out=tmp_path / "s", options=options)
    units = [factorflow.open_posterior(row["posterior"]).run["holdout_unit"] for row in found.table]
    assert units == ["count", "count"]
    best = factorflow.open_posterior(found.posterior).run
    assert (best["holdout"], best["holdout_unit"]) == (0.0, "entry")
