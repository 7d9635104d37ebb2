"""When a run ends and what it tells meanwhile, as a user sees it: trace, events, the record of the run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.engine.decide import _progress
from factorflow.engine.events import CheckpointWritten, IterationDone, RunFinished, RunStarted
from factorflow.models import ProbitFactors, SparseGFA
from factorflow.models.contract import Stage


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((90, 2)) @ rng.standard_normal((2, 8)) + rng.standard_normal((90, 8))
    path = tmp_path_factory.mktemp("stopping") / "d.zarr"
    return factorflow.write_dataset(path, {"y": y}, {"y": "gaussian"}, block_rows=32)


@pytest.fixture(scope="module")
def fit(dataset: Any) -> Callable[..., Any]:
    def run(config: dict[str, Any] | None = None, **options: Any) -> tuple[Any, list[Any]]:
        events: list[Any] = []
        model = SparseGFA(**{"n_factors": 3, **(config or {})})
        return factorflow.fit(dataset, model, on_event=events.append, **options), events

    return run


def first_n_below_tol(gains: Any, tols: Any, patience: int) -> int | None:
    """Return how many iterations there are when that many gains running have been below the tolerance."""
    n_below_tol = 0
    for i, (gain, tol) in enumerate(zip(gains, tols, strict=True)):
        n_below_tol = n_below_tol + 1 if gain < tol else 0
        if n_below_tol == patience:
            return i + 2  # the first iteration has no gain
    return None


def test_an_iteration_that_repeats_an_objective_is_no_small_gain() -> None:
    stage = Stage("s", (), 10, tol=1e-3, patience=2)
    for info, expected in (({}, 2), ({"pending": 1.0}, 1)):
        state = SimpleNamespace(best=-5.0, n_below_tol=1)
        assert _progress(stage, state, -5.0, (info,)) == (0.0, expected)  # type: ignore[arg-type]
    n_below_tol = SimpleNamespace(best=-5.0, n_below_tol=0)
    assert _progress(stage, n_below_tol, -5.0, ({"pending": 1.0},)) == (0.0, 1)  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize("tol", [1e-4, 3e-6])
def test_a_stage_ends_when_gains_stay_below_the_tolerance(fit: Callable[..., Any], tol: float) -> None:
    """Gains an observed entry, two running; one in the warm-up, a hundredfold.

    They are small for the parameters, too: a thousandth of a nat each.
    """
    posterior, _ = fit({"warmup_iter": 200, "max_iter": 600, "drop": 0.0, "tol": tol})
    trace = posterior.trace
    assert posterior.run["reason"] == "converged"
    assert (trace["observed"].values == 90 * 8).all()
    for stage, limit, n_below_tol in (("warm-up", 100 * tol, 1), ("sparse", tol, 2)):
        here = trace["stage"].values == stage
        gains = np.diff(trace["objective"].values[here]) / 720
        few = 0.001 * limit / tol * trace["parameters"].values[here][1:] / 720
        assert len(gains) + 1 == first_n_below_tol(gains, np.minimum(limit, few), n_below_tol), stage


@pytest.mark.thorough
def test_iterations_at_most(fit: Callable[..., Any]) -> None:
    """Of a stage by the model's options, of the run by its own; preparations and the closing do not count."""
    config = {"warmup_iter": 4, "max_iter": 6, "tol": 1e-12}
    posterior, events = fit(config)
    assert posterior.trace["stage"].values.tolist() == ["warm-up"] * 4 + ["sparse"] * 6
    assert posterior.run["reason"] == "max_iter"
    assert next(e for e in events if isinstance(e, RunStarted)).max_iter == 10
    for most, stages in ((3, ["warm-up"] * 3), (5, ["warm-up"] * 4 + ["sparse"]), (10, None)):
        posterior, events = fit(config, max_iter=most)
        assert posterior.run["reason"] == "max_iter"
        assert posterior.run["n_iterations"] == len(posterior.trace["iteration"]) == most
        if stages is not None:
            assert posterior.trace["stage"].values.tolist() == stages
        started, finished = events[0], events[-1]
        assert started.max_iter == most
        assert isinstance(finished, RunFinished)
        assert (finished.reason, finished.iterations) == ("max_iter", most)
        assert np.isfinite(posterior.variance_explained().values).all()  # the closing stage has run
        assert posterior.run["status"] == "complete"


def test_minutes_at_most(fit: Callable[..., Any]) -> None:
    posterior, events = fit({"tol": 1e-12}, max_minutes=1e-9)
    assert posterior.run["n_iterations"] == 1
    assert (posterior.run["status"], posterior.run["reason"]) == ("partial", "max_minutes")
    assert events[-1].reason == "max_minutes"
    posterior, _ = fit({"warmup_iter": 3, "max_iter": 3, "tol": 1e-12}, max_minutes=60)
    assert posterior.run["n_iterations"] == 6


