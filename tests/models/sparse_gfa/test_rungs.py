"""Few binary entries: fits of several numbers of factors, the best by bound and predictions goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import integrate, stats
from scipy.special import expit

import factorflow
from factorflow.kernels.linalg import unpack
from factorflow.models import SparseGFA
from factorflow.models.contract import Step
from factorflow.models.sparse_gfa.model import LookSweep
from factorflow.models.sparse_gfa.pseudo import expected_scores
from factorflow.models.sparse_gfa.samples import stored
from factorflow.models.sparse_gfa.search import rungs
from factorflow.models.sparse_gfa.search.models import Rung
from factorflow.models.sparse_gfa.search.rungs import (
    ForetellSweep,
    Foretold,
    best_rung,
    first_rung,
    foretold,
    look_at_fewer,
    next_number,
    next_rung,
    sees_none,
    settled,
)
from factorflow.models.sparse_gfa.start.components import begun, empty_globals
from factorflow.models.sparse_gfa.state import Fixed, expected_weights
from factorflow.shape import Meta, ViewMeta


def simulated(seed: int, n_rows: int = 200, n_features: int = 40, n_factors: int = 3) -> tuple[Any, Any]:
    """Return binary entries, a tenth of them missing, and the probability of each."""
    rng = np.random.default_rng([seed, n_rows, n_features])
    scores, shape = rng.standard_normal((n_rows, n_factors)), (n_features, n_factors)
    p = expit(scores @ (rng.standard_normal(shape) * (rng.random(shape) < 0.4)).T)
    values = (rng.random(p.shape) < p).astype(np.float32)
    return np.where(rng.random(p.shape) < 0.1, np.nan, values).astype(np.float32), p


def fitted(path: Path, values: Any, **options: Any) -> Any:
    """Return a posterior; ``given``: what `fit` is given."""
    given = options.pop("given", {})
    data = factorflow.write_dataset(path, {"v": values}, {"v": "bernoulli"}, block_rows=64)
    return factorflow.fit(data, SparseGFA(**options), progress=False, **given)


def loss(posterior: Any, values: Any, p: Any) -> float:
    """Return the expected log-loss of the entries that were missing."""
    q = posterior.predict("v")["mean"].values
    return float(-(p * np.log(q) + (1 - p) * np.log1p(-q))[np.isnan(values)].mean())


def test_an_entry_is_foretold_without_itself() -> None:
    """1 / E[1 / p] by quadrature; what is missing does not count."""
    values, mean, variance = (
        np.array([[1.0, 0.0, -1.0]]),
        np.array([[0.4, 1.3, 2.0]]),
        np.array([[0.3, 2.0, 1.0]]),
    )
    total = 0.0
    for y, m, v in zip(values[0, :2], mean[0], variance[0], strict=False):
        q = stats.norm(m, v**0.5)
        ends = m - 14 * v**0.5, m + 14 * v**0.5
        inverse = integrate.quad(lambda x, y=y, q=q: q.pdf(x) / expit((2 * y - 1) * x), *ends)[0]
        total -= np.log(inverse)
    assert foretold(values, mean, variance) == pytest.approx(total, rel=1e-8)
    values[0, 2] = np.nan
    assert foretold(values, mean, variance) == pytest.approx(total, rel=1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_mean_and_variance_of_each_entry(tools: Any, sparse: bool) -> None:
    """Of x = w'z + b, all covariances of z in it, and those of w where it has no spikes."""
    problem = tools.Problem(("bernoulli", "bernoulli"), "scattered")
    for _ in range(3):
        problem.iterate()
    if sparse:
        problem.enter_sparse()
        for _ in range(2):
            problem.iterate()
    g, local, k = problem.globals_, problem.local, 3
    assert g.transform is None or g.transform.shape == (k, k)
    sweep = ForetellSweep(problem.settings)
    step = Step(0, 0, 0, "judging", 0)
    _, found = sweep.map(problem.block, local, sweep.prepare(sweep.send(g)), step)
    scores = stored(local, g)
    assert scores is not None
    z, packed = expected_scores(scores)
    cov_z = np.broadcast_to(unpack(packed, k), (len(z), k, k))
    total = 0.0
    for view in problem.settings.views:
        weights = g.weights[view.name]
        w, spread = expected_weights(weights)
        cov_w = unpack(spread, k) if spread.shape[1] != k else np.stack([np.diag(s) for s in spread])
        second = z[:, :, None] * z[:, None] + cov_z
        variance = np.einsum("dk,nkl,dl->nd", w, cov_z, w) + np.einsum("dkl,nkl->nd", cov_w, second)
        variance += weights.intercept_variance
        y = problem.views[view.name].astype(float)
        sign = np.where(y > 0.5, 1.0, -1.0)
        entry = -np.log1p(np.exp(variance / 2 - sign * (z @ w.T + weights.intercept)))
        total += entry[y >= 0].sum()
    assert found.total == pytest.approx(total, rel=1e-9)
    assert sweep.update(g, found, step)[0].foretold == found.total


