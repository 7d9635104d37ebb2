"""How many factors: the worth of each is what the bound is higher with it; below 0 it goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.kernels.linalg import congruence, pack, unpack
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa import global_step, squarem
from factorflow.models.sparse_gfa.change_of_basis import extend_transform
from factorflow.models.sparse_gfa.n_factors import HORIZON, least_worth
from factorflow.models.sparse_gfa.state import Change, Progress, replace_part
from factorflow.models.sparse_gfa.stored_scores import apply_transform
from factorflow.models.sparse_gfa.weights import expected_weights


def simulated(n_rows: int, sizes: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return Gaussian views of three factors, each of which loads on two fifths of the features."""
    rng = np.random.default_rng([seed, n_rows, sum(sizes)])
    scores, views = rng.standard_normal((n_rows, 3)), {}
    for m, size in enumerate(sizes):
        loadings = rng.standard_normal((size, 3)) * (rng.random((size, 3)) < 0.4)
        views[f"v{m}"] = (scores @ loadings.T + rng.standard_normal((n_rows, size))).astype(np.float32)
    return views


def fitted(path: Path, views: dict[str, Any], likelihood: str = "gaussian", **options: Any) -> Any:
    """Return a posterior."""
    data = factorflow.write_dataset(path / "d.zarr", views, dict.fromkeys(views, likelihood))
    return factorflow.fit(data, SparseGFA(**options))


def falls(posterior: Any) -> float:
    """Return the largest relative fall of the bound within a stage, while the number of factors stays."""
    bound, stage, left = (posterior.trace[name].to_numpy() for name in ("objective", "stage", "n_factors"))
    begun = np.append(left[:1], left[:-1])  # of each pass
    within = (stage[1:] == stage[:-1]) & (begun[1:] == begun[:-1])
    return float(((bound[:-1] - bound[1:]) / np.abs(bound[1:]))[within].max())


