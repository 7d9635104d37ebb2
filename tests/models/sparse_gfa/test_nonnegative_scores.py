"""Scores that are 0 or positive: one score is exact, parts are found, predictions and projections."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joint
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad

import factorflow
from factorflow.core.block import Meta, ViewMeta
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.elbo import scores_terms
from factorflow.models.sparse_gfa.nonnegative_scores import update_nonnegative
from factorflow.models.sparse_gfa.pseudo_data import expected_scores
from factorflow.models.sparse_gfa.sampler.gibbs_state import as_globals
from factorflow.models.sparse_gfa.start.nonnegative import EDGES, ScoreSums, ShiftSweep, _lowest
from factorflow.models.sparse_gfa.state import Local, Scores
from factorflow.models.sparse_gfa.weights import expected_weights

BETA, PSI, CERTAIN = 1.4, 0.3, 1e9
PARTS: dict[str, Any] = {"scores": "nonnegative", "loadings": "nonnegative", "n_factors": 7}
N = 240


@pytest.mark.parametrize("message", [(0.0, 2.0), (3.0, 2.0), (-20.0, 9.0)])
@pytest.mark.parametrize("slab", ["exponential", "half_normal"])
def test_one_score_is_exact(slab: str, message: tuple[float, float]) -> None:
    """Its moments, and what it adds to the bound, by numerical integration."""
    linear, p = message
    power = 1.0 if slab == "exponential" else 2.0
    both, certain = np.ones((2, 1)), CERTAIN * np.ones((2, 1))
    scores = Scores(certain, certain / BETA, PSI * certain, (1 - PSI) * certain, np.eye(1))
    globals_: Any = SimpleNamespace(courses=None, scores=scores)
    priors = SimpleNamespace(beta=(CERTAIN, CERTAIN / BETA), psi=(PSI * CERTAIN, (1 - PSI) * CERTAIN))
    settings: Any = SimpleNamespace(
        score_slab=slab, score_power=power, scores_prior="nonnegative", scores_spike=True, priors=priors
    )
    before = Local(both, both, both)
    new, entropy = update_nonnegative(
        settings, np.array([0, 1]), before, globals_, np.array([[p]]), linear * both
    )
    mean, variance = expected_scores(new)

    def slab_density(z: float) -> float:
        if power == 1.0:
            return BETA * np.exp(-BETA * z)
        return 2.0 * np.sqrt(BETA / (2.0 * np.pi)) * np.exp(-0.5 * BETA * z * z)

    def moment(n: int) -> float:
        ends = {"points": [max(linear / p, 0.1)], "limit": 500}
        return PSI * float(
            quad(lambda z: z**n * slab_density(z) * np.exp(linear * z - 0.5 * p * z * z), 0, 30, **ends)[0]
        )

    total = 1.0 - PSI + moment(0)
    np.testing.assert_allclose(mean, moment(1) / total, rtol=1e-6)
    np.testing.assert_allclose(variance, moment(2) / total - (moment(1) / total) ** 2, rtol=1e-5)
    amount = new.mean if power == 1.0 else new.mean**2 + new.variance
    stats: Any = SimpleNamespace(number=new.inclusion, rows=np.ones(2))
    moves: Any = SimpleNamespace(second=new.inclusion * amount)
    bound = entropy + float(scores_terms(settings, globals_, moves, stats)[0])
    bound += float((linear * mean - 0.5 * p * (mean**2 + variance)).sum())
    assert bound == pytest.approx(2.0 * np.log(total), abs=3e-5)  # of gammas of 1e9


def test_the_lowest_scores_of_turned_factors() -> None:
    """Classes are those between -6 and 6, 0.05 wide: 2 % of the scores lie below -1, or above 2."""
    values = np.concatenate([np.full(3, -1.01), np.full(94, 0.5), np.full(3, 2.01)])
    classes = np.bincount(np.searchsorted(EDGES, values), minlength=len(EDGES) + 1)[:, None] * 1.0
    found = _lowest(np.hstack([classes, classes]), np.array([1.0, -1.0]))
    np.testing.assert_allclose(found, [-1.0, -2.0], atol=1e-9)


def test_shifted_scores_predict_the_same_and_have_the_mean_that_is_kept() -> None:
    """With intercepts: factors of scores skewed to the left change signs, intercepts follow the shift."""
    rng, meta = np.random.default_rng(2), Meta(N, 1, 64, (ViewMeta("v0", "gaussian", joint.D, "none"),))
    settings = SparseGFA(**{**PARTS, "n_factors": 2, "loadings": "spike_slab"}).build(meta).settings
    drawn = joint.settings_of(("gaussian",), groups=False, dense=True)
    before = as_globals(drawn, joint.prior(rng, drawn)[1])
    z = (rng.exponential(size=(N, 2)) - 1.0) * [1.0, -1.0]
    classes = np.stack(
        [np.bincount(c, minlength=len(EDGES) + 1) for c in np.searchsorted(EDGES, z.T)], axis=1
    )
    sums = ScoreSums(np.stack([(z**n).sum(axis=0) for n in (1, 2, 3)]), classes.astype(float))
    after, _ = ShiftSweep(settings).update(before, sums, Step(1))
    moved = z @ after.change.transform.T + after.change.shift
    np.testing.assert_array_equal(np.diag(after.change.transform), [1.0, -1.0])
    assert (after.change.shift > 0.5).all()
    np.testing.assert_allclose(after.scores.mean, moved.mean(axis=0))
    left, right = (
        scores @ expected_weights(g.weights["v0"])[0].T + g.weights["v0"].coefficients[:, 0]
        for scores, g in ((z, before), (moved, after))
    )
    np.testing.assert_allclose(right, left)


def simulate(seed: int, *, signed: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    z = rng.exponential(size=(N, 4)) * (rng.random((N, 4)) < 0.5)
    w = rng.exponential(size=(50, 4)) * (rng.random((50, 4)) < 0.3)
    if signed:
        w = w * rng.choice([-1.0, 1.0], size=w.shape)
    noise = 0.5 * rng.standard_normal((N, 50))
    return {"z": z, "w": w, "x": z @ w.T, "y": z @ w.T + noise, "hidden": rng.random((N, 50)) < 0.1}


def agreement(found: Any, true: Any) -> Any:
    """Return the correlation of each true column with the one most like it."""
    k = found.shape[1]
    return np.abs(np.corrcoef(np.asarray(found).T, true.T)[:k, k:]).max(axis=0)


def loadings_of(posterior: Any, view: str = "y") -> Any:
    return posterior.loadings(view).transpose(f"feature_{view}", "factor").to_numpy()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    truth = simulate(13300)
    values = np.where(truth["hidden"], np.nan, truth["y"])
    folder = tmp_path_factory.mktemp("parts")
    data = factorflow.write_dataset(folder / "d.zarr", {"y": values}, block_rows=64)
    posterior = factorflow.fit(data, SparseGFA(**PARTS, intercepts=False), progress=False, out=folder / "p")
    return {**truth, "data": data, "posterior": posterior, "folder": folder}


@pytest.mark.thorough
def test_a_factorisation_of_two_nonnegative_matrices(parts: dict[str, Any]) -> None:
    posterior = parts["posterior"]
    assert len(posterior.factors) == 4
    z, w = posterior.scores().to_numpy(), loadings_of(posterior)
    assert min(z.min(), w.min()) >= 0.0
    np.testing.assert_allclose(posterior.variable("intercept_y"), 0.0, atol=1e-12)
    assert agreement(z, parts["z"]).min() > 0.98
    assert agreement(w, parts["w"]).min() > 0.98
    order = np.corrcoef(z.T, parts["z"].T)[:4, 4:].argmax(axis=0)
    is_zero = posterior.variable("scores_inclusion").values[:, order] < 0.5
    assert np.mean(is_zero == (parts["z"] == 0.0)) > 0.85
    np.testing.assert_allclose(posterior.variable("score_theta"), 0.5, atol=0.15)
    prediction, hidden = posterior.predict("y")["mean"].to_numpy(), parts["hidden"]
    left = np.mean((prediction - parts["x"])[hidden] ** 2) / np.var(parts["x"][hidden])
    assert left < 0.03
    lower, upper = (posterior.predict("y", interval=0.9)[end].to_numpy() for end in ("lower", "upper"))
    inside = (parts["y"] >= lower) & (parts["y"] <= upper)
    assert 0.86 < inside[hidden].mean() < 0.94


def test_no_pass_lowers_the_bound(parts: dict[str, Any]) -> None:
    trace = parts["posterior"].trace
    bound, stage, left = (trace[name].to_numpy() for name in ("objective", "stage", "n_factors"))
    sparse = (
        (stage == "sparse")[1:] & (stage == "sparse")[:-1] & (np.append(left[:1], left[:-1])[1:] == left[1:])
    )
    assert sparse.sum() > 3
    assert (np.diff(bound)[sparse] > -1e-9 * np.abs(bound[1:][sparse])).all()


@pytest.mark.parametrize("slab", ["exponential", "half_normal"])
def test_intercepts_find_the_background(slab: str, tmp_path: Path) -> None:
    truth = simulate(13301)
    data = factorflow.write_dataset(tmp_path / "d", {"y": truth["y"] + 2.0})
    posterior = factorflow.fit(data, SparseGFA(**PARTS, slab=slab), progress=False)
    assert len(posterior.factors) == 4
    np.testing.assert_allclose(posterior.variable("intercept_y"), 2.0, atol=0.2)
    assert agreement(posterior.scores(), truth["z"]).min() > 0.98
    trace = posterior.trace
    assert trace["objective"].to_numpy()[-1] > -np.inf
    bound = trace["objective"].to_numpy()[(trace["stage"] == "sparse").to_numpy()]
    assert (np.diff(bound) > -1e-9 * np.abs(bound[1:])).all()


@pytest.mark.thorough
def test_loadings_of_either_sign_get_the_signs_of_skewed_scores(tmp_path: Path) -> None:
    """One of the factors is weak: it is not among the components that are counted."""
    truth = simulate(13302, signed=True)
    data = factorflow.write_dataset(tmp_path / "d", {"y": truth["y"]})
    for loadings in ("spike_slab", "ard"):
        posterior = factorflow.fit(data, SparseGFA(**{**PARTS, "loadings": loadings}), progress=False)
        assert len(posterior.factors) == 4
        alike = np.corrcoef(posterior.scores().to_numpy().T, truth["z"].T)[:4, 4:]
        assert alike.max(axis=0).min() > 0.85
        match = alike.argmax(axis=0)
        with_signs = np.corrcoef(loadings_of(posterior)[:, match].T, truth["w"].T)[:4, 4:]
        assert np.diag(with_signs).min() > 0.85


def test_what_factors_explain_is_about_the_mean(parts: dict[str, Any]) -> None:
    """Recorded, or computed from the dataset; nearly independent factors explain shares that add up."""
    posterior = parts["posterior"]
    share = posterior.variance_explained().values.ravel()
    total = float(posterior.variance_explained_total().values[0])
    assert share.sum() == pytest.approx(total, abs=0.08)
    from factorflow.posterior.variance import _from_data

    again = _from_data(posterior, None, None)
    np.testing.assert_allclose(again["variance_explained"].values.ravel(), share, atol=1e-4)


def test_projected_samples_have_their_scores(parts: dict[str, Any]) -> None:
    posterior = parts["posterior"]
    projected = posterior.project(parts["data"])
    np.testing.assert_allclose(projected.scores(), posterior.scores(), atol=1e-3)
    np.testing.assert_allclose(projected.variance_explained(), posterior.variance_explained(), atol=1e-3)


def test_draws_are_not_negative(parts: dict[str, Any]) -> None:
    posterior = parts["posterior"]
    draws = posterior.sample(200).draws("scores").sel(chain=0)
    assert (draws.values >= 0.0).all()
    np.testing.assert_allclose(draws.mean("draw"), posterior.scores(), atol=0.15)


def test_a_warm_start_stays(parts: dict[str, Any]) -> None:
    posterior = parts["posterior"]
    again = factorflow.fit(parts["data"], posterior.config, progress=False, warm_start=posterior)
    np.testing.assert_allclose(again.scores(), posterior.scores(), atol=0.02)


@pytest.mark.thorough
def test_several_likelihoods_with_groups_and_unknown_covariates(tmp_path: Path) -> None:
    truth, rng = simulate(13303), np.random.default_rng(0)
    group = np.repeat(["a", "b"], N // 2)
    z = truth["z"] * np.where(group == "b", 0.4, 1.0)[:, None]
    age = rng.standard_normal(N)
    x = z @ truth["w"].T
    w = rng.exponential(size=(40, 4)) * (rng.random((40, 4)) < 0.4)
    index = [f"s{i}" for i in range(N)]
    views = {
        "parts": x + 0.3 * age[:, None] + 0.5 * rng.standard_normal(x.shape),
        "bits": (rng.random((N, 40)) < 1.0 / (1.0 + np.exp(1.5 - 2.0 * z @ w.T))).astype(float),
        "counts": rng.poisson(np.exp(0.5 + 0.3 * z @ w.T)).astype(float),
    }
    frames = {name: pd.DataFrame(values, index=index) for name, values in views.items()}
    data = factorflow.write_dataset(
        tmp_path / "d", frames, likelihoods={"bits": "bernoulli", "counts": "poisson"},
        obs=pd.DataFrame({"group": group, "age": age}, index=index), groups="group",
    )  # fmt: skip
    posterior = factorflow.fit(data, SparseGFA(**PARTS, covariates="age"), progress=False)
    found = posterior.scores().to_numpy()
    assert found.min() >= 0.0
    assert agreement(found, z).min() > 0.97
    ratio = posterior.variable("score_precision").values
    assert ratio.shape == (2, len(posterior.factors))
    assert (ratio[1] > 1.5 * ratio[0]).all()
    projected = posterior.project(data, covariates=False)
    assert projected.scores().to_numpy().min() >= 0.0
    assert agreement(projected.scores(), z).min() > 0.95
    with pytest.raises(InputError, match="scores='nonnegative'"):
        posterior.predict("parts", new_obs=pd.DataFrame({"age": [0.0]}, index=["new"]))


def test_without_intercepts_counts_have_none_either(tmp_path: Path) -> None:
    """Where parts begin at 0 moves no level of a view with a logarithmic link."""
    rng = np.random.default_rng(15_310)
    scores, loadings = rng.exponential(size=(60, 2)), rng.exponential(size=(2, 9))
    counts = rng.poisson(np.exp(0.3 * scores @ loadings)).astype(float)
    views = {"a": scores @ loadings + 0.3 * rng.normal(size=(60, 9)), "c": counts}
    data = factorflow.write_dataset(tmp_path / "d.zarr", views, {"c": "poisson"})
    config = SparseGFA(**PARTS | {"n_factors": 3}, intercepts=False, max_iter=30)
    posterior = factorflow.fit(data, config, progress=False)
    for view in views:
        np.testing.assert_allclose(posterior.intercept(view).values, 0.0, atol=1e-12)