def test_which_number_is_next() -> None:
    assert next_number({3}, 3, 5) == 2
    assert next_number({3, 2}, 3, 5) == 4
    assert next_number({3, 2}, 2, 5) == 1
    assert next_number({3, 4}, 4, 5) == 5
    assert next_number({2, 3, 4}, 3, 5) is None  # all next to it are known
    assert next_number({5}, 5, 5) == 4  # no more than the run began with
    assert next_number({0}, 0, 9) == 1
    assert next_number({0, 1}, 0, 9) is None


def test_where_numbers_are_compared() -> None:
    def has(n_rows: int = 200, kinds: Any = ("bernoulli",), **options: Any) -> bool:
        views = tuple(ViewMeta(f"v{i}", kind, 40, "none") for i, kind in enumerate(kinds))
        settings = SparseGFA(n_factors=3, **options).build(Meta(n_rows, 1, n_rows, views)).settings
        return bool(settings.has_rungs)

    assert has()
    assert has(kinds=("bernoulli", "bernoulli"))
    assert not has(n_rows=25_000)
    assert not has(n_rows=12_500, kinds=("bernoulli", "bernoulli"))
    assert not has(kinds=("bernoulli", "gaussian"))
    others: dict[str, Any] = {
        "drop": 0.0, "spike": "none", "n_starts": 2, "bernoulli": "tilted", "inference": "incremental",
        "scores_posterior": "factorised",
    }  # fmt: skip
    for name, value in others.items():
        assert not has(**{name: value}), name


@pytest.fixture
def settings() -> Any:
    """Return settings of a binary view, from four factors."""
    return SparseGFA(n_factors=4).build(Meta(9, 1, 32, (ViewMeta("v", "bernoulli", 5, "none"),))).settings


def over(settings: Any, k: int, objective: float, predicted: float, **fields: Any) -> Any:
    """Return globals at the end of a fit."""
    blank = replace(empty_globals(replace(settings, n_factors=k)), objective=objective, foretold=predicted)
    return replace(blank, **fields)


def test_bound_and_predictions_decide_together(settings: Any) -> None:
    """With their weights; a bound that is no number never wins; it is decided once."""
    settings = replace(settings, views=())
    lower = Rung(2, 2, 2, -10.0, -10.0 - 0.5 * 30.0, over(settings, 2, -10.0, -30.0))
    unknown = Rung(1, 1, 1, float("nan"), float("nan"), None)
    for predicted, number in ((-19.0, 2), (-18.0, 3)):  # -15 - .55 * 18.2 = -25 is the score of the other
        last = over(settings, 3, -15.0, predicted, rungs=(unknown, lower), strength=np.ones((1, 3)))
        found = best_rung(settings, last)
        assert found.n_factors == number
        assert [r.kept for r in found.rungs] == [1, 2, 3]
        assert found.regained == (number == 2)  # the scores that are stored are those of the last
        assert best_rung(settings, found) is found
    cut = best_rung(settings, replace(last, foretold=None))
    assert cut.n_factors == 2
    assert [r.kept for r in cut.rungs] == [1, 2]


def test_no_factors_are_the_answer_unless_others_are_better_by_far(settings: Any) -> None:
    settings = replace(settings, views=())
    for objective, number in ((-19.9, 1), (-20.1, 0)):  # -25 + 5 is the score of none
        first = over(settings, 0, -14.0, -20.0, strength=np.ones((1, 0)))
        first = next_rung(settings, first).rungs
        last = over(settings, 1, objective, 0.0, rungs=first, strength=np.ones((1, 1)))
        assert first[0].score == pytest.approx(-20.0)
        assert best_rung(settings, last).n_factors == number


def test_what_explains_nothing_does_not_count(settings: Any) -> None:
    """A fit that keeps a factor without loadings is one of fewer; the next number follows from that."""
    settings = replace(settings, views=())
    ended = over(settings, 3, -9.0, -9.0, strength=np.array([[0.2, 0.0, 0.1]]))
    new = next_rung(settings, ended)
    assert (new.rungs[0].kept, new.rungs[0].n_factors) == (3, 2)
    assert new.n_factors == 1  # 3 are known
    again = next_rung(settings, replace(ended, rungs=new.rungs))
    assert len(again.rungs) == 1


