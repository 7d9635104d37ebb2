"""Priors of loadings: one loading is exact, and what a horseshoe finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

import factorflow
from factorflow.errors import InputError
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.loadings import PriorConstants, get_prior, prior_names
from factorflow.models.sparse_gfa.loadings.base import _REGISTRY
from factorflow.models.sparse_gfa.loadings.mixture import Component, Mixture
from factorflow.models.sparse_gfa.state import View, Weights, expected_weights

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


@pytest.mark.parametrize("name", prior_names())
def test_a_density_is_one(name: str) -> None:
    prior, view = get_prior(name), one_view()
    w = np.concatenate([-np.geomspace(1e3, 1e-7, 200_000), np.geomspace(1e-7, 1e3, 200_000)])
    at_zero, density = prior.density(w, view)
    assert at_zero + np.trapezoid(density, w) == pytest.approx(1.0, abs=1e-3)
    assert (at_zero > 0.0) == prior.spikes
    assert (density[w < 0.0].max() > 0.0) == prior.signed


@pytest.mark.parametrize("message", [(0.0, 2.0), (3.0, 2.0), (-40.0, 30.0)])
@pytest.mark.parametrize("name", prior_names())
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
    old = Weights(
        rng.normal(size=(6, 3)), np.ones((6, 3)), None, np.zeros((6, 1)), np.ones((6, 1)), None, None,
        np.empty((6, 0)),
    )  # fmt: skip
    prior = get_prior("horseshoe")
    whole, _ = prior.update(old, view, pairs, linear, np.ones(6), 1.0)
    half, _ = prior.update(old, view, pairs, linear, np.ones(6), 0.5)
    first = [expected_weights(w)[0][:, 0] for w in (old, half, whole)]
    np.testing.assert_allclose(first[1], 0.5 * (first[0] + first[2]))
    assert (np.abs(half.mean - old.mean) < np.abs(whole.mean - old.mean) + 1.0).all()


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
    with pytest.raises(InputError, match="loadings that all are spike_slab, or all ard"):
        factorflow.fit(data, SparseGFA(n_factors=2, loadings={"a": "horseshoe"}, n_draws=2), progress=False)


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
    with pytest.raises(InputError, match="loadings = what: expected one of spike_slab, ard, horseshoe"):
        get_prior("what")
