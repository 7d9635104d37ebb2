"""Surplus factors: smaller models, judged from the statistics, take over where their bound is higher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import factorflow
from factorflow.kernels.linalg import pack, unpack
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa import features, haste
from factorflow.models.sparse_gfa.features import update_features
from factorflow.models.sparse_gfa.search import proposals, trials
from factorflow.models.sparse_gfa.search.proposals import _principal, propose
from factorflow.models.sparse_gfa.search.surplus import cost_of_loadings, in_common, reliability
from factorflow.models.sparse_gfa.search.trials import judged
from factorflow.models.sparse_gfa.state import expected_weights


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
    """Return the largest relative fall of the bound within a stage."""
    bound, stage = (posterior.trace[name].to_numpy() for name in ("objective", "stage"))
    within = stage[1:] == stage[:-1]
    return float(((bound[:-1] - bound[1:]) / np.abs(bound[1:]))[within].max())


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


@pytest.mark.usefixtures("surplus_factors")
def test_only_a_search_asks_what_factors_explain_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a tenth of a pass, and few passes end with a search."""
    calls: list[str] = []

    def counted(module: Any, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **named: calls.append(name) or function(*a, **named))

    for module, name in ((features, "explained_alone"), (trials, "propose"), (trials, "tried")):
        counted(module, name)
    monkeypatch.setattr("factorflow.models.sparse_gfa.root.tried", trials.tried)
    fitted(tmp_path, simulated(300, (20,), 1), n_factors=5, max_iter=20)
    searches, asked, passes = (calls.count(name) for name in ("propose", "explained_alone", "tried"))
    assert 0 < searches <= asked < passes / 2


def test_what_was_looked_at_in_vain_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a model has settled, a second search would find what the first did."""
    gains: list[float] = []
    function = trials.tried

    def noted(settings: Any, before: Any, now: Any, *rest: Any, sparse: bool) -> Any:
        new = function(settings, before, now, *rest, sparse=sparse)
        if sparse and before.trial is None and new.trial is not None and before.refused:
            gains.append(now[2] - before.sought)
        return new

    monkeypatch.setattr("factorflow.models.sparse_gfa.root.tried", noted)
    posterior = fitted(tmp_path, simulated(1000, (20,), 1), n_factors=3, tol=1e-12, max_iter=40)
    assert posterior.scores().shape[1] == 3
    assert len(gains) == 1
    assert gains[0] > 0.0
    monkeypatch.setattr(trials, "_SAME", 0.0)
    (tmp_path / "again").mkdir()
    fitted(tmp_path / "again", simulated(1000, (20,), 1), n_factors=3, tol=1e-12, max_iter=40)
    assert 0.0 < min(gains) < 1.0


@pytest.mark.parametrize("seed", [1, 2])
def test_factors_that_may_be_noise_are_looked_at_however_much_they_explain(tmp_path: Path, seed: int) -> None:
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


def test_passes_over_parts_of_the_data_find_a_small_view_to_be_noise(tmp_path: Path) -> None:
    """Smaller models are judged by all blocks: by statistics alone all twelve stayed."""
    views = simulated(1100, (371, 11), 8)
    for number, y in enumerate(views.values()):
        y[np.random.default_rng(number).random(y.shape) < 0.2] = np.nan
    data = factorflow.write_dataset(tmp_path / "d.zarr", views, block_rows=256)
    posterior = factorflow.fit(data, SparseGFA(n_factors=12, inference="incremental"))
    assert posterior.scores().shape[1] == 3
    assert falls(posterior) < 1e-9


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


def test_what_features_have_in_common() -> None:
    """The directions proposed are the principal ones of the correlations, but for noise."""
    rng = np.random.default_rng(0)
    mean, precision = rng.normal(size=(9, 4)), rng.gamma(3.0, size=9)
    mean[:, 3] = 0.02 * np.eye(9)[4]
    root = rng.normal(size=(4, 4))
    second = root @ root.T
    common = in_common(mean, precision, second)
    covariance = mean @ second @ mean.T
    size = np.sqrt(np.diag(covariance) + 1.0 / precision)
    values, vectors = np.linalg.eigh(covariance / np.outer(size, size))
    picks = _principal(second, common)
    assert [pick.shape[1] for pick in picks] == sorted({int((values > v).sum()) for v in (1.0, 0.5, 0.25)})
    for pick in picks:
        loadings = mean @ pick / size[:, None]
        expected = vectors[:, ::-1][:, : pick.shape[1]] * np.sqrt(values[::-1][: pick.shape[1]])
        np.testing.assert_allclose(np.abs(loadings), np.abs(expected), atol=1e-10)


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
    """Smaller models that took over in the warm-up ended 30 nats below these three factors."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((200, 3))
    signal = scores @ (rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.4)).T
    slope = -np.expm1(-0.5)
    spread = np.sqrt(0.5 * 0.25) / slope
    rate = np.logaddexp(0.0, np.log(np.expm1(0.5)) + spread * signal / signal.std())
    posterior = fitted(tmp_path, {"v": rng.poisson(rate).astype(np.float32)}, "poisson", n_factors=8)
    assert posterior.scores().shape[1] == 3