@pytest.mark.parametrize(
    "options", [{}, {"noise": "both"}, {"loadings": "horseshoe"}, {"scores": "ard", "grouped_noise": True}]
)
@pytest.mark.parametrize(("missing", "passes"), [("none", 9), ("scattered", 9), ("scattered", 7)])
def test_worth_is_what_the_bound_loses_without_a_factor(
    tools: Any, monkeypatch: pytest.MonkeyPatch, missing: str, passes: int, options: dict[str, Any]
) -> None:
    """All else as it is, but the noise, which takes what the factor explained; less the gap of q(z) q(w)."""
    groups = 2 if "scores" in options else 0
    problem = tools.Problem(("gaussian", "gaussian"), missing, groups, drop=1e-12, **options)
    monkeypatch.setattr(global_step, "least_worth", lambda *_: None)
    for count in range(passes):
        if count == 4:
            problem.initialize_sparse()
        _, local, stats = problem.map()
        after, _ = problem.update(stats)
        problem.globals_, problem.local, problem.count = after, local, problem.count + 1
    assert after.factors.worth is not None
    assert (after.change.transform is not None) == (
        passes == 7
    )  # every third pass ends with a change of scale
    local, scale = apply_transform(local, after), np.ones(3)
    if after.change.transform is not None:
        scale = np.diag(after.change.transform)
    basis = extend_transform(np.diag(scale), 1)
    whole = problem.bound(local, replace_part(after, "change", transform=None))
    covariance = scale**2 * np.diag(unpack(stats.covariance, 3)) / stats.rows.sum()
    for k in range(3):
        kept, gap = np.delete(np.arange(3), k), 0.0
        weights, views = {}, {}
        for m, (name, mine) in enumerate(after.weights.items()):
            fewer = {
                "mean": mine.mean[:, kept],
                "variance": mine.variance[:, kept],
                **{
                    n: getattr(mine, n)[:, kept]
                    for n in ("inclusion", "scaled_square", "entropies")
                    if getattr(mine, n) is not None
                },
            }
            pairs = (
                stats.shared[name][None] if stats.features[name].pairs is None else stats.features[name].pairs
            )
            cross = stats.features[name].cross @ basis.T
            flat = congruence(pairs.reshape(-1, pairs.shape[-1]), basis)
            pairs = flat.reshape(*pairs.shape[:-1], -1)
            mean, spread = expected_weights(mine)
            f = mine.noise_shape / mine.noise_rate
            gap += 0.5 * covariance[k] * ((f * pairs[:, :, -1]).sum(axis=1) * spread[:, k]).sum()
            extended = np.concatenate([mean, mine.intercept[:, None]], axis=1)
            grown = np.zeros(mine.noise_rate.shape)
            for t in range(grown.shape[1]):
                p = np.broadcast_to(unpack(pairs[:, t], 4), (len(mean), 4, 4))
                second = extended[:, :, None] * extended[:, None] + np.stack(
                    [np.diag([*v, 0.0]) for v in spread]
                )
                grown[:, t] = 2.0 * mean[:, k] * cross[:, t, k]
                grown[:, t] += -2.0 * (second[:, k] * p[:, k]).sum(axis=1) + second[:, k, k] * p[:, k, k]
            weights[name] = replace(mine, **fewer, noise_rate=mine.noise_rate + 0.5 * grown)
            shared = after.views[name]
            names = ("alpha_shape", "alpha_rate", "theta_on", "theta_off")
            views[name] = replace(shared, **{n: getattr(shared, n)[kept] for n in names})
            assert m < 2
        cov = unpack(np.broadcast_to(local.variance, (len(local.mean), 6)), 3)
        rest = replace(local, mean=local.mean[:, kept], variance=pack(cov[:, kept][:, :, kept]))
        scores = {
            n: getattr(after.scores, n)[:, kept] for n in ("beta_shape", "beta_rate", "psi_on", "psi_off")
        }
        fewer_factors = replace(
            after, weights=weights, views=views, change=Change(), scores=replace(after.scores, **scores)
        )
        without = problem.bound(rest, fewer_factors)
        assert after.factors.worth[k] - gap == pytest.approx(whole - without, rel=1e-8, abs=1e-6)
        assert gap > 0.0


def test_a_factor_goes_that_will_not_be_worth_anything_soon() -> None:
    """The worst alone; not where nothing is known of the pace."""
    found = np.array([5.0, -1.0, -8.0, -3.0])
    assert least_worth(found, None) is None
    assert least_worth(found, found) == 2
    rising = found - np.array([0.0, 0.0, 2.0 / HORIZON + 1.0, 0.0])
    assert least_worth(found, rising) == 3  # the worst rises fast enough
    assert least_worth(found, np.array([9.0, -1.2, -9.1, -3.5])) is None
    assert least_worth(found[:2], found) is None  # of another number of factors
    assert least_worth(np.zeros(0), np.zeros(0)) is None


@pytest.mark.usefixtures("surplus_factors")
def test_surplus_factors_go_one_by_one(tmp_path: Path) -> None:
    posterior = fitted(tmp_path, simulated(200, (60,), 3), n_factors=12)
    found = posterior.trace["n_factors"].to_numpy()
    assert found[0] == 9
    assert found[-1] == 3
    moves = np.diff(found[posterior.trace["stage"].to_numpy() == "sparse"])
    assert np.abs(moves).max() == 1
    assert (moves > 0).sum() == 1  # the last one came back after a trial


