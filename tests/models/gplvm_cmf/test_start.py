"""How the process begins: at the Gaussians that the warm-up found, and with its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factorflow.engine.memory import measure
from factorflow.kernels.random import Step
from factorflow.models import configure
from factorflow.models.contract import Meta, ViewMeta
from factorflow.models.gplvm_cmf import decoders, steps
from factorflow.models.gplvm_cmf.compare import moments
from factorflow.models.gplvm_cmf.rows import (
    START_SPREAD,
    convert_rows,
    covariance_of_inputs,
    noise_of,
    pack_factors,
    unpack_cholesky,
)
from factorflow.models.gplvm_cmf.settings import SCRATCH
from factorflow.models.gplvm_cmf.start import START_FACTOR, CoupleSweep, DirectionsSweep, _initial_process
from factorflow.models.gplvm_cmf.state import Globals, Local
from factorflow.models.gplvm_cmf.steps import SLOWLY, Descend, Project

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


from factorflow.models.gplvm_cmf.autodiff import passes  # noqa: E402
from factorflow.models.gplvm_cmf.autodiff.optimise import TINY  # noqa: E402

N = 96


def coupled(
    tools: Any, log_sd: float | None = None, alone: str = "mean_field", **options: Any
) -> tuple[Any, Any, Globals, Local, Local]:
    """Return settings, rows, the state once a process is there, and the rows before and after."""
    warm = tools.settings(N, coupling=alone)
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
    after = convert_rows(settings, "gp", block, before, globals_, step)
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


def test_the_process_begins_with_full_covariances(tools: Any) -> None:
    """What is correlated in z of a row is in X of it, turned; and so it is in draws of z by the process."""
    settings, block, globals_, before, after = coupled(tools, alone="full")
    factor, turn = unpack_cholesky(before.values["factor"], 2), globals_.fixed.turn
    assert np.abs(factor[:, 1, 0]).mean() > 0.1
    asked = turn.T @ factor @ factor.swapaxes(1, 2) @ turn
    found = covariance_of_inputs(after, after.values["inputs"])
    np.testing.assert_allclose(found, asked + START_SPREAD * np.eye(2), rtol=1e-9)
    draws = np.stack([z_of(settings, block, globals_, after, draw) for draw in range(2000)])
    off = draws - draws.mean(0)
    of_z = np.einsum("sbq,sbp->bqp", off, off) / len(draws)
    size = np.sqrt(np.einsum("bqq,bpp->bqp", *(factor @ factor.swapaxes(1, 2),) * 2))
    # the map is linear but for a few hundredths, and the draws tell a correlation to .02
    assert np.median(np.abs(of_z - factor @ factor.swapaxes(1, 2)) / size) < 0.05


def z_of(settings: Any, block: Any, globals_: Globals, rows: Local, draw: int) -> Any:
    """Return a draw of z by the process."""
    from factorflow.models.gplvm_cmf.autodiff.coupling import draw_coupled
    from factorflow.models.gplvm_cmf.autodiff.kernel import inducing
    from factorflow.models.gplvm_cmf.autodiff.tensors import as_tensor

    noise = noise_of(settings, "gp", block, Step(6, 0, draw), 1)[0]
    values, local, noise = (
        {name: as_tensor(array) for name, array in arrays.items()}
        for arrays in (globals_.values, rows.values, noise)
    )
    process = inducing(values, settings.jitter)
    return draw_coupled(settings, values, process, local, noise, values["w"]).z.numpy()


@pytest.mark.parametrize(
    ("options", "family"),
    [
        ({}, "full"),
        ({"q_u": "free"}, "full"),
        ({"q_x": "diagonal"}, "mean_field"),
        ({"q_u": "free", "bound": "product"}, "mean_field"),
    ],
)
def test_the_warm_up_holds_what_the_process_can(options: dict[str, Any], family: str) -> None:
    """Full covariances where the process has them; diagonal ones where X has none, or is given."""
    views = (ViewMeta("a", "gaussian", 4, "none"), ViewMeta("x", "covariate", 1, "none"))
    meta = Meta(200, 1, 256, views[:1])
    model = configure({"model": "gplvm_cmf", **options}).build(meta)
    assert [stage.sweeps[0].family for stage in model.stages() if stage.name == "warm-up"] == [family]
    given = configure({"model": "gplvm_cmf", "given": ["x"]}).build(replace(meta, views=views))
    assert [stage.sweeps[0].family for stage in given.stages() if stage.name == "warm-up"] == ["mean_field"]


def test_the_process_begins_at_draws_with_their_covariances(tools: Any) -> None:
    """Inducing inputs, and what kappa is regressed on: draws of the Gaussians, correlated as those are."""
    settings, block, globals_, before, _ = coupled(tools, alone="full")
    factor = np.tile([[1.0, 0.0], [0.95, 0.3]], (N, 1, 1))
    rows = replace(before, values={"mean": 0.1 * before.values["mean"], "factor": pack_factors(factor)})
    _, begun = DirectionsSweep(settings).map(block, rows, globals_, Step(5))
    assert np.corrcoef(begun.chosen.T)[0, 1] > 0.85
    variance = np.diag(factor[0] @ factor[0].T)
    np.testing.assert_allclose(begun.variance, N * variance)
    alone = convert_rows(settings, "mean_field", block, rows, globals_, Step(5))
    np.testing.assert_allclose(np.exp(2.0 * alone.values["log_sd"]), np.tile(variance, (N, 1)))
    _, found = CoupleSweep(settings).map(block, rows, globals_, Step(5))
    noise = noise_of(settings, "mean_field", block, Step(5), 1)[0]["scores"]
    z = rows.values["mean"] + np.einsum("bqp,bp->bq", factor, noise)
    x = (z - globals_.fixed.centre) @ globals_.fixed.turn
    gram, right = passes.regress(settings, globals_.values, x, z)
    np.testing.assert_allclose(found.gram, gram, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.right, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("q_u", ["free", "prior"])
def test_draws_of_w_move_the_rows_little(q_u: str, tools: Any) -> None:
    """The map that w makes differs by .03 from draw to draw, whether S is free or stays I."""
    from factorflow.models.gplvm_cmf.autodiff.coupling import draw_inducing
    from factorflow.models.gplvm_cmf.autodiff.kernel import between, features, inducing
    from factorflow.models.gplvm_cmf.autodiff.tensors import as_tensor

    settings, _, globals_, before, after = coupled(tools, alone="full", q_u=q_u)
    values = {name: as_tensor(array) for name, array in globals_.values.items()}
    process = inducing(values, settings.jitter)
    a, _ = features(process, between(process, as_tensor(after.values["inputs"])))
    alpha = np.random.default_rng(4).normal(size=(500, settings.n_inducing, 2))
    maps = np.stack([(a @ draw_inducing(settings, values, as_tensor(e))).numpy() for e in alpha])
    np.testing.assert_allclose(maps.std(0), START_FACTOR, rtol=0.2)
    np.testing.assert_allclose(maps.mean(0), before.values["mean"], atol=0.3)


@pytest.mark.parametrize("q_u", ["point", "free"])
def test_where_r_can_only_hurt_the_noise_holds_the_variance(q_u: str, tools: Any) -> None:
    """Product bound: X does not spread, so that z tells nothing of it, and s_q^2 is the variance of z."""
    settings, block, globals_, before, after = coupled(tools, log_sd=-1.0, q_u=q_u, bound="product")
    spread = covariance_of_inputs(after, after.values["inputs"])
    np.testing.assert_allclose(spread, np.tile(START_SPREAD * np.eye(2), (N, 1, 1)), rtol=1e-9)
    np.testing.assert_allclose(np.exp(globals_.values["log_noise"]), np.exp(-2.0), rtol=0.5)
    mean, variance = moments(settings, block, after, globals_, Step(5))
    np.testing.assert_allclose(np.median(variance), np.exp(-2.0), rtol=0.3)
    assert np.abs(mean - before.values["mean"]).mean() < 0.3


def with_basis(settings: Any, globals_: Globals) -> Globals:
    """Return globals with which rows can begin at 0."""
    basis = {view.name: np.zeros((view.n_features, 2)) for view in settings.views}
    return replace(globals_, fixed=replace(globals_.fixed, basis=basis))


@pytest.mark.parametrize(("q_x", "wanted"), [("full", "factor"), ("diagonal", "log_sd")])
def test_new_rows_before_there_is_a_process(q_x: str, wanted: str, tools: Any) -> None:
    """They are found as the warm-up holds those of the fit; their moments are those of what is found."""
    settings = tools.settings(q_x=q_x)
    globals_, _ = tools.state(replace(settings, coupling=settings.alone))
    assert not globals_.coupled
    globals_ = with_basis(settings, globals_)
    rows, _ = Project(settings, 40).map(tools.block(), None, globals_, Step(5))
    assert set(rows.values) == {"mean", wanted}
    mean, variance = moments(settings, tools.block(), rows, globals_, Step(5))
    np.testing.assert_array_equal(mean, rows.values["mean"])
    if q_x == "diagonal":
        np.testing.assert_allclose(variance, np.exp(2.0 * rows.values["log_sd"]))
        return
    factor = unpack_cholesky(rows.values["factor"], 2)
    assert np.abs(factor[:, 1, 0]).max() > 0.05
    np.testing.assert_allclose(variance, np.diagonal(factor @ factor.swapaxes(1, 2), axis1=1, axis2=2))


@pytest.mark.parametrize(("q_x", "family"), [("full", "full"), ("diagonal", "mean_field")])
def test_new_rows_begin_as_in_the_warm_up(
    q_x: str, family: str, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Gaussians of their own first, and by the process from there on."""
    settings, block, globals_, _, _ = coupled(tools, q_x=q_x)
    seen = []
    fitted = steps.fit_local

    def noted(settings: Any, family: str, *more: Any) -> Local:
        seen.append(family)
        return fitted(settings, family, *more)

    monkeypatch.setattr(steps, "fit_local", noted)
    sweep, globals_ = Project(settings, 2), with_basis(settings, globals_)
    rows, _ = sweep.map(block, None, globals_, Step(5))
    assert seen == [family, "gp"]
    sweep.map(block, rows, globals_, Step(5, 0, 1))
    assert seen == [family, "gp", "gp"]


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
    after = convert_rows(settings, "gp", block, flat, globals_, Step(5))
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
    # bias corrected for one step: the first step of w is as long as its share of the rate
    rate = SLOWLY * settings.rate * 0.5 * (1.0 + np.cos(np.pi * 0.2))
    gradient = stats.values["w"] / N  # some nearly 0: their steps are shorter
    expected = rate * gradient / (np.abs(gradient) + TINY)
    np.testing.assert_allclose(moved.values["w"] - globals_.values["w"], expected, rtol=1e-6)


