"""Priors of loadings: one loading is exact, and what a horseshoe finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import factorflow
from factorflow.errors import InputError
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.loadings import Horseshoe, get_prior, prior_names
from factorflow.models.sparse_gfa.state import View, Weights, expected_weights

ALPHA, THETA = 1.7, 0.3
CERTAIN = 1e9
"""Shape of q(alpha), and counts of q(theta), that leave nothing open."""


def density(name: str, w: float) -> float:
    """Return the continuous part of the prior."""
    if name == "horseshoe":
        share = Horseshoe.scales / (1.0 + Horseshoe.scales**2)
        return float(share @ norm.pdf(w, 0.0, Horseshoe.scales / np.sqrt(ALPHA)) / share.sum())
    return float((THETA if name == "spike_slab" else 1.0) * norm.pdf(w, 0.0, ALPHA**-0.5))


@pytest.mark.parametrize("message", [(0.0, 2.0), (3.0, 2.0), (-40.0, 30.0)])
@pytest.mark.parametrize("name", prior_names())
def test_one_loading_is_exact(name: str, message: tuple[float, float]) -> None:
    """Its moments, and the evidence, by numerical integration."""
    linear, p = message
    ones = np.ones(1)
    view = View(
        CERTAIN * ones, CERTAIN / ALPHA * ones, CERTAIN * THETA * ones, CERTAIN * (1 - THETA) * ones,
        0.0, 1.0, 1.0, 1.0, np.zeros((1, 3)),
    )  # fmt: skip
    old = Weights(
        np.zeros((1, 1)), np.ones((1, 1)), None, ones[None], ones[None], None, None, np.empty((1, 0))
    )
    new, entropy = get_prior(name).update(
        old, view, np.array([[p, 0.0, 1.0]]), np.array([[linear]]), ones, 1.0
    )
    mode = linear / (p + ALPHA)
    places = sorted({-1.0, 0.0, 1.0, mode, linear / p, -10.0, 10.0})
    ends = {"limit": 2000, "points": places}

    def moment(power: int) -> float:
        def at(w: float) -> float:
            return w**power * density(name, w) * np.exp(min(linear * w - 0.5 * p * w * w - top, 0.0))

        reach = 12.0 / np.sqrt(p + ALPHA * 2.0**-16) + 10.0
        return float(quad(at, mode - reach, mode + reach, **ends)[0])

    top = 0.5 * linear**2 / p
    at_zero = (1 - THETA) * np.exp(-top) if name == "spike_slab" else 0.0
    total = moment(0) + at_zero
    mean, variance = (float(part[0, 0]) for part in expected_weights(new))
    assert mean == pytest.approx(moment(1) / total, rel=1e-5, abs=1e-8)
    assert variance == pytest.approx(moment(2) / total - mean**2, rel=1e-4, abs=1e-10)
    included = 1.0 if new.inclusion is None else float(new.inclusion[0, 0])
    squares = mean**2 + variance
    if new.inclusion is not None:
        squares = included * float(new.mean[0, 0] ** 2 + new.variance[0, 0])
    if new.scaled_square is not None:
        squares = float(new.scaled_square[0, 0])
    found = entropy + 0.5 * (included * np.log(ALPHA) - ALPHA * squares)
    if name == "spike_slab":
        found += included * np.log(THETA) + (1 - included) * np.log(1 - THETA)
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
