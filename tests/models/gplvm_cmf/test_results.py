"""What a fit leaves behind, what can be asked of it, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.engine.minibatch import part_of
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.models import configure
from factorflow.models.contract import Meta, ViewMeta
from factorflow.models.gplvm_cmf.steps import Descend

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

VIEWS = {"a": ("gaussian", 8), "b": ("bernoulli", 9)}
SMALL: dict[str, Any] = {
    "model": "gplvm_cmf",
    "n_factors": 2,
    "n_inducing": 10,
    "hidden": 8,
    "warmup_iter": 60,
    "max_iter": 80,
    "evaluate_every": 40,
    "rate": 0.03,
    "row_rate": 0.1,
    "compare_rows": 96,
    "compare_steps": 40,
    "row_steps": 10,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("gplvm") / "data.zarr"
    settings = {"views": VIEWS, "inputs": "place", "missing": 0.05, "block_rows": 32, "seed": 4}
    return factorflow.simulate("gplvm", path, 160, **settings)


@pytest.fixture(scope="module")
def fitted(dataset: Any) -> Any:
    return factorflow.fit(dataset, {**SMALL, "views": ["a", "b"]}, seed=1, holdout=0.1)


def test_what_is_found(fitted: Any, dataset: Any) -> None:
    """Bounds rise, predictions beat the means, and latent variables and inputs have error bars."""
    objective = fitted.trace["objective"].values
    seen = objective[np.isfinite(objective)]
    assert seen[-1] > seen[0]
    assert fitted.scores().shape == (160, 2)
    assert fitted.inputs().shape == (160, 2)
    assert (fitted.variable("scores_variance").values > 0).all()
    assert (fitted.variable("inputs_variance").values > 0).all()
    scores = fitted.holdout_scores()
    assert scores.loc["a", "r2"] > 0.3
    assert scores.loc["b", "log_loss"] < scores.loc["b", "baseline_log_loss"]


def test_the_comparison_is_printed(fitted: Any, tmp_path: Path) -> None:
    from factorflow.report import write_report

    found = fitted.summary()["comparison"]
    assert set(found) == {"gp", "mean_field", "full"}
    assert found["gp"]["error"] == 0.0
    assert "bound a sample on the same decoders" in repr(fitted)
    text = write_report(fitted, tmp_path / "r.html").read_text()
    assert 'id="comparison"' in text
    assert 'id="inputs"' in text
    assert "Input1" in text


def test_prediction_is_the_mean_over_draws(fitted: Any) -> None:
    """Mean and standard deviation of new observations, of draws of z through the stored decoders."""
    rng, rows = np.random.default_rng(0), slice(0, 5)
    record = {name: fitted.variable(name).values for name in fitted.tree["variational"].data_vars}
    z = record["scores"][rows] + np.sqrt(record["scores_variance"][rows]) * rng.normal(size=(20000, 5, 2))
    for view in VIEWS:
        units = np.tanh(z @ record[f"decoder_hidden_{view}"] + record[f"decoder_hidden_bias_{view}"])
        y = units @ record[f"decoder_mean_{view}"] + record[f"decoder_mean_bias_{view}"]
        if view == "b":
            mean = (1 / (1 + np.exp(-y))).mean(0)
            sd = np.sqrt(mean * (1 - mean))
        else:
            log_variance = units @ record["decoder_log_variance_a"] + record["decoder_log_variance_bias_a"]
            noise = (np.exp(log_variance) + 1e-4).mean(0) + y.var(0)
            mean = record["location_a"] + record["scale_a"] * y.mean(0)
            sd = record["scale_a"] * np.sqrt(noise)
        predicted = fitted.predict(view, 0, 5)
        np.testing.assert_allclose(predicted["mean"], mean, atol=0.1 * sd.max())
        np.testing.assert_allclose(predicted["sd"], sd, rtol=0.15)


def test_generation(fitted: Any, dataset: Any) -> None:
    """New samples look like the data, feature by feature; the same seed, the same samples."""
    new = fitted.generate(2000, seed=3)
    assert new["a"].shape == (2000, 8)
    assert set(np.unique(new["b"])) == {0.0, 1.0}
    data = dataset.values("a")
    assert np.abs(new["a"].values.mean(0) - np.nanmean(data, 0)).max() < 0.6 * np.nanstd(data, 0).max()
    np.testing.assert_array_equal(new["a"], fitted.generate(2000, seed=3)["a"])
    for n in (0, 2.5, "3"):
        with pytest.raises(InputError, match="n_samples = .*an integer >= 1"):
            fitted.generate(n)
    for seed in (-1, 0.5, 1 << 64):
        with pytest.raises(InputError, match="seed"):
            fitted.generate(1, seed)
    assert len(fitted.generate(np.int64(3))["a"]) == 3


def test_numbers_that_are_not_whole(fitted: Any, dataset: Any) -> None:
    for name in ("n_draws", "n_repeats"):
        with pytest.raises(InputError, match=f"{name} = 2.5: expected an integer"):
            fitted.log_likelihood(dataset, **{name: 2.5})
    with pytest.raises(InputError, match="iterations = 2.5: expected an integer"):
        fitted.project(dataset, iterations=2.5)


def test_imputation_and_new_samples(fitted: Any, tmp_path: Path) -> None:
    """New samples are predicted from half of their features; their likelihood has error bars."""
    world = factorflow.simulate("gplvm", tmp_path / "w", 200, views=VIEWS, seed=4)
    a, b = world.values("a")[160:], world.values("b")[160:].astype(float)
    hidden = (np.arange(40)[:, None] + np.arange(8)) % 2 == 0
    half = np.where(hidden, np.nan, a)
    new = factorflow.write_dataset(tmp_path / "n", {"a": half})
    projected = fitted.project(new, iterations=5)
    mean = projected.impute("a")["mean"].values
    spread = ((a - a.mean(0))[hidden] ** 2).mean()
    assert ((mean - a)[hidden] ** 2).mean() < 0.8 * spread
    np.testing.assert_array_equal(mean[~hidden], a[~hidden])
    both = factorflow.write_dataset(tmp_path / "b", {"a": a, "b": b}, likelihoods={"b": "bernoulli"})
    scored = fitted.log_likelihood(both, n_draws=50, n_repeats=3)
    assert scored["log_likelihood"].shape == (40,)
    assert (scored["log_likelihood_error"] < 1.0).all()
    turned = {"a": a[:, ::-1].copy(), "b": b}
    wrong = factorflow.write_dataset(tmp_path / "c", turned, likelihoods={"b": "bernoulli"})
    worse = fitted.log_likelihood(wrong, n_draws=50, n_repeats=3)
    assert scored["log_likelihood"].mean() > worse["log_likelihood"].mean() + 1.0


def test_a_run_that_was_stopped_before_there_is_a_process(dataset: Any) -> None:
    """New samples are found without one, and have latent variables but no inputs."""
    config = {**SMALL, "views": ["a", "b"], "compare_rows": 0}
    posterior = factorflow.fit(dataset, config, seed=1, max_iter=20)
    projected = posterior.project(dataset, iterations=10)
    of_fit, found = posterior.scores().values, projected.scores().values
    assert np.isnan(projected.inputs()).all()
    assert (projected.variable("scores_variance").values > 0).all()
    # the same posteriors, but for that the fit has not taken many steps, and theirs draw each their own noise
    assert min(np.corrcoef(of_fit[:, q], found[:, q])[0, 1] for q in range(2)) > 0.8


def test_given_inputs(dataset: Any, tmp_path: Path) -> None:
    """X given: q is smooth along it, nothing is kept of rows, new rows are predicted from X alone."""
    config = {**SMALL, "given": ["place"]}
    posterior = factorflow.fit(dataset, config, seed=1)
    place = dataset.values("place")
    expected = (place - place.mean(0)) / place.std(0)
    np.testing.assert_allclose(posterior.inputs(), expected, atol=1e-6)
    assert (posterior.variable("inputs_variance").values == 0).all()
    truth = dataset.truth["scores"].values
    design = np.column_stack([posterior.scores().values, np.ones(160)])
    left = truth - design @ np.linalg.lstsq(design, truth, rcond=None)[0]
    assert (left.var(0) < 0.8 * truth.var(0)).any()
    projected = posterior.project(dataset, iterations=2)
    np.testing.assert_allclose(projected.scores(), posterior.scores(), atol=1e-9)
    nowhere = factorflow.write_dataset(tmp_path / "n", {"a": dataset.values("a")})
    with pytest.raises(InputError, match="no entry: expected the covariate view place"):
        posterior.project(nowhere, iterations=2)
    place[3, 0] = np.nan
    some = factorflow.write_dataset(
        tmp_path / "s",
        {"a": dataset.values("a"), "place": place},
        inputs={"place": "covariate"},
        features={"place": list(dataset.features("place"))},
    )
    with pytest.raises(InputError, match="place, with missing entries: expected an input that is known"):
        posterior.project(some, iterations=2)


def test_gradients_of_parts_are_unbiased(dataset: Any) -> None:
    """Over an epoch the scaled gradients of the parts average to that of all rows, with the same noise."""
    config = configure({**SMALL, "views": ["a", "b"], "part_rows": 64})
    model = config.build(dataset.meta(config.views))
    posterior = factorflow.fit(dataset, config, seed=1, max_iter=3)
    from factorflow.posterior.globals import StoredGlobals

    globals_ = StoredGlobals.of(posterior.tree, posterior.path).read(0, 0)
    sweep, step = Descend(model.settings, "mean_field", 80), Step(1)
    blocks = [dataset.block(n, ["a", "b"]) for n in range(dataset.n_blocks)]
    whole = [sweep.map(block, None, globals_, step)[1] for block in blocks]
    stage = next(stage for stage in model.stages() if stage.name == "bound")
    n_parts = stage.n_parts(model.meta)
    assert 1 < n_parts < len(blocks)
    parts = [part_of(range(len(blocks)), n_parts, i, seed=1) for i in range(n_parts)]
    for name, expected in globals_.values.items():
        each = [n_parts * sum(whole[n].values[name] for n in part) for part in parts]
        total = sum(stats.values[name] for stats in whole)
        np.testing.assert_allclose(sum(each) / n_parts, total, rtol=1e-9, atol=1e-9)
        assert np.shape(total) == np.shape(expected)


def meta(*views: tuple[str, str, int], n_rows: int = 100) -> Meta:
    return Meta(n_rows, 1, 128, tuple(ViewMeta(name, kind, d, "none") for name, kind, d in views))


def test_bad_input(dataset: Any, tmp_path: Path) -> None:
    one = meta(("a", "gaussian", 4))
    with pytest.raises(InputError, match="n_factors"):
        configure({"model": "gplvm_cmf", "n_factors": 0})
    with pytest.raises(InputError, match="n_inducing = 200: expected at most the number of samples, 160"):
        factorflow.fit(dataset, {**SMALL, "views": ["a"], "n_inducing": 200})
    for views, match in (
        ((("c", "poisson", 3),), "a Gaussian or Bernoulli view"),
        ((("a", "gaussian", 3), ("x", "covariate", 1)), "named in `given`"),
    ):
        with pytest.raises(InputError, match=match):
            configure(SMALL).build(meta(*views))
    given = {**SMALL, "given": ["x"]}
    with pytest.raises(InputError, match="the dataset has none"):
        configure(given).build(one)
    both = meta(("a", "gaussian", 3), ("x", "covariate", 1))
    with pytest.raises(InputError, match="n_inputs = 2: expected 1"):
        configure({**given, "n_inputs": 2}).build(both)
    with pytest.raises(InputError, match="given = x: expected none without a process"):
        configure({**given, "coupling": "full"}).build(both)
    with pytest.raises(InputError, match="expected a Gaussian or Bernoulli view"):
        configure(given).build(meta(("x", "covariate", 1)))
    with pytest.raises(InputError, match="0 and 1"):
        factorflow.write_dataset(tmp_path / "b", {"b": np.full((40, 3), 2.0)}, likelihoods={"b": "bernoulli"})
    x = np.linspace(0, 1, 40)[:, None]
    x[3] = np.nan
    holes = factorflow.write_dataset(
        tmp_path / "h",
        {"a": np.random.default_rng(0).normal(size=(40, 3)), "x": x},
        inputs={"x": "covariate"},
    )
    with pytest.raises(InputError, match="x, with missing entries"):
        factorflow.fit(holes, {**given})
    other = factorflow.fit(dataset, {"model": "sparse_gfa", "views": ["a"], "n_factors": 2, "max_iter": 3})
    for ask in (lambda: other.generate(3), lambda: other.log_likelihood(dataset)):
        with pytest.raises(InputError, match="a family that can"):
            ask()


def threads_of_pytorch() -> list[int]:
    """How many this thread of Python has, and a new one."""
    import torch

    found = [torch.get_num_threads()]
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found


@pytest.mark.parametrize("executor", ["local", "threads"])
def test_the_threads_of_pytorch_are_those_of_before(dataset: Any, executor: str) -> None:
    import torch

    own = torch.get_num_threads()
    torch.set_num_threads(own + 1)
    try:
        before, config = threads_of_pytorch(), SMALL | {"views": ["a", "b"], "max_iter": 62}
        posterior = factorflow.fit(dataset, config, executor=executor, progress=False)
        posterior.project(dataset, progress=False)
        assert threads_of_pytorch() == before
    finally:
        torch.set_num_threads(own)