def test_a_given_x_lets_the_process_go_as_fast_as_decoders(tools: Any) -> None:
    """Nothing has to follow it then; and it begins with lengths at which it bends."""
    settings = tools.settings(N, given=["x"])
    block, step = tools.block(N), Step(5)
    globals_, _ = tools.state(settings, N)
    sweep = Descend(settings, "gp", 100, 0)
    _, stats = sweep.map(block, None, globals_, step)
    moved, _ = sweep.update(globals_, stats, step)
    off = np.abs(moved.values["w"] - globals_.values["w"])
    np.testing.assert_allclose(off, settings.rate, rtol=1e-3)
    begun = {
        name: float(np.exp(_initial_process(tools.settings(N, **o), np.zeros((4, 2)), step)["log_length"][0]))
        for name, o in {"given": {"given": ["x"]}, "learned": {}}.items()
    }
    assert begun["given"] < 0.7 * begun["learned"]


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
    np.testing.assert_allclose(unpack_cholesky(pack_factors(factor), 3), factor, rtol=1e-14)
    local = Local({"inputs": np.zeros((4, 3)), "spread": pack_factors(factor)}, {}, {}, np.zeros(4))
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
    # full covariances of the warm-up count where there are few inputs: six copies are alive at once (measured
    # with PyTorch's profiler: 7 MiB of 64 rows of 50 factors)
    for factors in (20, 50, 100):
        many = replace(settings, n_factors=factors)
        assert 6 * 8 * factors**2 * many.chunk < SCRATCH < 40 * 8 * factors**2 * many.chunk