def test_worth_is_recorded_in_the_order_of_the_factors(tmp_path: Path) -> None:
    """That is by variance explained, of which the worth of strong factors is nearly a function."""
    rng = np.random.default_rng(8)
    scores = rng.standard_normal((300, 3)) * [0.6, 1.0, 2.0]
    y = scores @ (rng.standard_normal((60, 3)) * (rng.random((60, 3)) < 0.4)).T + rng.standard_normal(
        (300, 60)
    )
    posterior = fitted(tmp_path, {"v0": y.astype(np.float32)}, n_factors=6)
    worth = posterior.variable("worth").values
    assert len(worth) == 3
    assert (np.diff(worth) < 0.0).all()
    assert worth.min() > 0.0
    summary = posterior.summary()["factors"]
    assert [factor["worth"] for factor in summary] == pytest.approx(worth.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "n_rows", [1000, 10_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (40_000, 100_000))]
)
def test_many_samples_of_few_features_have_the_true_number(tmp_path: Path, n_rows: int) -> None:
    posterior = fitted(tmp_path, simulated(n_rows, (20,), 1 if n_rows < 100_000 else 3), n_factors=8)
    assert posterior.scores().shape[1] == 3
    assert falls(posterior) < (1e-9 if n_rows < 50_000 else 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_rows", "size", "start", "share", "seed"), [(20_000, 20, 8, 0.2, 11), (700, 500, 5, 0.0, 1)]
)
def test_binary_entries_have_the_true_number(
    tmp_path: Path, n_rows: int, size: int, start: int, share: float, seed: int
) -> None:
    """A weak factor stays, of whose two strongest features the bound knows half; surplus factors go."""
    rng = np.random.default_rng([seed, n_rows, size])
    scores = rng.standard_normal((n_rows, 3))
    x = scores @ (rng.standard_normal((size, 3)) * (rng.random((size, 3)) < 0.4)).T
    y = (rng.random(x.shape) < 1.0 / (1.0 + np.exp(-x))).astype(np.float32)
    y[np.random.default_rng(seed).random(y.shape) < share] = np.nan
    assert fitted(tmp_path, {"v": y}, "bernoulli", n_factors=start).scores().shape[1] == 3


@pytest.mark.parametrize("seed", [1, 2])
def test_noise_of_a_small_view_is_no_factor(tmp_path: Path, seed: int) -> None:
    """Of noise, a small view beside a wide one was explained by as many factors as it has features."""
    rng = np.random.default_rng(seed)
    views = {
        name: rng.standard_normal((2600, size)).astype(np.float32)
        for name, size in {"a": 380, "b": 12}.items()
    }
    assert fitted(tmp_path, views, n_factors=14).scores().shape[1] == 0


def test_a_small_view_beside_a_wide_one_with_entries_missing(tmp_path: Path) -> None:
    """Samples that miss the one feature of a factor do not know its score: by statistics all six stayed."""
    views = simulated(1100, (371, 3), 8)
    for number, y in enumerate(views.values()):
        y[np.random.default_rng(number).random(y.shape) < 0.2] = np.nan
    assert fitted(tmp_path, views, n_factors=6).scores().shape[1] == 3


@pytest.mark.parametrize("missing", [pytest.param(0.0, marks=pytest.mark.thorough), 0.2])
def test_a_small_view_where_samples_have_noise_of_their_own(tmp_path: Path, missing: float) -> None:
    """All twelve stayed, with or without entries missing: as statistics have it, samples are alike."""
    views = simulated(1100, (371, 11), 8)
    for number, y in enumerate(views.values()):
        y[np.random.default_rng(number).random(y.shape) < missing] = np.nan
    assert fitted(tmp_path, views, n_factors=12, noise="both").scores().shape[1] == 3


