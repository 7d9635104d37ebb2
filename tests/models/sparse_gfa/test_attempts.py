"""Smaller models that take passes of their own, where many samples have entries missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

import factorflow
from factorflow.kernels.linalg import pack, unpack
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa import haste
from factorflow.models.sparse_gfa.model import UpdateSweep
from factorflow.models.sparse_gfa.search import attempts, surplus, trials
from factorflow.models.sparse_gfa.search.models import Attempt, Loose, Smaller, Trial
from factorflow.models.sparse_gfa.state import expected_weights


def written(path: Path, n_rows: int, missing: float, n_factors: int, seed: int = 0) -> Any:
    """Return a dataset of twenty Gaussian features, which some factors load on, entries missing."""
    rng = np.random.default_rng([seed, n_rows, n_factors])
    scores = rng.standard_normal((n_rows, n_factors))
    loadings = rng.standard_normal((20, n_factors)) * (rng.random((20, n_factors)) < 0.4)
    values = (scores @ loadings.T + rng.standard_normal((n_rows, 20))).astype(np.float32)
    values[rng.random(values.shape) < missing] = np.nan
    return factorflow.write_dataset(path, {"v": values}, {"v": "gaussian"}, block_rows=512)


def counted(path: Path, seed: int) -> Any:
    """Return a dataset of counts of mean 20, of variance r + r^2 / 2, a fifth of it of three factors."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((300, 3))
    loadings = rng.standard_normal((60, 3)) * (rng.random((60, 3)) < 0.4)
    x = scores @ loadings.T
    rate = np.logaddexp(0.0, 20.0 + np.sqrt(220.0 * 0.25) * x / x.std())
    values = rng.poisson(rate * rng.gamma(2.0, 0.5, rate.shape)).astype(np.float32)
    return factorflow.write_dataset(path, {"v": values}, {"v": "poisson"}, block_rows=128)


def mixed(path: Path) -> Any:
    """Return 2000 samples of measurements, counts and binary features of three factors, a fifth missing."""
    rng = np.random.default_rng(0)
    scores, views = rng.standard_normal((2000, 3)), {}
    for kind, size in (("gaussian", 20), ("poisson", 10), ("bernoulli", 10)):
        x = scores @ (rng.standard_normal((size, 3)) * (rng.random((size, 3)) < 0.4)).T
        if kind == "gaussian":
            y = x + rng.standard_normal(x.shape)
        elif kind == "poisson":
            y = rng.poisson(np.logaddexp(0.0, 5.0 + 1.1 * x / x.std())).astype(float)
        else:
            y = (rng.random(x.shape) < 1.0 / (1.0 + np.exp(-x))).astype(float)
        views[kind] = np.where(rng.random(x.shape) < 0.2, np.nan, y).astype(np.float32)
    return factorflow.write_dataset(path, views, dict(zip(views, views, strict=True)), block_rows=512)


COUNTS: dict[str, Any] = {"n_factors": 8, "counts": "negative_binomial"}


def recorded(posterior: Any) -> tuple[Any, Any, Any]:
    """Return bound, number of factors and stage of each pass."""
    return tuple(posterior.trace[name].to_numpy() for name in ("objective", "n_factors", "stage"))


@pytest.mark.usefixtures("surplus_factors")
@pytest.mark.parametrize(
    ("n_rows", "missing", "n_factors"),
    [(2000, 0.2, 3), (5000, 0.2, 0), pytest.param(10_000, 0.5, 3, marks=pytest.mark.slow)],
)
def test_the_true_number_is_found_where_entries_are_missing(
    tmp_path: Path, n_rows: int, missing: float, n_factors: int
) -> None:
    """And the recorded bound does not fall while others are tried."""
    data = written(tmp_path / "d.zarr", n_rows, missing, n_factors, seed=0 if n_factors else 4)
    posterior = factorflow.fit(data, SparseGFA(n_factors=8))
    assert posterior.scores().shape[1] == n_factors
    bound, number, stage = recorded(posterior)
    assert (number[1:] > number[:-1]).any()  # one was tried, and given up
    within = stage[1:] == stage[:-1]
    assert ((bound[:-1] - bound[1:]) / np.abs(bound[1:]))[within].max() < 1e-9