@pytest.mark.parametrize("q_x", ["full", "diagonal"])
def test_the_plan_counts_covariances_of_the_warm_up(q_x: str) -> None:
    """With fewer inputs than factors they are the most that is kept of a row: themselves and two moments."""
    meta = Meta(2000, 1, 256, (ViewMeta("a", "gaussian", 12, "none"),))
    options = {"n_factors": 8, "n_inputs": 2, "n_inducing": 4, "hidden": 3, "q_x": q_x}
    found = measure(configure({"model": "gplvm_cmf", **options}).build(meta)).local_per_row
    of_row = 8 + (36 if q_x == "full" else 8)
    assert 3 * 8 * of_row <= found <= 3 * 8 * of_row + 16


def test_decoders_of_features_that_are_always_one(tools: Any) -> None:
    """Or never: a probability of .99, or .01."""
    settings = tools.settings()
    noise, heads = np.ones((settings.n_factors, settings.hidden)), np.ones((6, settings.hidden))
    found = decoders.start(settings, settings.views[1], noise, heads, np.array([0, 0.01, 0.4, 0.5, 0.99, 1]))
    p = np.array([0.01, 0.01, 0.4, 0.5, 0.99, 0.99])
    np.testing.assert_allclose(found[decoders.decoder("b", "mean_bias")], np.log(p / (1 - p)), atol=1e-14)
