"""Priors of loadings: one loading is exact, and what a horseshoe finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaln

import factorflow
from factorflow.errors import InputError, UnusedWarning
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.loadings import LoadingSums, PriorConstants, get_prior, prior_names
from factorflow.models.sparse_gfa.loadings.base import _REGISTRY
from factorflow.models.sparse_gfa.loadings.mixture import Component, Mixture, truncated_moments
from factorflow.models.sparse_gfa.state import View
from factorflow.models.sparse_gfa.weights import Weights, expected_weights

ALPHA, THETA = 1.7, 0.3
CERTAIN = 1e9
"""Shape of q(alpha), and counts of q(theta), that leave nothing open."""


def one_view() -> View:
    ones = np.ones(1)
    return View(
        CERTAIN * ones, CERTAIN / ALPHA * ones, CERTAIN * THETA * ones, CERTAIN * (1 - THETA) * ones,
        0.0, 1.0, 1.0, 1.0, np.zeros((1, 3)),
    )  # fmt: skip


def one_weight() -> Weights:
    ones = np.ones((1, 1))
    return Weights(np.zeros((1, 1)), ones, None, ones, ones, None, None, np.empty((1, 0)))


PRIORS = (*prior_names(), "nonnegative(slab=half_normal)")


@pytest.mark.parametrize("name", PRIORS)
def test_a_density_is_one(name: str) -> None:
    prior, view = get_prior(name), one_view()
    w = np.concatenate([-np.geomspace(1e3, 1e-7, 200_000), np.geomspace(1e-7, 1e3, 200_000)])
    at_zero, density = prior.density(w, view)
    assert at_zero + np.trapezoid(density, w) == pytest.approx(1.0, abs=1e-3)
    assert (at_zero > 0.0) == prior.spikes
    assert (density[w < 0.0].max() > 0.0) == prior.signed


@pytest.mark.parametrize("message", [(0.0, 2.0), (3.0, 2.0), (-40.0, 30.0)])
@pytest.mark.parametrize("name", PRIORS)
def test_one_loading_is_exact(name: str, message: tuple[float, float]) -> None:
    """Its moments, and the evidence, by numerical integration; a further prior is tested by its file."""
    linear, p = message
    prior, view, old = get_prior(name), one_view(), one_weight()
    normal = np.array([[p, 0.0, 1.0]]), np.array([[linear]]), np.ones(1)
    new, entropy = prior.update(old, view, *normal, 1.0)
    mode = linear / (p + ALPHA)
    places = sorted({-1.0, 0.0, 1.0, mode, linear / p, -10.0, 10.0})
    ends = {"limit": 2000, "points": places}

    def moment(power: int) -> float:
        def at(w: float) -> float:
            density = float(prior.density(np.array([w]), view)[1][0])
            return w**power * density * np.exp(min(linear * w - 0.5 * p * w * w - top, 0.0))

        reach = 12.0 / np.sqrt(p + ALPHA * 2.0**-16) + 10.0
        return float(quad(at, mode - reach, mode + reach, **ends)[0])

    top = 0.5 * linear**2 / p
    total = moment(0) + prior.density(np.zeros(1), view)[0] * np.exp(-top)
    mean, variance = (float(part[0, 0]) for part in expected_weights(new))
    assert mean == pytest.approx(moment(1) / total, rel=1e-5, abs=1e-8)
    assert variance == pytest.approx(moment(2) / total - mean**2, rel=1e-4, abs=1e-10)
    constants = PriorConstants(1, (CERTAIN, CERTAIN / ALPHA), (CERTAIN * THETA, CERTAIN * (1 - THETA)))
    found = entropy + float(prior.terms(constants, view, prior.sums(new))[0])
    found += linear * mean - 0.5 * p * (mean**2 + variance)
    assert found == pytest.approx(np.log(total) + top, abs=1e-5)


def test_moments_move_a_share_of_the_way() -> None:
    rng = np.random.default_rng(0)
    ones = np.ones(3)
    view = View(ones, ones, ones, ones, 0.0, 1.0, 1.0, 1.0, np.zeros((1, 10)))
    pairs, linear = np.array([[4.0, 1.0, 5.0, 0.5, 0.2, 3.0, 0, 0, 0, 1]]), rng.normal(size=(6, 3)) * 3
    normal = Weights(
        rng.normal(size=(6, 3)), np.ones((6, 3)), None, np.zeros((6, 1)), np.ones((6, 1)), None, None,
        np.empty((6, 0)),
    )  # fmt: skip
    prior = get_prior("horseshoe")
    old, _ = prior.update(normal, view, pairs, linear[::-1], np.ones(6), 0.5)  # all the way: no mixture yet
    np.testing.assert_array_equal(
        old.mean, prior.update(normal, view, pairs, linear[::-1], np.ones(6), 1.0)[0].mean
    )
    whole, _ = prior.update(old, view, pairs, linear, np.ones(6), 1.0)
    half, _ = prior.update(old, view, pairs, linear, np.ones(6), 0.5)
    first = [expected_weights(w)[0][:, 0] for w in (old, half, whole)]
    np.testing.assert_allclose(first[1], 0.5 * (first[0] + first[2]))
    assert (np.abs(half.mean - old.mean) < np.abs(whole.mean - old.mean) + 1.0).all()
    seconds = [(w.variance + w.mean**2)[:, 0] for w in (old, half, whole)]
    np.testing.assert_allclose(seconds[1], 0.5 * (seconds[0] + seconds[2]))


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    z, w = rng.standard_normal((150, 3)), rng.standard_normal((60, 3)) * (rng.random((60, 3)) < 0.2)
    w[:3] = 4.0 * np.eye(3)  # far larger than the others
    return {"z": z, "w": w, "y": z @ w.T + 0.7 * rng.standard_normal((150, 60))}


def test_a_horseshoe_finds_few_large_loadings(truth: dict[str, Any], tmp_path: Path) -> None:
    data = factorflow.write_dataset(tmp_path / "d", {"y": truth["y"]})
    model = SparseGFA(n_factors=8, loadings="horseshoe", scale_views=False)
    posterior = factorflow.fit(data, model, progress=False, out=tmp_path / "p")
    assert len(posterior.factors) == 3
    assert not posterior.has("inclusion_y")
    found, z = posterior.scores().to_numpy(), posterior.loadings("y").to_numpy()
    match = np.abs(np.corrcoef(found.T, truth["z"].T)[:3, 3:]).argmax(axis=0)
    w = z[:, match] * np.sign(np.diag(z[:3, match]))
    off = truth["w"] == 0.0
    assert np.sqrt(np.mean(w[off] ** 2)) < 0.03  # least squares: 0.7 / sqrt(150) = 0.057
    np.testing.assert_allclose(w[:3].diagonal(), 4.0, rtol=0.1)  # not shrunk
    trace = posterior.trace["objective"].to_numpy()[posterior.trace["stage"] == "sparse"]
    assert (np.diff(trace) > -1e-7 * np.abs(trace[1:])).all() or len(
        np.unique(posterior.trace["n_factors"])
    ) > 1
    again = factorflow.fit(data, model, progress=False, warm_start=tmp_path / "p")
    np.testing.assert_allclose(again.loadings("y"), posterior.loadings("y"), atol=0.02)


@pytest.mark.thorough
def test_priors_by_view(truth: dict[str, Any], tmp_path: Path) -> None:
    views = {
        name: truth["y"][:, part]
        for name, part in (("a", slice(0, 20)), ("b", slice(20, 40)), ("c", slice(40, 60)))
    }
    data = factorflow.write_dataset(tmp_path / "d", views)
    model = SparseGFA(n_factors=6, loadings={"a": "horseshoe", "b": "ard"})
    posterior = factorflow.fit(data, model, progress=False)
    assert [posterior.has(f"inclusion_{view}") for view in views] == [False, False, True]
    theta = posterior.array("theta").to_numpy()
    assert (theta[:2] == 1.0).all()
    assert (theta[2] < 1.0).all()


def test_a_prior_that_is_one_class(truth: dict[str, Any], tmp_path: Path) -> None:
    """A list of components is enough: options, help, fits and warm starts find it."""

    class OwnPrior(Mixture):
        """Loadings that are small, or ten times as large."""

        name, help = "own", "small, or ten times as large"
        components = (Component("normal", 1.0), Component("normal", 10.0))

        def log_shares(self, view: View, factor: int) -> Any:
            return np.log([0.9, 0.1])

    try:
        assert "own" in prior_names()
        data = factorflow.write_dataset(tmp_path / "d", {"y": truth["y"]})
        model = SparseGFA(n_factors=6, loadings="own", scale_views=False)
        posterior = factorflow.fit(data, model, progress=False)
        assert len(posterior.factors) == 3
        again = factorflow.fit(data, model, progress=False, warm_start=posterior)
        np.testing.assert_allclose(again.loadings("y"), posterior.loadings("y"), atol=0.02)
    finally:
        del _REGISTRY["own"]
        get_prior.cache_clear()


def test_parameters_of_a_prior_are_checked() -> None:
    with pytest.raises(InputError, match=r"loadings = ard\(a=b\): expected ard, without parameters"):
        get_prior("ard(a=b)")
    with pytest.raises(InputError, match="loadings = what: expected one of spike_slab, adaptive_shrinkage"):
        get_prior("what")


@pytest.mark.parametrize("a", [-2000.0, -31.0, -21.0, -19.0, -3.0, 0.0, 4.0, 50.0])
def test_moments_of_truncated_normals(a: float) -> None:
    """Beyond 20 standard deviations their usual form cancels."""
    mode = max(a, 0.0)

    def moment(power: int) -> float:
        def at(t: float) -> float:
            return t**power * np.exp(-0.5 * (t - a) ** 2 + 0.5 * (mode - a) ** 2)

        reach = 12.0 if a > -15.0 else 60.0 / -a
        return float(quad(at, max(mode - reach, 0.0), mode + reach, limit=500, epsabs=0.0, epsrel=1e-12)[0])

    first, second, _ = truncated_moments(np.array([[2.0 * a]]), np.array([[4.0]]))
    assert float(first[0, 0]) == pytest.approx(2.0 * moment(1) / moment(0), rel=1e-8)
    assert float(second[0, 0]) == pytest.approx(4.0 * moment(2) / moment(0), rel=1e-8)


def parts(seed: int, n_samples: int = 200) -> dict[str, Any]:
    """Simulate scores and loadings that are 0 or positive."""
    rng = np.random.default_rng(seed)
    z = rng.exponential(size=(n_samples, 4)) * (rng.random((n_samples, 4)) < 0.5)
    w = rng.exponential(size=(50, 4)) * (rng.random((50, 4)) < 0.3)
    return {"z": z, "w": w, "x": z @ w.T, "noise": 0.5 * rng.standard_normal((n_samples, 50))}


@pytest.mark.thorough
@pytest.mark.parametrize("slab", ["exponential", "half_normal"])
def test_parts_are_found(slab: str, tmp_path: Path) -> None:
    truth = parts(1)
    data = factorflow.write_dataset(tmp_path / "d", {"y": truth["x"] + truth["noise"]})
    model = SparseGFA(n_factors=7, loadings="nonnegative", slab=slab)
    posterior = factorflow.fit(data, model, progress=False)
    found = posterior.loadings("y").transpose("feature_y", "factor").to_numpy()
    assert found.shape == (50, 4)
    assert (found >= 0.0).all()
    alike = np.corrcoef(found.T, truth["w"].T)[:4, 4:]
    np.testing.assert_array_less(0.99, alike.max(axis=0))
    order = alike.argmax(axis=0)
    zeros = posterior.inclusion("y").transpose("feature_y", "factor").to_numpy()[:, order] < 0.5
    assert np.mean(zeros == (truth["w"] == 0.0)) > 0.93
    objective = posterior.trace["objective"].to_numpy()[(posterior.trace["stage"] == "sparse").to_numpy()]
    assert (np.diff(objective) > -1e-9 * np.abs(objective[1:])).all()
    spikes = factorflow.fit(data, SparseGFA(n_factors=7), progress=False)
    assert objective[-1] > spikes.trace["objective"].to_numpy()[-1] + 20.0
    again = factorflow.fit(data, model, progress=False, warm_start=posterior)
    np.testing.assert_allclose(again.loadings("y"), posterior.loadings("y"), atol=0.02)
    draws = posterior.sample(400).draws("loadings_y").sel(chain=0)
    assert (draws.values >= 0.0).all()
    np.testing.assert_allclose((draws > 0.0).mean("draw"), posterior.inclusion("y"), atol=0.12)
    np.testing.assert_allclose(draws.mean("draw"), posterior.loadings("y"), atol=0.05)
    sd = posterior.variable("corrected_loadings_sd_y").transpose("feature_y", "factor").to_numpy()[:, order]
    scale = (found[:, order] * truth["w"]).sum(axis=0) / (truth["w"] ** 2).sum(axis=0)
    large = truth["w"] > 0.5
    off = np.abs(found[:, order] - truth["w"] * scale)[large] / sd[large]
    assert (
        np.mean(off < 1.96) > 0.93
    )  # the scale of a factor, which they leave open, is that of the truth here


@pytest.mark.thorough
def test_a_view_of_parts_beside_one_of_both_signs(tmp_path: Path) -> None:
    truth, rng = parts(2), np.random.default_rng(0)
    other = truth["z"] @ rng.normal(size=(4, 30)) + rng.standard_normal((200, 30))
    other[:, :4] -= 6.0 * truth["z"]  # the largest loadings are negative
    counts = rng.poisson(np.exp(0.5 + 0.4 * truth["x"][:, :20].clip(max=5.0)))
    views = {"parts": truth["x"] + truth["noise"], "other": other, "counts": counts}
    data = factorflow.write_dataset(tmp_path / "d", views)
    loadings = {"parts": "nonnegative", "counts": "nonnegative"}
    posterior = factorflow.fit(data, SparseGFA(n_factors=6, loadings=loadings), progress=False)
    assert len(posterior.factors) >= 4
    assert (posterior.loadings("parts").values >= 0.0).all()
    assert (posterior.loadings("counts").values >= 0.0).all()
    assert posterior.loadings("other").values.min() < -1.0
    found = posterior.scores().to_numpy()
    alike = np.corrcoef(found.T, truth["z"].T)[: found.shape[1], found.shape[1] :]
    np.testing.assert_array_less(0.9, alike.max(axis=0))


def test_slabs_of_parts_are_checked(truth: dict[str, Any], tmp_path: Path) -> None:
    data = factorflow.write_dataset(tmp_path / "d", {"y": truth["y"]})
    with pytest.warns(UnusedWarning, match="nor the loadings of any view are 'nonnegative'"):
        factorflow.fit(data, SparseGFA(n_factors=2, slab="half_normal", max_iter=2), progress=False)
    options = {"kernel": "rbf", "n_functions": 5, "warping": True, "warping_reference": "A"}
    with pytest.warns(UnusedWarning) as said:  # of smooth scores, of which there are none
        factorflow.fit(
            data, SparseGFA(n_factors=2, smooth_groups=False, max_iter=2, **options), progress=False
        )
    assert {str(each.message).partition("=")[0] for each in said} == {*options, "smooth_groups"}
    with pytest.raises(InputError, match="slab = normal: expected one of exponential, half_normal"):
        get_prior("nonnegative(slab=normal)")


def test_learned_shares_are_integrated_out() -> None:
    """With its best q(pi) a mixture contributes log B(1 + n) - log B(1)."""
    prior, ones = get_prior("adaptive_shrinkage"), np.ones(2)
    n = np.random.default_rng(0).gamma(2.0, size=(10, 2))
    n *= 30.0 / n.sum(axis=0)
    view = View(ones, ones, ones, ones, 0.0, 1.0, 1.0, 1.0, np.zeros((1, 6)))
    constants, sums = PriorConstants(30, (1.0, 1.0), (1.0, 1.0)), LoadingSums(30.0 - n[0], np.ones(2), n)
    learned = prior.learn(constants, view, sums)
    found = prior.terms(constants, learned, sums) - get_prior("ard").terms(constants, learned, sums)
    expected = gammaln(10.0) - gammaln(40.0) + gammaln(1.0 + n).sum(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.thorough
def test_a_distribution_of_loadings_is_learned(tmp_path: Path) -> None:
    """Loadings of two sizes, and many that are 0."""
    rng = np.random.default_rng(5)
    sizes = rng.choice([0.0, 0.2, 2.0], p=[0.5, 0.35, 0.15], size=(300, 3))
    w, z = sizes * rng.standard_normal((300, 3)), rng.standard_normal((200, 3))
    data = factorflow.write_dataset(tmp_path / "d", {"y": z @ w.T + rng.standard_normal((200, 300))})
    fits = {
        name: factorflow.fit(data, SparseGFA(n_factors=6, loadings=name, scale_views=False), progress=False)
        for name in ("adaptive_shrinkage", "spike_slab")
    }
    posterior = fits["adaptive_shrinkage"]
    assert len(posterior.factors) == 3
    found = {name: fit.trace["objective"].to_numpy()[-1] for name, fit in fits.items()}
    assert found["adaptive_shrinkage"] > found["spike_slab"] + 20.0
    assert 0.35 < posterior.array("theta").values.mean() < 0.8
    objective = posterior.trace["objective"].to_numpy()[(posterior.trace["stage"] == "sparse").to_numpy()]
    assert (np.diff(objective) > -1e-9 * np.abs(objective[1:])).all()
    again = factorflow.fit(data, posterior.config, progress=False, warm_start=posterior)
    np.testing.assert_allclose(again.loadings("y"), posterior.loadings("y"), atol=0.03)
