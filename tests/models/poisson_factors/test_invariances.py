"""What must not change the result: how features are in views, how rows are in blocks, absent features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from poisson_factors_cases import run_of, with_programs

from factorflow.models.poisson_factors.state import Gamma

N, D, K = 70, 30, 3


def simulated(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.5, 1.0, (N, 2)) @ rng.gamma(0.3, 2.0, (2, D))
    return rng.poisson(rates).astype(float)


def began_alike(run: Any, views: dict[str, slice]) -> Any:
    """Give programs a start that does not depend on the views."""
    beta = np.random.default_rng(9).gamma(10.0, 0.1, (D, K))
    loadings = {
        name: Gamma(np.full(beta[mine].shape, 10.0), 10.0 / beta[mine]) for name, mine in views.items()
    }
    logs = {name: gamma.logs_and_entropies()[0] for name, gamma in loadings.items()}
    with_programs(run, loadings=loadings, logs=logs)
    return run


def test_two_views_are_one_of_the_joined_features() -> None:
    """Where size factors are the same."""
    y = simulated()
    parts = {"x": slice(0, 12), "z": slice(12, D)}
    one = began_alike(run_of({"x": y}, K), {"x": slice(0, D)}).passes(5).passes(5, learn=True)
    two = run_of({name: y[:, mine] for name, mine in parts.items()}, K)
    began_alike(two, parts).passes(5).passes(5, learn=True)
    joined = np.concatenate([two.programs.loadings[name].mean for name in parts])
    np.testing.assert_allclose(joined, one.programs.loadings["x"].mean, rtol=1e-5)
    np.testing.assert_allclose(two.scores().mean, one.scores().mean, rtol=1e-5)
    np.testing.assert_allclose(two.objectives, one.objectives, rtol=1e-8)


@pytest.mark.parametrize("gaps", [False, True])
def test_blocks_do_not_matter(gaps: bool) -> None:
    y = simulated()
    if gaps:
        y[np.random.default_rng(1).random(y.shape) < 0.2] = np.nan
    runs = [run_of({"x": y}, K, cut, size_factors="total").passes(4) for cut in (16, 33, 1000)]
    for other in runs[1:]:
        np.testing.assert_allclose(other.scores().mean, runs[0].scores().mean, rtol=1e-5)
        np.testing.assert_allclose(other.objectives, runs[0].objectives, rtol=1e-8)


@pytest.mark.parametrize("listed", [False, True])
def test_a_feature_that_a_file_lacks_is_a_missing_one(listed: bool) -> None:
    """Sets of features that rows lack together, and entries one by one, are the same to the model."""
    from dataclasses import replace

    y = simulated()
    y[20:, 5:9] = np.nan
    run = run_of({"x": y}, K, 25, size_factors="total")
    if not listed:
        blocks = []
        for block in run.blocks:
            rows = block.data["x"]
            lacks = np.zeros((1, D), bool)
            lacks[0, 5:9] = True
            codes = (np.arange(block.start, block.start + block.n_rows) >= 20).astype(np.uint8)
            none = np.zeros(0, np.int32)
            rows = replace(rows, row_pattern=codes, patterns=lacks, missing_rows=none, missing_columns=none)
            blocks.append(replace(block, data={"x": rows}))
        run = type(run)(run.model, blocks)
    run.passes(4)
    reference = run_of({"x": y}, K, 25, size_factors="total").passes(4)
    np.testing.assert_allclose(run.scores().mean, reference.scores().mean, rtol=1e-9)
    np.testing.assert_allclose(run.objectives, reference.objectives, rtol=1e-12)
    filled = run_of({"x": np.nan_to_num(y)}, K, 25, size_factors="total").passes(4)
    assert abs(filled.objectives[-1] - run.objectives[-1]) > 1.0


def test_a_view_that_a_cell_lacks_adds_nothing() -> None:
    y = simulated()
    half = y[:, 12:].copy()
    half[:15] = np.nan
    run = run_of({"x": y[:, :12], "z": half}, K, 25, batch=np.arange(N) % 2).passes(3)
    p, theta = run.programs, run.scores()
    with_programs(run, stretch=np.ones(K))
    rates = p.score_rates.mean * p.stretch
    level = p.batches["x"].mean[np.arange(N) % 2] @ p.loadings["x"].mean
    before = theta.rate[:15] * p.stretch
    assert before.shape == level[:15].shape == (15, K)
    other = run_of({"x": y[:15, :12]}, K, 25, batch=np.arange(15) % 2)
    assert (rates > 0).all()
    other.globals_ = type(run.globals_)(
        {
            "0": type(p)(
                {"x": p.loadings["x"]},
                {"x": p.logs["x"]},
                {"x": p.feature_rates["x"]},
                {"x": p.batches["x"]},
                p.score_rates,
                p.score_shape,
                p.loading_shape,
                np.ones(K),
                p.share[:1],
            )
        },
        other.globals_.data,
        {},
        np.zeros(0),
    )
    run.globals_ = type(run.globals_)({"0": p}, run.globals_.data, {}, np.zeros(0))
    other.local = [{"0": Gamma(theta.shape[:15], theta.rate[:15])}]
    run.passes(1)
    other.passes(1)
    found = run.local[0]["0"].mean[:15]
    np.testing.assert_allclose(found, other.local[0]["0"].mean, rtol=1e-6)
