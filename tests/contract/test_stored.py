"""What every family leaves on disk: chunks with one writer, labels, and the same faces as in memory."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import factorflow
from factorflow.engine.events import IterationDone, RunFinished, RunStarted, StageEntered
from factorflow.errors import InputError
from factorflow.report import write_report


@pytest.fixture
def run(stored: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
    return stored


def arrays(posterior: Any) -> dict[str, Any]:
    members = zarr.open_group(posterior.path, mode="r").members(max_depth=None)
    return {name: item for name, item in members if isinstance(item, zarr.Array)}


def test_no_chunk_of_samples_is_shared_by_two_blocks(run: Any, family: str, datasets: Any) -> None:
    """Workers write their blocks at the same time: a shared chunk would lose one of them silently."""
    posterior, dataset = run[0], datasets(family)
    table = {v.name: v for v in posterior.model.variables() if v.rows}
    written = set()
    for name, array in arrays(posterior).items():
        variable = table.get(name.split("/")[-1])
        dims = array.metadata.dimension_names or ()
        if variable is None or "obs" not in dims:
            continue
        written.add(variable.name)
        assert array.chunks[dims.index("obs")] == dataset.block_rows, name
        for alone in ("chain", "draw"):
            if alone in dims:
                assert array.chunks[dims.index(alone)] == 1, name
    assert written == set(table)


def test_draws_of_chains_lie_apart(run: Any) -> None:
    for name, array in arrays(run[0]).items():
        dims = array.metadata.dimension_names or ()
        if name.startswith("posterior/") and dims[:2] == ("chain", "draw"):
            assert array.chunks[0] == 1, name


def test_every_chunk_carries_a_checksum(run: Any) -> None:
    """One flipped bit anywhere is noticed, and named."""
    for name, array in arrays(run[0]).items():
        codecs = [type(codec).__name__ for codec in array.metadata.codecs]
        assert codecs[-1] == "Crc32cCodec", name


def test_trace_and_events_tell_the_same(run: Any) -> None:
    """Iterations from 1, objectives and gains an observed entry, seconds that do not run backwards."""
    posterior, events = run
    trace = posterior.trace
    done = [event for event in events if isinstance(event, IterationDone)]
    assert trace["iteration"].values.tolist() == [event.iteration for event in done]
    assert trace["iteration"].values.tolist() == list(range(1, len(done) + 1))
    assert trace["stage"].values.tolist() == [event.stage for event in done]
    objective = trace["objective"].values.reshape(-1, len(done)).mean(axis=0)
    np.testing.assert_allclose([event.objective for event in done], objective, rtol=1e-12)
    observed = trace["observed"].values.reshape(-1, len(done)).mean(axis=0)
    last: tuple[str, float] | None = None  # the last objective that was reported in the stage
    for i, event in enumerate(done):
        if last is None or last[0] != event.stage:
            assert event.gain is None
        elif event.gain is not None:
            gain = (objective[i] - last[1]) / observed[i]
            np.testing.assert_allclose(event.gain, gain, rtol=1e-9)
        if np.isfinite(objective[i]):
            last = event.stage, objective[i]
    seconds = [event.seconds for event in done]
    assert (np.diff(seconds) >= 0).all()
    assert 0 < seconds[-1] <= events[-1].seconds < 600
    np.testing.assert_allclose(trace["seconds"].values, seconds)
    started, finished = events[0], events[-1]
    assert isinstance(started, RunStarted)
    assert (started.n_rows, started.n_blocks, started.resumed_from) == (97, 4, None)
    assert isinstance(finished, RunFinished)
    assert (finished.iterations, finished.path) == (len(done), posterior.path)
    entered = [event.stage for event in events if isinstance(event, StageEntered)]
    left_out = [name for name in started.stages if name not in entered]
    assert entered == [name for name in started.stages if name not in left_out]
    assert all(name[-1].isdigit() for name in left_out)  # of fits of other numbers of factors
    counted = [stage for stage in posterior.model.stages() if stage.counts]
    assert started.max_iter == sum(stage.max_iter for stage in counted)


def test_draws_are_the_kept_iterations(run: Any) -> None:
    posterior = run[0]
    if posterior.kind != "monte carlo":
        pytest.skip("no draws")
    trace, stats = posterior.trace, posterior.tree["sample_stats"].to_dataset()
    kept = trace["kept"].values
    assert posterior.n_draws == kept.sum()
    np.testing.assert_array_equal(stats["lp"].values, trace["objective"].values[:, kept])


def test_summary_is_the_main_results(run: Any, family: str, datasets: Any) -> None:
    posterior, dataset = run[0], datasets(family)
    facts = posterior.summary()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["n_samples"] == 97
    assert facts["n_factors"] == len(posterior.factors) == len(facts["factors"])
    assert facts["n_iterations"] == len(posterior.trace["iteration"])
    assert (facts["seed"], facts["holdout"], facts["dataset"]) == (3, 0.1, str(dataset.path))
    last = posterior.trace["objective"].isel(iteration=-1).values.mean()
    assert facts["objective"] == pytest.approx(float(last))
    for view, row in posterior.holdout_scores().iterrows():
        for name, value in row.dropna().items():
            assert facts["holdout_scores"][view][name] == pytest.approx(value, abs=1e-6)
    for k, factor in enumerate(facts["factors"]):
        assert factor["factor"] == posterior.factors[k]
        for view, names in factor.get("top_features", {}).items():
            sizes = pd.Series(np.abs(posterior.loadings(view).values[:, k]), posterior.features(view))
            assert len(names) == min(5, len(sizes))
            np.testing.assert_array_equal(sizes[names], np.sort(sizes)[::-1][: len(names)])


def test_top_features_come_with_what_is_known_of_them(run: Any) -> None:
    posterior = run[0]
    for view in (v for v in posterior.views if posterior.has(f"loadings_{v}")):
        for k, factor in enumerate(posterior.factors):
            table = posterior.top_features(view, k + 1, n=3)
            assert table.equals(posterior.top_features(view, factor, n=3))
            where = [list(posterior.features(view)).index(name) for name in table.index]
            loadings = posterior.loadings(view).values[:, k]
            np.testing.assert_allclose(table["loading"], loadings[where])
            others = np.delete(np.abs(loadings), where)
            assert np.abs(table["loading"]).min() >= others.max(initial=0.0)
            if posterior.has(f"inclusion_{view}"):
                expected = posterior.inclusion(view).values[where, k]
                np.testing.assert_allclose(table["inclusion"], expected)
            if posterior.kind == "monte carlo":
                drawn = posterior.draws(f"loadings_{view}").values[:, :, where, k]
                np.testing.assert_allclose(table["sd"], drawn.std((0, 1)))
                ends = posterior.top_features(view, factor, 3, interval=0.8)[["lower", "upper"]]
                np.testing.assert_allclose(ends, np.quantile(drawn, [0.1, 0.9], (0, 1)).T)
            elif posterior.has(f"loadings_variance_{view}"):
                spread = posterior.variable(f"loadings_variance_{view}").values[where, k]
                np.testing.assert_allclose(table["sd"], np.sqrt(spread))
                if posterior.has(f"corrected_loadings_{view}"):
                    ends = posterior.top_features(view, factor, 3, interval=0.8)
                    mean = posterior.variable(f"corrected_loadings_{view}").values[where, k]
                    np.testing.assert_allclose((ends["lower"] + ends["upper"]) / 2, mean, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.once
def test_report_of_every_family(run: Any, tmp_path: Path) -> None:
    write_report(run[0], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert run[0].run["config"]["model"] in text
    assert "<svg" in text or "data:image" in text


def test_predictions_are_pickled_unread(run: Any) -> None:
    """They may be sent to other processes, as what xarray opens lazily may."""
    posterior = run[0]
    for view in posterior.meta.value_views:
        for ask in (posterior.predict, posterior.impute):
            predicted = ask(view.name, 3, 9)
            sent = pickle.loads(pickle.dumps(predicted))
            xr.testing.assert_identical(sent.load(), predicted.load())


def test_inputs_are_not_predicted(run: Any) -> None:
    """What the model is given it does not explain."""
    posterior = run[0]
    for view in posterior.meta.input_views:
        for ask in (posterior.predict, posterior.impute):
            with pytest.raises(InputError, match="is an input") as caught:
                ask(view.name)
            assert posterior.meta.value_views[0].name in str(caught.value)


def test_held_out_scores_are_those_of_the_predictions(run: Any, family: str, datasets: Any) -> None:
    """Computed again from `predict` and the dataset: R2, RMSE, baselines from what was shown, by exposure."""
    posterior, dataset = run[0], datasets(family)
    holdout = factorflow.data.Holdout(0.1, 3)
    for i, view in enumerate(dataset.views):
        if view not in posterior.views or not dataset.views[view].kind.is_values:
            continue
        y = dataset.values(view).astype(float)
        if dataset.views[view].likelihood == "bernoulli":
            y[y < 0] = np.nan
        hidden = holdout.mask(i, 0, *y.shape) & ~np.isnan(y)
        scores = posterior.holdout_scores().loc[view]
        assert scores["n_entries"] == hidden.sum()
        listed = posterior.holdout_entries(view)
        np.testing.assert_array_equal(listed["value"], y[hidden])
        rows, columns = np.nonzero(hidden)
        assert listed["obs"].tolist() == [posterior.obs_names[row] for row in rows]
        assert listed["feature"].tolist() == [posterior.features(view)[column] for column in columns]
        if posterior.model.likelihood(view).is_time:  # some are censored
            assert np.isnan(scores[["r2", "rmse"]].astype(float)).all()
            assert 0.0 <= scores["concordance"] <= 1.0
            continue
        error = (y - posterior.predict(view)["mean"].values)[hidden]
        roles = [posterior.model.row_roles(dataset.block(n), view) for n in range(dataset.n_blocks)]
        t = (
            np.concatenate([r["exposure"] for r in roles])[:, None]
            if "exposure" in roles[0]
            else np.ones((len(y), 1))
        )
        shown = ~hidden & ~np.isnan(y)
        baseline = t * np.where(shown, y, 0.0).sum(axis=0) / np.where(shown, t, 0.0).sum(axis=0)
        spread = (y - baseline)[hidden]
        assert scores["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)
        assert scores["baseline_rmse"] == pytest.approx(np.sqrt((spread**2).mean()), rel=1e-5)
        assert scores["r2"] == pytest.approx(1 - (error**2).sum() / (spread**2).sum(), rel=1e-4, abs=1e-5)


def test_metadata_of_samples_travels(run: Any, family: str, datasets: Any) -> None:
    posterior, dataset = run[0], datasets(family)
    assert list(posterior.obs_names) == list(dataset.obs_names)
    for name, column in dataset.obs.items():
        assert posterior.sample_metadata()[name].tolist() == column.tolist()


def test_options_are_recorded(run: Any, config: Any, family: str, datasets: Any) -> None:
    posterior, path = run[0], Path(run[0].path)
    assert posterior.config == config
    assert posterior.run["fingerprint"] == datasets(family).fingerprint
    assert (posterior.run["seed"], posterior.run["holdout"]) == (3, 0.1)
    assert posterior.run["status"] == "complete"
    assert path.exists()
    assert not path.with_name(path.name + ".run").exists()