def test_the_warm_up_spares_what_spikes_may_spare(tools: Any) -> None:
    """All that loadings cost."""
    cost = np.array([3.0, 8.0])
    for likelihood in ("gaussian", "bernoulli"):
        settings = tools.Problem((likelihood,)).settings
        ((name, n_features),) = ((view.name, view.n_features) for view in settings.views)
        settings = replace(settings, n_rows=n_features)
        sums: dict[str, Any] = {name: SimpleNamespace(cost=cost)}
        np.testing.assert_array_equal(trials._spared(settings, sums, 2), cost)
        # where samples are many, a Gaussian factor must explain more than one of noise does
        many = replace(settings, n_rows=16 * n_features)
        less = 8.0 * n_features * (0.5 - np.log(1.5))
        expected = np.maximum(cost - less, 0.0) if likelihood == "gaussian" else cost
        np.testing.assert_allclose(trials._spared(many, sums, 2), expected)
        sums = {name: SimpleNamespace(cost=None)}
        np.testing.assert_array_equal(trials._spared(settings, sums, 2), np.zeros(2))


def test_loose_bounds_hide_less_where_scores_are_hardly_known(tools: Any) -> None:
    """A factor of signal s explains N / 2 (s - log(1 + s)): more signal adds the less, the less s is."""
    signal = np.array([0.2, 1.0, 9.0])
    stats = SimpleNamespace(covariance=8.0 * pack(np.diag(1.0 / (1.0 + signal))), rows=np.array([5.0, 3.0]))
    settings = tools.Problem(("bernoulli", "gaussian")).settings
    known = reliability(settings, SimpleNamespace(n_factors=3), stats)
    step, n_rows = 1e-6, 100.0
    worth = lambda s: 0.5 * n_rows * (s - np.log1p(s))  # noqa: E731
    gain = (worth((1.0 + step) * signal) - worth(signal)) / step
    now = {view.name: SimpleNamespace(likelihood=0.0) for view in settings.views}
    for i, s in enumerate(signal):
        fewer = {name: SimpleNamespace(likelihood=-0.5 * n_rows * s) for name in now}
        np.testing.assert_allclose(trials._slack(settings, now, fewer, known[[i]]), 0.4 * gain[i], rtol=1e-5)
    fewer = {name: SimpleNamespace(likelihood=-1.0) for name in now}
    np.testing.assert_allclose(trials._slack(settings, now, fewer, known), 0.4 * 0.9)  # the largest counts
    assert trials._slack(settings, now, fewer, known[:0]) == 0.0
    assert trials._slack(settings, fewer, now, known) == 0.0


