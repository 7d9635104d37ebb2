"""The bound in single precision: what falls from pass to pass is rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from factorflow import fit, write_dataset
from factorflow.models import SparseGFA

MOST = 2e-7
"""Share of the bound by which a pass may seem to lower it: with data in single precision, sums in double."""


@pytest.mark.parametrize(
    ("noise", "missing"),
    [(1.0, 0.0), (0.02, 0.1), pytest.param(0.7, 0.1, marks=pytest.mark.thorough)],
)
def test_the_bound_falls_by_rounding_alone(tmp_path: Any, noise: float, missing: float) -> None:
    """Far beyond where a run would stop, with features far from 0, of much noise and of nearly none."""
    rng = np.random.default_rng(0)
    z, w = rng.normal(size=(400, 3)), (rng.random((80, 3)) < 0.5) * rng.normal(size=(80, 3))
    y = 1000.0 + z @ w.T + noise * rng.normal(size=(400, 80))
    y[rng.random(y.shape) < missing] = np.nan
    data = write_dataset(tmp_path / "d.zarr", {"v": y.astype(np.float32)})
    config = SparseGFA(n_factors=3, precision=32, tol=1e-14, warmup_iter=12, max_iter=80, drop=0.0)
    trace = fit(data, config, seed=0, progress=False).trace
    bound, stage = trace["objective"].values, trace["stage"].values
    fall = (bound[:-1] - bound[1:]) / np.abs(bound[1:])
    assert fall[stage[1:] == stage[:-1]].max() < MOST


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [1e-4, 3e-5])
def test_features_without_noise_in_single_precision(tmp_path: Any, noise: float) -> None:
    """Fit and chains as in double precision: residuals are of the entries that the products are of.

    Sums of squares of the entries before they are rounded are off by 1e-7: residuals of 1e-8 of them would be
    below 0 in a fit, and noise precisions would take the scores along to infinity in a chain.
    """
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=500), rng.normal(size=(500, 6))
    y += z[:, None] * rng.normal(size=6)
    y[:, :3] = 5.0 + z[:, None] * [1.3, 0.7, -1.1] + noise * rng.normal(size=(500, 3))
    data = write_dataset(tmp_path / "d.zarr", {"v": y.astype(np.float32)}, block_rows=256)
    options = {"n_factors": 1, "n_draws": 2, "n_burn_in": 20, "max_iter": 100}
    for bits in (32, 64):  # the second takes nothing of the blocks that the first left in memory
        posterior = fit(data, SparseGFA(precision=bits, **options), seed=0, progress=False)
        drawn = posterior.tree["posterior"]["noise_precision_v"].values[:, -1]
        assert np.abs(np.log(drawn[..., :3] * noise**2)).max() < np.log(3.0), bits
        assert np.abs(np.log(drawn[..., 3:])).max() < np.log(1.5), bits