@pytest.mark.usefixtures("surplus_factors")
@pytest.mark.parametrize("counts", [False, True])
def test_a_run_that_ends_amid_an_attempt_has_the_factors_it_had(tmp_path: Path, counts: bool) -> None:
    """And resumed there, a run ends as if it had not been cut, to the bit; also where scores are kept."""
    data, model = written(tmp_path / "d.zarr", 2000, 0.2, 3), SparseGFA(n_factors=8)
    if counts:
        data, model = counted(tmp_path / "c.zarr", 5001), SparseGFA(**COUNTS)
    whole = factorflow.fit(data, model)
    bound, number, stage = recorded(whole)
    begins = (stage[:-1] == "sparse") & (number[1:] < number[:-1])
    amid = int(np.flatnonzero(begins)[0]) + 2
    cut = factorflow.fit(data, model, max_iter=amid)
    assert cut.scores().shape[1] == number[amid - 2]
    assert cut.summary()["objective"] == pytest.approx(bound[amid - 1], rel=1e-12)
    given: dict[str, Any] = {"out": tmp_path / "p.zarr", "executor": "threads", "workers": 2}
    seen = 0

    def until_there(event: Any) -> None:
        nonlocal seen
        seen += hasattr(event, "objective")
        if seen == amid:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(data, model, progress=False, on_event=until_there, checkpoint_every=1, **given)
    on = factorflow.fit(data, model, progress=False, resume=True, **given)
    xr.testing.assert_equal(on.tree["variational"].to_dataset(), whole.tree["variational"].to_dataset())


@pytest.mark.usefixtures("surplus_factors")
@pytest.mark.parametrize("seed", [5001, 5008])
def test_the_true_number_is_found_of_dispersed_counts(tmp_path: Path, seed: int) -> None:
    """Where the second look at a smaller model that the first one found better says that it is not."""
    posterior = factorflow.fit(counted(tmp_path / "d.zarr", seed), SparseGFA(**COUNTS))
    assert posterior.scores().shape[1] == 3
    bound, number, stage = recorded(posterior)
    assert number[0] > 3
    assert np.isfinite(bound[stage == "sparse"][1:]).all()


@pytest.mark.slow
def test_the_true_number_is_found_from_many_factors_of_mixed_views(tmp_path: Path) -> None:
    """Some of which come to stand for the noise of a feature, which statistics do not tell."""
    posterior = factorflow.fit(mixed(tmp_path / "d.zarr"), SparseGFA(n_factors=30))
    assert posterior.scores().shape[1] == 3
    assert len(posterior.trace["objective"]) < 150


def test_only_many_samples_with_entries_missing_take_passes() -> None:
    """Or with noise of their own; of binary views, of more than a few entries, after a search in vain."""
    views = (SimpleNamespace(bound="gaussian"),)
    settings = SimpleNamespace(
        many_samples=True,
        small_views=(),
        feature_noise=True,
        sample_noise=False,
        samples_parts=False,
        n_rows=50,
        views=views,
    )
    some, all_ = (SimpleNamespace(count=np.array([[50.0], [n]])) for n in (49.0, 50.0))
    globals_ = SimpleNamespace(held=None, fixed={"a": all_, "b": some}, refused=0)
    assert attempts.takes_passes(settings, globals_)  # type: ignore[arg-type]
    complete = SimpleNamespace(held=None, fixed={"a": all_}, refused=1)
    assert not attempts.takes_passes(settings, complete)  # type: ignore[arg-type]
    differ = SimpleNamespace(**{**vars(settings), "sample_noise": True})
    assert attempts.takes_passes(differ, complete)  # type: ignore[arg-type]
    counts = (SimpleNamespace(bound="gaussian"), SimpleNamespace(bound="local"))
    for change in (
        {"many_samples": False},
        {"feature_noise": False},
        {"samples_parts": True},
        {"views": counts},
    ):
        other = SimpleNamespace(**{**vars(settings), **change})
        assert not attempts.takes_passes(other, globals_)  # type: ignore[arg-type]
    small = SimpleNamespace(**{**vars(settings), "many_samples": False, "small_views": ("a",)})
    assert attempts.takes_passes(small, globals_)  # type: ignore[arg-type]
    held = SimpleNamespace(**{**vars(globals_), "held": object()})
    assert not attempts.takes_passes(settings, held)  # type: ignore[arg-type]
    binary = SimpleNamespace(
        **{**vars(settings), "views": (SimpleNamespace(bound="jaakkola"),), "n_rows": 80_000}
    )
    for entries, refused, expected in (
        (149_999, 1, False),
        (150_000, 1, True),
        (160_000, 0, False),
        (160_000, 1, True),
    ):
        count = SimpleNamespace(count=np.array([[80_000.0], [entries - 80_000.0]]))
        found = SimpleNamespace(held=None, fixed={"a": count}, refused=refused)
        assert attempts.takes_passes(binary, found) is expected  # type: ignore[arg-type]