def test_a_small_view_beside_binary_entries_with_some_missing(tmp_path: Path) -> None:
    """Of 14 factors 9 to 13 stayed: those of signal, and one for the noise of each feature, nearly."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((900, 3))
    x, y = (scores @ (rng.standard_normal((3, d)) * (rng.random((3, d)) < 0.4)) for d in (94, 13))
    views = {"wide": 1.0 * (rng.random(x.shape) < 1.0 / (1.0 + np.exp(-x)))}
    views["small"] = y + rng.standard_normal(y.shape)
    for values in views.values():
        values[rng.random(values.shape) < 0.2] = np.nan
    kinds = {"wide": "bernoulli", "small": "gaussian"}
    data = factorflow.write_dataset(tmp_path / "d.zarr", views, kinds)
    assert factorflow.fit(data, SparseGFA(n_factors=14)).scores().shape[1] == 3


@pytest.mark.thorough
def test_a_signal_that_all_factors_share_goes_to_few(tmp_path: Path) -> None:
    """From as many factors as features: no factor of the basis could go alone."""
    posterior = fitted(tmp_path, simulated(20_000, (20,), 41), n_factors=20)
    assert posterior.scores().shape[1] == 3


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_noise_has_no_factors(tmp_path: Path, likelihood: str) -> None:
    """And what has none can be used like any other result."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((60, 40)).astype(np.float32)
    if likelihood == "bernoulli":
        values = (values > 0).astype(np.int8)
    posterior = fitted(tmp_path, {"v": values}, likelihood, n_factors=4)
    assert posterior.scores().shape == (60, 0)
    assert posterior.loadings("v").shape == posterior.inclusion("v").shape == (40, 0)
    assert posterior.variance_explained().size == 0
    expected = np.broadcast_to(values.mean(axis=0), values.shape)
    predicted = posterior.predict("v")["mean"].to_numpy()
    assert (predicted == predicted[0]).all()
    np.testing.assert_allclose(predicted, expected, atol=3 / np.sqrt(60))  # intercepts share a prior
    assert posterior.project(tmp_path / "d.zarr").scores().shape == (60, 0)
    assert "sparse_gfa" in repr(posterior)
    posterior.summary()


@pytest.mark.thorough
def test_no_factor_stands_for_the_noise_of_a_small_view(tmp_path: Path) -> None:
    """Beside a wide view: a Heywood case."""
    views = simulated(250, (1000, 3), 0)
    posterior = fitted(tmp_path, views, n_factors=6)
    assert posterior.scores().shape[1] == 3
    rng = np.random.default_rng([0, 250, 1003])
    scores, shares = rng.standard_normal((250, 3)), []
    for m, size in enumerate((1000, 3)):
        loadings = rng.standard_normal((size, 3)) * (rng.random((size, 3)) < 0.4)
        rng.standard_normal((250, size))
        y, signal = views[f"v{m}"], scores @ loadings.T
        shares.append(1 - ((y - signal - (y - signal).mean(0)) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())
    found = np.asarray(posterior.variance_explained_total()).ravel()
    assert abs(found[1] - shares[1]) < 0.05


def test_few_binary_entries_keep_no_more_than_the_truth(tmp_path: Path) -> None:
    rng = np.random.default_rng([1, 200, 40])
    loadings = rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.4)
    x = rng.standard_normal((200, 3)) @ loadings.T
    values = (rng.random(x.shape) < 1.0 / (1.0 + np.exp(-x))).astype(np.int8)
    assert 1 <= fitted(tmp_path, {"v": values}, "bernoulli", n_factors=5).scores().shape[1] <= 3


