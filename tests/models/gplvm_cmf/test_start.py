"""How the process begins: at the mean field that the warm-up found, and with its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factorflow.kernels.random import Step
from factorflow.models import configure
from factorflow.models.contract import Meta, ViewMeta
from factorflow.models.gplvm_cmf import decoders
from factorflow.models.gplvm_cmf.compare import moments
from factorflow.models.gplvm_cmf.rows import covariance_of_inputs, local_of, packed, unpacked
from factorflow.models.gplvm_cmf.start import CoupleSweep, DirectionsSweep
from factorflow.models.gplvm_cmf.state import Globals, Local
from factorflow.models.gplvm_cmf.steps import Descend

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

N = 96


def coupled(
    tools: Any, log_sd: float | None = None, **options: Any
) -> tuple[Any, Any, Globals, Local, Local]:
    """Return settings, rows, the state once a process is there, and the rows before and after."""
    warm = tools.settings(N, coupling="mean_field")
    block, step = tools.block(N), Step(5)
    globals_, _ = tools.state(warm, N)
    decoders = {name: value for name, value in globals_.values.items() if name.startswith("decoder")}
    taken = {name: np.array(7.0) for name in decoders}
    moved = {name: np.full_like(value, 0.5) for name, value in decoders.items()}
    globals_ = replace(globals_, values=decoders, first=moved, second=moved, steps=taken)
    before = tools.local(warm, np.random.default_rng(3), N)
    if log_sd is not None:
        before = replace(before, values={**before.values, "log_sd": np.full((N, 2), log_sd)})
    settings = tools.settings(N, n_inducing=30, **options)
    for sweep in (DirectionsSweep(settings), CoupleSweep(settings)):
        _, stats = sweep.map(block, before, globals_, step)
        globals_, _ = sweep.update(globals_, stats, step)
    after = local_of(settings, "gp", block, before, globals_, step)
    assert after is not None
    return settings, block, globals_, before, after


@pytest.mark.parametrize("q_x", ["full", "diagonal"])
def test_the_process_begins_at_the_mean_field(q_x: str, tools: Any) -> None:
    """With as many inputs as factors: means of z to a quarter, .05 on average, and its variances."""
    settings, block, globals_, before, after = coupled(tools, q_x=q_x)
    mean, variance = moments(settings, block, after, globals_, Step(5))
    np.testing.assert_allclose(mean, before.values["mean"], atol=0.25)
    assert np.abs(mean - before.values["mean"]).mean() < 0.05
    found = variance / np.exp(2.0 * before.values["log_sd"])
    assert (found > 0.5).all()
    assert np.median(found) == pytest.approx(1.07, abs=0.1)


def test_sharp_posteriors_stay_sharp(tools: Any) -> None:
    """Where rows are known to a thirtieth, the process does not begin with more noise than that."""
    settings, block, globals_, _, after = coupled(tools, log_sd=float(np.log(0.03)))
    _, variance = moments(settings, block, after, globals_, Step(5))
    assert np.median(variance) == pytest.approx(0.03**2, rel=0.4)


def test_factors_that_explain_nothing_stay_at_the_prior(tools: Any) -> None:
    """Means that vary little, variances near 1: the process begins there, not far away."""
    settings, block, globals_, before, _ = coupled(tools, log_sd=-0.01)
    flat = replace(before, values={**before.values, "mean": 0.1 * before.values["mean"]})
    for sweep in (DirectionsSweep(settings), CoupleSweep(settings)):
        _, stats = sweep.map(block, flat, globals_, Step(5))
        globals_, _ = sweep.update(globals_, stats, Step(5))
    after = local_of(settings, "gp", block, flat, globals_, Step(5))
    assert after is not None
    mean, variance = moments(settings, block, after, globals_, Step(5))
    assert np.abs(mean).max() < 0.5
    assert np.median(variance) == pytest.approx(1.0, abs=0.2)


def test_moments_of_decoders_go_on(tools: Any) -> None:
    """Adam's means and its steps are those of the warm-up; the process begins with none."""
    _, _, globals_, _, _ = coupled(tools)
    for name, first in globals_.first.items():
        assert (first == (0.5 if name.startswith("decoder") else 0.0)).all()
        assert float(globals_.steps[name]) == (7.0 if name.startswith("decoder") else 0.0)
    assert "w" in globals_.first


