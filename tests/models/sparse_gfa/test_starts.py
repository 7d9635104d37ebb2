"""Starts: seeds end at the same factors; of several the best is kept, its factors held beside the others'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import factorflow
import factorflow.posterior.findings
from factorflow.api import Posterior
from factorflow.cli import app
from factorflow.core.block import Meta, ViewMeta
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.start import restarts
from factorflow.models.sparse_gfa.start.components import empty_globals
from factorflow.models.sparse_gfa.start.restarts import best_start, start_similarity
from factorflow.models.sparse_gfa.state import Start, replace_part

SHORT = {"n_factors": 6, "warmup_iter": 20, "max_iter": 40}


@pytest.fixture(scope="module")
def tail(tmp_path_factory):
    """Return data of many more factors than are fitted, all of one strength: many optima."""
    rng = np.random.default_rng(3)
    scores, views = rng.standard_normal((40, 30)), {}
    for name, size in {"a": 100, "b": 60}.items():
        loadings = rng.standard_normal((30, size))
        views[name] = scores @ loadings + 0.5 * rng.standard_normal((40, size))
    path = tmp_path_factory.mktemp("tail") / "data.zarr"
    return factorflow.write_dataset(path, views, dict.fromkeys(views, "gaussian"), block_rows=32)


def fit(data, seed=0, **options):
    return factorflow.fit(data, SparseGFA(**SHORT, **options), seed=seed, progress=False)


@pytest.fixture(scope="module")
def alone(tail):
    return fit(tail, 2)


@pytest.fixture(scope="module")
def several(tail):
    return fit(tail, 2, n_starts=3)


def nearest(mine, other):
    a, b = (posterior.variable("scores").values for posterior in (mine, other))
    return np.abs(np.corrcoef(a.T, b.T)[: a.shape[1], a.shape[1] :]).max(axis=1)


@pytest.mark.thorough
def test_seeds_end_at_the_same_factors(tail):
    """And where random numbers of the count depend on the seed, at others: there are many optima."""
    for name in ("scores", "loadings_a"):
        np.testing.assert_array_equal(*(fit(tail, seed).variable(name) for seed in (0, 1)))
    two = [fit(tail, seed, n_starts=2).variable("start_objective").values for seed in (0, 1)]
    assert two[0][0] == two[1][0]
    assert two[0][1] != two[1][1]


@pytest.mark.thorough
def test_the_best_start_goes_on(alone, several):
    found, bounds = several, several.variable("start_objective").values
    assert bounds[0] == alone.summary()["objective"]
    assert bounds.argmax() > 0
    assert np.ptp(bounds) > 0.5  # nats
    assert found.summary()["objective"] == pytest.approx(bounds.max(), abs=10.0)
    assert found.summary()["objective"] >= bounds.max()
    by_start = found.variable("start_stability")
    np.testing.assert_allclose(by_start[0], nearest(found, alone), atol=1e-6)
    np.testing.assert_array_equal(by_start[int(bounds.argmax())], 1.0)
    others = np.delete(by_start.values, bounds.argmax(), axis=0)
    np.testing.assert_allclose(found.variable("stability"), others.mean(axis=0))
    assert found.summary()["factors"][2]["stability"] == pytest.approx(others.mean(axis=0)[2], abs=1e-6)
    assert found.summary()["starts"]["start2"] == pytest.approx(bounds[1], abs=1e-5)


def test_other_starts_have_more_factors_until_the_sparse_stage(tail, several, tmp_path):
    """Unless the first gave some up; those asked for are left."""
    trace = several.trace
    stage, number = trace["stage"].values, trace["n_factors"].values
    for name, expected in {"warm-up": 6, "warm-up 2": 14, "warm-up 3": 14}.items():
        assert set(number[stage == name]) == {expected}
    assert number[np.char.find(stage.astype(str), "warm") < 0].max() == 6
    short = SparseGFA(**{**SHORT, "warmup_iter": 3, "max_iter": 3}, n_starts=2, loadings="ard")
    found = factorflow.fit(tail, short, progress=False)
    assert set(found.trace["n_factors"].values) == {int(found.variable("n_factors_counted"))}
    assert found.variable("start_objective").size == 2
    rng = np.random.default_rng(0)
    y = rng.standard_normal((90, 2)) @ rng.standard_normal((2, 40)) + 0.5 * rng.standard_normal((90, 40))
    data = factorflow.write_dataset(tmp_path / "two.zarr", {"v": y}, {"v": "gaussian"})
    enough = factorflow.fit(data, SparseGFA(n_factors=6, n_starts=2, max_iter=40), progress=False)
    assert enough.scores().shape[1] == 2
    assert enough.trace["n_factors"].values.max() == 4  # two are counted, two to spare


@pytest.mark.thorough
def test_a_start_that_is_cut_short_does_not_count(tail, alone):
    """Cut in the second, the run gives what it would have given without it, to the bit."""
    n = alone.run["n_iterations"] + 7
    found = factorflow.fit(tail, SparseGFA(**SHORT, n_starts=3), seed=2, max_iter=n, progress=False)
    assert found.summary()["starts"] == {"start1": pytest.approx(alone.summary()["objective"], abs=1e-5)}
    assert found.summary()["objective"] == alone.summary()["objective"]
    for name in ("scores", "loadings_a", "variance_explained"):
        np.testing.assert_array_equal(found.variable(name), alone.variable(name))
    assert np.isnan(found.variable("stability")).all()


def test_an_unstable_factor_is_said(several, monkeypatch):
    found = Posterior(several.tree)
    stability = found.variable("stability")
    least = float(stability.median())
    monkeypatch.setattr(factorflow.posterior.findings, "LEAST_STABLE", least)
    (finding,) = (f for f in found.findings if f.kind == "unstable")
    weak = [name for name in found.factors if stability.sel(factor=name) < least]
    assert 0 < len(weak) < 6
    assert all(f"{name} ({float(stability.sel(factor=name)):.2f})" in finding.message for name in weak)


def test_of_a_warm_start_no_stability_is_known(tail, several):
    config = SparseGFA(**SHORT, n_starts=3)
    found = factorflow.fit(tail, config, warm_start=several, max_iter=2, progress=False)
    assert found.variable("start_objective").size == 0
    assert np.isnan(found.variable("stability")).all()
    assert "starts" not in found.summary()
    assert found.summary()["objective"] == float(found.trace["objective"][-1])
    assert "unstable" not in [finding.kind for finding in found.findings]


def test_likeness_is_the_correlation(small_globals):
    """Of scores that are far from 0, of other numbers of factors, one of them constant."""
    rng = np.random.default_rng(0)
    mine, other = rng.standard_normal((50, 2)) + 7.0, rng.standard_normal((50, 3))
    other[:, 0], other[:, 2] = 2.0 - 3.0 * mine[:, 1], 0.0
    together = np.column_stack([mine, other, np.ones(50)])
    starts = (Start(0.0, None, kept=True), Start(-1.0, small_globals(3)))
    found = start_similarity(replace(small_globals(2), starts=starts), together.T @ together)
    expected = np.abs(np.corrcoef(mine.T, other[:, :2].T)[:2, 2:]).max(axis=1)
    np.testing.assert_allclose(found, [[1.0, 1.0], expected], atol=1e-12)


def test_the_choice_is_made_once(small_globals, settings_of_one):
    """And a bound that is no number never wins."""
    first = replace_part(small_globals(2), "progress", objective=-5.0)
    starts = (Start(float("nan"), first), Start(-5.0, first))
    chosen = best_start(
        settings_of_one, replace_part(replace(first, starts=starts), "progress", objective=-6.0), over=True
    )
    assert [s.kept for s in chosen.starts] == [False, True, False]
    assert chosen.change.regained
    assert best_start(settings_of_one, chosen, over=False) is chosen


@pytest.fixture
def settings_of_one():
    """Return settings of no view."""
    meta = Meta(9, 1, 32, (ViewMeta("a", "gaussian", 5, "none"),))
    return replace(SparseGFA(n_factors=2, n_starts=2).build(meta).settings, views=())


@pytest.fixture
def small_globals(settings_of_one):
    """Return globals of some number of factors."""
    return lambda k: empty_globals(replace(settings_of_one, n_factors=k))


def test_of_starts_that_rounding_sets_apart_the_first_is_kept() -> None:
    def best(*bounds: float) -> int:
        return restarts._best(tuple(Start(bound, None) for bound in bounds))

    assert best(-862.0, -862.0 + 1e-10, -863.0) == 0
    assert best(-863.0, -862.0, -862.0 + 1e-10) == 1
    assert best(np.nan, -862.0) == 1
    assert best(np.nan, np.nan) == 0


@pytest.mark.thorough
def test_consensus_of_starts_and_of_fits(tmp_path: Path) -> None:
    """Factors that starts agree on, in data units; and those of fits to parts of the samples."""
    rng = np.random.default_rng(8)
    z, w = rng.standard_normal((160, 3)), rng.standard_normal((30, 3)) * (rng.random((30, 3)) < 0.6)
    y = 100.0 * (z @ w.T + 0.7 * rng.standard_normal((160, 30)))
    counts = rng.poisson(np.exp(0.5 * z @ rng.standard_normal((3, 12)))).astype(float)
    views = {"y": y, "counts": counts}
    data = factorflow.write_dataset(tmp_path / "d", views, block_rows=64)
    posterior = factorflow.fit(data, SparseGFA(n_factors=5, n_starts=4), progress=False, out=tmp_path / "p")
    stored = posterior.variable("start_loadings_y")
    assert stored.sizes == {"start": 4, "start_factor": 5, "feature_y": 30}
    kept = int(posterior.variable("start_stability").mean("factor").values.argmax())
    k = len(posterior.factors)
    np.testing.assert_allclose(
        stored[kept, :k], posterior.loadings("y").transpose("factor", "feature_y"), rtol=1e-5
    )
    found = posterior.consensus()
    assert found.sizes["consensus_factor"] == k == 3
    assert (found["stability"] > 0.8).all()
    assert found.attrs["share_kept"] > 0.7

    def like(loadings: Any) -> float:
        values = loadings.transpose("consensus_factor", "feature_y").to_numpy()
        return float(np.abs(np.corrcoef(values, w.T)[:3, 3:]).max(axis=0).min())

    assert like(found["loadings_y"]) > 0.97
    size = np.sqrt((found["loadings_y"] ** 2).sum("feature_y")).to_numpy()
    own = np.sqrt((posterior.loadings("y") ** 2).sum("feature_y")).to_numpy()
    np.testing.assert_allclose(np.sort(size), np.sort(own), rtol=0.1)
    fits = []
    for i in range(4):
        rows = np.random.default_rng(i).permutation(160)[:120]
        part = {name: values[rows] for name, values in views.items()}
        some = factorflow.write_dataset(tmp_path / f"part{i}", part, block_rows=64)
        options = {"drop": 0.0} if i == 0 else {}
        fits.append(factorflow.fit(some, SparseGFA(n_factors=4, **options), progress=False))
    agreed = factorflow.analysis.consensus(fits)
    assert len({len(fit.factors) for fit in fits}) > 1
    assert like(agreed["loadings_y"].isel(consensus_factor=slice(0, 3))) > 0.95
    shown = CliRunner().invoke(app, ["consensus", str(tmp_path / "p")])
    assert shown.exit_code == 0, shown.output