@pytest.mark.parametrize("seed", [8, pytest.param(13, marks=pytest.mark.slow)])
def test_counts_keep_a_factor_that_has_still_to_grow(tmp_path: Path, seed: int) -> None:
    """Two of them ended 30 nats below these three factors."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((200, 3))
    signal = scores @ (rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.4)).T
    spread = np.sqrt(0.25 / 0.5)
    rate = 0.5 * np.exp(spread * signal / signal.std() - 0.5 * spread**2)
    posterior = fitted(tmp_path, {"v": rng.poisson(rate).astype(np.float32)}, "poisson", n_factors=8)
    assert posterior.scores().shape[1] == 3


def test_a_slow_stage_ends_only_where_passes_were_taken_further() -> None:
    globals_ = SimpleNamespace(n_factors=3, progress=Progress(), courses=None)
    assert not squarem.needs_longer_step(globals_, squarem.SLOW - 1)  # type: ignore[arg-type]
    assert squarem.needs_longer_step(globals_, squarem.SLOW)  # type: ignore[arg-type]
    for change in ({"progress": SimpleNamespace(snapshot=object())}, {"n_factors": 0}):
        other = SimpleNamespace(**{**vars(globals_), **change})
        assert not squarem.needs_longer_step(other, squarem.SLOW)  # type: ignore[arg-type]


def test_all_factors_stay_where_none_is_to_be_dropped(tmp_path: Path) -> None:
    posterior = fitted(tmp_path, simulated(100, (20,), 0), n_factors=5, drop=0.0, max_iter=12)
    assert posterior.scores().shape[1] == 5


@pytest.mark.thorough
def test_the_last_factor_on_trial_comes_back_as_it_was(tmp_path: Path) -> None:
    """The recorded bound is that of the model at hand meanwhile; all is as it was, kept scores as well."""
    for likelihood in ("gaussian", "poisson"):
        views = simulated(300, (40,), 2)
        if likelihood == "poisson":
            views = {k: np.random.default_rng(0).poisson(np.exp(1.0 + 0.3 * v)) for k, v in views.items()}
        (tmp_path / likelihood).mkdir()
        posterior = fitted(tmp_path / likelihood, views, likelihood, n_factors=5)
        found, bound = (posterior.trace[name].to_numpy() for name in ("n_factors", "objective"))
        sparse = posterior.trace["stage"].to_numpy() == "sparse"
        back = int(np.flatnonzero(np.diff(found[sparse]) > 0)[-1]) + 1
        assert back == sparse.sum() - 1
        assert bound[sparse][back] == bound[sparse][back - 1] == bound[sparse][back - 2]
        (tmp_path / f"{likelihood}2").mkdir()
        cut = fitted(
            tmp_path / f"{likelihood}2", views, likelihood, n_factors=5, max_iter=int(back - 1)
        )  # amid the trial
        np.testing.assert_array_equal(cut.scores(), posterior.scores())
        np.testing.assert_array_equal(cut.loadings("v0"), posterior.loadings("v0"))


@pytest.mark.parametrize("seed", [9800, 9802])
def test_no_factor_stands_for_the_noise_of_one_feature(tmp_path: Path, seed: int) -> None:
    """Of 10 000 samples: its worth was above 0, and the prior of the noise knew of a feature without."""
    rng = np.random.default_rng([seed, 10_000, 20])
    scores = rng.standard_normal((10_000, 3))
    loadings = rng.standard_normal((20, 3)) * (rng.random((20, 3)) < 0.4)
    y = scores @ loadings.T + rng.standard_normal((10_000, 20))
    posterior = fitted(tmp_path, {"v0": y.astype(np.float32)}, n_factors=5)
    assert posterior.scores().shape[1] == 3
    assert (1.0 / posterior.variable("noise_precision_v0").values > 0.8).all()


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_a_run_that_is_killed_amid_a_trial_goes_on_to_the_same_end(tmp_path: Path, likelihood: str) -> None:
    """To the bit, where scores follow from the loadings and where they are kept."""
    y = simulated(300, (40,), 2)["v0"]
    if likelihood == "poisson":
        y = np.random.default_rng(0).poisson(np.exp(1.0 + 0.3 * y)).astype(np.float32)
    data = factorflow.write_dataset(tmp_path / "d", {"v0": y}, {"v0": likelihood}, block_rows=128)
    model = SparseGFA(n_factors=5)
    whole = factorflow.fit(data, model, progress=False)
    number = whole.trace["n_factors"].to_numpy()
    begun = int(np.flatnonzero(np.diff(number) > 0)[-1])  # the last pass of the trial, which fails
    given: dict[str, Any] = {"out": tmp_path / "p", "executor": "threads", "workers": 2, "progress": False}
    seen = 0

    def until_there(event: Any) -> None:
        nonlocal seen
        seen += hasattr(event, "objective")
        if seen == begun:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(data, model, on_event=until_there, checkpoint_every=1, **given)
    on = factorflow.fit(data, model, resume=True, **given)
    for name in ("scores", "loadings_v0", "worth"):
        np.testing.assert_array_equal(on.variable(name), whole.variable(name))
    np.testing.assert_array_equal(on.trace["n_factors"], number)