def test_a_number_given_up_on_the_way_is_known(settings: Any) -> None:
    """With one more at most: where many went together, or none, it is not."""
    settings = replace(settings, views=(), n_factors=6)
    fewer = (Rung(0, 1, 1, -99.0, -99.0, None),)
    for first, known in ((2, False), (3, True), (4, True), (5, False), (0, False)):
        ended = over(settings, 2, -9.0, -9.0, strength=np.ones((1, 2)), begun=first, rungs=fewer)
        assert settled(settings, ended) == known
        new = next_rung(settings, ended)
        assert new.begun == new.n_factors == (0 if known else 3)
        assert new.rungs[-1].begun == first


def in_hand(tools: Any, strength: Any, **fields: Any) -> tuple[Any, Any]:
    """Return a problem of few binary entries after some passes with spikes, and its globals as at an end."""
    problem = tools.Problem(("bernoulli",), "scattered", drop=0.01)
    problem.iterate()
    problem.enter_sparse()
    for _ in range(3):
        problem.iterate()
    given = {"objective": -100.0, "foretold": -100.0, "strength": np.array([strength]), "begun": 4}
    return problem, replace(problem.globals_, **(given | fields))


def test_a_look_is_at_the_fit_in_hand_without_its_weakest_factor(tools: Any) -> None:
    """Of those that explain something; and blocks keep the scores of the fit beside those of the look."""
    problem, fit = in_hand(tools, [0.3, 0.1, 0.2])
    settings = problem.settings
    assert not sees_none(settings, fit)
    look = look_at_fewer(settings, fit)
    assert look.n_factors == 2
    np.testing.assert_array_equal(look.weights["v0"].mean, fit.weights["v0"].mean[:, [0, 2]])
    assert [rung.kept for rung in look.looked.rungs] == [3]
    useless = look_at_fewer(settings, replace(fit, strength=np.array([[0.3, 0.0, 0.2]])))
    assert useless.n_factors == 1
    sweep = LookSweep(settings, sparse=True, warm=True)
    given = sweep.prepare(sweep.send(look))
    assert given.globals_.looked is None  # rows need nothing of it
    beside, _ = sweep.map(problem.block, problem.local, given, Step(0, 0, 0, "look", 0))
    assert beside.mean.shape[1] == 2
    after = stored(beside, replace(fit, restored=True))
    np.testing.assert_array_equal(after.mean, stored(problem.local, fit).mean)


def test_there_is_no_look_where_none_says_anything(tools: Any) -> None:
    """Where the number is known, is that of no factors, or another fit is the best; or entries are many."""
    problem, fit = in_hand(tools, [0.3, 0.1, 0.2])
    settings = problem.settings
    known = Rung(0, 2, 2, -500.0, -500.0, None)
    better = Rung(0, 4, 4, -50.0, -50.0, None)
    one = {"strength": np.array([[0.3, 0.0, 0.0]])}
    for fields in ({"rungs": (known,)}, {"rungs": (better,)}, {"foretold": None}, one):
        assert sees_none(settings, replace(fit, **fields))
    fixed = {name: replace(f, count=1e6 * f.count) for name, f in fit.fixed.items()}
    assert sees_none(settings, replace(fit, fixed=fixed))


def test_a_number_is_known_where_a_look_at_it_is_hopeless(tools: Any) -> None:
    """Its score is then so much lower than that of the fit; either way all is as before the look."""
    problem, fit = in_hand(tools, [0.3, 0.1, 0.2])
    settings = problem.settings
    room = rungs.HOPELESS * fit.observed**0.25
    sweep, step = ForetellSweep(settings), Step(0, 0, 0, "look", 0)
    for below, hopeless in ((0.99 * room, False), (1.01 * room, True)):
        look = replace(look_at_fewer(settings, fit), objective=-100.0 - below)
        back, _ = sweep.update(look, Foretold(-100.0), step)
        assert back.looked is None
        assert back.restored
        assert back.weights is fit.weights
        assert [rung.kept for rung in back.rungs] == ([3, 2] if hopeless else [3])
        assert settled(settings, back) == hopeless
        assert sees_none(settings, back) == hopeless
        best = best_rung(settings, back)
        assert (best.n_factors, best.regained, best.restored) == (3, False, True)


def test_fits_of_other_numbers_begin_with_the_same_components(settings: Any) -> None:
    rng = np.random.default_rng(0)
    ones = np.ones((5, 1))
    fixed = {"v": Fixed(ones[:, 0], ones[:, 0], 0.5 * ones[:, 0], 9 * ones, 2 * ones, ones)}
    counted = replace(begun(replace(settings, n_factors=3), fixed), basis={"v": rng.standard_normal((5, 4))})
    first = first_rung(settings, counted)
    assert (first.n_factors, first.begun) == (3, 3)
    assert next_rung(settings, replace(first, objective=-1.0, foretold=-1.0)).basis is first.components
    assert first_rung(settings, replace(counted, basis={})).begun == 0