def test_a_sampler_ends_when_its_draws_are_made(tmp_path: Path) -> None:
    x = (np.random.default_rng(0).random((40, 5)) < 0.5).astype(float)
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"x": x}, {"x": "bernoulli"})
    config = ProbitFactors(n_factors=1, n_burn_in=3, n_draws=4, thin=2, chains=1)
    posterior = factorflow.fit(data, config)
    assert posterior.run["reason"] == "complete"
    assert posterior.trace["stage"].values.tolist() == ["burn-in"] * 3 + ["sampling"] * 8
    assert posterior.trace["kept"].values.tolist() == [False] * 3 + [False, True] * 4
    short = factorflow.fit(data, config, max_iter=8)
    assert (short.run["reason"], short.n_draws) == ("max_iter", 2)
    np.testing.assert_array_equal(
        short.tree["posterior"]["activity"], posterior.tree["posterior"]["activity"][:, :2]
    )


@pytest.mark.thorough
def test_checkpoints_come_as_often_as_asked(fit: Callable[..., Any], tmp_path: Path) -> None:
    config = {"warmup_iter": 4, "max_iter": 6, "tol": 1e-12}
    seen: list[Any] = []
    for every, expected in ((3, [3, 6, 9]), (4, [4, 8]), (50, [])):
        _, events = fit(config, out=tmp_path / f"{every}.zarr", checkpoint_every=every)
        written = [event.iteration for event in events if isinstance(event, CheckpointWritten)]
        assert written == expected
        seen += events
    assert len({event.path for event in seen if isinstance(event, CheckpointWritten)}) == 5


@pytest.mark.thorough
def test_a_resumed_run_goes_on_counting(fit: Callable[..., Any], dataset: Any, tmp_path: Path) -> None:
    """Iterations and seconds from where they stood, and no event twice."""
    config = {"warmup_iter": 4, "max_iter": 8, "tol": 1e-12}
    model, out = SparseGFA(n_factors=3, **config), tmp_path / "p.zarr"

    def stop(event: Any) -> None:
        if isinstance(event, IterationDone) and event.iteration == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(dataset, model, out=out, on_event=stop)
    partial = factorflow.open_posterior(out)
    assert (partial.run["status"], partial.run["reason"]) == ("partial", "interrupted")
    before = partial.trace
    posterior, events = fit(config, out=out, resume=True)
    n = len(before["iteration"])
    assert events[0].resumed_from == n >= 7
    iterations = [event.iteration for event in events if isinstance(event, IterationDone)]
    assert iterations == list(range(n + 1, 13))
    trace = posterior.trace
    assert trace["iteration"].values.tolist() == list(range(1, 13))
    assert (np.diff(trace["seconds"].values) >= 0).all()
    np.testing.assert_array_equal(trace["seconds"].values[:n], before["seconds"].values)
    assert posterior.run["status"] == "complete"


@pytest.mark.thorough
def test_memory_is_refused_by_rows_features_and_chains(tmp_path: Path) -> None:
    """What a refusal asks for is accepted, and grows with what a run holds."""
    rng = np.random.default_rng(0)

    def least(n_rows: int, n_features: int, block_rows: int, **options: Any) -> int:
        x = (rng.random((n_rows, n_features)) < 0.5).astype(np.int8)
        path = tmp_path / "d.zarr"
        data = factorflow.write_dataset(
            path, {"x": x}, {"x": "bernoulli"}, block_rows=block_rows, overwrite=True
        )
        config = ProbitFactors(**{"n_draws": 1, "n_burn_in": 0, "chains": 1, "n_factors": 2, **options})
        with pytest.raises(factorflow.InputError, match="memory_limit") as refused:
            factorflow.fit(data, config, memory_limit=1 << 28)
        need = re.search(r"at least (\d+) MiB", str(refused.value))
        assert need
        enough = (int(need[1]) + 1) << 20
        with pytest.raises(_Started):
            factorflow.fit(data, config, memory_limit=enough, on_event=_stop_at_once)
        return enough

    plain = least(64, 2000, 64)
    assert least(1024, 2000, 1024) > plain + 1000 * 2000  # blocks
    assert least(64, 20_000, 64) > plain + 8 * 18_000 * 10  # statistics and globals
    more_factors = least(64, 2000, 64, n_factors=20)
    assert more_factors > plain
    assert least(64, 2000, 64, n_factors=20, chains=8) > more_factors + (4 << 20)


class _Started(BaseException):
    """Enough memory: the run has begun."""


def _stop_at_once(event: Any) -> None:
    raise _Started