def test_the_nearest_models_go_on_from_the_first_look(tools: Any) -> None:
    """By what they fall short for each factor less, and the one that falls least short of all."""
    settings = replace(tools.Problem(("gaussian",)).settings, n_rows=10)
    short = [30.0, 25.0, 60.0, 40.0, 28.0]
    models = [SimpleNamespace(pick=np.zeros((5, left))) for left in (4, 4, 3, 0, 4)]
    trial = SimpleNamespace(models=models, looks=0)
    assert trials._ahead(settings, trial, short) == [1, 3]  # 40 / 5 and 25
    assert trials._ahead(settings, trial, [1.0, 25.0, 0.5, 1.5, 28.0]) == [2, 3]
    assert trials._ahead(settings, trial, [9.0, 2.0, 3.0, 3.5, 1.9]) == [2, 3, 4]
    assert trials._ahead(settings, SimpleNamespace(models=models, looks=1), short) == [0, 1, 2, 3, 4]
    assert trials._ahead(replace(settings, n_rows=10**6), trial, short) == [0, 1, 2, 3, 4]


def test_looks_are_given_to_models_that_gain() -> None:
    models = (SimpleNamespace(short=100.0),)
    for looks, short, expected in ((0, 1e9, True), (1, 95.0, False), (1, 93.0, True), (2, 93.0, False)):
        assert trials._hopeful(SimpleNamespace(models=models, looks=looks), 0, short, 8) is expected
    assert trials._hopeful(SimpleNamespace(models=models, looks=2), 0, 88.0, 8)
    for looks, short, most, expected in ((8, 74.0, 8, False), (8, 74.0, 16, True), (8, 76.0, 16, False)):
        found = trials._hopeful(SimpleNamespace(models=models, looks=looks), 0, short, most)
        assert found is expected


def test_a_factor_must_explain_more_than_noise_would_give() -> None:
    """The best factor of independent features gains about as much as is allowed for, in truth."""
    rng, n, d = np.random.default_rng(0), 4000, 20
    gained = []
    for _ in range(5):
        largest = np.linalg.eigvalsh(np.corrcoef(rng.standard_normal((n, d)).T))[-1] - 1.0
        gained.append(0.5 * n * (largest - np.log1p(largest)))
    settings = SimpleNamespace(
        views=(SimpleNamespace(bound="gaussian", n_features=d),), n_rows=n, many_samples=True
    )
    assert trials._of_noise(settings) == pytest.approx(np.mean(gained), rel=0.25)  # type: ignore[arg-type]
    loose = SimpleNamespace(
        **{**vars(settings), "views": (SimpleNamespace(bound="jaakkola", n_features=20),)}
    )
    assert trials._of_noise(loose) == 0.0  # type: ignore[arg-type]
    few = SimpleNamespace(**{**vars(settings), "many_samples": False})
    assert trials._of_noise(few) == 0.0  # type: ignore[arg-type]


def test_factors_of_a_small_view_may_be_noise_beside_any_other(tools: Any) -> None:
    """Which explain much more than they cost, and would not be looked at."""
    problem = tools.Problem(("gaussian", "bernoulli"))
    settings, globals_ = problem.settings, problem.globals_
    (small, wide), told = (view.name for view in settings.views), np.ones((20, 3))
    weights = {
        name: replace(
            globals_.weights[name], mean=told[: len(globals_.weights[name].mean)] * of, inclusion=None
        )
        for name, of in ((small, np.array([1.0, 0.0, 0.1])), (wide, np.array([0.0, 1.0, 1.0])))
    }
    with_weights = replace(globals_, weights=weights)
    size = settings.views[0].n_features
    for n_rows, expected in ((11 * size, [True, False, False]), (9 * size, [False] * 3)):
        found = proposals._may_be_noise(replace(settings, n_rows=n_rows), with_weights)
        assert found.tolist() == expected