def test_all_blocks_judge_a_smaller_model() -> None:
    """In passes over parts of them, too; as when stored scores are to follow a change of basis."""
    plain = {"transform": None, "restored": False, "attempt": None}
    sweep: Any = SimpleNamespace()
    assert not UpdateSweep.takes_all(sweep, SimpleNamespace(**plain))  # type: ignore[arg-type]
    for change in ({"transform": np.eye(2)}, {"restored": True}, {"attempt": object()}):
        assert UpdateSweep.takes_all(sweep, SimpleNamespace(**plain | change))  # type: ignore[arg-type]


def _model(pick: Any) -> Smaller:
    return Smaller(pick, pick.T, pick.T @ pick, {})


def test_which_models_are_tried() -> None:
    """Those of fewest factors, but not of fewer than the features have in common; each single one in turn."""
    eye = np.eye(6)
    single = [np.delete(eye, i, axis=1) for i in range(3)]
    half, none = eye[:, :3], eye[:, :0]
    trial = Trial(tuple(_model(pick) for pick in (*single, half, none)))
    assert [p.shape[1] for p in attempts.chosen(trial, 0)] == [3, 5]
    for refused in range(4):
        np.testing.assert_array_equal(attempts.chosen(trial, refused)[-1], single[refused % 3])
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    trial = Trial(tuple(_model(pick) for pick in (*single, eye[:, :1], half, turned[:, :2], turned[:, :3])))
    found = attempts.chosen(trial, 0)
    assert [p.shape[1] for p in found] == [2, 3, 5]
    np.testing.assert_array_equal(found[1], turned[:, :3])


NOTHING = Loose(0.0, 0.0, np.zeros(4))
"""No loose bounds."""


def _run(
    objectives: list[float],
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    stateful: bool = False,
    tangent: bool = False,
    lost: float = 0.0,
) -> list[Any]:
    """Return the globals after each pass of smaller models, and what is recorded."""
    monkeypatch.setattr(attempts, "_smaller", lambda settings, globals_, pick: replace_(globals_, pick=pick))
    monkeypatch.setattr(attempts, "replace", replace_)
    settings = SimpleNamespace(stateful=stateful or tangent, tangent=tangent, only_binary=False)
    old = SimpleNamespace(name="old", refused=2, n_factors=4)
    now: Any = attempts._next(settings, old, -100.0, attempt)  # type: ignore[arg-type]
    after: list[Any] = []
    for objective in objectives:
        new = SimpleNamespace(name="new", pick=now.pick, earlier=None, bar=None, attempt=None)
        now, seen = attempts.continued(settings, now, new, objective, -70.0, lost)  # type: ignore[arg-type]
        after.append((now, seen))
        if getattr(now, "bar", None) is None:
            break
    return after


def replace_(thing: Any, **changes: Any) -> Any:
    """Replace fields of a dataclass or a namespace."""
    if isinstance(thing, Attempt):
        return replace(thing, **changes)
    return SimpleNamespace(**{**vars(thing), **changes})


def test_of_models_that_are_known_only_about_the_best_are_tried() -> None:
    """Those that seem better by the most; else, of those that may be, those least short for each factor."""
    eye = np.eye(6)
    trial = Trial(tuple(_model(pick) for pick in (eye[:, :5], eye[:, :4], eye[:, :3], eye[:, :1])))
    for short, expected in (
        ([-10.0, -15.0, -14.0, 3.0], [4, 3, 5]),
        ([9.0, 10.0, 12.0, 40.0], [3, 4, 5]),
        ([19.0, 21.0, 27.0, 40.0], [5]),
        ([21.0, 25.0, 27.0, float("inf")], []),
    ):
        assert [
            model.pick.shape[1] for model in attempts.promising(trial, short, [20.0, 20.0, 20.0, 20.0])
        ] == expected


