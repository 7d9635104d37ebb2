"""Views and features of which next to nothing is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import factorflow
from factorflow.errors import InputError
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.loadings.mixture import Component, collapsed
from factorflow.models.sparse_gfa.loadings.nonnegative import SLABS
from factorflow.models.sparse_gfa.start.components import initial_view
from factorflow.models.sparse_gfa.state import Fixed
from factorflow.models.sparse_gfa.weights import Weights


def test_a_view_of_which_everything_is_held_out_is_refused(tmp_path: Path) -> None:
    y = np.full((30, 1), np.nan)
    y[:2] = [[3.0], [1.0]]
    views = {"a": np.random.default_rng(14300).normal(size=(30, 8)), "y": y}
    data = factorflow.write_dataset(tmp_path / "d", views, likelihoods={"y": "poisson"})
    with pytest.raises(InputError, match=r"values of view y = none: expected some that are not held out"):
        factorflow.fit(data, SparseGFA(n_factors=2, max_iter=1), holdout=0.9, seed=1, progress=False)


def test_missing_entries_of_positive_numbers_are_no_anomalies(tmp_path: Path) -> None:
    """0 has no logarithm, and is not looked at in their place."""
    y = np.random.default_rng(14301).lognormal(size=(30, 4))
    y[::3, 0] = np.nan
    data = factorflow.write_dataset(tmp_path / "d", {"v": y}, likelihoods={"v": "lognormal"})
    model = SparseGFA(n_factors=1, max_iter=2, warmup_iter=2, drop=0.0)
    found = factorflow.analysis.find_anomalies(factorflow.fit(data, model, progress=False), "v", n=200)
    assert len(found) == 110
    assert np.isfinite(found["p_value"]).all()


def test_entries_that_say_nothing_do_not_make_loadings_boundless(tmp_path: Path) -> None:
    """Rates of e^-800 have no information; slabs begin as wide as the noise of x."""
    y = np.random.default_rng(14302).poisson(2.0, (20, 3)).astype(float)
    data = factorflow.write_dataset(tmp_path / "d", {"v": y}, likelihoods={"v": "poisson"})
    settings = SparseGFA(n_factors=1).build(data.meta()).settings
    one, zero = np.ones((3, 1)), np.zeros((3, 1))
    weights = Weights(zero, zero, None, -800.0 * one, zero, None, None, np.empty((3, 0)))
    fixed = Fixed(zero[:, 0], one[:, 0], one[:, 0], 20.0 * one, one, zero)
    assert np.isfinite(initial_view(settings, "v", weights, fixed).alpha_rate).all()


def test_slabs_of_what_is_surely_0_are_as_without_a_spike() -> None:
    """Their mean is E z / P(z > 0), of which rounding may leave neither."""
    linear, p, beta = np.array([-0.01, 0.4]), np.array([0.16, 2.0]), (1.8, np.log(1.8))
    parts = Component("zero"), SLABS["exponential"]
    found = collapsed(parts, linear, p, beta, np.array([0.0, -140.0]), power=1.0, learned=True)
    alone = collapsed(parts[1:], linear, p, beta, np.zeros(1), power=1.0, learned=True)
    np.testing.assert_allclose(found[0] / found[4], alone[0])