def test_few_entries_have_the_true_number(tmp_path: Path) -> None:
    """Where the bound is highest with two of three, which predict worse; and what was tried is recorded."""
    values, p = simulated(3)
    found = fitted(tmp_path / "d.zarr", values, n_factors=5)
    tried = {name: found.variable(f"tried_{name}").values for name in ("factors", "objective", "score")}
    assert found.scores().shape[1] == 3 == tried["factors"][tried["score"].argmax()]
    assert tried["factors"][tried["objective"].argmax()] == 2  # by the bound alone it would be two
    assert found.summary()["objective"] == pytest.approx(tried["objective"][tried["score"].argmax()], abs=1.0)
    bound = found.trace["objective"].values[found.trace["stage"].values == "best sparse"]
    assert bound[0] >= tried["objective"][tried["score"].argmax()]  # it goes on where that fit ended
    two = fitted(tmp_path / "e.zarr", values, n_factors=2, drop=0.0)
    assert loss(found, values, p) < loss(two, values, p) - 0.005


def test_what_is_known_is_not_fitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends when no number is left, and at once where entries are many: converged, as any other."""
    values, _ = simulated(47)
    others = ["look 2", "best sparse"]  # of two; four were given up on the way
    for few, more in ((10_000, others), (7000, [])):  # some 7200 are observed
        monkeypatch.setattr(rungs, "FEW", few)
        found = fitted(tmp_path / f"{few}.zarr", values, n_factors=5, max_iter=60)
        names = list(dict.fromkeys(found.trace["stage"].values.astype(str)))
        assert names == ["warm-up", "sparse", *more]
        assert found.variable("tried_factors").values.tolist() == ([3, 2] if more else [])
        assert found.run["reason"] == "converged"


@pytest.mark.thorough
def test_many_factors_to_start_from_do_not_lose_all(tmp_path: Path) -> None:
    """A run begins with few more than there are components, however many were asked for."""
    values, _ = simulated(56)
    found = fitted(tmp_path / "d.zarr", values, n_factors=15)
    trace = found.trace
    assert trace["n_factors"].values[0] <= 3 + rungs.SPARE
    assert found.scores().shape[1] in {2, 3}


@pytest.mark.thorough
def test_noise_has_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    values = (rng.random((200, 40)) < 0.5).astype(np.int8)
    for start in (5, 1):  # what was given up on the way is not tried again
        found = fitted(tmp_path / f"{start}.zarr", values, n_factors=start)
        assert found.scores().shape[1] == 0
        assert found.variable("tried_factors").values.tolist() == [0]
        assert found.variable("tried_objective").values[0] == pytest.approx(
            found.summary()["objective"], abs=0.1
        )


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "count", "known"), [("sparse 2", 5, 2), ("look 2", 1, 2)])
def test_a_fit_that_is_cut_short_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, count: int, known: int
) -> None:
    """And resumed, a run ends as if it had not been cut, to the bit."""
    monkeypatch.setattr(rungs, "SPARE", 0)  # what was given up on the way is fitted, too
    values, _ = simulated(47)
    whole = fitted(tmp_path / "d.zarr", values, n_factors=5)
    stage = whole.trace["stage"].values.astype(str)
    amid = int(np.flatnonzero(stage == place)[count - 1]) + 1
    cut = fitted(tmp_path / "e.zarr", values, n_factors=5, given={"max_iter": amid})
    tried = cut.variable("tried_score").values
    np.testing.assert_array_equal(tried, whole.variable("tried_score").values[:known])
    best = tried.argmax()
    assert cut.scores().shape[1] == cut.variable("tried_factors").values[best]
    assert cut.summary()["objective"] == pytest.approx(float(cut.variable("tried_objective")[best]), abs=1e-5)
    given: dict[str, Any] = {"out": tmp_path / "p.zarr", "executor": "threads", "workers": 2}
    data, seen = factorflow.open_dataset(tmp_path / "d.zarr"), 0

    def until_there(event: Any) -> None:
        nonlocal seen
        seen += getattr(event, "stage", "") == place
        if seen == count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(data, SparseGFA(n_factors=5), progress=False, on_event=until_there, **given)
    on = factorflow.fit(data, SparseGFA(n_factors=5), progress=False, resume=True, **given)
    xr.testing.assert_equal(on.tree["variational"].to_dataset(), whole.tree["variational"].to_dataset())