def test_factors_of_one_feature_may_hide_more() -> None:
    """All of them: a model is tried however short it falls. Theirs is the larger part of sum_d f_d w_d^2."""
    precision = {"a": np.array([1.0, 4.0]), "b": np.array([1.0, 1.0])}
    squares = {
        "a": np.array([[1.0, 0.0, 1.0, 3.0], [0.0, 0.25, 0.25, 0.25]]),
        "b": np.array([[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]),
    }
    weights = {n: SimpleNamespace(mean=s**0.5, variance=0.0 * s, inclusion=None) for n, s in squares.items()}
    settings: Any = SimpleNamespace(information=lambda name, weights: precision[name])
    globals_: Any = SimpleNamespace(weights=weights)
    np.testing.assert_array_equal(surplus.of_one_feature(settings, globals_), [True, False, False, True])
    eye = np.eye(4)
    trial = Trial((_model(eye[:, :3]), _model(eye[:, 1:])))
    tried = attempts.promising(trial, [500.0, 400.0], [float("inf"), 20.0])
    assert [bool(model.pick[3].any()) for model in tried] == [False]


def test_of_many_samples_a_fourth_search_lets_passes_decide() -> None:
    """Without factors of one feature, however much is known of all entries."""
    views = (SimpleNamespace(bound="gaussian"),)
    settings: Any = SimpleNamespace(
        many_samples=True,
        small_views=(),
        feature_noise=True,
        sample_noise=False,
        samples_parts=False,
        n_rows=50,
        views=views,
    )
    for refused, expected in ((2, False), (3, True)):
        globals_: Any = SimpleNamespace(held=None, refused=refused)
        assert attempts.settles_late(settings, globals_) is expected
    for change in (
        {"many_samples": False},
        {"samples_parts": True},
        {"views": (SimpleNamespace(bound="jaakkola"),)},
    ):
        other: Any = SimpleNamespace(**{**vars(settings), **change})
        assert not attempts.settles_late(other, globals_)


def test_what_the_average_covariance_hides() -> None:
    """Nothing, if samples know their scores to the same degree; else half the logarithms of determinants."""
    rng = np.random.default_rng(0)
    roots = rng.standard_normal((7, 3, 3))
    covariances = np.array([root @ root.T for root in roots])
    for some in (covariances, covariances[[0] * 7]):
        entropy = 0.5 * sum(np.linalg.slogdet(c)[1] + 3.0 for c in some)
        stats: Any = SimpleNamespace(
            rows=np.array([4.0, 3.0]), covariance=pack(some.sum(axis=0)), entropy=entropy
        )
        hidden = 3.5 * np.linalg.slogdet(some.mean(axis=0))[1] - 0.5 * np.linalg.slogdet(some)[1].sum()
        assert surplus.hidden_by_average(stats, 3) == pytest.approx(hidden, abs=1e-9)
    assert hidden < 1e-9


def test_the_likelihood_that_loose_bounds_lose_too_little() -> None:
    """That of tangents is not in the sums over features, which go with pseudo-data that passes move."""
    bounds = {"a": ("gaussian", False), "b": ("jaakkola", False), "c": ("local", True)}
    views = [SimpleNamespace(name=n, bound=bound, tangent=tangent) for n, (bound, tangent) in bounds.items()]
    sums: Any = {name: SimpleNamespace(likelihood=-1000.0) for name in bounds}
    for many, known in ((False, 0.0), (True, 400.0)):  # what Jaakkola's bound loses is known of many samples
        for number, expected in ((1, 0.0), (2, known - 400.0), (3, known - 460.0)):
            settings: Any = SimpleNamespace(views=views[:number], many_samples=many)
            stats: Any = SimpleNamespace(reached=-300.0 if number == 3 else 0.0, lost=20.0 if many else 0.0)
            likelihood, lost = trials._loose(settings, sums, stats)
            assert likelihood == pytest.approx(expected)
            assert lost == (30.0 if many else 0.0)


def test_what_jaakkolas_bound_loses_of_a_factor_counts_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides what else is asked, but not of several factors that a warm-up does without."""
    one, two = np.eye(4)[:, :3], np.eye(4)[:, :2]
    for pick, margin, needed in ((one, 0.0, 12.0), (one, 5.0, 17.0), (two, 0.0, 12.0), (two, 5.0, 5.0)):
        attempt = Attempt((pick,), (margin,), -100.0, 0.0, Loose(-70.0, 20.0, np.ones(4)))
        for more, name in ((0.1, "new"), (-0.1, "old")):
            after = _run([-100.0 + needed + more] * 2, attempt, monkeypatch, lost=8.0)
            assert after[-1][0].name == name


def test_no_smaller_model_is_tried_while_passes_gain_more_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An eighth of what all loadings cost says how much a model may be better by."""
    for name, value in {"searches": True, "takes_passes": True, "_proposed": "trial", "_at_once": []}.items():
        monkeypatch.setattr(trials, name, lambda *a, value=value, **named: value)
    monkeypatch.setattr(trials, "_with_trial", lambda new, trial: SimpleNamespace(trial=trial))
    monkeypatch.setattr(trials, "replace", replace_)
    settings: Any = SimpleNamespace(n_rows=1000, views=[SimpleNamespace(n_features=n) for n in (6, 4)])
    before: Any = SimpleNamespace(trial=None, n_factors=3, objective=-100.0, refused=0)
    for factor, tried in ((0.99, True), (1.01, False)):
        objective = -100.0 + factor * 15.0 * np.log(1000) / 8
        new: Any = SimpleNamespace(name="new", weights={})
        after: Any = trials.tried(settings, before, (new, 0.0, objective), {}, None, 3, sparse=True)  # type: ignore[arg-type]
        assert (getattr(after, "trial", None) == "trial") is tried


@pytest.mark.parametrize("later", [False, True])
def test_after_a_smaller_model_a_stage_does_not_end_before_the_next_search(
    monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """Another may follow; of few binary entries that is judged later."""
    monkeypatch.setattr(trials, "replace", replace_)
    monkeypatch.setattr(trials, "judged_later", lambda *a: later)
    old = SimpleNamespace(n_factors=4, held=None, refused=1)
    before: Any = SimpleNamespace(bar=-100.0, attempt=None, earlier=old, n_factors=3, refused=1)
    new: Any = SimpleNamespace(name="new")
    for objective, owed in ((-99.0, not later), (-101.0, None)):
        after: Any = trials.checked(None, before, new, objective, {}, None)[0]  # type: ignore[arg-type]
        assert getattr(after, "owed", None) is owed


def test_where_the_bound_is_known_a_pass_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass without one is no matter; a model that is ahead goes on at once, one that is nearly ends all."""
    picks = (np.eye(4)[:, :2], np.eye(4)[:, :3])
    attempt = Attempt(picks, (0.0, 0.0), -100.0, 6.0, NOTHING)
    after = _run([float("nan"), -93.9], attempt, monkeypatch, tangent=True)
    assert [seen for _, seen in after] == [-100.0, -93.9]
    assert (after[-1][0].pick.shape[1], after[-1][0].restored, after[-1][0].owed) == (2, False, True)
    given_up = _run([float("nan"), -94.1, -94.1], attempt, monkeypatch, tangent=True)[-1][0]
    assert (given_up.name, given_up.refused, given_up.owed) == ("old", 2, True)
    others = _run([float("nan"), -300.0, -300.0], attempt, monkeypatch, tangent=True)[-1][0]
    assert (others.pick.shape[1], others.bar) == (3, -100.0)


def test_a_model_that_falls_behind_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two passes that gained too little; all is as it was, and nothing is recorded of it."""
    attempt = Attempt((np.eye(4)[:, :2],), (0.0,), -100.0, 0.0, NOTHING)
    after = _run([-400.0, -390.0], attempt, monkeypatch)
    assert [seen for _, seen in after] == [-100.0, -100.0]
    assert len(after) == 2
    given_up = after[-1][0]
    assert (given_up.name, given_up.refused, given_up.restored, given_up.owed) == ("old", 3, True, False)
    later = _run([-400.0, -370.0, -330.0], attempt, monkeypatch)  # gains enough to go on
    assert len(later) == 3
    assert later[-1][0].bar == -100.0


def test_what_the_model_at_hand_would_have_gained_and_loadings_that_are_spared_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a last gain of 6 nats a pass: 6 after one pass, 10 after two."""
    pick = (np.eye(4)[:, :2],)
    for margin, pace, objective, taken in (
        (5.0, 0.0, -94.9, "new"),
        (5.0, 0.0, -95.1, "old"),
        (0.0, 6.0, -89.9, "new"),
        (0.0, 6.0, -90.1, "old"),
    ):
        after = _run([objective] * 3, Attempt(pick, (margin,), -100.0, pace, NOTHING), monkeypatch)
        assert after[-1][0].name == taken
        assert after[-1][1] == (objective if taken == "new" else -100.0)


def test_one_that_was_ahead_but_for_what_was_still_to_gain_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Soon, and before the stage ends; also if another after it fell behind."""
    picks = (np.eye(4)[:, :2], np.eye(4)[:, :3])
    for given, objectives in ((picks[:1], [-90.1] * 2), (picks, [-90.1] * 2 + [-300.0] * 2)):
        attempt = Attempt(given, (0.0,) * len(given), -100.0, 6.0, NOTHING)
        given_up = _run(objectives, attempt, monkeypatch)[-1][0]
        assert (given_up.name, given_up.refused, given_up.restored, given_up.owed) == ("old", 2, True, True)


def test_loose_bounds_of_binary_views_are_too_fond_of_smaller_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the likelihood that is lost, as far as the scores that go are known; scores are kept but once."""
    picks = (np.eye(4)[:, :2], np.eye(4)[:, :3])
    for known, needed in (([0.9, 0.9, 0.1, 0.5], 10.0), ([0.9, 0.9, 0.5, 0.75], 15.0)):
        loose = Loose(-50.0, 0.0, np.array(known))  # and -70 after each pass
        attempt = Attempt(picks, (0.0, 0.0), -100.0, 0.0, loose)
        for more, name in ((0.1, "new"), (-0.1, "old")):
            after = _run([-100.0 + needed + more] * 2 + [-200.0] * 2, attempt, monkeypatch, stateful=True)
            assert after[-1][0].name == name
            assert len(after) == (2 if name == "new" else 4)


def test_the_best_of_several_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is better than the one at hand waits until the others have had their passes."""
    picks = (np.eye(4)[:, :1], np.eye(4)[:, :3])
    attempt = Attempt(picks, (0.0, 0.0), -100.0, 0.0, NOTHING)
    better = _run([-90.0, -90.0, -80.0, -80.0], attempt, monkeypatch)
    assert (better[-1][0].pick.shape[1], better[-1][1]) == (3, -80.0)
    assert better[-1][0].owed
    worse = _run([-90.0, -90.0, -95.0, -95.0], attempt, monkeypatch)
    assert (worse[-1][0].pick.shape[1], worse[-1][1], worse[-1][0].restored) == (1, -90.0, True)
    behind = _run([-150.0], attempt, monkeypatch)
    monkeypatch.setattr(haste, "replace", replace_)
    # a stage that ends amid the first, which is ahead or behind, and amid the second, which is behind
    for amid, number in ((worse[0][0], 1), (behind[0][0], 4), (worse[2][0], 1)):
        settled = haste.settled(replace_(amid, past=()))
        assert getattr(settled, "pick", np.eye(4)).shape[1] == number
        assert settled.bar is None if number == 1 else settled.restored
    assert [seen for _, seen in worse[:-1]] == [-100.0] * 3


@pytest.mark.parametrize("sparse", [False, True])
def test_a_smaller_model_begins_with_what_it_leaves_unexplained_as_noise(tools: Any, sparse: bool) -> None:
    """Entry by entry: the variance of x less that of the factors that stay is added to that of the noise."""
    problem = tools.Problem(("gaussian",), missing="scattered")
    for _ in range(3):
        problem.iterate()
    if sparse:
        problem.enter_sparse()
        problem.iterate()
    globals_, settings = problem.globals_, problem.settings
    rng = np.random.default_rng(0)
    pick = np.delete(np.eye(3), 1, axis=1) if sparse else np.linalg.qr(rng.standard_normal((3, 3)))[0][:, :2]
    smaller = attempts._smaller(settings, globals_, pick)
    (name,) = globals_.weights
    before, after = globals_.weights[name], smaller.weights[name]
    w, less = expected_weights(before)[0], expected_weights(after)[0]
    stay = pick  # of orthonormal columns
    noise = before.noise_rate / before.noise_shape
    z = np.linalg.cholesky(globals_.second) @ np.linalg.qr(rng.standard_normal((5000, 3)))[0].T * 5000**0.5
    lost = w @ z - less @ (stay.T @ z)
    np.testing.assert_allclose(after.noise_rate / after.noise_shape, noise + (lost**2).mean(axis=1)[:, None])
    np.testing.assert_allclose(smaller.second, (stay.T @ z) @ (stay.T @ z).T / 5000)
    f = settings.precision(name, after)[:, 0]
    second = [np.outer(row, row) for row in less]
    spread = expected_weights(after)[1]
    full = [np.diag(v) if len(v) == 2 else unpack(v, 2) for v in spread]
    total = np.einsum("d,dkl->kl", f, np.asarray(second) + np.asarray(full))
    np.testing.assert_allclose(unpack(smaller.views[name].pairs[0], 3)[:2, :2], total)