def test_steps_are_counted_one_parameter_at_a_time(tools: Any) -> None:
    settings, block, globals_, _, after = coupled(tools)
    sweep = Descend(settings, "gp", 100, 20)
    _, stats = sweep.map(block, after, globals_, Step(5))
    moved, _ = sweep.update(globals_, stats, Step(5))
    assert float(moved.steps["w"]) == 1.0
    assert {float(moved.steps[name]) for name in moved.steps if name.startswith("decoder")} == {8.0}
    # bias corrected for one step: the first step of w is as long as its rate
    rate = settings.rate * 0.5 * (1.0 + np.cos(np.pi * 0.2))
    np.testing.assert_allclose(np.abs(moved.values["w"] - globals_.values["w"]), rate, rtol=1e-3)


@pytest.mark.parametrize("coupling", ["gp", "full"])
def test_one_schedule(coupling: str) -> None:
    """The length of a step falls over the warm-up and what follows, without a jump."""
    meta = Meta(200, 1, 256, (ViewMeta("a", "gaussian", 4, "none"),))
    config = {"model": "gplvm_cmf", "coupling": coupling, "warmup_iter": 30, "max_iter": 70, "n_factors": 3}
    model = configure(config).build(meta)
    rates = []
    for stage in model.stages():
        for sweep in stage.sweeps:
            if isinstance(sweep, Descend):
                rates += [sweep._rate(1.0, Step(0, count=count)) for count in range(stage.max_iter)]
    assert len(rates) == (100 if coupling == "gp" else 70)
    assert rates[0] == 1.0
    assert rates[-1] < 0.03
    assert (np.diff(rates) <= 0).all()
    assert np.abs(np.diff(rates)).max() < 0.03
    assert model.settings.n_inputs == 3  # as many as factors


def test_packed_factors() -> None:
    factor = np.tril(np.random.default_rng(0).normal(size=(4, 3, 3)))
    factor[:, np.arange(3), np.arange(3)] = np.abs(factor[:, np.arange(3), np.arange(3)]) + 0.1
    np.testing.assert_allclose(unpacked(packed(factor), 3), factor, rtol=1e-14)
    local = Local({"inputs": np.zeros((4, 3)), "spread": packed(factor)}, {}, {}, np.zeros(4))
    covariance = covariance_of_inputs(local, local.values["inputs"])
    np.testing.assert_allclose(covariance, factor @ factor.swapaxes(1, 2), rtol=1e-13)
    assert (covariance_of_inputs(None, np.zeros((4, 3))) == 0).all()


def test_rows_that_are_differentiated_together(tools: Any) -> None:
    """A power of two, of which twice as many would not fit; no less than 16 and no more than 1024."""
    settings = tools.settings()
    assert settings.chunk == 1024
    for hidden, rows in ((200, 512), (2000, 64), (50000, 16)):
        wide = replace(settings, hidden=hidden)
        assert wide.chunk == rows
        assert rows == 16 or rows <= (1 << 24) // (8 * wide.row_width) < 2 * rows


def test_decoders_of_features_that_are_always_one(tools: Any) -> None:
    """Or never: a probability of .99, or .01."""
    settings = tools.settings()
    noise, heads = np.ones((settings.n_factors, settings.hidden)), np.ones((6, settings.hidden))
    found = decoders.start(settings, settings.views[1], noise, heads, np.array([0, 0.01, 0.4, 0.5, 0.99, 1]))
    p = np.array([0.01, 0.01, 0.4, 0.5, 0.99, 0.99])
    np.testing.assert_allclose(found[decoders.decoder("b", "mean_bias")], np.log(p / (1 - p)), atol=1e-14)