def test_a_search_in_vain_waits_for_what_its_best_model_fell_short_of() -> None:
    """But where factors may stand for noise, or nothing is known of it, for a nat."""
    for many, small, short, expected in (
        (False, (), 40.0, 40.0),
        (False, (), 0.2, 1.0),
        (False, (), np.inf, 1.0),
        (True, (), 40.0, 1.0),
        (False, ("a",), 40.0, 1.0),
    ):
        settings = SimpleNamespace(many_samples=many, small_views=small)
        assert trials._gain_awaited(settings, short) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_many_samples_take_what_is_left_for_noise(
    tools: Any, monkeypatch: pytest.MonkeyPatch, sparse: bool
) -> None:
    """Loadings regressed on the scores that stay, and the noise of the rest, feature by feature."""
    problem = tools.Problem(("gaussian", "bernoulli"))
    for _ in range(3):
        problem.iterate()
    if sparse:
        problem.enter_sparse()
        problem.iterate()
    settings = replace(problem.settings, tries_fewer=True)
    globals_, (_, _, added) = problem.globals_, problem.map()
    weak = np.zeros(3), np.full(3, 1e3), None
    n_features, n_rows = sum(view.n_features for view in settings.views), float(added.rows.sum())
    monkeypatch.setattr(proposals, "_may_be_noise", lambda *_: np.zeros(3, bool))
    usual = propose(settings, globals_, added, *weak, sparse=True)
    many = replace(settings, n_rows=11 * n_features)
    trial = propose(many, globals_, added, *weak, sparse=True)
    assert usual is not None
    assert trial is not None
    covariance = np.asarray(unpack(added.covariance, 3)) / n_rows
    scores = unpack(added.moments, 4)[:3, :3] / n_rows  # E zz'
    said = np.linalg.inv(scores - covariance)
    model = trial.models[0]
    (plain,) = (m for m in usual.models if np.array_equal(m.pick, model.pick))
    pick, evidence, reading = model.pick, plain.evidence.copy(), plain.reading.copy()
    name = settings.views[0].name
    mean, spread = expected_weights(globals_.weights[name])
    precision = settings.precision(name, globals_.weights[name])[:, 0]
    shown = globals_.fixed[name].count[:, 0] / many.n_rows
    inner = pick.T @ scores @ pick
    for w, v, f, o in zip(mean, spread, precision, shown, strict=True):
        own = np.linalg.solve(inner, pick.T @ scores @ w)
        after = 1.0 / (1.0 / f + w @ scores @ w - own @ inner @ own)
        assert after < f
        full = np.diag(v) if len(v) == 3 else unpack(v, 3)
        kept = pick.T @ w
        evidence += o * (after * np.outer(own, own) - f * np.outer(kept, kept))
        evidence += o * (after - f) * pick.T @ full @ pick
        reading += o * np.outer(after * own - f * kept, w @ scores @ said)
    np.testing.assert_allclose(model.evidence, evidence, rtol=1e-9)
    np.testing.assert_allclose(model.reading, reading, rtol=1e-5)


def test_a_slow_stage_ends_only_where_passes_were_taken_further() -> None:
    settings = SimpleNamespace(hastens=True, is_small_binary=False)
    globals_ = SimpleNamespace(held=None, n_factors=3, bar=None)
    assert not haste.unfinished(settings, globals_, haste.SLOW - 1)  # type: ignore[arg-type]
    assert haste.unfinished(settings, globals_, haste.SLOW)  # type: ignore[arg-type]
    for change in ({"bar": -10.0}, {"held": object()}, {"n_factors": 0}):
        other = SimpleNamespace(**{**vars(globals_), **change})
        assert not haste.unfinished(settings, other, haste.SLOW)  # type: ignore[arg-type]
    assert not haste.unfinished(SimpleNamespace(hastens=False, is_small_binary=False), globals_, haste.SLOW)  # type: ignore[arg-type]
    few = SimpleNamespace(hastens=True, is_small_binary=True)  # whose intercepts alone may be slow
    none = SimpleNamespace(**{**vars(globals_), "n_factors": 0})
    assert haste.unfinished(few, none, haste.SLOW)  # type: ignore[arg-type]


def test_all_factors_stay_where_none_is_to_be_dropped(tmp_path: Path) -> None:
    posterior = fitted(tmp_path, simulated(100, (20,), 0), n_factors=5, drop=0.0, max_iter=12)
    assert posterior.scores().shape[1] == 5


