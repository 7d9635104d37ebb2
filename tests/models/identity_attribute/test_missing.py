"""Intervals of lambda are as wide as the data allow: what no frame shows is not counted as seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from examples.reproduce.identity import recovered
from factorflow.models import IdentityAttribute
from factorflow.models.identity_attribute.dynamics import expectations, quantiles, temper_dynamics
from factorflow.models.identity_attribute.missing_information import _shared_with_scale
from factorflow.models.identity_attribute.state import Moments


def _counts(n_pairs: float, n_first: float) -> Any:
    nothing = np.zeros(1)
    return Moments(np.zeros((2, 2)), np.zeros(2), nothing, nothing, nothing, nothing, n_first, n_pairs, 0.0)


@pytest.mark.parametrize("lam", [0.0, 0.6, -0.9])
@pytest.mark.parametrize("length", [2, 30])
def test_what_lambda_shares_with_the_scale_is_that_of_the_exact_information(lam: float, length: int) -> None:
    """Expected information of N(0, c^2 S(lambda)): tr(S^-1 dS S^-1 dS) / 2, by differences."""
    apart = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    covariance = lam**apart if lam else np.eye(length)
    step = 1e-6
    slope = ((lam + step) ** apart - (lam - step) ** apart) / (2 * step)
    inverse = np.linalg.inv(covariance)
    by_lam, by_scale = inverse @ slope, 2.0 * np.eye(length)
    ll, ls, ss = (
        0.5 * np.trace(a @ b) for a, b in ((by_lam, by_lam), (by_lam, by_scale), (by_scale, by_scale))
    )
    found = _shared_with_scale(np.array([lam]), _counts(length - 1.0, 1.0))[0]
    assert found == pytest.approx(ls**2 / (ll * ss), abs=1e-6)


def test_what_is_missing_widens_about_the_same_mode() -> None:
    """Of a normal density, nearly: a quarter of the information is twice the width."""
    n, lam = 4000.0, 0.7
    parameters = np.array([[n / 2], [-n / 2], [n * lam], [-n / 2]])
    shares = np.array([0.025, 0.5, 0.975])
    low, middle, high = quantiles(parameters, shares)[0]
    wide = quantiles(temper_dynamics(parameters, np.array([0.75])), shares)[0]
    assert wide[2] - wide[0] == pytest.approx(2.0 * (high - low), rel=0.01)
    assert wide[1] == pytest.approx(middle, abs=2e-3)


def _simulated(path: Path, seed: int, **world: Any) -> Any:
    given: dict[str, Any] = {
        "n_features": 20,
        "n_identities": 4,
        "n_attributes": 2,
        "equal_lengths": True,
    } | world
    return factorflow.simulate("identity_attribute", path, 4000, seed=seed, n_sequences=20, **given)


@pytest.mark.thorough
@pytest.mark.parametrize("block_rows", [4096, 512])
def test_intervals_of_lambda_cover(block_rows: int, tmp_path: Path) -> None:
    """Those of q(lambda) itself cover three of eight here; a run ends with the lambda that it has learned.

    An identity is there in a third of the frames: more than half of what q(lambda) counts has not been seen.
    """
    hits, n = 0, 0
    for seed in (2003, 2004):
        data = _simulated(tmp_path / f"{seed}.zarr", seed, block_rows=block_rows)
        posterior = factorflow.fit(data, IdentityAttribute(n_identities=4, max_iter=60))
        names = "loadings_y", "present", "dynamics", "transition", "precision_y"
        truth = {name: np.asarray(data.truth[name].values) for name in names}
        hit, of = recovered(posterior, truth)["covered"]["dynamics"]
        hits, n = hits + hit, n + of
        parameters = posterior.variable("dynamics_parameters").values.reshape(4, -1)
        mean = posterior.variable("dynamics").values.ravel()
        np.testing.assert_allclose(mean, expectations(parameters).mean, rtol=1e-12)
        lam = np.abs(mean)
        seen = (1.0 - posterior.variable("dynamics_missing").values.ravel()) * (1.0 + lam**2) / (1.0 - lam**2)
        assert ((0.1 < seen) & (seen < 0.4)).all()
        width = np.ptp(posterior.variable("dynamics_interval").values.reshape(-1, 2), axis=1)
        # from the true states, present in a third of the frames: 2 x 1.96 standard deviations
        oracle = 3.92 * np.sqrt((1.0 - lam**2) / (4000 / 3))
        assert ((0.8 * oracle < width) & (width < 2.5 * oracle)).all()
    assert n == 16
    assert hits >= 13


@pytest.mark.thorough
def test_what_all_frames_show_is_seen(tmp_path: Path) -> None:
    """Hardly any noise, and identities that are hardly ever absent: r is near 0; of a spare one, near 1."""
    data = _simulated(
        tmp_path / "d.zarr", 5, n_identities=1, transition=((0.5, 0.5), (0.001, 0.999)), precision=(1e4, 2e4)
    )
    found = factorflow.fit(data, IdentityAttribute(n_identities=2, max_iter=60))
    lam = found.variable("dynamics").values
    seen = (1.0 - found.variable("dynamics_missing").values) * (1.0 + lam**2) / (1.0 - lam**2)
    present = found.identities().values.mean(axis=0) * (
        np.abs(found.loadings("y").values).max(axis=(0, 2)) > 0.1
    )
    assert seen[present > 0.9].min() > 0.9


@pytest.mark.thorough
@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("block_rows", [4096, 512])
def test_what_is_uncertain_of_the_noise_is_what_predictions_leave(
    missing: float, block_rows: int, tmp_path: Path
) -> None:
    """1 / rho is what the mean of x leaves of the data, and the uncertainty of x; 1 - h is the first part."""
    data = _simulated(tmp_path / "d.zarr", 6, n_features=8, n_views=2, missing=missing, block_rows=block_rows)
    posterior = factorflow.fit(data, IdentityAttribute(n_identities=3, max_iter=30))
    for view in data.meta().views:
        y = np.concatenate([data.block(i).data[view.name] for i in range(data.n_blocks)]).astype(np.float64)
        left = np.nanmean((y - np.asarray(posterior.predict(view.name)["mean"])) ** 2, axis=0)
        precision = posterior.variable(f"precision_{view.name}").values
        told = 1.0 - posterior.variable(f"precision_missing_{view.name}").values
        np.testing.assert_allclose(told, (precision * left) ** 2, rtol=1e-3)
        assert told.max() < 0.98
        low, high = posterior.variable(f"precision_interval_{view.name}").values.T
        n = (~np.isnan(y)).sum(axis=0)
        np.testing.assert_allclose(np.log(high / low), 3.92 * np.sqrt(2.0 / (n * told)), rtol=0.01)