@pytest.mark.parametrize(
    ("likelihood", "cut"), [("gaussian", "samples"), ("gaussian", "features"), ("bernoulli", "samples")]
)
def test_a_smaller_model_that_is_not_better_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, likelihood: str, cut: str
) -> None:
    """However wrong the judgement: the recorded bound never falls, and no factor is lost."""
    views = simulated(300, (14, 12), 0)
    if likelihood == "bernoulli":
        views = {name: (values > 0).astype(np.int8) for name, values in views.items()}
    else:
        views["v0"][np.random.default_rng(1).random(views["v0"].shape) < 0.2] = np.nan
    options: dict[str, Any] = {"n_factors": 3, "max_iter": 12, "warmup_iter": 12, "cut": cut, "precision": 64}
    known = trials.judged
    monkeypatch.setattr(trials, "judged", lambda *a, **b: (known(*a, **b)[0], 1e9, known(*a, **b)[2]))
    posterior = fitted(tmp_path, views, likelihood, **options)
    found = posterior.trace["n_factors"].to_numpy()
    assert found.min() < 3  # was tried
    assert found[-1] == 3
    assert falls(posterior) <= 0.0


def test_what_loadings_cost() -> None:
    mean, variance, alpha = np.array([[0.3], [-1.0]]), np.array([[0.2], [0.5]]), np.array([1.7])
    w = np.linspace(-12.0, 12.0, 200_001)
    exact = 0.0
    for m, v in zip(mean[:, 0], variance[:, 0], strict=True):
        q = stats.norm(m, np.sqrt(v))
        exact += np.trapezoid(q.pdf(w) * (q.logpdf(w) - stats.norm(0.0, 1.7**-0.5).logpdf(w)), w)
    assert cost_of_loadings(mean, variance, alpha) == pytest.approx(exact, rel=1e-8)


def test_the_bound_of_a_smaller_model_is_one(tools: Any) -> None:
    """Of complete Gaussian entries: the same features and the scores that are said give the same bound."""
    problem = tools.Problem(("gaussian", "gaussian"))
    for _ in range(3):
        problem.iterate()
    problem.enter_sparse()
    for _ in range(4):
        problem.iterate()
    problem.settings = replace(problem.settings, tries_fewer=True)
    _, local, added = problem.map()
    trial = propose(
        problem.settings, problem.globals_, added, np.zeros(3), np.full(3, 1e3), None, sparse=True
    )
    assert trial is not None
    for model in trial.models:
        before = replace(problem.globals_, trial=replace(trial, models=(model,), looks=1, final=True))
        weights, sums = {}, {}
        for view in problem.settings.views:
            index = range(view.n_features)
            step = problem.step
            found = update_features(problem.settings, view.name, index, before, added, step, sparse=True)
            weights[view.name], sums[view.name] = found[0].fewer, found[1]
        after, bound, _ = judged(problem.settings, before, added, sums, 0, sparse=True)
        smaller = replace(local, **_scores(problem, added, model, local))
        direct = problem.bound(smaller, replace(after, weights=weights, transform=None))
        assert bound == pytest.approx(direct, rel=1e-10)


def _scores(problem: Any, added: Any, model: Any, local: Any) -> dict[str, Any]:
    from factorflow.kernels.linalg import pack
    from factorflow.models.sparse_gfa.search.surplus import fewer_scores

    scores = fewer_scores(problem.settings, problem.globals_, added, model)
    return {"mean": local.mean @ scores.image.T, "variance": pack(scores.covariance)[None]}


def test_what_a_smaller_model_does_without() -> None:
    """A factor that is left out, and of two that are joined the one that weighs less."""
    left_out = SimpleNamespace(pick=np.eye(3)[:, [0, 2]])
    joined = SimpleNamespace(pick=np.array([[0.6, 0.0], [0.8, 0.0], [0.0, 1.0]]))
    assert list(trials._gone(left_out)) == [1]  # type: ignore[arg-type]
    assert list(trials._gone(joined)) == [0]  # type: ignore[arg-type]
